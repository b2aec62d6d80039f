"""How a run reports: a bar on a terminal, a line per record otherwise."""
from __future__ import annotations

import shutil
import sys


def duration(seconds: float) -> str:
    """h:mm:ss"""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def line(record: dict) -> str:
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items())


def bar(stage: str, share: float, speed: float, loss: float, seconds_left: float, width: int) -> str:
    """One line of at most `width` characters; the bar takes what the figures leave."""
    share = min(max(share, 0.0), 1.0)
    head = f"{stage} {100 * share:5.1f}% "
    tail = f" {speed:,.0f} tok/s  loss {loss:.3f}  left {duration(seconds_left)}"
    room = width - len(head) - len(tail) - 2
    if room < 8:
        return (head + tail)[:width]
    full = int(room * share)
    return f"{head}[{'#' * full}{'.' * (room - full)}]{tail}"


class Progress:
    """Writes to `out`. A record that is more than a step's figures is always a line of its own."""

    def __init__(self, out=None):
        self._out = sys.stdout if out is None else out
        self._bar = self._out.isatty()

    def show(self, stage: str, share: float, speed: float, loss: float, seconds_left: float, record: dict) -> None:
        """share of the run done in [0, 1], speed in tokens/s."""
        if not self._bar:
            self.note(record)
            return
        width = shutil.get_terminal_size().columns - 1
        self._out.write("\r\x1b[K" + bar(stage, share, speed, loss, seconds_left, width))
        self._out.flush()

    def note(self, record: dict) -> None:
        self._out.write(("\r\x1b[K" if self._bar else "") + line(record) + "\n")
        self._out.flush()
