"""The live processes, for `ps`: every process of every tree that is not known to have ended, with its owner.

Three sources are combined, and none is trusted alone. The store says which trees may live and who owns them; the ledger
of a tree names its warden; one pass over /proc finds the processes. A process belongs to a tree if that tree's warden
is among its ancestors. A pid may have been reused, so a process is the warden that a ledger names only if the kernel's
start time agrees too.

This reads files, and takes milliseconds with hundreds of processes. Call it on a thread that may block, in any process
that may read the state directory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from actors.model import Owner, PartKind
from actors.ports import ProcessRow
from supervisor.containment.guard import ledger, procfs
from supervisor.store.reader import SqliteReader

CLOCK_SLACK_S: Final = 0.05
COMMAND_MAX_CHARS: Final = 4096
_FACTS: Final = ("pid", "ppid", "name", "cmdline", "cpu_times", "memory_info", "create_time", "status")

_Seen = dict[int, dict[str, Any]]


class LiveProcess(Struct, frozen=True):
    """One live process. Fields that another user's process does not show are None.

    process_id, name, owner: of its tree. The `process_id` begins with ``subprocess`` if code of the run started the
        tree by itself, without `spawn`.
    parent: the pid of its parent. For a leader, and for an orphan of the tree, that is the warden (in a namespace, its
        keeper).
    leader: it is the command of the tree.
    state: as psutil names it.
    started_at: epoch seconds, UTC. A command starts with its exec: the kernel's own start time may lie before the call.
    age_s, cpu_s: in seconds.
    rss_bytes: resident memory.
    """

    session: str
    run_id: str
    call_id: str
    process_id: str
    name: str
    owner: Owner
    pid: int
    parent: int
    leader: bool
    command: str
    state: str
    started_at: float
    age_s: float
    cpu_s: float | None
    rss_bytes: int | None


def live_processes(state_dir: Path, reader: SqliteReader, session: str | None = None) -> list[LiveProcess]:
    """Return the live processes below a supervisor's wardens, each tree's from the top down.

    Args:
        state_dir: the directory with the ledgers.
        reader: a reader of its store.
        session: only this session; None: all.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    rows = reader.live_processes(session)
    if not rows:
        return []
    # Imported here because it would slow down every start.
    import psutil

    seen: _Seen = {}
    below: defaultdict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter():
        try:
            facts: dict[str, Any] = process.as_dict(_FACTS, ad_value=None)
        except (psutil.Error, OSError):
            # It has ended meanwhile. If it ends between two reads, psutil raises the error of the missing file.
            continue
        if facts["status"] != psutil.STATUS_ZOMBIE and facts["ppid"] is not None:
            seen[process.pid] = facts
            below[facts["ppid"]].append(process.pid)
    found: list[LiveProcess] = []
    boot = procfs.boot_id()
    for row in rows:
        if row.kind != PartKind.PROCESS:
            found += _stray(row, boot, seen, below)
            continue
        words = ledger.read_path(state_dir / "wardens" / f"{quote(row.process_id, safe='')}.ledger")
        warden = _warden(words, seen)
        if warden is not None:
            found += _tree(row, warden, words, seen, below)
    return found


def _warden(words: list[ledger.Word], seen: _Seen) -> int | None:
    """Return the pid of a tree's warden, if that is alive and its pid was not reused."""
    named = ledger.said(words, "warden")
    if named is None or ledger.said(words, "empty") is not None or named["pid"] not in seen:
        return None
    # Compared by the kernel's ticks, which cannot be set as a wall clock can.
    process = procfs.stat(named["pid"])
    return int(named["pid"]) if process is not None and process.start_ticks == named["start_ticks"] else None


def _leader(words: list[ledger.Word]) -> int | None:
    """Return the pid of the command until it is reaped; after that another process of the tree may get the pid."""
    started = ledger.said(words, "started")
    return int(started["pid"]) if started is not None and ledger.said(words, "exited") is None else None


def _keeper(words: list[ledger.Word]) -> int | None:
    """Return the pid of the first process in the tree's namespace, if any. It is ours, like the warden: not listed."""
    keeper = (ledger.said(words, "spawning") or {}).get("keeper")
    return int(keeper["pid"]) if keeper is not None else None


def _tree(
    row: ProcessRow, warden: int, words: list[ledger.Word], seen: _Seen, below: dict[int, list[int]]
) -> list[LiveProcess]:
    # The command may be forked before it is requested, but no process of its tree starts before its exec.
    started, leader, keeper = ledger.said(words, "started"), _leader(words), _keeper(words)
    began = 0.0 if started is None else float(started["at"])
    found: list[LiveProcess] = []
    todo = sorted(below.get(warden, ()), reverse=True)
    passed = {warden}
    while todo:
        pid = todo.pop()
        if pid in passed:
            # One pass is not one moment: a pid may appear twice.
            continue
        passed.add(pid)
        todo += sorted(below.get(pid, ()), reverse=True)
        if pid != keeper or seen[pid]["ppid"] != warden:
            found.append(_process(row, seen[pid], began, leader=pid == leader))
    return found


def _stray(row: ProcessRow, boot: str, seen: _Seen, below: dict[int, list[int]]) -> list[LiveProcess]:
    """Return a process that code of a run started by itself, and those below it; empty for a thread or a task."""
    root = procfs.stat(row.pid) if row.pid in seen else None
    if root is None or f"{boot}:{root.start_ticks}" != row.born:
        return []
    found: list[LiveProcess] = []
    todo, passed = [root.pid], set[int]()
    while todo:
        pid = todo.pop()
        if pid not in passed:
            passed.add(pid)
            todo += sorted(below.get(pid, ()), reverse=True)
            found.append(_process(row, seen[pid], 0.0, leader=pid == root.pid))
    return found


def _process(row: ProcessRow, facts: dict[str, Any], began: float, *, leader: bool) -> LiveProcess:
    cpu, memory = facts["cpu_times"], facts["memory_info"]
    command = " ".join(facts["cmdline"] or ()) or f"[{facts['name']}]"
    started_at = max(began, float(facts["create_time"]))
    return LiveProcess(
        session=row.session,
        run_id=row.run_id,
        call_id=row.call_id,
        process_id=row.process_id,
        name=row.name,
        owner=row.owner,
        pid=facts["pid"],
        parent=facts["ppid"],
        leader=leader,
        command=command[:COMMAND_MAX_CHARS].encode("utf-8", "replace").decode(),
        state=str(facts["status"]),
        started_at=started_at,
        age_s=max(0.0, time.time() - started_at),  # noqa: TID251  # compared with the kernel's own times
        cpu_s=None if cpu is None else cpu.user + cpu.system,
        rss_bytes=None if memory is None else memory.rss,
    )
