"""Exact match on held-out conversations by teacher forcing, for following a run while it trains.

A turn counts as right when greedy decoding would write it. All turns of a conversation are judged, and earlier ones
may be such as training has too (see mix.sample), so a score is not that of evaluate.py, which judges the last turn.
"""
from __future__ import annotations

import random

import numpy as np
import torch

from . import render
from .data import mix
from .network import Batch, Network
from .tokenizer import Tokenizer

SEED = "held-out"


def exact_match(network: Network, tokenizer: Tokenizer, task: str, samples: int) -> float:
    """Share of instances whose assistant tokens, in all turns, are all predicted."""
    rng = random.Random(f"{SEED}-{task}")
    documents = [render.encode(tokenizer, mix.sample(task, rng, test=True).conversation) for _ in range(samples)]
    right = 0
    longest = max(len(d[0]) for d in documents)
    length = max(1024, (longest + 127) // 128 * 128)
    rows: list[list[tuple[list[int], list[float]]]] = [[]]
    used = 0
    for d in sorted(documents, key=lambda d: len(d[0])):
        size = len(d[0]) + len(d[0]) % 2
        if used + size > length:
            rows.append([])
            used = 0
        rows[-1].append(d)
        used += size
    for row in rows:
        data = {"tokens": np.full((1, length), 2, np.int64), "start": np.arange(length)[None].copy(),
                "weight": np.zeros((1, length), np.float32), "target": np.zeros((1, length), np.int64)}
        spans, at = [], 0
        for ids, weights in row:
            n = len(ids)
            data["tokens"][0, at:at + n] = ids
            data["start"][0, at:at + n] = at
            data["weight"][0, at:at + n - 1] = weights[1:]
            data["target"][0, at:at + n - 1] = ids[1:]
            spans.append((at, at + n))
            at += n + n % 2
        with torch.no_grad():
            batch = Batch(network, data)
            _, _, best = network.loss(batch)
        wrong = ((best != batch.target) & (batch.weight == 1)).cpu().numpy()
        right += sum(not wrong[a:b].any() for a, b in spans)
    return right / samples
