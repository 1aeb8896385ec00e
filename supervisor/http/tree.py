"""The live tree: sessions, their runs, the calls of these, and the processes of those.

The store says which runs are not settled and which calls have not ended, the containment which trees live, and /proc
what is in each: everything below a warden is one tree. These are read one after the other, while all of it goes on,
so a part that ends meanwhile may be in it and one that starts meanwhile may not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import psutil

from supervisor.embed import Supervisor
from supervisor.http.bodies import Call, LiveRun, LiveSession, Living, Proc, Tree

if TYPE_CHECKING:
    from actors.model import RunInfo
    from actors.ports import CallRow

ENTRIES_MAX = 1_000
PROCESSES_MAX = 200
"""Processes of one tree that are listed."""
COMMAND_MAX_CHARS = 200

_Key = tuple[str, str]


def living(supervisor: Supervisor, session: str | None = None) -> Living:
    """Return the live tree, of one session or of all. Reads the store and /proc: not for the loop's thread."""
    runs = supervisor.store.open_runs(session, ENTRIES_MAX)
    calls: dict[_Key, list[CallRow]] = defaultdict(list)
    for call in supervisor.store.open_calls(session, ENTRIES_MAX):
        calls[call.session, call.run_id].append(call)
    trees = _trees(supervisor, session)
    sessions: dict[str, LiveSession] = {}
    for run in runs:
        live = sessions.setdefault(run.session, LiveSession(run.session, [], []))
        live.runs.append(_run(run, calls[run.session, run.run_id], trees))
    for (name, _), left in trees.items():
        sessions.setdefault(name, LiveSession(name, [], [])).trees.extend(left)
    return Living(sorted(sessions.values(), key=lambda live: live.session))


def _run(run: RunInfo, calls: list[CallRow], trees: dict[_Key, list[Tree]]) -> LiveRun:
    rows = [
        Call(call.call_id, call.tool, call.state, call.started_at, trees.pop((run.session, call.call_id), []))
        for call in calls
    ]
    return LiveRun(run.run_id, str(run.status), run.agent, run.generation, run.started_at, rows)


def _trees(supervisor: Supervisor, session: str | None) -> dict[_Key, list[Tree]]:
    """The trees that live, by session and call."""
    found: dict[_Key, list[Tree]] = defaultdict(list)
    children: dict[int, list[psutil.Process]] | None = None
    for tree in supervisor.trees():
        # A session's name may hold colons; a generation and a call's id hold none.
        name, generation, call = [*tree.fence.rsplit(":", 2), "", "", ""][:3]
        if session is not None and name != session:
            continue
        if children is None:
            children = _children()
        processes = _below(tree.warden_pid, children) if tree.warden_pid is not None else []
        number = int(generation) if generation.isdigit() else 0
        found[name, call].append(
            Tree(tree.process_id, tree.name, number, tree.pid, tree.warden_pid, tree.started_at, processes)
        )
    return found


def _children() -> dict[int, list[psutil.Process]]:
    """Every process by its parent's pid, in one pass over /proc."""
    found: dict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        found[process.info["ppid"]].append(process)
    return found


def _below(pid: int, children: dict[int, list[psutil.Process]]) -> list[Proc]:
    rows: list[Proc] = []
    # A pid may be used again between two reads: nobody is listed twice, so there is no circle.
    seen = {pid}
    ahead = [pid]
    while ahead and len(rows) < PROCESSES_MAX:
        for process in children.get(ahead.pop(0), ()):
            if process.pid in seen:
                continue
            seen.add(process.pid)
            ahead.append(process.pid)
            row = _proc(process)
            if row is not None:
                rows.append(row)
    return rows


def _proc(process: psutil.Process) -> Proc | None:
    """Read one process; None for one that has ended meanwhile, or that only waits to be reaped."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            spent = process.cpu_times()
            age_s = max(0.0, time.time() - process.create_time())  # noqa: TID251  # what /proc's times are compared to
            command = " ".join(process.cmdline())[:COMMAND_MAX_CHARS].encode(errors="replace").decode()
            memory = process.memory_info().rss
            return Proc(process.pid, process.ppid(), process.name(), command, age_s, spent.user + spent.system, memory)
    except psutil.Error:
        return None
