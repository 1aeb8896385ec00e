"""Outage: a session while the store does not take writes, or could not be read.

The fence holds in memory: every gate is closed, and children are halted. A Stop is answered with `durable=False`
and kept, any other request is refused. The store is asked again at growing intervals. When it answers, the session is
read again and restored as after a restart, with `store.failure` as the cause (see `actors.hierarchy.reading`). The
Stops that were kept are decided then, under their own ids, and their first answers stand.

If the store is well and only this batch can never be stored (`CommitFailed.unfit`), the requests in it are refused for
good, and those behind it may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from loguru import logger
from pykka import ActorRef

from actors.errors import CountermandError, StoreUnavailable
from actors.hierarchy.answers import cannot_be_stored, unavailable, unknown
from actors.hierarchy.batches import Batches, Sent
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.quarantine import Quarantine
from actors.hierarchy.run_actors import RunActors
from actors.hierarchy.serving import Serving
from actors.hierarchy.tree_actors import TreeActors
from actors.kernel.future import ReplyFuture
from actors.messages import CommitFailed, Halt, TryStore
from actors.model import Provenance, RunInfo, Scope
from actors.ports import Ports
from actors.protocol.step import AnswerRequest, RefuseDeleted, StartRun, TellParent
from actors.protocol.stops import is_of_stop, provenance_of
from actors.requests import Accepted, OutsideRequest, Stop, Stopped

NO_WRITES: Final = "the store does not take writes"
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0


@dataclass(slots=True)
class Unrecorded:
    """What this actor knows of its session, and the store may not, until the session is restored and that is on record.

    `cause`: why the incarnation before this one ended; None if it ended by itself.
    `after_crash`: what the session owned before the supervisor was started is still being ended.
    `ended`: by id, runs that had begun and have ended for a cause, and runs that a Stop has cancelled. That stands.
    `undone`: by id, runs that had not begun. What the store did not take of them has not happened, whether that was a
    start or an end: they wait again, or never come to be.
    `trees_ended`: by id, why trees were ended that may not be on record as the session's.
    """

    cause: Provenance | None
    after_crash: bool
    ended: dict[str, RunInfo] = field(default_factory=dict)
    undone: dict[str, RunInfo] = field(default_factory=dict)
    trees_ended: dict[str, Provenance] = field(default_factory=dict)


class Outage:
    """A session whose store fails. Used in the turns of its actor only.

    Args:
        owner: the session's actor, which gets TryStore.
        ports: the clock and the settings.
        live: the session.
        batches: what the store did not take.
        runs: the actors of its runs.
        trees: the actors of its process trees.
        serving: holds reports behind an answer, which now does not come.
        late_stops: keeps Stops.
        quarantine: counts batches that never can be stored.
        cause: why the incarnation before this one ended; None if it ended by itself.
    """

    def __init__(
        self,
        owner: ActorRef[Any],
        ports: Ports,
        live: Incarnation,
        batches: Batches,
        runs: RunActors,
        trees: TreeActors,
        serving: Serving,
        late_stops: LateStops,
        quarantine: Quarantine,
        cause: Provenance | None,
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._batches = batches
        self._runs = runs
        self._trees = trees
        self._serving = serving
        self._late_stops = late_stops
        self._quarantine = quarantine
        self._retry_s = RETRY_FIRST_S
        self._error = ""
        self.unrecorded = Unrecorded(cause, after_crash=cause is None)

    # ── It begins, and is over ────────────────────────────────────────────────────────────────────

    def begin(self, failed: CommitFailed) -> None:
        """A batch was not stored: fence in memory, halt, answer what can be answered, and ask the store again later."""
        logger.error(
            "session {}: batch {} was not stored: {} ({} messages in the thread)",
            self._live.session,
            failed.number,
            failed.error,
            len(self._live.protocol.state.thread.messages()),
        )
        at = self._ports.clock.wall()
        cause = Provenance(source="store.failure", reason=failed.error or "no reason given", initiated_at=at)
        self._live.phase = Phase.FAILED
        self._error = failed.error or ""
        self._serving.let_reports_go_on()
        self.unrecorded.cause = self.unrecorded.cause or cause
        self._end_all(cause)
        sent_before = self._batches.take_failed()
        self._note_runs(sent_before)
        self._answer_all(sent_before, failed)
        if failed.unfit:
            self._quarantine.count_unfit(self._ports.clock.monotonic())
        self.try_later()

    def try_later(self) -> None:
        """Ask the store again after a while, and the next time after a longer one."""
        self._ports.clock.call_later(self._retry_s, self._owner, TryStore())
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def over(self) -> None:
        """The session was restored: all runs that were open when it was read are closed, and that is on record."""
        self.unrecorded = Unrecorded(None, after_crash=False)
        self._retry_s = RETRY_FIRST_S

    def _end_all(self, cause: Provenance) -> None:
        self._live.protocol.abandon(cause)
        halt = Halt(cause, self._ports.settings.grace_s)
        self._runs.halt_all(halt)
        for owned in self._live.protocol.state.owned.values():
            if not owned.durable:
                # It may not be on record that it is the session's, and no report has said so: it ends with its run.
                self.unrecorded.trees_ended[owned.id] = cause
                self._trees.end(owned.id, halt)

    def _note_runs(self, sent_before: Iterable[Sent]) -> None:
        """Note which runs have ended and which had not begun: the store may know neither."""
        unstarted = {effect.run_id for sent in sent_before for effect in sent.later if isinstance(effect, StartRun)}
        for info in (info for sent in sent_before for info in sent.runs):
            begun = info.started_at is not None and info.run_id not in unstarted
            if info.provenance is not None and (begun or is_of_stop(info.provenance)):
                self.unrecorded.ended.setdefault(info.run_id, info)
            elif not begun:
                self.unrecorded.undone[info.run_id] = info

    @property
    def _no_writes(self) -> str:
        """Why a request is refused, with the error of the store as far as it is known."""
        return f"{NO_WRITES}: {self._error}" if self._error else NO_WRITES

    # ── Requests whose batch was not stored ───────────────────────────────────────────────────────

    def _answer_all(self, sent_before: Iterable[Sent], failed: CommitFailed) -> None:
        unstored = frozenset[str]().union(*(sent.requests for sent in sent_before))
        self._live.protocol.state.book.drop(unstored)
        for sent in sent_before:
            unfit = sent.requests if failed.unfit and sent.number == failed.number else frozenset()
            for effect in sent.later:
                if isinstance(effect, AnswerRequest):
                    why = failed.error if effect.request.id in unfit else None
                    self._answer_unstored(effect, why, unstored)
                elif isinstance(effect, RefuseDeleted) and isinstance(effect.request, Stop):
                    self._keep_and_answer(effect.request, unknown(effect.request), effect.reply)
                elif isinstance(effect, RefuseDeleted) and effect.reply is not None:
                    why = "the store did not take the deletion that this request came behind"
                    effect.reply.try_set_exception(unavailable(why, effect.request))
                elif isinstance(effect, TellParent):
                    # It asks again, and is told what is on record when the session was read.
                    effect.reply.try_set_exception(StoreUnavailable(self._no_writes))
        for request, reply in self._live.protocol.deletion.call_off():
            if reply is not None:
                reply.try_set_exception(unavailable(self._no_writes, request))

    def _answer_unstored(self, effect: AnswerRequest, unfit: str | None, unstored: frozenset[str]) -> None:
        """Answer a request whose batch was not stored. A Stop has happened, anything else has not.

        Args:
            effect: the request, its answer, and who waits for it.
            unfit: why its batch can never be stored; None if it may be another time.
            unstored: ids of the requests that are not on record. Any other is a repeat, whose answer is on record, and
                which has waited behind what is not.
        """
        request, answer, reply = effect.request, effect.answer, effect.reply
        if isinstance(request, Stop) and request.id not in unstored:
            if reply is not None:
                reply.try_set(answer)
            return
        if isinstance(request, Stop) and isinstance(answer, Stopped):
            self._keep_and_answer(request, self._batches.early_answer(request, answer, unstored), reply)
            return
        superseded = answer.superseded_run_id if isinstance(answer, Accepted) else None
        if superseded in self.unrecorded.undone:
            superseded = None
        if reply is None:
            return
        if unfit is None:
            reply.try_set_exception(unavailable(self._no_writes, request, superseded))
        else:
            reply.try_set_exception(cannot_be_stored(request, unfit, superseded))

    def _keep_and_answer(self, stop: Stop, answer: Stopped, reply: ReplyFuture[Any] | None) -> None:
        """Keep a Stop that is not stored, to be decided again when the store is back, and answer it."""
        ended = None if answer.run_id is None else self.unrecorded.ended.get(answer.run_id)
        failure = self.unrecorded.cause
        cause = ended.provenance if ended is not None else failure
        if cause is not None and cause.requested_by == stop.id:
            # This Stop was the first cause itself.
            cause = None
        self._late_stops.store_failed(stop, answer, reply, self._live.protocol.state.generation, cause, failure)

    # ── Requests that come meanwhile ──────────────────────────────────────────────────────────────

    def request(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        """Answer and keep a Stop; refuse anything else."""
        if not isinstance(request, Stop):
            if reply is not None:
                reply.try_set_exception(unavailable(self._no_writes, request))
            return
        at = self._ports.clock.wall()
        try:
            answer = self._late_stops.first_answer(request)
            stored = self._live.protocol.state.book.known(request, at) if answer is None else None
            if stored is not None:
                if reply is not None:
                    reply.try_set(stored)
                return
            self._keep_and_answer(request, answer or self._decide_unstored(request, at), reply)
        except CountermandError as error:
            if reply is not None:
                reply.try_set_exception(error)

    def _decide_unstored(self, stop: Stop, at: float) -> Stopped:
        """Say what a Stop comes to, and do of it what needs no store. `at`: epoch seconds, UTC."""
        if not self._live.was_read or self._live.protocol.state.book.in_doubt(stop.id):
            return unknown(stop)
        stops, unrecorded = self._live.protocol.stops, self.unrecorded
        answer = stops.answer_unstored(stop, unrecorded.ended, unrecorded.undone)
        provenance = provenance_of(stop, at)
        for owned in self._live.protocol.state.owned.values() if stop.run_id is None else ():
            if stop.scope is Scope.SESSION or owned.row.host:
                self._trees.end(owned.id, Halt(provenance, self._live.grace_s(stop.mode, owned.row.host)))
        for info in stops.cancelled_unstored(stop, answer, provenance, unrecorded.undone):
            unrecorded.ended.setdefault(info.run_id, info)
        for record in stops.killed_unstored(stop, answer):
            self._runs.end_parts(record.id, Halt(record.token.provenance or provenance, 0.0))
        return answer
