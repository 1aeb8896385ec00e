"""`events`: the log of a session, one event a line; with `--follow` also new events as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Final

from actors.events import EventKind
from actors.model import Event
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, note, print_json_line, say
from supervisor.console.render.words import clock_time, head
from supervisor.console.tty.streams import is_unread, when_unread

TEXT_MAX: Final = 120
_STYLES: Final[dict[str, str]] = {
    EventKind.SESSION_FENCED: "yellow",
    EventKind.RUN_ENDED: "bold",
    EventKind.RUN_STARTED: "bold",
    EventKind.SESSION_QUARANTINED: "red",
}
_NAMED: Final = ("content", "text", "status", "tool", "outcome", "how", "pid", "name", "reason", "error", "agent")
"""The fields of an event's data that its line shows."""


def show_events(endpoint: Endpoint, session: str, from_seq: int, *, follow: bool, as_json: bool) -> None:
    """Print the events of a session after `from_seq`; with `follow` also new ones, until the command is ended.

    As JSON each event is a document on a line of its own.

    Raises:
        NotFound: there is no such session.
        NoDaemon: `follow` needs a daemon, and none answers, or it went away for too long.
    """
    out = console()
    events = _follow(endpoint, session, from_seq) if follow else _stored(endpoint, session, from_seq)
    with contextlib.closing(events):
        for event in events:
            if as_json:
                print_json_line(event)
            else:
                say(out, line(event), _STYLES.get(event.kind, ""))
            if is_unread():
                return


def line(event: Event) -> str:
    """Return an event as one line for people."""
    about = [event.run_id or "", *_facts(event.data)]
    return f"{event.seq:>6}  {clock_time(event.at)}  {event.generation:>4}  {event.kind:<24}  " + " · ".join(
        part for part in about if part
    )


def _facts(data: dict[str, Any]) -> Iterator[str]:
    for name in _NAMED:
        value = data.get(name)
        if value not in (None, ""):
            yield head(str(value), TEXT_MAX)
    provenance = data.get("provenance")
    if provenance is not None:
        yield head(f"by {provenance['source']}: {provenance['reason']}", TEXT_MAX)


def _stored(endpoint: Endpoint, session: str, from_seq: int) -> Generator[Event, None, None]:
    with open_records(endpoint) as records:
        records.session(session)
        while events := records.events(session, from_seq):
            yield from events
            from_seq = events[-1].seq


def _follow(endpoint: Endpoint, session: str, from_seq: int) -> Generator[Event, None, None]:
    from supervisor.console.client.api import need_api
    from supervisor.console.client.follower import Follower

    api = need_api(endpoint)
    follower = Follower(api, session, from_seq, on_break=note)
    when_unread(follower.close)
    try:
        yield from follower
    finally:
        follower.close()
        api.close()
