"""What tests of a whole supervisor share: a real one in a directory of its own, and what it may leave behind.

Processes of a test carry a mark in their command line or their environment, so that a test can say that nobody is
left, and so that whatever a failing test left is killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from pykka import ActorRef
from pykka.messages import ProxyCall

from actors import NewMessage, Receipt, Row, Stop, Stopped
from actors.errors import StoreUnavailable
from actors.model import Event
from actors.plugin.registration import Unloaded
from actors.ports import Snapshot
from actors.run_status import TERMINAL
from supervisor import Config, SessionHandle, Supervisor
from supervisor.agent import Agent
from supervisor.containment.guard import procfs
from supervisor.store.groups import GroupWriter
from supervisor.store.sqlite import SqliteStore
from tests.process_kit import until as poll
from tests.sim.laws import SPOKEN

GRACE_S = 0.3
KILL_S = 15.0
WAIT_S = 60.0
YEAR_S = 365 * 86_400.0

OUTPUT_KINDS = SPOKEN - {"message"}


def until(condition: Callable[[], Any], what: str = "the condition", timeout: float = WAIT_S) -> None:
    """Poll a condition with a deadline; fail when it does not come true."""
    poll(condition, what, timeout)


def alive(mark: str) -> list[int]:
    """Pids of the processes, zombies aside, that have the mark in their command line or environment."""
    needle, found = mark.encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            seen = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        stat = procfs.stat(int(name))
        if needle in seen and stat is not None and stat.state not in "ZX":
            found.append(int(name))
    return found


def rows(receipt: Receipt) -> list[Row]:
    """Every row of a receipt, those below others too."""

    def walk(some: Iterable[Row]) -> Iterator[Row]:
        for row in some:
            yield row
            yield from walk(row.rows)

    return list(walk(receipt.rows))


def stop(session: SessionHandle, reason: str = "the test says so", **options: Any) -> Stopped:
    """Ask for a Stop and return its answer, once it is on record: what is read behind it then has it."""
    return ask_stop(session, Stop(source="user.test", reason=reason, **options))


def ask_stop(session: SessionHandle, request: Stop) -> Stopped:
    """Ask for a Stop, again if a slow disk had it answered ahead of its record, and return the answer that stays."""
    answers: list[Stopped] = []

    def is_durable() -> bool:
        answers.append(session.ask(request, timeout=WAIT_S))
        return answers[-1].durable

    until(is_durable, "a Stop on record")
    return answers[-1]


def message(content: str, **options: Any) -> NewMessage:
    """A NewMessage, its enums as plain words."""
    return NewMessage(content=content, **options)


def poison(ref: ActorRef[Any]) -> None:
    """Send an actor what its handler fails on, whatever actor it is."""
    ref.tell(ProxyCall(attr_path=("no such attribute",), args=(), kwargs={}))


def say(session: SessionHandle, content: str = "go", **options: Any) -> str:
    """Send a message and return its run's id."""
    accepted = session.ask(NewMessage(content=content, **options), timeout=WAIT_S)
    assert accepted.run_id is not None
    return accepted.run_id


def log(session: SessionHandle) -> list[Event]:
    """All events that the store holds of a session, as a fresh subscriber is given them."""
    last = session.status().last_seq
    events: list[Event] = []
    if last:
        with session.subscribe(timeout=WAIT_S) as subscription:
            for event in subscription:
                events.append(event)
                if event.seq >= last:
                    break
    return events


def settled(session: SessionHandle) -> None:
    """Wait until nothing runs, ends or is about to start."""
    until(
        lambda: (status := session.status()).state == "idle" and (status.waiting == 0 or status.parked),
        f"{session.session} at rest",
    )
    until(lambda: all(run.status in TERMINAL for run in session.runs() if run.status != "queued"), "runs at rest")


def check_log(events: Sequence[Event]) -> None:
    """Check what holds of every log: no gap, nothing said past a fence, one result a call, one end a run."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    generation = 0
    ends: Counter[str | None] = Counter()
    receipts: Counter[str | None] = Counter()
    results: Counter[str] = Counter()
    asked: list[str] = []
    for event in events:
        if event.kind in ("session.fenced", "run.started"):
            assert event.generation >= generation
            generation = event.generation
        if event.kind in OUTPUT_KINDS:
            assert event.generation == generation, f"{event} came after the fence"
            assert ends[event.run_id] == 0, f"{event} came after its run's end"
        if event.kind == "tool.requested":
            asked.append(event.data["call_id"])
        if event.kind == "tool.ended":
            results[event.data["call_id"]] += 1
        if event.kind == "run.status" and event.data["status"] in TERMINAL:
            ends[event.run_id] += 1
        if event.kind == "run.ended":
            receipts[event.run_id] += 1
    assert all(count == 1 for count in ends.values()), ends
    assert all(count == 1 for count in receipts.values()), receipts
    assert all(results[call] <= 1 for call in asked)
    assert set(results) <= set(asked)


def check_rest(session: SessionHandle) -> list[Event]:
    """Wait until a session rests, check its log, and that each call has its result. Returns the log."""
    settled(session)
    events = log(session)
    check_log(events)
    asked = {event.data["call_id"] for event in events if event.kind == "tool.requested"}
    ended = {event.data["call_id"] for event in events if event.kind == "tool.ended"}
    assert asked == ended
    return events


def fates(events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """The ids of messages that became inputs, and of those that were returned, in order of the log."""
    inputs = [event.data["id"] for event in events if event.kind == "message"]
    returned = [event.data["message_id"] for event in events if event.kind == "session.message_returned"]
    return inputs, returned


class Listener:
    """A subscriber on a thread of its own that keeps what it is given."""

    def __init__(self, session: SessionHandle, **options: Any) -> None:
        self.events: list[Event] = []
        self.subscription = session.subscribe(**options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for event in self.subscription:
            self.events.append(event)

    def close(self) -> list[Event]:
        """End it and return what it was given."""
        self.subscription.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.events


class Kit:
    """A supervisor for a test, on a directory that another one can be started on after it."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.mark = f"CM_TEST_{uuid.uuid4().hex}"
        self.supervisor: Supervisor | None = None
        self._releases: list[threading.Event] = []

    def start(self, agent: Callable[..., Any] | Agent | Unloaded | None = None, **options: Any) -> Supervisor:
        """Start a supervisor with short graces; `agent` is the function that runs messages, else it is the shell."""
        assert self.supervisor is None, "one at a time"
        chosen: dict[str, Any] = {"grace_s": GRACE_S, "kill_s": KILL_S, "drain_s": 0.1, **options}
        if agent is not None:
            chosen.update(agents={"test": agent}, agent="test")
        self.supervisor = Supervisor.start(Config(state_dir=self.state_dir, **chosen))
        return self.supervisor

    def session(self, agent: Callable[..., Any] | None = None, *, name: str = "s1", **options: Any) -> SessionHandle:
        """Start a supervisor and return a session of it."""
        return self.start(agent, **options).session(name)

    def script(self, text: str) -> str:
        """A shell script whose processes carry the mark."""
        return f"export {self.mark}=1\n{text}"

    def alive(self) -> list[int]:
        """Pids of the processes of this test that run."""
        return alive(self.mark)

    def gate(self) -> threading.Event:
        """An event that is set when the test is over, so that nobody waits on it for ever."""
        event = threading.Event()
        self._releases.append(event)
        return event

    def keep_busy(self, ref: ActorRef[Any]) -> threading.Event:
        """Keep an actor in its turn, so that its mailbox fills, until the event that this returns is set."""
        held, release = threading.Event(), self.gate()

        def block() -> None:
            held.set()
            release.wait()

        # A message of Pykka's own kind.
        actor: Any = ref._actor_weakref()
        actor.block = block
        ref.tell(ProxyCall(attr_path=("block",), args=(), kwargs={}))
        assert held.wait(WAIT_S)
        return release

    def fire(self, kind: type[Struct]) -> None:
        """Have the timers of a kind fire now: a deadline that is far away comes when the test says so, and not before.

        Waits until there is one: what it is the deadline of may begin before it is set.
        """
        assert self.supervisor is not None
        clock, timers = self.supervisor._clock, list[Any]()

        def found() -> bool:
            with clock._changed:
                entries = [timer for _, _, timer in clock._heap if timer.ref is not None]
                timers[:] = [(timer, timer.ref, timer.message) for timer in entries if isinstance(timer.message, kind)]
                for timer, _, _ in timers:
                    timer.cancel()
            return bool(timers)

        until(found, f"a {kind.__name__}")
        for _, ref, fired in timers:
            ref.tell(fired)

    def close(self, drain_s: float | None = None) -> bool:
        """End the supervisor; another may be started after it."""
        supervisor, self.supervisor = self.supervisor, None
        return supervisor.close(drain_s) if supervisor is not None else True

    def clean(self) -> None:
        """End everything, also what a failing test left."""
        for event in self._releases:
            event.set()
        try:
            self.close(0.0)
        finally:
            for pid in self.alive():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


class StoreFaults:
    """The real store, whose writes can be made to fail, and whose reads of a session can be made to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = False
        self.failures = 0
        self.may_read = threading.Event()
        self.may_read.set()
        write, read = GroupWriter.write, SqliteStore._snapshot

        def failing_write(groups: GroupWriter, connection: sqlite3.Connection, group: list[Any]) -> bool:
            if self.failing:
                self.failures += 1
                raise sqlite3.OperationalError("disk I/O error")
            return write(groups, connection, group)

        def waiting_read(store: SqliteStore, connection: sqlite3.Connection, session: str) -> Snapshot:
            assert self.may_read.wait(WAIT_S), "whoever makes reads wait lets them go"
            return read(store, connection, session)

        monkeypatch.setattr(GroupWriter, "write", failing_write)
        monkeypatch.setattr(SqliteStore, "_snapshot", waiting_read)

    def fail(self, session: SessionHandle) -> None:
        """Let writes fail from here on, and let the session find that out."""
        self.failing = True
        with pytest.raises(StoreUnavailable):
            session.ask(NewMessage(content="nobody can store it", policy="enqueue", origin="bot"), timeout=WAIT_S)

    def fail_again(self) -> None:
        """Wait until what was decided since the failure could not be stored either."""
        seen = self.failures
        until(lambda: self.failures > seen, "the store is tried again")


class ClockSteps:
    """Sets the machine's wall clock, as far as this process can tell, while time goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        seconds, nanoseconds = time.time, time.time_ns  # noqa: TID251  # it is what the adapters ask
        monkeypatch.setattr(time, "time", lambda: seconds() + self.ahead_s)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(self.ahead_s * 1e9))

    def by(self, seconds: float) -> None:
        """Set it on, or back, by so many seconds."""
        self.ahead_s += seconds


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ClockSteps:
    """A wall clock that may be set."""
    return ClockSteps(monkeypatch)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> StoreFaults:
    """Faults of the real store."""
    return StoreFaults(monkeypatch)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """A Kit that is cleaned whatever happens."""
    made = Kit(tmp_path / "state")
    try:
        yield made
    finally:
        made.clean()
