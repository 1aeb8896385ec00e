"""An immediate kill of a thousand processes in as many sessions, to its proof; and the kill of a polite child."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.messages import ProcessEnded, ProcessOutput
from actors.ports import SpawnSpec
from supervisor.config import LAYERS
from supervisor.containment.guard import cgroups
from supervisor.containment.processes.trees import ProcessTrees
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import POLITE, POLITE_MAX_MS, Inbox, killed, median_ms, process_trees
from tests.process_kit import ESCAPE

TREE = 1000
TREE_RATIO_MAX = 2.0
TREE_RATIO_PLAIN_MAX = 4.0


def big_trees(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    # By turns, so that all meet the same machine.
    taken: dict[str, list[float]] = {"bare": [], "cgroup": [], "plain": []}
    polite = []
    base = cgroups.prepare(str(folder))[0]
    with (
        process_trees(folder / "cgroup") as with_group,
        process_trees(folder / "plain", layers=LAYERS - {"cgroup"}) as without,
    ):
        for number in range(rounds.trees):
            if base is not None:
                taken["bare"].append(bare_group_kill(os.path.join(base, "bare")))
                taken["cgroup"].append(tree_kill(with_group, f"p{number}"))
            taken["plain"].append(tree_kill(without, f"p{number}"))
        for number in range(rounds.polite):
            inbox: Any = Inbox()
            with_group.spawn(f"polite{number}", SpawnSpec(("bash", "-c", POLITE), "bench"), inbox)
            inbox.wait(ProcessOutput)
            started = time.perf_counter()
            with_group.kill(f"polite{number}", 10.0)
            polite.append(inbox.wait(ProcessEnded) - started)
    bare = None
    against = ""
    if base is not None:
        cgroups.leave(base)
        bare, against = median_ms(taken["bare"]), "a bare cgroup.kill and rmdir"
        kill = median_ms(taken["cgroup"])
        yield Figure("trees", f"{TREE:,} that escaped, killed and proven", kill, "ms", bare, against)
        yield Figure("trees", "ratio", kill / bare, "x", limit=TREE_RATIO_MAX)
    plain = median_ms(taken["plain"])
    yield Figure("trees", "the same without cgroups", plain, "ms", bare, against)
    if bare is not None:
        yield Figure("trees", "ratio without cgroups", plain / bare, "x", limit=TREE_RATIO_PLAIN_MAX)
    yield Figure(
        "trees",
        "a polite child: kill to proof, median",
        median_ms(polite),
        "ms",
        median_ms(killed(rounds)),
        "SIGTERM, wait()",
        POLITE_MAX_MS,
    )


def tree_kill(trees: ProcessTrees, process_id: str) -> float:
    """Seconds from an immediate kill of a big tree to its proof."""
    inbox: Any = Inbox()
    trees.spawn(process_id, SpawnSpec((sys.executable, "-S", "-c", ESCAPE, str(TREE)), "bench"), inbox)
    inbox.wait(ProcessOutput)
    started = time.perf_counter()
    trees.kill(process_id, 0.0)
    ended: float = inbox.wait(ProcessEnded)
    return ended - started


def bare_group_kill(group: str) -> float:
    """Seconds that the kernel alone takes for the same tree: cgroup.kill and rmdir, until rmdir succeeds."""
    os.mkdir(group)
    join = f'echo 0 > {group}/cgroup.procs; exec "$0" "$@"'
    argv = ["sh", "-c", join, sys.executable, "-S", "-c", ESCAPE, str(TREE)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.perf_counter()
        while True:
            cgroups.write(os.path.join(group, "cgroup.kill"), "1")
            with contextlib.suppress(OSError):
                os.rmdir(group)
                return time.perf_counter() - started
