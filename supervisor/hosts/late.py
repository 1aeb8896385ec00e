"""LateFrames: frames that a host sent after its run had ended, counted for the receipt."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore
    from supervisor.containment.reactor import Alarm
    from supervisor.hosts.around import Around

TELL_S: Final = 0.05
"""How often the session is notified. So a flood after a Stop costs it one message in this time."""


class LateFrames:
    """The late frames of one run. Thread of all channels only."""

    def __init__(self, turn: TurnCore, around: Around) -> None:
        self._turn = turn
        self._around = around
        self._counts: Counter[str] = Counter()
        self._alarm: Alarm | None = None

    def note(self, kind: str) -> None:
        """Count one frame; `kind` as in the receipt's `refused`."""
        self._counts[kind] += 1
        if self._alarm is None:
            self._alarm = self._around.later(TELL_S, self.tell)

    def tell(self) -> None:
        """Report the counts since the last report to the session."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        counts, self._counts = self._counts, Counter()
        if counts:
            self._turn.say_refused(counts)
