"""A receipt as a table: each part of a run, how it ended, and what that took."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from actors.model import How, PartKind, Receipt, Row
from actors.text import one_line
from supervisor.console.render.words import ERROR_CHARS, cause, clock_time, duration, head, plural

ROWS_SHOWN_MAX = 100
_CANCELLATIONS = ("CancelledError", "RunCancelled")
"""The errors that cancelled agents and tools have in receipts from before ``cancelled``."""

_HOW = {
    How.RETURNED: "returned",
    How.RAISED: "raised an error",
    How.CANCELLED: "cancelled",
    How.GONE: "gone",
    How.EXIT: "exited",
    How.SIGTERM: "ended by SIGTERM",
    How.SIGKILL: "killed by SIGKILL",
    How.ABANDONED: "COULD NOT BE ENDED",
    How.OUT_OF_REACH: "out of reach",
    How.NOT_STARTED: "never started",
    How.HANDED_OVER: "handed over to the session",
    How.OTHER: "ended in a way that this version does not know",
}


def how_ended(row: Row) -> str:
    """Say how a part ended, with its exit status where that tells more."""
    if row.how is None:
        return "still running" if row.ended_at is None else "gone"
    if row.how is How.RAISED and (not row.note or row.note.startswith(_CANCELLATIONS)):
        # An execution that raised an error of its own says which in its note.
        return _HOW[How.CANCELLED]
    if row.how is How.SIGKILL and any(one.name == f"host {row.name}" for one in row.rows):
        return "killed with its host"
    if row.how in (How.GONE, How.SIGKILL) and row.kind not in (PartKind.PROCESS, PartKind.SUBPROCESS):
        # A function is never killed: the process that it ran in was. SIGKILL is what older receipts say.
        return "lost with its supervisor"
    text = _HOW[row.how]
    if row.how is not How.EXIT or row.status is None:
        return text
    if row.status >= 0:
        return f"exited with {row.status}"
    from supervisor.tools.shell import describe_exit

    return describe_exit(row.status)


def signals_sent(row: Row) -> str:
    """Say which signals a part was sent, in order: when the first came, or by how much the later ones followed it."""
    groups: dict[float, list[str]] = {}
    known = set()
    for sent in row.signals:
        name = sent.signal.removeprefix("SIG") + (f" ({sent.error})" if sent.error else "")
        if name not in known:
            known.add(name)
            groups.setdefault(round(sent.at - row.signals[0].at, 1), []).append(name)
    if not groups:
        return ""
    if len(groups) == 1:
        return f"{' '.join(*groups.values())} at {clock_time(row.signals[0].at)}"
    return ", ".join(" ".join(names) + (f" +{later_s:.1f} s" if later_s else "") for later_s, names in groups.items())


def summary(receipt: Receipt) -> str:
    """Say in one line what a receipt adds up to."""
    whole = "everything ended" if receipt.complete else "NOT everything could be ended"
    return (
        f"receipt {one_line(receipt.receipt_id)}: {whole}, {plural(receipt.reaped, 'process', 'processes')} proven dead"
    )


def table(receipt: Receipt, width: int, *, colour: bool, told: str | None = None) -> str:
    """Return a receipt's rows laid out in `width` columns, and its summary.

    `told`: an error that is shown above it, and is not repeated.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False, markup=False)
    if receipt.rows:
        grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        grid.add_column("part", overflow="ellipsis", no_wrap=True, max_width=max(20, width - 66))
        for name in ("how it ended", "pid", "signals", "lasted"):
            grid.add_column(name, no_wrap=True, justify="right" if name in ("pid", "lasted") else "left")
        rows = list(_flat(receipt.rows))
        for depth, row in rows[:ROWS_SHOWN_MAX]:
            bad = row.how in (How.ABANDONED, How.OUT_OF_REACH)
            grid.add_row(
                Text("  " * depth + f"{row.kind} {head(row.name)}"),
                Text(one_line(how_ended(row)), style="bold red" if bad else ""),
                str(row.pid or ""),
                Text(one_line(signals_sent(row))),
                duration(row.started_at, row.ended_at),
            )
        console.print(grid)
        unlisted = receipt.omitted + max(0, len(rows) - ROWS_SHOWN_MAX)
        if unlisted:
            console.print(f"and {plural(unlisted, 'part')} more that ended")
        for _, row in rows[:ROWS_SHOWN_MAX]:
            if row.provenance is not None:
                console.print(Text(f"{row.kind} {head(row.name)}{_pid(row)} was ended by {cause(row.provenance)}"))
            if row.effects:
                begun = ", ".join(map(str, row.effects))
                console.print(Text(f"{row.kind} {head(row.name)} had begun: {head(begun, 300)}"))
            if row.note and not row.note.startswith(_CANCELLATIONS) and row.note not in (told or ""):
                console.print(Text(f"{row.kind} {head(row.name)}{_pid(row)}: {head(row.note, ERROR_CHARS)}"))
    console.print(Text(summary(receipt), style="" if receipt.complete else "bold red"))
    return out.getvalue()


def _pid(row: Row) -> str:
    return f" (pid {row.pid})" if row.pid else ""


def _flat(rows: Iterable[Row], depth: int = 0) -> Iterator[tuple[int, Row]]:
    for row in rows:
        yield depth, row
        yield from _flat(row.rows, depth + 1)
