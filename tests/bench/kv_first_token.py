"""What stored KV is worth: time to the first token cold and with a hit, and what storing costs while decoding.

    /usr/bin/python3 tests/bench/kv_first_token.py [--rounds N] [--lengths 1024,2048,...] [--svg FILE] [--json]

Starts two clusters of its own with nano (one prefill and one decode worker each), one that stores KV and one that
does not, from the programs in MILLRACE_BIN, else from the release build. Requests come one after the other.

For every length the same prompt is asked for cold, with a hit whose sliding window is stored, and with a hit without
(the last block of the hit runs again). Each time it is another prompt, and the order changes from round to round.
Decoding is compared in alternation: the same texts on the cluster with and on the one without a store.
"""

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

from kv_cluster import Measured, cluster, tokens
from kv_policy import BLOCK

SUFFIX = 140  # tokens behind the hit; 134 are the least
KINDS = ("cold", "window", "replay")
COLOURS = {"cold": "#b3423a", "window": "#2f7d4f", "replay": "#4a6fb0"}


def first_tokens(store, lengths, rounds, rng):
    times = {kind: {length: [] for length in lengths} for kind in KINDS}
    for number in range(rounds):
        for length in lengths:
            hit = (length - SUFFIX) // BLOCK * BLOCK
            for kind in KINDS[number % 3:] + KINDS[:number % 3]:
                prompt = tokens(length, rng)
                if kind != "cold":
                    # Leaves its window at the hit, or one block behind it, where this prompt cannot use it.
                    store.ask(prompt[:hit + (1 if kind == "window" else BLOCK + 1)], 1)
                    store.settle()
                answer = store.ask(prompt, 2)
                expected = {"cold": 0, "window": hit, "replay": hit - BLOCK}[kind]
                if answer.cached != expected:
                    print(f"note: {kind} at {length}: {answer.cached} cached tokens, expected {expected}",
                          file=sys.stderr)
                    continue
                times[kind][length].append(answer.first_ms)
    return {kind: {length: statistics.median(values) for length, values in by_length.items() if values}
            for kind, by_length in times.items()}


def decoding(store, plain, rounds, rng):
    """Median milliseconds for a token with and without a store, and the median of their ratios."""
    pairs = []
    for number in range(rounds):
        prompt = tokens(64, rng)
        order = (store, plain) if number % 2 == 0 else (plain, store)
        took = {one: one.ask(prompt, 512).token_ms for one in order}
        pairs.append((took[store], took[plain]))
    return (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs),
            statistics.median(a / b for a, b in pairs))


def plot(figures, lengths):
    width, height, left, bottom = 640, 360, 70, 50
    top_ms = 1.1 * max(v for by_length in figures.values() for v in by_length.values())

    def x(index):
        return left + index * (width - left - 30) / max(1, len(lengths) - 1)

    def y(ms):
        return height - bottom - ms / top_ms * (height - bottom - 30)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="18">Time to the first token, ms, by prompt tokens (nano)</text>']
    for step in range(5):
        ms = top_ms * step / 4.4
        parts.append(f'<line x1="{left}" x2="{width - 30}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:.0f}</text>')
    for index, length in enumerate(lengths):
        parts.append(f'<text x="{x(index):.1f}" y="{height - bottom + 18}" text-anchor="middle">{length}</text>')
    for place, (kind, by_length) in enumerate(figures.items()):
        points = [(x(i), y(by_length[n])) for i, n in enumerate(lengths) if n in by_length]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline fill="none" stroke="{COLOURS[kind]}" stroke-width="2" points="{line}"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[kind]}"/>' for a, b in points]
        name = {"cold": "cold", "window": "hit with its window", "replay": "hit, window replayed"}[kind]
        parts.append(f'<text x="{left + 10 + 160 * place}" y="{height - 10}" fill="{COLOURS[kind]}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--svg", help="where to draw the plot")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lengths = [int(n) for n in arguments.lengths.split(",")]
    rng = random.Random(1)
    with cluster.Cluster("--kv-bytes", "1GiB") as with_store, cluster.Cluster() as without:
        store, plain = Measured(with_store), Measured(without)
        for one in (store, plain):
            one.ask(tokens(300, rng), 8)
        figures = first_tokens(store, lengths, arguments.rounds, rng)
        with_ms, without_ms, ratio = decoding(store, plain, 2 * arguments.rounds, rng)
        copied = store.sum_of("millrace_kv_swap_in_seconds_total")
        waited = store.sum_of("millrace_kv_swap_in_wait_seconds_total")
    hidden = 1 - waited / copied if copied else 0.0
    if arguments.svg:
        Path(arguments.svg).write_text(plot(figures, lengths))
    if arguments.json:
        print(json.dumps({"first_token_ms": figures, "decode_ms_a_token": [with_ms, without_ms], "decode_ratio": ratio,
                          "swap_in_hidden": hidden}))
        return
    print("tokens " + "".join(f"{kind:>10}" for kind in KINDS))
    for length in lengths:
        print(f"{length:6d} " + "".join(f"{figures[kind].get(length, float('nan')):10.1f}" for kind in KINDS))
    print(f"decoding: {with_ms:.3f} ms a token with a store, {without_ms:.3f} without, ratio {ratio:.3f} "
          f"(median of pairs); {100 * hidden:.0f} % of the copying of stored blocks hid behind steps")


if __name__ == "__main__":
    main()
