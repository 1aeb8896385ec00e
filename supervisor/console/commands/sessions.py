"""`sessions`: the sessions, and what each is doing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from actors.run_status import RunStatus
from supervisor.console.client.attended import HINT
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, grid, print_json, say
from supervisor.console.render.words import head
from supervisor.live_tree import LiveSession
from supervisor.wire import SessionEntry


class SessionWord(StrEnum):
    """What a session is doing, as the store says."""

    IDLE = "idle"
    """No run is on record as going on."""
    QUEUED = "queued"
    """Its run waits to start."""
    RUNNING = "running"
    """A run is active."""
    CANCELLING = "cancelling"
    """A run has ended, or is ending, and its receipt is not filed."""
    PARKED = "parked"
    """Its messages wait for the next message, or for a Resume."""
    QUARANTINED = "quarantined"
    """It failed too often, and accepts Stop and nothing else."""
    UNATTENDED = "unattended"
    """Its run is recorded as unfinished, and no supervisor works on it."""


_STYLES: Final = {
    SessionWord.RUNNING: "green",
    SessionWord.CANCELLING: "yellow",
    SessionWord.QUARANTINED: "red",
    SessionWord.PARKED: "yellow",
    SessionWord.UNATTENDED: "yellow",
}
_OF_RUNS: Final = {RunStatus.IN_PROGRESS: SessionWord.RUNNING, RunStatus.QUEUED: SessionWord.QUEUED}
"""What a session is doing by the status of its run; with any other status it is `CANCELLING`."""


class SessionLine(Struct, frozen=True):
    """A session, and what it is doing.

    `run_id`: of the run that `state` is about. `processes`: how many live, its own among them.
    """

    session: str
    state: SessionWord
    run_id: str | None
    generation: int
    last_seq: int
    processes: int


def show_sessions(endpoint: Endpoint, *, as_json: bool) -> None:
    """Print all sessions, by name; see `open_records` for what it raises."""
    with open_records(endpoint) as records:
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
    if any(line.state is SessionWord.UNATTENDED for line in lines):
        say(out, HINT, "yellow")


def _line(facts: SessionEntry, live: LiveSession | None, *, served: bool) -> SessionLine:
    runs = live.runs if live is not None else []
    processes = len(live.processes) if live is not None else 0
    processes += sum(len(run.processes) + sum(len(call.processes) for call in run.calls) for run in runs)
    # The newest run that has begun; one before it may still be ending.
    run = next((one for one in reversed(runs) if one.status is not RunStatus.QUEUED), runs[-1] if runs else None)
    state = SessionWord.IDLE if run is None else _OF_RUNS.get(run.status, SessionWord.CANCELLING)
    if not served and state in (SessionWord.RUNNING, SessionWord.CANCELLING):
        state = SessionWord.UNATTENDED
    if facts.quarantined:
        state = SessionWord.QUARANTINED
    elif facts.parked and state in (SessionWord.IDLE, SessionWord.QUEUED):
        state = SessionWord.PARKED
    return SessionLine(
        facts.session, state, run.run_id if run is not None else None, facts.generation, facts.last_seq, processes
    )
