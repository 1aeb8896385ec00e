"""The commands that act on a session. They need a daemon."""

from __future__ import annotations

from typing import Final

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common
from supervisor.console.cli.options import (
    Decorator,
    common,
    identity,
    message_text,
    run_argument,
    seconds,
    session_needed,
    together,
)

RECEIPT_S: Final = 120.0
"""How long `stop` and `kill` wait for a receipt by default, in seconds."""


@click.command()
@session_needed
@click.argument("text", required=False, help="The message. Left out without --attach, or -: read standard input.")
@click.option(
    "--attach",
    "-a",
    "attached",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="An image or another file to send with it; may be repeated.",
)
@click.option(
    "--policy",
    metavar="WORD",
    help="What the message does to an active run: interrupt (the default), enqueue, steer, reject or rollback.",
)
@identity
@click.option("--origin", metavar="NAME", default="user", help="Who the message is from.")
@click.option("--merge/--no-merge", default=True, help="Whether its turn may have other waiting messages too.")
@click.option("--wait", "-w", is_flag=True, help="Print the output of its run, until the run has ended.")
@common()
def send(
    options: Common,
    session: str,
    text: str | None,
    attached: tuple[str, ...],
    policy: str | None,
    identity: str | None,
    origin: str,
    merge: bool,
    wait: bool,
) -> int:
    """Send a message to a session.

    The first message creates the session.
    """
    from actors.ids import new_request_id
    from actors.requests import NewMessage
    from supervisor.console.commands.send import file_to_send
    from supervisor.console.commands.send import send as send_message

    # Bytes that are not UTF-8 are kept as surrogates. In an argument Python has decoded them so already.
    content = "" if text is None and attached else message_text("-" if text is None else text)
    message = NewMessage(
        content=content,
        policy=policy,
        origin=origin,
        merge=merge,
        agent=options.agent,
        attachments=[file_to_send(path) for path in attached],
        id=identity or new_request_id(),
    )
    again = identity is not None
    return send_message(options.endpoint(), session, message, again=again, wait=wait, as_json=options.as_json)


@click.command()
@session_needed
@click.argument("call", help="The id of the call, as ps shows it.")
@click.argument("text", required=False, help="The answer; or the reason, with --decline.")
@click.option("--allow/--decline", default=None, help="Whether the call may start; --decline: do not answer.")
@identity
@click.option("--origin", metavar="NAME", default="user", help="Who answers.")
@common()
def answer(
    options: Common, session: str, call: str, text: str | None, allow: bool | None, identity: str | None, origin: str
) -> int:
    """Answer a call that waits for a person.

    A question needs TEXT; a tool that asks for approval needs --allow or --decline. ps lists the calls that wait.
    """
    from actors.ids import new_request_id
    from actors.requests import Answer
    from supervisor.console.commands.answer import send_answer

    if text is None and allow is None:
        raise click.UsageError("say what is answered: TEXT to a question, or --allow or --decline")
    sent = Answer(call_id=call, content=text or "", allow=allow, origin=origin, id=identity or new_request_id())
    return send_answer(options.endpoint(), session, sent, as_json=options.as_json)


@click.command()
@click.argument(
    "session",
    required=False,
    help="The one session that may be controlled; all, without it.",
    shell_complete=completions.sessions,
)
@common(json=None, logs=False)
def mcp(options: Common, session: str | None) -> int:
    """Serve MCP on standard input and output, so that an agent can supervise others.

    Its tools are send, stop, status and receipt, and sessions, which lists them. It needs countermand[mcp].
    """
    from supervisor.console.commands.mcp_server import serve_mcp

    return serve_mcp(options.endpoint(), session)


def _ending(reason: str) -> Decorator:
    """Return the options of a command that ends runs; `reason` is the default of `--reason`."""
    return together(
        click.option("--reason", metavar="TEXT", default=reason, help="The reason, which is recorded."),
        identity,
        click.option(
            "--wait/--no-wait", default=True, help="Wait for the receipt, or return when the request is answered."
        ),
        click.option("--timeout", metavar="S", type=seconds, default=RECEIPT_S, help="How long to wait, in seconds."),
    )


@click.command()
@click.argument("session", required=False, help="The session's name.", shell_complete=completions.sessions)
@click.option("--all", "everything", is_flag=True, help="Stop what runs in every session.")
@click.option("--run", metavar="RUN", help="Stop only this run.", shell_complete=completions.runs)
@click.option("--mode", metavar="WORD", help="graceful (the default) or immediate.")
@click.option(
    "--scope", metavar="WORD", help="run (the default), or session: also the processes that the session owns."
)
@click.option("--waiting", metavar="WORD", help="What happens to waiting messages: withdraw, park or keep.")
@_ending("stopped on the command line")
@common()
def stop(
    options: Common,
    session: str | None,
    everything: bool,
    run: str | None,
    mode: str | None,
    scope: str | None,
    waiting: str | None,
    reason: str,
    identity: str | None,
    wait: bool,
    timeout: float,
) -> int:
    """Stop what runs in a session, and wait for the receipt.

    The receipt is the proof that everything has ended. Ctrl-C ends only the wait: the Stop stays in effect.
    """
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

    wanted = requested(reason, identity, run_id=run, mode=mode, scope=scope, waiting=waiting)
    wait_s = timeout if wait else 0.0
    if session is None:
        return stop_all(options.endpoint(), wanted, wait_s, as_json=options.as_json)
    return stop_session(options.endpoint(), session, wanted, wait_s, as_json=options.as_json)


@click.command()
@run_argument
@_ending("killed on the command line")
@common()
def kill(options: Common, run: str, reason: str, identity: str | None, wait: bool, timeout: float) -> int:
    """End one run at once, without a grace, and wait for the receipt.

    Nothing else is ended.
    """
    from supervisor.console.commands.stop import kill_run, requested

    return kill_run(
        options.endpoint(), run, requested(reason, identity), timeout if wait else 0.0, as_json=options.as_json
    )
