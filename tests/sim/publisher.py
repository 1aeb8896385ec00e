"""SimPublisher: keeps what subscribers of one world were given."""

from __future__ import annotations

from collections.abc import Sequence

from actors.model import Event
from tests.sim.watch import Watch


class SimPublisher:
    """`actors.ports.Publisher` that records.

    Args:
        watch: asked whether it may be shown.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.events: dict[str, list[Event]] = {}
        self.shown: list[Event] = []

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Record committed events."""
        known = self.events.setdefault(session, [])
        self._watch.answers.published(session, events, known[-1].seq if known else 0)
        known.extend(events)

    def ephemeral(self, event: Event) -> None:
        """Record an event that is not stored."""
        self._watch.answers.shown(event)
        self.shown.append(event)
