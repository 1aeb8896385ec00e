"""The words of wardens, zygotes and ledgers as reports to the owner of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.kernel.actor import tell_contained
from actors.messages import OutputRead, ProcessEnded, ProcessNews, ProcessRemaining
from actors.model import How, PartKind, Row, Signalled

if TYPE_CHECKING:
    from pykka import ActorRef

    from supervisor.containment.guard.ledger import Word


def tell(owner: ActorRef[Any] | None, report: ProcessNews | OutputRead) -> None:
    """Send a report to the owner. A dead owner is no error: the owner that adopts the tree gets the reports again."""
    if owner is not None:
        tell_contained(owner, report)


def not_started(process_id: str, note: str, at: float) -> ProcessEnded:
    """The report of a tree that never had a process."""
    return ProcessEnded(process_id, How.NOT_STARTED, proven=True, at=at, note=note)


def ended(process_id: str, word: Word, *, proven: bool) -> ProcessEnded:
    """The report of a last word. If the end of the command was not seen, `how` is GONE if proven, else ABANDONED."""
    unseen = How.GONE if proven else How.ABANDONED
    how = How(word["how"]) if word["how"] is not None else unseen
    return ProcessEnded(
        process_id,
        how=how,
        proven=proven,
        at=word["at"],
        status=word["status"],
        pid=word["pid"],
        started_at=word["started_at"],
        reaped=word["reaped"],
        rows=tuple(_row(row) for row in word["rows"]),
        signals=tuple(_signalled(signal) for signal in word["signals"]),
        note=word["note"],
    )


def remaining(process_id: str, word: Word) -> ProcessRemaining:
    """The report of survivors."""
    return ProcessRemaining(process_id, word["at"], tuple(_row(row) for row in word["rows"]), word["note"])


def _row(word: Word) -> Row:
    unseen = How.GONE if word["ended_at"] is not None else None
    return Row(
        kind=PartKind(word.get("kind", PartKind.PROCESS)),
        name=word["name"],
        started_at=word["started_at"],
        ended_at=word["ended_at"],
        how=How(word["how"]) if word["how"] is not None else unseen,
        status=word["status"],
        signals=tuple(_signalled(signal) for signal in word["signals"]),
        pid=word["pid"],
        note=word.get("note", ""),
    )


def _signalled(word: Word) -> Signalled:
    return Signalled(word["signal"], word["at"], word["error"])
