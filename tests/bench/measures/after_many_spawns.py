"""Leaks: after many trees were killed there are as many descriptors, threads and processes as before."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.messages import ProcessEnded, ProcessOutput
from actors.ports import SpawnSpec
from supervisor.containment.guard import procfs
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import Inbox, process_trees, resident


def after_many_spawns(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    with process_trees(folder / "many") as trees:

        def kill_some(first: int, count: int) -> dict[str, float]:
            for number in range(first, first + count):
                inbox: Any = Inbox()
                script = "setsid sleep 100 & sleep 100 & echo up; wait"
                trees.spawn(f"p{number}", SpawnSpec(("sh", "-c", script), "bench"), inbox)
                inbox.wait(ProcessOutput)
                trees.kill(f"p{number}", 0.0)
                inbox.wait(ProcessEnded)
                trees.forget(f"p{number}")
            time.sleep(0.5)
            (zygote,) = procfs.children(os.getpid())
            return {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(),
                "wardens": len(procfs.children(zygote)),
                "ledgers": len(list((folder / "many" / "wardens").glob("*.ledger"))),
                "zombies": sum(1 for pid in procfs.children(zygote) if (s := procfs.stat(pid)) and s.state == "Z"),
                "MB": round(resident() / 1e6, 1),
            }

        before = kill_some(0, 50)
        after = kill_some(50, rounds.leaks)
    for kind, unit in (("descriptors", ""), ("threads", ""), ("wardens", ""), ("ledgers", ""), ("zombies", "")):
        limit = before[kind] + 0.5
        yield Figure("leaks", f"{kind} after {rounds.leaks:,} more", after[kind], unit, before[kind], "before", limit)
    limit = before["MB"] + 8.0
    yield Figure("leaks", f"memory after {rounds.leaks:,} more", after["MB"], "MB", before["MB"], "before", limit)
