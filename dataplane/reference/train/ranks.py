"""Starts the training processes of a run; what they share, and the clock they go by."""
from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch
import torch.multiprocessing as mp


class Shared:
    """Buffers that all ranks map: values, one gradient buffer per rank, loads, clocks."""

    def __init__(self, size: int, ranks: int, load_size: int, device: str = "cpu"):
        def share(n, dtype=torch.float32, where=device):
            buffer = torch.zeros(n, dtype=dtype, device=where)
            return buffer.share_memory_() if where == "cpu" else buffer
        self.values = share(size)
        self.grads = [share(size) for _ in range(ranks)]
        self.loads = share(ranks * load_size).view(ranks, load_size)
        self.numbers = share(64, torch.float64, "cpu")  # 0: elapsed training seconds; 8 + rank: weight sums


@dataclass
class Place:
    """A process among the `ranks` of a run."""

    rank: int
    ranks: int
    shared: Shared
    barrier: Any  # of threading or multiprocessing


class Clock:
    """Training time in seconds, the same in all ranks: that of rank 0, which goes on from `elapsed`."""

    def __init__(self, place: Place, elapsed: float):
        self._place, self._elapsed, self._last = place, elapsed, time.monotonic()

    def read(self) -> float:
        """All ranks call it together, and meet at a barrier again before the next call."""
        place, numbers = self._place, self._place.shared.numbers
        if place.rank == 0:
            now = time.monotonic()
            self._elapsed += now - self._last
            self._last = now
            numbers[0] = self._elapsed
        place.barrier.wait()
        return float(numbers[0])


def run(worker, shared: Shared, options) -> int:
    """Runs worker(place, options) in every one of options.ranks; the exit status.

    One rank runs in this process. When a rank fails, the others' barrier breaks and they end too.
    """
    ranks = options.ranks
    if ranks == 1:
        worker(Place(0, 1, shared, threading.Barrier(1)), options)
        return 0
    context = mp.get_context("spawn")
    barrier = context.Barrier(ranks)
    workers = [context.Process(target=worker, args=(Place(r, ranks, shared, barrier), options)) for r in range(ranks)]
    for w in workers:
        w.start()
    waiting = list(workers)
    while waiting:
        connection.wait([w.sentinel for w in waiting])
        for w in [w for w in waiting if not w.is_alive()]:
            waiting.remove(w)
            if w.exitcode:
                barrier.abort()
    return max(abs(w.exitcode or 0) for w in workers)
