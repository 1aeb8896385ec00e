"""What the shell offers behind Tab: the names of sessions, and the ids of runs.

Whatever goes wrong there is nothing to offer, and no word about it: a shell that completes is no place for one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import typer

OFFERED_MAX: Final = 100
PATIENCE_S: Final = 1.0
"""How long a daemon may take: a shell that completes waits for it, and says nothing."""


def sessions(context: typer.Context, incomplete: str) -> list[str]:
    """Offer names of sessions."""
    try:
        with _records(context) as records:
            names = [one.session for one in records.sessions() if one.session.startswith(incomplete)]
    except Exception:  # noqa: BLE001  # see above
        return []
    return names[:OFFERED_MAX]


def runs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer ids of runs, the newest first, each with what it is."""
    try:
        with _records(context) as records:
            found = records.runs_beginning(incomplete if incomplete.startswith("run_") else f"run_{incomplete}")
    except Exception:  # noqa: BLE001  # see above
        return []
    return [(run.run_id, f"{run.status} in {run.session}") for run in reversed(found)][:OFFERED_MAX]


def _records(context: Any) -> Any:
    from supervisor.config import default_state_dir
    from supervisor.console.client.endpoint import Place
    from supervisor.console.client.source import open_records

    chosen: dict[str, Any] = {}
    while context is not None:
        chosen = {**context.params, **{key: value for key, value in chosen.items() if value is not None}}
        context = context.parent
    state_dir, socket = chosen.get("state_dir"), chosen.get("socket")
    place = Place(
        Path(state_dir).expanduser() if state_dir else default_state_dir(),
        Path(socket).expanduser() if socket else None,
    )
    return open_records(place, PATIENCE_S)
