"""Messages through one session, each a run of its own; texts of one run to a subscriber."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from actors import NewMessage
from actors.model import Policy
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, running, timed


def throughput(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    with running(folder, "idle") as supervisor:
        session = supervisor.session("throughput")
        messages = [NewMessage(content="x", policy=Policy.ENQUEUE, merge=False) for _ in range(rounds.messages)]

        def all_run() -> None:
            for message in messages[:-1]:
                session.tell(message)
            last = session.ask(messages[-1], timeout=WAIT_S)
            session.receipt(last.run_id, timeout=WAIT_S)

        yield Figure("throughput", "messages, a run each", rounds.messages / timed(all_run), "/s")
    with running(folder, "talks") as supervisor:
        session = supervisor.session("stream")
        heard = itertools.count()

        def all_heard() -> None:
            session.tell(NewMessage(content=str(rounds.texts)))
            for event in session.subscribe(timeout=WAIT_S):
                if event.kind == "text":
                    next(heard)
                elif event.kind == "run.ended":
                    return

        seconds = timed(all_heard)
        assert next(heard) == rounds.texts, "every text is heard"
        yield Figure("throughput", "texts streamed to a subscriber", rounds.texts / seconds, "/s")
