"""Clients that hang up are forgotten everywhere within a second."""

import json
import time
import unittest

from client import connect, model_of, post
from cluster import SLOWNESS, ClusterTest, read_metrics, wait_until

CLIENTS = 100
GAUGES = ("millrace_requests_running", "millrace_requests_waiting", "millrace_kv_blocks_used",
          "millrace_kv_exports_pinned")


class HangingUp(ClusterTest):
    def setUp(self):
        self.address = self.cluster.entrypoint
        self.body = {"model": model_of(self.address), "prompt": "Once upon a time " * 40,
                     "max_tokens": 4000, "ignore_eos": True}

    def send(self, is_streamed):
        connection = connect(self.address)
        connection.request("POST", "/v1/completions", json.dumps(dict(self.body, stream=is_streamed)),
                           {"Content-Type": "application/json"})
        return connection

    def in_use(self):
        metrics = [read_metrics(w["metrics_address"]) for w in self.workers]
        return {gauge: sum(m[gauge] for m in metrics) for gauge in GAUGES}

    def test_a_hundred_clients_hang_up(self):
        self.workers = self.cluster.workers("prefill") + self.cluster.workers("decode")
        # More than the engines run at a time: the later ones wait.
        connections = [self.send(is_streamed=i % 2 == 0) for i in range(CLIENTS)]
        first = connections[0].getresponse()
        self.assertEqual(first.status, 200)
        first.readline()  # a stream that has begun
        wait_until(lambda: self.in_use()["millrace_requests_running"] > 1, 60, "running requests")
        for connection in connections:
            connection.close()
        first.close()

        start = time.monotonic()
        wait_until(lambda: not any(self.in_use().values()), 30, "all gauges at zero")
        took = time.monotonic() - start
        print(f"gauges at zero after {took:.2f} s")
        self.assertLess(took, 1.0 * SLOWNESS, self.in_use())

        status, _, answer = post(self.address, "/v1/completions", dict(self.body, max_tokens=4))
        self.assertEqual(status, 200)
        self.assertEqual(answer["usage"]["completion_tokens"], 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
