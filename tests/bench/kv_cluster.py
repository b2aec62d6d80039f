"""A cluster that benches of stored KV ask, one request after the other."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import client  # noqa: E402
import cluster  # noqa: E402

KINDS = ("cold", "window", "exact_replay", "truncated_replay")


class Answer(NamedTuple):
    ids: list
    cached: int
    first_ms: float  # to the first event
    token_ms: float  # from there, for each further token


def tokens(count, rng):
    """Ordinary tokens of nano's vocabulary."""
    return [rng.randrange(300, 1500) for _ in range(count)]


class Measured:
    """One cluster and its model."""

    def __init__(self, own):
        self.own = own
        self.address = own.entrypoint
        self.model = client.model_of(own.entrypoint)
        self.metrics = {role: [w["metrics_address"] for w in own.workers(role)] for role in ("prefill", "decode")}

    def ask(self, prompt, max_tokens, user="a"):
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "user": user,
                "ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
        ids, cached, first = [], 0, None
        start = time.monotonic()
        for event in client.events(self.address, "/v1/completions", body):
            first = first or time.monotonic()
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return Answer(ids, cached, 1000 * (first - start), 1000 * (time.monotonic() - first) / max(1, max_tokens - 1))

    def sum_of(self, name):
        return sum(cluster.read_metrics(address).get(name, 0.0)
                   for addresses in self.metrics.values() for address in addresses)

    def begun(self):
        """Prefills by where their first window came from."""
        metrics = cluster.read_metrics(self.metrics["prefill"][0])
        return {kind: metrics[f'millrace_prefills_begun_total{{window="{kind}"}}'] for kind in KINDS}

    def ask_and_tell(self, prompt, max_tokens, user="a"):
        """An answer, and how its prefill began."""
        before = self.begun()
        answer = self.ask(prompt, max_tokens, user)
        while True:
            now = self.begun()
            kinds = [kind for kind in KINDS if now[kind] > before[kind]]
            if kinds:
                return answer, kinds[-1]
            time.sleep(0.01)

    def settle(self):
        """Until everything that was sealed has been stored."""
        seen = None
        while True:
            now = (self.sum_of("millrace_kv_seal_backlog"),
                   self.sum_of('millrace_kv_sealed_blocks_total{result="stored"}'),
                   self.sum_of('millrace_kv_windows_kept_total{result="kept"}'))
            if now == seen and now[0] == 0:
                return
            seen = now
            time.sleep(0.15)
