"""Batches: the steps of a session on their way to the store.

The records of a step go to the store as one batch, and what the step starts or answers waits until the batch is
durable. The next batch may be sent before that. `Committed` is cumulative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pykka import ActorRef

from actors.hierarchy.answers import unknown, without_unstored
from actors.hierarchy.effects import Effects
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.late_stops import LateStops
from actors.kernel.each import Each
from actors.model import Event, RunInfo
from actors.ports import Batch, Ports
from actors.protocol.step import AnswerRequest, Later, RefuseDeleted, ShowEphemeral
from actors.requests import Stop, Stopped


@dataclass(slots=True)
class Sent:
    """A batch that is not known to be durable, or effects without records that wait for the batch before them.

    `later`: the effects that wait. `requests`: ids of the requests that it, or the batch that it waits
    for, puts on record. `runs`: as it records them.
    """

    number: int
    events: tuple[Event, ...]
    later: list[Later]
    requests: frozenset[str] = frozenset()
    runs: tuple[RunInfo, ...] = ()


class Batches:
    """The batches of one session that are not known to be durable. Used in the turns of its actor only.

    Args:
        owner: the session's actor, which gets Committed and CommitFailed.
        ports: the store and the publisher.
        live: the session.
        effects: carries out what a step decided.
        late_stops: hears which Stops are on record.
    """

    def __init__(
        self, owner: ActorRef[Any], ports: Ports, live: Incarnation, effects: Effects, late_stops: LateStops
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._effects = effects
        self._late_stops = late_stops
        self.number = 0
        self.sent: deque[Sent] = deque()

    def begin(self) -> None:
        """A new incarnation: its batches are counted from 1."""
        self.number = 0
        self.sent.clear()

    # ── Sending ───────────────────────────────────────────────────────────────────────────────────

    def send_step(self) -> None:
        """Send the records of the step, carry out what takes away, and let the rest wait for the commit."""
        if self._live.protocol.state.step.is_empty:
            return
        step = self._live.protocol.state.take_step()
        later = step.later
        if step.has_records:
            # Before the halts: the store can write while these are sent.
            self.number += 1
            events = tuple(step.events)
            requests = frozenset(row.request_id for row in step.requests)
            runs = tuple(step.runs.values())
            self.sent.append(Sent(self.number, events, step.later, requests, runs))
            batch = Batch(
                session=self._live.session,
                incarnation=self._live.id,
                number=self.number,
                events=events,
                row=self._live.protocol.state.row if step.row_changed else None,
                runs=runs,
                calls=tuple(step.calls.values()),
                processes=tuple(step.processes.values()),
                receipts=tuple(step.receipts.values()),
                pending=tuple(step.pending.values()),
                waiting=tuple(step.waiting.values()),
                unwaiting=tuple(step.unwaiting),
                requests=tuple(step.requests),
                attachments=tuple(step.attachments),
                erase=step.erase,
            )
            self._ports.store.commit(batch, self._owner)
            later = []
        with Each() as each:
            each.do(self._effects.carry_out_now, step.now)
            if self.sent and later:
                # There is nothing to write, but what the effects rest on may not be durable yet.
                self.wait_for_last(later)
            elif later:
                each.do(self._stops_are_durable, later)
                each.do(self._effects.carry_out_later, later)

    def wait_for_last(self, later: list[Later]) -> None:
        """Keep effects without records until the batch that was sent last is durable.

        They get its number and its requests, so that they share its fate if it cannot be stored, and they count as a
        batch, so that repeats of a request have a bound too.
        """
        last = self.sent[-1]
        self.sent.append(Sent(last.number, (), later, last.requests))

    # ── What became of them ───────────────────────────────────────────────────────────────────────

    def committed(self, number: int) -> None:
        """All batches up to this one are durable: publish them, and carry out what waited for them."""
        with Each() as each:
            while self.sent and self.sent[0].number <= number:
                sent = self.sent.popleft()
                each.do(self._publish, sent)
                each.do(self._stops_are_durable, sent.later)
                later = [effect for effect in sent.later if not isinstance(effect, ShowEphemeral)]
                each.do(self._effects.carry_out_later, later)

    def _publish(self, sent: Sent) -> None:
        """Publish a batch. An event that is not stored is shown in its place: behind its seq it would be late."""
        publisher, session, rest = self._ports.publisher, self._live.session, sent.events
        for effect in sent.later:
            if isinstance(effect, ShowEphemeral):
                earlier = sum(1 for event in rest if event.seq <= effect.event.seq)
                if earlier:
                    publisher.publish(session, rest[:earlier])
                    rest = rest[earlier:]
                publisher.ephemeral(effect.event)
        if rest:
            publisher.publish(session, rest)

    def _stops_are_durable(self, effects: Iterable[Later]) -> None:
        """Answers are about to be given, and their Stops are on record: report those that were answered early."""
        for effect in effects:
            if not isinstance(effect, AnswerRequest) or not isinstance(effect.request, Stop):
                continue
            stop = self._late_stops.on_record(effect.request)
            if stop is not None:
                assert isinstance(effect.answer, Stopped), "the answer to a Stop"
                self._live.protocol.stops.durable(stop, effect.answer)

    def take_failed(self) -> list[Sent]:
        """The store failed: take out all batches, the last of which is what was decided and not sent yet."""
        step = self._live.protocol.state.take_step()
        requests = frozenset(row.request_id for row in step.requests)
        self.sent.append(Sent(self.number + 1, (), step.later, requests, tuple(step.runs.values())))
        sent, self.sent = self.sent, deque()
        return list(sent)

    # ── Answers before the commit ─────────────────────────────────────────────────────────────────

    def unstored(self) -> frozenset[str]:
        """Ids of the requests that were decided, and are not on record yet."""
        now = (row.request_id for row in self._live.protocol.state.step.requests)
        return frozenset(now).union(*(sent.requests for sent in self.sent))

    def early_answer(self, stop: Stop, answer: Stopped, unstored: frozenset[str]) -> Stopped:
        """The answer to a Stop that is not on record yet.

        If the session is being deleted, and the deletion is not stored, an earlier answer to this Stop stands.
        """
        in_doubt = self._live.protocol.state.book.in_doubt(stop.id)
        return unknown(stop) if in_doubt else without_unstored(answer, unstored)

    def answer_overdue(self, request_id: str) -> None:
        """A Stop has waited for its commit as long as it may: answer it.

        Behind a deletion another request with its id may wait to be refused: it has no bound.
        """
        for sent in self.sent:
            for effect in sent.later:
                if not isinstance(effect, AnswerRequest | RefuseDeleted):
                    continue
                stop = effect.request
                if not isinstance(stop, Stop) or stop.id != request_id:
                    continue
                answer = unknown(stop)
                if isinstance(effect, AnswerRequest):
                    assert isinstance(effect.answer, Stopped), "the answer to a Stop"
                    answer = self.early_answer(stop, effect.answer, self.unstored())
                self._late_stops.answer(request_id, answer, effect.reply)
