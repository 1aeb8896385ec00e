"""A spawn to its first byte in a process with many threads and much memory, against a posix_spawn."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.messages import ProcessEnded, ProcessOutput
from actors.ports import SpawnSpec
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import Inbox, median_ms, process_trees

SPAWN_RATIO_MAX = 3.0
DAEMON_THREADS = 200
DAEMON_BYTES = 500_000_000


def spawn_from_a_big_daemon(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    memory = bytearray(DAEMON_BYTES)
    memory[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(range(0, DAEMON_BYTES, os.sysconf("SC_PAGE_SIZE")))
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(DAEMON_THREADS)]
    for thread in threads:
        thread.start()
    bare, contained = [], []
    try:
        with process_trees(folder / "big") as trees:
            for number in range(rounds.spawns):
                bare.append(posix_spawn_to_first_byte())
                # A daemon spawns now and then; in between it has the time to make the next warden ready.
                time.sleep(0.05)
                inbox: Any = Inbox()
                started = time.perf_counter()
                trees.spawn(f"p{number}", SpawnSpec(("/bin/echo", "up"), "bench"), inbox)
                contained.append(inbox.wait(ProcessOutput) - started)
                inbox.wait(ProcessEnded)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    ours, theirs = median_ms(contained), median_ms(bare)
    against = "a bare posix_spawn"
    yield Figure("spawn", "of a big daemon, to the first byte, median", ours, "ms", theirs, against)
    yield Figure("spawn", "ratio", ours / theirs, "x", limit=SPAWN_RATIO_MAX)


def posix_spawn_to_first_byte() -> float:
    """Seconds from a posix_spawn to the first byte of the child's output."""
    readable, writable = os.pipe()
    started = time.perf_counter()
    actions = [(os.POSIX_SPAWN_DUP2, writable, 1)]
    pid = os.posix_spawn("/bin/echo", ["echo", "up"], dict(os.environ), file_actions=actions, setsid=True)
    os.close(writable)
    os.read(readable, 1)
    seconds = time.perf_counter() - started
    os.waitpid(pid, 0)
    os.close(readable)
    return seconds
