"""Which task, how often, at which length: the curriculum's mixes, the split, and row packing."""
from __future__ import annotations

import random
from typing import Callable

import numpy as np

from .. import render
from ..tokenizer import Tokenizer
from . import chat, recall, sessions, tasks, tools
from .common import Sample, held_out, is_training

Maker = Callable[[random.Random], Sample]


def _recall(low: int, high: int, **options) -> Maker:
    return lambda rng: recall.recall(rng, rng.randint(low, high), **options)


# Tokens of the text that a fact is asked from.
RECALL_LENGTHS = {"recall_150": (60, 220), "recall_512": (220, 600), "recall_1024": (600, 1200),
                  "recall_2048": (1200, 2000), "recall_3072": (2000, 3000)}

MAKERS: dict[str, Maker] = {
    "greeting": chat.greeting, "identity": chat.identity, "small_talk": chat.small_talk,
    "knowledge": chat.knowledge, "story": chat.story, "free_text": chat.free_text, "pool_copy": tasks.pool_copy,
    "echo": tasks.echo, "arithmetic": tasks.arithmetic, "strings": tasks.strings, "lists": tasks.lists,
    "json": tasks.json_object, "multi_turn": recall.multi_turn, "unknown": recall.unknown, "tools": tools.tools,
    "session": sessions.session, "recall_pool": _recall(60, 160, small=True),
    **{name: _recall(*lengths) for name, lengths in RECALL_LENGTHS.items()},
}

# What is examined where training would put many questions into one conversation, and the parts of `tools`.
EXAMS: dict[str, Maker] = {
    **{name: _recall(*lengths, once=True, unknown=0.0) for name, lengths in RECALL_LENGTHS.items()},
    "tools": lambda rng: tools.tools(rng, "call", once=True),
    "two_calls": lambda rng: tools.tools(rng, "two", once=True),
    "tool_result": lambda rng: tools.tools(rng, "result", once=True),
    "session": lambda rng: sessions.session(rng, "arithmetic"),
}

# Tasks without a held-out side: finite phrase lists learnt by heart, and text whose wording is free.
MEMORISED = ("small_talk", "knowledge", "free_text")

# Weights by document. A document with tools has about 1,200 tokens, a session 400, other short ones 60.
_GENERAL = {"session": 20, "arithmetic": 14, "strings": 12, "json": 7, "echo": 10, "multi_turn": 6, "lists": 4,
            "greeting": 2, "identity": 4, "small_talk": 2, "knowledge": 3, "story": 2, "free_text": 1, "unknown": 7,
            "tools": 8}
MIXES: dict[str, dict[str, float]] = {
    "A": {"pool_copy": 55, "recall_pool": 30, "greeting": 2, "identity": 3, "small_talk": 2,
          "arithmetic": 4, "echo": 4},
    "B": {"pool_copy": 25, "echo": 28, "recall_pool": 16, "recall_150": 16, "greeting": 2, "identity": 3,
          "small_talk": 2, "knowledge": 2, "arithmetic": 6, "json": 4, "lists": 3, "strings": 2},
    "C": {**_GENERAL, "recall_150": 6, "recall_512": 6, "recall_1024": 3},
    "D": {**_GENERAL, "recall_150": 3, "recall_512": 5, "recall_1024": 5, "recall_2048": 3},
    "E": {**_GENERAL, "recall_150": 2, "recall_512": 4, "recall_1024": 5, "recall_2048": 4, "recall_3072": 2},
}


def sample(task: str, rng: random.Random, test: bool = False) -> Sample:
    """Draws instances until one lies on the wanted side of the split.

    A held-out instance is one whose last answer is held out; what stands before it may be either. So the earlier
    turns of a held-out `session`, `unknown` or `multi_turn` are mostly such as training has too.
    """
    maker = EXAMS.get(task, MAKERS.get(task)) if test else MAKERS[task]
    for _ in range(10_000):
        drawn = maker(rng)
        if held_out(drawn.key) if test else is_training(drawn):
            return drawn
    raise ValueError(f"task {task} has no {'held-out' if test else 'training'} instances")


class Stream:
    """Endless packed training rows of one mix.

    Each row holds whole documents; a document starts at an even offset, because a compressed entry
    joins the tokens 2j and 2j+1 of a document. Documents longer than a row are dropped.
    """

    def __init__(self, tokenizer: Tokenizer, mix: str, row_length: int, seed: str):
        self._tokenizer = tokenizer
        self._names = list(MIXES[mix])
        self._weights = list(MIXES[mix].values())
        self._length = row_length
        self._rng = random.Random(seed)
        self._waiting: list[tuple[list[int], list[float]]] = []

    def _document(self) -> tuple[list[int], list[float]]:
        while True:
            name = self._rng.choices(self._names, self._weights)[0]
            ids, weights = render.encode(self._tokenizer, sample(name, self._rng).conversation)
            if len(ids) <= self._length:
                return ids, weights

    def _replay(self, weights: list[float]) -> tuple[int, int]:
        """Where bounded replay is simulated: (encoder start, decoder start) in the document.

        Decoder: 128 tokens before one of the assistant turns, as if the prompt ended there.
        Encoder: at a random place, in half of the documents long enough.
        """
        turns = [i for i in range(1, len(weights)) if weights[i] == 1.0 and weights[i - 1] != 1.0]
        decoder = max(0, self._rng.choice(turns) - 128) if turns else 0
        encoder = self._rng.randrange(0, len(weights) - 128) if len(weights) > 256 and self._rng.random() < 0.5 else 0
        return encoder // 2 * 2, decoder

    def row(self) -> dict[str, np.ndarray]:
        """One row: tokens, start of the document in the row, weight and id of the NEXT token.

        floor, decoder_floor: lowest position a window key may have when bounded replay starts inside
        the document (0 before that place).
        """
        length = self._length
        tokens = np.full(length, 2, np.int64)
        start = np.arange(length, dtype=np.int64)
        weight = np.zeros(length, np.float32)
        floor, decoder_floor = np.zeros(length, np.int64), np.zeros(length, np.int64)
        at, misses = 0, 0
        while at < length and misses < 8:
            if len(self._waiting) < 16:
                self._waiting.append(self._document())
            fit = next((i for i, d in enumerate(self._waiting) if len(d[0]) <= length - at), None)
            if fit is None:
                misses += 1
                if len(self._waiting) >= 16:
                    break
                continue
            ids, weights = self._waiting.pop(fit)
            n = len(ids)
            tokens[at:at + n] = ids
            start[at:at + n] = at
            weight[at:at + n - 1] = weights[1:]
            encoder, decoder = self._replay(weights)
            floor[at + encoder:at + n] = encoder
            decoder_floor[at + decoder:at + n] = decoder
            at += n + n % 2
        target = np.roll(tokens, -1)
        return {"tokens": tokens, "start": start, "weight": weight, "target": target, "floor": floor,
                "decoder_floor": decoder_floor}

    def batch(self, rows: int) -> dict[str, np.ndarray]:
        all_rows = [self.row() for _ in range(rows)]
        return {k: np.stack([r[k] for r in all_rows]) for k in all_rows[0]}
