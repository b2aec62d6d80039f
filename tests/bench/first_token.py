"""Time to the first token of a 20-token prompt on `millrace up`, in milliseconds.

    /usr/bin/python3 tests/bench/first_token.py [--address HOST:PORT] [--samples N] [--json]

Without --address it starts a cluster of its own (one prefill and one decode worker, the nano model) from the
programs in MILLRACE_BIN, else from the release build, and stops it afterwards. Requests come one after the
other, over one connection each; every prompt is different, so that no cache answers. The clock runs from
before the connection is made to the first event with a token.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import client  # noqa: E402
import cluster  # noqa: E402

PROMPT_TOKENS = 20
WARM_UP = 5


def first_token_ms(address, model, tokens):
    start = time.monotonic()
    body = {"model": model, "prompt": tokens, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answer = client.events(address, "/v1/completions", body)
    next(answer)
    took = 1000 * (time.monotonic() - start)
    for _ in answer:
        pass
    return took


def measure(address, samples):
    rng = random.Random(1)
    model = client.model_of(address)
    times = []
    for _ in range(WARM_UP + samples):
        tokens = [rng.randrange(300, 1500) for _ in range(PROMPT_TOKENS)]
        times.append(first_token_ms(address, model, tokens))
    return sorted(times[WARM_UP:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="entrypoint of a running cluster")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.address:
        times = measure(arguments.address, arguments.samples)
    else:
        with cluster.Cluster() as own:
            times = measure(own.entrypoint, arguments.samples)
    figures = {"first_token_ms_best": times[0], "first_token_ms_median": statistics.median(times),
               "first_token_ms_worst": times[-1]}
    if arguments.json:
        print(json.dumps({name: round(value, 2) for name, value in figures.items()}))
    else:
        print(f"first token of a {PROMPT_TOKENS}-token prompt: best {times[0]:.1f} ms, "
              f"median {figures['first_token_ms_median']:.1f} ms, worst {times[-1]:.1f} ms "
              f"({len(times)} requests)")


if __name__ == "__main__":
    main()
