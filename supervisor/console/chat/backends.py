"""Backends of a chat: a running daemon, else a supervisor of the chat's own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Protocol, overload

from msgspec import Struct

from actors.errors import StoreUnavailable
from actors.model import Event, Receipt, RunInfo, SessionStatus
from actors.requests import Accepted, Answer, Answered, NewMessage, Stop, Stopped
from actors.run_status import LIVE
from supervisor.config import Config
from supervisor.console.tty.screen import Screen
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import STORE_NAME
from supervisor.supervisor import Supervisor

RECEIPT_SLACK_S: Final = 5.0
"""How long to wait for a receipt after the last deadline of its stop, in seconds."""
QUIET_CLOSE_S: Final = 0.5
"""How long closing may take before a line says why it takes longer, in seconds."""


class Before(Struct, frozen=True):
    """The state of a session before the chat. `agent`: the one that it has; None: the configured one."""

    last_seq: int = 0
    cut_off: tuple[RunInfo, ...] = ()
    waiting: int = 0
    parked: bool = False
    agent: str | None = None


class BackendLimits(Struct, frozen=True):
    """The limits of a backend, in seconds and bytes; None if only the daemon knows the value."""

    grace_s: float | None = None
    ending_s: float = 60.0
    """How long a stop may take until its receipt is there."""
    drain_s: float = 0.0
    message_max_bytes: int | None = None


class Events(Protocol):
    """Events as they come; see `Subscription` and `Follower`."""

    def __next__(self) -> Event:
        """Wait for the next event, and return it."""

    def close(self) -> None:
        """End the iteration, from any thread."""


class TalkSession(Protocol):
    """The methods of a session that a chat uses."""

    session: str

    @overload
    def ask(self, request: NewMessage, *, timeout: float | None) -> Accepted: ...
    @overload
    def ask(self, request: Stop, *, timeout: float | None) -> Stopped: ...
    @overload
    def ask(self, request: Answer, *, timeout: float | None) -> Answered: ...

    def status(self, *, timeout: float | None) -> SessionStatus:
        """The state of the session."""

    def receipt(self, identity: str, *, timeout: float | None) -> Receipt:
        """Wait for a receipt, and return it."""

    def subscribe(self, from_seq: int) -> Events:
        """The events after a sequence number."""


class Backend(Protocol):
    """Provides the sessions of a chat. `outlives`: runs continue when the chat has ended."""

    outlives: bool
    agent: str
    where: str
    limits: BackendLimits

    def session(self, name: str) -> TalkSession:
        """A session by name."""

    def before(self, name: str) -> Before:
        """The state of a session before this backend restored it, or before the chat attached to it."""

    def close(self, drain_s: float | None) -> None:
        """End what belongs to the chat. `drain_s`: how long runs may continue, in seconds; None: as configured."""


class Embedded:
    """A supervisor of the chat's own. The constructor starts it.

    Raises:
        CountermandError: it could not be started: the directory is in use, or the agent is not known.
    """

    outlives = False

    def __init__(self, config: Config, session: str, screen: Screen) -> None:
        self._screen = screen
        # Read before the supervisor restores the session, so that the chat shows what recovery did to it.
        self._before = _look(Path(config.state_dir).expanduser(), session)
        self._supervisor = Supervisor.start(config)
        self.agent = config.agent
        self.where = str(config.state_dir)
        ending_s = config.grace_s + config.kill_s + RECEIPT_SLACK_S
        self.limits = BackendLimits(config.grace_s, ending_s, config.drain_s, config.message_max_bytes)

    def session(self, name: str) -> TalkSession:
        """A session by name."""
        return self._supervisor.session(name)

    def before(self, name: str) -> Before:  # noqa: ARG002  # the constructor has read this session
        """The state of the session before this supervisor restored it."""
        return self._before

    def close(self, drain_s: float | None) -> None:
        """End the supervisor. If that takes long, say why: something may be running, in other sessions too."""
        limit_s = self.limits.drain_s if drain_s is None else drain_s
        text = f"something is still ending; what runs may continue for {limit_s:g} s and is then ended…"
        slow = threading.Timer(QUIET_CLOSE_S, self._screen.remark, (text,))
        slow.daemon = True
        slow.start()
        try:
            if not self._supervisor.close(drain_s):
                self._screen.remark("not everything ended in time; the next start takes care of the rest")
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
        # It may be an older store: the supervisor migrates it, or says what is wrong with it.
        return Before()
    try:
        row = reader.session(session)
        return Before(
            last_seq=reader.last_seq(session),
            cut_off=tuple(run for run in reader.runs(session) if run.status in LIVE),
            waiting=len(reader.waiting(session)),
            parked=row.parked if row is not None else False,
            agent=row.choice.name if row is not None else None,
        )
    finally:
        reader.close()
