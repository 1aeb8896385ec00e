"""The request book: a repeat of a request has no second effect, and gets the same answer (law L10).

A request on record is found by its id alone. Of the forgotten ones the book knows one time, by the wall clock: all of
them were made before it. If the clock is set back, that time is in the future. Then new requests are not compared with
it: else each of them would be refused until the clock has caught up.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from actors.decoding import decoder
from actors.errors import RequestReused, RequestTooOld
from actors.ids import request_time
from actors.ports import RequestRow
from actors.requests import OutsideRequest, Reply, Stop, digest

FORGOTTEN_KEPT: Final = 100
"""Number of ids, without answers, that a deletion keeps: repeats may arrive after the clock was set back."""

SKEW_S: Final = 60.0
"""How far a sender's clock may be ahead of ours after ours was set back, in seconds."""

FORGOTTEN_WITHIN_S: Final = 0.0015
"""By how much a deletion may be later than `RequestBook.forgotten_to` says, in seconds."""

_encode = msgspec.json.Encoder().encode
_decode = decoder(Reply)


class RequestBook:
    """The answered requests of a session, oldest first, limited by number and by age.

    Args:
        session: the session's name.
        kept: the largest number of ids that are kept.
        kept_s: how long an id is kept, in seconds.
    """

    def __init__(self, session: str, kept: int, kept_s: float) -> None:
        self._session = session
        self._kept = kept
        self._kept_s = kept_s
        self._rows: OrderedDict[str, RequestRow] = OrderedDict()
        self._forgotten_to = 0.0
        # For each deletion that may not be stored: the ids whose answers it has forgotten.
        self._in_doubt: deque[frozenset[str]] = deque()

    @property
    def forgotten_to(self) -> float:
        """The answer of an id that was made up to this time (seconds since the epoch, UTC) may be forgotten."""
        return self._forgotten_to

    def restore(self, rows: Iterable[RequestRow], forgotten_to: float) -> None:
        """Restore the store's rows, oldest first, and the time up to which answers may be forgotten."""
        self._forgotten_to = forgotten_to
        for row in rows:
            self._rows[row.request_id] = row

    def forget(self, at: float, *, repeats: bool) -> list[RequestRow]:
        """Forget all answers. From now on a request is too old if it was made before `at` (epoch seconds, UTC).

        So is each request that was answered. An id tells its time in milliseconds: one of the same millisecond as `at`
        is new, unless it is not later than the answered ones. With `repeats` the newest ids are kept, without their
        answers, and their rows are returned.
        """
        rows = list(self._rows.values())
        self._in_doubt.append(frozenset(row.request_id for row in rows if row.answer))
        made = [self._made_at(row, at) for row in rows]
        self._forget_to(max([math.floor(at * 1000) / 1000 - 0.0005, *made]), at)
        blank = [msgspec.structs.replace(row, digest=b"", answer=b"") for row in rows[-FORGOTTEN_KEPT:] if repeats]
        self._rows = OrderedDict((row.request_id, row) for row in blank)
        return blank

    def forgotten(self) -> None:
        """The earliest deletion in doubt is stored: the answers that it forgot are gone."""
        self._in_doubt.popleft()

    def in_doubt(self, request_id: str) -> bool:
        """Return True if a deletion that may not be stored forgot the answer to this id: it may still stand."""
        return any(request_id in forgotten for forgotten in self._in_doubt)

    def known(self, request: OutsideRequest, at: float) -> Reply | None:
        """Return the answer that `request` got before, or None if it is new.

        Raises:
            RequestReused: the id belongs to an earlier request with other content.
            RequestTooOld: the id is so old that its answer may be forgotten. A Stop is never refused for this: a second
                stop does less harm than no stop.
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
        """Return the latest time at which it can have been made.

        A sender's clock may be ahead. Its time alone would make new requests too old.
        """
        return min(request_time(row.request_id) or 0.0, row.at, at)

    def _forget_to(self, made_at: float, at: float) -> None:
        self._forgotten_to = made_at if self._forgotten_to > at else max(self._forgotten_to, made_at)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests whose answers could not be stored. A repeat of one is a new request."""
        for request_id in request_ids:
            self._rows.pop(request_id, None)

    def answered(self, request: OutsideRequest, answer: Reply, at: float) -> RequestRow:
        """Keep an answer, and return its row, which is written in one batch with the effect of the request."""
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
    """Return the refusal of a request whose id belongs to another request."""
    return RequestReused(
        "this request id came before with other content",
        expected="the same object for a retry, a fresh id for a new request",
        got=f"{type(request).__name__} {request.id}",
        remedy="construct a new request; it makes its own id",
    )
