"""A receipt held against what was seen without its help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from actors import Receipt, Row
from actors.model import Event, How
from supervisor.containment.guard.tree_record import MAYBE
from tests.gauntlet.census import Life, Seen, far_side

# A start time in a receipt and one from /proc are the same to a tick; the wall clock may be set between two looks.
SAME_START_S = 0.06
SLACK_S = 0.5
OPEN = frozenset({How.ABANDONED, How.OUT_OF_REACH})
FAR_CLIENTS = ("docker", "ssh")
"""Whom the case with a far side asks; see `roles.far_sides`."""
STATUS_OF = {How.SIGKILL: -9, How.SIGTERM: -15}
SAID = frozenset({"text", "tool.requested", "tool.started", "tool.output", "process.started"})
UNCOUNTED = frozenset({"warden", "daemon"})
"""Who dies after the warden may be collected together with the processes of other trees, and be put down to none."""
SOURCES = {
    "stop": "user.gauntlet",
    "immediate": "user.gauntlet",
    "supersede": "session.new_message",
    "daemon": "supervisor.recovery",
}
SOURCES_BY_HOST = {**SOURCES, "deadline": "run.deadline", "idle": "user.gauntlet", "kept": "user.gauntlet"}


class Verdict(Struct):
    """What was found out about one run.

    Args:
        survivors: who lives that the receipt does not name as out of reach.
        wrong: what the receipt says and should not, or the other way round.
        unproven: the receipt says itself that something was not proven gone.
    """

    survivors: list[str]
    wrong: list[str]
    unproven: bool


def judge(
    receipt: Receipt | None,
    living: Mapping[int, Life],
    seen: Seen,
    trigger: str,
    *,
    uid: int,
    now: float,
    by_host: bool = False,
) -> Verdict:
    """Hold a receipt against who lives, and against what the processes wrote; see `Verdict`.

    `by_host`: the agent ran in a host, and has started the case itself.
    """
    if receipt is None:
        return Verdict([_shown(life) for life in living.values()], ["no receipt came"], unproven=False)
    rows = list(rows_of(receipt.rows))
    named = {pid for pid, life in living.items() if _may_be_named(life, uid) and _is_named(pid, rows)}
    survivors = [_shown(life) for pid, life in living.items() if pid not in named]
    wrong = list(always_wrong(receipt, living, now))
    wrong += _of_the_cause(receipt, (SOURCES_BY_HOST if by_host else SOURCES).get(trigger))
    wrong += _of_the_far_side(rows, seen)
    wrong += _of_signals(rows, seen, trigger)
    if by_host:
        wrong += _of_the_host(rows, seen)
    if seen.everybody and receipt.reaped < 1 and receipt.complete and trigger not in UNCOUNTED:
        wrong.append("processes were started, and none was reaped")
    return Verdict(survivors, wrong, unproven=not receipt.complete)


def always_wrong(receipt: Receipt, living: Mapping[int, Life], now: float) -> Iterator[str]:
    """What no receipt may say, of whatever run."""
    rows = list(rows_of(receipt.rows))
    yield from _of_the_living(receipt, rows, living)
    open_rows = [row for row in rows if row.kind not in ("process", "remote") and row.ended_at is None]
    if receipt.complete and open_rows:
        yield f"it says complete, and {open_rows[0]} has not ended"
    yield from (f"{fault}: {row}"[:600] for row in rows for fault in _of_a_row(row, receipt, now))
    yield from _of_beginnings(rows)


def rows_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Every row of a receipt, those below others too."""
    for row in rows:
        yield row
        yield from rows_of(row.rows)


def _may_be_named(life: Life, uid: int) -> bool:
    """Only what another user runs may be out of reach, and of root nothing is."""
    return uid not in (0, life.uid)


def _is_named(pid: int, rows: list[Row]) -> bool:
    words = re.compile(rf"\bpid {pid}\b")
    return any((row.pid == pid and _is_open(row)) or words.search(row.note) for row in rows)


def _is_open(row: Row) -> bool:
    return row.ended_at is None or row.how in OPEN


def _of_the_living(receipt: Receipt, rows: list[Row], living: Mapping[int, Life]) -> Iterator[str]:
    if receipt.complete and living:
        yield f"it says complete, and {', '.join(map(_shown, living.values()))} lives"
    for row in rows:
        life = living.get(row.pid or 0)
        if life is None or _is_open(row) or row.started_at is None:
            continue
        if abs(life.started_at - row.started_at) <= SAME_START_S:
            yield f"it says that pid {row.pid} has ended, and {_shown(life)} lives"


def _of_the_cause(receipt: Receipt, expected: str | None) -> Iterator[str]:
    source = receipt.provenance.source if receipt.provenance is not None else None
    if source != expected:
        yield f"its provenance is {source}, and not {expected}"


def _of_a_row(row: Row, receipt: Receipt, now: float) -> Iterator[str]:
    """What one row cannot say, whatever happened."""
    if row.how in STATUS_OF and row.status is not None and row.status != STATUS_OF[row.how]:
        yield f"how and status contradict each other ({row.how}, {row.status})"
    if row.how is How.EXIT and row.status in STATUS_OF.values():
        yield f"it exited, and its status is a signal ({row.status})"
    times = [at for at in (row.started_at, row.ended_at, *(signal.at for signal in row.signals)) if at is not None]
    if any(at > now + SLACK_S for at in times):
        yield "it tells of the future"
    if row.started_at is not None and row.ended_at is not None and row.ended_at < row.started_at - SLACK_S:
        yield "it ended before it began"
    if receipt.complete and row.kind == "process" and row.ended_at is None and row.how is not How.NOT_STARTED:
        yield "the receipt is complete, and this process has not ended"
    if row.kind == "process" and row.how in OPEN and receipt.complete and not row.note:
        yield "it is said to be lost, without a word on why"


def _of_the_far_side(rows: list[Row], seen: Seen) -> Iterator[str]:
    """Where a case had a far side, it is named, one row for each client, and it lives; nobody else's is named.

    A client that was ended before it was executed under its name is no client yet, though the far side was asked.
    """
    named = sorted(row.name.split()[0] for row in rows if row.kind == "remote" and row.how is How.OUT_OF_REACH)
    expected = sorted(FAR_CLIENTS) if seen.far else []
    all_executed = not seen.far or seen.lines > len(FAR_CLIENTS)
    if named != expected and (all_executed or len(set(named)) != len(named) or not set(named) < set(expected)):
        yield f"it names {named} as out of reach, and not {expected}"
    if len(far_side(seen)) != len(seen.far):
        yield "what was out of reach is gone, so it was not"


def _of_beginnings(rows: list[Row]) -> Iterator[str]:
    for above in rows:
        for row in above.rows:
            # A host may have been there before its run.
            if row.started_at is None or above.started_at is None or is_host(row):
                continue
            if row.started_at < above.started_at - SAME_START_S:
                yield f"it began before what it is a part of: {row}"[:600]
    known = Counter((row.pid, row.started_at) for row in rows if row.pid is not None and row.started_at is not None)
    for (pid, started_at), times in known.items():
        if times > 1:
            yield f"pid {pid}, which began at {started_at}, has {times} rows"


def _of_signals(rows: list[Row], seen: Seen, trigger: str) -> Iterator[str]:
    for row in rows:
        asked = any(signal.signal == "SIGTERM" and signal.error is None for signal in row.signals)
        if asked and trigger == "immediate":
            yield f"it says that pid {row.pid} was asked to end, by an immediate stop"
        unsure = f"{MAYBE} SIGTERM" in row.note
        exempt = asked or unsure or trigger == "daemon" or row.rows
        if row.pid in seen.heard and row.kind == "process" and not exempt:
            yield f"pid {row.pid} got a SIGTERM that is not in the receipt: {row}"[:600]
        if row.pid in seen.hear and row.pid not in seen.heard and row.how is How.EXIT:
            yield f"pid {row.pid} ends at a SIGTERM only, got none, and is said to have exited"


def is_host(row: Row) -> bool:
    """True of the row of a process that an agent ran in."""
    return row.kind == "process" and row.name.startswith("host ")


def _of_the_host(rows: list[Row], seen: Seen) -> Iterator[str]:
    """Of a run whose agent has started the case: its host has a row, and whoever of the case has one is below that."""
    hosts = [row for row in rows if is_host(row)]
    if len(hosts) != 1:
        yield f"it names {len(hosts)} hosts, and there was one"
        return
    pids = {pid for pid, _ in seen.hosts}
    # Of one that is still being ended after a crash it is not known yet.
    unknown = hosts[0].pid is None and hosts[0].how is How.ABANDONED
    if seen.hosts and hosts[0].pid not in pids and not unknown:
        yield f"the pid of its host was {pids}, and it says {hosts[0].pid}"
    below = list(rows_of(hosts[0].rows))
    for row in rows:
        if row.pid is not None and row.pid in {pid for pid, _ in seen.everybody} - pids and row not in below:
            yield f"the agent has started pid {row.pid}, and its row is not below that of the host"


def stale_events(events: Iterable[Event], fence_seq: int | None, run_id: str) -> list[str]:
    """What a run said after its fence, by the log."""
    if fence_seq is None:
        return []
    return [
        f"{event.kind} #{event.seq} after the fence #{fence_seq}"
        for event in events
        if event.run_id == run_id and event.seq > fence_seq and event.kind in SAID
    ]


def stale_output(events: Iterable[Event], call_id: str) -> list[str]:
    """What a call printed after its end, by the log."""
    ended = False
    stale = []
    for event in events:
        if event.data.get("call_id") != call_id:
            continue
        if ended and event.kind == "tool.output":
            stale.append(f"{event.kind} #{event.seq} after the end of its call")
        ended = ended or event.kind == "tool.ended"
    return stale


def _shown(life: Life) -> str:
    return f"{life.name} (pid {life.pid}, uid {life.uid}, state {life.state}): {life.command or 'no command line'}"
