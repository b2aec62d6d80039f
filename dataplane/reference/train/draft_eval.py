"""Measures the draft layers on held-out conversations: accepted length, acceptance, calibration.

The text that drafts are judged on is the backbone's own greedy answer to each held-out conversation. It is found
without decoding token by token: starting from the written answer, all tokens of a turn are replaced by the
backbone's choices until none changes (a fixed point is the greedy answer); a turn that has not settled after
`ROUNDS` passes counts up to its first unsettled token. Only the last turn counts, under the decoder's
bounded replay as served: window keys start `sliding_window` tokens before the end of the prompt.
"""
from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from . import calibration, render
from .data import mix
from .draft_network import DraftNetwork
from .network import Batch
from .tokenizer import EOS, Tokenizer

ROUNDS = 6
ROW = 4096
CHUNK = 512  # anchors at a time
SEED = "draft"


@dataclass
class Turn:
    """An answer in a packed row: tokens `first` .. `last` (row offsets), the tokens before are its prompt."""

    task: str
    number: int
    start: int
    first: int
    last: int


@dataclass
class Blocks:
    """One drafted block per anchor: arrays [n, B], and [n] what it belongs to.

    accepted  the first k drafts equal the text; valid  text reaches that far; raw  confidence
    conversation  index within the task; place  of the anchor in its answer; task  index in `tasks`
    """

    accepted: np.ndarray
    valid: np.ndarray
    raw: np.ndarray
    task: np.ndarray
    conversation: np.ndarray
    place: np.ndarray
    length: np.ndarray  # of the answer in tokens

    @staticmethod
    def join(parts: list["Blocks"]) -> "Blocks":
        return Blocks(*(np.concatenate([getattr(p, f) for p in parts]) for f in Blocks.__dataclass_fields__))

    def take(self, rows: np.ndarray) -> "Blocks":
        return Blocks(*(getattr(self, f)[rows] for f in Blocks.__dataclass_fields__))


def packed(tokenizer: Tokenizer, task: str, samples: int, window: int, seed: str) -> list[tuple[dict, list[Turn]]]:
    """Held-out conversations of a task in rows of at most ROW tokens: (data as mix.Stream gives, their turns).

    Targets are made by `settle`.
    """
    rng = random.Random(f"{seed}-{task}")
    out, at = [], ROW
    for number in range(samples):
        ids, weights = render.encode(tokenizer, mix.sample(task, rng, test=True).conversation)
        first = max(i for i in range(1, len(ids)) if weights[i] == 1.0 and weights[i - 1] != 1.0)
        last = next((i for i in range(first, len(ids)) if weights[i] != 1.0), len(ids)) - 1
        if last + 1 > ROW or last < first + 1:
            continue
        if at + last + 1 > ROW:
            out.append((_empty(), []))
            at = 0
        data, turns = out[-1]
        n = last + 1
        data["tokens"][0, at:at + n] = ids[:n]
        data["start"][0, at:at + n] = at
        data["weight"][0, at + first - 1:at + last] = 1
        data["decoder_floor"][0, at + max(0, first - window):at + n] = max(0, first - window)
        turns.append(Turn(task, number, at, at + first, at + last))
        at += n + n % 2
    rounded = lambda turns: (turns[-1].last + 128) // 128 * 128
    return [({name: rows[:, :rounded(turns)].copy() for name, rows in data.items()}, turns) for data, turns in out]


def _empty() -> dict:
    zero = np.zeros((1, ROW), np.int64)
    return {"tokens": np.full((1, ROW), 2, np.int64), "start": np.arange(ROW, dtype=np.int64)[None].copy(),
            "weight": np.zeros((1, ROW), np.float32), "target": zero.copy(), "decoder_floor": zero.copy()}


def settle(network: DraftNetwork, data: dict, turns: list[Turn], eos: int) -> tuple[Batch, torch.Tensor]:
    """Turns the answers in `data` into greedy ones and shortens `turns` to what is; (batch, taps) of the result."""
    for round_ in range(ROUNDS + 1):
        data["target"] = np.roll(data["tokens"], -1)
        batch = Batch(network, data, None, data["decoder_floor"])
        network.capture_taps = []
        hidden = network.hidden(batch)
        taps = torch.cat(network.capture_taps, 1)
        network.capture_taps = None
        best = choices(network, hidden, batch)
        row, changed = data["tokens"][0], False
        for turn in turns:
            span, chosen = slice(turn.first, turn.last + 1), best[turn.first - 1:turn.last]
            wrong = np.nonzero(row[span] != chosen)[0]
            settled = int(wrong[0]) if len(wrong) else len(chosen)
            ends = np.nonzero(row[span][:settled] == eos)[0]
            if len(ends):
                turn.last = turn.first + int(ends[0])
            elif settled < len(chosen) and round_ == ROUNDS:
                turn.last = turn.first + settled - 1
            elif settled < len(chosen):
                changed = True
                row[span] = chosen
        if not changed:
            break
    return batch, taps


def choices(network: DraftNetwork, hidden: torch.Tensor, batch: Batch) -> np.ndarray:
    """The backbone's greedy next token of every row that predicts an answer [n]; 0 elsewhere."""
    rows = torch.nonzero(batch.weight == 1)[:, 0]
    best = torch.zeros(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    best[rows] = network.head_logits(hidden[rows]).argmax(-1)
    return best.cpu().numpy()


def draft_greedily(network: DraftNetwork, batch: Batch, taps: torch.Tensor,
                   anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens [M, B], raw confidence [M, B]) as an engine proposes them: each draft follows from the one before."""
    block = network.config.dspark_block_size
    h = network.propose(batch, taps, anchors)
    base = network.block_logits(h).view(anchors.shape[0], block, -1)
    h = h.view(anchors.shape[0], block, -1)
    previous, tokens, raw = batch.tokens[anchors + 1], [], []
    for k in range(block):
        embedded, correction = network.markov(previous)
        raw.append(network.confidence(h[:, k], embedded))
        previous = (base[:, k] + correction).argmax(-1)
        tokens.append(previous)
    return torch.stack(tokens, 1), torch.stack(raw, 1).float()


@torch.no_grad()
def measure(network: DraftNetwork, tokenizer: Tokenizer, tasks: list[str], samples: int,
            mine=lambda index: True) -> list[Blocks]:
    """The blocks of all anchors of all answers to the tasks whose index is `mine`.

    An anchor is an answer token that is not the last; its block drafts what follows. No gradient.
    """
    config, out = network.config, []
    block, eos = config.dspark_block_size, tokenizer.token_id(EOS)
    network.refresh()
    for index, task in enumerate(tasks):
        if not mine(index):
            continue
        for data, turns in packed(tokenizer, task, samples, config.sliding_window, SEED):
            batch, taps = settle(network, data, turns, eos)
            turns = [t for t in turns if t.last > t.first]
            if not turns:
                continue
            places = np.concatenate([np.arange(t.first, t.last) for t in turns])  # of the anchors' tokens
            owner = np.repeat(np.arange(len(turns)), [t.last - t.first for t in turns])
            last = np.array([t.last for t in turns])[owner]
            rows = torch.from_numpy(places - 1).to(taps.device)
            drafted = [draft_greedily(network, batch, taps, part) for part in rows.split(CHUNK)]
            tokens, raw = (torch.cat(x).cpu().numpy() for x in zip(*drafted))
            following = places[:, None] + 1 + np.arange(block)
            valid = following <= last[:, None]
            text = data["tokens"][0][np.minimum(following, data["tokens"].shape[1] - 1)]
            accepted = np.cumprod((tokens == text) & valid, axis=1).astype(bool)
            first = np.array([t.first for t in turns])[owner]
            out.append(Blocks(accepted, valid, raw, np.full(len(places), index),
                              np.array([t.number for t in turns])[owner], places - first, last - first + 1))
    return out


def rounds(blocks: Blocks) -> tuple[int, int, int]:
    """(rounds, tokens emitted, drafts accepted) when every answer is written from its first token on with drafts.

    A round emits its accepted drafts and one token of the backbone, but nothing behind the end of the answer.
    """
    count = emitted = drafts = 0
    lengths = blocks.accepted.sum(1)
    keys = np.stack((blocks.task, blocks.conversation, blocks.place), 1)
    for at in np.nonzero(blocks.place == 0)[0]:
        place, total = 0, int(blocks.length[at])
        while place < total - 1:
            if tuple(keys[at + place]) != (blocks.task[at], blocks.conversation[at], place):
                raise ValueError("blocks are not in the order of their answers")
            accepted = int(lengths[at + place])
            step = min(accepted + 1, total - 1 - place)
            count, emitted, drafts, place = count + 1, emitted + step, drafts + accepted, place + step
    return count, emitted, drafts


def figures(blocks: Blocks, tasks: list[str]) -> dict:
    """Accepted lengths and acceptance per position, over all answers and per task."""
    def share(rows: Blocks) -> dict:
        count, emitted, drafts = rounds(rows)
        return {"rounds": count, "with_bonus": emitted / max(count, 1), "without_bonus": drafts / max(count, 1)}
    block = blocks.valid.shape[1]
    survived, judged = blocks.accepted.sum(0), blocks.valid.sum(0)
    before = np.concatenate((np.ones((len(blocks.valid), 1), bool), blocks.accepted[:, :-1]), 1) & blocks.valid
    whole = blocks.take(blocks.valid.all(1))
    accepted = float(whole.accepted.sum(1).mean()) if len(whole.place) else 0.0
    return {
        **share(blocks), "anchors": len(blocks.place), "full_blocks": len(whole.place),
        "full_block_accepted": {"with_bonus": accepted + 1, "without_bonus": accepted},
        "survival": [float(survived[k] / max(judged[k], 1)) for k in range(block)],
        "acceptance": [float(survived[k] / max(before[:, k].sum(), 1)) for k in range(block)],
        "tasks": {task: share(blocks.take(blocks.task == i)) for i, task in enumerate(tasks)
                  if (blocks.task == i).any()},
    }


def calibrate(blocks: Blocks) -> tuple[list[float], dict]:
    """(temperatures, errors before and after): fitted on conversations of even number, reported on the others."""
    even = blocks.conversation % 2 == 0
    fitting, report = blocks.take(even), blocks.take(~even)
    temperatures = calibration.fit(fitting.raw, fitting.accepted, fitting.valid)
    error = lambda t: calibration.errors(report.raw, report.accepted, report.valid, t)
    before, after = error(np.ones(len(temperatures))), error(temperatures)
    return temperatures, {"bins": calibration.BINS, "of": "survival under greedy acceptance",
                          "fitted_on_blocks": int(even.sum()), "reported_on_blocks": int((~even).sum()),
                          "error_before": before, "error_after": after,
                          "mean_error_before": float(np.mean(before)), "mean_error_after": float(np.mean(after))}
