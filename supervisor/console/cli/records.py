"""The commands that only read: they ask the daemon, or read the store on disk if no daemon runs."""

from __future__ import annotations

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common
from supervisor.console.cli.options import (
    DEFAULT_SESSION,
    common,
    count,
    either_session,
    follow,
    newest,
    run_argument,
    session_needed,
    session_of,
    session_option,
)


@click.command()
@either_session
@click.option("--attachment", metavar="NAME", help="Write the bytes of this attachment, and nothing else.")
@newest
@common()
def thread(options: Common, session: str | None, named: str | None, attachment: str | None, last: int | None) -> None:
    """Show a session's messages, as the next model call gets them."""
    from supervisor.console.commands.thread import show_thread, write_attachment

    if attachment is not None:
        write_attachment(options.endpoint(), session_of(session, named), attachment)
    else:
        show_thread(options.endpoint(), session_of(session, named), last, as_json=options.as_json)


@click.command()
@either_session
@newest
@common()
def runs(options: Common, session: str | None, named: str | None, last: int | None) -> None:
    """List the runs of a session, and how each ended."""
    from supervisor.console.commands.runs import show_runs

    show_runs(options.endpoint(), session_of(session, named), last, as_json=options.as_json)


@click.command()
@either_session
@click.option(
    "--run",
    metavar="RUN",
    help="Show only this run's receipt, with each part. Takes the id of the run or of its receipt, or a prefix of one.",
    shell_complete=completions.runs,
)
@common()
def receipts(options: Common, session: str | None, named: str | None, run: str | None) -> None:
    """Show what was running when runs ended, and how each part ended."""
    from supervisor.console.commands.receipts import show_receipts

    chosen = None if session is None and named is None else session_of(session, named)
    show_receipts(options.endpoint(), chosen, run, DEFAULT_SESSION, as_json=options.as_json)


@click.command()
@click.argument(
    "session", required=False, help="The session's name; default: all sessions.", shell_complete=completions.sessions
)
@session_option
@common()
def ps(options: Common, session: str | None, named: str | None) -> None:
    """Show the live tree of sessions, runs, calls and processes.

    Each line has the age, the processor time and the memory.
    """
    from supervisor.console.commands.ps import show_ps

    chosen = None if session is None and named is None else session_of(session, named)
    show_ps(options.endpoint(), chosen, as_json=options.as_json)


@click.command()
@run_argument
@common()
def why(options: Common, run: str) -> None:
    """Show the history of a run, and who ended it and why.

    It has the input, each step with its time, and how each part ended.
    """
    from supervisor.console.commands.why import show_why

    show_why(options.endpoint(), run, as_json=options.as_json)


@click.command()
@common()
def sessions(options: Common) -> None:
    """List the sessions, and the state of each."""
    from supervisor.console.commands.sessions import show_sessions

    show_sessions(options.endpoint(), as_json=options.as_json)


@click.command()
@session_needed
@follow
@click.option("--from-seq", metavar="N", type=count, default=0, help="Show only the events after this sequence number.")
@common(json="Print each event as a JSON document on one line.", lines=True)
def events(options: Common, session: str, follow: bool, from_seq: int) -> None:
    """Show the log of a session, one event per line.

    No event is lost or repeated if the connection breaks.
    """
    from supervisor.console.commands.events import show_events

    show_events(options.endpoint(), session, from_seq, follow=follow, as_json=options.as_json)
