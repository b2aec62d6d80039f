"""Calibration of the draft's confidence: expected error of survival, sequential temperatures, their file.

A block of B drafts has raw confidences [B]; c_k = sigmoid(raw_k / T_k) is the chance that draft k is accepted
when all before it were, and survival a_k = c_1 ... c_k that the first k are. Source of the fit: Sequential
Temperature Scaling (DSpark, arXiv 2607.05147): T_k in the order of k, earlier ones frozen.

The file (JSON): {"format": 1, "block_size": B, "temperatures": [B], "run": {"tokens", "steps", "draft_steps"},
"figures": {...}}. Temperatures mean nothing for another block size, so `load` refuses such a file.
"""
from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

BINS = 15
FORMAT = 1
# Fine steps around 1, a factor of 8 either way.
GRID = np.exp(np.linspace(-np.log(8.0), np.log(8.0), 129))


def expected_calibration_error(predicted: np.ndarray, happened: np.ndarray) -> float:
    """Mean distance between prediction and frequency over 15 equal bins of [0, 1], weighted by their counts.

    predicted [n] in [0, 1], happened [n] bool. 0 for no samples.
    """
    if not len(predicted):
        return 0.0
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bins, happened.astype(np.float64) - predicted, BINS)
    return float(np.abs(gap).sum() / len(predicted))


def survival(raw: np.ndarray, temperatures) -> np.ndarray:
    """a [n, B] of raw confidences [n, B]."""
    scaled = raw.astype(np.float64) / np.asarray(temperatures, np.float64)
    return np.cumprod(1.0 / (1.0 + np.exp(-scaled)), axis=1)


def errors(raw: np.ndarray, survived: np.ndarray, valid: np.ndarray, temperatures) -> list[float]:
    """The calibration error of each position. All are [n, B]; `valid` says which drafts could be judged."""
    a = survival(raw, temperatures)
    return [expected_calibration_error(a[valid[:, k], k], survived[valid[:, k], k]) for k in range(raw.shape[1])]


def fit(raw: np.ndarray, survived: np.ndarray, valid: np.ndarray) -> list[float]:
    """The temperatures [B]; of equally good ones the nearest to 1, which an unjudged position keeps."""
    grid = sorted(GRID.tolist(), key=lambda t: abs(np.log(t)))
    before, out = np.ones(len(raw)), []
    for k in range(raw.shape[1]):
        rows = valid[:, k]
        chance = lambda t: before / (1.0 + np.exp(-raw[:, k].astype(np.float64) / t))
        error = [expected_calibration_error(chance(t)[rows], survived[rows, k]) for t in grid]
        out.append(float(grid[int(np.argmin(error))]))
        before = chance(out[-1])
    return out


def save(path: Path, temperatures: list[float], run: dict, figures: dict) -> None:
    text = json.dumps({"format": FORMAT, "block_size": len(temperatures), "temperatures": temperatures, "run": run,
                       "figures": figures}, indent=1)
    partial = Path(f"{path}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def load(path: Path, block_size: int) -> list[float]:
    """The temperatures for blocks of `block_size`. Raises ValueError for any other file."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    if document.get("format") != FORMAT:
        raise ValueError(f"{path}: format {document.get('format')!r} is not {FORMAT}")
    if document.get("block_size") != block_size:
        raise ValueError(f"{path}: fitted for blocks of {document.get('block_size')}, not of {block_size}")
    temperatures = document.get("temperatures")
    if not isinstance(temperatures, list) or len(temperatures) != block_size or not all(
            isinstance(t, (int, float)) and t > 0 for t in temperatures):
        raise ValueError(f"{path}: temperatures must be {block_size} positive numbers")
    return [float(t) for t in temperatures]
