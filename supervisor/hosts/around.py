"""Around: the functions that a host gives its run; Terms: the limits of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.containment.reactor import Alarm


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of a run. Times in seconds, sizes in bytes."""

    agent: str
    grace_s: float
    deadline_s: float | None
    call_deadline_s: float | None
    credit_events: int
    credit_bytes: int
    content_max_bytes: int


@dataclass(frozen=True, slots=True)
class Around:
    """The functions for a run. Any thread may call `post` and `elsewhere`; the others: the thread of all channels.

    post: runs a function soon on the thread of all channels; False: that has ended.
    elsewhere: runs a function soon on a thread that may be blocked.
    later: runs a function on the thread of all channels after so many seconds.
    broke_protocol: fails the host, and its run, for a breach of the protocol.
    over: called when the agent has ended, before the run's `finish`.
    """

    post: Callable[[Callable[[], None]], bool]
    elsewhere: Callable[[Callable[[], None]], None]
    later: Callable[[float, Callable[[], None]], Alarm]
    broke_protocol: Callable[[str], None]
    over: Callable[[], None]
