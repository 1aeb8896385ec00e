"""Log lines about runs: started, fenced, ended, and by whom. They are for operators; the store has all events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from loguru import logger

from actors.model import Event


def tell(session: str, events: Sequence[Event]) -> None:
    """Log the events that matter to an operator; skip the others. Any thread."""
    for event in events:
        told = _TOLD.get(event.kind)
        if told is not None:
            level, words = told(event.data)
            run_id = event.run_id or event.data.get("run_id")
            about = {"session": session, "generation": event.generation} | ({"run": run_id} if run_id else {})
            logger.bind(**about).log(level, "{}", words)


def _fenced(data: dict[str, Any]) -> tuple[str, str]:
    return "INFO", f"fenced{_by(data.get('provenance'))}"


def _ended(data: dict[str, Any]) -> tuple[str, str]:
    receipt = data.get("receipt") or {}
    words = f"run {data['status']}{_by(receipt.get('provenance'))}"
    if not receipt.get("complete", True):
        return "WARNING", f"{words}; not all of it is proven to have ended"
    return "INFO", words


def _forced(data: dict[str, Any]) -> tuple[str, str]:
    return "WARNING", f"calls go on though these could not be ended: {', '.join(map(str, data.get('abandoned', ())))}"


def _by(provenance: dict[str, Any] | None) -> str:
    return "" if provenance is None else f" by {provenance['source']}: {provenance['reason']}"


_TOLD: Final[dict[str, Callable[[dict[str, Any]], tuple[str, str]]]] = {
    "run.started": lambda _: ("INFO", "run started"),
    "run.ended": _ended,
    "session.fenced": _fenced,
    "session.resumed": lambda _: ("INFO", "resumed"),
    "session.barrier_forced": _forced,
    "session.quarantined": lambda _: ("ERROR", "the session failed too often: it is quarantined, and takes only Stop"),
}
