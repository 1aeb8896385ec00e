"""`send`: a message for a session, and what comes of it where that is waited for."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from actors.messages import Accepted, NewMessage
from actors.model import Json, Receipt, RunStatus
from supervisor.console.api import need_api
from supervisor.console.attached import AttachedSession
from supervisor.console.exits import ExitCode, of_run
from supervisor.console.output import console, print_json, say
from supervisor.console.place import Place
from supervisor.console.receipts import summary
from supervisor.console.screen import OutputClosed, Screen
from supervisor.console.words import cause, head, plural


class Sent(Struct, frozen=True):
    """A message that was accepted, and how its run ended where that was waited for."""

    accepted: Accepted
    status: RunStatus | None = None
    result: Json = None
    error: str | None = None
    receipt: Receipt | None = None


def send(place: Place, session: str, message: NewMessage, *, wait: bool, as_json: bool) -> ExitCode:
    """Send a message; with `wait`, print what its run says, until that has ended.

    Whoever leaves before the end stops nothing.

    Raises:
        NoDaemon: none answers.
        CountermandError: the message was refused.
    """
    screen = Screen()
    talk = AttachedSession(need_api(place), session, on_break=screen.remark)
    # Before the message: what comes behind this is news.
    from_seq = talk.status().last_seq if wait else 0
    accepted = talk.ask(message)
    if not wait or accepted.returned is not None or accepted.run_id is None:
        if as_json:
            print_json(Sent(accepted))
        else:
            say(console(), _sentence(accepted))
        return ExitCode.OK if accepted.returned is None else ExitCode.FAILED
    if not as_json:
        screen.remark(_sentence(accepted))
    try:
        sent = _watched(talk, accepted, accepted.run_id, from_seq, None if as_json else screen)
    except KeyboardInterrupt:
        screen.remark(f"it goes on without a watcher; to end it: countermand kill {accepted.run_id}")
        raise
    except OutputClosed:
        raise BrokenPipeError from None
    if as_json:
        print_json(sent)
    return _earned(sent, screen)


def _watched(talk: AttachedSession, accepted: Accepted, run_id: str, from_seq: int, screen: Screen | None) -> Sent:
    """Follow a run to its receipt, and show what it says."""
    status, result, error = None, None, None
    spoke = ""
    for event in talk.subscribe(from_seq):
        if event.run_id != run_id:
            continue
        match event.kind:
            case "text" | "tool.output" if screen is not None:
                screen.output(event.data["text"], fresh_line=event.kind != spoke)
                spoke = event.kind
            case "run.status":
                status = RunStatus(event.data["status"])
                result, error = event.data.get("result"), event.data.get("error")
            case "run.ended":
                receipt = msgspec.convert(event.data["receipt"], Receipt)
                return Sent(accepted, status or RunStatus(event.data["status"]), result, error, receipt)
            case _:
                continue
    raise AssertionError("a follower ends with an error, or not at all")


def _sentence(accepted: Accepted) -> str:
    if accepted.returned is not None:
        return f"message {accepted.message_id} came back: {accepted.returned.replace('_', ' ')}"
    what = "waits as" if accepted.queued else "runs as"
    parts = [f"message {accepted.message_id} {what} {accepted.run_id}"]
    if accepted.superseded_run_id is not None:
        parts.append(f"it took over from {accepted.superseded_run_id}")
    if accepted.with_messages:
        parts.append(f"with {plural(len(accepted.with_messages), 'message')} that waited")
    return "; ".join(parts)


def _earned(sent: Sent, screen: Screen) -> ExitCode:
    """Say how it ended, where that is not just well, and return the exit code for it."""
    assert sent.status is not None
    assert sent.receipt is not None
    if sent.status is not RunStatus.COMPLETED:
        by = f" by {cause(sent.receipt.provenance)}" if sent.receipt.provenance is not None else ""
        why = f": {head(sent.error, 300)}" if sent.error else ""
        screen.remark(f"run {sent.receipt.run_id} {sent.status}{by}{why}")
    if sent.status is RunStatus.CANCELLED or not sent.receipt.complete:
        screen.remark(summary(sent.receipt))
    return of_run(sent.status, sent.result)
