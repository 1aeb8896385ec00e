"""The live tree: sessions, their runs, the calls of the runs, and the processes of the calls.

The store says which runs are not settled and which calls have not ended; `live_processes` says which processes live and
who owns them. They are read one after the other while everything goes on: a part that ends meanwhile may be in the
tree, and one that starts meanwhile may be missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from actors.model import CallState, Owner, PartKind, RunInfo, RunParent
from actors.ports import CallRow
from actors.run_status import RunStatus
from actors.usage import Usage
from supervisor.live_processes import LiveProcess
from supervisor.store.reader import SqliteReader

ENTRIES_MAX: Final = 1_000
"""Limit on the runs, and on the calls, that are listed."""

_Key = tuple[str, str, str]
_Processes = dict[_Key, list[LiveProcess]]


class LiveCall(Struct, frozen=True):
    """A tool call that has not ended, with its processes, each tree from the top down.

    `question` is what it asks a person, while it waits for that.
    """

    call_id: str
    tool: str
    state: CallState
    started_at: float | None
    processes: list[LiveProcess]
    question: str = ""


class LiveRun(Struct, frozen=True):
    """A run that is not settled: it runs, ends or waits. `processes` are those that belong to no open call.

    `parent`: whose child run it is; None: nobody's.
    """

    run_id: str
    status: RunStatus
    agent: str
    generation: int | None
    started_at: float | None
    calls: list[LiveCall]
    processes: list[LiveProcess]
    usage: Usage = Usage()
    parent: RunParent | None = None


class LiveStray(Struct, frozen=True):
    """A thread or task that code of a run started by itself, and that goes on after that code has ended."""

    kind: PartKind
    name: str
    run_id: str
    call_id: str
    started_at: float | None


class LiveSession(Struct, frozen=True):
    """A session with live parts. `processes` are the session's own, and those of no unsettled run.

    `strays` belong to runs that are being ended, and to runs whose receipt names them.
    """

    session: str
    runs: list[LiveRun]
    processes: list[LiveProcess]
    strays: list[LiveStray] = field(default_factory=list)


class Living(Struct, frozen=True):
    """The live tree: session, run, call, process. `more`: there are more runs or calls than are listed.

    `served`: a supervisor works on these runs. False: their supervisor has ended, and they are as it left them.
    """

    sessions: list[LiveSession]
    more: bool
    served: bool = True


def living(
    store: SqliteReader, listed: Iterable[LiveProcess], session: str | None = None, *, served: bool = True
) -> Living:
    """Return the live tree. Reads the store; blocks for as long as the disk takes.

    Args:
        store: a reader of the store.
        listed: the live processes, of one session or of all.
        session: only this session; None: all.
        served: a supervisor works on the sessions.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    runs = store.open_runs(session, ENTRIES_MAX + 1)
    rows = store.open_calls(session, ENTRIES_MAX + 1)
    more = max(len(runs), len(rows)) > ENTRIES_MAX
    calls: defaultdict[tuple[str, str], list[CallRow]] = defaultdict(list)
    for row in rows[:ENTRIES_MAX]:
        calls[row.session, row.run_id].append(row)
    processes: defaultdict[_Key, list[LiveProcess]] = defaultdict(list)
    for one in listed:
        run_id, call_id = ("", "") if one.owner is Owner.SESSION else (one.run_id, one.call_id)
        processes[one.session, run_id, call_id].append(one)
    sessions: dict[str, LiveSession] = {}
    for run in runs[:ENTRIES_MAX]:
        live = sessions.setdefault(run.session, LiveSession(run.session, [], [], []))
        live.runs.append(_run(run, calls[run.session, run.run_id], processes))
    for (name, _, _), left in processes.items():
        sessions.setdefault(name, LiveSession(name, [], [], [])).processes.extend(left)
    # Threads and tasks live in the supervisor's process, and end with it.
    for left_row in store.live_processes(session)[:ENTRIES_MAX] if served else ():
        if left_row.kind in (PartKind.THREAD, PartKind.TASK):
            name, of, call = left_row.session, left_row.run_id, left_row.call_id
            stray = LiveStray(left_row.kind, left_row.name, of, call, left_row.started_at)
            sessions.setdefault(name, LiveSession(name, [], [], [])).strays.append(stray)
    return Living(sorted(sessions.values(), key=lambda live: live.session), more, served)


def _run(run: RunInfo, rows: list[CallRow], processes: _Processes) -> LiveRun:
    """Return a run with its calls and processes; they are removed from `processes`."""
    calls = [
        LiveCall(
            row.call_id,
            row.tool,
            row.state,
            row.started_at,
            processes.pop(_key(run, row.call_id), []),
            row.question.text if row.question is not None and row.state == CallState.WAITING else "",
        )
        for row in rows
    ]
    left = [key for key in processes if key[:2] == (run.session, run.run_id)]
    others = [one for key in left for one in processes.pop(key)]
    return LiveRun(
        run.run_id, run.status, run.agent, run.generation, run.started_at, calls, others, run.usage, run.parent
    )


def _key(run: RunInfo, call_id: str) -> _Key:
    return run.session, run.run_id, call_id
