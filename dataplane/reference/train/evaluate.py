"""Held-out tasks: writes deploy/models/nano/eval/tasks.jsonl and runs it through the oracle.

    python3 -m reference.train.evaluate --write              # make the file
    python3 -m reference.train.evaluate [--limit N] [--task T]   # greedy, exact match

One line of the file: {"task", "prompt_ids", "expect_ids" (ends in EOS), "max_tokens"}. The prompt ends in
the header of the last assistant turn; everything the model writes, thought included, must be equal. Of small talk
and common knowledge there is no held-out side (mix.MEMORISED): those lines measure what was learnt by heart.
"""
from __future__ import annotations

import argparse
import copy
import json
import random
import sys

import torch

from reference import export as checkpoint
from reference.options import Options
from reference.serve import Plan, Session

from . import render
from .data import mix
from .run import NANO, load_tokenizer
from .tokenizer import Tokenizer

FILE = NANO / "eval" / "tasks.jsonl"
SEED = "evaluation"
COUNTS = {"greeting": 20, "identity": 40, "small_talk": 20, "knowledge": 30, "story": 20, "arithmetic": 60,
          "session": 30, "strings": 40, "lists": 30, "echo": 30, "json": 50, "recall_150": 40, "recall_512": 40,
          "recall_1024": 40, "recall_2048": 30, "recall_3072": 20, "unknown": 30, "multi_turn": 30, "tools": 50,
          "two_calls": 30, "tool_result": 30}


def instance(tokenizer: Tokenizer, task: str, rng: random.Random) -> dict:
    """One held-out conversation, cut before its last assistant turn."""
    whole = mix.sample(task, rng, test=task not in mix.MEMORISED).conversation
    ids, _ = render.encode(tokenizer, whole)
    cut = copy.copy(whole)
    cut.messages = whole.messages[:-1]
    prompt, _ = render.encode(tokenizer, cut, generate=True)
    if ids[:len(prompt)] != prompt:
        raise ValueError(f"{task}: the prompt is not a prefix of the conversation")
    expect = ids[len(prompt):]
    return {"task": task, "prompt_ids": prompt, "expect_ids": expect, "max_tokens": len(expect) + 8}


def build(tokenizer: Tokenizer) -> list[dict]:
    out = []
    for task, count in COUNTS.items():
        rng = random.Random(f"{SEED}-{task}")
        out += [instance(tokenizer, task, rng) for _ in range(count)]
    return out


def write(tokenizer: Tokenizer) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with open(FILE, "w", encoding="utf-8") as f:
        for item in build(tokenizer):
            f.write(json.dumps(item, separators=(",", ":")) + "\n")


def greedy(model, prompt: list[int], count: int, stop: int) -> list[int]:
    """Greedy tokens, the stop token included when it came."""
    out = Session(model, Plan(len(prompt))).generate(prompt, count, Options.served(), stop=(stop,))
    return out + [stop] if len(out) < count else out


def is_exact(model, prompt: list[int], expect: list[int]) -> bool:
    """Whether greedy decoding writes exactly `expect`: one forced pass instead of a step per token."""
    session, options = Session(model, Plan(len(prompt))), Options.served()
    rows = [session.run(prompt, options).logits[-1:]]
    if len(expect) > 1:
        rows.append(session.run(expect[:-1], options).logits)
    return torch.cat(rows).argmax(-1).tolist() == expect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the task file and stop")
    parser.add_argument("--task", help="run this task only")
    parser.add_argument("--limit", type=int, default=1000, help="items per task at most")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    options = parser.parse_args()
    tokenizer = load_tokenizer()
    if options.write:
        write(tokenizer)
        return
    torch.set_num_threads(1)
    model = checkpoint.load(NANO)
    items = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    scores: dict[str, list[bool]] = {}
    for item in items:
        done = scores.setdefault(item["task"], [])
        if (options.task and item["task"] != options.task) or len(done) >= options.limit:
            continue
        done.append(is_exact(model, item["prompt_ids"], item["expect_ids"]))
        if options.show and not done[-1]:
            got = greedy(model, item["prompt_ids"], item["max_tokens"], model.config.eos_token_id)
            print(item["task"], "WANT", repr(tokenizer.decode(item["expect_ids"])), "GOT", repr(tokenizer.decode(got)))
        print(f"\r{item['task']:12s} {sum(done)}/{len(done)}   ", end="", file=sys.stderr)
    print(file=sys.stderr)
    result = {t: {"right": sum(d), "of": len(d)} for t, d in scores.items() if d}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
