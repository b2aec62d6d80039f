"""One request as a serving engine runs it: prefill with bounded replay, hits, decode, drafts.

A `Session` is fed consecutive tokens in any cut. Encoder layers run every row; decoder layers run
rows from the decoder floor max(0, prompt - window) on, and their window keys start there, those of
the first decoder layer included. After a prefix hit the window keys of the encoder start at
`compute_start`, cached global entries below `write_floor` are used as they are.
"""

from dataclasses import dataclass

import torch

from reference import dspark
from reference.engram import lookback_of_rows
from reference.model import State
from reference.options import Rows


@dataclass
class Plan:
    """prompt_tokens  length of the prompt; of the original one when delivered tokens are re-run
    compute_start  first position that is run; window keys below it do not exist
    write_floor    position: entries of groups that end below it come from the hit
    decoder_replay  False: decoder layers run every row from compute_start on
    """

    prompt_tokens: int
    compute_start: int = 0
    write_floor: int = 0
    decoder_replay: bool = True

    def decoder_floor(self, window):
        return max(self.compute_start, self.prompt_tokens - window if self.decoder_replay else 0)


@dataclass
class Step:
    """Rows that went through the decoder: positions [R], hidden [R, D] (normed), logits [R, vocab]."""

    positions: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor
    taps: torch.Tensor


class Session:
    """history  tokens before compute_start (Engram looks back on them)
    cached   {KV source: Entries} of the hit, at least write_floor tokens long
    """

    def __init__(self, model, plan, history=(), cached=None):
        if len(history) != plan.compute_start:
            raise ValueError("history: must hold the tokens before compute_start")
        self.model, self.plan = model, plan
        self.tokens = list(map(int, history))
        self.state = State(write_floor=plan.write_floor)
        for layer, entries in (cached or {}).items():
            self.state.entries[layer] = entries.slice(0, plan.write_floor // model.config.ratio(layer))
        self.draft_keys = [torch.zeros(1, 0, model.config.head_dim) for _ in model.mtp]
        self.draft_positions = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def run(self, tokens, options):
        """Runs the next tokens through the model."""
        config, start = self.model.config, len(self.tokens)
        self.tokens += map(int, tokens)
        everything = Rows.single(self.tokens)
        lookback = lookback_of_rows(everything, config.engram_max_ngram_size)[:, start:]
        rows = Rows.single(self.tokens[start:], start, lookback=lookback)
        floor = self.plan.decoder_floor(config.sliding_window)
        rows.encoder_floor = torch.full_like(rows.positions, self.plan.compute_start)
        rows.decoder_floor = torch.full_like(rows.positions, floor)
        rows.decoder_rows = rows.positions >= floor
        out = self.model(rows, options, self.state)
        positions = out.rows.positions[0]
        if self.model.mtp and len(positions):
            self._write_draft_context(out.taps, positions, options)
        return Step(positions, out.hidden[0], self.model.logits(out.hidden[0], options), out.taps)

    def _write_draft_context(self, taps, positions, options):
        new = dspark.context_keys(self.model, taps, positions[None], options)
        self.draft_keys = [torch.cat(pair, 1) for pair in zip(self.draft_keys, new)]
        self.draft_positions = torch.cat((self.draft_positions, positions))

    @torch.no_grad()
    def propose(self, token, options):
        """Draft of the tokens after `token`, which was sampled from the last row (dspark.propose)."""
        position = len(self.tokens) - 1
        mask = self.draft_positions > position - self.model.config.sliding_window
        return dspark.propose(self.model, token, position, self.draft_keys, mask[None], options)

    @torch.no_grad()
    def generate(self, prompt, count, options, stop=()):
        """Greedy continuation of the prompt, at most `count` tokens, without the stop token."""
        logits, result = self.run(prompt, options).logits, []
        for _ in range(count):
            token = int(logits[-1].argmax())
            if token in stop:
                break
            result.append(token)
            logits = self.run([token], options).logits
        return result
