"""`sessions`: the sessions, and what each is doing."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from supervisor.console.client.attended import HINT
from supervisor.console.client.endpoint import Place
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, grid, print_json, say
from supervisor.console.render.words import head
from supervisor.live_tree import LiveSession
from supervisor.wire import SessionEntry

UNATTENDED: Final = "unattended"
_STYLES: Final = {
    "running": "green",
    "cancelling": "yellow",
    "quarantined": "red",
    "parked": "yellow",
    UNATTENDED: "yellow",
}


class SessionLine(Struct, frozen=True):
    """A session, and what it is doing.

    `state`: ``idle | queued | running | cancelling | parked | quarantined | unattended``, the last where its run is on
    record as going on, and nobody works on it; `run_id`: of the run that this is about.
    `processes`: how many live, its own among them.
    """

    session: str
    state: str
    run_id: str | None
    generation: int
    last_seq: int
    processes: int


def show_sessions(place: Place, *, as_json: bool) -> None:
    """Print all sessions, by name; see `open_records` for what it raises."""
    with open_records(place) as records:
        tree = records.living(None)
        live = {one.session: one for one in tree.sessions}
        lines = [_line(facts, live.get(facts.session), served=tree.served) for facts in records.sessions()]
    if as_json:
        print_json(lines)
        return
    from rich.text import Text

    out = console()
    if not lines:
        out.print(Text("there is no session yet", style="dim"))
        return
    table = grid(
        "session", "state", "generation", "events", "processes", "run", right=("generation", "events", "processes")
    )
    for line in lines:
        table.add_row(
            Text(head(line.session, 40)),
            Text(line.state, style=_STYLES.get(line.state, "")),
            str(line.generation),
            str(line.last_seq),
            str(line.processes or ""),
            line.run_id or "",
        )
    out.print(table)
    if any(line.state == UNATTENDED for line in lines):
        say(out, HINT, "yellow")


def _line(facts: SessionEntry, live: LiveSession | None, *, served: bool) -> SessionLine:
    runs = live.runs if live is not None else []
    processes = len(live.processes) if live is not None else 0
    processes += sum(len(run.processes) + sum(len(call.processes) for call in run.calls) for run in runs)
    # The newest run that has begun; one before it may still be ending.
    run = next((one for one in reversed(runs) if one.status != "queued"), runs[-1] if runs else None)
    words = {"in_progress": "running", "queued": "queued", "cancelling": "cancelling"}
    state = "idle" if run is None else words.get(run.status, "cancelling")
    if not served and state in ("running", "cancelling"):
        state = UNATTENDED
    if facts.quarantined:
        state = "quarantined"
    elif facts.parked and state in ("idle", "queued"):
        state = "parked"
    return SessionLine(
        facts.session, state, run.run_id if run is not None else None, facts.generation, facts.last_seq, processes
    )
