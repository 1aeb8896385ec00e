"""The memory of an idle actor and the rate of starts, against Pykka's actor with a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pykka
from pykka import ActorRef

from actors.kernel.actor import Actor
from actors.kernel.dispatcher import PooledDispatcher
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, resident, timed


def actors_cost(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    dispatcher = PooledDispatcher(2)
    threads = [resident_after(pykka.ThreadingActor.start, rounds.threads)]
    pooled = [resident_after(lambda: Actor.start(dispatcher=dispatcher), rounds.actors)]
    dispatcher.close()
    (each, rate), (each_thread, rate_thread) = pooled[0], threads[0]
    yield Figure("actors", "memory of an idle actor", each, "bytes", each_thread, "pykka.ThreadingActor")
    yield Figure("actors", "starts", rate, "/s", rate_thread, "pykka.ThreadingActor")


def resident_after(start: Callable[[], ActorRef[Any]], number: int) -> tuple[float, float]:
    """Start so many actors; returns the bytes of memory that each took, and how many started in a second."""
    before = resident()
    refs: list[ActorRef[Any]] = []
    seconds = timed(lambda: refs.extend(start() for _ in range(number)))
    for ref in refs[-16:]:
        # The last to be started has had its turn, or its thread runs: all are idle now.
        ref.proxy().actor_urn.get(timeout=WAIT_S)
    each = (resident() - before) / number
    for ref in refs:
        ref.stop(block=False)
    for ref in refs:
        ref._actor_weakref  # noqa: B018  # keeps the refs alive until here
    return each, number / seconds
