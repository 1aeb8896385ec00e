"""The commands about agents: the list of a daemon's, their reload, and a trial of one without a daemon."""

from __future__ import annotations

from collections.abc import Sequence

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common
from supervisor.console.cli.options import common, configuration, everywhere, message_text, seconds, verbose

READY_S = 60.0
"""How long `reload` waits for the new hosts by default, in seconds."""


class Agents(click.Group):
    """The group, whose commands are listed in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(self.commands)


@click.group(cls=Agents, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@everywhere
@click.pass_context
def agents(context: click.Context, /, **values: object) -> None:
    """List the agents of the daemon: where each runs, its hosts and their state, since when, its last failure.

    An agent of the configuration runs in hosts, processes of its own. A spare host waits for a run; a kept one waits
    for the next run of its session.
    """
    context.obj = Common.of(values).over(context.obj)
    if context.invoked_subcommand is None:
        context.invoke(listed)


@click.command()
@common()
def listed(options: Common) -> None:
    """List them."""
    from supervisor.console.commands.agents import show_agents

    show_agents(options.endpoint(), as_json=options.as_json)


@agents.command()
@click.argument("name", required=False, help="Of the agent; default: all.", shell_complete=completions.agents)
@click.option("--wait/--no-wait", default=True, help="Wait until the new hosts are ready, and say so.")
@click.option("--timeout", metavar="S", type=seconds, default=READY_S, help="How long to wait, in seconds.")
@common()
def reload(options: Common, name: str | None, wait: bool, timeout: float) -> int:
    """Load the code of an agent, or of all, anew, with its files of variables: its spare hosts are replaced.

    Runs go on in the hosts that they have; a host that a session keeps is replaced at its next run. The configuration
    is not read again. Exit code 1 where an agent cannot be loaded, 4 where its host is not ready in time.
    """
    from supervisor.console.commands.agents import reload_agents

    return int(reload_agents(options.endpoint(), name, timeout if wait else 0.0, as_json=options.as_json))


@agents.command(name="try")
@click.argument("name", help="Of the agent.", shell_complete=completions.agents)
@click.argument("text", default="-", help="The message; - or none: from standard input.")
@click.option("--timeout", metavar="S", type=seconds, help="After so many seconds the run expires.")
@configuration
@common(json="Print one JSON document, with the result and the receipt, and nothing else.", options=verbose)
def trial(
    options: Common, name: str, text: str, timeout: float | None, config: str | None, assignments: Sequence[str]
) -> int:
    """Send one message to an agent, in a session that is thrown away; show its output, and then its receipt.

    It needs no daemon, and touches none that runs: it reads the configuration as a daemon would, runs the agent as this
    user, with a state directory of its own, and removes that. What the agent's process prints is shown on standard
    error. Ctrl-C stops the run, a second one kills it. The exit code says how the run ended.
    """
    from loguru import logger

    from supervisor.console.commands.trial import try_agent
    from supervisor.console.ending import exit_in_time
    from supervisor.daemon.settings import WrongSettings

    try:
        settings = options.source(config, assignments).load(serves=False)
    except WrongSettings as error:
        # A single problem is refused as what it is.
        raise error.problems[0] if len(error.problems) == 1 else error from None
    if not options.verbose:
        # The run says the same.
        logger.disable("supervisor.hosts")
    code = int(try_agent(settings, name, message_text(text), timeout=timeout, as_json=options.as_json))
    exit_in_time(code)
    return code
