"""Log lines about runs: started, fenced, ended, and by whom. They are for operators; the store has all events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loguru import logger

from actors.events import (
    EventData,
    EventKind,
    RunEndedData,
    RunStartedData,
    SessionBarrierForcedData,
    SessionFencedData,
    SessionQuarantinedData,
    SessionResumedData,
    UnreadableData,
    data_of,
    named_run,
)
from actors.model import Event, Provenance

LOGGED: Final = frozenset(
    {
        EventKind.RUN_STARTED,
        EventKind.RUN_ENDED,
        EventKind.SESSION_FENCED,
        EventKind.SESSION_RESUMED,
        EventKind.SESSION_BARRIER_FORCED,
        EventKind.SESSION_QUARANTINED,
    }
)
"""Kinds that have a line: most events are output, and are not decoded here."""


def log_events(session: str, events: Sequence[Event]) -> None:
    """Log the events that matter to an operator; skip the others. Any thread."""
    for event in events:
        if event.kind not in LOGGED:
            continue
        data = data_of(event)
        line = _line(data)
        if line is not None:
            level, text = line
            run_id = event.run_id or named_run(data)
            about = {"session": session, "generation": event.generation} | ({"run": run_id} if run_id else {})
            logger.bind(**about).log(level, "{}", text)


def _line(data: EventData) -> tuple[str, str] | None:
    """Return the level and the text of an event's line; None: it has none."""
    match data:
        case RunStartedData():
            return "INFO", "run started"
        case RunEndedData() if data.receipt.complete:
            return "INFO", f"run {data.status}{_by(data.receipt.provenance)}"
        case RunEndedData():
            text = f"run {data.status}{_by(data.receipt.provenance)}"
            return "WARNING", f"{text}; not all of it is proven to have ended"
        case SessionFencedData():
            return "INFO", f"fenced{_by(data.provenance)}"
        case SessionResumedData():
            return "INFO", "resumed"
        case SessionBarrierForcedData():
            return "WARNING", f"calls go on though these could not be ended: {', '.join(data.abandoned)}"
        case SessionQuarantinedData():
            return "ERROR", "the session failed too often: it is quarantined, and takes only Stop"
        case UnreadableData():
            return "WARNING", f"{data.kind}, whose data cannot be read: {data.error}"
        case _:
            return None


def _by(provenance: Provenance | None) -> str:
    return "" if provenance is None else f" by {provenance.source}: {provenance.reason}"
