"""Backends of a chat: a running daemon, else a supervisor of the chat's own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Protocol, overload

from msgspec import Struct

from actors.errors import StoreUnavailable
from actors.model import LIVE, Event, Receipt, RunInfo, SessionStatus
from actors.requests import Accepted, NewMessage, Stop, Stopped
from supervisor.config import Config
from supervisor.console.tty.screen import Screen
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import STORE_NAME
from supervisor.supervisor import Supervisor

RECEIPT_SLACK_S: Final = 5.0
"""How long after the last deadline of a stop its receipt is waited for."""
QUIET_CLOSE_S: Final = 0.5
"""How long closing may take before a line says what it is about."""


class Before(Struct, frozen=True):
    """The state of a session before the chat."""

    last_seq: int = 0
    cut_off: tuple[RunInfo, ...] = ()
    waiting: int = 0
    parked: bool = False


class BackendLimits(Struct, frozen=True):
    """The limits of a backend, in seconds and bytes; None if only the daemon knows."""

    grace_s: float | None = None
    ending_s: float = 60.0
    """How long a stop may take until its receipt is there."""
    drain_s: float = 0.0
    message_max_bytes: int | None = None


class Events(Protocol):
    """Events as they come; see `Subscription` and `Follower`."""

    def __next__(self) -> Event:
        """The next one, waited for."""

    def close(self) -> None:
        """End the iteration, from any thread."""


class TalkSession(Protocol):
    """A session as a chat needs it."""

    session: str

    @overload
    def ask(self, request: NewMessage, *, timeout: float | None) -> Accepted: ...
    @overload
    def ask(self, request: Stop, *, timeout: float | None) -> Stopped: ...

    def status(self, *, timeout: float | None) -> SessionStatus:
        """What it is doing."""

    def receipt(self, identity: str, *, timeout: float | None) -> Receipt:
        """A receipt, waited for."""

    def subscribe(self, from_seq: int) -> Events:
        """The events behind a seq."""


class Backend(Protocol):
    """Has the sessions of a chat. `outlives`: runs go on when the chat has ended."""

    outlives: bool
    agent: str
    where: str
    limits: BackendLimits

    def session(self, name: str) -> TalkSession:
        """A session by name."""

    def before(self, name: str) -> Before:
        """The state of a session before this backend restored it, or before the chat attached to it."""

    def close(self, drain_s: float | None) -> None:
        """End what is the chat's own; None: what still runs gets its time."""


class Embedded:
    """A supervisor of the chat's own, from its construction on.

    Raises:
        CountermandError: it could not be started: the directory is in use, the agent is not known.
    """

    outlives = False

    def __init__(self, config: Config, session: str, screen: Screen) -> None:
        self._screen = screen
        # Before the supervisor restores it: the effects of recovery are news for the user.
        self._before = _look(Path(config.state_dir).expanduser(), session)
        self._supervisor = Supervisor.start(config)
        self.agent = config.agent
        self.where = str(config.state_dir)
        ending_s = config.grace_s + config.kill_s + RECEIPT_SLACK_S
        self.limits = BackendLimits(config.grace_s, ending_s, config.drain_s, config.message_max_bytes)

    def session(self, name: str) -> TalkSession:
        """A session by name."""
        return self._supervisor.session(name)

    def before(self, name: str) -> Before:  # noqa: ARG002  # it was looked at for this one
        """The state of the session before this supervisor restored it."""
        return self._before

    def close(self, drain_s: float | None) -> None:
        """End the supervisor, and say so where that takes long: other sessions may have something running."""
        limit_s = self.limits.drain_s if drain_s is None else drain_s
        text = f"other sessions have something running: it may go on for {limit_s:g} s, then it is ended…"
        slow = threading.Timer(QUIET_CLOSE_S, self._screen.remark, (text,))
        slow.daemon = True
        slow.start()
        try:
            if not self._supervisor.close(drain_s):
                self._screen.remark("not everything came to rest in time; the next start continues")
        finally:
            slow.cancel()


def _look(state_dir: Path, session: str) -> Before:
    """Read a session from the store, before the supervisor restores it."""
    path = state_dir / STORE_NAME
    if not path.exists():
        return Before()
    try:
        reader = SqliteReader(path)
    except StoreUnavailable:
        # An older store, say: the supervisor brings it up to date, or says what is wrong with it.
        return Before()
    try:
        row = reader.session(session)
        return Before(
            last_seq=reader.last_seq(session),
            cut_off=tuple(run for run in reader.runs(session) if run.status in LIVE),
            waiting=len(reader.waiting(session)),
            parked=row.parked if row is not None else False,
        )
    finally:
        reader.close()
