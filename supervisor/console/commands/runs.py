"""`runs`: the runs of a session, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from actors.model import RunInfo
from actors.run_status import RunStatus
from actors.text import one_line
from supervisor.console.client.attended import attended, say_if_unattended
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import RUNS_MAX, Records
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, newest, print_json, say_left_out
from supervisor.console.render.words import (
    ERROR_CHARS,
    cause,
    child_of,
    date_time,
    duration,
    head,
    script_ended,
    script_problem,
)

ID_WIDTH: Final = 30
AT_WORK: Final = frozenset({RunStatus.IN_PROGRESS, RunStatus.CANCELLING})

STYLES: Final = {
    RunStatus.COMPLETED: "green",
    RunStatus.CANCELLED: "yellow",
    RunStatus.CANCELLING: "yellow",
    RunStatus.FAILED: "red",
    RunStatus.EXPIRED: "red",
}


def show_runs(endpoint: Endpoint, session: str, last: int | None, *, as_json: bool) -> None:
    """Print the runs of a session, or the newest `last` (see `newest`) and those that run, the oldest first.

    Raises NotFound; see `open_records`.

    As JSON each is as the store has it, with whether it is `attended`.
    """
    with open_records(endpoint) as records:
        records.session(session)
        found = records.runs(session)
        runs = newest(found, last, as_json=as_json)
        earlier = [run for run in found[: len(found) - len(runs)] if run.status in AT_WORK]
        texts = {} if as_json else _texts(records, session, [*earlier, *runs])
        served = records.served
    if as_json:
        print_json([{**msgspec.to_builtins(run), "attended": attended(run, served=served)} for run in runs])
        return
    from rich.text import Text

    out = console()
    if not runs:
        out.print(Text(f"session {one_line(session)} has had no run yet", style="dim"))
    cut = len(found) == RUNS_MAX
    if cut and len(runs) == RUNS_MAX:
        out.print(Text(f"the newest {RUNS_MAX} runs", style="dim"))
    # A line of facts for each run, and below it what it was given and why it ended: both may be long.
    for run in [*earlier, *runs]:
        code = script_ended(run.result) if run.status is RunStatus.COMPLETED else ""
        line = Text(f"{one_line(run.run_id):<{ID_WIDTH}}  ")
        line.append(f"{run.status} ({code})" if code else str(run.status), style=STYLES.get(run.status, ""))
        lasted = "" if run.ended_at is None else f"  {duration(run.started_at, run.ended_at)}"
        line.append(f"  {date_time(run.started_at or run.created_at)}{lasted}", style="dim")
        out.print(line, soft_wrap=True)
        for key in run.inputs:
            out.print(Text("    " + head(texts.get(key, key), out.width - 4)), soft_wrap=True)
        if run.parent is not None:
            out.print(Text(f"    child of {child_of(run.parent)}", style="dim"), soft_wrap=True)
        why = _why_in_brief(run)
        if why:
            out.print(Text("    " + why, style="dim"), soft_wrap=True)
    if len(runs) < len(found):
        say_left_out(out, len(runs), "runs", f"{len(found)} or more" if cut else str(len(found)))
    say_if_unattended(out, found, served=served)


def _texts(records: Records, session: str, runs: Sequence[RunInfo]) -> dict[str, str]:
    """Return the texts of the messages that runs were given, by the messages' ids."""
    began = [run for run in runs if run.started_at is not None]
    if not began:
        return {}
    messages, more = records.thread_end(session, 1, began[0].run_id)
    texts = {message.id: message.content for message in messages}
    if more and any(key not in texts for run in began for key in run.inputs):
        # A retry has its inputs in the run that it tries again, and a page has its limits.
        texts = {message.id: message.content for message in records.thread(session)}
    return texts


def _why_in_brief(run: RunInfo) -> str:
    if run.provenance is not None:
        return f"ended by {cause(run.provenance)}"
    if run.error:
        return f"failed with {head(run.error, ERROR_CHARS)}"
    problem = script_problem(run.result)
    if problem:
        return head(problem, 120)
    return f"retry of {one_line(run.retry_of)}" if run.retry_of else ""
