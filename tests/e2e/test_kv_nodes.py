"""Stored KV on two machines: prefill on one, decode on the other, an entrypoint and half of the store on each. The
window that a text ends with lies where it was decoded, and the next turn begins on the other machine. Needs root."""

import json
import os
import random
import signal
import unittest

from cluster import wait_until
from two_machines import FAR_IP, NEAR_IP, TwoMachinesTest

# Of nano, as `millrace up` asks for them.
BLOCK_BYTES = 20352
WINDOW_BYTES = 84480


class KvOnTwoNodes(TwoMachinesTest):
    def start_cluster(self):
        secret = self.dir / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32))
        self.start_machines("--cluster-secret", secret, "--worker-threads", 1)
        self.want(8, prefill=1, decode=1, entrypoint=2, entrypoint_listen=":8000", storage={
            "nodes": 2, "targets_per_node": 6, "target_bytes": 16 << 20, "block_bytes": BLOCK_BYTES,
            "fetch_bytes": 16 << 20, "window_bytes": WINDOW_BYTES, "window_pool_bytes": 64 * WINDOW_BYTES})
        self.nodes = {w["worker_id"]: w["node_id"] for w in self.workers()}

    def on_node(self, role, node):
        return next(w for w, n in self.nodes.items() if w.startswith(role) and n == node)

    def complete(self, host, prompt, user, max_tokens=150):
        body = {"model": "nano", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "user": user,
                "ignore_eos": True, "return_token_ids": True}
        reply = json.loads(self.request(f"http://{host}:8000/v1/completions", body))
        return reply["choices"][0]["token_ids"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def begun(self, window):
        return self.metrics_of("prefill-0")[f'millrace_prefills_begun_total{{window="{window}"}}']

    def kept(self):
        """Blocks and windows that the decode worker has had stored."""
        metrics = self.metrics_of("decode-0")
        return (metrics['millrace_kv_sealed_blocks_total{result="stored"}'],
                metrics['millrace_kv_windows_kept_total{result="kept"}'])

    def answer(self, host, prompt, expected):
        """An answer that begins behind so many cached tokens; asks again when an entrypoint did not hear of them in
        its 50 ms."""
        seen = []

        def is_hit():
            seen.append(self.complete(host, prompt, "a"))
            return seen[-1][1] == expected
        try:
            wait_until(is_hit, 20, "a hit")
        except AssertionError:
            self.fail(f"cached tokens {[s[1] for s in seen]}, expected {expected}")
        return seen[-1][0]

    def turn(self, host, prompt, expected):
        """The same, and waits until the block that the answer fills and its window are stored."""
        blocks, windows = self.kept()
        answer = self.answer(host, prompt, expected)

        def is_stored():
            now = self.kept()
            return now[0] > blocks and now[1] > windows
        wait_until(is_stored, 30, "the answer is stored")
        return answer

    def cold(self, prompt, user):
        answer, cached = self.complete(NEAR_IP, prompt, user)
        self.assertEqual(cached, 0, "another user's KV is not found")
        return answer

    def warm_up(self):
        """A cluster that has just started serves before each of its processes knows the storage map and its peers."""
        source = random.Random(9)

        def is_stored():
            self.complete(NEAR_IP, [source.randrange(300, 2000) for _ in range(200)], "warm-up", 100)
            return self.kept()[0] > 0
        wait_until(is_stored, 60, "something is stored")
        prompt = [source.randrange(300, 2000) for _ in range(600)]
        for host in (NEAR_IP, FAR_IP):
            wait_until(lambda: self.complete(host, prompt, "warm-up", 1)[1] > 0, 30, f"{host} finds what is stored")

    def test_a_conversation_goes_on_from_a_window_of_the_other_node(self):
        self.start_cluster()
        self.assertEqual(self.nodes["prefill-0"], "a-near")
        self.assertEqual(self.nodes["decode-0"], "b-far")
        near, far = self.on_node("kvfetch", "a-near"), self.on_node("kvfetch", "b-far")
        self.assertNotEqual(self.nodes["entrypoint-0"], self.nodes["entrypoint-1"])
        self.warm_up()

        source = random.Random(1)
        prompt = [source.randrange(300, 2000) for _ in range(400)]
        answer = self.turn(NEAR_IP, prompt, 0)  # 549 positions: decoding filled the block up to 512
        prompt += answer + [source.randrange(300, 2000) for _ in range(140)]

        remote_hits = 'millrace_swa_hits_total{source="remote"}'
        before, begun = self.metrics_of(near)[remote_hits], self.begun("window")
        answer = self.turn(FAR_IP, prompt, 512)  # by the other entrypoint; 839 positions: up to 768
        self.assertGreater(self.begun("window"), begun)
        self.assertGreater(self.metrics_of(near)[remote_hits], before)
        self.assertGreater(self.metrics_of(far)['millrace_swa_peer_requests_total{outcome="served"}'], 0)
        self.assertEqual(answer, self.cold(prompt, "cold-1"))

        # The window at 768 dies with its fetcher. The one at 640 was left by the prefill, on its own node.
        os.kill(self.worker(far)["pid"], signal.SIGKILL)
        prompt += answer + [source.randrange(300, 2000) for _ in range(140)]
        begun = self.begun("exact_replay")
        answer = self.answer(NEAR_IP, prompt, 640)
        self.assertGreater(self.begun("exact_replay"), begun)
        self.assertEqual(answer, self.cold(prompt, "cold-2"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
