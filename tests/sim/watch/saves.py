"""SaveLaws: what agents save is durable when they are told so, and is what later runs read (L6, L12)."""

from __future__ import annotations

from actors.model import JsonObject
from tests.sim.watch.seen import Seen


class SaveLaws:
    """What agents save, and read as the state of their session."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def reads_state(self, session: str, run_id: str, agent: str, state: JsonObject) -> None:
        """A run reads what the last saves of its agent say, of all that was durable as it started.

        Those that were rolled back do not count.
        """
        events = self._seen.disk.events(session)
        starts = [place for place, one in enumerate(events) if one.kind == "run.started" and one.run_id == run_id]
        before = events[: starts[0]] if starts else []
        undone = {one.data["run_id"] for one in before if one.kind == "message.retracted"}
        expected: JsonObject = {}
        for one in before:
            if one.kind == "session.state" and one.run_id not in undone and one.data["agent"] == agent:
                expected.update(one.data["changes"])
        expected = {key: value for key, value in expected.items() if value is not None}
        if state != expected:
            self._seen.break_(f"{run_id} reads {state}, and {expected} was saved (L6)")

    def has_saved(self, session: str, run_id: str, changes: JsonObject) -> None:
        """An agent is told that something was saved: that is durable (law L12)."""
        saves = [
            one.data["changes"]
            for one in self._seen.disk.events(session)
            if one.kind == "session.state" and one.run_id == run_id
        ]
        if saves[-1:] != [changes]:
            self._seen.break_(f"{run_id} is told that {changes} is saved before that is durable (L12)")
