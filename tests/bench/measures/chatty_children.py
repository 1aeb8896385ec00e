"""The CPU time to read many children that each print a line every 20 ms."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.messages import ProcessExited, ProcessOutput
from actors.ports import SpawnSpec
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, process_trees

CHATTY_RATIO_MAX = 0.5
CHATTY = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
for number in range(int(sys.argv[2])):
    print("a line of output, number", number, flush=True)
    time.sleep(0.02)
"""


def chatty_children(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    baseline = chatty_by_threads(folder / "go threads", rounds)
    lines: Any = Lines()
    go = folder / "go trees"
    with process_trees(folder / "trees") as trees:
        for number in range(rounds.children):
            trees.spawn(f"p{number}", SpawnSpec(tuple(chatty(go, rounds)), "bench"), lines)
        cpu_s = lines.cpu_s(go, rounds.children)
    name = f"CPU to read {rounds.children} chatty children"
    limit = CHATTY_RATIO_MAX * baseline * 1000
    yield Figure("output", name, cpu_s * 1000, "ms", baseline * 1000, "two threads a child", limit)


class Lines:
    """The owner of many children: it counts them, and the characters that they print."""

    def __init__(self) -> None:
        self.up = threading.Semaphore(0)
        self.over = threading.Semaphore(0)
        self.chars = 0

    def hear(self, text: str) -> None:
        """Take some text. Called on the thread that reads, or on one of those."""
        self.chars += len(text)
        if text == "up\n":
            self.up.release()

    def tell(self, message: Any) -> None:
        """Take a report of a port."""
        if isinstance(message, ProcessOutput):
            self.hear(message.text)
        elif isinstance(message, ProcessExited):
            self.over.release()

    def cpu_s(self, go: Path, children: int) -> float:
        """Seconds of this process's CPU from the moment that all may speak until all have ended."""
        for _ in range(children):
            assert self.up.acquire(timeout=WAIT_S)
        time.sleep(0.5)
        started = time.process_time()
        go.touch()
        for _ in range(children):
            assert self.over.acquire(timeout=WAIT_S)
        return time.process_time() - started


def chatty(go: Path, rounds: Rounds) -> list[str]:
    """A child that says ``up``, waits for a file, and then says line after line."""
    return [sys.executable, "-I", "-S", "-c", CHATTY, str(go), str(rounds.lines)]


def chatty_by_threads(go: Path, rounds: Rounds) -> float:
    """Seconds of CPU to read them with two threads a child, as `subprocess` has it done."""
    lines = Lines()
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        for _ in range(rounds.children):
            process = stack.enter_context(
                subprocess.Popen(chatty(go, rounds), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )

            def read(pipe: Any, process: subprocess.Popen[bytes], whole: bool) -> None:
                for line in pipe:
                    lines.hear(line.decode("utf-8", "replace"))
                if whole:
                    process.wait()
                    lines.over.release()

            for pipe, whole in ((process.stdout, True), (process.stderr, False)):
                threads.append(threading.Thread(target=read, args=(pipe, process, whole)))
                threads[-1].start()
        cpu_s = lines.cpu_s(go, rounds.children)
        for thread in threads:
            thread.join()
    return cpu_s
