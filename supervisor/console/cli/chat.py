"""`chat`. `countermand` without a command runs it too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.console.cli.common import Common
from supervisor.console.cli.options import DEFAULT_SESSION, common, configuration, session_option

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.console.client.endpoint import Endpoint


@click.command()
@session_option
@configuration
@common(json=None)
def chat(options: Common, named: str | None, config: str | None, assignments: Sequence[str]) -> int:
    """Send each line as a message, and show the output of its run.

    On a terminal, a new line takes over from the active run; Ctrl-C stops the run, and Ctrl-D leaves. From a pipe, each
    line is a message, and is sent when the run before it has ended. The chat attaches to the daemon if one runs.
    Otherwise it starts a supervisor of its own, with the configuration that a daemon would have.
    """
    from supervisor.console.chat.chat import chat as run_chat
    from supervisor.console.ending import exit_in_time

    endpoint, own = _host(options, config, assignments)
    code = int(run_chat(own, DEFAULT_SESSION if named is None else named, endpoint, agent=options.agent))
    exit_in_time(code)
    return code


def _host(options: Common, config: str | None, assignments: Sequence[str]) -> tuple[Endpoint, Config | None]:
    """Return where the chat looks for a daemon, and the configuration of its own supervisor; None if a daemon runs.

    Raises:
        CountermandError: the configuration is wrong, or options set it although a daemon runs.
    """
    from actors.errors import Invalid
    from supervisor.console.client.endpoint import Endpoint
    from supervisor.daemon.settings import WrongSettings

    endpoint = options.endpoint()
    if endpoint.named is None and not endpoint.is_listening():
        try:
            own = options.source(config, assignments).load(serves=False).config
        except WrongSettings as error:
            # A single problem is raised as it is, without the list around it.
            raise error.problems[0] if len(error.problems) == 1 else error from None
        endpoint = Endpoint(Path(own.state_dir))
        if not endpoint.is_listening():
            return endpoint, own
    if config is not None or assignments:
        raise Invalid(
            "the daemon that runs has a configuration of its own",
            expected="no --config and no --set",
            got="--config" if config is not None else "--set",
            remedy="leave it out; or use another --state-dir, where no daemon runs",
        )
    return endpoint, None
