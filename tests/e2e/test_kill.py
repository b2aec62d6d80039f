"""kill -9 of engine processes in the middle of streams: every stream ends with the text it would have had."""

import unittest

from client import Stream, finish, model_of, run_streams
from cluster import ClusterTest, wait_until

STREAMS = 20
TOKENS = 512


def bodies(model):
    """Greedy and seeded requests with prompts of different lengths, some over a block of 128 tokens."""
    result = []
    for i in range(STREAMS):
        body = {
            "model": model,
            "prompt": f"{i}. " + "The river turns the old mill under the bridge. " * (1 + 5 * (i % 5)),
            "max_tokens": TOKENS,
            "ignore_eos": True,
        }
        if i % 2 == 0:
            body["temperature"] = 0
        else:
            body.update(temperature=0.9, top_p=0.95, seed=1000 + i)
        result.append(body)
    return result


class KillingEngines(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.address = cls.cluster.entrypoint
        cls.bodies = bodies(model_of(cls.address))
        cls.undisturbed = [(s.text, s.ids) for s in run_streams(cls.address, cls.bodies)]

    def start_streams(self):
        streams = [Stream(self.address, body) for body in self.bodies]
        for stream in streams:
            stream.start()
        return streams

    def wait_for_tokens(self, streams, count):
        """Until every stream has so many tokens."""
        wait_until(lambda: all(len(s.ids) >= count or s.error for s in streams), 120, f"{count} tokens each")
        self.assert_running(streams)

    def wait_for_progress(self, streams):
        """Until some of the streams go on; others still wait to be prefilled again."""
        before = sum(len(s.ids) for s in streams)
        wait_until(lambda: sum(len(s.ids) for s in streams) >= before + 20, 120, "tokens after the kill")
        self.assert_running(streams)

    def assert_running(self, streams):
        self.assertEqual([s.error for s in streams if s.error], [])
        self.assertTrue(all(len(s.ids) < TOKENS for s in streams), "a stream was over before the kill")

    def assert_undisturbed(self, streams):
        finish(streams)
        for stream, (text, ids) in zip(streams, self.undisturbed):
            self.assertEqual(stream.ids, ids)
            self.assertEqual(stream.text, text)
            self.assertEqual(stream.finish_reason, "length")
            self.assertEqual(stream.usage["completion_tokens"], TOKENS)

    def test_a_second_run_gives_the_same_texts(self):
        self.assert_undisturbed(self.start_streams())

    def test_decode_then_prefill_worker_killed_in_mid_stream(self):
        streams = self.start_streams()
        self.wait_for_tokens(streams, 10)
        decode = self.cluster.kill("decode")
        self.wait_for_progress(streams)  # with another decode worker
        prefill = self.cluster.kill("prefill")
        self.assert_undisturbed(streams)
        self.cluster.wait_for_restart("decode", decode)
        self.cluster.wait_for_restart("prefill", prefill)

    def test_both_killed_at_once(self):
        streams = self.start_streams()
        self.wait_for_tokens(streams, 5)
        pids = {role: self.cluster.kill(role) for role in ("decode", "prefill")}
        self.assert_undisturbed(streams)
        for role, pid in pids.items():
            self.cluster.wait_for_restart(role, pid)


if __name__ == "__main__":
    unittest.main(verbosity=2)
