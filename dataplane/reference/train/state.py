"""The files of a run, the same for every device and number of ranks, so that one can resume the other's.

    values.pt              all weights, flat fp32
    <stem><rank>.pt        the optimiser state of the weights a rank owns, and the counters
                           {"optimiser": {name: tensor}, "step_count", "ranks", ...counters}
"""
from __future__ import annotations

import os
from pathlib import Path

import torch


def write(value, path: Path) -> None:
    """All or nothing, so that a run that is killed while saving still resumes."""
    torch.save(value, f"{path}.partial")
    os.replace(f"{path}.partial", path)


def save(folder: Path, stem: str, rank: int, ranks: int, optimiser, counters: dict) -> None:
    state = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
             for name, tensor in optimiser.state.items()}
    write({"optimiser": state, "step_count": optimiser.step_count, "ranks": ranks, **counters},
          folder / f"{stem}{rank}.pt")


def save_values(folder: Path, values: torch.Tensor) -> None:
    write(values.detach().cpu().clone(), folder / "values.pt")


def load_values(folder: Path, values: torch.Tensor) -> None:
    values.copy_(torch.load(folder / "values.pt", map_location="cpu"))


def exists(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}0.pt").exists()


def load(folder: Path, stem: str, optimiser) -> dict:
    """Fills the optimiser and returns the counters of rank 0. Weights may have moved between ranks."""
    first = torch.load(folder / f"{stem}0.pt", map_location="cpu")
    # Files of ranks that the last save did not have are leftovers; files of before `ranks` was kept count two.
    paths = [folder / f"{stem}{rank}.pt" for rank in range(1, first.pop("ranks", 2))]
    for saved in [first, *(torch.load(path, map_location="cpu") for path in paths if path.exists())]:
        for name, tensor in saved["optimiser"].items():
            if name in optimiser.state:
                optimiser.state[name].copy_(tensor)
    optimiser.step_count = first["step_count"]
    del first["optimiser"]
    return first
