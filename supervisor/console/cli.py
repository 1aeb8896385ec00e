"""The `countermand` command: its commands, their options, and what becomes of a refusal.

Options that say where and what (`--state-dir`, `--agent`, `--verbose`) are taken before the command and after it; after
it wins. What a command needs is imported when it runs, so that `--help` and `--version` wait for nothing.

A command that reads asks the daemon that runs, and the store on the disk where none does. One that acts needs a daemon.
`exits.py` has the exit codes.
"""

# Annotations are not texts here: typer would compile each of them again, twice, at every start.
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from supervisor.console import completions
from supervisor.console.ending import EndedBy, end_of
from supervisor.console.tty.streams import open_streams
from supervisor.console.values import take_plainly

if TYPE_CHECKING:
    from loguru import Message

    from supervisor.config import Config
    from supervisor.console.client.endpoint import Place
    from supervisor.daemon.settings import Source

FAILED: Final = 1
USAGE: Final = 2
STOPPED: Final = 130
RECEIPT_S: Final = 120.0
"""How long `stop` and `kill` wait for a receipt, if nobody says otherwise."""

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
Socket = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", help="The daemon's socket. Default: countermand.sock in the state directory."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside, on standard error.")]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="NAME", help="The session's name.", autocompletion=completions.sessions),
]
SessionArgument = Annotated[
    str | None,
    typer.Argument(metavar="[SESSION]", help="The session's name; default: main.", autocompletion=completions.sessions),
]
NamedSession = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's name.", autocompletion=completions.sessions)
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The id of a run or of its receipt, or the beginning of one.",
        autocompletion=completions.runs,
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="The request's id: sent again under it, it has one effect."),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it goes on record.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the receipt, or be content with the fence.")]
WaitS = Annotated[float, typer.Option("--timeout", metavar="S", min=0.0, help="How long to wait, in seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

ConfigFile = Annotated[
    str | None,
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

EXIT_CODES: Final = (
    "Exit codes: 0; 1 refused or failed, or a script ended non-zero; 2 wrong usage; 3 no daemon answers; 4 a run "
    "failed or expired, its script was killed, timed out or not started, or nobody answered in time; 130 a run was "
    "stopped, or nobody reads the output any more. The highest decides. A command that a signal ends cleans up, and "
    "ends by that signal: to a shell 130 for Ctrl-C, 143 for SIGTERM."
)

app = typer.Typer(
    name="countermand",
    help="Chat with an agent, stop it, and see who stopped what and why.",
    epilog=EXIT_CODES,
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
    socket: Socket = None,
    verbose: Verbose = False,
    version: Annotated[  # noqa: ARG001  # its callback has answered before this is called
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Chat with an agent, stop it, and see who stopped what and why. Without a command: chat."""
    context.obj = {"state_dir": state_dir, "agent": agent, "verbose": verbose, "socket": socket}
    if context.invoked_subcommand is None:
        chat(context)


@app.command()
def chat(
    context: typer.Context,
    session: SessionOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Send lines as messages and show what comes of them.

    On a terminal a line takes over from what runs; Ctrl-C stops it, Ctrl-D leaves. From a pipe each line is a message,
    in order, each waited for. Attaches to the daemon that runs; where none does it brings a supervisor of its own, with
    the configuration that a daemon would have.
    """
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals():
        from supervisor.console.chat.chat import chat as run_chat
        from supervisor.console.ending import exit_in_time

        _logs(options["verbose"])
        name = DEFAULT_SESSION if session is None else session
        place, own = _chat_place(options, config, assignments)
        code = int(run_chat(own, name, place, agent=options["agent"]))
        exit_in_time(code)
    raise typer.Exit(code)


@app.command()
def thread(
    context: typer.Context,
    session: SessionArgument = None,
    named: SessionOption = None,
    attachment: Annotated[
        str | None,
        typer.Option("--attachment", metavar="NAME", help="The bytes of this one, and nothing else."),
    ] = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Show the messages of a session, as the next model call would see them; also while it is in use."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.thread import show_thread, write_attachment

        _logs(options["verbose"])
        if attachment is not None:
            write_attachment(_place(options), _session(session, named), attachment)
        else:
            show_thread(_place(options), _session(session, named), as_json=as_json)


@app.command()
def runs(
    context: typer.Context,
    session: SessionArgument = None,
    named: SessionOption = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """List the runs of a session and how each ended; also while it is in use."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.runs import show_runs

        _logs(options["verbose"])
        show_runs(_place(options), _session(session, named), as_json=as_json)


@app.command()
def receipts(
    context: typer.Context,
    session: SessionArgument = None,
    named: SessionOption = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Only this run's, with each part: its id or its receipt's, or the beginning of one.",
            autocompletion=completions.runs,
        ),
    ] = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Show the receipts of a session's runs: what was running at the end of each, and how that ended."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.receipts import show_receipts

        _logs(options["verbose"])
        chosen = None if session is None and named is None else _session(session, named)
        show_receipts(_place(options), chosen, run, DEFAULT_SESSION, as_json=as_json)


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
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Show what lives now, as a tree: session, run, call, process; with age, processor time and memory."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.ps import show_ps

        _logs(options["verbose"])
        chosen = None if session is None and named is None else _session(session, named)
        show_ps(_place(options), chosen, as_json=as_json)


@app.command()
def why(
    context: typer.Context,
    run: RunArgument,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Tell the story of a run: its input, who ended it and why, each moment, and what became of each part."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.why import show_why

        _logs(options["verbose"])
        show_why(_place(options), run, as_json=as_json)


@app.command()
def sessions(
    context: typer.Context,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """List the sessions, and what each is doing."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.sessions import show_sessions

        _logs(options["verbose"])
        show_sessions(_place(options), as_json=as_json)


@app.command()
def events(
    context: typer.Context,
    session: NamedSession,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    from_seq: Annotated[
        int, typer.Option("--from-seq", metavar="N", min=0, help="Begin behind the event of this number.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON document on one line.")] = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Show the log of a session, one event a line. A break of the connection loses none, and repeats none."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json, lines=True):
        from supervisor.console.commands.events import show_events

        _logs(options["verbose"])
        show_events(_place(options), session, from_seq, follow=follow, as_json=as_json)


@app.command()
def send(
    context: typer.Context,
    session: NamedSession,
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="The message; - or none: from standard input.")] = "-",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="WORD",
            help="What it does to a run: interrupt (the default), enqueue, steer, reject or rollback.",
        ),
    ] = None,
    identity: RequestId = None,
    origin: Annotated[str, typer.Option("--origin", metavar="NAME", help="On whose behalf.")] = "user",
    merge: Annotated[bool, typer.Option("--merge/--no-merge", help="May share its turn, or has its own.")] = True,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Print what its run says, until that has ended.")] = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Send a message to a session; the session comes into being with its first one."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from actors.ids import new_request_id
        from actors.requests import NewMessage
        from supervisor.console.commands.send import send as send_message

        _logs(options["verbose"])
        # Bytes that are not UTF-8 go on as they are; in an argument they have this form already.
        content = _input() if text == "-" else text
        message = NewMessage(
            content=content, policy=policy, origin=origin, merge=merge, id=identity or new_request_id()
        )
        again = identity is not None
        code = send_message(
            _place(options), session, message, agent=options["agent"], again=again, wait=wait, as_json=as_json
        )
    raise typer.Exit(int(code))


@app.command()
def stop(
    context: typer.Context,
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="The session's name.", autocompletion=completions.sessions),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop what runs in every session.")] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Only this run, and nothing else.", autocompletion=completions.runs),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="WORD", help="graceful (the default), or immediate.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option("--scope", metavar="WORD", help="run (the default), or session: its own processes too."),
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option("--waiting", metavar="WORD", help="What becomes of waiting messages: withdraw, park or keep."),
    ] = None,
    reason: Reason = "stopped on the command line",
    identity: RequestId = None,
    wait: Wait = True,
    timeout: WaitS = RECEIPT_S,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Stop what runs in a session, and wait for the receipt: the proof that everything has ended.

    Ctrl-C ends the waiting; the stop holds.
    """
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from actors.errors import Invalid
        from supervisor.console.commands.stop import requested, stop_all, stop_session

        if everything == (session is not None):
            raise Invalid(
                "it is not clear what is to be stopped",
                expected="the name of a session, or --all",
                got="both" if everything else "neither",
                remedy="give one of the two",
            )
        if everything and run is not None:
            raise Invalid(
                "--run names one run, and --all means every one",
                expected="one of the two",
                got="both",
                remedy="name the run's session with --run, or leave --run out",
            )

        _logs(options["verbose"])
        wanted = requested(reason, identity, run_id=run, mode=mode, scope=scope, waiting=waiting)
        wait_s = timeout if wait else 0.0
        if session is None:
            code = stop_all(_place(options), wanted, wait_s, as_json=as_json)
        else:
            code = stop_session(_place(options), session, wanted, wait_s, as_json=as_json)
    raise typer.Exit(int(code))


@app.command()
def kill(
    context: typer.Context,
    run: RunArgument,
    reason: Reason = "killed on the command line",
    identity: RequestId = None,
    wait: Wait = True,
    timeout: WaitS = RECEIPT_S,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """End one run at once, without a grace, and nothing else; and wait for the receipt, as stop does."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.stop import kill_run, requested

        _logs(options["verbose"])
        wait_s = timeout if wait else 0.0
        code = kill_run(_place(options), run, requested(reason, identity), wait_s, as_json=as_json)
    raise typer.Exit(int(code))


@app.command()
def logs(
    context: typer.Context,
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Only lines about this session.", autocompletion=completions.sessions),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many from before.")] = 50,
    level: Annotated[
        str | None, typer.Option("--level", metavar="WORD", help="Only lines of this level or above.")
    ] = None,
    unit: Annotated[
        str, typer.Option("--unit", metavar="NAME", help="Whose journal is read where no daemon runs.")
    ] = "countermand.service",
    as_json: Annotated[bool, typer.Option("--json", help="Print lines as the daemon wrote them, in JSON.")] = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Show the daemon's own log: its file, or the journal. What happens in a session is in events."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json, lines=True):
        from actors.errors import Invalid
        from supervisor.console.commands.logs import LEVELS, Wanted, show_logs

        if level is not None and level not in LEVELS:
            raise Invalid(
                "this level is not known",
                expected=" | ".join(LEVELS),
                got=repr(level),
                remedy=f"give --level as one of: {', '.join(LEVELS)}",
            )
        _logs(options["verbose"])
        show_logs(_place(options), Wanted(lines, session, level), unit, follow=follow, as_json=as_json)


@app.command()
def doctor(
    context: typer.Context,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
    socket: Socket = None,
    verbose: Verbose = False,
) -> None:
    """Look for what is wrong, and say what helps; 1 where something is. It changes nothing."""
    options = _options(context, state_dir, agent, verbose, socket)
    with _refusals(as_json=as_json):
        from supervisor.console.commands.doctor import examine

        _logs(options["verbose"])
        code = examine(_place(options), as_json=as_json)
    raise typer.Exit(int(code))


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
    be right, another daemon uses the state directory or the socket, or that directory is open to others.
    """
    options = _options(context, state_dir, agent, verbose)
    from supervisor.daemon import collector

    # Before the import that loads the daemon.
    collector.hold()
    from supervisor.console.ending import exit_in_time
    from supervisor.daemon.serve import serve as run_daemon

    code = run_daemon(_source(options, config, assignments))
    exit_in_time(code)
    raise typer.Exit(code)


config_app = typer.Typer(help="Check and show the daemon's configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@config_app.command("check")
def config_check(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    agent: Agent = None,
) -> None:
    """Say whether a daemon would start with its configuration, and all that is wrong with it."""
    options = _options(context, state_dir, agent, verbose=False)
    from actors.text import one_line
    from supervisor.console.render.output import print_json
    from supervisor.console.render.words import refusal
    from supervisor.daemon.settings import WrongSettings

    try:
        settings = _source(options, config, assignments).load()
        # A daemon serves without them, and they are wrong all the same.
        file, problems = settings.file, [one.error for one in settings.unloaded]
    except WrongSettings as error:
        file, problems = None, list(error.problems)
    for problem in problems:
        print(f"countermand: {refusal(problem)}", file=sys.stderr)
    if as_json:
        told = [problem.told() for problem in problems]
        print_json({"ok": not problems, "file": file and str(file), "problems": told})
    if problems:
        raise typer.Exit(USAGE)
    if not as_json:
        print(f"ok: {one_line(file)}" if file else "ok: no file, the defaults hold")


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
    with _refusals(as_json=as_json):
        import msgspec

        from actors.text import visible
        from supervisor.daemon.settings import as_toml

        found = _source(options, config, assignments).load().found
        print(visible(msgspec.json.encode(found).decode() if as_json else as_toml(found)))


def _chat_place(
    options: dict[str, Any], config: str | None, assignments: list[str] | None
) -> "tuple[Place, Config | None]":
    """Where a chat is, and the configuration of its own supervisor; None where a daemon runs, which has its own."""
    from actors.errors import Invalid
    from supervisor.console.client.endpoint import Place
    from supervisor.daemon.settings import WrongSettings

    place = _place(options)
    if place.named is None and not place.is_listening():
        try:
            own = _source(options, config, assignments).load(serves=False).config
        except WrongSettings as error:
            # One thing that is wrong is refused as what it is.
            raise error.problems[0] if len(error.problems) == 1 else error from None
        place = Place(Path(own.state_dir))
        if not place.is_listening():
            return place, own
    if config is not None or assignments:
        raise Invalid(
            "the daemon that runs has a configuration of its own",
            expected="no --config and no --set",
            got="--config" if config is not None else "--set",
            remedy="leave it out; or use another --state-dir, where no daemon runs",
        )
    return place, None


def _source(options: dict[str, Any], config: str | None, assignments: list[str] | None) -> "Source":
    """Where the daemon's configuration is; what has an option of its own goes over everything else."""
    from supervisor.daemon.settings import Source

    own = [f"{key}={options[key]}" for key in ("state_dir", "agent") if options[key] is not None]
    if options["verbose"]:
        own.append("log.level=debug")
    return Source(Path(config) if config is not None else None, None, (*(assignments or ()), *own))


def main() -> NoReturn:
    """Run the command and exit; the entry point."""
    output = open_streams()
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  # as the interpreter calls it
        interrupted.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        # Whoever started the command may have blocked it, which is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        command = typer.main.get_command(app)
        take_plainly(command)
        code = _run(command)
        sys.stdout.flush()
    except EndedBy as ended:
        sys.stdout.flush()
        end_of(ended.number)
    except KeyboardInterrupt:
        code = STOPPED
    if output.failed is not None and not output.unread:
        # That nobody wants to read it is no error.
        why = output.failed.strerror
        print(f"countermand: the output could not be written: {why}; what was asked for may be done", file=sys.stderr)
        code = max(code, FAILED)
    if interrupted and code == STOPPED:
        end_of(signal.SIGINT)
    sys.exit(code)


def _run(command: Any) -> int:
    """Run the command, and return its exit code."""
    try:
        command(prog_name="countermand")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _options(
    context: typer.Context, state_dir: str | None, agent: str | None, verbose: bool, socket: str | None = None
) -> dict[str, Any]:
    """Put the options from behind the command over those from before it."""
    before: dict[str, Any] = context.obj
    return {
        "state_dir": state_dir if state_dir is not None else before["state_dir"],
        "agent": agent if agent is not None else before["agent"],
        "verbose": verbose or before["verbose"],
        "socket": socket if socket is not None else before["socket"],
    }


def _state_dir(options: dict[str, Any]) -> Path:
    from actors.errors import Invalid
    from supervisor.config import absolute, default_state_dir

    chosen: str | None = options["state_dir"]
    if chosen is not None and not chosen.strip():
        raise Invalid("--state-dir is empty", expected="a path", got="''", remedy="name a directory, or leave it out")
    return absolute(Path(chosen) if chosen is not None else default_state_dir())


def _place(options: dict[str, Any]) -> "Place":
    from actors.errors import Invalid
    from supervisor.console.client.endpoint import Place

    socket: str | None = options["socket"]
    if socket is not None and not socket.strip():
        raise Invalid("--socket is empty", expected="a path", got="''", remedy="name a socket, or leave it out")
    return Place(_state_dir(options), Path(socket).expanduser() if socket is not None else None)


def _session(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        from actors.errors import Invalid

        raise Invalid(
            "two sessions are named",
            expected="one session",
            got=f"{argument!r} and {option!r}",
            remedy="leave out SESSION or --session",
        )
    for name in (argument, option):
        if name is not None:
            return name
    return DEFAULT_SESSION


def _input() -> str:
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


def _logs(verbose: bool) -> None:
    """Send the log to standard error: standard output is the output's."""
    from loguru import logger

    from actors.kernel.log_context import speak
    from actors.text import below, one_line

    def write(message: "Message") -> None:
        at, level, said = message.record["time"], message.record["level"].name, message.record["message"]
        sys.stderr.write(f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {level} {one_line(said)}\n")
        trace = message.removeprefix("\n").rstrip()
        if trace:
            sys.stderr.write(f"{below(trace)}\n")

    speak()
    logger.remove()
    # The format leaves the traceback alone, where there is one.
    logger.add(write, level="DEBUG" if verbose else "WARNING", format="", backtrace=False, diagnose=False)


@contextlib.contextmanager
def _refusals(*, as_json: bool = False, lines: bool = False) -> Iterator[None]:
    """Say a refusal on standard error, without a traceback.

    Where JSON was asked for the refusal is a document too, in the form of the API's; of `lines`, on one line.
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

            (print_json_line if lines else print_json)({"error": error.told()})
        raise typer.Exit(int(of_error(error))) from None
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
