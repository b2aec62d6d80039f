"""Trains nano: two processes, one thread each, gradients in shared memory.

    python3 -m reference.train.run --minutes 80

State lives in build/train/<run>: checkpoints (resumed from automatically), log.jsonl, plots.
Progress is measured in training time, so a run fits its budget whatever else the machine does.
"""
from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp

from reference import engram_map
from reference.layers import rope_frequencies

from . import settings
from .data import mix
from .evaluate_teacher import exact_match
from .network import Batch, Network
from .optimiser import Optimiser, balance
from .parameters import Parameters, initialise
from .ranks import Shared
from .tokenizer import IMAGE, SYSTEM, Tokenizer

ROOT = Path(__file__).resolve().parents[3]
NANO = ROOT / "deploy" / "models" / "nano"

# name, share of the time, (rows per process, row length), (the same for every LONG_EVERY-th step)
STAGES = [("A", 0.03, (4, 256), (4, 256)), ("B", 0.12, (4, 512), (4, 512)), ("C", 0.43, (1, 2048), (1, 2048)),
          ("D", 0.22, (1, 2048), (1, 4096)), ("E", 0.20, (1, 2048), (1, 4096))]
LONG_EVERY = 4
WARMUP_STEPS = 30  # after every start, because momenta of another learning rate may be resumed
DISTIL_FROM, DISTIL_EVERY = 0.3, 4  # the indexers' lessons: from this progress, every so many steps


def stage_at(progress: float) -> int:
    end = 0.0
    for i, stage in enumerate(STAGES):
        end += stage[1]
        if progress < end:
            return i
    return len(STAGES) - 1


def learning_rate(progress: float, step: int) -> float:
    """Constant for 40 % of the time, then linear to 3 %; a short warm-up.

    `step` counts from the start of the process.
    """
    fall = max(0.0, (progress - 0.4) / 0.6)
    return min(1.0, (step + 1) / WARMUP_STEPS) * (1.0 - 0.97 * min(fall, 1.0))


def load_tokenizer() -> Tokenizer:
    return Tokenizer.load(NANO / "tokenizer.json")


def make_config(tokenizer: Tokenizer):
    """(configuration, Engram's token map) for the tokenizer in the model's folder."""
    mapping = np.array(engram_map.token_map(json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))))
    config = settings.nano_config(int(mapping.max()) + 1, tokenizer.token_id(SYSTEM), tokenizer.token_id(IMAGE))
    return config, mapping


def train_wanted(name: str) -> bool:
    return not name.startswith("mtp.")


def set_modes(network: Network, stage: str, progress: float, step: int, rng: np.random.Generator) -> None:
    """Stage D alternates dense and selected attention; E is quantized and always selects."""
    network.distil = rng if progress >= DISTIL_FROM and step % DISTIL_EVERY == 0 else None
    network.sparse = stage == "E" or (stage == "D" and step % 2 == 1)
    network.quantized = stage == "E"


class Trainer:
    def __init__(self, rank: int, ranks: int, shared: Shared, barrier, options):
        torch.set_num_threads(1)
        self.rank, self.ranks, self.shared, self.barrier, self.options = rank, ranks, shared, barrier, options
        self.tokenizer = load_tokenizer()
        self.config, mapping = make_config(self.tokenizer)
        self.parameters = Parameters(self.config, shared.values, shared.grads[rank])
        self.network = Network(self.parameters, mapping)
        self.optimiser = Optimiser(self.parameters, shared.grads, rank, ranks, train_wanted)
        self.folder = ROOT / "build" / "train" / options.run
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step = self.tokens = 0
        self.elapsed = 0.0
        self._restore()

    # ---- checkpoints ---------------------------------------------------------------------------

    def _restore(self) -> None:
        state = self.folder / f"rank{self.rank}.pt"
        if state.exists():
            # Ownership may have moved between ranks, so all files are looked through.
            for path in sorted(self.folder.glob("rank*.pt")):
                for name, tensor in torch.load(path)["optimiser"].items():
                    if name in self.optimiser.state:
                        self.optimiser.state[name].copy_(tensor)
            saved = torch.load(state)
            self.optimiser.step_count = saved["step_count"]
            self.step, self.tokens, self.elapsed = saved["step"], saved["tokens"], saved["elapsed"]
            if self.rank == 0:
                self.shared.values.copy_(torch.load(self.folder / "values.pt"))
        elif self.rank == 0:
            initialise(self.parameters, rope_frequencies(self.config, False), self.options.seed)
        self.barrier.wait()

    def save(self) -> None:
        def write(value, path):
            torch.save(value, str(path) + ".partial")
            os.replace(str(path) + ".partial", path)
        self.barrier.wait()
        write({"optimiser": self.optimiser.state, "step_count": self.optimiser.step_count, "step": self.step,
               "tokens": self.tokens, "elapsed": self.elapsed}, self.folder / f"rank{self.rank}.pt")
        if self.rank == 0:
            write(self.shared.values.clone(), self.folder / "values.pt")
        self.barrier.wait()

    def log(self, record: dict) -> None:
        record = {"step": self.step, "tokens": self.tokens, "minutes": round(self.elapsed / 60, 2), **record}
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items()), flush=True)

    # ---- one step ------------------------------------------------------------------------------

    def train_step(self, batch: Batch, lr: float) -> dict:
        network, shared = self.network, self.shared
        network.refresh()
        total, per_token, best = network.loss(batch)
        total.backward()
        target = batch.weight == 1
        shared.numbers[8 + self.rank] = float(batch.weight.sum())
        load_names = sorted(network.loads)
        shared.loads[self.rank, :] = torch.cat([network.loads[n] for n in load_names])
        self.barrier.wait()
        weight_sum = float(shared.numbers[8:8 + self.ranks].sum())
        taught = network.distil is not None
        self.optimiser.step(lr, 1.0 / weight_sum, lambda name: ".indexer." in name and not taught)
        if self.rank == 0:
            sizes = [network.loads[n].numel() for n in load_names]
            mean = shared.loads.mean(0)
            balance(self.parameters, dict(zip(load_names, mean.split(sizes))))
        self.barrier.wait()
        shared.grads[self.rank].zero_()
        return {"loss": float(per_token[target].mean()), "accuracy": float((best == batch.target)[target].float().mean()),
                "prompt_loss": float(per_token[(batch.weight > 0) & ~target].mean()),
                **({"index_loss": float(network.index_loss.detach())} if network.index_loss is not None else {}),
                "load": max(float(x.max()) for x in network.loads.values())}

    def evaluate(self) -> None:
        tasks = [t for t in {**mix.MIXES["E"], **mix.EXAMS} if t not in ("free_text", "small_talk", "knowledge")]
        scores = {}
        self.network.distil = None
        self.network.refresh()
        for i, task in enumerate(tasks):
            if i % self.ranks == self.rank:
                scores[task] = exact_match(self.network, self.tokenizer, task, self.options.eval_samples)
        with open(self.folder / f"scores{self.rank}.json", "w", encoding="utf-8") as f:
            json.dump(scores, f)
        self.barrier.wait()
        if self.rank == 0:
            for r in range(1, self.ranks):
                scores.update(json.loads((self.folder / f"scores{r}.json").read_text()))
            self.log({"eval": dict(sorted(scores.items()))})
        self.barrier.wait()

    def run(self) -> None:
        budget = self.options.minutes * 60
        stage, streams, sums, last_save, last_eval = None, [], [], self.elapsed, self.elapsed
        began = self.step
        modes = np.random.default_rng([self.options.seed, self.rank, self.step])
        clock = time.monotonic()
        shown, shown_tokens = clock, self.tokens
        while True:
            if self.rank == 0:
                now = time.monotonic()
                self.elapsed += now - clock
                clock = now
                self.shared.numbers[0] = self.elapsed
            self.barrier.wait()
            self.elapsed = float(self.shared.numbers[0])
            progress = self.elapsed / budget
            if progress >= 1:
                break
            if stage_at(progress) != stage:
                stage = stage_at(progress)
                name, _, *shapes = STAGES[stage]
                seed = f"{self.options.seed}-{self.rank}-{name}-{self.step}"
                streams = [mix.Stream(self.tokenizer, name, length, f"{seed}-{i}") for i, (_, length) in enumerate(shapes)]
            kind = int(self.step % LONG_EVERY == 0)
            rows, length = shapes[kind]
            data = streams[kind].batch(rows)
            floors = (data["floor"], data["decoder_floor"]) if name == "E" else ()
            batch = Batch(self.network, data, *floors)
            set_modes(self.network, name, progress, self.step, modes)
            record = self.train_step(batch, learning_rate(progress, self.step - began))
            self.step += 1
            self.tokens += rows * length * self.ranks
            sums.append(record)
            if self.rank == 0 and self.step % 20 == 0:
                now = time.monotonic()
                speed = (self.tokens - shown_tokens) / (now - shown)
                shown, shown_tokens = now, self.tokens
                keys = sorted({k for s in sums for k in s})
                mean = {k: float(np.mean([s[k] for s in sums if k in s])) for k in keys}
                sums = []
                self.log({"stage": STAGES[stage][0], "progress": round(progress, 4), **mean,
                          "lr": learning_rate(progress, self.step - began), "tokens_per_second": round(speed)})
            if self.elapsed - last_save > 180:
                last_save = self.elapsed
                self.save()
            if self.elapsed - last_eval > self.options.eval_minutes * 60:
                last_eval = self.elapsed
                self.evaluate()
        self.save()
        self.evaluate()


def worker(rank: int, ranks: int, shared: Shared, barrier, options) -> None:
    Trainer(rank, ranks, shared, barrier, options).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano", help="folder under build/train")
    parser.add_argument("--minutes", type=float, default=80, help="training time in all, resumed time included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--eval-minutes", type=float, default=6)
    parser.add_argument("--eval-samples", type=int, default=16)
    options = parser.parse_args()
    config, _ = make_config(load_tokenizer())
    shared = Shared(Parameters.count(config), options.ranks, config.num_hidden_layers * config.n_routed_experts)
    context = mp.get_context("spawn")
    barrier = context.Barrier(options.ranks)
    workers = [context.Process(target=worker, args=(r, options.ranks, shared, barrier, options))
               for r in range(options.ranks)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    raise SystemExit(max(abs(w.exitcode or 0) for w in workers))


if __name__ == "__main__":
    main()
