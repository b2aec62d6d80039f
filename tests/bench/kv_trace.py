"""Prefix hits of a public conversation trace, beside those of a cache that loses nothing.

    /usr/bin/python3 tests/bench/kv_trace.py --trace TRACE.jsonl.gz [--requests 500] [--kv-bytes 2GiB] [--json]

TRACE is in Mooncake's form: one object a line with input_length, output_length and hash_ids, which name the prompt's
blocks of 512 tokens. Everything is divided by four, so that one block of the trace is one of ours (128 tokens, made
up from the block's number) and the longest prompts fit nano's context. The requests go, one after the other and in
their order, to `millrace up` with nano; what was cached is what the answers say.

The ideal keeps every full block of every earlier prompt. What is missing from it is told apart by what the policy
says (dataplane/kv/hit_policy.h) and by the counters of each request.
"""

import argparse
import collections
import gzip
import json
import random
import sys
import time

from kv_cluster import Measured, cluster
from kv_policy import BLOCK, usable_hit

SCALE = 4
LOSSES = ("suffix", "single block", "window", "late check", "not found")
MEANING = {
    "suffix": "in the last 134 tokens of a prompt, or in the block that they begin in",
    "single block": "a hit of one block whose window is gone: it would be run again for it",
    "window": "the hit's last block, run again because its window is gone",
    "late check": "the storage nodes did not answer an entrypoint within 50 ms",
    "not found": "blocks that were not stored yet, not any more, or not fetched in time",
}


def read_trace(path, count):
    with gzip.open(path, "rt", encoding="ascii") as file:
        for _, line in zip(range(count), file):
            yield json.loads(line)


def block_tokens(number):
    source = random.Random(number)
    return [source.randrange(300, 2000) for _ in range(BLOCK)]


def prompt_of(request):
    tokens = []
    for number in request["hash_ids"]:
        tokens += block_tokens(number)
    return tokens[:max(1, request["input_length"] // SCALE)]


class Ideal:
    """Leading full blocks that an earlier prompt had."""

    def __init__(self):
        self.seen = set()

    def hit_then_add(self, request, prompt_tokens):
        full = request["hash_ids"][:prompt_tokens // BLOCK]
        chains = [tuple(full[:n + 1]) for n in range(len(full))]
        names = [hash(chain) for chain in chains]
        hit = 0
        while hit < len(names) and names[hit] in self.seen:
            hit += 1
        self.seen.update(names)
        return hit * BLOCK


def replay(measured, requests):
    ideal, losses, kinds, total = Ideal(), collections.Counter(), collections.Counter(), collections.Counter()
    timeouts = 'millrace_kv_check_total{result="timeout"}'
    begin = time.monotonic()
    for number, request in enumerate(requests):
        prompt = prompt_of(request)
        late = cluster.read_metrics(measured.address).get(timeouts, 0)
        best = ideal.hit_then_add(request, len(prompt))
        answer, kind = measured.ask_and_tell(prompt, max(1, request["output_length"] // SCALE))
        was_late = cluster.read_metrics(measured.address).get(timeouts, 0) > late
        total.update(requests=1, prompt=len(prompt), ideal=best, cached=answer.cached, answer=len(answer.ids))
        usable = usable_hit(len(prompt), best)
        replayed = BLOCK if kind in ("exact_replay", "truncated_replay") else 0
        losses["suffix"] += best - usable
        losses["window"] += replayed
        rest = usable - answer.cached - replayed
        if was_late:
            losses["late check"] += rest
        elif rest == BLOCK and usable == BLOCK:
            losses["single block"] += rest
        else:
            losses["not found"] += rest
        kinds[kind] += 1
        if number % 50 == 49:
            print(f"{number + 1} requests, {time.monotonic() - begin:.0f} s, {total['cached']} of {total['ideal']} "
                  "tokens", file=sys.stderr, flush=True)
    return total, losses, kinds, time.monotonic() - begin


def fates(measured):
    """What became of blocks and windows, of the whole cluster."""
    sums = collections.Counter()
    for role in ("prefill", "decode", "kvfetch", "storage"):
        for worker in measured.own.workers(role):
            for name, value in cluster.read_metrics(worker["metrics_address"]).items():
                if value and name.startswith(("millrace_kv_sealed_blocks_total", "millrace_kv_windows_",
                                              "millrace_kv_fetches_", "millrace_swa_evictions", "millrace_swa_expiries",
                                              "millrace_storage_evictions")):
                    sums[name] += value
    return dict(sorted(sums.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--kv-bytes", default="2GiB")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with cluster.Cluster("--kv-bytes", arguments.kv_bytes) as own:
        measured = Measured(own)
        for seed in range(5):  # a cluster that has just started does not know its store yet
            measured.ask(block_tokens(-1 - seed) * 3, 2, "warm-up")
            measured.settle()
        total, losses, kinds, seconds = replay(measured, read_trace(arguments.trace, arguments.requests))
        fate = fates(measured)
    if arguments.json:
        print(json.dumps({"total": total, "losses": losses, "kinds": kinds, "seconds": seconds, "fates": fate}))
        return
    print(f"{total['requests']} requests in {seconds:.0f} s, {total['prompt']:,} prompt tokens, "
          f"{total['answer']:,} of answers; prefills " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    print("\n| | tokens | of the ideal |\n| --- | ---: | ---: |")
    ideal = max(1, total["ideal"])
    print(f"| ideal | {total['ideal']:,} | 1.000 |\n| cached | {total['cached']:,} | {total['cached'] / ideal:.3f} |")
    for loss in LOSSES:
        print(f"| {MEANING[loss]} | {losses[loss]:,} | {losses[loss] / ideal:.3f} |")
    print()
    for name, value in fate.items():
        print(f"{name} {value:.0f}")


if __name__ == "__main__":
    main()
