"""The files of a run, the same for every device and number of ranks, so that one can resume the other's.

    values.pt              all weights, flat fp32
    <stem><rank>.pt        the optimiser state of the weights a rank owns, and the counters
                           {"optimiser": {name: tensor}, "step_count", "ranks", ...counters}
    <file>.partial         being written; counts for nothing unless `saved` names the file
    saved                  names of the files of a save, one a line; there only while they are put in place
    log.jsonl              what the run reported
    scores<rank>.json, draft-eval<rank>.pt   what a rank has measured, on its way to rank 0

A save is all or nothing: every rank writes its file aside, then rank 0 writes `saved` and puts all files in place.
A run that is killed before that has its last save untouched; one that is killed after it is completed by `finish_save`.
"""
from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from .ranks import Place

VALUES, SAVED, LOG = "values.pt", "saved", "log.jsonl"


def finish_save(folder: Path) -> None:
    """Completes a save that was interrupted. To be called before the ranks start and before values are read."""
    if not (folder / SAVED).exists():
        return
    for name in (folder / SAVED).read_text(encoding="utf-8").split():
        if (folder / f"{name}.partial").exists():
            os.replace(folder / f"{name}.partial", folder / name)
    (folder / SAVED).unlink()


def save(folder: Path, stem: str, place: Place, optimiser, counters: dict) -> None:
    """Saves the shared values, this rank's optimiser state and the counters. All ranks call it together."""
    place.barrier.wait()
    tensors = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
               for name, tensor in optimiser.state.items()}
    torch.save({"optimiser": tensors, "step_count": optimiser.step_count, "ranks": place.ranks, **counters},
               folder / f"{stem}{place.rank}.pt.partial")
    if place.rank == 0:
        torch.save(place.shared.values.detach().cpu().clone(), folder / f"{VALUES}.partial")
    place.barrier.wait()
    if place.rank == 0:
        names = [VALUES, *(f"{stem}{rank}.pt" for rank in range(place.ranks))]
        (folder / f"{SAVED}.partial").write_text("\n".join(names), encoding="utf-8")
        os.replace(folder / f"{SAVED}.partial", folder / SAVED)
        finish_save(folder)
    place.barrier.wait()


def load_values(folder: Path, values: torch.Tensor) -> None:
    values.copy_(torch.load(folder / VALUES, map_location="cpu"))


def exists(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}0.pt").exists()


def load_counters(folder: Path, stem: str) -> dict:
    saved = torch.load(folder / f"{stem}0.pt", map_location="cpu")
    del saved["optimiser"]
    return saved


def load(folder: Path, stem: str, optimiser) -> dict:
    """Fills the optimiser and returns the counters of rank 0. Weights may have moved between ranks."""
    first = torch.load(folder / f"{stem}0.pt", map_location="cpu")
    # Files of ranks that the last save did not have are leftovers; files of before `ranks` was kept count two.
    paths = [folder / f"{stem}{rank}.pt" for rank in range(1, first.pop("ranks", 2))]
    for saved in [first, *(torch.load(path, map_location="cpu") for path in paths)]:
        for name, tensor in saved["optimiser"].items():
            if name in optimiser.state:
                optimiser.state[name].copy_(tensor)
    optimiser.step_count = first["step_count"]
    del first["optimiser"]
    return first


def log(folder: Path, record: dict) -> dict:
    """Appends to log.jsonl; the record."""
    with open(folder / LOG, "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")
    return record
