"""Between the sessions of a parent and of a child run: what the parent wants, and what the child's session reports.

See `actors.protocol.child_link` for the theory of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from actors.messages.lanes import Command
from actors.model import Json, Provenance, Receipt
from actors.run_status import RunStatus

if TYPE_CHECKING:
    from actors.ports import ChildSpec


class ChildReport(Struct, frozen=True):
    """A child run as its session has it on record.

    status: None: there is no such run, and none of this id will begin.
    content: the last text that the run has emitted, once it is closed.
    error, result, provenance: as in `RunInfo`.
    receipt: once it is filed. final: nothing more will be known.
    """

    run_id: str
    status: RunStatus | None
    content: str = ""
    error: str | None = None
    result: Json = None
    provenance: Provenance | None = None
    receipt: Receipt | None = None
    final: bool = False

    @property
    def closed(self) -> bool:
        """True once the run has ended, or is ending; also if it never began."""
        return self.status is not RunStatus.IN_PROGRESS

    def follows(self, seen: ChildReport | None) -> bool:
        """True if it says more than one that was seen: it is about a later stage, or its receipt is another one."""
        if seen is None:
            return True
        amended = seen.receipt is not None and self.receipt != seen.receipt
        return self._stage > seen._stage or (self._stage == seen._stage and amended)

    @property
    def _stage(self) -> int:
        if self.final:
            return 3
        return 2 if self.receipt is not None else int(self.closed)


class ChildWanted(Command, frozen=True):
    """All that a parent wants of a child run. The answer is the next report that follows on `seen`.

    spec: what to run; None: nothing is to begin.
    since: when it was asked first, if no answer has come: it may have begun since; seconds, epoch, UTC.
    stop: why the run has to end, or must not begin; with at most `grace_s` seconds of grace.
    """

    session: str
    run_id: str
    spec: ChildSpec | None
    stop: Provenance | None = None
    grace_s: float | None = None
    seen: ChildReport | None = None
    since: float | None = None
