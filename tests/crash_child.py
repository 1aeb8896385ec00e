"""The child of the crash tests: a supervisor under load that tells what it is given, and may kill itself at a point.

The points are *inside* what must not be torn. A stage of a step, for each kind of event in it:

    commit      before a batch is handed to the store; `committed` when it is durable and nobody knows
    publish     before its events are published; `published` before its requests are answered
    answered    when an answer came, before it is told

and the stages of what a step starts:

    agent, call before the executor is asked to start one; `agent-started`, `call-started` after it
    spawn       before the port is asked; `ledger` with the ledger created and nothing sent; `sent` with the request
                on its way to the zygote; `running` when the warden has said that the command runs
    kill        before a tree is told to end; `killing` after it
    forget      before a ledger is removed; `forgotten` after it

A point is named ``stage`` or ``stage:kind``, with ``@n`` for its n-th time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from actors.model import Event
from actors.ports import SpawnSpec
from actors.requests import OutsideRequest, Reply
from supervisor import SessionHandle, Supervisor
from supervisor import supervisor as embedding
from supervisor.containment.processes.trees import ProcessTrees
from supervisor.executor import ThreadExecutor
from supervisor.publisher import EventHub
from supervisor.store.sqlite import SqliteStore
from tests.crash_kit import SESSIONS, SHARED, SHARERS, Scripts, config, fingerprint, unpack_request
from tests.load import ASK_S, Client

_out = threading.Lock()


def tell(**line: Any) -> None:
    """Tell the parent, before anything else is done with what is told."""
    data = json.dumps(line).encode() + b"\n"
    with _out:
        while data:
            data = data[os.write(1, data) :]


class Points:
    """Where the child is to kill itself."""

    def __init__(self, die_at: str | None) -> None:
        self._name, _, number = (die_at or "").partition("@")
        self._number = int(number or 1)
        self._lock = threading.Lock()
        self._seen = 0

    def reach(self, stage: str, kinds: Iterable[str] = ()) -> None:
        """Pass a point, or die at it."""
        names = {stage, *(f"{stage}:{kind}" for kind in kinds)}
        if self._name not in names:
            return
        with self._lock:
            self._seen += 1
            if self._seen != self._number:
                return
        tell(told="dying", at=self._name)
        os.kill(os.getpid(), signal.SIGKILL)


points = Points(None)


class DyingStore(SqliteStore):
    """The store, with points before the hand-over and behind the commit."""

    def commit(self, batch: Any, owner: Any) -> None:
        points.reach("commit", _kinds(batch.events))
        super().commit(batch, owner)

    def _tell_all(self, group: Any) -> None:
        points.reach("committed", _kinds(event for commit in group for event in commit.batch.events))
        super()._tell_all(group)


class DyingHub(EventHub):
    """The hub, with points around publishing."""

    def publish(self, session: str, events: Sequence[Event]) -> None:
        points.reach("publish", _kinds(events))
        super().publish(session, events)
        points.reach("published", _kinds(events))


class DyingExecutor(ThreadExecutor):
    """The executor, with points around each start."""

    def start(self, key: str, name: str, isolation: Any, body: Any, owner: Any, *more: Any) -> None:
        what = name.partition(" ")[0].replace("tool", "call")
        points.reach(what)
        super().start(key, name, isolation, body, owner, *more)
        points.reach(f"{what}-started")


class DyingTrees(ProcessTrees):
    """The processes, with points along the way of a spawn."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _reach_around(self._launcher, "launch", "ledger", "sent")
        _reach_around(self._words, "on_started", "running")

    def spawn(self, process_id: str, spec: SpawnSpec, owner: Any, session: str = "") -> None:
        points.reach("spawn")
        super().spawn(process_id, spec, owner, session)

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        points.reach("kill")
        super().kill(process_id, grace_s, session)
        points.reach("killing")

    def _forget(self, process_id: str) -> None:
        points.reach("forget")
        super()._forget(process_id)
        points.reach("forgotten")


def _reach_around(part: Any, name: str, before: str, after: str | None = None) -> None:
    """Have a method of one part reach a point before it, and one after it."""
    method = getattr(part, name)

    def reaching(*arguments: Any) -> None:
        points.reach(before)
        method(*arguments)
        if after is not None:
            points.reach(after)

    setattr(part, name, reaching)


def _kinds(events: Iterable[Event]) -> set[str]:
    return {event.kind for event in events}


# ── The load ──────────────────────────────────────────────────────────────────────────────────────


def answered(answer: Reply) -> None:
    """An answer came, and nobody was told."""
    points.reach("answered", [type(answer).__name__])


def follow(session: SessionHandle) -> None:
    """Tell every event of a session."""
    for event in session.subscribe(from_seq=0):
        tell(told="event", session=session.session, event=fingerprint(event))


def look_at_parked(session: SessionHandle) -> None:
    """A stop of an earlier life parked what waited here, if anything did: it has to be parked still."""
    status = session.status(timeout=ASK_S)
    if status.waiting or status.run_id is not None:
        kept = status.parked and status.run_id is None
        tell(told="parked", session=session.session, waiting=status.waiting, kept=kept)


def main() -> None:
    """Run until killed."""
    global points  # noqa: PLW0603  # the wrapped ports are constructed by the supervisor, which knows no points
    faulthandler.enable()
    orders = json.loads(sys.argv[1])
    points = Points(orders["die_at"])
    ports = {
        "SqliteStore": DyingStore,
        "EventHub": DyingHub,
        "ThreadExecutor": DyingExecutor,
        "ProcessTrees": DyingTrees,
    }
    for name, dying in ports.items():
        assert hasattr(embedding, name), f"the supervisor constructs no {name}"
        setattr(embedding, name, dying)
    folder = Path(orders["folder"])
    scripts = Scripts(folder, orders["mark"])
    old: dict[str, list[OutsideRequest]] = {name: [] for name in (*SESSIONS, SHARED)}
    for sent in orders["resend"]:
        old[sent["session"]].append(unpack_request(sent["request"]))
    running = Supervisor.start(config(folder / "state"))
    tell(told="ready", pid=os.getpid())
    if orders["only"] is not None:
        client = Client(running.session(SESSIONS[0]), scripts, orders["seed"], tell, answered=answered)
        client.again([unpack_request(request) for request in orders["only"]])
        signal.pause()
    for name in (*SESSIONS, SHARED):
        threading.Thread(target=follow, args=(running.session(name),), name=f"follow {name}").start()
    for name, place in (*((name, 0) for name in SESSIONS), *((SHARED, place) for place in range(SHARERS))):
        session = running.session(name)
        client = Client(session, scripts, orders["seed"], tell, answered=answered, place=place)

        def live(client: Client = client, session: SessionHandle = session, place: int = place) -> None:
            if session.session in orders["parked"]:
                look_at_parked(session)
            client.again(old[session.session][place::SHARERS] if session.session == SHARED else old[session.session])
            client.load()

        threading.Thread(target=live, name=f"load {name}").start()
    # The threads never end; the kill does.
    signal.pause()


if __name__ == "__main__":
    main()
