"""The commands that run the daemon, and that show its configuration, its log and its health."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common
from supervisor.console.cli.options import agent, common, configuration, count, follow, state_dir, together, verbose


@click.command()
@configuration
@common(json=None, options=together(state_dir, agent, verbose), logs=False)
def serve(options: Common, config: str | None, assignments: Sequence[str]) -> int:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C.

    SIGHUP makes it read its configuration again. Exit codes: 0; 1 if it could not use its store or its sockets, or
    could not end everything; 2 if its configuration is wrong, another daemon uses the state directory or the socket, or
    other users have access to that directory.
    """
    from supervisor.daemon import collector

    # This has to come before the import that loads the daemon.
    collector.hold()
    from supervisor.console.ending import exit_in_time
    from supervisor.daemon.serve import serve as run_daemon

    code = run_daemon(options.source(config, assignments))
    exit_in_time(code)
    return code


@click.group(no_args_is_help=True)
def config() -> None:
    """Check and show the daemon's configuration."""


@config.command()
@configuration
@common(options=together(state_dir, agent), logs=False)
def check(options: Common, config: str | None, assignments: Sequence[str]) -> int:
    """Check whether a daemon would start, and list all problems.

    Each agent that runs in a process of its own is started, as this user, and ended again.
    """
    from actors.text import one_line
    from supervisor.console.commands.agent_check import unstartable
    from supervisor.console.exits import ExitCode
    from supervisor.console.render.output import print_json
    from supervisor.console.render.words import refusal
    from supervisor.daemon.settings import WrongSettings

    try:
        settings = options.source(config, assignments).load()
        # A daemon starts without these agents and tools. They are problems nevertheless.
        file, problems = settings.file, [*(one.error for one in settings.unloaded), *unstartable(settings)]
    except WrongSettings as error:
        file, problems = None, list(error.problems)
    for problem in problems:
        print(f"countermand: {refusal(problem)}", file=sys.stderr)
    if options.as_json:
        found = [problem.as_json() for problem in problems]
        print_json({"ok": not problems, "file": file and str(file), "problems": found})
    elif not problems:
        print(f"ok: {one_line(file)}" if file else "ok: there is no file, so the defaults apply")
    return ExitCode.USAGE if problems else ExitCode.OK


@config.command()
@configuration
@common(options=together(state_dir, agent), logs=False)
def show(options: Common, config: str | None, assignments: Sequence[str]) -> None:
    """Print the effective configuration, with each key's source.

    It is in TOML, or in JSON with --json.
    """
    import msgspec

    from actors.text import visible
    from supervisor.daemon.settings import as_toml

    found = options.source(config, assignments).load().found
    print(visible(msgspec.json.encode(found).decode() if options.as_json else as_toml(found)))


@click.command()
@click.argument("session", required=False, help="Only lines about this session.", shell_complete=completions.sessions)
@follow
@click.option("--lines", "-n", metavar="N", type=count, default=50, help="How many past lines to show.")
@click.option("--level", metavar="WORD", help="Only lines of this level or a higher one.")
@click.option(
    "--unit",
    metavar="NAME",
    default="countermand.service",
    help="The systemd unit whose journal is read if no daemon runs.",
)
@common(json="Print each line as JSON, as the daemon wrote it.", lines=True)
def logs(options: Common, session: str | None, follow: bool, lines: int, level: str | None, unit: str) -> None:
    """Show the daemon's own log, from its file or the journal.

    `countermand events SESSION` shows what happens in a session.
    """
    from actors.errors import Invalid
    from supervisor.console.commands.logs import LEVELS, Wanted, show_logs

    if level is not None and level not in LEVELS:
        raise Invalid(
            "this level is not known",
            expected=" | ".join(LEVELS),
            got=repr(level),
            remedy=f"give --level as one of: {', '.join(LEVELS)}",
        )
    show_logs(options.endpoint(), Wanted(lines, session, level), unit, follow=follow, as_json=options.as_json)


@click.command()
@common()
def doctor(options: Common) -> int:
    """Look for problems, and print their remedies.

    It changes nothing. The exit code is 1 if there is a problem.
    """
    from supervisor.console.commands.doctor import examine

    return examine(options.endpoint(), as_json=options.as_json)


@click.command()
@common(
    json="Print one JSON document, with the steps, the receipts and the thread, and nothing else.", options=state_dir
)
def demo(options: Common) -> int:
    """Show in some seconds what this is about: on real processes, without a model and without a network.

    A model that is a script on this machine starts jobs that ignore SIGTERM. A message takes over, a Stop ends them,
    and a daemon is ended by kill -9. It has a daemon of its own, in a temporary directory; with --state-dir that
    directory, which has to be new or empty, is kept. The exit code is 1 if not everything is proven to have ended.
    """
    from supervisor.console.commands.demo import show_demo

    return int(show_demo(options.state_dir, as_json=options.as_json))
