"""Starts the training processes of a run and what they share."""
from __future__ import annotations

import threading
from multiprocessing import connection

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


def run(worker, shared: Shared, options) -> int:
    """Runs worker(rank, options.ranks, shared, barrier, options) in every rank; the exit status.

    One rank runs in this process. When a rank fails, the others' barrier breaks and they end too.
    """
    ranks = options.ranks
    if ranks == 1:
        worker(0, 1, shared, threading.Barrier(1), options)
        return 0
    context = mp.get_context("spawn")
    barrier = context.Barrier(ranks)
    workers = [context.Process(target=worker, args=(r, ranks, shared, barrier, options)) for r in range(ranks)]
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
