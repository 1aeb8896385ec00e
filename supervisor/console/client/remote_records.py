"""`Records` of a daemon that runs: what it tells over its API."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from actors.errors import NotFound, ReceiptPending
from actors.model import Event, Message, Receipt, RunInfo
from supervisor.console.client.api import Api, segment
from supervisor.console.client.records import RUNS_MAX, unknown_session
from supervisor.live_tree import Living
from supervisor.wire import (
    LogPage,
    RunPage,
    SessionEntry,
    SessionPage,
    ThreadEnd,
    ThreadPage,
    WaitingMessage,
    WaitingPage,
)

PAGE: Final = 1_000


class RemoteRecords:
    """What a daemon has on record; see `Records`."""

    served = True

    def __init__(self, api: Api) -> None:
        self._api = api

    def sessions(self) -> list[SessionEntry]:
        """All sessions, by name."""
        found: list[SessionEntry] = []
        after: str | None = ""
        while after is not None:
            page = self._api.get("/v1/sessions", SessionPage, after=after, limit=PAGE)
            found += page.sessions
            after = page.next
        return found

    def session(self, name: str) -> SessionEntry:
        """One session. Raises NotFound."""
        # From the list: to ask the session itself would wake it up.
        if name and name.isprintable():
            page = self._api.get("/v1/sessions", SessionPage, after=_right_before(name), limit=1)
            if page.sessions and page.sessions[0].session == name:
                return page.sessions[0]
        known = self._api.get("/v1/sessions", SessionPage, limit=9).sessions
        raise unknown_session(name, [one.session for one in known])

    def thread(self, name: str) -> list[Message]:
        """The messages of a session."""
        found: list[Message] = []
        offset: int | None = 0
        while offset is not None:
            page = self._api.get(f"/v1/sessions/{segment(name)}/thread", ThreadPage, offset=offset, limit=PAGE)
            found += page.messages
            offset = page.next
        return found

    def thread_end(self, name: str, last: int, since: str | None = None) -> tuple[list[Message], bool]:
        """The newest messages of a session; see `Records`."""
        if last > PAGE:
            messages = self.thread(name)
            return messages[-last:], len(messages) > last
        params: dict[str, Any] = {} if since is None else {"since": since}
        end = self._api.get(f"/v1/sessions/{segment(name)}/thread/end", ThreadEnd, last=last, **params)
        if since is None and end.more and len(end.messages) < last:
            # They are large, and a page has its limit.
            messages = self.thread(name)
            return messages[-last:], len(messages) > last
        return end.messages, end.more

    def attachment(self, name: str, attachment: str) -> bytes:
        """The bytes of an attachment of a session, by its name. Raises NotFound."""
        return self._api.read(f"/v1/sessions/{segment(name)}/attachments/{segment(attachment)}")

    def waiting(self, name: str) -> list[WaitingMessage]:
        """The messages of a session that wait, in their order."""
        found: list[WaitingMessage] = []
        more = True
        while more:
            page = self._api.get(f"/v1/sessions/{segment(name)}/waiting", WaitingPage, offset=len(found), limit=PAGE)
            found += page.messages
            more = page.more and bool(page.messages)
        return found

    def runs(self, name: str, newest: int = RUNS_MAX) -> list[RunInfo]:
        """The newest runs of a session, the oldest of them first."""
        found: list[RunInfo] = []
        limit, before = newest, dict[str, Any]()
        while limit > 0:
            page = self._api.get(f"/v1/sessions/{segment(name)}/runs", RunPage, limit=limit, **before)
            found = page.runs + found
            if page.next is None:
                break
            before = {"before": page.next}
            # A page is bounded by its bytes too: for each one the daemon reads all that it may have.
            limit = min(newest - len(found), 2 * len(page.runs) or newest)
        return found

    def runs_beginning(self, start: str) -> list[RunInfo]:
        """The runs of any session whose id, or whose receipt's id, has this prefix."""
        return self._api.get("/v1/runs", RunPage, start=start, limit=RUNS_MAX).runs

    def receipt(self, name: str, run_id: str) -> Receipt | None:
        """The receipt of a run of a session, if it is filed."""
        with contextlib.suppress(ReceiptPending, NotFound):
            return self._api.get(f"/v1/sessions/{segment(name)}/receipts/{segment(run_id)}", Receipt)
        return None

    def events(self, name: str, after: int, run_id: str | None = None) -> list[Event]:
        """Some events of a session, or of one run of it, after a sequence number, in order."""
        about: dict[str, Any] = {} if run_id is None else {"run_id": run_id}
        return self._api.get(f"/v1/sessions/{segment(name)}/log", LogPage, from_seq=after, limit=PAGE, **about).events

    def living(self, name: str | None) -> Living:
        """What lives now, in one session or in all."""
        return self._api.get("/v1/processes" if name is None else f"/v1/sessions/{segment(name)}/processes", Living)


def _right_before(name: str) -> str:
    """A text that sorts before a printable name, and after all printable names before it."""
    return name[:-1] + chr(ord(name[-1]) - 1) + "\U0010ffff"
