"""Process trees that belong to the session: how one becomes the session's, and how it ends.

Theory of operation. A tree is the session's from its spawn, or from a hand-over. Either is decided here, while the
call that asks for it is open, and gated by the cell of the spawn, so that one of two things happens and never both:

- *Spawned for the session*: the fence shuts the cell before the spawn, then nothing is spawned; or the spawn was
  first, then the tree is no part of the run, whatever ends that.
- *Handed over*: the session finishes the cell, then no end of the run ends the tree; or whoever ends it for the run
  (a halt, the call's deadline, an actor that fails) closes the cell first, then the hand-over is refused.

In the receipt of its run such a tree is one row, ``handed_over``. It holds no barrier, and its output is logged while
the call that asked for it is open. Nothing says that it was handed over before that is durable; if it cannot be made
durable, the tree is ended with the run.

It ends by itself, by a Stop of the whole session, or by the shutdown of the supervisor, and is then named in a receipt:
that of the run that the Stop ends, or one under the Stop's own id. While the session ends it, it holds the barrier.
Only the warden's word is the proof of its end, in any generation. The failure of an actor does not end it; when the
daemon dies its warden ends it, and the next start takes note of that.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors.errors import QueueFull, RunCancelled
from actors.gate.cell import Cell
from actors.messages import (
    HandOverRequested,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    SpawnRequested,
)
from actors.model import Address, How, JsonObject, Mode, Owner, Provenance, Receipt, SessionStatus
from actors.ports import ProcessRow, Snapshot
from actors.protocol.run_record import HANDED_OVER_NOTE, Part, ProcessRecord, RunRecord
from actors.protocol.runs import LATE_KEPT_MAX, RunLifecycle
from actors.protocol.step import (
    AdoptTree,
    EndTrees,
    ForgetPart,
    KillTree,
    RefuseHandOver,
    RefuseSpawn,
    SayHandedOver,
    SpawnOwn,
    TakeTree,
)
from actors.text import storable, storable_json


@dataclass(slots=True)
class OwnedTree:
    """One process tree of the session. `part` is what receipts show of it; `late`: its kill deadline has passed.

    `durable`: that it is the session's is on record. `cell` is that of a spawn for the session.
    """

    row: ProcessRow
    part: Part
    cell: Cell[None] | None = None
    durable: bool = False
    stage: int = 0
    mode: Mode = Mode.GRACEFUL
    late: bool = False
    forced: bool = False

    @property
    def id(self) -> str:
        """The id of the tree."""
        return self.row.process_id

    @property
    def address(self) -> Address:
        """The address of the call that asked for it."""
        return Address(self.row.session, self.row.generation, self.row.run_id, self.row.call_id)

    @property
    def holds(self) -> bool:
        """True while permits wait for its end: the session is ending it."""
        return self.row.ending is not None and not self.part.ended and not self.forced

    @property
    def given_up(self) -> bool:
        """True where nobody can say any more when it ends."""
        return not self.part.ended and (self.late or self.part.lost)


@dataclass(slots=True)
class StopReceipt:
    """The receipt of a Stop that found no run, and waits for trees of the session; `filed` once, then amended."""

    receipt: Receipt
    parts: dict[str, Part] = field(default_factory=dict)
    filed: bool = False

    @property
    def complete(self) -> bool:
        """True if each of them has ended."""
        return all(part.ended for part in self.parts.values())

    def file(self, at: float) -> Receipt:
        """Add the parts up; what has not ended is named abandoned."""
        for part in self.parts.values():
            if not part.ended:
                part.how = How.ABANDONED
        self.filed = True
        return msgspec.structs.replace(
            self.receipt,
            ended_at=at,
            complete=self.complete,
            rows=tuple(part.as_row(()) for part in self.parts.values()),
            reaped=sum(part.reaped for part in self.parts.values()),
        )


class OwnedTrees(RunLifecycle):
    """The decisions on process trees of the session."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owned: dict[str, OwnedTree] = {}
        self._stop_receipts: dict[str, StopReceipt] = {}
        self._trees_stage = 0
        self._attached: dict[str, list[Part]] = {}
        self.deleting: Provenance | None = None

    # ── Becoming the session's ───────────────────────────────────────────────────────────────────────

    def spawn_requested(self, request: SpawnRequested) -> None:
        """A tool asks for a process: for its run, or for the session."""
        address = request.address
        record = self._open(address)
        if request.owner is Owner.RUN or record is None or address.call is None:
            super().spawn_requested(request)
            return
        process_id = request.process_id
        if process_id in record.parts or process_id in self.owned:
            self._dead("spawn", "it was asked for before", address, request.spec.name)
            return
        limit = self._settings.processes_max
        if len(self.owned) >= limit:
            self._stale("spawn_over_limit", address, request.spec.name)
            self.step.now.append(RefuseSpawn(record.id, address.call, process_id, limit))
            return
        cell: Cell[None] = Cell()
        row = ProcessRow(
            self.session,
            record.id,
            address.call,
            process_id,
            storable(request.spec.name),
            "granted",
            owner=Owner.SESSION,
            generation=address.generation,
            owned_at=self._clock.wall(),
        )
        # Until the spawn has passed the cell it is a part of the run: a fence may void it, as any spawn.
        record.processes[process_id] = ProcessRecord(row, cell)
        record.add(Part(process_id, "process", row.name, address.call, holds=False))
        self.owned[process_id] = OwnedTree(row, _part_of(row), cell)
        self.step.processes[process_id] = row
        self.step.later.append(SpawnOwn(address, process_id, request.spec, request.listener))

    def hand_over_requested(self, request: HandOverRequested) -> None:
        """A tool hands a tree of its run over to the session."""
        address, process_id, handed = request.address, request.process_id, request.handed
        record = self._open(address)
        if record is None or address.call is None:
            self._stale("hand_over", address, process_id)
            call = self._call(address)
            cause = call.token.provenance if call is not None and call.token is not None else None
            if cause is None:
                at = self._clock.wall()
                cause = self._inside("run.ended", "the call that hands it over is closed", at, None)
            self._refuse_hand_over(handed, RunCancelled(cause))
            return
        if process_id in self.owned:
            self.step.later.append(SayHandedOver(process_id, handed))
            return
        process, part = record.processes.get(process_id), record.parts.get(process_id)
        if process is None or part is None or part.ended or part.lost or process.row.call_id != address.call:
            self._refuse_hand_over(handed, ProcessLookupError(f"the process tree {process_id} has ended"))
            return
        if len(self.owned) >= self._settings.processes_max:
            self._refuse_hand_over(handed, _too_many(self._settings.processes_max))
            return
        # The gate: from here on nobody ends it for the run; or somebody has begun to.
        if process.cell is None or not process.cell.finish(None):
            self._refuse_hand_over(handed, ProcessLookupError(f"the process tree {process_id} is being ended"))
            return
        at = self._clock.wall()
        row = msgspec.structs.replace(
            process.row,
            owner=Owner.SESSION,
            generation=address.generation,
            owned_at=at,
            pid=part.pid,
            started_at=part.started_at,
        )
        owned = self.owned[process_id] = OwnedTree(row, _part_of(row))
        owned.part.status = part.status
        self._leave_run(record, process_id, at)
        self.step.processes[process_id] = row
        data = {"call_id": row.call_id, "process_id": process_id, "pid": row.pid, "name": row.name}
        self._event("process.handed_over", data, record)
        self.step.now.append(TakeTree(address, process_id, request.listener))
        self.step.later.append(SayHandedOver(process_id, handed))

    def _refuse_hand_over(self, handed: Future[None], error: BaseException) -> None:
        self.step.now.append(RefuseHandOver(handed, error))

    def handed_over(self, process_id: str) -> None:
        """The record of it is durable."""
        owned = self.owned.get(process_id)
        if owned is not None:
            owned.durable = True

    def may_spawn(self, process_id: str) -> OwnedTree | None:
        """Ask, after the commit, whether a tree for the session may still be spawned; its cell has the last word."""
        owned = self.owned.get(process_id)
        if owned is not None:
            owned.durable = True
        return owned

    def _leave_run(self, record: RunRecord | None, process_id: str, at: float) -> None:
        """In the receipt of its run it is a row that has ended as part of the run."""
        part = record.parts.get(process_id) if record is not None else None
        if record is None or part is None or part.ended or part is self.owned[process_id].part:
            return
        part.end(How.HANDED_OVER, at, HANDED_OVER_NOTE)
        record.processes.pop(process_id, None)

    def _void_spawn(self, record: RunRecord, process: ProcessRecord, part: Part, at: float) -> None:
        super()._void_spawn(record, process, part, at)
        self.owned.pop(process.row.process_id, None)

    def _close(self, record: RunRecord, *args: Any, **kwargs: Any) -> None:
        """As any run is closed; what had been spawned for the session is none of its parts."""
        super()._close(record, *args, **kwargs)
        at = self._clock.wall()
        for owned in self.owned.values():
            if owned.row.run_id == record.id:
                self._leave_run(record, owned.id, at)

    # ── News ─────────────────────────────────────────────────────────────────────────────────────────

    def process_report(self, report: ProcessReport) -> None:
        """News of a process tree, of a run or of the session."""
        owned = self.owned.get(report.process_id)
        if owned is None:
            super().process_report(report)
            return
        match report.news:
            case ProcessStarted() as news:
                self._owned_started(owned, news)
            case ProcessOutput() as news:
                record = self._open(owned.address)
                if record is not None:
                    self._process_output(record, report, news)
            case ProcessExited() as news:
                owned.part.status = news.status
            case ProcessRemaining() as news:
                self._owned_remains(owned, news)
            case ProcessKilled() as news:
                self._owned_killed(owned, report.address, news)
            case ProcessEnded() as news:
                self._owned_ended(owned, news)

    def _owned_started(self, owned: OwnedTree, news: ProcessStarted) -> None:
        if owned.row.pid is not None:
            return
        owned.part.pid, owned.part.started_at = news.pid, news.at
        self._save_owned(owned, pid=news.pid, started_at=news.at)
        record = self._record(owned.row.run_id)
        part = record.parts.get(owned.id) if record is not None else None
        if record is not None and part is not None and part is not owned.part:
            part.pid, part.started_at = news.pid, news.at
        if record is not None and record is self.active:
            data: JsonObject = {"call_id": owned.row.call_id, "process_id": owned.id, "pid": news.pid}
            self._event("process.started", {**data, "name": owned.row.name, "owner": str(Owner.SESSION)}, record)
        self._leave_run(record, owned.id, news.at)

    def _owned_remains(self, owned: OwnedTree, news: ProcessRemaining) -> None:
        named = owned.part.remaining is not None
        self._process_remains(owned.part, news)
        at = self._clock.wall()
        for waiting in [] if named else list(self._stop_receipts.values()):
            if waiting.filed and owned.id in waiting.parts:
                self._file(waiting, at)

    def _owned_killed(self, owned: OwnedTree, address: Address, news: ProcessKilled) -> None:
        """A tool ends it: the session does, so that nothing is heard of its end before it is known why."""
        if self._open(Address(address.session, address.generation, address.run)) is None:
            self._stale("kill", address, owned.id)
            return
        if owned.row.ending is None:
            owned.part.ended_by(news.provenance)
        self.step.now.append(KillTree(owned.id, news.provenance, news.grace_s))

    def _owned_ended(self, owned: OwnedTree, news: ProcessEnded) -> None:
        part, at = owned.part, self._clock.wall()
        if part.lost and not news.proven:
            # Told again, to one that took the tree over.
            return
        part.end_process(news)
        record = self._record(owned.row.run_id)
        if news.how is How.NOT_STARTED:
            self._never_left(record, owned, news)
        data: JsonObject = {
            "run_id": owned.row.run_id,
            "call_id": owned.row.call_id,
            "process_id": owned.id,
            "how": str(news.how),
            "status": news.status,
            "reaped": news.reaped,
            "proven": news.proven,
            "owner": str(Owner.SESSION),
        }
        if news.note:
            data["note"] = news.note
        provenance = part.provenance or owned.row.ending
        if provenance is not None:
            data["provenance"] = storable_json(provenance)
        # Not in the run's generation, which may be long over: it is news of the session.
        self._event("process.ended", data, None)
        if not news.proven and not self._is_over(owned):
            return
        self._leave_run(record, owned.id, at)
        del self.owned[owned.id]
        self._save_owned(owned, state="ended", end=part.as_row(()))
        if news.proven:
            self.step.later.append(ForgetPart("process", owned.id))
        for one in list(self._records()):
            if one.parts.get(owned.id) is part:
                self._after_part(one, at)
        self._file_stop_receipts(owned.id, at)
        self._go_on(at)

    def _is_over(self, owned: OwnedTree) -> bool:
        """Nothing more can be learnt of a tree whose daemon died, and which its ledger does not prove gone."""
        return owned.row.ending is not None and owned.row.ending.source == "supervisor.recovery"

    def _never_left(self, record: RunRecord | None, owned: OwnedTree, news: ProcessEnded) -> None:
        """It could not be spawned: so its run says, if it still can."""
        part = record.parts.get(owned.id) if record is not None else None
        if record is not None and part is not None and part is not owned.part:
            part.end(How.NOT_STARTED, news.at, news.note)
            part.note = news.note
            record.processes.pop(owned.id, None)

    def _save_owned(self, owned: OwnedTree, **changed: Any) -> None:
        owned.row = msgspec.structs.replace(owned.row, **changed)
        self.step.processes[owned.id] = owned.row

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────

    def _end_owned(self, provenance: Provenance, receipt_of: RunRecord | StopReceipt | None) -> bool:
        """End all trees of the session; the receipt that is given waits for them, and names how each ended.

        Returns whether any of them was not ending yet, so that it has a grace of its own from here.
        """
        told: list[str] = []
        began = False
        for owned in self.owned.values():
            harder = provenance.mode is Mode.IMMEDIATE and owned.mode is not Mode.IMMEDIATE
            if owned.row.ending is None or harder:
                told.append(owned.id)
                owned.mode = provenance.mode
            if owned.row.ending is None:
                # One that is told to hurry keeps its earlier deadline: see `trees_deadline`.
                began = True
                owned.stage = self._trees_stage + 1
            owned.part.holds = True
            receipts = owned.row.receipts
            if isinstance(receipt_of, RunRecord):
                # In the receipt of the run that handed it over, this row takes the place of that one.
                receipt_of.parts[owned.id] = owned.part
                receipt_of.processes.pop(owned.id, None)
                receipts = (*receipts, receipt_of.id)
            elif receipt_of is not None:
                receipt_of.parts[owned.id] = owned.part
                receipts = (*receipts, receipt_of.receipt.receipt_id)
            # No more of them are waiting than there are kept.
            receipts = tuple(dict.fromkeys(receipts))[-LATE_KEPT_MAX:]
            self._save_owned(owned, ending=owned.row.ending or provenance, receipts=receipts)
        if told:
            self._trees_stage += 1
            self.step.now.append(EndTrees(tuple(told), provenance, provenance.mode, self._trees_stage))
        return began

    def _stop_receipt(self, receipt: Receipt, provenance: Provenance, at: float) -> None:
        """File the receipt of a Stop of the session that found no run: now, or when the session's trees have ended."""
        waiting = StopReceipt(receipt)
        self._end_owned(provenance, waiting)
        if not waiting.parts:
            self.step.receipts[receipt.receipt_id] = receipt
            return
        self._stop_receipts[receipt.receipt_id] = waiting
        while len(self._stop_receipts) > LATE_KEPT_MAX:
            oldest = next(iter(self._stop_receipts.values()))
            if not oldest.filed:
                self._file(oldest, at)
            self._stop_receipts.pop(oldest.receipt.receipt_id, None)
        self.step.pending[receipt.receipt_id] = receipt

    def _file_stop_receipts(self, process_id: str, at: float) -> None:
        """A tree ended: file the receipts that waited for it alone, amend those that had named it abandoned."""
        for waiting in list(self._stop_receipts.values()):
            if process_id in waiting.parts and (waiting.complete or waiting.filed):
                self._file(waiting, at)

    def _file(self, waiting: StopReceipt, at: float) -> None:
        kind = "receipt.amended" if waiting.filed else "receipt.filed"
        receipt = waiting.file(at)
        self.step.receipts[receipt.receipt_id] = receipt
        self._event(kind, {"receipt": storable_json(receipt)}, None)
        if waiting.complete:
            del self._stop_receipts[receipt.receipt_id]

    def trees_deadline(self, stage: int) -> None:
        """The time in which trees of the session had to end has passed: name what is left, and go on.

        It counts for those too that had begun to end before, and were told to hurry: they have a further deadline.
        """
        left = [owned for owned in self.owned.values() if 0 < owned.stage <= stage and not owned.late]
        if not left:
            return
        at = self._clock.wall()
        for owned in left:
            owned.late = True
            owned.part.how = How.ABANDONED
        for waiting in list(self._stop_receipts.values()):
            open_ids = [key for key, part in waiting.parts.items() if not part.ended]
            if not waiting.filed and all(key in self.owned and self.owned[key].late for key in open_ids):
                self._file(waiting, at)
        if self._settings.barrier == "forced":
            for owned in left:
                owned.forced = True
            names = [f"process {owned.part.name}" for owned in left]
            self._event("session.barrier_forced", {"run_id": None, "abandoned": names}, self.active)
        elif self.active is not None:
            for call in [call for call in self.active.open_calls() if call.waits]:
                self._refuse_strictly(self.active, call, at)
        self._go_on(at)

    def barrier(self) -> list[Part]:
        """As of runs, and the trees of the session that it is ending."""
        held = super().barrier()
        known = {id(part) for part in held}
        return held + [one.part for one in self.owned.values() if one.holds and id(one.part) not in known]

    def _barrier_may_open(self) -> bool:
        return super()._barrier_may_open() and not any(owned.late and owned.holds for owned in self.owned.values())

    # ── Coming and going ─────────────────────────────────────────────────────────────────────────────

    def _restore_owned(self, snapshot: Snapshot, endings: Callable[[str], Provenance | None]) -> None:
        """Take up the trees of the session.

        `endings` says of each why it is being ended, where that is not on record: its warden ends it when the daemon
        dies, and so does a session whose store fails before it is durable that the tree is the session's.
        """
        for receipt in snapshot.pending:
            self._stop_receipts[receipt.receipt_id] = StopReceipt(receipt)
        ending: list[str] = []
        for row in snapshot.processes:
            if row.owner is not Owner.SESSION:
                continue
            part = _part_of(row)
            if row.end is not None:
                part.restore(row.end)
            for key in row.receipts:
                if key in self._stop_receipts:
                    self._stop_receipts[key].parts[row.process_id] = part
                else:
                    self._attached.setdefault(key, []).append(part)
            if row.state == "ended":
                continue
            owned = self.owned[row.process_id] = OwnedTree(row, part, durable=True)
            why = endings(row.process_id)
            if why is not None and row.ending is None:
                self._save_owned(owned, ending=why)
            if owned.row.ending is not None:
                part.holds = True
                owned.mode, owned.stage = owned.row.ending.mode, self._trees_stage + 1
                ending.append(owned.id)
            self.step.later.append(AdoptTree(owned.id))
        if ending:
            self._trees_stage += 1
            first = self.owned[ending[0]].row.ending
            assert first is not None, "chosen by it"
            self.step.now.append(EndTrees(tuple(ending), first, Mode.GRACEFUL, self._trees_stage))

    def _attach_restored(self, record: RunRecord) -> None:
        """A run whose Stop ended trees of the session waits for them, as before."""
        for part in self._attached.pop(record.id, ()):
            record.parts[part.id] = part

    def _file_restored(self, at: float) -> None:
        """File receipts of Stops whose trees had all ended when the session was taken up."""
        self._attached.clear()
        for waiting in list(self._stop_receipts.values()):
            if waiting.complete:
                self._file(waiting, at)

    def abandon(self, provenance: Provenance) -> None:
        """As of runs; a spawn for the session that has not begun does not begin."""
        super().abandon(provenance)
        for owned in self.owned.values():
            if owned.cell is not None:
                owned.cell.close()

    def status(self) -> SessionStatus:
        """What the session is doing now."""
        return msgspec.structs.replace(super().status(), owned=tuple(self.owned))

    @property
    def quiet(self) -> bool:
        """True when no run is active, none is ending, and no tree of the session is left to be ended."""
        return super().quiet and all(owned.given_up for owned in self.owned.values())

    @property
    def at_rest(self) -> bool:
        """True when the store holds all that the session is: it may leave memory, and be taken up again later.

        No run is active or ending, none left anything behind that may still be heard of, no tree is the session's, no
        receipt waits for one, so no barrier is open; and no message waits but those that a stop has parked.
        """
        kept = self.draining or self.quarantined or self.deleting is not None
        return self.nothing_left and not kept and (self.room.parked or not len(self.room))

    @property
    def nothing_left(self) -> bool:
        """True when all that the session ever started is proven to have ended, and each receipt is filed."""
        return self.quiet and not self.late and not self.owned and not self._stop_receipts

    def _go_on(self, at: float) -> None:
        super()._go_on(at)
        self._end_when_drained(at)

    def _end_when_drained(self, at: float) -> None:
        """While the supervisor shuts down: what belongs to the session ends behind its last run."""
        if self.draining and super().quiet and any(one.row.ending is None for one in self.owned.values()):
            self._end_owned(self._inside("supervisor.shutdown", "the supervisor is shutting down", at, None), None)


def _part_of(row: ProcessRow) -> Part:
    part = Part(row.process_id, "process", row.name, row.call_id, holds=row.ending is not None)
    part.pid, part.started_at = row.pid, row.started_at
    return part


def _too_many(limit: int) -> QueueFull:
    return QueueFull(
        "the session has as many process trees as it may have",
        expected=f"at most {limit} at once",
        got="one more",
        remedy="stop some of them: kill() what a call started, or Stop(scope='session')",
    )
