"""What runs now, for `ps`: every live process of every tree that is not known to have ended, and whose it is.

Three sources are put together, and none is believed alone. The store says which trees may live and whose they are;
the ledger of a tree names its warden; /proc says which processes there are, by one pass over all of them. A process
belongs to a tree if the way up from it leads to that tree's warden. A pid alone says nothing: it may be somebody
else's by now, so a warden is the process that its ledger means only if the zygote that forked it is still, by its own
start time, the one that the ledger names; or, where that zygote is gone, if it began before it wrote that it was there.

All of it reads files, and takes milliseconds with hundreds of processes: it is for a thread that may block, and for
any process that may read the state directory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from actors.model import Owner
from actors.ports import ProcessRow
from supervisor.containment.guard import ledger, procfs
from supervisor.store.reader import SqliteReader

CLOCK_SLACK_S: Final = 0.05
COMMAND_MAX_CHARS: Final = 4096
_FACTS: Final = ("pid", "ppid", "name", "cmdline", "cpu_times", "memory_info", "create_time", "status")

_Seen = dict[int, dict[str, Any]]


class LiveProcess(Struct, frozen=True):
    """One live process. Times: seconds (`started_at`: epoch, UTC); `rss_bytes`: resident memory.

    The command of a tree began when it was executed: the kernel's own start time of it may lie before the call.

    Of a tree that code of the run started by itself, without `spawn`, the `process_id` begins with ``subprocess``.

    `process_id`, `name` and `owner` are those of its tree, `leader` says that it is the command of the tree itself.
    `parent` is the pid of its parent; that of a leader, or of what fell to the warden, is the warden (in a
    namespace: to its keeper). `state` is a word of psutil's. What another user's process does not show is None.
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
        state_dir: where the ledgers are.
        reader: of its store.
        session: of this session only; None: of all.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    rows = reader.live_processes(session)
    if not rows:
        return []
    # Not needed to start, and a start waits for each import.
    import psutil

    seen: _Seen = {}
    below: defaultdict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter():
        try:
            facts: dict[str, Any] = process.as_dict(_FACTS, ad_value=None)
        except (psutil.Error, OSError):
            # It has gone meanwhile. One that goes between two of its files psutil reports as the file that is missing.
            continue
        if facts["status"] != psutil.STATUS_ZOMBIE and facts["ppid"] is not None:
            seen[process.pid] = facts
            below[facts["ppid"]].append(process.pid)
    found: list[LiveProcess] = []
    boot = procfs.boot_id()
    for row in rows:
        if row.kind != "process":
            found += _stray(row, boot, seen, below)
            continue
        words = ledger.read_path(state_dir / "wardens" / f"{quote(row.process_id, safe='')}.ledger")
        warden = _warden(words, seen)
        if warden is not None:
            found += _tree(row, warden, words, seen, below)
    return found


def _warden(words: list[ledger.Word], seen: _Seen) -> int | None:
    """The pid of a tree's warden, if that is alive and no other process has its pid by now."""
    said = ledger.said(words, "warden")
    if said is None or ledger.said(words, "empty") is not None or said["pid"] not in seen:
        return None
    # By the ticks at which it began, which nobody can set, as a wall clock can be.
    process = procfs.stat(said["pid"])
    return int(said["pid"]) if process is not None and process.start_ticks == said["start_ticks"] else None


def _leader(words: list[ledger.Word]) -> int | None:
    """The pid of the command, while it is not reaped: then the pid may be anybody's in the tree."""
    started = ledger.said(words, "started")
    return int(started["pid"]) if started is not None and ledger.said(words, "exited") is None else None


def _keeper(words: list[ledger.Word]) -> int | None:
    """The pid of the first process in the tree's namespace, if it has one: ours, like the warden, and not listed."""
    keeper = (ledger.said(words, "spawning") or {}).get("keeper")
    return int(keeper["pid"]) if keeper is not None else None


def _tree(
    row: ProcessRow, warden: int, words: list[ledger.Word], seen: _Seen, below: dict[int, list[int]]
) -> list[LiveProcess]:
    # The command was forked before it was asked for, and nobody of its tree began before it was executed.
    started, leader, keeper = ledger.said(words, "started"), _leader(words), _keeper(words)
    began = 0.0 if started is None else float(started["at"])
    found: list[LiveProcess] = []
    todo = sorted(below.get(warden, ()), reverse=True)
    passed = {warden}
    while todo:
        pid = todo.pop()
        if pid in passed:
            # Read in one pass, but not in one moment: a pid may turn up again.
            continue
        passed.add(pid)
        todo += sorted(below.get(pid, ()), reverse=True)
        if pid != keeper or seen[pid]["ppid"] != warden:
            found.append(_process(row, seen[pid], began, leader=pid == leader))
    return found


def _stray(row: ProcessRow, boot: str, seen: _Seen, below: dict[int, list[int]]) -> list[LiveProcess]:
    """A process that code of a run started by itself, with what is below it; none of a thread or a task."""
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
        age_s=max(0.0, time.time() - started_at),  # noqa: TID251  # as the kernel's own times are: of the machine
        cpu_s=None if cpu is None else cpu.user + cpu.system,
        rss_bytes=None if memory is None else memory.rss,
    )
