"""A Stop of a child that ends at SIGTERM, to the event of the durable receipt; and each hop on the way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from actors import Stop
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import (
    POLITE,
    POLITE_MAX_MS,
    WAIT_S,
    commit_floor,
    killed,
    median_ms,
    p95_ms,
    run_until_up,
    running,
)


def polite_stop(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    hops: list[list[float]] = []
    with running(folder, "shell") as supervisor:
        session = supervisor.session("polite")
        for _ in range(rounds.polite):
            run_id = run_until_up(session, POLITE)
            with session.subscribe(from_seq=session.status().last_seq, timeout=WAIT_S) as events:
                # By the wall clock, as all times in a receipt are.
                at = [time.time()]  # noqa: TID251
                session.tell(Stop(source="user.bench", reason="measured"))
                next(event for event in events if event.kind == "run.ended" and event.run_id == run_id)
                heard = time.time()  # noqa: TID251
            receipt = session.receipt(run_id)
            (tree,) = [row for call in receipt.rows for row in call.rows]
            assert receipt.complete, "what is timed is a proof"
            assert tree.ended_at is not None, "it is complete"
            at += [receipt.fenced_at, tree.signals[0].at, tree.ended_at, receipt.ended_at, heard]
            hops.append([after - before for before, after in itertools.pairwise(at)])
    whole = [sum(one) for one in hops]
    kills, floor = killed(rounds), commit_floor(folder, rounds)
    name = "a polite child: ask to receipt durable"
    yield Figure(
        "polite stop", f"{name}, median", median_ms(whole), "ms", median_ms(kills), "SIGTERM, wait()", POLITE_MAX_MS
    )
    yield Figure("polite stop", f"{name}, p95", p95_ms(whole), "ms", p95_ms(kills), "SIGTERM, wait()")
    names = ("asked to fenced", "to SIGTERM sent", "to the tree proven empty", "to the receipt decided", "to durable")
    for name, taken in zip(names, zip(*hops, strict=True), strict=True):
        commit = (p95_ms(floor), "one row in SQLite, FULL") if name == "to durable" else (None, "")
        yield Figure("polite stop", f"  {name}, median", median_ms(list(taken)), "ms")
        yield Figure("polite stop", f"  {name}, p95", p95_ms(list(taken)), "ms", *commit)
