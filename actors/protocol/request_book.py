"""The book of requests: the same id twice has one effect and the same answer (law L10).

A request that the book still has is found by its id alone. Of those that it has forgotten it knows a limit: all of them
were made before that time, by the wall clock. The clock may be set back, by years; then the limit lies ahead of it, and
no request of now is measured by it, or nothing new would be taken until the clock has caught up.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from actors.errors import RequestReused, RequestTooOld
from actors.ids import request_time
from actors.ports import RequestRow
from actors.requests import OutsideRequest, Reply, Stop, digest

FORGOTTEN_KEPT: Final = 100
"""Ids that a deleted session still knows, without their answers: the clock may be set back when they come again."""

SKEW_S: Final = 60.0
"""How far a sender's clock may be ahead of a clock that was set back, in seconds."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reply).decode


class RequestBook:
    """What a session has answered, oldest first; bounded by number and by age.

    Args:
        session: whose book it is.
        kept: how many ids are remembered.
        kept_s: for how many seconds an id is remembered.
    """

    def __init__(self, session: str, kept: int, kept_s: float) -> None:
        self._session = session
        self._kept = kept
        self._kept_s = kept_s
        self._rows: OrderedDict[str, RequestRow] = OrderedDict()
        self._forgotten_to = 0.0
        # Of each deletion that is not known to be stored, the ids whose answers it has forgotten.
        self._in_doubt: deque[frozenset[str]] = deque()

    @property
    def forgotten_to(self) -> float:
        """An id made up to then (seconds since the epoch, UTC) may be one whose answer was forgotten."""
        return self._forgotten_to

    def restore(self, rows: Iterable[RequestRow], forgotten_to: float) -> None:
        """Take up what the store holds, oldest first, and up to when the book had forgotten."""
        self._forgotten_to = forgotten_to
        for row in rows:
            self._rows[row.request_id] = row

    def forget(self, at: float, *, repeats: bool) -> list[RequestRow]:
        """Forget all answers: what was made before `at` (epoch seconds, UTC), or was answered, is too old from now on.

        An id may tell milliseconds only: what is made in the one of `at` is new, unless it is no later than what was
        answered. With `repeats` the newest ids are kept, without their answers; their rows are returned.
        """
        rows = list(self._rows.values())
        self._in_doubt.append(frozenset(row.request_id for row in rows if row.answer))
        made = [self._made_at(row, at) for row in rows]
        self._forget_to(max([math.floor(at * 1000) / 1000 - 0.0005, *made]), at)
        blank = [msgspec.structs.replace(row, digest=b"", answer=b"") for row in rows[-FORGOTTEN_KEPT:] if repeats]
        self._rows = OrderedDict((row.request_id, row) for row in blank)
        return blank

    def forgotten(self) -> None:
        """The deletion that forgot first is stored: the answers that it forgot do not come back."""
        self._in_doubt.popleft()

    def in_doubt(self, request_id: str) -> bool:
        """True if a deletion forgot the answer to this id, and may not be stored: then that answer still stands."""
        return any(request_id in forgotten for forgotten in self._in_doubt)

    def known(self, request: OutsideRequest, at: float) -> Reply | None:
        """Return the answer that `request` had, or None if it is new.

        Raises:
            RequestReused: the id came before with other content.
            RequestTooOld: the id is older than what the book remembers, so it may have come before. A Stop is not
                refused for that: to stop once more does less harm than not to stop.
        """
        row = self._rows.get(request.id)
        if row is not None and row.answer:
            if row.digest != digest(request):
                raise request_reused(request)
            answer: Reply = _decode(row.answer)
            return answer
        if not isinstance(request, Stop) and (row is not None or self._too_old(request.id, at)):
            raise RequestTooOld(
                "this request id is older than the answers that are kept",
                expected=f"an id made in the last {self._kept_s / 86_400:g} days and {self._kept} requests",
                got=request.id,
                remedy="look at the thread whether it was handled; if not, construct it anew",
            )
        return None

    def _too_old(self, request_id: str, at: float) -> bool:
        made_at = request_time(request_id)
        if made_at is None:
            return False
        set_back = self._forgotten_to > at
        return made_at < at - self._kept_s or (
            made_at <= self._forgotten_to and not (set_back and made_at <= at + SKEW_S)
        )

    @staticmethod
    def _made_at(row: RequestRow, at: float) -> float:
        """The latest time at which it can have been made: a clock that was ahead makes no fresh request too old."""
        return min(request_time(row.request_id) or 0.0, row.at, at)

    def _forget_to(self, made_at: float, at: float) -> None:
        self._forgotten_to = made_at if self._forgotten_to > at else max(self._forgotten_to, made_at)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget what was answered and could not be stored: it is new if it comes again."""
        for request_id in request_ids:
            self._rows.pop(request_id, None)

    def answered(self, request: OutsideRequest, answer: Reply, at: float) -> RequestRow:
        """Remember an answer and return its row, to be written with the effect in one batch."""
        row = RequestRow(self._session, request.id, digest(request), _encode(answer), at)
        self._rows[request.id] = row
        while self._rows:
            oldest = next(iter(self._rows.values()))
            if len(self._rows) <= self._kept and oldest.at >= at - self._kept_s:
                break
            self._rows.popitem(last=False)
            self._forget_to(self._made_at(oldest, at), at)
        return row


def request_reused(request: OutsideRequest) -> RequestReused:
    """The refusal of a request whose id is another's."""
    return RequestReused(
        "this request id came before with other content",
        expected="the same object for a retry, a fresh id for a new request",
        got=f"{type(request).__name__} {request.id}",
        remedy="construct a new request; it makes its own id",
    )
