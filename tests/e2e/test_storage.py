"""The KV store of `millrace up`: what people see of it, that it outlives its process, and how it is refused."""

import json
import os
import signal
import unittest

from cluster import ClusterTest, get_json, millrace, wait_until


class Store(ClusterTest):
    UP_ARGUMENTS = ("--kv-bytes", "96MiB")

    def millrace(self, *arguments, **options):
        return millrace(*arguments, data_dir=self.cluster.data_dir, **options)

    def bench(self, blocks, seed):
        finished = self.millrace("kv", "bench", "--json", "--blocks", blocks, "--seed", seed)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        return json.loads(finished.stdout)

    def status(self):
        return json.loads(self.millrace("kv", "status", "--json").stdout)

    def test_1_one_process_with_twelve_targets_stores_blocks(self):
        before = self.status()
        self.assertEqual(before["targets_up"], 12)
        self.assertEqual((before["data_shards"], before["parity_shards"]), (10, 2))
        report = self.bench(200, 1)
        self.assertEqual(report["reads"]["blocks"], 200)
        self.assertEqual(report["reads"]["wrong"], 0)
        wait_until(lambda: self.status()["published_shards"] >= 12 * 200, 20, "the report shows the shards")
        text = self.millrace("kv", "status").stdout
        self.assertIn("Whole.", text)
        nodes = self.millrace("storage", "nodes").stdout
        self.assertEqual(nodes.count("storage-0-target-"), 12)

    def test_2_a_killed_process_loses_nothing_that_was_published(self):
        self.bench(100, 2)
        pid = self.cluster.kill("storage")
        self.cluster.wait_for_restart("storage", pid)
        wait_until(lambda: self.status()["targets_up"] == 12, 60, "all targets are up again")
        report = self.bench(100, 2)
        self.assertEqual(report["reads"]["wrong"], 0)

    def test_3_scrub_reads_everything_and_finds_what_was_damaged(self):
        self.bench(100, 3)
        slots = sorted(self.cluster.data_dir.rglob("target-05/slots*"))
        self.assertEqual(len(slots), 1, "one slot file of the sixth target")
        wait_until(lambda: self.status()["published_shards"] >= 12 * 100, 20, "the report shows the shards")
        with open(slots[0], "r+b") as file:
            data = file.read()
            start = data.index(b"MRSH") + 200  # inside the payload of some shard
            file.seek(start)
            file.write(bytes([data[start] ^ 1]))
            file.flush()
            os.fsync(file.fileno())
        report = json.loads(self.millrace("kv", "scrub", "--json").stdout)
        self.assertGreaterEqual(report["checked"], 12 * 100)
        self.assertEqual(report["bad"], 1)
        # It is rebuilt from the others: a second scrub finds nothing.
        wait_until(lambda: self.status()["rebuild_left"] == 0, 30, "the shard is rebuilt")
        again = json.loads(self.millrace("kv", "scrub", "--json").stdout)
        self.assertEqual(again["bad"], 0)
        self.bench(100, 3)

    def test_4_check_counts_leading_blocks(self):
        tokens = self.cluster.data_dir / "tokens.json"
        tokens.write_text(json.dumps([5] * 1000))
        report = json.loads(self.millrace("kv", "check", tokens, "--json").stdout)
        self.assertEqual((report["blocks"], report["hit_blocks"]), (7, 0))
        keys = self.cluster.data_dir / "keys.txt"
        keys.write_text("ab" * 32 + "\n" + "cd" * 32 + "\n")
        report = json.loads(self.millrace("kv", "check", keys, "--json").stdout)
        self.assertEqual((report["blocks"], report["hit_blocks"]), (2, 0))
        keys.write_text("nonsense\n")
        refused = self.millrace("kv", "check", keys)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("line 1", refused.stderr)

    def test_5_evict_frees_what_was_asked(self):
        self.bench(100, 5)
        wait_until(lambda: self.status()["published_shards"] >= 12 * 100, 20, "the report shows the shards")
        finished = self.millrace("kv", "evict")
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertEqual(self.status()["published_shards"], 0)
        self.bench(50, 6)

    def test_6_wrong_requests_say_what_is_wrong(self):
        refused = self.millrace("storage", "replace", "nothing-there")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("nothing-there is not known", refused.stderr)
        member = get_json(self.cluster.controller, "/api/v1/storage")["nodes"][0]["targets"][0]["target_id"]
        refused = self.millrace("storage", "replace", member)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no spare", refused.stderr)
        refused = self.millrace("kv", "evict", "--to", "1.5")
        self.assertEqual(refused.returncode, 2)

    def test_7_the_secret_is_its_owners_alone(self):
        secret = self.cluster.data_dir / "cluster.secret"
        self.assertEqual(secret.stat().st_mode & 0o777, 0o600)
        self.assertEqual(secret.stat().st_size, 32)

    def test_8_without_the_store_requests_are_answered(self):
        pid = self.cluster.workers("storage")[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            answer = self.millrace("complete", "Hello", "--max-tokens", "4")
            self.assertEqual(answer.returncode, 0, answer.stderr)
        finally:
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
