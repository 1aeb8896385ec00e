"""`send`: a message for a session, and what comes of it where that is waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from actors.errors import CountermandError
from actors.events import (
    MessageData,
    RunEndedData,
    RunStartedData,
    RunStatusData,
    SessionMessageReturnedData,
    TextData,
    ToolOutputData,
    data_of,
)
from actors.model import Fate, Json, Receipt, RunStatus
from actors.requests import Accepted, NewMessage
from supervisor.console.chat.attached import AttachedSession
from supervisor.console.client.api import need_api
from supervisor.console.client.endpoint import Place
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.exits import ExitCode, of_run
from supervisor.console.render.output import console, print_json, say
from supervisor.console.render.receipts import summary
from supervisor.console.render.words import cause, head, plural, script_ended, script_problem
from supervisor.console.tty.screen import OutputClosed, Screen
from supervisor.console.tty.streams import when_unread

TRIED_AGAIN: Final = frozenset({"actor.failure", "store.failure", "supervisor.recovery"})
"""By what a run ends that may be tried again."""


class Delivery(Struct, frozen=True):
    """A message that was accepted, and what became of it where that was waited for.

    `run_id` is the run that took it, which need not be the one that it was accepted for; `returned` says why none did.
    """

    accepted: Accepted
    status: RunStatus | None = None
    result: Json = None
    error: str | None = None
    receipt: Receipt | None = None
    run_id: str | None = None
    returned: str | None = None


def send(
    place: Place,
    session: str,
    message: NewMessage,
    *,
    agent: str | None = None,
    again: bool = False,
    wait: bool = False,
    as_json: bool = False,
) -> ExitCode:
    """Send a message; with `wait`, print what its run says, until that has ended.

    Whoever leaves before the end stops nothing.

    Args:
        place: where the daemon is.
        session: whose message it is; the session comes into being with its first one.
        message: what is sent.
        agent: the name of the daemon's agent, where one is expected.
        again: it may have been sent before, under its id.
        wait: until the run that takes it has ended.
        as_json: print a `Delivery`.

    Raises:
        NoDaemon: none answers.
        Invalid: its agent is another.
        CountermandError: the message was refused.
    """
    screen = Screen()
    api = need_api(place, agent)
    api.on_wait = screen.remark
    talk = AttachedSession(api, session, on_break=screen.remark)
    # Before the message: what comes behind this is news. Of one that was sent before, all may be past.
    from_seq = talk.status().last_seq if wait and not again else 0
    accepted = talk.ask(message)
    came_back = accepted.returned is not None or accepted.fate is Fate.RETURNED
    if not wait or came_back:
        if as_json:
            print_json(Delivery(accepted))
        else:
            say(console(), _sentence(accepted))
        return ExitCode.FAILED if came_back else ExitCode.OK
    # Also beside JSON: whoever loses the daemon from here on has its id.
    screen.remark(_sentence(accepted))
    left = f"it goes on without a watcher; to end it: countermand kill {accepted.run_id}"
    told = _Told(screen, silent=as_json)
    try:
        sent = _watched(talk, RemoteRecords(api), accepted, from_seq, told)
    except OutputClosed:
        sent = None
    except KeyboardInterrupt:
        screen.remark(left)
        raise
    if sent is None:
        screen.remark(f"nobody reads the output any more; {left}")
        return ExitCode.STOPPED
    if as_json:
        print_json(sent)
    return max(_earned(sent, screen), ExitCode.FAILED if told.failed else ExitCode.OK)


class _Told:
    """What a run says, on its way to the screen. Output that cannot be written does not end the watch: that is said."""

    def __init__(self, screen: Screen, *, silent: bool) -> None:
        self._screen = screen
        self._silent = silent
        self._kind = ""
        self.failed = False

    def tell(self, kind: str, text: str) -> None:
        """Show a text of the agent, or what a tool printed. Raises OutputClosed where nobody reads any more."""
        fresh = kind != self._kind
        self._kind = kind
        self._try(lambda: self._screen.output(text, fresh_line=fresh))

    def end(self) -> None:
        """It says no more. Raises OutputClosed where nobody reads any more."""
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


def _watched(
    talk: AttachedSession, records: RemoteRecords, accepted: Accepted, from_seq: int, told: _Told
) -> Delivery | None:
    """Follow a message to the run that takes it, and that to its receipt; show what the run says.

    Returns None where nobody reads any more, also while the run says nothing.

    A message that waits may be taken by another run than the one it was accepted for; a run that had not begun when the
    daemon was killed is tried again as another one.
    """
    run_id, status, result, error = None, None, None, None
    events = talk.subscribe(from_seq)
    when_unread(events.close)
    for event in events:
        data = data_of(event)
        match data:
            case MessageData() if data.id == accepted.message_id:
                run_id = event.run_id
            case SessionMessageReturnedData() if data.message_id == accepted.message_id:
                return Delivery(accepted, returned=data.reason)
            case RunStartedData() if run_id is not None and data.retry_of == run_id:
                run_id = event.run_id
            case _:
                pass
        if run_id is None or event.run_id != run_id:
            continue
        match data:
            case TextData() | ToolOutputData():
                told.tell(event.kind, data.text)
            case RunStatusData():
                told.end()
                status, result, error = data.status, data.result, data.error
            case RunEndedData(receipt=receipt):
                if _is_tried_again(records, talk.session, receipt):
                    continue
                return Delivery(accepted, status or data.status, result, error, receipt, run_id)
            case _:
                continue
    # Its follower was closed. Else it ends with an error, or not at all.
    return None


def _is_tried_again(records: RemoteRecords, session: str, receipt: Receipt) -> bool:
    """True if a run that had not begun when something failed goes on as another one, which is on record by then."""
    if receipt.provenance is None or receipt.provenance.source not in TRIED_AGAIN:
        return False
    # The receipt is all that there is to be had where the session has gone meanwhile.
    with contextlib.suppress(CountermandError):
        return any(run.retry_of == receipt.run_id for run in records.runs(session))
    return False


def _sentence(accepted: Accepted) -> str:
    if accepted.returned is not None:
        return _came_back(accepted.message_id, accepted.returned)
    if accepted.fate is Fate.RETURNED:
        return _came_back(accepted.message_id, "it was withdrawn")
    what = ("waits as" if accepted.fate is None else "waited as") if accepted.queued else "runs as"
    parts = [f"message {accepted.message_id} {what} {accepted.run_id}"]
    if accepted.fate is Fate.INPUT:
        parts.append("a run has taken it since")
    if accepted.superseded_run_id is not None:
        parts.append(f"it took over from {accepted.superseded_run_id}")
    if accepted.with_messages:
        parts.append(f"with {plural(len(accepted.with_messages), 'message')} that waited")
    return "; ".join(parts)


def _came_back(message_id: str, why: str) -> str:
    return f"message {message_id} came back: {why.replace('_', ' ')}"


def _earned(sent: Delivery, screen: Screen) -> ExitCode:
    """Say how it ended, where that is not just well, and return the exit code for it."""
    if sent.returned is not None:
        screen.remark(_came_back(sent.accepted.message_id, sent.returned))
        return ExitCode.STOPPED
    assert sent.status is not None
    assert sent.receipt is not None
    if sent.status is not RunStatus.COMPLETED:
        by = f" by {cause(sent.receipt.provenance)}" if sent.receipt.provenance is not None else ""
        why = f": {head(sent.error, 300)}" if sent.error else ""
        screen.remark(f"run {sent.receipt.run_id} {sent.status}{by}{why}")
    elif script_problem(sent.result):
        why = head(script_problem(sent.result), 300)
        screen.remark(f"run {sent.receipt.run_id} {sent.status} ({script_ended(sent.result)}): {why}")
    if sent.status is RunStatus.CANCELLED or not sent.receipt.complete:
        screen.remark(summary(sent.receipt))
    return of_run(sent.status, sent.result)
