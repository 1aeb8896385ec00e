"""The commands about agents: list those of the daemon, reload their code, try one without a daemon."""

from __future__ import annotations

from collections.abc import Sequence

import click

from supervisor.console.cli import completions
from supervisor.console.cli.common import Common
from supervisor.console.cli.options import common, configuration, everywhere, message_text, seconds, verbose

READY_S = 60.0
"""How long `reload` waits for the new hosts by default, in seconds."""


class Agents(click.Group):
    """The group `agents`. `--help` lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(self.commands)


@click.group(cls=Agents, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@everywhere
@click.pass_context
def agents(context: click.Context, /, **values: object) -> None:
    """List the daemon's agents, and the state of their hosts.

    The list says where each agent runs, in which state its hosts are and since when, and what failed last. A host is a
    process of the agent's own. A spare host waits for any run; a kept host waits for the next run of its session.
    """
    context.obj = Common.of(values).over(context.obj)
    if context.invoked_subcommand is None:
        context.invoke(listed)


@click.command()
@common()
def listed(options: Common) -> None:
    """List the agents."""
    from supervisor.console.commands.agents import show_agents

    show_agents(options.endpoint(), as_json=options.as_json)


@agents.command()
@click.argument(
    "name", required=False, help="The agent's name; default: all agents.", shell_complete=completions.agents
)
@click.option("--wait/--no-wait", default=True, help="Wait until the new hosts are ready.")
@click.option("--timeout", metavar="S", type=seconds, default=READY_S, help="How long to wait, in seconds.")
@common()
def reload(options: Common, name: str | None, wait: bool, timeout: float) -> int:
    """Load the code of one agent, or of all, again.

    New hosts replace the spare ones; they also read the agent's files of environment variables again. Active runs keep
    their hosts. A host that a session keeps is replaced at the session's next run. The configuration is not read again.
    The exit code is 1 if an agent cannot be loaded, and 4 if its host is not ready in time.
    """
    from supervisor.console.commands.agents import reload_agents

    return int(reload_agents(options.endpoint(), name, timeout if wait else 0.0, as_json=options.as_json))


@agents.command(name="try")
@click.argument("name", help="The agent's name.", shell_complete=completions.agents)
@click.argument("text", default="-", help="The message. Left out, or -: read standard input.")
@click.option(
    "--timeout",
    metavar="S",
    type=seconds,
    help="The run expires after this many seconds; waiting for a person does not count.",
)
@configuration
@common(json="Print one JSON document, with the result and the receipt, and nothing else.", options=verbose)
def trial(
    options: Common, name: str, text: str, timeout: float | None, config: str | None, assignments: Sequence[str]
) -> int:
    """Send one message to an agent; show its output and its receipt.

    This needs no daemon, and does not touch one that runs. The configuration is read as a daemon would read it. The
    agent runs as this user, in a temporary state directory, which is removed at the end. What the agent's process
    prints is shown on standard error. Ctrl-C stops the run, a second Ctrl-C kills it. The exit code says how the run
    ended.
    """
    from loguru import logger

    from supervisor.console.commands.trial import try_agent
    from supervisor.console.ending import exit_in_time
    from supervisor.daemon.settings import WrongSettings

    try:
        settings = options.source(config, assignments).load(serves=False)
    except WrongSettings as error:
        # A single problem is raised as it is, without the list around it.
        raise error.problems[0] if len(error.problems) == 1 else error from None
    if not options.verbose:
        # The output of the run says the same.
        logger.disable("supervisor.hosts")
    code = int(try_agent(settings, name, message_text(text), timeout=timeout, as_json=options.as_json))
    exit_in_time(code)
    return code
