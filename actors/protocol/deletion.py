"""The deletion of a session: admitted, called off, or carried out when all that the session started has ended.

What ends the session's runs and trees for it is a Stop of the whole session, which `Requests` decides.
"""

from __future__ import annotations

from typing import Any, Final

from actors.agent_choice import NO_CHOICE
from actors.errors import NotFound, QueueFull, RunActive, ShuttingDown
from actors.events import SessionDeletedData
from actors.kernel.future import ReplyFuture
from actors.protocol.queue import TurnQueue
from actors.protocol.state import SessionState
from actors.protocol.step import AnswerRequest, ForgetSession, RefuseRequest
from actors.requests import Delete, Deleted
from actors.saved import Saved
from actors.thread import Thread
from actors.usage import NO_USAGE

DELETIONS_MAX: Final = 1000
"""Delete requests that may wait for one session to be deleted."""


class Deletion:
    """Decides when a session is deleted."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._requests: list[tuple[Delete, ReplyFuture[Any] | None]] = []

    def admit(self, delete: Delete, reply: ReplyFuture[Any] | None) -> None:
        """Let a Delete wait until the session is deleted.

        Raises:
            CountermandError: it is refused; nothing was changed.
        """
        state = self._state
        if state.draining:
            raise ShuttingDown(
                "a Delete is refused: the supervisor is shutting down",
                expected="Stop, which it still takes",
                got="Delete",
                remedy="send it again, under the same id, after the restart",
            )
        if not state.seq or state.deleted:
            raise NotFound(
                "there is no such session",
                expected="a session in which something has happened",
                got=state.session,
                remedy="list the sessions",
            )
        if len(self._requests) >= DELETIONS_MAX:
            raise QueueFull(
                "too many requests wait for the session to be deleted",
                expected=f"at most {DELETIONS_MAX} of them",
                got=f"{len(self._requests)} that wait already",
                remedy="wait until the session is deleted: one request does that",
            )
        self._requests.append((delete, reply))

    def call_off_if_hopeless(self) -> None:
        """Refuse the deletion if only abandoned parts are left: they may never end, and must not be forgotten."""
        state = self._state
        hopeless = [*state.late, *(owned.id for owned in state.owned.values() if owned.given_up)]
        if state.deleting is None or not state.quiet or not hopeless:
            return
        error = RunActive(
            "the session cannot be deleted: not all that it started is proven to have ended",
            run_id=hopeless[0],
            expected="a session of which nothing is left but rows",
            got=f"{', '.join(hopeless)}, which left something behind that may live",
            remedy="see their receipts, end what they name, and delete the session then, or after a restart",
        )
        state.step.now += [RefuseRequest(reply, error) for _, reply in self.call_off()]

    def call_off(self) -> list[tuple[Delete, ReplyFuture[Any] | None]]:
        """Call the deletion off; returns the requests for it, which have to be refused."""
        requests, self._requests = self._requests, []
        self._state.deleting = None
        return requests

    def erase_if_proven(self) -> bool:
        """When everything has ended and is written: begin a step that removes all rows and leaves a tombstone."""
        state = self._state
        if state.deleting is None or not state.nothing_left:
            return False
        at = state.clock.wall()
        provenance, requests = state.deleting, self.call_off()
        state.thread, state.saved, state.usage = Thread(), Saved(), NO_USAGE
        state.choice = NO_CHOICE
        state.attachments_bytes = 0
        state.fates, state.over, state.queued = {}, {}, {}
        state.queue = TurnQueue(state.session, state.settings.queue_max)
        state.step.requests += state.book.forget(at, repeats=bool(requests))
        state.step.erase = True
        state.quarantined = False
        state.step.later.append(ForgetSession())
        seq = state.event(SessionDeletedData(provenance=provenance), None)
        state.deleted = True
        for request, reply in requests:
            answer = Deleted(state.session, seq)
            state.step.requests.append(state.book.answered(request, answer, at))
            state.step.later.append(AnswerRequest(request, reply, answer))
        return True
