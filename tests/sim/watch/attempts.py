"""AttemptLaws: which runs begin again after a failure or a crash, and which do not (laws L7, L12)."""

from __future__ import annotations

from actors.model import Event, RunInfo
from actors.ports import Batch
from actors.protocol.run_record import is_own
from actors.requests import Stop
from actors.run_status import RunStatus
from tests.sim.watch.answers import AnswerLaws
from tests.sim.watch.journal import JournalLaws
from tests.sim.watch.seen import Seen


class AttemptLaws:
    """Further attempts at a message whose run was ended."""

    def __init__(self, seen: Seen, journal: JournalLaws, answers: AnswerLaws) -> None:
        self._seen = seen
        self._journal = journal
        self._answers = answers

    def begins_again(self, event: Event) -> None:
        """A run that a client was told is stopped, or over, does not begin behind that, nor is it tried again (L7)."""
        before = event.data.get("retry_of", event.run_id)
        for request_id in self._seen.given:
            given = self._seen.answer_to(request_id)
            if given is None or given.answer[1] not in (event.run_id, before) or event.at <= given.at:
                continue
            self._seen.break_(
                f"{event.run_id} begins, and {request_id} was told that {before} is {given.answer[0]} (L7)"
            )
        refused = self._answers.superseded.get(before or "")
        if refused is not None and refused[1:] == (self._seen.crashes, self._seen.restarts) and not self._seen.forgot:
            self._seen.break_(f"{event.run_id} begins, and {refused[0]} was told that it has stopped {before} (L7)")

    def tried_again(self, event: Event) -> None:
        """What a Stop of the session came behind does not begin anew by itself (law L12)."""
        before = self._seen.disk.run(event.data.get("retry_of", ""))
        if before is not None and (self._saved(before) or self._guarded(before)):
            self._seen.break_(f"{event.run_id} tries {before.run_id} again, which had saved or done something (L4)")
        for request_id in self._seen.given if before is not None else ():
            given, stop, kept = (
                self._seen.answer_to(request_id),
                self._seen.requests.get(request_id),
                self._journal.kept.get(request_id),
            )
            if given is None or given.session != event.session or not isinstance(stop, Stop) or stop.run_id is not None:
                continue
            # A Stop that had counted further was decided behind this start.
            earlier = kept is not None and kept.generation is not None and kept.generation < event.generation
            began = (before.started_at if before is not None else None) or 0.0
            if earlier and self._seen.sent[request_id][0] >= began:
                self._seen.break_(f"{event.run_id} is another attempt, and {request_id} had stopped the first (L12)")

    def not_tried_again(self, event: Event, batch: Batch) -> None:
        """What a failure or a crash ended before it did anything begins anew, unless a Stop was about it (law L12)."""
        source, run = (event.data.get("provenance") or {}).get("source"), self._seen.disk.run(event.run_id or "")
        actor = self._seen.world.session_if_alive(batch.session) if self._seen.world is not None else None
        if source not in ("store.failure", "supervisor.recovery") or run is None or actor is None:
            return
        state, began = actor._protocol.state, run.started_at or 0.0
        barred = (
            run.parent is not None or state.interrupted or state.quarantined or state.unavailable(run.agent) is not None
        )
        if barred or run.attempt >= state.settings.attempts_max:
            return
        kept = [one.stop for one in self._journal.kept.values() if one.session == run.session and one.at >= began]
        stopped = any(stop.run_id in (None, run.run_id) for stop in kept)
        acted = run.run_id in self._seen.laws(run.session).spoken or self._saved(run) or self._guarded(run)
        acted = acted or run.run_id in self._seen.asked_for_guards
        own = any(
            is_own(row) and row.run_id == run.run_id for row in self._seen.disk.of(run.session).processes.values()
        )
        again = any(one.data.get("retry_of") == run.run_id for one in batch.events)
        if run.status is RunStatus.IN_PROGRESS and not (acted or own or stopped or again):
            self._seen.break_(f"{run.run_id} ends by {source}, had done nothing, and is not tried again (L12)")

    def _saved(self, run: RunInfo) -> bool:
        """True if it is on record that a run has saved something."""
        events = self._seen.disk.events(run.session)
        return any(one.kind == "session.state" and one.run_id == run.run_id for one in events)

    def _guarded(self, run: RunInfo) -> bool:
        """True if the agent of a run has had an effect behind a guard, and the daemon that knew of it goes on."""
        return self._seen.effects[run.run_id] > 0
