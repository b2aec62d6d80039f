"""The KV hand-over between two machines: controller, entrypoint and prefill worker on one, the decode worker on the
other. Needs root."""

import json
import unittest

from two_machines import NEAR_IP, TwoMachinesTest


class HandOver(TwoMachinesTest):
    def test_kv_is_handed_over_by_stream(self):
        self.start_machines()
        self.want(3, prefill=1, decode=1, entrypoint=1, entrypoint_listen=f"{NEAR_IP}:8000")
        nodes = {w["worker_id"]: w["node_id"] for w in self.workers()}
        self.assertNotEqual(nodes["prefill-0"], nodes["decode-0"], "the two engines are on one node")

        body = {"model": "nano", "prompt": "The river turns the old mill. " * 30, "max_tokens": 40,
                "ignore_eos": True, "temperature": 0, "echo_ids": True}
        answer = json.loads(self.request(f"http://{NEAR_IP}:8000/v1/completions", body))
        self.assertEqual(answer["usage"]["completion_tokens"], 40)
        self.assertEqual(len(answer["choices"][0]["token_ids"]), 40)

        metrics = self.metrics_of("decode-0")
        imports = {path: metrics[f'millrace_kv_imports_total{{path="{path}"}}'] for path in ("stream", "shared_memory")}
        self.assertEqual(imports, {"stream": 1, "shared_memory": 0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
