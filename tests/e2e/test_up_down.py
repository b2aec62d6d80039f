"""millrace up, status, chat, complete and down, and the ways in which a start is refused."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from client import model_of
from cluster import BIN, NANO, SLOWNESS, Cluster, ClusterTest, get_json, millrace, wait_until


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


class Commands(ClusterTest):
    UP_ARGUMENTS = ("--kv-bytes", "48MiB")

    def millrace(self, *arguments, **options):
        return millrace(*arguments, data_dir=self.cluster.data_dir, **options)

    def test_up_reports_addresses_and_pids(self):
        record = self.cluster.record
        self.assertEqual(set(record), {"entrypoint", "controller", "data_dir", "pids"})
        self.assertEqual(set(record["pids"]),
                         {"up", "controller", "agent", "prefill", "decode", "entrypoint", "storage",
                          "kvfetch"})
        for role, pids in record["pids"].items():
            self.assertEqual(len(pids), 1, role)
            self.assertTrue(is_running(pids[0]), role)
        for path in ("/health", "/ready"):
            connection = socket.create_connection(record["entrypoint"].split(":"), timeout=10)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200"), path)
            connection.close()

    def test_status_lists_the_workers(self):
        status = json.loads(self.millrace("status", "--json").stdout)
        self.assertEqual(status["entrypoint"], self.cluster.entrypoint)
        self.assertEqual({w["role"]: w["state"] for w in status["workers"]},
                         {"prefill": "ready", "decode": "ready", "entrypoint": "ready", "storage": "ready",
                          "kvfetch": "ready"})
        text = self.millrace("status")
        self.assertEqual(text.returncode, 0)
        self.assertIn("decode-0", text.stdout)
        self.assertNotIn("\x1b", text.stdout, "colours belong on a terminal only")

    def test_chat_answers(self):
        once = self.millrace("chat", "--once", "Hello! Who are you?", "--temperature", "0", "--max-tokens", "200")
        self.assertEqual(once.returncode, 0, once.stderr)
        self.assertTrue(once.stdout.strip())
        again = self.millrace("chat", "--once", "Hello! Who are you?", "--temperature", "0", "--max-tokens", "200")
        self.assertEqual(again.stdout, once.stdout)

    def test_complete_takes_text_and_ids(self):
        text = self.millrace("complete", "The old mill", "--max-tokens", "8")
        self.assertEqual(text.returncode, 0, text.stderr)
        ids = self.millrace("complete", "--ids", "0 300 301", "--max-tokens", "8")
        self.assertEqual(ids.returncode, 0, ids.stderr)
        self.assertTrue(all(word.isdigit() for word in ids.stdout.split()), ids.stdout)
        wrong = self.millrace("complete", "--ids", "0 x")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("--ids", wrong.stderr)

    def test_eval_counts_exact_matches(self):
        finished = self.millrace("eval", "--json", "--limit", "6")
        self.assertEqual(finished.returncode, 0, finished.stderr)
        report = json.loads(finished.stdout)
        self.assertEqual(report["all"]["total"], 6)
        self.assertEqual(report["errors"], [])
        self.assertEqual(sum(t["total"] for t in report["tasks"].values()), 6)
        low, high = report["all"]["interval_95"]
        self.assertTrue(0 <= low <= report["all"]["exact_match"] <= high <= 1)

    def test_bench_measures_a_synthetic_load(self):
        finished = self.millrace("bench", "serve", "--json", "--requests", "6", "--concurrency", "3",
                                 "--input-tokens", "150", "--output-tokens", "5")
        self.assertEqual(finished.returncode, 0, finished.stderr)
        report = json.loads(finished.stdout)
        self.assertEqual((report["requests"], report["failed"]), (6, 0))
        self.assertEqual((report["prompt_tokens"], report["output_tokens"]), (6 * 150, 6 * 5))
        self.assertEqual(report["time_per_output_token_s"]["count"], 6)

    def test_a_second_up_is_refused(self):
        second = self.millrace("up", "--detach")
        self.assertEqual(second.returncode, 1)
        self.assertIn("millrace down", second.stderr)
        self.assertEqual(len(self.cluster.workers()), 5)

    def test_the_model_is_named_after_its_folder(self):
        self.assertEqual(model_of(self.cluster.entrypoint), "nano")


class RefusedStart(unittest.TestCase):
    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="millrace-e2e-"))

    def tearDown(self):
        shutil.rmtree(self.dir)

    def up(self, *arguments):
        finished = millrace("up", "--detach", "--entrypoint", "127.0.0.1:0", "--controller", "127.0.0.1:0",
                            *arguments, data_dir=self.dir / "data")
        self.assertEqual(finished.returncode, 1, finished.stdout)
        self.assertEqual(millrace("down", data_dir=self.dir / "data").returncode, 1, "something was left running")
        return finished.stderr


class BadArguments(RefusedStart):
    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            for flag in ("--entrypoint", "--controller"):
                message = self.up_at(flag, address)
                self.assertIn(address, message)
                self.assertIn("in use", message)
                self.assertIn(flag, message)

    def up_at(self, flag, address):
        flags = {"--entrypoint": "127.0.0.1:0", "--controller": "127.0.0.1:0", flag: address}
        finished = millrace("up", "--detach", *[w for pair in flags.items() for w in pair], data_dir=self.dir / "data")
        self.assertEqual(finished.returncode, 1)
        return finished.stderr

    def test_a_missing_model_folder(self):
        message = self.up("--model", str(self.dir / "nowhere"))
        self.assertIn("nowhere", message)
        self.assertIn("--model", message)

    def test_a_folder_without_a_model(self):
        self.assertIn("config.json", self.up("--model", str(self.dir)))

    def test_an_unknown_engine_switch(self):
        self.assertIn("warp", self.up("--engine", "warp=on"))

    def test_nothing_runs(self):
        for command in ("down", "status", "chat"):
            finished = millrace(command, data_dir=self.dir / "empty")
            self.assertEqual(finished.returncode, 1, command)
            self.assertIn(str(self.dir / "empty"), finished.stderr)


class DamagedCheckpoints(RefusedStart):
    """A start with a damaged copy of nano ends at once and names the tensor."""

    def setUp(self):
        super().setUp()
        self.model = self.dir / "nano"
        shutil.copytree(NANO, self.model)
        self.shard = sorted(self.model.glob("*.safetensors"))[0]
        data = self.shard.read_bytes()
        (self.header_bytes,) = struct.unpack("<Q", data[:8])
        self.header = json.loads(data[8:8 + self.header_bytes])
        self.names = sorted(n for n in self.header if n != "__metadata__")

    def write_header(self, header):
        text = json.dumps(header, separators=(",", ":")).encode()
        self.assertLessEqual(len(text), self.header_bytes)
        with open(self.shard, "r+b") as file:
            file.seek(8)
            file.write(text.ljust(self.header_bytes))

    def test_a_truncated_shard(self):
        last = max(self.names, key=lambda n: self.header[n]["data_offsets"][1])
        os.truncate(self.shard, self.shard.stat().st_size - 1)
        message = self.up("--model", str(self.model))
        self.assertIn(self.shard.name, message)
        self.assertIn(last, message)

    def test_another_dtype(self):
        name = next(n for n in self.names if self.header[n]["dtype"] == "BF16")
        self.write_header({**self.header, name: {**self.header[name], "dtype": "F16"}})
        message = self.up("--model", str(self.model))
        self.assertIn(name, message)

    def test_another_shape(self):
        name = next(n for n in self.names if len(set(self.header[n]["shape"])) == 2)
        turned = {**self.header[name], "shape": self.header[name]["shape"][::-1]}
        self.write_header({**self.header, name: turned})
        self.assertIn(name, self.up("--model", str(self.model)))


class Installed(unittest.TestCase):
    def test_an_installed_millrace_finds_its_programs_and_its_model(self):
        prefix = Path(tempfile.mkdtemp(prefix="millrace-e2e-"))
        self.addCleanup(shutil.rmtree, prefix)
        subprocess.run(["cmake", "--install", BIN.parent, "--prefix", prefix], check=True, capture_output=True)
        command = [prefix / "bin/millrace", "up", "--detach", "--json", "--data-dir", prefix / "data",
                   "--entrypoint", "127.0.0.1:0", "--controller", "127.0.0.1:0"]
        started = subprocess.run(command, capture_output=True, text=True, timeout=120 * SLOWNESS)
        self.assertEqual(started.returncode, 0, started.stderr)
        try:
            record = json.loads((prefix / "data/cluster.json").read_text())
            self.assertEqual(record["model_dir"], str(prefix / "share/millrace/models/nano"))
            pid = record["pids"]["decode"][0]
            self.assertEqual(os.readlink(f"/proc/{pid}/exe"), str(prefix / "bin/millrace-worker"))
        finally:
            self.assertEqual(millrace("down", data_dir=prefix / "data").returncode, 0)


class Stopping(unittest.TestCase):
    def test_down_leaves_nothing_behind(self):
        cluster = Cluster().start()
        pids = [pid for pids in cluster.record["pids"].values() for pid in pids]
        address = cluster.entrypoint
        cluster.stop()
        wait_until(lambda: not any(is_running(pid) for pid in pids), 5, "all processes gone")
        with self.assertRaises(OSError):
            get_json(address, "/health")

    def test_a_killed_supervisor_takes_everything_with_it(self):
        cluster = Cluster().start()
        try:
            pids = [pid for pids in cluster.record["pids"].values() for pid in pids]
            os.kill(cluster.record["pids"]["up"][0], signal.SIGKILL)
            wait_until(lambda: not any(is_running(pid) for pid in pids), 20, "all processes gone")
            cluster.record = None
            restarted = cluster.start()  # the same data folder, at once
            self.assertTrue(restarted.workers())
        finally:
            cluster.stop()

    def test_a_killed_controller_comes_back_and_stops_no_traffic(self):
        with Cluster() as cluster:
            pid = cluster.record["pids"]["controller"][0]
            os.kill(pid, signal.SIGKILL)
            answer = millrace("complete", "The river", "--max-tokens", "4", data_dir=cluster.data_dir)
            self.assertEqual(answer.returncode, 0, answer.stderr)

            def listed():
                try:
                    return [w["state"] for w in cluster.workers()] == ["ready"] * 3
                except OSError:
                    return False
            wait_until(listed, 30, "the controller lists all workers again")
            record = cluster.data_dir / "cluster.json"
            wait_until(lambda: json.loads(record.read_text())["pids"]["controller"] != [pid], 5, "its new pid")

    def test_a_killed_agent_comes_back_with_new_workers(self):
        with Cluster() as cluster:
            before = {w["pid"] for w in cluster.workers()}
            address = cluster.entrypoint
            os.kill(cluster.record["pids"]["agent"][0], signal.SIGKILL)

            def replaced():
                workers = cluster.workers()
                return all(w["state"] == "ready" and w["pid"] not in before for w in workers)
            wait_until(replaced, 60, "new workers")
            self.assertFalse(any(is_running(pid) for pid in before))
            self.assertEqual(cluster.workers("entrypoint")[0]["address"], address)
            wait_until(lambda: millrace("complete", "The river", "--max-tokens", "4",
                                        data_dir=cluster.data_dir).returncode == 0, 30, "an answer")

    def test_foreground_ends_with_an_interrupt(self):
        data_dir = tempfile.mkdtemp(prefix="millrace-e2e-")
        up = subprocess.Popen([BIN / "millrace", "up", "--json", "--data-dir", data_dir, "--entrypoint",
                               "127.0.0.1:0", "--controller", "127.0.0.1:0", "--model", NANO],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            record = json.loads(up.stdout.readline())
            up.send_signal(signal.SIGINT)
            self.assertEqual(up.wait(60 * SLOWNESS), 0)
            pids = [pid for pids in record["pids"].values() for pid in pids]
            self.assertFalse(any(is_running(pid) for pid in pids))
        finally:
            if up.poll() is None:
                up.kill()
                up.wait()
            for stream in (up.stdout, up.stderr):
                stream.close()
            time.sleep(0.2)
            shutil.rmtree(data_dir, ignore_errors=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
