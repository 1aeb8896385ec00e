"""A spawn to its first byte and to the proof of its end, with and without a namespace, against a bare Popen."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.errors import Invalid
from actors.messages import ProcessEnded, ProcessOutput
from actors.ports import SpawnSpec
from supervisor.config import LAYERS
from supervisor.containment.processes.trees import ProcessTrees
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import Inbox, median_ms, process_trees, run_until_up, running, timed


def spawn_latency(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    bare = []
    for _ in range(rounds.spawns):
        started = time.perf_counter()
        with subprocess.Popen(["bash", "-c", "echo up"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            bare.append(time.perf_counter() - started)
    # By turns, so that both meet the same machine.
    taken_by: dict[str, list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as stack:
        kinds = {"trees": stack.enter_context(process_trees(folder / "trees"))}
        with contextlib.suppress(Invalid):
            layers = LAYERS | {"namespace"}
            kinds["namespaces"] = stack.enter_context(process_trees(folder / "namespaces", layers=layers))
        for number in range(rounds.spawns):
            for kind, trees in kinds.items():
                taken_by.setdefault(kind, []).append(spawned(trees, f"p{number}"))
    contained, gone = zip(*taken_by.pop("trees"), strict=True)
    with running(folder, "shell") as supervisor:
        session = supervisor.session("spawns")
        whole = [timed(lambda: run_until_up(session, "echo up")) for _ in range(rounds.spawns)]
    popen = "a bare Popen"
    yield Figure(
        "spawn", "to the first byte, with its warden, median", median_ms(contained), "ms", median_ms(bare), popen
    )
    yield Figure("spawn", "to the proof of the end, median", median_ms(gone), "ms", median_ms(bare), popen)
    for first, proof in [zip(*taken, strict=True) for taken in taken_by.values()]:
        yield Figure("spawn", "the same in a namespace, median", median_ms(first), "ms", median_ms(bare), popen)
        yield Figure("spawn", "to that proof in a namespace, median", median_ms(proof), "ms", median_ms(bare), popen)
    yield Figure("spawn", "message to the first byte's event, median", median_ms(whole), "ms", median_ms(bare), popen)


def spawned(trees: ProcessTrees, process_id: str) -> tuple[float, float]:
    """Seconds from a spawn to its first byte and to the proof of its end."""
    inbox: Any = Inbox()
    started = time.perf_counter()
    trees.spawn(process_id, SpawnSpec(("bash", "-c", "echo up"), "bench"), inbox)
    return inbox.wait(ProcessOutput) - started, inbox.wait(ProcessEnded) - started
