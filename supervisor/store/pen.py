"""The queue of the writer's work, and the pen: the thread that holds it writes.

One lock guards the queue, the pen, and which thread gives a turn. State that only the pen's holder uses needs no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from supervisor.store.condition import Condition
from supervisor.store.work import Attempt, Commit, Load, Work

GROUP_MAX: Final = 256
"""Batches in one transaction: enough to share the cost of a flush, few enough that none waits long."""
ATTEMPT_EVERY_S: Final = 1.0


class QueueState(NamedTuple):
    """The queue at one moment. `since`: when the oldest work that is waiting or under way was queued (monotonic)."""

    waiting: int
    since: float | None
    shut_down: bool


class PenQueue:
    """The waiting work, and the pen. Every method may be called from any thread.

    Args:
        condition: while it says that writes fail, an idle queue gives an `Attempt` every `ATTEMPT_EVERY_S`.
    """

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self._work: deque[Work] = deque()
        self._wake = threading.Condition()
        self._closing = False
        # The idents of two threads: the one that writes now, and the one that gives a turn.
        self._pen: int | None = None
        self._turns_on: int | None = None
        self._busy_since: float | None = None
        self._shut_down = threading.Event()

    def __len__(self) -> int:
        return len(self._work)

    def put(self, work: Work) -> bool:
        """Queue some work; False: the queue is closing."""
        with self._wake:
            if self._closing:
                return False
            self._work.append(work)
            self._notify()
            return True

    def put_first(self, work: Work) -> bool:
        """Queue some work ahead of the rest; False: the queue is closing."""
        with self._wake:
            if self._closing:
                return False
            self._work.appendleft(work)
            self._notify()
            return True

    def next(self) -> list[Work]:
        """Wait for work and for the pen. Commits are taken as a group, anything else alone.

        When the queue is closing and all work is done, it returns an empty list: first to one thread, which keeps the
        pen, since it has to close the file; then, once `end` was called, to the other.
        """
        me = threading.get_ident()
        with self._wake:
            self._lay_down_pen()
            if self._turns_on == me:
                self._turns_on = None
            while self._pen is not None or not self._work:
                if self._shut_down.is_set():
                    return []
                if self._closing and self._pen is None:
                    self._pen = me
                    return []
                tries = self._condition.failing and self._pen is None
                timed_out = not self._wake.wait(ATTEMPT_EVERY_S if tries else None)
                if timed_out and self._pen is None and not self._work:
                    self._pen = me
                    return [Attempt()]
            self._pen = me
            group: list[Work] = []
            first = self._work[0] if self._work else None
            if isinstance(first, Commit | Load):
                self._busy_since = first.since
            while self._work and len(group) < GROUP_MAX:
                if group and not isinstance(self._work[0], Commit):
                    break
                group.append(self._work.popleft())
                if not isinstance(group[-1], Commit):
                    break
            return group

    # ── Turns ─────────────────────────────────────────────────────────────────────────────────────

    def claim_turns(self) -> bool:
        """Have the calling thread give a turn itself: True if nothing waits, and the other thread gives none."""
        with self._wake:
            claimed = not self._work and self._turns_on is None
            if claimed:
                self._turns_on = threading.get_ident()
            return claimed

    def hand_over_pen(self) -> None:
        """Give up the pen before the turn, and wake the other thread if there is work."""
        with self._wake:
            self._lay_down_pen()
            if self._work:
                self._wake.notify()

    # ── Closing ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Take no more work."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    @property
    def shut_down(self) -> bool:
        """True once `end` was called."""
        return self._shut_down.is_set()

    def end(self) -> None:
        """End the other thread too: everything is written, and the file is closed."""
        with self._wake:
            self._shut_down.set()
            self._wake.notify_all()

    def wait_for_end(self, timeout: float | None) -> bool:
        """Wait for `end`; False after `timeout` seconds."""
        return self._shut_down.wait(timeout)

    def state(self) -> QueueState:
        """The queue now."""
        with self._wake:
            first = self._work[0] if self._work else None
            since = self._busy_since
            if since is None and isinstance(first, Commit | Load):
                since = first.since
            return QueueState(len(self._work), since, self._shut_down.is_set())

    def _notify(self) -> None:
        """Wake a thread for new work. The pen's holder and the thread that gives a turn check the queue themselves."""
        if self._pen is None and self._turns_on != threading.get_ident():
            self._wake.notify()

    def _lay_down_pen(self) -> None:
        """Give up the pen: another thread may write."""
        if self._pen == threading.get_ident():
            self._pen = self._busy_since = None
