"""A process tree that belongs to its session: spawned for it, or handed over by a tool."""

from __future__ import annotations

from dataclasses import dataclass

from actors.gate.cell import Cell
from actors.model import Address, Mode, PartKind
from actors.ports import ProcessRow
from actors.protocol.run_record import Part


@dataclass(slots=True)
class OwnedTree:
    """One process tree of the session.

    part: its row in receipts.
    cell: the cell of a spawn for the session; None for a tree that was handed over or restored.
    durable: the store has the record that the session owns it.
    stage: the number of the kill deadline that applies to it; 0 before the session ends it.
    late: that kill deadline has passed.
    forced: that is on record, and calls no longer wait for its end.
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
        """The address of the call that asked for it, or of the run whose host it was."""
        return Address(self.row.session, self.row.generation, self.row.run_id, self.row.call_id or None)

    def may_be_taken_back(self, agent: str) -> bool:
        """True if it is a host of the agent, which the session keeps for the next run."""
        return self.row.host == agent and self.row.ending is None and not self.part.ended and not self.part.lost

    @property
    def holds(self) -> bool:
        """True while permits wait for its end: the session is ending it."""
        return self.row.ending is not None and not self.part.ended and not self.forced

    @property
    def given_up(self) -> bool:
        """True if its end may never be reported: it outlived its kill deadline, or its warden was lost."""
        return not self.part.ended and (self.late or self.part.lost)


def part_of(row: ProcessRow) -> Part:
    """Make the part that stands for a tree of the session in receipts. It names who ends it, if anybody does."""
    part = Part(row.process_id, PartKind.PROCESS, row.name, row.call_id, holds=row.ending is not None)
    part.pid, part.started_at, part.provenance = row.pid, row.started_at, row.ending
    return part
