"""Requests from outside: each is decided once, and its answer is remembered under its id (law L10).

An answer is given when the batch of its step is committed. A repeat has the answer of the first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.kernel.future import ReplyFuture
from actors.model import Provenance, Scope
from actors.ports import KeptStop
from actors.protocol.deletion import Deletion
from actors.protocol.intake import Intake
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.step import AnswerRequest
from actors.protocol.stops import Stops
from actors.requests import (
    Accepted,
    Answer,
    Decided,
    Delete,
    NewMessage,
    OutsideRequest,
    Reply,
    Resume,
    Stop,
    Withdraw,
)


class Requests:
    """Decides requests from outside."""

    def __init__(self, state: SessionState, intake: Intake, stops: Stops, runs: Runs, deletion: Deletion) -> None:
        self._state = state
        self._intake = intake
        self._stops = stops
        self._runs = runs
        self._deletion = deletion

    def decide(
        self, request: OutsideRequest, reply: ReplyFuture[Any] | None, kept: KeptStop | None = None
    ) -> Reply | None:
        """Decide a request, unless it had an answer before.

        Args:
            request: which.
            reply: where the answer goes.
            kept: the journal's entry of a Stop that could not be stored when it came.

        Returns:
            The answer; None for a Delete, which is answered when the session is deleted.

        Raises:
            CountermandError: it is refused; nothing was changed.
        """
        state, at = self._state, self._state.clock.wall()
        known = state.book.known(request, at)
        if known is None and isinstance(request, Delete):
            self._delete(request, reply, at)
            return None
        if known is None:
            assert not isinstance(request, Delete), "decided above"
            known = self._route(request, at, kept)
            forgotten_to = state.book.forgotten_to
            state.step.requests.append(state.book.answered(request, known, at))
            if state.book.forgotten_to != forgotten_to:
                state.step.row_changed = True
        elif isinstance(known, Accepted) and known.queued:
            # The answer stands; besides, it says what became of the message.
            known = msgspec.structs.replace(known, fate=state.fates.get(known.message_id))
        state.step.later.append(AnswerRequest(request, reply, known))
        return known

    def _route(self, request: Decided, at: float, kept: KeptStop | None) -> Reply:
        match request:
            case NewMessage():
                return self._intake.new_message(request, at)
            case Stop():
                return self._stops.stop(request, at, kept)
            case Resume():
                return self._intake.resume(request, at)
            case Withdraw():
                return self._intake.withdraw(request, at)
            case Answer():
                return self._runs.call_answered(request, at)

    # ── Deletion ─────────────────────────────────────────────────────────────────────────────────────

    def _delete(self, delete: Delete, reply: ReplyFuture[Any] | None, at: float) -> None:
        self._deletion.admit(delete, reply)
        cause = Provenance(
            source=delete.source, reason=delete.reason, requested_by=delete.requested_by, initiated_at=at
        )
        self._begin_deletion(delete.reason, at, delete.id, cause)

    def expire(self, seq: int, reason: str) -> None:
        """Delete a session that is kept longer than it has to be, if nothing has happened in it since `seq`."""
        state = self._state
        if state.at_rest and not len(state.queue) and not state.deleted and state.seq == seq:
            self._begin_deletion(reason, state.clock.wall())

    def _begin_deletion(
        self, reason: str, at: float, requested_by: str | None = None, cause: Provenance | None = None
    ) -> None:
        """End everything as a Stop of the whole session does. When all is proven, only rows are left to remove."""
        state = self._state
        if state.deleting is None:
            provenance = Provenance(
                source="session.deleted", reason=reason, requested_by=requested_by, initiated_at=at, cause=cause
            )
            state.deleting = provenance
            if not state.nothing_left or len(state.queue):
                # What ends by it has this provenance; the Stop says only what to end.
                stop = Stop(id=state.ids.new("stop"), source="client.delete", reason=reason, scope=Scope.SESSION)
                self._stops.stop_current(stop, provenance, at)
        self._deletion.call_off_if_hopeless()
