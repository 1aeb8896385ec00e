"""The condition of the store, as the writer finds it. The thread with the pen changes it; any thread may read it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from loguru import logger

from actors.ports import Clock
from supervisor.states import StoreFault, StoreState
from supervisor.store import faults
from supervisor.store.health import JournalHealth, StoreHealth, error_text

LEFT_OUT_MAX: Final = 100
"""Names that `left_out` keeps."""
SLOW_S: Final = 1.0
NOT_FINISHED: Final = "not checked to the end: the file is large"


class Condition:
    """Whether writes succeed, the last error, and what was left out.

    Args:
        clock: for the times of errors.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failing = False
        """True from the first disk error until a write succeeds."""
        self.reopened = self.unfit = 0
        self.integrity: str | None = None
        """The result of the last check."""
        self._error: str | None = None
        self._kind: StoreFault | None = None
        self._failed_at: float | None = None
        self._left_out: deque[str] = deque(maxlen=LEFT_OUT_MAX)
        self._leaving_out = threading.Lock()

    def works(self) -> None:
        """Record that a write has succeeded."""
        if self.failing:
            logger.info("the store takes writes again")
        self.failing = False

    def failed(self, error: BaseException) -> None:
        """Record that a write has failed for another reason than its data."""
        self.failing = True
        self.note(error)

    def note(self, error: BaseException) -> None:
        """Record an error, also one that a retry may overcome."""
        self._error = error_text(error)
        self._kind = faults.kind(error)
        self._failed_at = self._clock.wall()
        if faults.is_malformed(error):
            self.integrity = self._error

    def leave_out(self, names: Iterable[str]) -> None:
        """Record the names of batches that could not be stored, and of rows that could not be read."""
        with self._leaving_out:
            for name in names:
                if name not in self._left_out:
                    self._left_out.append(name)

    def health(self, *, waiting: int, lag_s: float, closed: bool, journal: JournalHealth) -> StoreHealth:
        """The health of the store, from this, the queue's state and the journal's."""
        if closed:
            state = StoreState.CLOSED
        elif self.failing:
            state = StoreState.FAILING
        elif self.integrity not in (None, "ok", NOT_FINISHED):
            state = StoreState.DAMAGED
        else:
            state = StoreState.SLOW if lag_s > SLOW_S else StoreState.OK
        with self._leaving_out:
            left_out = tuple(self._left_out)
        return StoreHealth(
            state=state,
            error=self._error,
            kind=self._kind,
            failed_at=self._failed_at,
            reopened=self.reopened,
            unfit=self.unfit,
            waiting=waiting,
            lag_s=lag_s,
            integrity=self.integrity,
            left_out=left_out,
            journal=journal,
        )
