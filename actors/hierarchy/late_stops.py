"""Stops that the store does not have yet: how long each waits for it, and how none is forgotten or answered twice.

Theory of operation. A Stop has its effect in memory, at once or when its session has been read; what can be late is its
record, and so its answer. Until the store has it, it is here under its id, in one or more of these places:

- *Waiting*, since it came: for the store, or first for the session to be read. After `STOP_LATE_S` it is kept too.
  After `STOP_OVERDUE_S` it is answered with `durable=False`, and waits no longer. A session that is still being read
  runs nothing, and what it has is not known: there a Stop waits for `STOP_UNREAD_S`, and is then answered `unknown`.
  It waits no longer either when it is on record or refused, or when the store fails.
- *Kept*: here and in the stop journal, so that a crash does not forget it, until it is on record. The journal is given
  it well before it is answered, so that the answer can say by `journalled` whether it is on the disk there.
- *Held*: an answer to one that is kept, of a store that has failed. It waits for the journal alone, and all in all no
  longer than a Stop may wait for the store.

One answer. What a Stop was answered first is in its entry, here and in the journal, and stands: it is the answer to
each repeat, and the one that goes on record (`Requests.decide`). So what cannot be kept is not answered as known.

Not answered twice. A caller who was answered `durable=False` does not get the answer that comes with the batch: the
event `session.stop_durable` says that the Stop is durable at last. Where nobody was answered so, there is none.
A deleted session has none either: it would begin anew by the event. A repeat of the Stop has the durable answer.

Not lost. A kept Stop leaves in three ways. It is on record: then the journal lets it go, at once where nobody was told
`durable=False`, else when `session.stop_durable` is on record as well. It is refused: there is nothing to decide. Or
the session is read, as after a failure of the store: `Restoration.restore` decides it under its own id, before anything
starts, and the journal lets it go when that is on record; where it cannot be stored either, it is kept again. One that
came while the session was being read, and has no answer, is an exception: it is decided in its place among the requests
that waited, in one batch with those ahead of it, and stays here until then.
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
from actors.model import Provenance
from actors.ports import Clock, KeptStop, Store, Timer
from actors.protocol.request_book import request_reused
from actors.requests import UNKNOWN, OutsideRequest, Reply, Stop, Stopped

STOPS_KEPT_MAX: Final = 100
STOP_LATE_S: Final = 0.1
STOP_OVERDUE_S: Final = 0.25
STOP_UNREAD_S: Final = 5.0


@dataclass(slots=True)
class UnstoredStop:
    """A Stop that waits for the store; since when, by the monotonic clock; and its answer, where it is decided."""

    entry: KeptStop
    since: float
    timer: Timer
    answer: Stopped | None


@dataclass(slots=True)
class JournalledStop:
    """A Stop that the journal was given.

    `answer`: the first, where it was decided. `journalled`: it is on the disk there. `told`: somebody was told
    `durable=False`, or may have been.
    """

    entry: KeptStop
    answer: Stopped | None = None
    journalled: bool = False
    told: bool = False


@dataclass(slots=True)
class HeldAnswers:
    """Answers to a Stop that wait for the journal, until `timer` ends that."""

    timer: Timer
    answers: list[tuple[Stopped, ReplyFuture[Any]]]


class LateStops:
    """The Stops of one session that the store does not have yet. Used in the turns of its actor only.

    Args:
        session: whose they are.
        clock: how long they wait.
        store: whose stop journal keeps them.
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
        # Of those that came while the session is being read, the ids of those whose time to be kept has come.
        self._in_stash: set[str] = set()

    @property
    def wait(self) -> bool:
        """True while there is one that the store is still to get."""
        return bool(self._waiting or self._kept)

    @property
    def answers_wait(self) -> bool:
        """True while an answer waits for the journal."""
        return bool(self._held)

    def entry(self, request: OutsideRequest) -> KeptStop | None:
        """A Stop that is here, as it came: what was sent since then is not its to stop (law L4)."""
        late = self._kept.get(request.id) or self._waiting.get(request.id)
        return late.entry if late is not None and late.entry.stop == request else None

    def keeps(self, request: object) -> bool:
        """True of a Stop that the journal was given."""
        return isinstance(request, Stop) and request.id in self._kept and self._kept[request.id].entry.stop == request

    def given(self, stop: Stop) -> Stopped | None:
        """What a Stop that is kept was answered first; None where that is not known.

        Raises:
            RequestReused: another Stop is kept under its id.
        """
        kept = self._kept.get(stop.id)
        if kept is not None and kept.entry.stop != stop:
            raise request_reused(stop)
        return kept.answer if kept is not None else None

    def expect(
        self, request: OutsideRequest, at: float, answer: Reply | None = None, generation: int | None = None
    ) -> None:
        """From here on a Stop waits for the store, with a bound; any other request is durable when it is answered.

        Args:
            request: what came, and is not on record.
            at: when it came; epoch seconds, UTC.
            answer: what was decided; None while the session is being read.
            generation: of the session, when that was decided.
        """
        if not isinstance(request, Stop):
            return
        waiting = self._waiting.get(request.id)
        if waiting is not None:
            if answer is None or waiting.entry.outcome is not None or waiting.entry.stop != request:
                return
            # It has waited to be decided, and waits for the store from here on.
            waiting.timer.cancel()
            at = waiting.entry.at
        timer = self._clock.call_later(STOP_LATE_S, self._owner, StopOverdue(request.id, final=False))
        entry = _entry(self._session, request, at, answer, generation)
        decided = answer if isinstance(answer, Stopped) else None
        self._waiting[request.id] = UnstoredStop(entry, self._clock.monotonic(), timer, decided)
        if decided is not None and self.keeps(request):
            # The journal has it without its answer, and an answer may be due: that is to be there when it is said so.
            self._keep(entry, decided)

    def handle_overdue(self, message: StopOverdue, *, in_stash: bool) -> bool:
        """The store takes its time: give the Stop to the journal, and some time later have it answered.

        Args:
            message: which Stop, and whether it has waited as long as it may.
            in_stash: the session is being read, so what the Stop stops is not known yet.

        Returns:
            True if whoever asked is to be answered now.
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
        """Answer with `durable=False`; where there is nobody to answer, somebody may have been answered before."""
        kept = self._kept.get(request_id)
        if kept is None:
            answer = Stopped(UNKNOWN, None, request_id, None)
        else:
            kept.told = True
        if reply is not None:
            journalled = kept is not None and kept.journalled
            reply.try_set(msgspec.structs.replace(answer, durable=False, journalled=journalled))

    def journalled(self, request_id: str) -> None:
        """The journal has the Stop on the disk."""
        kept = self._kept.get(request_id)
        if kept is not None:
            kept.journalled = True
        self._answer_held(request_id)

    def on_record(self, stop: Stop) -> Stop | None:
        """The store has the Stop, and its answer is about to be given: it waits no longer, and is kept no longer.

        Returns the Stop where `session.stop_durable` has to say so, since somebody was told otherwise.
        """
        self._end_wait(stop)
        kept = self._kept.pop(stop.id, None)
        if kept is None:
            return None
        if kept.told:
            return kept.entry.stop
        # It came to the store in time, and nobody was told otherwise.
        self._store.forget_stop(self._session, stop.id)
        return None

    def refused(self, request: OutsideRequest) -> None:
        """A Stop that is aimed at a run that is not there: nothing is decided, so there is nothing to wait for."""
        self._end_wait(request)
        kept = self._kept.get(request.id)
        if kept is not None and kept.entry.stop == request:
            del self._kept[request.id]
            self._store.forget_stop(self._session, request.id)

    def store_failed(
        self,
        stop: Stop,
        answer: Stopped,
        reply: ReplyFuture[Any] | None,
        generation: int | None = None,
        cause: Provenance | None = None,
        failure: Provenance | None = None,
    ) -> None:
        """Keep a Stop that is not stored, to be decided when the store is back; answer when the journal has it.

        Args:
            stop: which.
            answer: what it is answered, unless it was answered before.
            reply: who waits for that.
            generation: of the session, when that was decided.
            cause: what had ended its run before it came, where it was not the first.
            failure: what has failed, and ended all that was open.
        """
        waiting = self._end_wait(stop)
        # If it was in the stash, it is not any more.
        self._in_stash.discard(stop.id)
        at = self._clock.wall() if waiting is None else waiting.entry.at
        known = None if answer.outcome == UNKNOWN else answer
        self._keep(_entry(self._session, stop, at, known, generation, cause, failure), known)
        kept = self._kept.get(stop.id)
        answer = kept.answer if kept is not None and kept.answer is not None else answer
        if reply is None or kept is None or kept.journalled:
            self.answer(stop.id, answer, reply)
            return
        kept.told = True
        held = self._held.get(stop.id)
        if held is not None:
            held.answers.append((answer, reply))
            return
        now = self._clock.monotonic()
        wait_s = max(0.0, STOP_OVERDUE_S - (now - (waiting.since if waiting is not None else now)))
        timer = self._clock.call_later(wait_s, self._owner, StopOverdue(stop.id, final=True))
        self._held[stop.id] = HeldAnswers(timer, [(answer, reply)])

    def take_up(self, journal: Iterable[KeptStop]) -> list[KeptStop]:
        """The session was read: these Stops are to be decided now, before anything starts.

        Those that came while it was being read stay: they are decided in their place, with what waited beside them.

        Args:
            journal: what the stop journal has of this session.
        """
        for entry in journal:
            mine = entry.stop.id in self._kept and self._kept[entry.stop.id].entry == entry
            kept = self._kept.setdefault(entry.stop.id, JournalledStop(entry))
            if kept.answer is None:
                kept.entry, kept.answer = entry, entry.answer
            # It may have been answered by an incarnation before: then somebody waits for the word.
            kept.told = kept.told or not mine
        undecided = {request_id for request_id, kept in self._kept.items() if kept.answer is None}
        stay = self._in_stash & undecided
        decided = [kept.entry for request_id, kept in self._kept.items() if request_id not in stay]
        self._kept = {request_id: kept for request_id, kept in self._kept.items() if request_id in stay}
        self._in_stash = set()
        return decided

    def answer_all_held(self) -> None:
        """The session's actor ends: nobody waits for the journal any longer."""
        for request_id in list(self._held):
            self._answer_held(request_id)

    def _answer_held(self, request_id: str) -> None:
        """The journal has the Stop, or it has waited long enough for that."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        held.timer.cancel()
        for answer, reply in held.answers:
            self.answer(request_id, answer, reply)

    def _end_wait(self, request: OutsideRequest) -> UnstoredStop | None:
        """It is durable, refused or kept: it waits no longer. Another request under its id changes nothing."""
        waiting = self._waiting.get(request.id)
        if waiting is None or waiting.entry.stop != request:
            return None
        del self._waiting[request.id]
        waiting.timer.cancel()
        return waiting

    def _keep(self, entry: KeptStop, answer: Stopped | None) -> None:
        """Keep a Stop that the store does not have in time: here and in the journal, until it is durable."""
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
    return KeptStop(session, stop, at, answer.outcome, answer.run_id, answer.receipt_id, generation, cause, failure)
