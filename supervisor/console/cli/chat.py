"""`chat`, which is also what `countermand` does without a command."""

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
    """Send lines as messages and show what comes of them.

    On a terminal a line takes over from what runs; Ctrl-C stops it, Ctrl-D leaves. From a pipe each line is a message,
    in order, each waited for. Attaches to the daemon that runs; where none does it brings a supervisor of its own, with
    the configuration that a daemon would have.
    """
    from supervisor.console.chat.chat import chat as run_chat
    from supervisor.console.ending import exit_in_time

    endpoint, own = _host(options, config, assignments)
    code = int(run_chat(own, DEFAULT_SESSION if named is None else named, endpoint, agent=options.agent))
    exit_in_time(code)
    return code


def _host(options: Common, config: str | None, assignments: Sequence[str]) -> tuple[Endpoint, Config | None]:
    """Where a chat looks for a daemon, and the configuration of its own supervisor; None where a daemon runs.

    Raises:
        CountermandError: the configuration is wrong, or is given to a daemon that has its own.
    """
    from actors.errors import Invalid
    from supervisor.console.client.endpoint import Endpoint
    from supervisor.daemon.settings import WrongSettings

    endpoint = options.endpoint()
    if endpoint.named is None and not endpoint.is_listening():
        try:
            own = options.source(config, assignments).load(serves=False).config
        except WrongSettings as error:
            # A single problem is refused as what it is.
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
