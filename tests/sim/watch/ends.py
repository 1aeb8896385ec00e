"""EndLaws: nothing is ended before its gate is shut (law L1), and no tree of a session without a cause (law L5)."""

from __future__ import annotations

from functools import partial

from actors.gate.cell import CellState
from actors.hierarchy.run import RunActor
from actors.hierarchy.tool import ToolActor
from actors.model import Owner
from actors.ports import ProcessRow
from actors.protocol.run_record import RunRecord
from tests.sim.watch.seen import Seen


class EndLaws:
    """What a world reports when a tree or an execution has to end."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def halts(self, key: str) -> None:
        """A tree is told to end, or an execution is cancelled: the gate was shut first (law L1)."""
        self._seen.halted.add(key)
        if not self._is_owned(key):
            self._seen.ended_for_run.add(key)
        world = self._seen.world
        if self._seen.faults or world is None:
            return
        process = self._seen.disk.process(key)
        if process is not None and process.kind == "run":
            # It is an execution of its own, in another session.
            process = None
        if process is not None and (process.owner is Owner.SESSION or self._is_owned(key)):
            self._ends_of_session(process)
            return
        call = self._seen.disk.call(process.call_id if process else key)
        run = call.run_id if call else process.run_id if process is not None and process.kind == "process" else key
        session = call.session if call else (self._session_of_run(run) or "")
        actor = world.session_if_alive(session)
        if actor is None:
            return
        record = actor._protocol.state.record(run)
        if record is None or not record.open or self._is_given_up(key):
            return
        if record.info.parent is not None and record.token.cancelled:
            # The fence of its parent has shut every gate, and its own session is about to say so.
            return
        if call is not None and not self._gate_open(record, call.call_id):
            return
        if call is None and record.token.cancelled and not any(map(partial(self._gate_open, record), record.calls)):
            # The fence has shut every gate, and is about to move the status.
            return
        self._seen.break_(f"{key} is ended before its gate is shut (L1)")

    def _is_owned(self, process_id: str) -> bool:
        """True if a tree is the session's in the session's memory, which may be ahead of the disk."""
        process = self._seen.disk.process(process_id)
        actor = self._seen.world.session_if_alive(process.session) if process and self._seen.world is not None else None
        return actor is not None and process_id in actor._protocol.state.owned

    def _is_given_up(self, process_id: str) -> bool:
        """True if whoever asked for a tree of its own has stopped waiting for its start: that shuts its gate alone."""
        world = self._seen.world
        askers: list[RunActor | ToolActor] = []
        if world is not None:
            askers = [*world.actors(RunActor), *world.actors(ToolActor)]
        return any(process_id in asker._spawns._given_up for asker in askers)

    def _ends_of_session(self, process: ProcessRow) -> None:
        """A tree of the session is told to end: by the session, for a cause, and not by the end of its run (law L5)."""
        actor = self._seen.world.session_if_alive(process.session) if self._seen.world is not None else None
        owned = actor._protocol.state.owned.get(process.process_id) if actor is not None else None
        if owned is not None and owned.row.ending is None:
            self._seen.break_(f"{process.process_id} is the session's, and is ended without a cause (L5)")

    @staticmethod
    def _gate_open(record: RunRecord, call_id: str) -> bool:
        call = record.calls.get(call_id)
        return call is not None and call.cell is not None and call.cell.state in (CellState.GRANTED, CellState.STARTED)

    def _session_of_run(self, run_id: str) -> str | None:
        run = self._seen.disk.run(run_id)
        return run.session if run else None
