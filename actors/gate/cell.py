"""Cells: each decides once whether a call, or a spawn, takes place.

Theory of operation. The executing side moves a cell ``granted -> started -> finished``; the fencing side moves it
``granted -> void`` or ``started -> closed``. Each move is a compare-and-set under a lock that covers nothing else. So
exactly one side wins each move, and both can read which (law L2).

A cell may have a token. The cancel of that, or of one above it, is a fence that comes from elsewhere: a child run is
fenced by its parent's session, which does not have the cells of the child. So a cell starts under its token's lock.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from actors.gate.token import CancelToken

R = TypeVar("R")


class CellState(StrEnum):
    """The state of a cell."""

    GRANTED = "granted"
    STARTED = "started"
    FINISHED = "finished"
    VOID = "void"
    CLOSED = "closed"


class Cell(Generic[R]):
    """The gate of one call or one spawn. Every method may be called from any thread.

    Args:
        token: once it is cancelled the cell does not start; None: it has none.
    """

    __slots__ = ("_lock", "_result", "_state", "_token")

    def __init__(self, token: CancelToken | None = None) -> None:
        self._lock = threading.Lock()
        self._token = token
        self._state = CellState.GRANTED
        self._result: R | None = None

    def start(self) -> bool:
        """Move ``granted -> started``. Returns False if a fence came first; then the work must not begin."""
        return self._start() if self._token is None else self._token.begin(self._start)

    def _start(self) -> bool:
        with self._lock:
            if self._state is not CellState.GRANTED:
                return False
            self._state = CellState.STARTED
            return True

    def finish(self, result: R) -> bool:
        """Move ``started -> finished``. Returns False if a fence came first; then `result` is a dead letter."""
        with self._lock:
            if self._state is not CellState.STARTED:
                return False
            self._state = CellState.FINISHED
            self._result = result
            return True

    def void(self) -> bool:
        """Move ``granted -> void``. Returns True if the work does not begin; one that has begun goes on."""
        with self._lock:
            if self._state is CellState.GRANTED:
                self._state = CellState.VOID
            return self._state is CellState.VOID

    def close(self) -> tuple[CellState, R | None]:
        """Close the cell. Returns its state (void, closed or finished), and the result if it is finished."""
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
