"""Loss and accuracy plots of a run: python3 -m reference.train.plot --run nano"""
from __future__ import annotations

import argparse
import json

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)

from .run import NANO, ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="nano")
    options = parser.parse_args()
    lines = (ROOT / "build" / "train" / options.run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    steps = [r for r in records if "stage" in r]
    evals = [r for r in records if "eval" in r]
    drafts = [r for r in records if r.get("phase") == "draft"]
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4))
    million = [r["tokens"] / 1e6 for r in steps]
    axes[0].plot(million, [r["loss"] for r in steps], label="answer loss")
    axes[0].plot(million, [r["prompt_loss"] for r in steps], label="prompt loss")
    axes[0].plot(million, [r["accuracy"] for r in steps], label="answer token accuracy")
    axes[0].set_xlabel("million tokens")
    axes[0].legend()
    for task in sorted({t for r in evals for t in r["eval"]}):
        points = [(r["tokens"] / 1e6, r["eval"][task]) for r in evals if task in r["eval"]]
        axes[1].plot(*zip(*points), marker="o", label=task)
    axes[1].set_xlabel("million tokens")
    axes[1].set_ylabel("held-out exact match")
    if evals:
        axes[1].legend(fontsize=6)
    axes[2].plot([r["minutes"] for r in drafts], [r["accepted"] for r in drafts])
    axes[2].set_xlabel("draft phase, minutes")
    axes[2].set_ylabel("accepted draft tokens of 5")
    figure.tight_layout()
    figure.savefig(NANO / "training.png", dpi=70)


if __name__ == "__main__":
    main()
