"""JournalLaws: Stops that the store does not have yet. No crash loses one that the journal has (law L12)."""

from __future__ import annotations

from actors.model import Event
from actors.ports import Batch, KeptStop
from tests.sim.disk import journal_takes
from tests.sim.watch.seen import FROM_FAULTS, Seen


class JournalLaws:
    """What the stop journal is given, what it has, and what it lets go."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        # By request id: the Stops that were handed to the journal.
        self.kept: dict[str, KeptStop] = {}
        # By request id: Stops in the journal that are still to be decided, and how many crashes there had been.
        self.owed: dict[str, tuple[KeptStop, int]] = {}
        # Request ids that the journal was told to let go, and that were not handed to it again.
        self.let_go: set[str] = set()
        self.stops_told: set[str] = set()
        self.told_not_durable: set[str] = set()
        # Stops that were stored while their session was deleted: an event about them would begin it anew.
        self.without_event: set[str] = set()
        self.in_journal: set[str] = set()

    def crashed(self) -> None:
        """Forget what only the memory of the crashed world had."""
        # A Stop that the journal did not have is forgotten: its sender, who was answered `durable=False`, sends it
        # again, and it is decided anew. So is one that the journal had without its answer.
        self.told_not_durable &= self.in_journal
        journal = self._seen.disk.journal
        # One that was let go, and is handed to the journal once more, is in it again when it is written.
        known = [one for one in self.kept.items() if one[0] in self.let_go or (one[1].session, one[0]) in journal]
        self.kept = {request_id: journal.get((kept.session, request_id), kept) for request_id, kept in known}
        self.let_go -= {one for _, one in journal}

    def keeps(self, kept: KeptStop) -> None:
        """A Stop is handed to the journal. What failed before it came is named: it ended other runs too (law L5)."""
        if kept.cause is not None and kept.cause.source in FROM_FAULTS and kept.failure is None:
            self._seen.break_(f"{kept.stop.id} came after {kept.cause.source}, and the journal does not name it (L5)")
        known = self.kept.get(kept.stop.id) if kept.stop.id not in self.let_go else None
        if journal_takes(kept, known):
            self.kept[kept.stop.id] = kept
        self.let_go.discard(kept.stop.id)

    def journalled(self, kept: KeptStop) -> None:
        """A Stop is in the journal: from here on no crash may lose it (law L12)."""
        self.in_journal.add(kept.stop.id)
        # One that was let go meanwhile is written and taken out again.
        if not self._was_on_record(kept.session, kept.stop.id) and kept.stop.id not in self.let_go:
            known = self._seen.disk.journal[kept.session, kept.stop.id]
            if known is kept or kept.stop.id not in self.owed:
                # Else it was sent again, and the journal has it as it was decided the first time.
                self.owed[kept.stop.id] = known, self._seen.crashes
        given = self._seen.given.get(kept.stop.id)
        if given is not None and kept.outcome is not None:
            given.survives = given.survives or given.crashes == self._seen.crashes

    def forgets(self, session: str, request_id: str) -> None:
        """The journal is told to let a Stop go: it is on record, with the event that says so (law L12)."""
        self.let_go.add(request_id)
        kept = self.kept.get(request_id)
        if kept is None or not self._has_its_run(kept):
            return
        row, told = self._seen.disk.of(session).row, self._seen.disk.requests(session).get(request_id)
        deleted = request_id in self._seen.deleted_requests and (told is None or not told.answer)
        if deleted or (row is not None and row.deleted):
            # A Stop of a session that was deleted is nothing to decide, and must not begin it anew.
            self.owed.pop(request_id, None)
        elif not self._was_on_record(session, request_id):
            self._seen.break_(f"the journal lets {request_id} go before it is on record (L12)")
        elif request_id in self.told_not_durable - self.stops_told - self.without_event:
            self._seen.break_(f"the journal lets {request_id} go before anybody was told that it is durable (L12)")

    def _was_on_record(self, session: str, request_id: str) -> bool:
        """It is, or was until the session was deleted with it."""
        return request_id in self._seen.disk.requests(session) or request_id in self._seen.deleted_requests

    def _has_its_run(self, kept: KeptStop) -> bool:
        """False: it was aimed at a run that never came to be, and is nothing to decide."""
        return kept.stop.run_id is None or kept.stop.run_id in self._seen.disk.of(kept.session).runs

    def batch(self, batch: Batch, told: set[str]) -> None:
        """After a crash a Stop of the journal is decided before anything starts, and ends what it stopped (law L12)."""
        owed = [(kept, crashes) for kept, crashes in self.owed.values() if kept.session == batch.session]
        named = [cause for kept, _ in owed for cause in (kept.cause, kept.failure)]
        for kept, crashes in owed:
            request_id = kept.stop.id
            if not self._has_its_run(kept):
                continue
            for event in batch.events if self._seen.crashes > crashes else ():
                source = (event.data.get("provenance") or {}).get("source")
                known = event.run_id in self._seen.disk.of(batch.session).runs
                mine = known and kept.stop.run_id in (None, event.run_id)
                mine = mine and kept.outcome not in ("nothing_running", "already_over")
                # One that came while the session could not be read knows nothing of what an earlier one names.
                before = (kept.cause, kept.failure) if kept.outcome is not None else named
                mine = mine and not any(cause is not None and cause.source == source for cause in before)
                # What was over when the Stop joined the end of another run had ended without being written.
                over = kept.outcome == "stopping" and event.run_id != kept.run_id
                mine = mine and not (over and kept.failure is None)
                if event.kind == "run.status" and source in FROM_FAULTS and mine:
                    self._seen.break_(f"{event.run_id} ends by {source}, and {request_id} had stopped it (L12)")
                if event.kind == "run.started" and request_id not in told:
                    self._seen.break_(
                        f"{event.run_id} starts, and {request_id} is not decided, which was answered (L12)"
                    )
            if request_id in told:
                del self.owed[request_id]

    def stop_durable(self, event: Event, told: set[str]) -> None:
        """The log says that a Stop is durable: once, and with its id on record (law L12)."""
        request_id = event.data["request_id"]
        if request_id in self.stops_told and request_id not in self._seen.deleted_requests:
            self._seen.break_(f"{request_id} is told to be durable twice (L12)")
        self.stops_told.add(request_id)
        if request_id not in told and not self._was_on_record(event.session, request_id):
            self._seen.break_(f"{request_id} is told to be durable, and is not on record (L12)")
