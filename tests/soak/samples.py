"""What the daemon needs, over time: one sample every few seconds."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from tests.soak.stand import Stand

EVERY_S: Final = 2.0
BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 60

SLACK: Final = {"memory_mb": 24.0, "threads": 12.0, "descriptors": 40.0, "processes": 40.0, "files": 60.0}
"""By how much each may be more at the end of a steady time than in its first part, beside a tenth of it."""


class Sample(Struct, frozen=True):
    """What one daemon needed at one time. `life` counts the daemons; `store_mb` grows with what is stored.

    `files` are those of the state directory, without the spool's, which are bounded by their age and size.
    """

    at_s: float
    life: int
    memory_mb: float
    threads: int
    descriptors: int
    processes: int
    files: int
    store_mb: float


class Samples:
    """Samples of a daemon, taken on a thread of their own until `end`."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._began = time.monotonic()
        self._ending = threading.Event()
        self.all: list[Sample] = []
        self._thread = threading.Thread(target=self._run, name="soak samples", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def growing(self) -> dict[str, tuple[float, float]]:
        """What grew in the last daemon's life: the medians of its second quarter and of its last one."""
        last = [sample for sample in self.all if sample.life == self.all[-1].life]
        quarter = len(last) // 4
        if quarter < 5:
            return {}
        found = {}
        for name, slack in SLACK.items():
            before, after = (
                statistics.median(float(getattr(sample, name)) for sample in part)
                for part in (last[quarter : 2 * quarter], last[-quarter:])
            )
            if after > 1.1 * before + slack:
                found[name] = (before, after)
        return found

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            life = self._stand.lives
            try:
                process = psutil.Process(self._stand.pid)
                with process.oneshot():
                    memory, threads, descriptors = process.memory_info().rss, process.num_threads(), process.num_fds()
                processes = len(process.children(recursive=True))
            except psutil.Error:
                # It is being killed or started.
                continue
            files, size = _files(self._stand.state_dir)
            at_s = round(time.monotonic() - self._began, 1)
            sample = Sample(at_s, life, memory / 2**20, threads, descriptors, processes, files, size / 2**20)
            if self._stand.lives == life:
                self.all.append(sample)


def curve(values: list[float]) -> str:
    """Return values as a line of bars, from zero; each bar is the greatest of its part."""
    width = min(WIDTH, len(values))
    bounds = [len(values) * place // width for place in range(width + 1)] if width else []
    heights = [max(values[start:end]) for start, end in itertools.pairwise(bounds)]
    top = max(heights, default=0.0) or 1.0
    return "".join(BARS[min(int(height / top * len(BARS)), len(BARS) - 1)] for height in heights)


def _files(folder: Path) -> tuple[int, int]:
    count, size = 0, 0
    for place, folders, files in os.walk(folder):
        if place == str(folder) and "spool" in folders:
            folders.remove("spool")
        count += len(files)
        if place == str(folder):
            for name in files:
                if name.startswith("store.sqlite3"):
                    try:
                        size += (folder / name).stat().st_size
                    except OSError:
                        continue
    return count, size
