"""A Stop behind a backlog of the active run's messages, in the same mailbox, against none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors import NewMessage, SessionActor, Stop
from actors.dead_letters import DeadLetters
from actors.events import TextData
from actors.kernel.dispatcher import PooledDispatcher
from actors.kernel.mailbox import Mailbox
from actors.messages import Said
from actors.model import Address, Mode
from actors.plugin.registration import Plugins
from actors.ports import Ports, Settings
from supervisor.clock import SystemClock
from supervisor.containment.processes.trees import ProcessTrees
from supervisor.executor import ThreadExecutor
from supervisor.ids import RandomIds
from supervisor.publisher import EventHub
from supervisor.store.sqlite import SqliteStore
from supervisor.strays.strays import Strays
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import GRACE_S, WAIT_S, median_ms, timed, waits

BACKLOG = 100_000
BACKLOG_RATIO_MAX = 3.0


def stop_behind_backlog(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    taken: dict[int, list[float]] = {0: [], BACKLOG: []}
    with by_hand(folder / "backlog") as (ports, dispatcher):
        plugins = Plugins({"waits": waits}, [])
        # One round to warm up; then one with and one without by turns, so that both meet the same machine.
        for number in range(2 * rounds.backlog + 2):
            backlog = BACKLOG if number % 2 else 0
            name = f"session {number}"
            ref = SessionActor.start(ports, plugins, name)
            accepted: Any = ref.ask(NewMessage(content="wait"), timeout=WAIT_S)
            address = Address(name, accepted.generation, accepted.run_id)
            dispatcher.pause()
            for place in range(backlog):
                ref.tell(Said(address, TextData(text=f"word {place}"), 0))
            dispatcher.resume()
            stop = Stop(source="user.bench", reason="measured", mode=Mode.IMMEDIATE)
            seconds = timed(lambda ref=ref, stop=stop: ref.ask(stop, timeout=WAIT_S))  # type: ignore[misc]
            if number >= 2:
                taken[backlog].append(seconds)
            # Also ends what is left of the backlog, so that the next round does not share the machine with it.
            ref.stop(timeout=WAIT_S)
    behind, alone = median_ms(taken[BACKLOG]), median_ms(taken[0])
    yield Figure("backlog", f"Stop behind {BACKLOG:,} messages, median", behind, "ms", alone, "behind none")
    yield Figure("backlog", "ratio of the medians", behind / alone, "x", limit=BACKLOG_RATIO_MAX)


class PausableDispatcher(PooledDispatcher):
    """A pool that keeps what is submitted while it is paused."""

    def __init__(self) -> None:
        super().__init__(2)
        self._kept: list[tuple[Mailbox, int, bool]] | None = None
        self._keeping = threading.Lock()

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        with self._keeping:
            if self._kept is not None:
                self._kept.append((mailbox, ticket, urgent))
                return
        super().submit(mailbox, ticket, urgent)

    def pause(self) -> None:
        """Start no turn from now on; those under way end."""
        with self._keeping:
            self._kept = []

    def resume(self) -> None:
        """Start turns again, those that were held back first."""
        with self._keeping:
            kept, self._kept = self._kept or [], None
        for entry in kept:
            super().submit(*entry)


@contextlib.contextmanager
def by_hand(folder: Path) -> Iterator[tuple[Ports, PausableDispatcher]]:
    """The real ports, without a supervisor around them, in a process that is set up as a supervisor does it."""
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        clock = SystemClock()
        undo.callback(clock.close)
        store = SqliteStore(folder / "store.sqlite3", clock=clock)
        undo.callback(store.close, WAIT_S)
        hub = EventHub(store.reader)
        undo.callback(hub.close)
        strays = Strays(clock)
        undo.callback(strays.close)
        executor = ThreadExecutor(clock, on_loop=strays.serve)
        undo.callback(executor.close, WAIT_S)
        processes = ProcessTrees(folder, clock)
        undo.callback(processes.close, WAIT_S)
        processes.start()
        dispatcher = PausableDispatcher()
        undo.callback(dispatcher.close, WAIT_S)
        settings = Settings(agent="waits", grace_s=GRACE_S)
        ids, letters = RandomIds(), DeadLetters()
        ports = Ports(clock, ids, executor, strays, processes, store, hub, dispatcher, letters, settings)
        yield ports, dispatcher
