"""CauseLaws: why a run ends, and which Stop or shutdown may end it (laws L4, L5, L9, L10, L11)."""

from __future__ import annotations

import math

from actors.model import Event, Provenance, Waiting
from actors.ports import Batch
from actors.requests import Delete, Stop
from tests.sim.watch.answers import AnswerLaws
from tests.sim.watch.children import ChildLaws
from tests.sim.watch.journal import JournalLaws
from tests.sim.watch.seen import FROM_FAULTS, INSTANT_S, Seen


class CauseLaws:
    """The causes of ends: those that agents were given, and those on record."""

    def __init__(self, seen: Seen, journal: JournalLaws, answers: AnswerLaws, children: ChildLaws) -> None:
        self._seen = seen
        self._children = children
        self._journal = journal
        self._answers = answers
        # By run: the cause that its agent was given.
        self._why: dict[str, Provenance] = {}

    def told_why(self, session: str, run_id: str, why: Provenance | None) -> None:
        """An agent is told that its run is over, and why: that is the first cause, and goes on record (law L5)."""
        if why is not None:
            self._why.setdefault(run_id, why)
            self.first_cause(session, run_id)

    def first_cause(self, session: str, run_id: str) -> None:
        """The cause on record is the one that the agent was given (law L5)."""
        why, cause = self._why.get(run_id), self._seen.laws(session).cause.get(run_id)
        recorded = run_id in self._seen.laws(session).cause
        # An actor that fails forgets what it decided and had not written.
        if why is None or not recorded or why.source == "run.ended" or self._seen.forgot:
            return
        told, written = (why.source, why.requested_by), cause and (cause["source"], cause.get("requested_by"))
        if told != written:
            self._seen.break_(f"{run_id} was told that it ends by {told}, on record is {written} (L5)")

    def fenced(self, event: Event, batch: Batch, told: set[str], moved: set[str | None]) -> None:
        """A run is fenced: it is closed in the same step, and what fenced it had to (laws L4, L5, L10, L11).

        `told`: the requests whose ids the batch stores. `moved`: the runs whose status it changes.
        """
        run, provenance = event.data["run_id"], event.data["provenance"]
        source, by = provenance["source"], provenance.get("requested_by")
        if run is not None and run not in moved:
            self._seen.break_(f"{run} is fenced, and not closed in the same step (L4)")
        if source in FROM_FAULTS and not self._seen.faults and not self._seen.crashes:
            self._seen.break_(f"{run} ends by {source}, and nothing has failed (L5)")
        if source == "supervisor.shutdown" and not self._is_interrupted(run, provenance["initiated_at"], batch):
            self._seen.break_(f"{run} is interrupted while it may end by itself (L11)")
        request = self._seen.requests.get(str(by))
        refused_at, ended = self._answers.refused.get(str(by), math.inf), self._seen.disk.run(run or "")
        again = self._seen.under_way[str(by)] or self._seen.sent.get(str(by), (0.0, 0.0))[1] > refused_at
        if ended is not None and not again and refused_at < (ended.started_at or 0.0):
            self._seen.break_(f"{run} began when {by} was refused, and is ended by it (L5)")
        # One that is sent again behind a deletion is a new Stop.
        forgotten = self._journal.let_go | self._seen.deleted_requests
        kept = self._journal.kept.get(str(by)) if by not in forgotten else None
        if kept is not None and kept.stop.sent_at is None and provenance["initiated_at"] > kept.at + INSTANT_S:
            self._seen.break_(f"{by} is on record as of {provenance['initiated_at']}, and came at {kept.at} (L5)")
        if self._children.is_child(run):
            # By what ended its parent, as a rule, whose session has the request.
            return
        if source == "session.new_message" and self._seen.faults:
            # Its fence was shut in memory, and the store did not take it: it was refused, and says so.
            return
        if request is not None and by not in told and not isinstance(request, Delete):
            self._seen.break_(f"{by} has fenced {run}, and its id is not on record with that (L10)")
        if source == "session.new_message" and by is not None:
            touched = {e.data["id"] for e in batch.events if e.kind == "message"}
            if by not in touched:
                self._seen.break_(f"{by} took over from {run}, and is no input in the same step (L4)")

    def _is_interrupted(self, run_id: str, at: float, batch: Batch) -> bool:
        """True if a shutdown was interrupting what ran at that time, and the run had begun before it was over.

        That may be on record later, when the next daemon decides a Stop of the journal that has joined the end.
        """
        world = self._seen.world
        now = [(world.interrupts_at, math.inf)] if world is not None and world.interrupts_at is not None else []
        run = self._seen.disk.run(run_id) or next(one for one in batch.runs if one.run_id == run_id)
        began = run.started_at or 0.0
        times = (*self._seen.interrupts, *now)
        return any(since - INSTANT_S <= at <= until and began < until for since, until in times)

    def aimed(self, event: Event) -> None:
        """A Stop that was aimed at a run ends that run and no other (law L9)."""
        provenance = event.data.get("provenance") or {}
        stop = self._seen.requests.get(str(provenance.get("requested_by")))
        queued = event.run_id not in self._seen.laws(event.session).run_generation
        withdrawn = isinstance(stop, Stop) and stop.waiting is Waiting.WITHDRAW and queued
        given = self._seen.answer_to(stop.id) if isinstance(stop, Stop) else None
        run, ends = self._seen.disk.run(event.run_id or ""), self._children.above(event.run_id)
        if given is not None and run is not None and (run.started_at or 0.0) > given.at:
            self._seen.break_(f"{event.run_id} began behind {provenance['requested_by']}, and is ended by it (L9)")
        # An actor that fails forgets a Stop that it has not written. The child run which that ended has it on record.
        lost = self._seen.forgot and self._children.is_child(event.run_id)
        other = given is not None and not queued and given.answer[0] != "stopped" and given.answer[1] not in ends
        if given is not None and other and not lost:
            said = " ".join(filter(None, given.answer[:2]))
            self._seen.break_(
                f"{event.run_id} is ended by {provenance['requested_by']}, which was answered {said} (L10)"
            )
        if isinstance(stop, Stop) and stop.run_id not in (None, *ends) and not withdrawn:
            self._seen.break_(f"{stop.id} was aimed at {stop.run_id} and ends {event.run_id} (L9)")
        if provenance.get("source") in FROM_FAULTS and not self._seen.faults and not self._seen.crashes:
            self._seen.break_(f"{event.run_id} ends by {provenance['source']}, and nothing has failed (L5)")
