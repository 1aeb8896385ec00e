"""Stops that the store does not have yet: how long each waits for it, and why none is forgotten or answered twice.

Theory of operation. A Stop takes effect in memory, at once or when its session has been read. Its record can be late,
and so can its answer. Until the store has a Stop, it is here under its id, in one or more of these states:

- *Waiting* for the store, or first for the session to be read. After `STOP_LATE_S` it is kept as well. After
  `STOP_OVERDUE_S` it is answered with `durable=False` and waits no longer. While the session is being read it is not
  known what runs in it: then a Stop waits for `STOP_UNREAD_S`, and is answered `unknown`. The wait also ends when the
  Stop is on record, when it is refused, and when the store fails.
- *Kept* here and in the stop journal until it is on record, so that a crash does not forget it. The journal gets it
  well before it is answered, so that the answer can say (`journalled`) whether it is on the disk there.
- *Held*: the store has failed, and the answer to a kept Stop waits for the journal. All in all it waits no longer than
  a Stop may wait for the store.

One answer. The first answer to a Stop is in its entry, here and in the journal, and it stands: each repeat gets it, and
it goes on record (`Requests.decide`). A Stop that cannot be kept is therefore answered `unknown`.

Not answered twice. A caller who got `durable=False` does not get the answer that comes with the batch. The event
`session.stop_durable` reports that the Stop has become durable. There is no such event if no answer was
`durable=False`, and none for a deleted session, which the event would begin anew. A repeat of the Stop gets the durable
answer.

Not lost. A kept Stop leaves in three ways:

- It is on record. The journal forgets it at once if no answer was `durable=False`, else when `session.stop_durable` is
  on record as well.
- It is refused: there is nothing to decide.
- The session is read, for example after a failure of the store. `Restoration.restore` decides the Stop under its own
  id, before anything starts, and the journal forgets it when that is on record. If that cannot be stored either, the
  Stop is kept again, as it first came. There is one exception: a Stop that came while the session was being read, and
  has no answer yet, is decided in its place among the requests that waited, in one batch with those ahead of it. It
  stays here until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from loguru import logger
from pykka import ActorRef

from actors.kernel.future import ReplyFuture
from actors.messages import StopOverdue
from actors.model import Provenance, StopOutcome, Waiting
from actors.ports import Clock, KeptStop, Store, Timer
from actors.protocol.request_book import request_reused
from actors.requests import UNKNOWN, OutsideRequest, Reply, Stop, Stopped

STOPS_KEPT_MAX: Final = 100
STOP_LATE_S: Final = 0.1
STOP_OVERDUE_S: Final = 0.25
STOP_UNREAD_S: Final = 5.0


@dataclass(slots=True)
class UnstoredStop:
    """A Stop that waits for the store.

    `since`: when its wait began, in monotonic seconds. `answer`: None until it is decided.
    """

    entry: KeptStop
    since: float
    timer: Timer
    answer: Stopped | None


@dataclass(slots=True)
class JournalledStop:
    """A Stop that was handed to the journal.

    `answer`: the first one; None until it is decided. `journalled`: the journal has it on the disk. `answered_early`:
    it was answered `durable=False`, or may have been.
    """

    entry: KeptStop
    answer: Stopped | None = None
    journalled: bool = False
    answered_early: bool = False


@dataclass(slots=True)
class HeldAnswers:
    """Answers to a Stop that wait for the journal, at the longest until `timer` fires."""

    timer: Timer
    answers: list[tuple[Stopped, ReplyFuture[Any]]]


class LateStops:
    """The Stops of one session that the store does not have yet. Used in the turns of its actor only.

    Args:
        session: the session's id.
        clock: measures how long they wait.
        store: keeps them in its stop journal.
        owner: the session's actor, which gets StopOverdue and StopKept.
    """

    def __init__(self, session: str, clock: Clock, store: Store, owner: ActorRef[Any]) -> None:
        self._session = session
        self._clock = clock
        self._store = store
        self._owner = owner
        self._waiting: dict[str, UnstoredStop] = {}
        self._kept: dict[str, JournalledStop] = {}
        self._held: dict[str, HeldAnswers] = {}
        # They were kept when the session was read, and have been decided anew. That is not on record yet.
        self._replayed: dict[str, JournalledStop] = {}
        # Ids of the Stops that came while the session was being read, and that were handed to the journal meanwhile.
        self._in_stash: set[str] = set()

    @property
    def pending(self) -> bool:
        """True while the store is still to get a Stop."""
        return bool(self._waiting or self._kept)

    @property
    def answers_pending(self) -> bool:
        """True while an answer waits for the journal."""
        return bool(self._held)

    def entry(self, request: OutsideRequest) -> KeptStop | None:
        """A Stop as it first came, if it is here. It does not stop what was sent after that (law L4)."""
        late = self._kept.get(request.id) or self._waiting.get(request.id)
        return late.entry if late is not None and late.entry.stop == request else None

    def is_kept(self, request: object) -> bool:
        """True if a request is a Stop that was handed to the journal."""
        return isinstance(request, Stop) and request.id in self._kept and self._kept[request.id].entry.stop == request

    def first_answer(self, stop: Stop) -> Stopped | None:
        """The first answer to a Stop that is kept; None if it is not kept, or not decided yet.

        Raises:
            RequestReused: another Stop is kept under its id.
        """
        kept = self._kept.get(stop.id)
        if kept is not None and kept.entry.stop != stop:
            raise request_reused(stop)
        return kept.answer if kept is not None else None

    def begin_wait(
        self, request: OutsideRequest, at: float, answer: Reply | None = None, generation: int | None = None
    ) -> None:
        """From here on a Stop waits for the store, with a bound. Any other request is durable when it is answered.

        Args:
            request: it came, and is not on record.
            at: when it came; epoch seconds, UTC.
            answer: None until it is decided.
            generation: the session's, when it was decided.
        """
        if not isinstance(request, Stop):
            return
        waiting = self._waiting.get(request.id)
        if waiting is not None:
            if answer is None or waiting.entry.outcome is not None or waiting.entry.stop != request:
                return
            # Until now it waited to be decided; from here on it waits for the store.
            waiting.timer.cancel()
            at = waiting.entry.at
        timer = self._clock.call_later(STOP_LATE_S, self._owner, StopOverdue(request.id, final=False))
        entry = _entry(self._session, request, at, answer, generation)
        decided = answer if isinstance(answer, Stopped) else None
        self._waiting[request.id] = UnstoredStop(entry, self._clock.monotonic(), timer, decided)
        if decided is not None and self.is_kept(request):
            # The journal has it without its answer. The answer may be due at once, and says what the journal has.
            self._keep(entry, decided)

    def handle_overdue(self, message: StopOverdue, *, in_stash: bool) -> bool:
        """The store is slow: hand the Stop to the journal, and have it answered some time later.

        Args:
            message: the Stop's id, and whether its wait is over.
            in_stash: the session is being read, so it is not known yet what the Stop stops.

        Returns:
            True if the caller of the Stop has to be answered now.
        """
        request_id = message.request_id
        self._answer_held(request_id)
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        if message.final:
            del self._waiting[request_id]
            logger.warning("session {}: Stop {} is answered before the store has it", self._session, request_id)
            return True
        self._keep(waiting.entry, waiting.answer)
        if in_stash:
            self._in_stash.add(request_id)
        last = StopOverdue(request_id, final=True)
        wait_s = STOP_UNREAD_S if in_stash else STOP_OVERDUE_S
        waiting.timer = self._clock.call_later(wait_s - STOP_LATE_S, self._owner, last)
        return False

    def answer(self, request_id: str, answer: Stopped, reply: ReplyFuture[Any] | None) -> None:
        """Answer with `durable=False`. Without a reply, it may have been answered so before."""
        kept = self._kept.get(request_id)
        if kept is None:
            answer = Stopped(UNKNOWN, None, request_id, None)
        else:
            kept.answered_early = True
        if reply is not None:
            journalled = kept is not None and kept.journalled
            reply.try_set(msgspec.structs.replace(answer, durable=False, journalled=journalled))

    def journalled(self, request_id: str) -> None:
        """The journal has a Stop on the disk."""
        kept = self._kept.get(request_id)
        if kept is not None:
            kept.journalled = True
        self._answer_held(request_id)

    def on_record(self, stop: Stop) -> Stop | None:
        """The store has a Stop, and its answer is about to be given: end its wait, and keep it no longer.

        Returns:
            The Stop, if `session.stop_durable` has to be written since an answer was `durable=False`; else None.
        """
        self._end_wait(stop)
        kept = self._kept.pop(stop.id, None)
        if kept is None:
            return None
        if kept.answered_early:
            return kept.entry.stop
        # It came to the store in time: no answer was `durable=False`.
        self.forget(stop.id)
        return None

    def forget(self, request_id: str) -> None:
        """A Stop need not be decided again: the journal forgets it."""
        self._replayed.pop(request_id, None)
        self._store.forget_stop(self._session, request_id)

    def refused(self, request: OutsideRequest) -> None:
        """A Stop is refused, for example since its run does not exist: there is nothing to wait for."""
        self._end_wait(request)
        kept = self._kept.get(request.id)
        if kept is not None and kept.entry.stop == request:
            del self._kept[request.id]
            self.forget(request.id)

    def store_failed(
        self,
        stop: Stop,
        answer: Stopped,
        reply: ReplyFuture[Any] | None,
        generation: int | None = None,
        cause: Provenance | None = None,
        failure: Provenance | None = None,
    ) -> None:
        """Keep a Stop that is not stored, to be decided when the store is back. Answer it when the journal has it.

        Args:
            stop: the Stop.
            answer: its answer, unless it was answered before.
            reply: who waits for the answer.
            generation: the session's, when the Stop was decided.
            cause: what had ended its run before it came, where it was not the first.
            failure: what has failed, and ended all that was open.
        """
        waiting = self._end_wait(stop)
        # It is not in the stash any more, if it was.
        self._in_stash.discard(stop.id)
        replayed = self._replayed.pop(stop.id, None)
        if replayed is not None and replayed.entry.stop == stop:
            self._kept[stop.id] = replayed
        at = self._clock.wall() if waiting is None else waiting.entry.at
        known = None if answer.outcome == UNKNOWN else answer
        self._keep(_entry(self._session, stop, at, known, generation, cause, failure), known)
        kept = self._kept.get(stop.id)
        answer = kept.answer if kept is not None and kept.answer is not None else answer
        if reply is None or kept is None or kept.journalled:
            self.answer(stop.id, answer, reply)
            return
        kept.answered_early = True
        held = self._held.get(stop.id)
        if held is not None:
            held.answers.append((answer, reply))
            return
        now = self._clock.monotonic()
        wait_s = max(0.0, STOP_OVERDUE_S - (now - (waiting.since if waiting is not None else now)))
        timer = self._clock.call_later(wait_s, self._owner, StopOverdue(stop.id, final=True))
        self._held[stop.id] = HeldAnswers(timer, [(answer, reply)])

    def restore(self, journal: Iterable[KeptStop]) -> list[KeptStop]:
        """The session was read: take out the Stops that have to be decided before anything starts.

        A Stop that came while the session was being read, and has no answer yet, stays: it is decided in its place
        among the requests that waited.

        Args:
            journal: the Stops of this session in the stop journal.

        Returns:
            The Stops to decide now.
        """
        for entry in journal:
            mine = entry.stop.id in self._kept and self._kept[entry.stop.id].entry == entry
            kept = self._kept.setdefault(entry.stop.id, JournalledStop(entry))
            if kept.answer is None:
                kept.entry, kept.answer = entry, entry.answer
            # An incarnation before may have answered it early: then `session.stop_durable` is due.
            kept.answered_early = kept.answered_early or not mine
        undecided = {request_id for request_id, kept in self._kept.items() if kept.answer is None}
        stay = self._in_stash & undecided
        self._replayed = {request_id: kept for request_id, kept in self._kept.items() if request_id not in stay}
        self._kept = {request_id: kept for request_id, kept in self._kept.items() if request_id in stay}
        self._in_stash = set()
        return [kept.entry for kept in self._replayed.values()]

    def answer_all_held(self) -> None:
        """The session's actor ends: give all answers that wait for the journal."""
        for request_id in list(self._held):
            self._answer_held(request_id)

    def _answer_held(self, request_id: str) -> None:
        """The journal has a Stop, or its answer has waited for that long enough."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        held.timer.cancel()
        for answer, reply in held.answers:
            self.answer(request_id, answer, reply)

    def _end_wait(self, request: OutsideRequest) -> UnstoredStop | None:
        """End the wait of a Stop. Another request under the same id changes nothing."""
        waiting = self._waiting.get(request.id)
        if waiting is None or waiting.entry.stop != request:
            return None
        del self._waiting[request.id]
        waiting.timer.cancel()
        return waiting

    def _keep(self, entry: KeptStop, answer: Stopped | None) -> None:
        """Keep a Stop that the store does not have in time, here and in the journal, until it is durable."""
        request_id = entry.stop.id
        if request_id not in self._kept and len(self._kept) >= STOPS_KEPT_MAX:
            logger.error("session {}: Stop {} is not kept: {} are already", self._session, request_id, STOPS_KEPT_MAX)
            return
        kept = self._kept.setdefault(request_id, JournalledStop(entry, answer))
        if kept.answer is None and answer is not None and kept.entry.stop == entry.stop:
            kept.entry = msgspec.structs.replace(entry, at=kept.entry.at)
            kept.answer, kept.journalled = answer, False
        self._store.keep_stop(kept.entry, self._owner)


def _entry(
    session: str,
    stop: Stop,
    at: float,
    answer: Reply | None,
    generation: int | None,
    cause: Provenance | None = None,
    failure: Provenance | None = None,
) -> KeptStop:
    if not isinstance(answer, Stopped):
        return KeptStop(session, stop, at)
    began = answer.outcome is StopOutcome.STOPPED and answer.fence_seq is not None
    told = answer.outcome is StopOutcome.STOPPING and stop.waiting in (Waiting.PARK, Waiting.WITHDRAW)
    answered = (answer.outcome, answer.run_id, answer.receipt_id)
    return KeptStop(session, stop, at, *answered, generation, cause, failure, began or told)
