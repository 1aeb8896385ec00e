"""Completions for the shell: the names of sessions and agents, and the ids of runs.

If anything fails, nothing is offered and nothing is printed: the user is in the middle of a command line.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from supervisor.console.cli.common import Common

if TYPE_CHECKING:
    from supervisor.console.client.records import Records

OFFERED_MAX: Final = 100
PATIENCE_S: Final = 1.0
"""How long to wait for the daemon, in seconds. The shell waits as long."""


def sessions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Offer names of sessions."""
    try:
        with _records(context) as records:
            names = [one.session for one in records.sessions() if one.session.startswith(incomplete)]
    except Exception:  # noqa: BLE001  # see above
        return []
    return names[:OFFERED_MAX]


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Offer ids of runs, the newest first, each with its status and its session."""
    try:
        with _records(context) as records:
            found = records.runs_beginning(incomplete if incomplete.startswith("run_") else f"run_{incomplete}")
    except Exception:  # noqa: BLE001  # see above
        return []
    return [CompletionItem(run.run_id, help=f"{run.status} in {run.session}") for run in reversed(found)][:OFFERED_MAX]


def agents(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Offer names of the agents of the daemon."""
    try:
        from supervisor.console.client.api import Api
        from supervisor.wire import AgentPage

        api = Api(_chosen(context).endpoint(), answer_s=PATIENCE_S, on_wait=lambda _: None)
        names = [one.name for one in api.get("/v1/agents", AgentPage).agents if one.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001  # see above
        return []
    return names[:OFFERED_MAX]


def _records(context: click.Context) -> AbstractContextManager[Records]:
    from supervisor.console.client.source import open_records

    return open_records(_chosen(context).endpoint(), PATIENCE_S)


def _chosen(context: click.Context) -> Common:
    chosen = Common.of(context.params)
    while context.parent is not None:
        context = context.parent
        chosen = chosen.over(Common.of(context.params))
    return chosen
