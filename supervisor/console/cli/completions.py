"""What the shell offers after Tab: the names of sessions, and the ids of runs.

If anything goes wrong, nothing is offered and nothing printed: the user is in the middle of a command line.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from supervisor.console.client.records import Records

OFFERED_MAX: Final = 100
PATIENCE_S: Final = 1.0
"""How long a daemon may take to answer, in seconds: the shell waits for it."""


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


def _records(context: click.Context) -> AbstractContextManager[Records]:
    from supervisor.config import default_state_dir
    from supervisor.console.client.endpoint import Place
    from supervisor.console.client.source import open_records

    chosen: dict[str, Any] = {}
    at: click.Context | None = context
    while at is not None:
        chosen = {**at.params, **{key: value for key, value in chosen.items() if value is not None}}
        at = at.parent
    state_dir, socket = chosen.get("state_dir"), chosen.get("socket")
    place = Place(
        Path(state_dir).expanduser() if state_dir else default_state_dir(),
        Path(socket).expanduser() if socket else None,
    )
    return open_records(place, PATIENCE_S)
