"""`countermand`: its commands, its start and its end. `exits.py` has the exit codes."""

from __future__ import annotations

import itertools
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

import click

from supervisor.console.cli import completion
from supervisor.console.cli.agents import agents
from supervisor.console.cli.chat import chat
from supervisor.console.cli.common import Common
from supervisor.console.cli.daemon import config, demo, doctor, logs, serve
from supervisor.console.cli.options import STOPPED, everywhere
from supervisor.console.cli.records import events, ps, receipts, runs, sessions, thread, why
from supervisor.console.cli.requests import answer, kill, mcp, send, stop
from supervisor.console.ending import EndedBy, end_of
from supervisor.console.tty.streams import open_streams

FAILED: Final = 1

EXIT_CODES: Final = (
    "Exit codes, of which the highest that applies is returned: 0 success; 1 something was refused or failed, or a "
    "script exited non-zero; 2 usage error; 3 no daemon answers; 4 a run failed or expired, its script was killed, "
    "timed out or did not start, or no answer came in time; 130 a run was stopped, or the reader of the output is "
    "gone. A command that a signal ends cleans up and then ends by that signal: a shell shows 130 for Ctrl-C and 143 "
    "for SIGTERM."
)


class Root(click.Group):
    """The root command. `--help` lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(self.commands)


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:  # noqa: ARG001
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("countermand")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"countermand {number}")
    context.exit()


@click.group(
    name=completion.NAME,
    cls=Root,
    invoke_without_command=True,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["--help", "-h"], "show_default": True},
)
@everywhere
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@completion.options
@click.pass_context
def root(context: click.Context, state_dir: str | None, agent: str | None, socket: str | None, verbose: bool) -> None:
    """Chat with an agent, stop it, and see who stopped what and why.

    Without a command it runs chat.
    """
    context.obj = Common(state_dir, agent, socket, verbose)
    if context.invoked_subcommand is None:
        context.invoke(chat)


for command in (
    *(chat, demo, thread, runs, receipts, ps, why, sessions, events),
    *(send, answer, stop, kill, mcp, agents, logs, doctor, serve, config),
):
    root.add_command(command)


def main() -> NoReturn:
    """Run the command and exit; the entry point."""
    output = open_streams()
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  # as the interpreter calls it
        interrupted.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        # A parent process may have blocked the signal, and a child inherits that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        code = _run()
        sys.stdout.flush()
    except EndedBy as ended:
        sys.stdout.flush()
        end_of(ended.number)
    except KeyboardInterrupt:
        code = STOPPED
    if output.failed is not None and not output.unread:
        # It is no error that the reader of the output is gone.
        said = f"the output could not be written: {output.failed.strerror}; the request may have been carried out"
        print(f"countermand: {said}", file=sys.stderr)
        code = max(code, FAILED)
    if interrupted and code == STOPPED:
        end_of(signal.SIGINT)
    sys.exit(code)


def _run() -> int:
    """Run the command, and return its exit code."""
    code = completion.complete(root)
    if code is not None:
        return code
    try:
        with root.make_context(completion.NAME, sys.argv[1:]) as context:
            root.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        options = itertools.takewhile(lambda one: one != "--", sys.argv[1:])
        if isinstance(error, click.UsageError) and "--json" in options:
            _print_usage(error)
        return error.exit_code
    return 0


def _print_usage(error: click.UsageError) -> None:
    """Print a usage error as the document that every other refusal is."""
    from actors.errors import Invalid
    from supervisor.console.render.output import print_json_line

    usage, path = (error.ctx.get_usage(), error.ctx.command_path) if error.ctx else ("", completion.NAME)
    # On one line: the command may be one that prints a document a line.
    refused = Invalid(error.format_message(), expected=usage, remedy=f"see {path} --help")
    print_json_line({"error": refused.as_json()})
