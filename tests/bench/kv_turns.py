"""How often a turn of a conversation begins with a stored window, and how many of its tokens are cached.

    /usr/bin/python3 tests/bench/kv_turns.py [--conversations N] [--loops N] [--json]

On a cluster of its own with nano. Conversations have 8 turns, what is appended to each answer 20 to 700 tokens; tool
loops have 30 turns, with calls of 20 to 60 tokens and results of 5 to 120 behind a system prompt of 800. Each turn is
asked once the one before is stored, and once more by a user who has nothing stored. Both texts must be equal as long
as no prefill of the conversation began with a cut-off window.

"possible" counts turns whose hit ends where a window was left: at the last boundary of a block in the answer before,
or in the prompt before. Those are the ones with at least 134 tokens behind it.
"""

import argparse
import json
import random

from kv_cluster import Measured, cluster, tokens
from kv_policy import BLOCK, anchor_after, usable_hit

BUCKETS = ((0, 134), (134, 257), (257, 513), (513, 1 << 30))
NAMES = ("< 134", "134 to 256", "257 to 512", "> 512")


def conversation(measured, name, turns, first, grow, answer_tokens):
    """One record for each turn but the first. `grow` and `answer_tokens` give lengths."""
    user, prompt, records = name, first, []
    anchors, stored, appended, is_exact = set(), 0, len(first), True
    for turn in range(turns):
        length = answer_tokens()
        answer, kind = measured.ask_and_tell(prompt, length, user)
        cold, _ = measured.ask_and_tell(prompt, length, f"{name}-cold-{turn}")
        is_exact = is_exact and kind != "truncated_replay"
        hit = usable_hit(len(prompt), stored)
        if turn > 0:
            records.append({"turn": turn + 1, "appended": appended, "prompt": len(prompt), "cached": answer.cached,
                            "hit": hit, "kind": kind, "is_possible": hit > 0 and hit in anchors,
                            "is_exact": is_exact, "is_equal": answer.ids == cold.ids})
        measured.settle()
        end = len(prompt) + length - 1  # the last token is sampled, not run
        anchors |= {anchor_after(len(prompt)), anchor_after(end)}
        stored = end // BLOCK * BLOCK
        appended = grow()
        prompt = prompt + answer.ids + tokens(appended, random.Random(f"{name}/{turn}"))
    return records


def table(records):
    lines = ["| appended tokens | turns | possible | window | exact replay | cut-off window | cold | window / possible |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for (low, high), name in zip(BUCKETS, NAMES):
        own = [r for r in records if low <= r["appended"] < high]
        if not own:
            continue
        counts = [sum(r["kind"] == kind for r in own)
                  for kind in ("window", "exact_replay", "truncated_replay", "cold")]
        possible = [r for r in own if r["is_possible"]]
        rate = sum(r["kind"] == "window" for r in possible) / len(possible) if possible else float("nan")
        lines.append(f"| {name} | {len(own)} | {len(possible)} | " + " | ".join(map(str, counts)) + f" | {rate:.2f} |")
    return "\n".join(lines)


def by_turn(records, shown):
    lines = ["| turn | " + " | ".join(map(str, shown)) + " |", "| --- |" + " ---: |" * len(shown)]
    for title, value in (("prompt tokens", "prompt"), ("cached", "cached")):
        means = []
        for turn in shown:
            own = [r[value] for r in records if r["turn"] == turn]
            means.append(f"{sum(own) / len(own):,.0f}")
        lines.append(f"| {title} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(1)
    talks, loops = [], []
    with cluster.Cluster("--kv-bytes", "512MiB") as own:
        measured = Measured(own)
        while measured.ask(tokens(600, rng), 8, "warm-up") and not measured.sum_of(
                'millrace_kv_sealed_blocks_total{result="stored"}'):
            pass
        measured.settle()
        for number in range(arguments.conversations):
            talks += conversation(measured, f"talk-{number}", 8, tokens(rng.randint(150, 900), rng),
                                  lambda: rng.choice((rng.randint(20, 133), rng.randint(134, 256),
                                                      rng.randint(257, 512), rng.randint(513, 700))),
                                  lambda: rng.randint(20, 200))
        for number in range(arguments.loops):
            loops += conversation(measured, f"loop-{number}", 30, tokens(800, rng), lambda: rng.randint(5, 120),
                                  lambda: rng.randint(20, 60))
    if arguments.json:
        print(json.dumps({"conversations": talks, "loops": loops}))
        return
    for title, records, shown in (("conversations of 8 turns", talks, range(2, 9)),
                                  ("tool loops of 30 turns", loops, (2, 5, 10, 15, 20, 25, 30))):
        if not records:
            continue
        exact = [r for r in records if r["is_exact"]]
        print(f"{title}\n\n{table(records)}\n\n{by_turn(records, shown)}\n")
        print(f"texts equal to cold ones: {sum(r['is_equal'] for r in exact)} of {len(exact)} while all windows were "
              f"whole, {sum(r['is_equal'] for r in records if not r['is_exact'])} of {len(records) - len(exact)} after; "
              f"cached {sum(r['cached'] for r in records)} of {sum(r['prompt'] for r in records)} tokens\n")


if __name__ == "__main__":
    main()
