"""`send`: sends a message to a session, and with `--wait` prints the output of its run."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from actors.attachments import File
from actors.errors import Invalid
from actors.model import Fate
from actors.requests import Accepted, NewMessage
from supervisor.console.chat.attached import AttachedSession
from supervisor.console.client.api import need_api
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.commands.watch import Delivery, RunPrinter, came_back, earned, watched
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, print_json, say
from supervisor.console.render.words import plural
from supervisor.console.tty.screen import OutputClosed, Screen


def send(
    endpoint: Endpoint,
    session: str,
    message: NewMessage,
    *,
    again: bool = False,
    wait: bool = False,
    as_json: bool = False,
) -> ExitCode:
    """Send a message; with `wait`, print what its run says, and on standard error what it asks, until that has ended.

    Ending the command before that stops nothing.

    Args:
        endpoint: where the daemon is.
        session: whose message it is; the session comes into being with its first one.
        message: what is sent.
        again: it may have been sent before, under its id.
        wait: until the run that takes it has ended.
        as_json: print a `Delivery`.

    Raises:
        NoDaemon: none answers.
        CountermandError: the message was refused.
    """
    screen = Screen()
    api = need_api(endpoint)
    api.on_wait = screen.remark
    talk = AttachedSession(api, session, on_break=screen.remark)
    # Read before the message is sent, so that no later event is missed. If the message is a repeat, all its events may
    # be in the past.
    from_seq = talk.status().last_seq if wait and not again else 0
    accepted = talk.ask(message)
    came_back = accepted.returned is not None or accepted.fate is Fate.RETURNED
    if not wait or came_back:
        if as_json:
            print_json(Delivery(accepted))
        else:
            say(console(), _sentence(accepted))
        return ExitCode.FAILED if came_back else ExitCode.OK
    # Printed with --json too: if the connection to the daemon is lost later, the user has the id.
    screen.remark(_sentence(accepted))
    left = f"it goes on without a watcher; to end it: countermand kill {accepted.run_id}"
    printer = RunPrinter(screen, silent=as_json, session=session)
    try:
        records = RemoteRecords(api)
        events = talk.subscribe(from_seq)
        sent = watched(events, accepted, printer, lambda: records.runs(session), lambda: talk.status().asking)
    except OutputClosed:
        sent = None
    except KeyboardInterrupt:
        screen.remark(left)
        raise
    if sent is None:
        screen.remark(f"the output is not read any more; {left}")
        return ExitCode.STOPPED
    if as_json:
        print_json(sent)
    return max(earned(sent, screen), ExitCode.FAILED if printer.failed else ExitCode.OK)


def file_to_send(path: str) -> File:
    """Read a file to be sent. Its type is guessed by its name. Raises Invalid if it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise Invalid(
            f"the file {path} cannot be read",
            expected="a file to attach",
            got=error.strerror or str(error),
            remedy="check its name and its permissions",
        ) from error
    name = Path(path).name
    media_type, encoding = mimetypes.guess_type(name)
    return File(data, media_type if media_type and not encoding else "application/octet-stream", name)


def _sentence(accepted: Accepted) -> str:
    if accepted.returned is not None:
        return came_back(accepted.message_id, accepted.returned)
    if accepted.fate is Fate.RETURNED:
        return came_back(accepted.message_id, "it was withdrawn")
    what = ("waits as" if accepted.fate is None else "waited as") if accepted.queued else "runs as"
    parts = [f"message {accepted.message_id} {what} {accepted.run_id}"]
    if accepted.fate is Fate.INPUT:
        parts.append("a run has taken it since")
    if accepted.superseded_run_id is not None:
        parts.append(f"it took over from {accepted.superseded_run_id}")
    if accepted.with_messages:
        parts.append(f"with {plural(len(accepted.with_messages), 'message')} that waited")
    return "; ".join(parts)
