"""The two lanes of a mailbox, and the base of commands, reports and timers.

`urgent` messages (requests from outside, commands, commits, timers) are handled before all ordinary ones (the reports
of children and of ports, in the order in which they were sent).
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class Command(Struct, frozen=True):
    """Sent by a parent to a child; takes the urgent lane."""

    urgent: ClassVar[bool] = True


class Report(Struct, frozen=True):
    """Sent by a child to its parent; takes the ordinary lane."""

    urgent: ClassVar[bool] = False


class TimerFired(Struct, frozen=True):
    """A requested time has come."""

    urgent: ClassVar[bool] = True
