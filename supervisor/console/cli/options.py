"""The options that commands share, and `common`, the decorator that adds them to a command."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common

DEFAULT_SESSION: Final = "main"
STOPPED: Final = 130

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def together(*decorators: Decorator) -> Decorator:
    """Join decorators into one that adds their options in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


# A path is taken as text, since an empty `Path` would mean the current folder.
state_dir: Final = click.option(
    "--state-dir",
    metavar="DIR",
    help="The directory in which all state is kept. Default: COUNTERMAND_STATE_DIR, else countermand in the XDG state "
    "directory.",
)
agent: Final = click.option(
    "--agent", metavar="NAME", help="The agent that answers. With send and chat, each message names it."
)
socket: Final = click.option(
    "--socket", metavar="PATH", help="The daemon's socket. Default: countermand.sock in the state directory."
)
verbose: Final = click.option("--verbose", "-v", is_flag=True, help="Print a detailed log on standard error.")

session_needed: Final = click.argument("session", help="The session's name.", shell_complete=completions.sessions)
session_option: Final = click.option(
    "--session", "named", metavar="NAME", help="The session's name.", shell_complete=completions.sessions
)
either_session: Final = together(
    click.argument(
        "session", required=False, help="The session's name; default: main.", shell_complete=completions.sessions
    ),
    session_option,
)
run_argument: Final = click.argument(
    "run",
    help="The id of a run or of its receipt, or a prefix of one; `countermand runs` lists them.",
    shell_complete=completions.runs,
)
identity: Final = click.option(
    "--id", "identity", metavar="ID", help="The request's id. Requests with the same id have one effect."
)
follow: Final = click.option("--follow", "-f", is_flag=True, help="Continue with new ones as they come, until Ctrl-C.")

# The error for a wrong value shows these names.
count: Final = click.IntRange(min=0)
count.name = "whole number"
seconds: Final = click.FloatRange(min=0.0)
seconds.name = "number"

newest: Final = click.option(
    "--last",
    metavar="N",
    type=count,
    help="Show only the newest N; 0 shows all (of runs, the newest 1,000). Default: on a terminal 50, otherwise all.",
)

configuration: Final = together(
    click.option(
        "--config",
        metavar="FILE",
        help="The configuration, in TOML. Default: COUNTERMAND_CONFIG, else countermand/countermand.toml in the XDG "
        "configuration directory, if it exists.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a key of the configuration, such as drain_s=30. Repeatable.",
    ),
)

everywhere: Final = together(state_dir, agent, socket, verbose)
"""The options that may also stand before the command."""


def common(
    *,
    json: str | None = "Print one JSON document and nothing else.",
    lines: bool = False,
    options: Decorator = everywhere,
    logs: bool = True,
) -> Decorator:
    """Add the common options to a command, and call it with a `Common` as its first argument.

    The command returns its exit code, or None for 0. If it raises a `CountermandError`, that is printed on standard
    error, and with `--json` also as a document on standard output.

    Args:
        json: the help of `--json`; None: the command has no such option.
        lines: the command prints one JSON document per line.
        options: the common options that the command has.
        logs: send the log to standard error before the call.
    """

    def decorate(run: Command) -> Command:
        @click.pass_context
        @functools.wraps(run)
        def command(context: click.Context, /, **values: Any) -> None:
            chosen = Common.of(values).over(context.obj)
            with refusals(as_json=chosen.as_json, lines=lines):
                if logs:
                    chosen.log()
                code = run(chosen, **{key: value for key, value in values.items() if key not in Common._fields})
            context.exit(int(code or 0))

        if json is None:
            return options(command)
        return together(click.option("--json", "as_json", is_flag=True, help=json), options)(command)

    return decorate


@contextlib.contextmanager
def refusals(*, as_json: bool, lines: bool) -> Iterator[None]:
    """Print a `CountermandError` on standard error, without a traceback, and exit with its code.

    With `as_json` it is also printed on standard output, as a document in the form of the API; with `lines`, on one
    line.
    """
    from actors.errors import CountermandError
    from supervisor.console.exits import of_error
    from supervisor.console.render.words import refusal

    try:
        yield
    except CountermandError as error:
        for one in getattr(error, "problems", (error,)):
            print(f"countermand: {refusal(one)}", file=sys.stderr)
        if as_json:
            from supervisor.console.render.output import print_json, print_json_line

            (print_json_line if lines else print_json)({"error": error.as_json()})
        raise click.exceptions.Exit(int(of_error(error))) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(STOPPED) from None


def session_of(argument: str | None, option: str | None) -> str:
    """Return the session that the argument or `--session` names, else the default one.

    Raises:
        Invalid: they name two sessions.
    """
    if argument is not None and option is not None and argument != option:
        from actors.errors import Invalid

        raise Invalid(
            "two sessions are named",
            expected="one session",
            got=f"{argument!r} and {option!r}",
            remedy="leave out SESSION or --session",
        )
    return next((name for name in (argument, option) if name is not None), DEFAULT_SESSION)


def message_text(text: str) -> str:
    """Return the content of a message; if `text` is ``-``, read it from standard input.

    Raises:
        Invalid: standard input cannot be read.
    """
    if text != "-":
        return text
    from actors.errors import Invalid

    try:
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    except OSError as error:
        raise Invalid(
            "standard input cannot be read",
            expected="the message, as TEXT or on standard input",
            got=error.strerror or str(error),
            remedy="give the message as TEXT, or open standard input",
        ) from error
