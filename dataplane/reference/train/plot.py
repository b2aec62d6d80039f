"""Loss and accuracy plots of a run: python3 -m reference.train.plot --run nano [--out FILE]"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)

from . import state  # noqa: E402
from .run import NANO, run_folder  # noqa: E402

STAGE_COLOURS = {"A": "#eeeeee", "B": "#e3ecf7", "C": "#e9f5e6", "D": "#fbf0dc", "E": "#f8e4e4"}


def _pieces(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Cut where x falls back: a phase that was started anew."""
    out: list[list[tuple[float, float]]] = []
    for point in points:
        if not out or point[0] < out[-1][-1][0]:
            out.append([])
        out[-1].append(point)
    return out


def plot_losses(axes, steps: list[dict]) -> None:
    """Losses and token accuracy by tokens; stages are shaded, in every interval the one it began in."""
    for before, after in zip(steps, steps[1:]):
        axes.axvspan(before["tokens"] / 1e6, after["tokens"] / 1e6, color=STAGE_COLOURS[after["stage"]], lw=0)
    for before, record in zip([{}] + steps, steps):
        if before.get("stage") != record["stage"]:
            axes.text(record["tokens"] / 1e6, 1.0, record["stage"], transform=axes.get_xaxis_transform(), va="bottom")
    for key, label in (("loss", "answer loss"), ("prompt_loss", "prompt loss"), ("accuracy", "answer token accuracy")):
        axes.plot([r["tokens"] / 1e6 for r in steps], [r[key] for r in steps], label=label)
    axes.set_xlabel("million tokens")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def plot_tasks(axes, evals: list[dict]) -> None:
    """Exact match of every task that was ever evaluated; the legend lists them by their last score."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for r in evals:
        for task, score in r["eval"].items():
            scores.setdefault(task, []).append((r["tokens"] / 1e6, score))
    order = sorted(scores, key=lambda task: (-scores[task][-1][1], task))
    colours = pyplot.get_cmap("tab10")
    for i, task in enumerate(order):
        style = ("-", "--", ":")[i // 10 % 3]
        axes.plot(*zip(*scores[task]), style, color=colours(i % 10), marker="os^"[i // 10 % 3], ms=4,
                  label=f"{task} {scores[task][-1][1]:.2f}")
    axes.set_xlabel("million tokens")
    axes.set_ylabel("held-out exact match")
    axes.set_ylim(-0.02, 1.02)
    if order:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))


def plot_drafts(axes, drafts: list[dict], measured: list[dict]) -> None:
    """Accepted drafts while training, each start of the phase a line; what was measured on held-out text."""
    pieces = _pieces([(r["minutes"], r["accepted"]) for r in drafts])
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        axes.plot(*zip(*piece), color="C0" if last else "#bbbbbb", label="training" if last else None)
    if measured:
        held_out = measured[-1]["accepted"]["without_bonus"]
        axes.axhline(held_out, color="C1", ls="--", label=f"held-out rounds {held_out:.2f}")
    axes.set_xlabel("draft phase, minutes")
    axes.set_ylabel("accepted draft tokens, without bonus")
    axes.set_ylim(bottom=0)
    if drafts or measured:
        axes.legend(fontsize=8)


def draw(records: list[dict]):
    """The figure of a run's log."""
    figure, axes = pyplot.subplots(1, 3, figsize=(18, 5), gridspec_kw={"width_ratios": [1.1, 1.1, 0.8]})
    plot_losses(axes[0], [r for r in records if "stage" in r])
    plot_tasks(axes[1], [r for r in records if "eval" in r])
    plot_drafts(axes[2], [r for r in records if r.get("phase") == "draft"],
                [r for r in records if r.get("phase") == "draft-eval"])
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano", help="folder under build/train")
    parser.add_argument("--out", type=Path, default=NANO / "training.png")
    options = parser.parse_args()
    lines = (run_folder(options.run) / state.LOG).read_text(encoding="utf-8").splitlines()
    draw([json.loads(line) for line in lines]).savefig(options.out, dpi=70)


if __name__ == "__main__":
    main()
