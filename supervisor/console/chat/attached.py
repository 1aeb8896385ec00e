"""Attached: a running daemon as the backend of a chat. Its sessions have the methods of sessions in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from actors.errors import NotFound
from actors.model import Receipt, SessionActivity, SessionStatus
from actors.requests import Accepted, Answer, Answered, NewMessage, Stop, Stopped
from supervisor.console.chat.backends import BackendLimits, Before, TalkSession
from supervisor.console.client.api import Api, segment
from supervisor.console.client.follower import Follower
from supervisor.console.tty.screen import Screen
from supervisor.wire import AnswerBody, MessageBody, StopBody


class AttachedSession:
    """A session of a daemon. Every method may be called from any thread, and blocks until there is an answer.

    Every method raises NoDaemon, or the error with which the daemon refuses.
    """

    def __init__(self, api: Api, session: str, on_break: Callable[[str], object] = lambda _: None) -> None:
        self.session = session
        self._api = api
        self._url = f"/v1/sessions/{segment(session)}"
        self._on_break = on_break

    @overload
    def ask(self, request: NewMessage, *, timeout: float | None = None) -> Accepted: ...
    @overload
    def ask(self, request: Stop, *, timeout: float | None = None) -> Stopped: ...
    @overload
    def ask(self, request: Answer, *, timeout: float | None = None) -> Answered: ...

    def ask(
        self,
        request: NewMessage | Stop | Answer,
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Accepted | Stopped | Answered:
        """Send a request and return its answer. The daemon has its own limit for that; `timeout` has no meaning."""
        if isinstance(request, NewMessage):
            return self._api.post(f"{self._url}/messages", Accepted, MessageBody.of(request))
        if isinstance(request, Answer):
            return self._api.post(f"{self._url}/answer", Answered, AnswerBody.of(request))
        return self._api.post(f"{self._url}/stop", Stopped, StopBody.of(request))

    def status(self, *, timeout: float | None = None) -> SessionStatus:  # noqa: ARG002  # the daemon has its own
        """The state of the session. One that does not exist yet is idle: its first message creates it."""
        try:
            return self._api.get(self._url, SessionStatus)
        except NotFound:
            return SessionStatus(self.session, SessionActivity.IDLE, 0, 0, None, (), 0, False, (), {})

    def receipt(self, identity: str, *, timeout: float | None = 0.0) -> Receipt:
        """Return a receipt; see `Api.receipt`."""
        return self._api.receipt(self.session, identity, timeout)

    def subscribe(self, from_seq: int = 0) -> Follower:
        """Return the events after `from_seq`: first those that are stored, then new ones as they come."""
        return Follower(self._api, self.session, from_seq, on_break=self._on_break)


class Attached:
    """A running daemon."""

    outlives = True

    def __init__(self, api: Api, screen: Screen) -> None:
        self._api = api
        api.on_wait = screen.remark
        self._screen = screen
        self.agent = api.info.agent
        self.where = f"daemon {api.info.pid} in {api.info.state_dir}"
        self.limits = BackendLimits()

    def session(self, name: str) -> TalkSession:
        """A session by name."""
        return AttachedSession(self._api, name, on_break=self._screen.remark)

    def before(self, name: str) -> Before:
        """The state of a session at this moment."""
        status = AttachedSession(self._api, name).status()
        return Before(status.last_seq, (), status.waiting, status.parked, status.agent)

    def close(self, drain_s: float | None) -> None:  # noqa: ARG002  # the daemon continues
        """Close the connections."""
        self._api.close()
