"""Account: the credit of one run in a host.

Theory of operation. A frame that costs credit costs one event, and the bytes of its line; the host can count that as
exactly as the daemon. The credit is given back once the log has the frame, or the session has refused it.

A host that counts is notified of returned credit, and is failed if it exceeds its credit. One that does not count is
not read further until there is credit: the frames behind wait in order. After a cancel frames cost no credit, because
they are refused here; and a wait for credit ends with the cancel.

Everything but `_given` runs on the thread of all channels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from supervisor.hosts import frames

TELL_S: Final = 0.002
"""Credit returned within this time is reported together: a host that gets credit for one frame at a time is slow."""

SHARE: Final = 4
"""Once a quarter of the credit has been returned, it is reported at once."""

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore
    from supervisor.containment.reactor import Alarm
    from supervisor.hosts.around import Around, Terms
    from supervisor.hosts.peer import Peer


class Account:
    """The credit of one run. It also pauses the channel while a frame waits to be handled.

    Args:
        turn: the run's turn.
        terms: the limits of the credit.
        around: see there.
        peer: the host.
        counts: the host keeps account itself.
    """

    def __init__(self, turn: TurnCore, terms: Terms, around: Around, peer: Peer, *, counts: bool) -> None:
        self.counts = counts
        self._turn = turn
        self._around = around
        self._peer = peer
        self._events_max = terms.credit_events
        self._size_max = terms.credit_bytes
        self._open = True
        self._waits = False
        # A session gives credit back on its own thread.
        self._lock = threading.Lock()
        self._back_events = self._back_bytes = 0
        self._alarm: Alarm | None = None
        if counts:
            turn.credit.on_given = self._given

    def spend(self, size: int, now: Callable[[], None], later: Callable[[], None] | None = None) -> bool:
        """Take credit for a line of `size` bytes.

        Returns True if there was credit: `now` was called. Else `later` (by default `now`) is called once there is, or
        the run is cancelled; or the host is failed, because it ought to have known.
        """
        waiter = None if self._turn.token.cancelled else self._turn.credit.take(size)
        if waiter is None:
            now()
            return True
        if self.counts:
            self._turn.credit.give_up(size, waiter)
            self._around.broke_protocol("it said more than it has credit for")
            return False
        then = later or now
        self.hold()
        self._turn.pending.watch(waiter)
        waiter.add_done_callback(
            lambda _: self._around.post(lambda: self.go_on(lambda: self._granted(size, waiter, then)))
        )
        return False

    def _granted(self, size: int, waiter: Future[None], then: Callable[[], None]) -> None:
        if waiter.cancelled() or waiter.exception() is not None:
            # The run's cancel has ended the wait.
            self._turn.credit.give_up(size, waiter)
        then()

    def hold(self) -> None:
        """Pause the channel: a frame is handled later, by `go_on`."""
        self._waits = True
        self._peer.channel.pause()

    def go_on(self, handle: Callable[[], None]) -> None:
        """Handle the frame that the channel waits for. Those behind it follow, unless it has to wait again."""
        self._waits = False
        handle()
        if not self._waits:
            self._peer.channel.resume()

    def release(self) -> None:
        """Resume the channel after the run's cancel: the frames behind are refused, and need not wait."""
        if self._waits:
            self._waits = False
            self._peer.channel.resume()

    def give_back(self, size: int) -> None:
        """Give back the credit of a frame that had no effect."""
        if self.counts:
            self._given(1, min(size, self._size_max))

    def close(self) -> None:
        """End it with the run: the host gets no more credit."""
        self._open = False
        self._turn.credit.on_given = None

    def _given(self, events: int, size: int) -> None:
        """Report returned credit to the host, soon and together. Any thread."""
        with self._lock:
            first, much = not self._back_events, self._is_much()
            self._back_events += events
            self._back_bytes += size
            much = not much and self._is_much()
        if much:
            self._around.post(self._tell)
        elif first:
            self._around.post(self._tell_soon)

    def _is_much(self) -> bool:
        return self._back_events * SHARE >= self._events_max or self._back_bytes * SHARE >= self._size_max

    def _tell_soon(self) -> None:
        if self._alarm is None:
            self._alarm = self._around.later(TELL_S, self._tell)

    def _tell(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        with self._lock:
            events, size = self._back_events, self._back_bytes
            self._back_events = self._back_bytes = 0
        if not events:
            return
        if self._open and not self._turn.token.cancelled:
            given = frames.CreditGiven(fence=self._turn.address.fence, events=events, bytes=size)
            self._peer.notify("credit", given)
