"""What agents have saved in a session: the fold of its log into one small map for each agent.

Theory of operation. A session has one open run, and only an open run may save. So what a run changes comes after all
that the runs before it have changed, and a rollback goes back to the map from before the run that saved last. A run
that has saved something is not tried again.

A map is never changed in place, so one that was returned stays as it was.
"""

from __future__ import annotations

from typing import Final

from actors.events import EventData, EventKind, MessageRetractedData, SessionStateData, data_of
from actors.model import Event, JsonObject

KINDS: Final = frozenset({EventKind.SESSION_STATE, EventKind.MESSAGE_RETRACTED})
"""The kinds of events that concern it: a fold of the log may skip all others."""

_NOTHING: Final[JsonObject] = {}


def changed(saved: JsonObject, changes: JsonObject) -> JsonObject:
    """Return a map with changes made; None removes a key."""
    return {key: value for key, value in {**saved, **changes}.items() if value is not None}


class Saved:
    """What the agents of one session have saved. Not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, JsonObject] = {}
        # The run that saved last, and the maps from before it.
        self._run: str | None = None
        self._before: dict[str, JsonObject] = {}

    def of(self, agent: str) -> JsonObject:
        """Return what runs of an agent have saved; it may not be changed."""
        return self._of.get(agent, _NOTHING)

    def apply(self, event: Event) -> None:
        """Apply one event of the log."""
        if event.kind in KINDS:
            self.add(event, data_of(event))

    def add(self, event: Event, data: EventData) -> None:
        """Apply one event by its decoded data alone. `UnreadableData` changes nothing."""
        match data:
            case SessionStateData():
                if event.run_id != self._run:
                    self._run, self._before = event.run_id, dict(self._of)
                self._of[data.agent] = changed(self.of(data.agent), data.changes)
            case MessageRetractedData() if data.run_id == self._run:
                self._of, self._run = self._before, None
            case _:
                pass
