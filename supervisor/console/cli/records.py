"""The commands that read: they ask the daemon that runs, and the store on the disk where none does."""

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
    run_argument,
    session_needed,
    session_of,
    session_option,
)


@click.command()
@either_session
@click.option("--attachment", metavar="NAME", help="The bytes of this one, and nothing else.")
@common()
def thread(options: Common, session: str | None, named: str | None, attachment: str | None) -> None:
    """Show the messages of a session, as the next model call would see them; also while it is in use."""
    from supervisor.console.commands.thread import show_thread, write_attachment

    if attachment is not None:
        write_attachment(options.endpoint(), session_of(session, named), attachment)
    else:
        show_thread(options.endpoint(), session_of(session, named), as_json=options.as_json)


@click.command()
@either_session
@common()
def runs(options: Common, session: str | None, named: str | None) -> None:
    """List the runs of a session and how each ended; also while it is in use."""
    from supervisor.console.commands.runs import show_runs

    show_runs(options.endpoint(), session_of(session, named), as_json=options.as_json)


@click.command()
@either_session
@click.option(
    "--run",
    metavar="RUN",
    help="Only this run's, with each part: its id or its receipt's, or the beginning of one.",
    shell_complete=completions.runs,
)
@common()
def receipts(options: Common, session: str | None, named: str | None, run: str | None) -> None:
    """Show the receipts of a session's runs: what was running at the end of each, and how that ended."""
    from supervisor.console.commands.receipts import show_receipts

    chosen = None if session is None and named is None else session_of(session, named)
    show_receipts(options.endpoint(), chosen, run, DEFAULT_SESSION, as_json=options.as_json)


@click.command()
@click.argument(
    "session", required=False, help="The session's name; default: all.", shell_complete=completions.sessions
)
@session_option
@common()
def ps(options: Common, session: str | None, named: str | None) -> None:
    """Show what lives now, as a tree: session, run, call, process; with age, processor time and memory."""
    from supervisor.console.commands.ps import show_ps

    chosen = None if session is None and named is None else session_of(session, named)
    show_ps(options.endpoint(), chosen, as_json=options.as_json)


@click.command()
@run_argument
@common()
def why(options: Common, run: str) -> None:
    """Tell the story of a run: its input, who ended it and why, each moment, and what became of each part."""
    from supervisor.console.commands.why import show_why

    show_why(options.endpoint(), run, as_json=options.as_json)


@click.command()
@common()
def sessions(options: Common) -> None:
    """List the sessions, and what each is doing."""
    from supervisor.console.commands.sessions import show_sessions

    show_sessions(options.endpoint(), as_json=options.as_json)


@click.command()
@session_needed
@follow
@click.option("--from-seq", metavar="N", type=count, default=0, help="Begin behind the event of this number.")
@common(json="Print each event as a JSON document on one line.", lines=True)
def events(options: Common, session: str, follow: bool, from_seq: int) -> None:
    """Show the log of a session, one event a line. A break of the connection loses none, and repeats none."""
    from supervisor.console.commands.events import show_events

    show_events(options.endpoint(), session, from_seq, follow=follow, as_json=options.as_json)
