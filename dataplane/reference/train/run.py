"""Trains nano.

    python3 -m reference.train.run --minutes 80              two CPU cores, or a GPU when there is one
    python3 -m reference.train.run --run more --init deploy/models/nano --from-progress 0.7 --minutes 60

State lives in build/train/<run>: checkpoints (resumed from automatically, on any device and with any number of
ranks), log.jsonl. Progress is measured in training time, so a run fits its budget whatever else the machine does.

On a CPU two processes of one thread each share gradients through memory and run compiled kernels. On a GPU one
process runs plain torch (portable.py), rows come from background processes, and a step is larger. --portable
chooses that path on a CPU too.

--init begins a new run from an exported checkpoint, where no training state is at hand: its weights are the
checkpoint's, dequantized; momenta start at zero. --from-progress sets where in the schedule of stages and learning
rate it starts (0 the first stage, 0.58 the longest rows, 0.8 the quantized stage).
"""
from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from reference import engram_map
from reference import export as checkpoint
from reference.layers import rope_frequencies

from . import ranks, settings, state
from .backend import add_arguments, make_network, make_optimiser, set_defaults
from .data import mix
from .evaluate_teacher import exact_match
from .feed import open_feed
from .network import Batch, Network
from .optimiser import balance
from .parameters import Parameters, initialise
from .progress import Progress
from .ranks import Clock, Place, Shared
from .tokenizer import IMAGE, SYSTEM, Tokenizer

ROOT = Path(__file__).resolve().parents[3]
NANO = ROOT / "deploy" / "models" / "nano"

# name, share of the time, (rows per process, row length), (the same for every LONG_EVERY-th step)
STAGES = [("A", 0.03, (4, 256), (4, 256)), ("B", 0.12, (4, 512), (4, 512)), ("C", 0.43, (1, 2048), (1, 2048)),
          ("D", 0.22, (1, 2048), (1, 4096)), ("E", 0.20, (1, 2048), (1, 4096))]
LONG_EVERY = 4
WARMUP_STEPS = 30  # after every start, because momenta of another learning rate may be resumed
EARLY = ("A", "B")  # stages that want many small steps: copying has to be found first
EARLY_SHARE = 4  # their steps are smaller by this factor where --tokens-per-step rules
STEM = "rank"
DISTIL_FROM, DISTIL_EVERY = 0.3, 4  # the indexers' lessons: from this progress, every so many steps


def stage_at(progress: float) -> int:
    end = 0.0
    for i, stage in enumerate(STAGES):
        end += stage[1]
        if progress < end:
            return i
    return len(STAGES) - 1


def learning_rate(progress: float, step: int, warmup_steps: int = WARMUP_STEPS) -> float:
    """Constant for 40 % of the time, then linear to 3 %; a short warm-up.

    `step` counts from the start of the process.
    """
    fall = max(0.0, (progress - 0.4) / 0.6)
    return min(1.0, (step + 1) / warmup_steps) * (1.0 - 0.97 * min(fall, 1.0))


def run_folder(name: str) -> Path:
    return ROOT / "build" / "train" / name


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


def step_shape(options, stage: str, shape: tuple[int, int]) -> tuple[int, int]:
    """(passes of a step, rows of a pass) of one rank; `shape` is the recipe's (rows, length) of the stage."""
    rows, length = shape
    if options.tokens_per_step:
        tokens = options.tokens_per_step // options.ranks
        rows = max(1, tokens // (EARLY_SHARE if stage in EARLY else 1) // length)
    per_pass = max(1, min(rows, (options.tokens_per_pass or rows * length) // length))
    return rows // per_pass, per_pass


def start_from(folder: Path, parameters: Parameters) -> None:
    """Fills the masters with an exported checkpoint's dequantized weights. ValueError for another shape."""
    config, weights, _ = checkpoint.read_weights(folder)
    if config != parameters.config:
        differing = [k for k, v in vars(config).items() if v != getattr(parameters.config, k)]
        raise ValueError(f"{folder}: its configuration differs from this trainer's in {', '.join(differing)}")
    parameters.values.zero_()
    for name, value in parameters.value.items():
        value.copy_(weights[name])


class Trainer:
    def __init__(self, place: Place, options):
        torch.set_num_threads(1)
        self.place, self.options = place, options
        self.rank, self.ranks, self.shared, self.barrier = place.rank, place.ranks, place.shared, place.barrier
        self.tokenizer = load_tokenizer()
        self.config, mapping = make_config(self.tokenizer)
        self.parameters = Parameters(self.config, self.shared.values, self.shared.grads[self.rank])
        self.network = make_network(options, self.parameters, mapping)
        self.optimiser = make_optimiser(options, self.parameters, place, train_wanted)
        self.folder = options.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step = self.tokens = 0
        self.elapsed = 0.0
        self.progress = Progress()
        self._restore()

    # ---- checkpoints ---------------------------------------------------------------------------

    def _restore(self) -> None:
        if state.exists(self.folder, STEM):
            saved = state.load(self.folder, STEM, self.optimiser)
            self.step, self.tokens, self.elapsed = saved["step"], saved["tokens"], saved["elapsed"]
            if self.rank == 0:
                state.load_values(self.folder, self.shared.values)
        else:
            self.elapsed = self.options.from_progress * self.options.minutes * 60
            if self.rank == 0 and self.options.init:
                start_from(self.options.init, self.parameters)
            elif self.rank == 0:
                # The same random start on every device.
                host = Parameters(self.config)
                initialise(host, rope_frequencies(self.config, False), self.options.seed)
                self.shared.values.copy_(host.values)
        self.barrier.wait()

    def save(self) -> None:
        state.save(self.folder, STEM, self.place, self.optimiser,
                   {"step": self.step, "tokens": self.tokens, "elapsed": self.elapsed})

    def log(self, record: dict) -> dict:
        """Appends to log.jsonl and returns the whole record."""
        return state.log(self.folder, {"step": self.step, "tokens": self.tokens,
                                       "minutes": round(self.elapsed / 60, 2), **record})

    # ---- one step ------------------------------------------------------------------------------

    def _figures(self, batch: Batch, per_token: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Sums over a pass: weights, answer tokens, their losses, right ones, prompt tokens, their losses, and the
        indexers' mean loss. On the device, so that the host waits once a step."""
        target = (batch.weight == 1).float()
        prompt = ((batch.weight > 0) & (batch.weight != 1)).float()
        index = self.network.index_loss
        return torch.stack((batch.weight.sum(), target.sum(), (per_token * target).sum(),
                            ((best == batch.target) * target).sum(), prompt.sum(), (per_token * prompt).sum(),
                            torch.zeros_like(target[0]) if index is None else index.detach()))

    def train_step(self, batches: list[Batch], lr: float) -> dict:
        """One optimiser step over the passes `batches`; what is worth logging."""
        network, shared = self.network, self.shared
        network.refresh()
        figures, loads = [], []
        for batch in batches:
            total, per_token, best = network.loss(batch)
            total.backward()
            figures.append(self._figures(batch, per_token, best))
            load_names = sorted(network.loads)
            loads.append(torch.cat([network.loads[n] for n in load_names]))
        shared.loads[self.rank, :] = torch.stack(loads).mean(0)
        sums = torch.stack(figures).sum(0).tolist()
        weights, answers, answer_loss, right, prompts, prompt_loss, index_loss = sums
        shared.numbers[8 + self.rank] = weights
        self.barrier.wait()
        weight_sum = float(shared.numbers[8:8 + self.ranks].sum())
        taught = network.distil is not None
        self.optimiser.step(lr, 1.0 / weight_sum, lambda name: ".indexer." in name and not taught)
        if self.rank == 0:
            sizes = [network.loads[n].numel() for n in load_names]
            balance(self.parameters, dict(zip(load_names, shared.loads.mean(0).split(sizes))))
        self.barrier.wait()
        shared.grads[self.rank].zero_()
        return {"loss": answer_loss / max(answers, 1), "accuracy": right / max(answers, 1),
                "prompt_loss": prompt_loss / max(prompts, 1),
                **({"index_loss": index_loss / len(batches)} if network.index_loss is not None else {}),
                "load": float(shared.loads[self.rank].max())}

    def evaluate(self) -> None:
        tasks = [t for t in {**mix.MIXES["E"], **mix.EXAMS} if t not in mix.MEMORISED]
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
            self.progress.note(self.log({"eval": dict(sorted(scores.items()))}))
        self.barrier.wait()

    def _open_stage(self, stage: int) -> list:
        """A feed for each of the stage's two shapes."""
        name, _, *shapes = STAGES[stage]
        seed = f"{self.options.seed}-{self.rank}-{name}-{self.step}"
        return [open_feed(self.options.data_workers, self.tokenizer, NANO / "tokenizer.json", name, shape[1],
                          step_shape(self.options, name, shape)[1], f"{seed}-{i}") for i, shape in enumerate(shapes)]

    def _batches(self, feeds: list, stage: int) -> list[Batch]:
        """The passes of this step. Stage E simulates bounded replay on both sides."""
        name, _, *shapes = STAGES[stage]
        kind = int(self.step % LONG_EVERY == 0)
        out = []
        for _ in range(step_shape(self.options, name, shapes[kind])[0]):
            data = feeds[kind].next()
            out.append(Batch(self.network, data, *((data["floor"], data["decoder_floor"]) if name == "E" else ())))
        return out

    def run(self) -> None:
        options = self.options
        budget = options.minutes * 60
        stage, feeds, sums, last_save, last_eval = None, [], [], self.elapsed, self.elapsed
        began = self.step
        modes = np.random.default_rng([options.seed, self.rank, self.step])
        clock = Clock(self.place, self.elapsed)
        shown, shown_tokens = time.monotonic(), self.tokens
        while True:
            self.elapsed = clock.read()
            progress = self.elapsed / budget
            if progress >= 1 or self.step - began == options.steps:
                break
            if stage_at(progress) != stage:
                stage = stage_at(progress)
                for feed in feeds:
                    feed.close()
                feeds = self._open_stage(stage)
            batches = self._batches(feeds, stage)
            set_modes(self.network, STAGES[stage][0], progress, self.step, modes)
            sums.append(self.train_step(batches, learning_rate(progress, self.step - began)))
            self.step += 1
            self.tokens += sum(b.tokens.numel() for b in batches) * self.ranks
            if self.rank == 0 and self.step % 20 == 0:
                now = time.monotonic()
                speed = (self.tokens - shown_tokens) / (now - shown)
                shown, shown_tokens = now, self.tokens
                keys = sorted({k for s in sums for k in s})
                mean = {k: float(np.mean([s[k] for s in sums if k in s])) for k in keys}
                sums = []
                record = self.log({"stage": STAGES[stage][0], "progress": round(progress, 4), **mean,
                                   "lr": learning_rate(progress, self.step - began), "tokens_per_second": round(speed)})
                self.progress.show(STAGES[stage][0], progress, speed, mean["loss"], budget - self.elapsed, record)
            if self.elapsed - last_save > options.save_minutes * 60:
                last_save = self.elapsed
                self.save()
            if options.eval_samples and self.elapsed - last_eval > options.eval_minutes * 60:
                last_eval = self.elapsed
                self.evaluate()
        for feed in feeds:
            feed.close()
        self.save()
        if options.eval_samples:
            self.evaluate()


def worker(place: Place, options) -> None:
    Trainer(place, options).run()


def launch(worker, options) -> int:
    """Runs worker(place, options) in every rank, on buffers for this model; the exit status."""
    config, _ = make_config(load_tokenizer())
    shared = Shared(Parameters.count(config), options.ranks, config.num_hidden_layers * config.n_routed_experts,
                    options.device)
    return ranks.run(worker, shared, options)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="nano", help="folder under build/train")
    parser.add_argument("--minutes", type=float, default=80, help="training time in all, resumed time included")
    parser.add_argument("--steps", type=int, default=-1, help="end after so many steps of this start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--init", type=Path, help="checkpoint folder that a new run starts from")
    parser.add_argument("--from-progress", type=float, default=0.0, help="share of the schedule a new run skips")
    parser.add_argument("--save-minutes", type=float, help="between checkpoints; default 3, on a GPU 2")
    parser.add_argument("--eval-minutes", type=float, default=6)
    parser.add_argument("--eval-samples", type=int, default=16, help="per task; 0 leaves evaluations out")
    add_arguments(parser)
    options = set_defaults(parser, parser.parse_args(arguments))
    if options.minutes <= 0:
        parser.error("--minutes: must be positive")
    if options.save_minutes is None:
        options.save_minutes = 2 if options.device == "cuda" else 3
    if not 0 <= options.from_progress < 1:
        parser.error("--from-progress: must lie in [0, 1)")
    options.folder = run_folder(options.run)
    state.finish_save(options.folder)
    if (options.init or options.from_progress) and state.exists(options.folder, STEM):
        parser.error(f"--init, --from-progress: run {options.run} has begun already; leave them out to resume it")
    return launch(worker, options)


if __name__ == "__main__":
    raise SystemExit(main())
