"""The `countermand` command: its commands, their options, and what becomes of a refusal.

Options that say where and what (`--state-dir`, `--agent`, `--verbose`) are taken before the command and after it; after
it wins. What a command needs is imported when it runs, so that `--help` and `--version` wait for nothing.

Exit codes: 0; 1 a script ended non-zero; 2 wrong usage or a refusal; 3 a run failed or expired; 130 stopped.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from supervisor.daemon.settings import Source

REFUSED: Final = 2
STOPPED: Final = 130

StateDir = Annotated[
    # A text, since an empty path would be the current folder.
    str | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="Where everything is kept. Default: COUNTERMAND_STATE_DIR, else countermand in the XDG state directory.",
    ),
]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent that runs messages.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside, on standard error.")]
SessionOption = Annotated[str | None, typer.Option("--session", metavar="NAME", help="The session's name.")]
SessionArgument = Annotated[str | None, typer.Argument(metavar="[SESSION]", help="The session's name; default: main.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration, in TOML. Default: COUNTERMAND_CONFIG, else countermand/countermand.toml in the XDG "
        "configuration directory, if it is there.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the configuration, such as drain_s=30. Repeatable."),
]

DEFAULT_SESSION: Final = "main"

app = typer.Typer(
    name="countermand",
    help="Chat with an agent, stop it, and see who stopped what and why.",
    epilog="Exit codes: 0; 1 a script ended non-zero; 2 wrong usage or a refusal; "
    "3 a run failed or expired; 130 stopped by a signal, by Ctrl-C, or a run ended cancelled. The highest decides.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("countermand")
    except PackageNotFoundError:
        number = "(not installed)"
    print(f"countermand {number}")
    raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
    version: Annotated[  # noqa: ARG001  # its callback has answered before this is called
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Chat with an agent, stop it, and see who stopped what and why. Without a command: chat."""
    context.obj = {"state_dir": state_dir, "agent": agent, "verbose": verbose}
    if context.invoked_subcommand is None:
        chat(context)


@app.command()
def chat(
    context: typer.Context,
    session: SessionOption = None,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """Send lines as messages and show what comes of them.

    On a terminal a line takes over from what runs; Ctrl-C stops it, Ctrl-D leaves. From a pipe each line is a message,
    in order, each waited for.
    """
    options = _options(context, state_dir, agent, verbose)
    with _refusals():
        from supervisor.config import Config
        from supervisor.console.chat import chat as run_chat

        _logs(options["verbose"])
        config = Config(state_dir=_state_dir(options), agent=options["agent"] or "shell")
        code = int(run_chat(config, DEFAULT_SESSION if session is None else session))
    raise typer.Exit(code)


@app.command()
def thread(
    context: typer.Context,
    session: SessionArgument = None,
    named: SessionOption = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """Show the messages of a session, as the next model call would see them; also while it is in use."""
    options = _options(context, state_dir, agent, verbose)
    with _refusals():
        from supervisor.console.views import show_thread

        _logs(options["verbose"])
        show_thread(_state_dir(options), _session(session, named), as_json=as_json)


@app.command()
def runs(
    context: typer.Context,
    session: SessionArgument = None,
    named: SessionOption = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """List the runs of a session and how each ended; also while it is in use."""
    options = _options(context, state_dir, agent, verbose)
    with _refusals():
        from supervisor.console.views import show_runs

        _logs(options["verbose"])
        show_runs(_state_dir(options), _session(session, named), as_json=as_json)


@app.command()
def ps(
    context: typer.Context,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="The session's name; default: all.")
    ] = None,
    named: SessionOption = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """List the processes that run now, with their owners: a run, or the session itself; also while it is in use."""
    options = _options(context, state_dir, agent, verbose)
    with _refusals():
        from supervisor.console.ps import show_ps

        _logs(options["verbose"])
        chosen = None if session is None and named is None else _session(session, named)
        show_ps(_state_dir(options), chosen, as_json=as_json)


@app.command()
def why(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or a receipt, or the beginning of one.")],
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """Tell the story of a run: its input, who ended it and why, and what became of each part."""
    options = _options(context, state_dir, agent, verbose)
    with _refusals():
        from supervisor.console.why import show_why

        _logs(options["verbose"])
        show_why(_state_dir(options), run, as_json=as_json)


@app.command()
def serve(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    state_dir: StateDir = None,
    agent: Agent = None,
    verbose: Verbose = False,
) -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C; SIGHUP has it read its configuration again.

    Exit codes: 0; 1 it could not use its store or its sockets, or could not end everything; 2 its configuration cannot
    be right, or another daemon uses the state directory.
    """
    options = _options(context, state_dir, agent, verbose)
    from supervisor.daemon.serve import serve as run_daemon

    raise typer.Exit(run_daemon(_source(options, config, assignments)))


config_app = typer.Typer(help="Check and show the daemon's configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@config_app.command("check")
def config_check(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    state_dir: StateDir = None,
    agent: Agent = None,
) -> None:
    """Say whether a daemon would start with its configuration, and all that is wrong with it."""
    options = _options(context, state_dir, agent, verbose=False)
    from supervisor.console.words import refusal
    from supervisor.daemon.settings import WrongSettings

    try:
        settings = _source(options, config, assignments).load()
    except WrongSettings as error:
        for problem in error.problems:
            print(f"countermand: {refusal(problem)}", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    print(f"ok: {settings.file}" if settings.file else "ok: no file, the defaults hold")


@config_app.command("show")
def config_show(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
) -> None:
    """Print the configuration as it holds, in TOML, each key with where it was said."""
    options = _options(context, state_dir, agent, verbose=False)
    with _refusals():
        import msgspec

        from supervisor.daemon.settings import as_toml

        found = _source(options, config, assignments).load().found
        print(msgspec.json.encode(found).decode() if as_json else as_toml(found))


def _source(options: dict[str, Any], config: Path | None, assignments: list[str] | None) -> Source:
    """Where the daemon's configuration is; what has an option of its own goes over everything else."""
    from supervisor.daemon.settings import Source

    own = [f"{key}={options[key]}" for key in ("state_dir", "agent") if options[key] is not None]
    if options["verbose"]:
        own.append("log.level=debug")
    return Source(config, None, (*(assignments or ()), *own))


def main() -> NoReturn:
    """Run the command and exit; the entry point."""
    app(prog_name="countermand")
    raise AssertionError("typer exits by itself")


def _options(context: typer.Context, state_dir: str | None, agent: str | None, verbose: bool) -> dict[str, Any]:
    """Put the options from behind the command over those from before it."""
    before: dict[str, Any] = context.obj
    return {
        "state_dir": state_dir if state_dir is not None else before["state_dir"],
        "agent": agent if agent is not None else before["agent"],
        "verbose": verbose or before["verbose"],
    }


def _state_dir(options: dict[str, Any]) -> Path:
    from actors.errors import Invalid
    from supervisor.config import default_state_dir

    chosen: str | None = options["state_dir"]
    if chosen is not None and not chosen.strip():
        raise Invalid("--state-dir is empty", expected="a path", got="''", remedy="name a directory, or leave it out")
    return (Path(chosen) if chosen is not None else default_state_dir()).expanduser()


def _session(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"two sessions are named, {argument!r} and {option!r}: name one")
    for name in (argument, option):
        if name is not None:
            return name
    return DEFAULT_SESSION


def _logs(verbose: bool) -> None:
    """Send the log to standard error: standard output is the output's."""
    from loguru import logger

    logger.remove()
    logger.add(
        sys.stderr,
        level="DEBUG" if verbose else "WARNING",
        format="{time:HH:mm:ss.SSS} {level} {message}",
        backtrace=False,
        diagnose=False,
    )


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Say a refusal on standard error, without a traceback; end quietly where nobody reads the output."""
    from actors.errors import CountermandError
    from supervisor.console.words import refusal

    try:
        yield
        sys.stdout.flush()
    except CountermandError as error:
        print(f"countermand: {refusal(error)}", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:
        # What is left in the buffer must not be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(0) from None
