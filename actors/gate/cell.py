"""Cells: each decides once whether a call, or a spawn, takes place.

Theory of operation. A cell moves ``granted -> started -> finished`` by the hand that executes, and
``granted -> void`` or ``started -> closed`` by the hand that fences. Each move is a compare-and-set under a lock that
covers nothing else. So between any two lines of either side exactly one of them has won, and both can read which (law
L2).
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Generic, TypeVar

R = TypeVar("R")


class CellState(StrEnum):
    """Where a cell is."""

    GRANTED = "granted"
    STARTED = "started"
    FINISHED = "finished"
    VOID = "void"
    CLOSED = "closed"


class Cell(Generic[R]):
    """The gate of one call or one spawn. Every method may be called from any thread."""

    __slots__ = ("_lock", "_result", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = CellState.GRANTED
        self._result: R | None = None

    def start(self) -> bool:
        """Move ``granted -> started``. False: a fence was first and the work must not begin."""
        with self._lock:
            if self._state is not CellState.GRANTED:
                return False
            self._state = CellState.STARTED
            return True

    def finish(self, result: R) -> bool:
        """Move ``started -> finished``. False: a fence was first and `result` is a dead letter."""
        with self._lock:
            if self._state is not CellState.STARTED:
                return False
            self._state = CellState.FINISHED
            self._result = result
            return True

    def close(self) -> tuple[CellState, R | None]:
        """Shut the cell and return what it is now: void, closed, or finished with its result."""
        with self._lock:
            if self._state is CellState.GRANTED:
                self._state = CellState.VOID
            elif self._state is CellState.STARTED:
                self._state = CellState.CLOSED
            return self._state, self._result

    @property
    def state(self) -> CellState:
        """The state at this moment."""
        with self._lock:
            return self._state
