"""Watching a message: the output of the run that takes it, until its receipt, and the exit code for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from msgspec import Struct
from pykka import ActorDeadError, Timeout

from actors.errors import CountermandError
from actors.events import (
    CallWaitingData,
    MessageData,
    RunEndedData,
    RunOutputData,
    RunStartedData,
    RunStatusData,
    SessionMessageReturnedData,
    TextData,
    ToolOutputData,
    data_of,
)
from actors.model import Event, Json, Receipt, RunInfo
from actors.questions import Asking
from actors.requests import Accepted
from actors.run_status import RunStatus
from supervisor.console.exits import ExitCode, of_run
from supervisor.console.render.question import asked
from supervisor.console.render.receipts import summary
from supervisor.console.render.words import ERROR_CHARS, cause, head, script_ended, script_problem
from supervisor.console.tty.screen import OutputClosed, Screen
from supervisor.console.tty.streams import when_unread

TRIED_AGAIN: Final = frozenset({"actor.failure", "store.failure", "supervisor.recovery"})
"""Sources of the end of a run that may be tried again."""


class Watched(Protocol):
    """Events as they come, of one session; see `Subscription` and `Follower`."""

    def __iter__(self) -> Iterator[Event]:
        """Themselves."""

    def close(self) -> None:
        """End the iteration, from any thread."""


class Delivery(Struct, frozen=True):
    """An accepted message, and the end of its run if that was waited for.

    `run_id` is the run that took it, which may be another than the one it was accepted for; `returned`: why none did.
    """

    accepted: Accepted
    status: RunStatus | None = None
    result: Json = None
    error: str | None = None
    receipt: Receipt | None = None
    run_id: str | None = None
    returned: str | None = None


class RunPrinter:
    """Prints the output of a run on the screen. An error in writing is remarked, and does not end the watch.

    `prints`: the output of the agent's own process is shown too, as remarks. `session`: the one whose questions the
    command `answer` answers; None: it reaches none.
    """

    def __init__(self, screen: Screen, *, silent: bool, prints: bool = False, session: str | None = None) -> None:
        self._screen = screen
        self._session = session
        self._asked: set[str] = set()
        self._silent = silent
        self._prints = prints
        self._printed = self.heard = ""
        self._kind = ""
        self.failed = False

    def output(self, kind: str, text: str) -> None:
        """Show a text of the agent, or of a tool. Raises OutputClosed if the output is not read any more."""
        fresh = kind != self._kind
        self._kind = kind
        self._try(lambda: self._screen.output(text, fresh_line=fresh))

    def printed(self, text: str) -> None:
        """Show the output of the agent's process, line by line."""
        self.heard += text
        *lines, self._printed = (self._printed + text).split("\n")
        self._remark(lines)

    def printed_all(self) -> None:
        """The process has ended its output: show a last line that has no newline."""
        line, self._printed = self._printed, ""
        self._remark([line] if line else [])

    def question(self, asking: Asking) -> None:
        """Show a question that waits for a person, once, also if all else is silent: the run goes no further."""
        if asking.call_id not in self._asked:
            self._asked.add(asking.call_id)
            self._screen.remark(*asked(asking, self._session))

    def _remark(self, lines: list[str]) -> None:
        if self._prints and not self._silent and lines:
            self._screen.remark(*lines)

    def end(self) -> None:
        """End the output. Raises OutputClosed if it is not read any more."""
        self.printed_all()
        self._try(self._screen.end_message)

    def _try(self, show: Callable[[], None]) -> None:
        if self._silent or self.failed:
            return
        try:
            show()
        except OutputClosed as closed:
            if closed.unread:
                raise
            self.failed = True
            self._screen.remark(f"the output could not be written: {closed}; its run is waited for all the same")


def watched(
    events: Watched,
    accepted: Accepted,
    printer: RunPrinter,
    runs: Callable[[], list[RunInfo]],
    asking: Callable[[], tuple[Asking, ...]],
) -> Delivery | None:
    """Follow a message to the run that takes it, and the run to its receipt; show its output and its questions.

    `events` begin before the message. `runs`: returns the recorded runs of the session; `asking`: its calls that wait
    for a person now. Those of a run that the message waits for are shown too.

    Returns None if the output is not read any more, also while the run is silent.

    A message that waits may be taken by another run than the one it was accepted for; a run that had not begun when the
    daemon was killed is tried again as another one.
    """
    run_id, status, result, error = None, None, None, None
    when_unread(events.close)
    if accepted.queued:
        for one in _asking(asking) or ():
            printer.question(one)
    for event in events:
        data = data_of(event)
        match data:
            case MessageData() if data.id == accepted.message_id:
                run_id = event.run_id
            case SessionMessageReturnedData() if data.message_id == accepted.message_id:
                return Delivery(accepted, returned=data.reason)
            case RunStartedData() if run_id is not None and data.retry_of == run_id:
                run_id = event.run_id
            case CallWaitingData() if run_id is None or event.run_id == run_id:
                # The event may be read late, or for a second time: then it may be answered.
                waiting = _asking(asking)
                if waiting is None or any(one.call_id == data.call_id for one in waiting):
                    printer.question(Asking(data.call_id, "", data.question, data.options, data.approval))
            case _:
                pass
        if run_id is None or event.run_id != run_id:
            continue
        match data:
            case TextData() | ToolOutputData():
                printer.output(event.kind, data.text)
            case RunOutputData():
                printer.printed(data.text)
            case RunStatusData():
                printer.end()
                status, result, error = data.status, data.result, data.error
            case RunEndedData(receipt=receipt):
                if _is_tried_again(runs, receipt):
                    continue
                return Delivery(accepted, status or data.status, result, error, receipt, run_id)
            case _:
                continue
    # The follower was closed. Otherwise it ends with an error, or not at all.
    return None


def _asking(asking: Callable[[], tuple[Asking, ...]]) -> tuple[Asking, ...] | None:
    """Return the calls that wait for a person; None: that cannot be known now."""
    with contextlib.suppress(CountermandError, ActorDeadError, Timeout):
        return asking()
    return None


def _is_tried_again(runs: Callable[[], list[RunInfo]], receipt: Receipt) -> bool:
    """True if a failure ended a run before it began, and another run tries again, which is recorded by now."""
    if receipt.provenance is None or receipt.provenance.source not in TRIED_AGAIN:
        return False
    # If the session is gone by now, there is only the receipt.
    with contextlib.suppress(CountermandError):
        return any(run.retry_of == receipt.run_id for run in runs())
    return False


def came_back(message_id: str, why: str) -> str:
    """Say that a message was returned to its sender."""
    return f"message {message_id} came back: {why.replace('_', ' ')}"


def earned(sent: Delivery, screen: Screen, *, receipt_follows: bool = False) -> ExitCode:
    """Say how it ended, where that is not just well, and return the exit code for it.

    `receipt_follows`: the receipt is shown after this, so nothing is said of it here.
    """
    if sent.returned is not None:
        screen.remark(came_back(sent.accepted.message_id, sent.returned))
        return ExitCode.STOPPED
    assert sent.status is not None
    assert sent.receipt is not None
    if sent.status is not RunStatus.COMPLETED:
        by = f" by {cause(sent.receipt.provenance)}" if sent.receipt.provenance is not None else ""
        why = f": {head(sent.error, ERROR_CHARS)}" if sent.error else ""
        screen.remark(f"run {sent.receipt.run_id} {sent.status}{by}{why}")
    elif script_problem(sent.result):
        why = head(script_problem(sent.result), 300)
        screen.remark(f"run {sent.receipt.run_id} {sent.status} ({script_ended(sent.result)}): {why}")
    if not receipt_follows and (sent.status is RunStatus.CANCELLED or not sent.receipt.complete):
        screen.remark(summary(sent.receipt))
    return of_run(sent.status, sent.result)
