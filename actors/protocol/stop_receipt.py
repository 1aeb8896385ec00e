"""The receipt of a Stop that found no run, and waits for process trees of the session."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from actors.model import How, Receipt
from actors.protocol.run_record import Part


@dataclass(slots=True)
class StopReceipt:
    """One such receipt: filed once, then amended. `parts` are the trees that it waits for, by id."""

    receipt: Receipt
    parts: dict[str, Part] = field(default_factory=dict)
    filed: bool = False

    @property
    def complete(self) -> bool:
        """True if each tree has ended."""
        return all(part.ended for part in self.parts.values())

    def file(self, at: float) -> Receipt:
        """Return the receipt with a row for each tree; a tree that has not ended is named abandoned."""
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
