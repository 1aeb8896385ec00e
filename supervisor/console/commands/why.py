"""`why`: the history of one run: its inputs, how it ended, who ended it, and the end of each part."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from actors.events import (
    EventKind,
    ProcessEndedData,
    ProcessStartedData,
    RunChildData,
    RunChildEndedData,
    RunEndedData,
    RunStartedData,
    RunStatusData,
    SessionFencedData,
    SessionMessageReturnedData,
    SessionMessageWaitingData,
    ToolEndedData,
    ToolRequestedData,
    ToolStartedData,
    data_of,
    named_run,
)
from actors.model import Event, Message, MessageStatus, Provenance, Receipt, Role, RunInfo
from actors.run_status import RunStatus
from actors.thread import Thread
from actors.usage import Usage
from supervisor.console.client.attended import HINT, attended, status_words
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import Records, find_run
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, heading, print_json, say
from supervisor.console.render.receipts import table
from supervisor.console.render.words import (
    ERROR_CHARS,
    cause_in_full,
    child_of,
    clock_time,
    date_time,
    duration,
    head,
    plural,
    script_ended,
    usage_words,
)

MOMENTS_MAX: Final = 60
"""Moments of a run that are printed, the first and the last of them; the log has the others."""
CHATTER: Final = frozenset({EventKind.TEXT, EventKind.TOOL_OUTPUT, EventKind.MESSAGE})


class Moment(Struct, frozen=True):
    """Something that happened to a run. `at`: seconds since the epoch, UTC; `seq`: of the event, 0 for a signal."""

    at: float
    seq: int
    what: str


class StoredCounts(Struct, frozen=True):
    """What the store holds of a run: events by kind, and messages of the thread by role and status."""

    events: dict[str, int]
    first_seq: int
    last_seq: int
    thread: dict[str, int]


class RunHistory(Struct, frozen=True):
    """All records of a run.

    `texts`: the contents of the messages it names, by their ids. `taken_over_by`: the message that ended it, and the
    run that this became. `attended`: a supervisor works on the run; None if it waits or is over.
    """

    run: RunInfo
    receipt: Receipt | None
    inputs: tuple[Message, ...]
    retried_by: tuple[str, ...]
    texts: dict[str, str]
    taken_over_by: tuple[str, str] | None
    moments: tuple[Moment, ...]
    held: StoredCounts
    attended: bool | None


def read_history(records: Records, run: RunInfo) -> RunHistory:
    """Gather the records of a run."""
    receipt = records.receipt(run.session, run.run_id)
    runs = records.runs(run.session)
    events = _about(records, run)
    thread = _thread(events)
    by_id = {message.id: message for message in thread}
    texts = {message.id: message.content for message in thread if message.role == Role.USER}
    # Messages that never became an input: the log alone holds them.
    for event in events:
        match data_of(event):
            case SessionMessageWaitingData(message_id=key, content=content):
                texts.setdefault(key, content)
            case SessionMessageReturnedData(message_id=key, content=content):
                texts.setdefault(key, content)
            case _:
                continue
    named = {*run.inputs, *(() if receipt is None else (*receipt.waiting, *receipt.withdrawn))}
    after = _taken_over_by(run, runs)
    if after is not None:
        named.add(after[0])
    own = [event for event in events if _is_of(event, run)]
    return RunHistory(
        run=run,
        receipt=receipt,
        inputs=tuple(by_id[key] for key in run.inputs if key in by_id),
        retried_by=tuple(other.run_id for other in runs if other.retry_of == run.run_id),
        texts={key: texts[key] for key in named if key in texts},
        taken_over_by=after,
        moments=_moments(own, receipt),
        held=_held(own, [message for message in thread if message.run_id == run.run_id]),
        attended=attended(run, served=records.served),
    )


def show_why(endpoint: Endpoint, identity: str, *, as_json: bool) -> None:
    """Print the history of a run. Raises NotFound, Invalid; see `open_records`."""
    with open_records(endpoint) as records:
        history = read_history(records, find_run(records, identity))
    if as_json:
        print_json(history)
        return
    out = console()
    _print(out, history)
    _print_moments(out, history)
    if history.receipt is not None:
        heading(out, "What became of its parts")
        # Laid out already; printed as it is, so that nothing in it is taken for markup.
        out.file.write(table(history.receipt, out.width, colour=out.is_terminal, told=history.run.error))
    _print_fenced(out, history)
    _print_held(out, history)


# ── Gathering ─────────────────────────────────────────────────────────────────────────────────────


def _about(records: Records, run: RunInfo) -> list[Event]:
    """The events about a run, its inputs, and the messages that it left."""
    found: list[Event] = []
    after = 0
    while events := records.events(run.session, after, run.run_id):
        after = events[-1].seq
        found += events
    return found


def _thread(events: list[Event]) -> list[Message]:
    """Fold these events into messages: a run's part of the thread depends on no other part."""
    fold = Thread()
    for event in events:
        fold.apply(event)
    return fold.messages()


def _is_of(event: Event, run: RunInfo) -> bool:
    return run.run_id in (event.run_id, named_run(data_of(event)))


def _taken_over_by(run: RunInfo, runs: list[RunInfo]) -> tuple[str, str] | None:
    """The message that ended a run by taking over, and its own run."""
    cause = run.provenance
    if cause is None or cause.source != "session.new_message" or cause.requested_by is None:
        return None
    after = next((other.run_id for other in runs if cause.requested_by in other.inputs), "")
    return cause.requested_by, after


def _moments(events: list[Event], receipt: Receipt | None) -> tuple[Moment, ...]:
    """The moments in the order of the log, since the clock may have been set; signals are inserted by their time."""
    found = [Moment(event.at, event.seq, _moment(event)) for event in events if event.kind not in CHATTER]
    for signal in sorted(_signals(receipt.rows) if receipt is not None else (), key=lambda moment: moment.at):
        before = [index for index, moment in enumerate(found) if moment.at <= signal.at]
        found.insert(before[-1] + 1 if before else 0, signal)
    return tuple(found)


def _signals(rows: Any) -> list[Moment]:
    """The signals that were sent, one moment for those of one name that went out together."""
    sent: dict[tuple[str, int], list[int | None]] = {}
    at: dict[tuple[str, int], float] = {}
    todo = list(rows)
    while todo:
        row = todo.pop(0)
        todo += row.rows
        for signal in row.signals:
            key = (signal.signal, round(signal.at * 10))
            at[key] = min(at.get(key, signal.at), signal.at)
            pids = sent.setdefault(key, [])
            if row.pid not in pids:
                pids.append(row.pid)
    return [
        Moment(at[key], 0, f"{key[0]} sent to {', '.join(str(pid) for pid in pids if pid)}")
        for key, pids in sent.items()
    ]


def _moment(event: Event) -> str:
    data = data_of(event)
    match data:
        case RunStartedData():
            code = f", with the code of {date_time(data.code_changed_at)}" if data.code_changed_at is not None else ""
            return f"began, as generation {event.generation}{code}"
        case RunStatusData():
            return f"is {data.status.replace('_', ' ')}"
        case RunEndedData():
            return f"its receipt was filed: {data.receipt.receipt_id}"
        case SessionFencedData():
            return f"fenced: from here on nothing of it counts; the session went on to generation {event.generation}"
        case ToolRequestedData():
            return f"asked for {data.tool}({head(', '.join(f'{k}={v!r}' for k, v in data.arguments.items()))})"
        case ToolStartedData():
            return f"call {data.call_id} started"
        case ToolEndedData():
            return f"call {data.call_id} of {data.tool} {data.outcome.replace('_', ' ')}"
        case ProcessStartedData() | ProcessEndedData():
            return _of_tree(data)
        case RunChildData() | RunChildEndedData():
            return _of_child(data)
        case _:
            return event.kind.replace(".", ": ", 1).replace("_", " ")


def _of_tree(data: ProcessStartedData | ProcessEndedData) -> str:
    if isinstance(data, ProcessStartedData):
        return f"process {data.pid} started: {head(data.name)}"
    proof = "proven gone" if data.proven else "NOT proven gone"
    by = f", ended by {data.provenance.source}" if data.provenance else ""
    return f"its processes ended ({data.how or 'gone'}{by}), {data.reaped} reaped, {proof}"


def _of_child(data: RunChildData | RunChildEndedData) -> str:
    if isinstance(data, RunChildData):
        return f"child run {data.run_id} of {data.agent} began, in session {data.session}"
    proof = "proven to have ended" if data.proven else "NOT proven to have ended"
    return f"child run {data.run_id} {data.status or 'never began'}, {data.reaped} reaped, {proof}"


def _held(events: list[Event], thread: list[Message]) -> StoredCounts:
    kinds: dict[str, int] = {}
    for event in events:
        kinds[event.kind] = kinds.get(event.kind, 0) + 1
    roles: dict[str, int] = {}
    for message in thread:
        name = message.role if message.status == MessageStatus.COMPLETE else f"{message.role} ({message.status})"
        roles[name] = roles.get(name, 0) + 1
    seqs = [event.seq for event in events]
    return StoredCounts(kinds, min(seqs, default=0), max(seqs, default=0), roles)


# ── Printing ──────────────────────────────────────────────────────────────────────────────────────


def _print(out: Any, history: RunHistory) -> None:
    run = history.run
    heading(out, f"Run {run.run_id}")
    ended = f"{date_time(run.ended_at)}, after {duration(run.started_at, run.ended_at)}" if run.ended_at else "not yet"
    if history.attended is False:
        ended = f"{ended}: {HINT}"
    facts = [
        ("session", run.session),
        ("generation", "none yet" if run.generation is None else str(run.generation)),
        ("agent", run.agent),
        ("status", _status(run) if history.attended is not False else status_words(run.status, served=False)),
        ("accepted", date_time(run.created_at)),
        ("started", date_time(run.started_at) if run.started_at else "never"),
        ("ended", ended),
    ]
    if run.usage != Usage():
        facts.append(("used", usage_words(run.usage)))
    if run.parent is not None:
        facts.append(("child of", child_of(run.parent)))
    if run.retry_of:
        facts.append(("retry of", f"{run.retry_of} (attempt {run.attempt})"))
    facts.extend(("tried again", run_id) for run_id in history.retried_by)
    for name, value in facts:
        say(out, f"  {name:<11} {value}")
    heading(out, "What it was given")
    for key in run.inputs:
        say(out, f"  {key}  {head(history.texts.get(key, 'its text is not on record'))}")
    if not run.inputs:
        say(out, "  no message of its own" + (": it resumed the thread" if run.started_at else ""))
    heading(out, "Who ended it")
    for line in _ending(run):
        say(out, f"  {line}")
    if history.taken_over_by is not None:
        message_id, run_id = history.taken_over_by
        say(out, f"  the message {message_id}  {head(history.texts.get(message_id, ''))}")
        if run_id:
            say(out, f"  went on as {run_id}")


def _status(run: RunInfo) -> str:
    if run.status is RunStatus.COMPLETED and isinstance(run.result, dict) and run.result.get("exit_code") == 0:
        return "completed, exit code 0"
    ended = script_ended(run.result) if run.status is RunStatus.COMPLETED else ""
    return f"completed, {ended}" if ended else str(run.status)


def _ending(run: RunInfo) -> list[str]:
    lines = [f"error: {head(run.error, ERROR_CHARS)}"] if run.error else []
    if run.provenance is not None:
        lines += _chain(run.provenance)
    elif run.status is RunStatus.COMPLETED:
        lines.append("it came to its own end")
    elif run.status is RunStatus.FAILED:
        lines.append("its agent failed")
    else:
        lines.append("it has not ended yet")
    for later in run.later:
        lines += [f"later also {line}" if index == 0 else line for index, line in enumerate(_chain(later))]
    return lines


def _chain(provenance: Provenance | None) -> list[str]:
    lines: list[str] = []
    while provenance is not None:
        lines.append(("  because of " if lines else "") + cause_in_full(provenance))
        provenance = provenance.cause
    return lines


def _print_moments(out: Any, history: RunHistory) -> None:
    if not history.moments:
        return
    heading(out, "What happened, moment by moment")
    moments = history.moments
    left_out = len(moments) - MOMENTS_MAX
    if left_out > 0:
        moments = (*moments[: MOMENTS_MAX // 2], *moments[-MOMENTS_MAX // 2 :])
    for index, moment in enumerate(moments):
        if left_out > 0 and index == MOMENTS_MAX // 2:
            say(out, f"  … {plural(left_out, 'moment')} more: countermand events {history.run.session}", "dim")
        seq = f"#{moment.seq}" if moment.seq else ""
        say(out, f"  {clock_time(moment.at)}.{int(moment.at % 1 * 1000):03d}  {seq:>6}  {moment.what}")


def _print_fenced(out: Any, history: RunHistory) -> None:
    receipt = history.receipt
    if receipt is None:
        return
    if history.run.fence_seq is not None or receipt.refused:
        heading(out, "What was fenced")
        if receipt.refused:
            refused = ", ".join(f"{count} of kind {kind!r}" for kind, count in sorted(receipt.refused.items()))
            say(out, f"  refused after its end: {refused}")
        else:
            say(out, "  nothing came after the fence")
    for title, keys in (("left waiting", receipt.waiting), ("withdrawn", receipt.withdrawn)):
        for key in keys:
            say(out, f"  {title}: {key}  {head(history.texts.get(key, ''))}")


def _print_held(out: Any, history: RunHistory) -> None:
    heading(out, "What the store holds")
    held = history.held
    if held.events:
        kinds = ", ".join(f"{count} {kind}" for kind, count in held.events.items())
        say(out, f"  events {held.first_seq} to {held.last_seq} of its session, of it: {kinds}")
    if held.thread:
        parts = ", ".join(f"{count} {name}" for name, count in held.thread.items())
        say(out, f"  messages in the thread: {parts}")
    receipt = history.receipt
    say(out, f"  {'no receipt yet' if receipt is None else f'receipt {receipt.receipt_id}, {_whole(receipt)}'}")


def _whole(receipt: Receipt) -> str:
    return "complete" if receipt.complete else "NOT complete: something could not be ended"
