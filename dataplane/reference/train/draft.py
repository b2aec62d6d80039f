"""Trains the draft layers (DSpark) on the frozen, quantized backbone of a run.

    python3 -m reference.train.draft --minutes 18 --eval

Anchors are random answer positions p whose next token y is known; the block [y, noise, ...] predicts
what follows. Objective: 0.1 cross entropy + 0.9 L1 distance to the backbone's distribution + the
confidence head's BCE with the analytic acceptance rate, position k weighted by exp(-(k-1)/4).

State lies beside the backbone's (draft-rank*.pt, and values.pt holds both) and is resumed. When the backbone has
been trained further since, the schedule starts anew from the draft weights as they are. With --eval the held-out
measurement of draft_eval.py follows; its table of temperatures and figures goes to --calibration.

A step is one pass: --tokens-per-step as far as --tokens-per-pass allows.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import torch

from . import calibration, draft_eval, run, state
from .backend import add_arguments, make_draft_network, make_optimiser, set_defaults
from .data import mix
from .draft_network import DraftNetwork
from .feed import open_feed
from .network import Batch
from .optimiser import balance
from .parameters import Parameters
from .progress import Progress
from .ranks import Clock, Place

ANCHORS = 256  # per row
ROW = 2048
WARMUP_STEPS = 20
SLOT_DECAY = 4.0
STEM = "draft-rank"
SAVE_SECONDS = 120


def rows_per_pass(options, length: int) -> int:
    """Rows of `length` tokens a rank takes at once: 1 unless the options say how many tokens."""
    tokens = (options.tokens_per_step or 0) // options.ranks
    return max(1, min(tokens, options.tokens_per_pass or tokens) // length)


def draft_loss(net: DraftNetwork, batch: Batch, taps: torch.Tensor, hidden: torch.Tensor, anchors: torch.Tensor):
    """(loss summed over valid slots, weight of the valid slots, agreement [M, B], valid [M, B]).

    taps, hidden [n, ...]: what the backbone leaves of the batch; anchors [M] rows.
    """
    B = net.config.dspark_block_size
    h = net.propose(batch, taps, anchors)
    slots = torch.arange(B, device=anchors.device)
    places = anchors[:, None] + 1 + slots                    # row of x_{k-1}; its target is x_k
    last = batch.tokens.shape[0] - 1
    inside = (places <= last) & (batch.weight[places.clamp(max=last)] == 1)
    valid = inside.long().cumprod(1).bool()
    places = places.clamp(max=last).reshape(-1)
    embedded, correction = net.markov(batch.tokens[places])
    logits = (net.block_logits(h) + correction).float()
    with torch.no_grad():
        teacher = torch.softmax(net.head_logits(hidden[places]), -1)
    student = torch.log_softmax(logits, -1)
    distance = (student.exp() - teacher).abs().sum(-1)
    ce = -student.gather(1, batch.target[places][:, None])[:, 0]
    rate = (1 - 0.5 * distance.detach()).clamp(0, 1)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(net.confidence(h, embedded), rate, reduction="none")
    weight = valid.float() * torch.exp(-slots / SLOT_DECAY)
    loss = ((0.1 * ce + 0.9 * distance + bce) * weight.reshape(-1)).sum()
    agree = (logits.argmax(-1) == teacher.argmax(-1)).view(-1, B)
    return loss, weight.sum(), agree, valid


def accepted_lengths(agree: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Accepted draft tokens of each block: the leading run of agreement."""
    return (agree & valid).long().cumprod(1).sum(1)


def backbone(net: DraftNetwork, data: dict) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """(batch, taps [n, targets*D], normed hidden [n, D]) of the frozen, quantized backbone."""
    batch = Batch(net, data)
    with torch.no_grad():
        net.capture_taps = []
        h = net.hidden(batch)
        taps = torch.cat(net.capture_taps, 1)
        net.capture_taps = None
    return batch, taps, h


def anchors_of(batch: Batch, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Rows p whose token p+1 is followed by an answer token (the first draft target)."""
    first = torch.zeros_like(batch.weight, dtype=torch.bool)
    first[:-1] = batch.weight[1:] == 1
    rows = torch.nonzero(first)[:, 0].cpu().numpy()
    return torch.from_numpy(np.sort(rng.permutation(rows)[:count])).to(batch.weight.device)


class DraftTrainer:
    def __init__(self, place: Place, options):
        torch.set_num_threads(1)
        self.place, self.options = place, options
        self.rank, self.ranks, self.shared, self.barrier = place.rank, place.ranks, place.shared, place.barrier
        self.tokenizer = run.load_tokenizer()
        config, mapping = run.make_config(self.tokenizer)
        self.parameters = Parameters(config, self.shared.values, self.shared.grads[self.rank])
        self.folder = options.folder
        self.network = make_draft_network(options, self.parameters, mapping)
        self.network.quantized = self.network.sparse = True
        wanted = lambda name: name.startswith("mtp.")
        self.optimiser = make_optimiser(options, self.parameters, place, wanted)
        self.step, self.elapsed = 0, 0.0
        self.progress = Progress()
        self._restore()
        self.network.refresh()

    # ---- state ---------------------------------------------------------------------------------

    def _restore(self) -> None:
        if self.rank == 0:
            state.load_values(self.folder, self.shared.values)
        backbone_state = state.load_counters(self.folder, run.STEM)
        self.trained = {"tokens": backbone_state["tokens"], "steps": backbone_state["step"]}
        if state.exists(self.folder, STEM):
            fresh = {name: tensor.clone() for name, tensor in self.optimiser.state.items()}
            saved = state.load(self.folder, STEM, self.optimiser)
            if saved["backbone"] == self.trained:
                self.step, self.elapsed = saved["step"], saved["elapsed"]
            else:
                self.optimiser.step_count = 0
                for name, tensor in fresh.items():
                    self.optimiser.state[name].copy_(tensor)
                if self.rank == 0:
                    print(f"the backbone has changed since step {saved['step']}: the schedule starts anew", flush=True)
        self.barrier.wait()

    def save(self) -> None:
        state.save(self.folder, STEM, self.place, self.optimiser,
                   {"step": self.step, "elapsed": self.elapsed, "backbone": self.trained})

    # ---- training ------------------------------------------------------------------------------

    def train_step(self, data: dict, lr: float, rng: np.random.Generator) -> tuple[float, float]:
        """(loss, accepted drafts) per block of this rank."""
        net, shared, rank = self.network, self.shared, self.rank
        batch, taps, hidden = backbone(net, data)
        net.loads = {}
        anchors = anchors_of(batch, ANCHORS * batch.rows, rng)
        loss, weight, agree, valid = draft_loss(net, batch, taps, hidden, anchors)
        loss.backward()
        loss, weight, accepted = torch.stack((loss.detach(), weight,
                                              accepted_lengths(agree, valid).float().mean())).tolist()
        shared.numbers[8 + rank] = weight
        names = sorted(net.loads)
        sizes = [net.loads[n].numel() for n in names]
        shared.loads[rank, :sum(sizes)] = torch.cat([net.loads[n] for n in names])
        self.barrier.wait()
        self.optimiser.step(lr, 1.0 / float(shared.numbers[8:8 + self.ranks].sum()))
        if rank == 0:
            balance(self.parameters, dict(zip(names, shared.loads.mean(0)[:sum(sizes)].split(sizes))))
        self.barrier.wait()
        shared.grads[rank].zero_()
        net.refresh_draft()
        return loss / weight, accepted

    def train(self) -> None:
        options = self.options
        budget, began, last_save = options.minutes * 60, self.step, self.elapsed
        rng = np.random.default_rng([options.seed, self.rank, self.step])
        rows = rows_per_pass(options, ROW)
        feed = open_feed(options.data_workers, self.tokenizer, run.NANO / "tokenizer.json", "D", ROW, rows,
                         f"draft-{options.seed}-{self.rank}-{self.step}")
        clock, sums, shown, shown_step = Clock(self.place, self.elapsed), [], time.monotonic(), self.step
        while True:
            self.elapsed = clock.read()
            progress = self.elapsed / budget if budget else 1.0
            if progress >= 1 or self.step - began == options.steps:
                break
            lr = run.learning_rate(progress, self.step - began, WARMUP_STEPS)
            sums.append(self.train_step(feed.next(), lr, rng))
            self.step += 1
            if self.rank == 0 and self.step % 10 == 0:
                loss, accepted = (float(np.mean(x)) for x in zip(*sums))
                now, sums = time.monotonic(), []
                speed = rows * ROW * self.ranks * (self.step - shown_step) / (now - shown)
                shown, shown_step = now, self.step
                record = state.log(self.folder, {
                    "phase": "draft", "step": self.step, "minutes": round(self.elapsed / 60, 2), "loss": loss,
                    "accepted": accepted, "lr": lr, "tokens_per_second": round(speed)})
                self.progress.show("draft", progress, speed, loss, budget - self.elapsed, record)
            if self.elapsed - last_save > SAVE_SECONDS:
                last_save = self.elapsed
                self.save()
        feed.close()
        if self.step > began:
            self.save()

    # ---- the held-out measurement --------------------------------------------------------------

    def evaluate(self) -> None:
        tasks = [t for t in mix.MIXES["E"] if t not in mix.MEMORISED]
        parts = draft_eval.measure(self.network, self.tokenizer, tasks, self.options.eval_samples,
                                   lambda index: index % self.ranks == self.rank)
        path = self.folder / f"draft-eval{self.rank}.pt"
        torch.save([dataclasses.astuple(p) for p in parts], path)
        self.barrier.wait()
        if self.rank == 0:
            files = [self.folder / f"draft-eval{r}.pt" for r in range(self.ranks)]
            blocks = draft_eval.Blocks.join([draft_eval.Blocks(*part) for f in files for part in torch.load(f)])
            temperatures, errors = draft_eval.calibrate(blocks)
            figures = {"accepted": draft_eval.figures(blocks, tasks), "calibration": errors,
                       "conversations_per_task": self.options.eval_samples}
            self.options.calibration.parent.mkdir(parents=True, exist_ok=True)
            calibration.save(self.options.calibration, temperatures, {**self.trained, "draft_steps": self.step},
                             figures)
            state.log(self.folder, {"phase": "draft-eval", "step": self.step, **figures})
            print(json.dumps(figures, indent=1), f"\nwritten to {self.options.calibration}", flush=True)
        self.barrier.wait()


def worker(place: Place, options) -> None:
    trainer = DraftTrainer(place, options)
    trainer.train()
    if options.eval:
        trainer.evaluate()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="nano", help="folder under build/train; its values.pt is the backbone")
    parser.add_argument("--minutes", type=float, default=8, help="training time in all, resumed time included")
    parser.add_argument("--steps", type=int, default=-1, help="end after so many steps of this start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval", action="store_true", help="measure on held-out conversations afterwards")
    parser.add_argument("--eval-samples", type=int, default=16, help="conversations per task")
    parser.add_argument("--calibration", type=Path, default=run.NANO / "draft_calibration.json",
                        help="where --eval writes temperatures and figures")
    add_arguments(parser)
    options = set_defaults(parser, parser.parse_args(arguments))
    options.folder = run.run_folder(options.run)
    state.finish_save(options.folder)
    if not state.exists(options.folder, run.STEM):
        parser.error(f"--run: there is no trained backbone in {options.folder}")
    return run.launch(worker, options)


if __name__ == "__main__":
    raise SystemExit(main())
