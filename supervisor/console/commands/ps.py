"""`ps`: the live tree of sessions, runs, calls and processes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from actors.run_status import RunStatus
from actors.text import one_line
from supervisor.console.client.attended import HINT, status_words
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, grid, print_json, say
from supervisor.console.render.words import age, child_of, head
from supervisor.live_processes import LiveProcess
from supervisor.live_tree import LiveRun, LiveSession, Living

MIB: Final = 1024 * 1024
NUMBERS: Final = ("pid", "generation", "age", "cpu", "memory")
WHAT_MAX: Final = 110


class _TreeLine(Struct, frozen=True):
    """A line of the tree. It shows the total time and memory of `processes`, which are its own and those below it."""

    depth: int
    what: str
    processes: tuple[LiveProcess, ...]
    style: str = ""
    pid: int | None = None
    generation: int | None = None
    age_s: float | None = None


def show_ps(endpoint: Endpoint, session: str | None, *, as_json: bool) -> None:
    """Print the live tree of one session, or of all. Raises NotFound; see `open_records`."""
    with open_records(endpoint) as records:
        if session is not None:
            records.session(session)
        tree = records.living(session)
    if as_json:
        print_json(tree)
        return
    from rich.text import Text

    out = console()
    if not tree.sessions:
        out.print(Text("nothing runs", style="dim"))
        return
    table = grid("what", *NUMBERS, right=NUMBERS)
    for line in _lines(tree):
        cpu_s = [one.cpu_s for one in line.processes if one.cpu_s is not None]
        rss = [one.rss_bytes for one in line.processes if one.rss_bytes is not None]
        table.add_row(
            Text("  " * line.depth + one_line(line.what), style=line.style),
            str(line.pid or ""),
            str(line.generation or ""),
            age(line.age_s),
            f"{sum(cpu_s):.2f} s" if cpu_s else "",
            f"{sum(rss) / MIB:.1f} MiB" if rss else "",
        )
    out.print(table)
    if tree.more:
        out.print(Text("and more", style="dim"))
    if not tree.served and any(run.status is not RunStatus.QUEUED for session in tree.sessions for run in session.runs):
        say(out, HINT, "yellow")


def _lines(tree: Living) -> Iterator[_TreeLine]:
    for session in tree.sessions:
        everything = tuple(_of_session(session))
        yield _TreeLine(0, f"session {head(session.session, 60)}", everything, "bold")
        for run in session.runs:
            yield from _run(run, served=tree.served)
        for stray in session.strays:
            what = f"{stray.kind} {head(stray.name, 60)} · started by {stray.call_id or 'the agent'} of {stray.run_id}"
            yield _TreeLine(1, what, (), "bold red", age_s=_since(stray.started_at))
        if session.processes:
            yield _TreeLine(1, "processes of the session itself", tuple(session.processes), "cyan")
            yield from _processes(session.processes, 2)


def _run(run: LiveRun, *, served: bool) -> Iterator[_TreeLine]:
    """Yield the lines of a run. Without a supervisor it has no age: its end is recorded at the next start."""
    style = {"in_progress": "green" if served else "yellow", "queued": ""}.get(run.status, "yellow")
    what = f"run {run.run_id} · {status_words(run.status, served=served)} · agent {head(run.agent, 30)}"
    if run.usage.tokens:
        what += f" · {run.usage.tokens:,} tokens"
    if run.parent is not None:
        what += f" · child of {child_of(run.parent)}"
    age_s = _since(run.started_at) if served else None
    yield _TreeLine(1, what, tuple(_of_run(run)), style, generation=run.generation, age_s=age_s)
    for call in run.calls:
        what = f"call {head(call.tool, 30)} · {call.state} · {call.call_id}"
        if call.question:
            what += f" · {head(call.question, 80)}"
        yield _TreeLine(2, what, tuple(call.processes), age_s=_since(call.started_at) if served else None)
        yield from _processes(call.processes, 3)
    if run.processes:
        yield _TreeLine(2, "processes of its agent, and of calls that have ended", tuple(run.processes))
        yield from _processes(run.processes, 3)


def _processes(processes: Iterable[LiveProcess], base: int) -> Iterator[_TreeLine]:
    depths: dict[int, int] = {}
    for one in processes:
        depth = depths[one.pid] = depths.get(one.parent, -1) + 1
        yield _TreeLine(base + depth, head(one.command, WHAT_MAX), (one,), "dim", pid=one.pid, age_s=one.age_s)


def _of_session(session: LiveSession) -> Iterator[LiveProcess]:
    for run in session.runs:
        yield from _of_run(run)
    yield from session.processes


def _of_run(run: LiveRun) -> Iterator[LiveProcess]:
    for call in run.calls:
        yield from call.processes
    yield from run.processes


def _since(at: float | None) -> float | None:
    return None if at is None else max(0.0, time.time() - at)  # noqa: TID251  # the times in the store are of this clock
