"""SimPublisher: keeps what subscribers of one world were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.model import Event


class SimPublisher:
    """`actors.ports.Publisher` that records.

    Args:
        durable_seq: the last seq of a session that is durable, to see that nothing is shown before it is.
        violations: where what must not happen is written down.
    """

    def __init__(self, durable_seq: Callable[[str], int], violations: list[str]) -> None:
        self._durable_seq = durable_seq
        self._violations = violations
        self.events: dict[str, list[Event]] = {}
        self.shown: list[Event] = []

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Record committed events."""
        known = self.events.setdefault(session, [])
        last = known[-1].seq if known else 0
        for event in events:
            if event.seq <= last:
                self._violations.append(f"event {event.seq} of {session} was published behind {last}")
            last = event.seq
        if last > self._durable_seq(session):
            self._violations.append(f"event {last} of {session} was published before it was durable")
        known.extend(events)

    def ephemeral(self, event: Event) -> None:
        """Record an event that is not stored."""
        self.shown.append(event)
