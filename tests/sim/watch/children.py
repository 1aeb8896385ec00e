"""ChildLaws: child runs end with their parents, are told once, and are in their receipts (laws L1, L3, L5, L6, L7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from actors.model import Event, How, Receipt, Row, RunInfo
from actors.plugin.delegation import Delegated
from actors.ports import Batch
from tests.sim.laws import SPOKEN
from tests.sim.watch.seen import INSTANT_S, Seen

SOON_S: Final = 3.0
"""Virtual seconds in which a session hears of an end in another one, also if one of the two fails meanwhile."""


class ChildLaws:
    """The runs that have a parent, against the logs of both sessions."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        # By call: when it had its result; when its child run last did something, in virtual seconds since the epoch.
        self._over: dict[str, float] = {}
        self._acted: dict[str, tuple[float, str]] = {}
        # By call: when its child run was said to have ended, or had its receipt, first.
        self._settled: dict[str, float] = {}
        # By child run: its call, and how often it was said to begin and to end.
        self._call: dict[str, str] = {}
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def batch(self, batch: Batch) -> None:
        """A batch is durable."""
        for run in batch.runs:
            if run.parent is not None:
                self._call.setdefault(run.run_id, run.parent.call_id)
        for event in batch.events:
            self._event(event)
        for receipt in batch.receipts:
            self._receipt(batch, receipt)
        self._bounded(batch)

    def _bounded(self, batch: Batch) -> None:
        """A run has so many child runs at once, so deep below one another (law L14)."""
        world = self._seen.world
        if world is None:
            return
        rows = self._seen.disk.of(batch.session).processes | {row.process_id: row for row in batch.processes}
        begun = [row.run_id for row in rows.values() if row.kind == "run" and row.state != "ended"]
        for run_id in {row.run_id for row in batch.processes if row.kind == "run"}:
            if begun.count(run_id) > world.settings.children_max:
                self._seen.break_(f"{run_id} has {begun.count(run_id)} child runs at once (L14)")
        for run in batch.runs:
            if run.parent is not None and run.parent.depth > world.settings.children_depth_max:
                self._seen.break_(f"{run.run_id} stands {run.parent.depth} deep below a run (L14)")

    def _event(self, event: Event) -> None:
        run, data = event.run_id or "", event.data
        match event.kind:
            case "tool.ended":
                self._over.setdefault(data["call_id"], event.at)
                self._check_call(data["call_id"])
                self._in_time(
                    self._settled.get(data["call_id"]), event, f"{data['call_id']} waits on, and its run is over"
                )
            case "run.status" if run in self._call:
                self._in_time(self._over.get(self._call[run]), event, f"{run} goes on, and {self._call[run]} is over")
            case "run.ended" if run in self._call:
                self._settled.setdefault(self._call[run], event.at)
            case "run.child":
                if data["run_id"] in self._begun:
                    self._seen.break_(f"{data['run_id']} is said to begin twice (L6)")
                self._begun.add(data["run_id"])
                if self._seen.disk.run(data["run_id"]) is None and not self._seen.disk.of(data["session"]).row:
                    self._seen.break_(f"{data['run_id']} is said to begin before that is durable (L12)")
            case "run.child_ended":
                self._child_ended(data)
            case "run.started" if "retry_of" in data:
                before = self._seen.disk.run(data["retry_of"])
                if before is not None and before.parent is not None:
                    self._seen.break_(f"{before.run_id} is a child run, and is tried again (L7)")
            case _ if event.kind in SPOKEN and run in self._call:
                self._acted[self._call[run]] = event.at, f"{event.kind} of {run}"
                self._check_call(self._call[run])

    def _in_time(self, since: float | None, event: Event, said: str) -> None:
        """What follows on an end in the other session comes soon, where nothing holds a session up (law L7)."""
        world = self._seen.world
        if since is None or world is None or world.store.troubled or self._seen.crashes or self._seen.restarts:
            return
        if event.data.get("status") != "cancelled" and event.at > since + SOON_S + world.stalled_s:
            self._seen.break_(f"{said} since {event.at - since:.1f} s (L7)")

    def _check_call(self, call: str) -> None:
        """Nothing of a child run is accepted once the call that waits for it has its result (law L1)."""
        over, (at, what) = self._over.get(call), self._acted.get(call, (0.0, ""))
        if over is not None and at > over + INSTANT_S:
            self._seen.break_(f"{what} is accepted, and {call}, which delegates to it, is over (L1)")

    def _child_ended(self, data: dict[str, object]) -> None:
        run_id = str(data["run_id"])
        if run_id in self._ended:
            self._seen.break_(f"{run_id} is said to end twice (L6)")
        self._ended.add(run_id)
        run = self._seen.disk.run(run_id)
        if data["how"] == How.NOT_STARTED and run is not None:
            self._seen.break_(f"{run_id} is said never to have begun, and is on record (L6)")
        if run is None or not data["proven"]:
            return
        if not run.settled or run.late:
            self._seen.break_(f"{run_id} is said to have ended, and has no receipt (L3)")
        self._gone(run, f"{run_id} is said to have ended")

    def _gone(self, run: RunInfo, said: str) -> None:
        """Nothing of a run goes on."""
        world, tables = self._seen.world, self._seen.disk.of(run.session)
        if run.run_id in self._seen.inside:
            self._seen.break_(f"{said}, and its agent runs (L3)")
        for fence, of in self._seen.inside.items():
            call = tables.calls.get(fence.rpartition(":")[2]) if of == run.session else None
            if call is not None and call.run_id == run.run_id:
                self._seen.break_(f"{said}, and {fence} runs (L3)")
        for row in tables.processes.values():
            if row.run_id == run.run_id and row.owner == "run" and world is not None and self._seen.lives(row):
                self._seen.break_(f"{said}, and {row.process_id} lives (L3)")

    def _receipt(self, batch: Batch, receipt: Receipt) -> None:
        """A receipt has the child runs in it, as they are in theirs; a complete one waits for them (law L3)."""
        rows = [row for row in _all_rows(receipt.rows, children=False) if row.kind == "run"]
        for child in self._children(batch, receipt.run_id):
            if not child.settled and receipt.complete:
                self._seen.break_(f"the receipt of {receipt.run_id} is complete, and {child.run_id} has none (L3)")
            if not receipt.complete or receipt.omitted:
                continue
            self._gone(child, f"the receipt of {receipt.run_id} is complete")
            own = self._seen.disk.receipt(child.run_id)
            if own is not None and not own.complete:
                self._seen.break_(
                    f"the receipt of {receipt.run_id} is complete, and that of {child.run_id} is not (L3)"
                )
            if own is None or not any(row.rows == own.rows and row.reaped == own.reaped for row in rows):
                self._seen.break_(f"the receipt of {receipt.run_id} is not that of {child.run_id} (L3)")

    def _children(self, batch: Batch, run_id: str | None) -> Iterable[RunInfo]:
        rows = self._seen.disk.of(batch.session).processes | {row.process_id: row for row in batch.processes}
        for row in rows.values():
            if row.kind == "run" and row.run_id == run_id:
                run = self._seen.disk.run(row.process_id)
                if run is not None:
                    yield run

    def told(self, run_id: str, done: Delegated) -> None:
        """An agent is told what came of its delegation: that is durable (law L12)."""
        child = self._seen.disk.run(done.run_id)
        if done.status is not None and child is not None and child.status != done.status:
            ends = child.status == "cancelling" and done.status == "cancelled"
            if not ends:
                self._seen.break_(f"{run_id} is told that {done.run_id} is {done.status}, it is {child.status} (L12)")

    def may_begin(self, call_id: str, fence: str) -> None:
        """A tool of a run begins: the calls above it, which delegate to its run, are open at this moment (law L1)."""
        call = self._seen.disk.call(call_id)
        run = None if call is None else self._seen.disk.run(call.run_id)
        while run is not None and run.parent is not None:
            above = self._seen.disk.call(run.parent.call_id)
            if above is None or above.state == "ended" or self._is_cancelled(run.parent.session, above.call_id):
                self._seen.break_(f"{fence} begins, and {run.parent.call_id} above it is over (L1)")
            run = self._seen.disk.run(run.parent.run_id)

    def _is_cancelled(self, session: str, call_id: str) -> bool:
        """True if a call is closed in the memory of its session."""
        actor = self._seen.world.session_if_alive(session) if self._seen.world is not None else None
        records = () if actor is None else actor._protocol.state.records()
        return any(record.calls[call_id].row.state == "ended" for record in records if call_id in record.calls)

    def above(self, run_id: str | None) -> set[str | None]:
        """A run, and all whose child run it is."""
        found, run = {run_id}, self._seen.disk.run(run_id or "")
        while run is not None and run.parent is not None:
            found.add(run.parent.run_id)
            run = self._seen.disk.run(run.parent.run_id)
        return found

    def is_child(self, run_id: str | None) -> bool:
        """True if a run is known to have a parent."""
        return run_id in self._call

    def at_rest(self) -> None:
        """Everything has settled: no child run goes on, and only what is abandoned is remembered (laws L7, L14).

        Raises:
            AssertionError: something of a child run is left.
        """
        world = self._seen.world
        assert world is not None, "a world was entered"
        for run_id, linked in world._root._child_links._linked.items():
            assert not linked.link.over, f"{run_id} has ended, and is forgotten by nobody (L14)"


def _all_rows(rows: Iterable[Row], *, children: bool) -> Iterable[Row]:
    for row in rows:
        yield row
        if children or row.kind != "run":
            yield from _all_rows(row.rows, children=children)
