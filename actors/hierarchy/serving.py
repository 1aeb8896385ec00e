"""Serving: a session that was read, and whose store takes writes, decides requests.

A request does not wait for the rest of its turn: its step is sent at once, so that its halts leave. Nor does its answer
wait behind a backlog of reports: those are held until the answer was given.
"""

from __future__ import annotations

from typing import Any, Final

from pykka import ActorRef

from actors.errors import CountermandError
from actors.hierarchy.answers import is_full, refuse, unavailable, without_unstored
from actors.hierarchy.batches import Batches
from actors.hierarchy.draining import Draining
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.late_stops import LateStops
from actors.kernel.future import ReplyFuture
from actors.kernel.mailbox import Mailbox
from actors.messages import GoOn
from actors.ports import Clock
from actors.protocol.step import RefuseDeleted
from actors.requests import OutsideRequest, Stopped

SENT_MAX: Final = 10_000
"""How many batches, and repeats of requests in them, may wait for the store before a request is refused."""
BACKLOG_MIN: Final = 64
"""With more messages than this in the mailbox, reports wait a little longer behind an answer."""
ANSWER_TAKEN_S: Final = 0.001
"""How long they wait then."""


class Serving:
    """Decides the requests of one session. Used in the turns of its actor only.

    Args:
        owner: the session's actor, which gets GoOn.
        mailbox: of that actor.
        clock: tells when a request came.
        live: the session.
        batches: sends what was decided.
        draining: says when the session is quiet.
        late_stops: bounds how long a Stop waits.
    """

    def __init__(
        self,
        owner: ActorRef[Any],
        mailbox: Mailbox,
        clock: Clock,
        live: Incarnation,
        batches: Batches,
        draining: Draining,
        late_stops: LateStops,
    ) -> None:
        self._owner = owner
        self._mailbox = mailbox
        self._clock = clock
        self._live = live
        self._batches = batches
        self._draining = draining
        self._late_stops = late_stops
        # The batch of the last answer that reports wait for.
        self._answering = 0

    def request(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        """Decide a request that has just come.

        Raises:
            StoreUnavailable: too much waits for the store already.
        """
        waiting = len(self._batches.sent)
        if is_full(waiting, SENT_MAX, request):
            raise unavailable(f"the store does not keep up: {waiting} steps wait for it already", request)
        self.decide(request, reply)

    def decide(self, request: OutsideRequest, reply: ReplyFuture[Any] | None, *, goes_on: bool = False) -> None:
        """Decide a request, and send its step.

        Args:
            request: what to decide.
            reply: who waits for the answer.
            goes_on: send nothing yet: the next request is stored in one batch with this one.
        """
        at = self._clock.wall()
        kept, refused, answer = self._late_stops.entry(request), False, None
        book = self._live.protocol.state.book
        try:
            answer = self._live.protocol.requests.decide(request, reply, kept)
        except CountermandError as error:
            refused = True
            if book.in_doubt(request.id):
                # Not before the deletion is durable: if it is not stored, there is an answer to this request.
                self._late_stops.begin_wait(request, at)
                self._batches.wait_for_last([RefuseDeleted(request, reply, error)])
            else:
                self._late_stops.refused(request)
                refuse(self._live.session, request, reply, error)
        if not refused:
            # Before the step is sent: sending it may answer the Stop at once, which ends the wait.
            known = None if book.in_doubt(request.id) else answer
            if isinstance(known, Stopped):
                known = without_unstored(known, self._batches.unstored())
            self._late_stops.begin_wait(request, at, known, self._live.protocol.state.generation)
        if goes_on:
            return
        self.flush()
        if self._batches.sent:
            self._answering = self._batches.number
            self._mailbox.hold()

    def flush(self) -> None:
        """Send what was decided and not sent yet; erase the session if its deletion is due; say if it is quiet."""
        if self._live.phase is not Phase.SERVING:
            return
        self._batches.send_step()
        # A Stop that is not durable yet is reported durable first: after the deletion, that event would begin the
        # session anew.
        if not self._late_stops.pending and self._live.protocol.deletion.erase_if_proven():
            # In a batch of its own: what ended before it is published as it was written.
            self._batches.send_step()
        self._draining.say_quiet()

    # ── Reports behind an answer ──────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """A new incarnation: nothing waits for an answer."""
        self._answering = 0
        self._mailbox.release()

    def committed(self, number: int) -> None:
        """Batches are durable, so answers were given. If the last one was among them, reports go on.

        Behind a backlog they wait a little longer: the thread that asked needs the interpreter to take its answer.
        """
        if number < self._answering:
            return
        if len(self._mailbox) <= BACKLOG_MIN:
            self._mailbox.release()
        else:
            self._clock.call_later(ANSWER_TAKEN_S, self._owner, GoOn(self._answering))

    def go_on(self, number: int) -> None:
        """The time for an answer to be taken is over. `number`: of its batch."""
        if number == self._answering:
            self._mailbox.release()

    def let_reports_go_on(self) -> None:
        """No answer is on its way any more."""
        self._mailbox.release()
