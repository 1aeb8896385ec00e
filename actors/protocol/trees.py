"""Process trees that belong to the session: hand-over, ends, and the receipts that wait for them.

Theory of operation. A tree is the session's from its spawn (`Processes`), or from a hand-over. Either is decided while
the call that asks for it is open, and gated by the cell of the spawn, so that one of two things happens and never both:

- *Spawned for the session*: the fence closes the cell before the spawn, then nothing is spawned; or the spawn was
  first, then the tree is no part of the run, however the run ends.
- *Handed over*: the session finishes the cell, then no end of the run ends the tree; or an end of the run (a halt, the
  call's deadline, an actor that fails) closes the cell first, then the hand-over is refused.

In the receipt of its run such a tree is one row, ``handed_over``. It holds no barrier, and its output is logged while
the call that asked for it is open. The hand-over is confirmed only when it is durable; if it cannot be made durable,
the tree is ended with the run.

It ends by itself, by a Stop of the whole session, or by the shutdown of the supervisor. It is then named in a receipt:
that of the run that the Stop ends, or one under the Stop's own id. While the session ends it, it holds the barrier.
Only the warden's report proves its end, in any generation. The failure of an actor does not end it. When the daemon
dies, its warden ends it, and the next start records that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import msgspec

from actors.errors import QueueFull, RunCancelled
from actors.events import ProcessHandedOverData, ReceiptAmendedData, ReceiptFiledData
from actors.messages import HandOverRequested, ProcessNews
from actors.model import Address, How, Mode, Owner, Provenance, Receipt, TreeState
from actors.ports import Snapshot
from actors.protocol.owned_tree import OwnedTree, part_of
from actors.protocol.run_record import HANDED_OVER_NOTE, KEPT_NOTE, Part, ProcessRecord, RunRecord, is_own
from actors.protocol.state import LATE_KEPT_MAX, SessionState
from actors.protocol.step import AdoptTree, EndTrees, RefuseHandOver, SayHandedOver, TakeTree
from actors.protocol.stop_receipt import StopReceipt


class Trees:
    """Decides on process trees of the session."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        # The number of the newest kill deadline.
        self._stage = 0
        # While the session is restored: by receipt of a run, the trees that it names.
        self._attached: dict[str, list[Part]] = {}

    # ── Becoming the session's ───────────────────────────────────────────────────────────────────────

    def hand_over_requested(self, request: HandOverRequested) -> None:
        """A tool hands a tree of its run over to the session."""
        state, address, process_id = self._state, request.address, request.process_id
        record = state.open_run(address)
        if record is None:
            state.refuse_stale("hand_over", address, process_id)
            call = state.call(address)
            cause = call.token.provenance if call is not None and call.token is not None else None
            if cause is None:
                what = "run" if address.call is None else "call"
                reason, at = f"the {what} that hands it over is closed", state.clock.wall()
                cause = Provenance(source="run.ended", reason=reason, initiated_at=at)
            self._refuse_hand_over(request.handed, RunCancelled(cause))
            return
        if process_id in state.owned:
            state.step.later.append(SayHandedOver(process_id, request.handed))
            return
        process, part = record.processes.get(process_id), record.parts.get(process_id)
        not_its_own = process is None or process.row.host or process.row.call_id != (address.call or "")
        if process is None or part is None or part.ended or part.lost or not_its_own:
            error = ProcessLookupError(f"the process tree {process_id} has ended")
            self._refuse_hand_over(request.handed, error)
            return
        if len(state.owned) >= state.settings.processes_max:
            self._refuse_hand_over(request.handed, _too_many(state.settings.processes_max))
            return
        # The gate: from here on no end of the run ends it; or one of them has closed the cell before.
        if process.cell is None or not process.cell.finish(None):
            error = ProcessLookupError(f"the process tree {process_id} is being ended")
            self._refuse_hand_over(request.handed, error)
            return
        self.hand_over(record, process, address, request.listener, state.clock.wall())
        state.step.later.append(SayHandedOver(process_id, request.handed))

    def hand_over(
        self,
        record: RunRecord,
        process: ProcessRecord,
        address: Address,
        listener: Callable[[ProcessNews], None] | None,
        at: float,
    ) -> None:
        """A tree of a run, whose cell is finished for that, is the session's from here on."""
        state, process_id = self._state, process.row.process_id
        part = record.parts[process_id]
        row = msgspec.structs.replace(
            process.row,
            owner=Owner.SESSION,
            generation=address.generation,
            owned_at=at,
            pid=part.pid,
            started_at=part.started_at,
        )
        owned = state.owned[process_id] = OwnedTree(row, part_of(row))
        owned.part.status = part.status
        self.leave_run(record, process_id, at)
        state.step.processes[process_id] = row
        data = ProcessHandedOverData(call_id=row.call_id, process_id=process_id, pid=row.pid, name=row.name)
        state.event(data, record)
        state.step.now.append(TakeTree(address, process_id, listener))

    def _refuse_hand_over(self, handed: Future[None], error: BaseException) -> None:
        self._state.step.now.append(RefuseHandOver(handed, error))

    def handed_over(self, process_id: str) -> None:
        """The record of a hand-over is durable."""
        owned = self._state.owned.get(process_id)
        if owned is not None:
            owned.durable = True

    def claim_spawn(self, process_id: str) -> OwnedTree | None:
        """After the commit: return the tree to spawn; None if it was voided. Its cell has the last word."""
        owned = self._state.owned.get(process_id)
        if owned is not None:
            owned.durable = True
        return owned

    def leave_run(self, record: RunRecord | None, process_id: str, at: float) -> None:
        """In the receipt of its run a tree of the session is a row that has ended: handed over."""
        part = record.parts.get(process_id) if record is not None else None
        if record is None or part is None or part.ended or part is self._state.owned[process_id].part:
            return
        row = self._state.owned[process_id].row
        part.end(How.HANDED_OVER, at, KEPT_NOTE if row.host else HANDED_OVER_NOTE)
        record.processes.pop(process_id, None)
        record.effects = record.effects or is_own(row)

    def leave_closed_run(self, record: RunRecord, at: float) -> None:
        """A run is closed: what was spawned for the session in it is no part of it."""
        for owned in self._state.owned.values():
            if owned.row.run_id == record.id:
                self.leave_run(record, owned.id, at)

    def save(self, owned: OwnedTree, **changed: Any) -> None:
        """Change the row of a tree, and write it with this step."""
        owned.row = msgspec.structs.replace(owned.row, **changed)
        self._state.step.processes[owned.id] = owned.row

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────

    def end_all(self, provenance: Provenance, receipt_of: RunRecord | StopReceipt | None) -> bool:
        """End all trees of the session; see `end`."""
        return self.end(list(self._state.owned.values()), provenance, receipt_of)

    def kept_hosts(self) -> list[OwnedTree]:
        """The hosts that the session keeps for further runs, those that are ending too."""
        return [owned for owned in self._state.owned.values() if owned.row.host]

    def end(
        self, trees: Iterable[OwnedTree], provenance: Provenance, receipt_of: RunRecord | StopReceipt | None
    ) -> bool:
        """End trees of the session. The given receipt waits for them, and names how each ended.

        Returns whether a tree begins to end only now, so that its grace begins now.
        """
        state = self._state
        notified: list[str] = []
        began = False
        for owned in trees:
            harder = provenance.mode is Mode.IMMEDIATE and owned.mode is not Mode.IMMEDIATE
            if owned.row.ending is None or harder:
                notified.append(owned.id)
                owned.mode = provenance.mode
            if owned.row.ending is None:
                # A tree that is ending keeps its kill deadline when it has to hurry: see `TreeReports.deadline`.
                began = True
                owned.stage = self._stage + 1
            owned.part.holds = True
            receipts = owned.row.receipts
            if isinstance(receipt_of, RunRecord):
                # In the receipt of the run that handed it over, this row replaces the row of the hand-over.
                receipt_of.parts[owned.id] = owned.part
                receipt_of.processes.pop(owned.id, None)
                receipts = (*receipts, receipt_of.id)
            elif receipt_of is not None:
                receipt_of.parts[owned.id] = owned.part
                receipts = (*receipts, receipt_of.receipt.receipt_id)
            # No more receipts than this wait for trees.
            receipts = tuple(dict.fromkeys(receipts))[-LATE_KEPT_MAX:]
            # The first cause stands: who joins the end of a tree is not who ended it.
            ending = owned.row.ending or provenance
            owned.part.ended_by(ending)
            self.save(owned, ending=ending, receipts=receipts)
        if notified:
            self._stage += 1
            state.step.now.append(EndTrees(tuple(notified), provenance, provenance.mode, self._stage))
        return began

    def end_if_drained(self, at: float) -> None:
        """While the supervisor shuts down, trees of the session end after its last run."""
        state = self._state
        if state.draining and state.idle and any(one.row.ending is None for one in state.owned.values()):
            reason = "the supervisor is shutting down"
            self.end_all(Provenance(source="supervisor.shutdown", reason=reason, initiated_at=at), None)

    # ── Receipts of Stops that found no run ──────────────────────────────────────────────────────────

    def end_for_stop(self, trees: Iterable[OwnedTree], receipt: Receipt, provenance: Provenance, at: float) -> None:
        """End trees for a Stop that found no run, and file its receipt: now, or when they have ended."""
        state = self._state
        waiting = StopReceipt(receipt)
        self.end(trees, provenance, waiting)
        if not waiting.parts:
            state.step.receipts[receipt.receipt_id] = receipt
            return
        state.stop_receipts[receipt.receipt_id] = waiting
        while len(state.stop_receipts) > LATE_KEPT_MAX:
            oldest = next(iter(state.stop_receipts.values()))
            if not oldest.filed:
                self.file(oldest, at)
            state.stop_receipts.pop(oldest.receipt.receipt_id, None)
        state.step.pending[receipt.receipt_id] = receipt
        # What outlived the kill deadline of an earlier end has no other one.
        self.file_without_late(at)

    def file_without_late(self, at: float) -> None:
        """File the receipts of Stops that wait only for trees whose kill deadline has passed."""
        state = self._state
        for waiting in list(state.stop_receipts.values()):
            open_ids = [key for key, part in waiting.parts.items() if not part.ended]
            if not waiting.filed and all(key in state.owned and state.owned[key].late for key in open_ids):
                self.file(waiting, at)

    def file_receipts_of(self, process_id: str, at: float) -> None:
        """A tree ended: file the receipts that waited for it alone, amend those that had named it abandoned."""
        for waiting in list(self._state.stop_receipts.values()):
            if process_id in waiting.parts and (waiting.complete or waiting.filed):
                self.file(waiting, at)
        self.file_without_late(at)

    def file(self, waiting: StopReceipt, at: float) -> None:
        """File a receipt, or amend it."""
        kind = ReceiptAmendedData if waiting.filed else ReceiptFiledData
        receipt = waiting.file(at)
        self._state.step.receipts[receipt.receipt_id] = receipt
        self._state.event(kind(receipt=receipt), None)
        if waiting.complete:
            del self._state.stop_receipts[receipt.receipt_id]

    # ── Restoring ────────────────────────────────────────────────────────────────────────────────────

    def restore(self, snapshot: Snapshot, endings: Callable[[str], Provenance | None]) -> None:
        """Restore the trees of the session.

        `endings` returns why a tree is being ended if its row does not say so: its warden ends it when the daemon dies;
        and a session whose store fails ends a tree of which it is not durable that the session owns it.
        """
        state = self._state
        filed = {receipt.receipt_id for receipt in snapshot.receipts}
        # Where they are more than are kept, those that are filed go first.
        pending = sorted(snapshot.pending, key=lambda receipt: receipt.receipt_id not in filed)
        for receipt in pending[-LATE_KEPT_MAX:]:
            key = receipt.receipt_id
            state.stop_receipts[key] = StopReceipt(receipt, filed=key in filed)
        ending: list[str] = []
        for row in snapshot.processes:
            if row.owner is not Owner.SESSION:
                continue
            part = part_of(row)
            if row.end is not None:
                part.restore(row.end)
            for key in row.receipts:
                if key in state.stop_receipts:
                    state.stop_receipts[key].parts[row.process_id] = part
                else:
                    self._attached.setdefault(key, []).append(part)
            if row.state == TreeState.ENDED:
                continue
            owned = state.owned[row.process_id] = OwnedTree(row, part, durable=True)
            why = endings(row.process_id)
            if why is not None and row.ending is None:
                part.ended_by(why)
                self.save(owned, ending=why)
            if owned.row.ending is not None:
                part.holds = True
                owned.mode, owned.stage = owned.row.ending.mode, self._stage + 1
                ending.append(owned.id)
            state.step.later.append(AdoptTree(owned.id))
        if ending:
            self._stage += 1
            first = state.owned[ending[0]].row.ending
            assert first is not None, "chosen by it"
            state.step.now.append(EndTrees(tuple(ending), first, Mode.GRACEFUL, self._stage))

    def attach(self, record: RunRecord) -> None:
        """A restored run whose Stop ended trees of the session waits for them again."""
        for part in self._attached.pop(record.id, ()):
            record.parts[part.id] = part

    def file_restored(self, at: float) -> None:
        """File the receipts of Stops whose trees had all ended when the session was restored."""
        self._attached.clear()
        for key, waiting in list(self._state.stop_receipts.items()):
            if waiting.filed and not waiting.parts:
                # No tree says any more that it is in it, so there is nothing to add.
                del self._state.stop_receipts[key]
            elif waiting.complete:
                self.file(waiting, at)


def _too_many(limit: int) -> QueueFull:
    return QueueFull(
        "the session has as many process trees as it may have",
        expected=f"at most {limit} at once",
        got="one more",
        remedy="stop some of them: kill() what a call started, or Stop(scope='session')",
    )
