"""Quarantine: a session whose batches cannot be stored too often takes Stop and nothing else."""

from __future__ import annotations

from collections import deque
from typing import Final

from loguru import logger

UNFIT_MAX: Final = 5
"""How many batches within `UNFIT_WINDOW_S` may be unfit to be stored."""
UNFIT_WINDOW_S: Final = 60.0


class Quarantine:
    """Whether one session is quarantined. Used in the turns of its actor only.

    Args:
        session: the session's id.
        on: the supervisor starts it in quarantine.
    """

    def __init__(self, session: str, *, on: bool) -> None:
        self.on = on
        self._session = session
        self._unfit_at: deque[float] = deque()

    def count_unfit(self, now: float) -> None:
        """A batch can never be stored. `now`: monotonic seconds."""
        self._unfit_at.append(now)
        while self._unfit_at[0] < now - UNFIT_WINDOW_S:
            self._unfit_at.popleft()
        if len(self._unfit_at) > UNFIT_MAX and not self.on:
            logger.error("session {}: {} of its batches were unfit: quarantined", self._session, len(self._unfit_at))
            self.on = True

    def lift(self) -> None:
        """The session is deleted: nothing is left of it that could fail again."""
        self.on = False
        self._unfit_at.clear()
