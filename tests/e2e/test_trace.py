"""A real trace's lengths through the whole cluster without an error.

The first 40 requests by default, with a smaller concurrency; MILLRACE_TRACE_REQUESTS sets another
number (at most the 500 of the file).
"""

import json
import os
import unittest

from cluster import ROOT, ClusterTest, millrace

TRACE = ROOT / "tests/data/azure_llm_2023_conv_500.csv.gz"
REQUESTS = int(os.environ.get("MILLRACE_TRACE_REQUESTS", "40"))
CONCURRENCY = 32


class AzureTrace(ClusterTest):
    def test_every_request_gets_its_tokens(self):
        finished = millrace("bench", "serve", "--json", "--trace", TRACE, "--requests", REQUESTS,
                            "--concurrency", CONCURRENCY, "--timeout-s", 3600,
                            data_dir=self.cluster.data_dir, timeout=7200)
        self.assertEqual(finished.returncode, 0, finished.stderr + finished.stdout)
        report = json.loads(finished.stdout)
        print(json.dumps(report, indent=2))
        self.assertEqual(report["requests"], REQUESTS)
        self.assertEqual(report["errors"], {})
        for name in ("time_to_first_token_s", "end_to_end_s"):
            self.assertEqual(report[name]["count"], REQUESTS)
            self.assertLessEqual(report[name]["p50"], report[name]["p99"])
            self.assertGreater(report[name]["p50"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
