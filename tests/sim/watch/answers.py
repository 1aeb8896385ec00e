"""AnswerLaws: what clients see. An answer is durable, the only one of its id, and true (L4, L6, L7, L9, L10, L12)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from actors.errors import CountermandError, ShuttingDown, StoreUnavailable
from actors.hierarchy.late_stops import STOPS_KEPT_MAX
from actors.ids import request_time
from actors.model import Event
from actors.ports import Batch
from actors.requests import UNKNOWN, Accepted, NewMessage, OutsideRequest, Resumed, Stop, Stopped
from tests.sim.bounds import Bounds
from tests.sim.watch.journal import JournalLaws
from tests.sim.watch.seen import Seen, StopAnswer, decode_answer, stored_answers


class AnswerLaws:
    """What clients are answered and shown."""

    def __init__(self, seen: Seen, journal: JournalLaws, bounds: Bounds) -> None:
        self._seen = seen
        self._journal = journal
        self._bounds = bounds
        # Stops that were answered with `UNKNOWN`.
        self.unknown: set[str] = set()
        # By request: when the last copy of it that was under way was refused, in virtual seconds since the epoch.
        self.refused: dict[str, float] = {}
        # By run: a message that was refused and had stopped that run all the same, with the crashes and the restarts
        # until then.
        self.superseded: dict[str, tuple[str, int, int]] = {}
        self._answers: dict[str, Any] = {}
        # By session and origin: a message that was sent before the first is returned, one after the second is not.
        self._cutoffs: dict[tuple[str, str], tuple[float, float]] = {}

    def published(self, session: str, events: Iterable[Event], last: int) -> None:
        """Events are shown: each once, in order, and durable by now (laws L6, L12)."""
        for event in events:
            if event.seq <= last:
                self._seen.break_(f"event {event.seq} of {session} is published behind {last} (L6)")
            last = event.seq
        if last > self._seen.disk.last_seq(session):
            self._seen.break_(f"event {last} of {session} is published before it is durable (L12)")

    def shown(self, event: Event) -> None:
        """An event that is not stored is shown: its run was open where it stands in the log (law L1)."""
        closed = self._seen.laws(event.session).closed_at.get(event.run_id or "")
        if closed is not None and closed <= event.seq:
            self._seen.break_(f"{event.kind} of {event.run_id} is shown behind the end of its run (L1)")

    def is_answered(self, request_id: str) -> bool:
        """True if a client has a durable answer to this id."""
        return request_id in self._answers

    def answered(self, session: str, request: OutsideRequest, outcome: object) -> None:
        """A client gets an answer: it is durable, and the only one of its id (laws L10, L12)."""
        if self._seen.requests[request.id] is not request:
            # Another request under an id that was used: its answer is no answer to that id.
            return
        self._bounds.answered(request, outcome)
        if isinstance(outcome, ShuttingDown) and self._seen.world is not None:
            self._seen.refused_at.setdefault(session, self._seen.world.clock.wall())
        if isinstance(outcome, CountermandError):
            # A copy that is under way may be taken, and its answer may come early.
            now = self._seen.world.clock.wall() if self._seen.world is not None else 0.0
            self.refused[request.id] = math.inf if self._seen.under_way[request.id] else now
            if isinstance(outcome, StoreUnavailable) and outcome.superseded_run_id is not None:
                told = request.id, self._seen.crashes, self._seen.restarts
                self.superseded.setdefault(outcome.superseded_run_id, told)
            known = self._answers.get(request.id)
            if isinstance(request, Stop) and self._seen.answer_to(request.id) is not None:
                self._seen.break_(
                    f"{request.id} was answered {self._seen.given[request.id]}, and is refused now: {outcome} (L10)"
                )
            if known is not None and type(outcome).__name__ in ("Invalid", "RequestReused", "RunActive"):
                self._seen.break_(f"{request.id} was answered by {known}, and is refused now: {outcome} (L10)")
            return
        mine = sum(1 for kept in self._journal.kept.values() if kept.session == session)
        if isinstance(outcome, Stopped) and not (
            outcome.durable or request.id in self._journal.kept or mine >= STOPS_KEPT_MAX
        ):
            self._seen.break_(f"{request.id} is answered before it is durable, and the journal was not told (L12)")
        if isinstance(outcome, Stopped) and outcome.outcome == UNKNOWN:
            self.unknown.add(request.id)
        elif isinstance(outcome, Stopped):
            survives = outcome.durable or outcome.journalled
            self.stands(session, request.id, outcome, survives=survives)
        if isinstance(outcome, Stopped) and not outcome.durable:
            self._journal.told_not_durable.add(request.id)
            if outcome.journalled and request.id not in self._journal.in_journal:
                self._seen.break_(f"{request.id} is said to be in the journal, and is not (L12)")
        if not isinstance(outcome, msgspec.Struct) or not getattr(outcome, "durable", True):
            return
        if request.id not in self._seen.told_at:
            self._seen.break_(f"{request.id} is answered before its effect is durable (L12)")
        # A Stop is never too old: where it comes again behind a deletion it has its effect again.
        again = request.id in self._seen.deleted_requests and isinstance(request, Stop)
        if isinstance(outcome, Accepted) and outcome.fate is not None:
            laws = self._seen.laws(session)
            known_to = {"input": laws.inputs, "returned": laws.returned}[outcome.fate]
            if outcome.message_id not in known_to and request.id not in self._seen.deleted_requests:
                self._seen.break_(f"{outcome.message_id} is said to be {outcome.fate}, which is not on record (L4)")
            # What became of it is news; the rest of the answer stands.
            outcome = msgspec.structs.replace(outcome, fate=None)
        if self._answers.setdefault(request.id, outcome) != outcome and not again:
            self._seen.break_(f"{request.id} has two answers: {self._answers[request.id]} and {outcome} (L10)")
        if isinstance(outcome, Stopped) and outcome.run_id is not None:
            known = self._seen.receipts.setdefault(outcome.run_id, outcome.receipt_id)
            if known != outcome.receipt_id:
                self._seen.break_(f"{outcome.run_id} has two receipts: {known} and {outcome.receipt_id} (L7)")
            if isinstance(request, Stop) and request.run_id not in (None, outcome.run_id):
                self._seen.break_(f"{request.id} was aimed at {request.run_id} and answers for {outcome.run_id} (L9)")
        if isinstance(outcome, Accepted | Resumed) and outcome.generation is not None and outcome.run_id:
            written = self._seen.laws(session).run_generation.get(outcome.run_id)
            if written is not None and written != outcome.generation:
                self._seen.break_(
                    f"{request.id} is answered with generation {outcome.generation}, on record is {written}"
                )

    def stands(self, session: str, request_id: str, answer: Stopped, *, survives: bool) -> None:
        """What a Stop was answered it is answered again, whatever fails meanwhile, and that is stored (law L10)."""
        if request_id in self._seen.deleted_requests:
            # It is new where it comes again.
            return
        said = answer.outcome, answer.run_id, answer.receipt_id
        given, world = self._seen.answer_to(request_id), self._seen.world
        if given is None:
            at = world.clock.wall() if world is not None else 0.0
            self._seen.given[request_id] = StopAnswer(session, said, at, self._seen.crashes, survives)
            return
        given.survives = given.survives or survives
        if given.answer != said:
            self._seen.break_(f"{request_id} was answered {given.answer}, and is answered {said} now (L10)")

    def all_stand(self) -> None:
        """Everything has settled: a receipt whose id was told is there, and what was not known is decided (law L10).

        Raises:
            AssertionError: one is not.
        """
        for request_id in self._seen.given:
            given = self._seen.answer_to(request_id)
            receipt_id = given.answer[2] if given is not None else None
            filed = (
                receipt_id is None or receipt_id in self._seen.deleted_receipts or self._seen.disk.receipt(receipt_id)
            )
            assert filed, f"{request_id} was told of {receipt_id}, which is not there (L10)"
        for request_id in self.unknown - self.refused.keys() - self._seen.deleted_requests:
            known = any(request_id in tables.requests for tables in self._seen.disk.tables.values())
            lost = self._seen.crashes and request_id not in self._journal.in_journal
            assert known or lost or self._is_about_nothing(request_id), (
                f"{request_id} was told that it is not known, and never is (L10)"
            )

    def _is_about_nothing(self, request_id: str) -> bool:
        """True if a Stop is refused where it is decided: its run never came to be, or its session was deleted."""
        stop, kept = self._seen.requests[request_id], self._journal.kept.get(request_id)
        assert isinstance(stop, Stop), "nothing else is answered so"
        deleted = kept is not None and kept.session in self._seen.disk.deleted
        runs = [run_id for tables in self._seen.disk.tables.values() for run_id in tables.runs]
        return deleted or (stop.run_id is not None and stop.run_id not in runs)

    def cut_off(self, batch: Batch) -> None:
        """A message that was sent before a Stop of its sender, and comes after it, is returned (law L4)."""
        for told in stored_answers(batch):
            request, answer = self._seen.requests.get(told.request_id), decode_answer(told.answer)
            if isinstance(request, Stop) and isinstance(answer, Stopped) and answer.outcome != "already_over":
                kept = self._journal.kept.get(request.id)
                handled_at = told.at if kept is None else min(told.at, kept.at)
                # When it came is known where it was sent once. It may have waited to be decided: in a session that is
                # being read, or on its way to one.
                first, last = self._seen.sent.get(request.id, (handled_at, handled_at))
                # An id tells milliseconds.
                least = min(first, handled_at, request_time(request.id) or first)
                most = handled_at if first != last else min(first, handled_at)
                if request.sent_at is not None:
                    least = most = min(request.sent_at, most)
                key = (batch.session, request.origin)
                low, high = self._cutoffs.get(key, (least, most))
                self._cutoffs[key] = max(least, low), max(most, high)
            elif isinstance(request, NewMessage) and isinstance(answer, Accepted) and request.sent_at is not None:
                low, high = self._cutoffs.get((batch.session, request.origin), (0.0, 0.0))
                if request.sent_at < low and answer.returned != "stopped_before_arrival":
                    self._seen.break_(f"{request.id} was sent before a Stop, came after it, and is taken (L4)")
                if request.sent_at >= high and answer.returned == "stopped_before_arrival":
                    self._seen.break_(f"{request.id} is returned as stopped before its arrival, and was not (L4)")
