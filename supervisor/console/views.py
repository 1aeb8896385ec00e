"""`thread` and `runs`: what the store holds of a session, as a table, as text, or as one JSON document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from actors.model import LIVE, Message, RunInfo, RunStatus
from supervisor.console.reading import check_session, open_store
from supervisor.console.words import cause, clock_time, date_time, duration, head, shown
from supervisor.lock import held

PLAIN_WIDTH: Final = 200
ID_WIDTH: Final = 30

_STYLES: Final = {
    RunStatus.COMPLETED: "green",
    RunStatus.CANCELLED: "yellow",
    RunStatus.CANCELLING: "yellow",
    RunStatus.FAILED: "red",
    RunStatus.EXPIRED: "red",
}


def console() -> Any:
    """Return a rich console on standard output; not a terminal, it is plain and wide."""
    from rich.console import Console

    class Output(Console):
        """As rich has it, but a reader that has gone is for the command to handle, which ends quietly."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Output(width=width, highlight=False, markup=False, emoji=False)


def print_json(value: object) -> None:
    """Print one JSON document, and nothing else, on standard output."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def show_thread(state_dir: Path, session: str, *, as_json: bool) -> None:
    """Print the messages of a session. Raises NotFound, StoreUnavailable."""
    with open_store(state_dir) as reader:
        check_session(reader, session)
        messages = reader.thread(session)
        waiting = reader.waiting(session)
        row = reader.session(session)
    if as_json:
        print_json(messages)
        return
    from rich.text import Text

    out = console()
    for message in messages:
        out.print(Text(_heading(message), style="bold" if message.role == "user" else "dim"))
        calls = [
            f"calls {call.name}({head(', '.join(f'{key}={value!r}' for key, value in call.arguments.items()))})"
            for call in message.tool_calls
        ]
        body = "\n".join([message.content.rstrip("\n"), *calls] if message.content.strip() else calls)
        for line in shown(body).split("\n"):
            out.print(Text("  " + line), soft_wrap=True)
    for waits in waiting:
        parked = "parked" if row is not None and row.parked else "waiting"
        out.print(Text(f"{parked} · {clock_time(waits.accepted_at)} · {waits.run_id}", style="yellow"))
        out.print(Text("  " + head(waits.message.content, 120)))
    if not messages and not waiting:
        out.print(Text("the thread is empty", style="dim"))


def _heading(message: Message) -> str:
    marks = [message.role, clock_time(message.at), message.run_id or ""]
    if message.status != "complete":
        marks.append(message.status)
    if message.outcome is not None:
        marks.append(message.outcome.replace("_", " "))
    return " · ".join(mark for mark in marks if mark)


def show_runs(state_dir: Path, session: str, *, as_json: bool) -> None:
    """Print the runs of a session, the oldest first. Raises NotFound, StoreUnavailable."""
    with open_store(state_dir) as reader:
        check_session(reader, session)
        runs = reader.runs(session)
        texts = {} if as_json else {message.id: message.content for message in reader.thread(session)}
    if as_json:
        print_json(runs)
        return
    from rich.text import Text

    out = console()
    if not runs:
        out.print(Text(f"session {session} has had no run yet", style="dim"))
    # A line of facts for each run, and below it what it was given and why it ended: both may be long.
    for run in runs:
        code = _exit_code(run)
        line = Text(f"{run.run_id:<{ID_WIDTH}}  ")
        line.append(f"{run.status} ({code})" if code else str(run.status), style=_STYLES.get(run.status, ""))
        lasted = "" if run.ended_at is None else f"  {duration(run.started_at, run.ended_at)}"
        line.append(f"  {date_time(run.started_at or run.created_at)}{lasted}", style="dim")
        out.print(line, soft_wrap=True)
        for key in run.inputs:
            out.print(Text("    " + head(texts.get(key, key), out.width - 4)), soft_wrap=True)
        why = _why_in_brief(run)
        if why:
            out.print(Text("    " + why, style="dim"), soft_wrap=True)
    if any(run.status in LIVE for run in runs) and not held(state_dir):
        hint = f"what had the runs that are not over has ended; `countermand chat --session {session}` takes them up"
        out.print(Text(hint, style="yellow"), soft_wrap=True)


def _exit_code(run: RunInfo) -> str:
    """Name the exit code of a run that completed with another than 0."""
    code = run.result.get("exit_code") if isinstance(run.result, dict) else None
    return f"exit code {code}" if code else ""


def _why_in_brief(run: RunInfo) -> str:
    if run.provenance is not None:
        return f"ended by {cause(run.provenance)}"
    if run.error:
        return f"failed with {head(run.error, 120)}"
    return f"retry of {run.retry_of}" if run.retry_of else ""
