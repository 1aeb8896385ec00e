"""ReceiptLaws: a receipt is true, and waits for the ends as long as it may and no longer (laws L3, L7)."""

from __future__ import annotations

from collections.abc import Iterable

from actors.model import How, Mode, Owner, Provenance, Receipt, Row
from actors.ports import Batch, Settings
from tests.sim.bounds import TOLD_S
from tests.sim.disk import was_released
from tests.sim.watch.seen import INSTANT_S, Seen, belongs_to


class ReceiptLaws:
    """Receipts as they become durable."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def receipt(self, batch: Batch, receipt: Receipt) -> None:
        """A receipt never says more than was seen, and waits for the ends as long as it may (laws L3, L7)."""
        world = self._seen.world
        if receipt.run_id is None or world is None:
            return
        first = receipt.run_id not in self._seen.receipts
        known = self._seen.receipts.setdefault(receipt.run_id, receipt.receipt_id)
        if known != receipt.receipt_id:
            self._seen.break_(f"{receipt.run_id} has two receipts: {known} and {receipt.receipt_id} (L7)")
        session, tables = batch.session, self._seen.disk.of(batch.session)
        rows_now = tables.processes | {row.process_id: row for row in batch.processes}
        rows = list(_all_rows(receipt.rows))
        if receipt.complete:
            if receipt.run_id in self._seen.inside:
                self._seen.break_(f"the receipt of {receipt.run_id} is complete, and its agent runs (L3)")
            for process in rows_now.values():
                if (
                    belongs_to(process, receipt)
                    and not was_released(process)
                    and world.processes.lives(process.process_id)
                ):
                    self._seen.break_(
                        f"the receipt of {receipt.run_id} is complete, and {process.process_id} lives (L3)"
                    )
            for stray in world.strays.alive():
                if stray.address.run == receipt.run_id:
                    self._seen.break_(f"the receipt of {receipt.run_id} is complete, and {stray.stray_id} goes on (L3)")
            for fence, of in self._seen.inside.items():
                call = tables.calls.get(fence.rpartition(":")[2]) if of == session else None
                if call is not None and call.run_id == receipt.run_id:
                    self._seen.break_(f"the receipt of {receipt.run_id} is complete, and {fence} runs (L3)")
            if any(row.ended_at is None for row in rows):
                self._seen.break_(f"the receipt of {receipt.run_id} is complete with an open row (L3)")
            return
        for process in rows_now.values():
            if belongs_to(process, receipt) and not was_released(process) and world.processes.lives(process.process_id):
                self._seen.abandoned.add(process.process_id)
        if all(row.how is How.OUT_OF_REACH for row in rows if row.ended_at is None):
            # Of nobody knows whom, for whom it does not wait.
            return
        trees = [one for one in tables.processes.values() if one.owner is Owner.SESSION and belongs_to(one, receipt)]
        given = [one.ending for one in trees if one.ending is not None and one.state != "ended"]
        deadline = self._deadline(receipt, given, world.settings)
        if receipt.ended_at < deadline - INSTANT_S:
            self._seen.break_(f"the receipt of {receipt.run_id} names what is left before its time is over (L7)")
        in_time = not (trees or self._seen.faults or self._seen.crashes or self._seen.restarts)
        if first and in_time and receipt.ended_at > deadline + TOLD_S + world.stalled_s:
            self._seen.break_(f"the receipt of {receipt.run_id} waits longer than it may (L7)")

    def _deadline(self, receipt: Receipt, trees: Iterable[Provenance], settings: Settings) -> float:
        """The earliest moment at which what has not ended may be named abandoned.

        `trees`: why those of the session end that it waits for. They may have begun to end later than its run.
        """
        stops = [stop for stop in (receipt.provenance, *receipt.later) if stop is not None]
        hurry = next((stop for stop in stops if stop.mode is Mode.IMMEDIATE), None)
        grace_s = 0.0 if hurry is not None else settings.grace_s
        began = [self._seen.told_at.get(ending.requested_by or "", 0.0) for ending in trees]
        least = max([receipt.fenced_at, *began]) + grace_s + settings.kill_s
        if hurry is None or hurry is receipt.provenance:
            # It had no other grace: also where a session above it has the request, and the store takes that late.
            return least
        # One that hurries does not put off what there is time for already.
        by = hurry.requested_by
        # The end of a child run is hurried by that of its parent, in which nobody asks its own session.
        began_at = hurry.initiated_at if by is None else self._seen.told_at.get(by, 0.0)
        hurried = began_at + settings.kill_s
        return max(least, min(hurried, receipt.fenced_at + settings.grace_s + settings.kill_s))


def _all_rows(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        yield row
        yield from _all_rows(row.rows)
