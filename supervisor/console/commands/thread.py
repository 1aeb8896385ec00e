"""`thread`: the messages of a session, as the next model call would see them, and those that wait."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from actors.errors import Invalid
from actors.model import Message, MessageStatus, Role
from actors.parts import MediaPart
from actors.text import one_line, visible
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, how_many, print_json, say_left_out
from supervisor.console.render.words import clock_time, file_words, head, with_files


def write_attachment(endpoint: Endpoint, session: str, name: str) -> None:
    """Write the bytes of an attachment to standard output, and nothing else.

    Raises:
        NotFound: see `open_records`.
        Invalid: standard output is a terminal, which the bytes could steer.
    """
    if sys.stdout.isatty():
        raise Invalid(
            "the bytes of an attachment are nothing for a terminal",
            expected="a file or a pipe as standard output",
            got="a terminal",
            remedy="write them to a file (> FILE), or look at them with: | od -c",
        )
    with open_records(endpoint) as records:
        records.session(session)
        data = records.attachment(session, name)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def show_thread(endpoint: Endpoint, session: str, last: int | None, *, as_json: bool) -> None:
    """Print the messages of a session, or the newest `last`; see `newest`. Raises NotFound; see `open_records`."""
    with open_records(endpoint) as records:
        facts = records.session(session)
        shown, more = (
            records.thread_end(session, count)
            if (count := how_many(last, as_json=as_json))
            else (records.thread(session), False)
        )
        waiting = records.waiting(session)
    if as_json:
        print_json(shown)
        return
    from rich.text import Text

    out = console()
    print_messages(out, shown)
    if more:
        say_left_out(out, len(shown), "messages")
    state = "parked" if facts.parked else "waiting"
    for waits in waiting:
        out.print(Text(f"{state} · {clock_time(waits.accepted_at)} · {one_line(waits.run_id)}", style="yellow"))
        out.print(Text("  " + head(with_files(waits.content, waits.parts), 120)))
    if not shown and not waiting:
        out.print(Text("the thread is empty", style="dim"))


def print_messages(out: Any, messages: Sequence[Message]) -> None:
    """Print messages on a rich console."""
    from rich.text import Text

    for message in messages:
        out.print(Text(_heading(message), style="bold" if message.role == Role.USER else "dim"))
        calls = [
            f"calls {head(call.name)}({head(', '.join(f'{key}={value!r}' for key, value in call.arguments.items()))})"
            for call in message.tool_calls
        ]
        body = "\n".join([message.content.rstrip("\n"), *calls] if message.content.strip() else calls)
        files = {part.attachment: part for part in message.parts if isinstance(part, MediaPart)}
        for line in visible(body).split("\n") if body or not files else ():
            out.print(Text("  " + line), soft_wrap=True)
        for part in files.values():
            out.print(Text(f"  {file_words(part)}: --attachment {part.attachment}", style="dim"), soft_wrap=True)
        for name in message.attachments:
            if name not in files:
                out.print(Text(f"  its bytes: --attachment {one_line(name)}", style="dim"), soft_wrap=True)


def _heading(message: Message) -> str:
    marks = [message.role, clock_time(message.at), message.run_id or ""]
    if message.status != MessageStatus.COMPLETE:
        marks.append(message.status)
    if message.outcome is not None:
        marks.append(message.outcome.replace("_", " "))
    return one_line(" · ".join(mark for mark in marks if mark))
