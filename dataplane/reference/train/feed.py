"""Training rows, made in this process or by background processes through bounded queues."""
from __future__ import annotations

import multiprocessing
import os
import queue

from .data import mix
from .tokenizer import Tokenizer

QUEUE_BATCHES = 4  # that wait per process at most


class Inline:
    """Rows are made when they are asked for: on a CPU the cores are the trainer's anyway."""

    def __init__(self, tokenizer: Tokenizer, name: str, length: int, rows: int, seed: str):
        self._stream, self._rows = mix.Stream(tokenizer, name, length, seed), rows

    def next(self) -> dict:
        """Arrays [rows, length] as mix.Stream.batch gives them."""
        return self._stream.batch(self._rows)

    def close(self) -> None:
        pass


def _produce(rows_queue, tokenizer_path: str, name: str, length: int, rows: int, seed: str) -> None:
    stream = mix.Stream(Tokenizer.load(tokenizer_path), name, length, seed)
    while True:
        rows_queue.put(stream.batch(rows))


class Background:
    """`workers` processes with a stream and a queue each, read in turn, so that a seed gives the same rows."""

    def __init__(self, tokenizer_path: str, name: str, length: int, rows: int, seed: str, workers: int):
        context = multiprocessing.get_context("spawn")
        self._queues = [context.Queue(QUEUE_BATCHES) for _ in range(workers)]
        self._processes = [context.Process(target=_produce, daemon=True,
                                           args=(rows_queue, tokenizer_path, name, length, rows, f"{seed}-{i}"))
                           for i, rows_queue in enumerate(self._queues)]
        for process in self._processes:
            process.start()
        self._turn = 0

    def next(self) -> dict:
        turn, self._turn = self._turn, (self._turn + 1) % len(self._queues)
        while True:
            try:
                return self._queues[turn].get(timeout=10)
            except queue.Empty as error:
                if not self._processes[turn].is_alive():
                    raise RuntimeError("a process that makes training rows has died") from error

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


def open_feed(workers: int, tokenizer: Tokenizer, tokenizer_path, name: str, length: int, rows: int, seed: str):
    """`workers` background processes, or none for rows made in this process."""
    if workers:
        return Background(str(tokenizer_path), name, length, rows, seed, workers)
    return Inline(tokenizer, name, length, rows, seed)


def default_workers(device: str) -> int:
    """None on a CPU. A GPU trains faster than one process makes rows."""
    return max(1, min(12, (os.cpu_count() or 2) - 2)) if device == "cuda" else 0
