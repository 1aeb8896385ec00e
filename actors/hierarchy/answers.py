"""Answers that need no store: the refusals of a session, and the answer to a Stop that is not on record yet."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from loguru import logger

from actors.errors import CountermandError, Invalid, StoreUnavailable
from actors.kernel.future import ReplyFuture
from actors.requests import UNKNOWN, OutsideRequest, Stop, Stopped

STOPS_MORE_MAX: Final = 10_000
"""How many Stops a session takes beyond the limit for other requests."""


def is_full(count: int, limit: int, request: OutsideRequest) -> bool:
    """True if `count` requests wait and one more is too many. For a Stop the limit is higher by `STOPS_MORE_MAX`."""
    return count >= (limit + STOPS_MORE_MAX if isinstance(request, Stop) else limit)


def refuse(session: str, request: OutsideRequest, reply: ReplyFuture[Any] | None, error: CountermandError) -> None:
    """Refuse a request. If it has no reply, the refusal is logged."""
    if reply is not None:
        reply.try_set_exception(error)
    else:
        name = type(request).__name__
        logger.info("session {}: {} {} was refused, and nobody waits for it: {}", session, name, request.id, error)


def unknown(stop: Stop) -> Stopped:
    """The answer to a Stop of a session that was not read: what runs in it is not known."""
    return Stopped(UNKNOWN, None, stop.id, None, durable=False)


def without_unstored(answer: Stopped, unstored: frozenset[str]) -> Stopped:
    """Leave out of an answer the messages whose acceptance is not on record: their senders may send them again.

    Args:
        answer: to a Stop.
        unstored: ids of the requests that are not on record.
    """
    withdrawn = tuple(message for message in answer.withdrawn if message.id not in unstored)
    return msgspec.structs.replace(answer, withdrawn=withdrawn)


def cannot_be_stored(request: OutsideRequest, why: str, superseded: str | None) -> Invalid:
    """The refusal of a request whose batch can never be stored. `superseded`: the run that it stopped all the same."""
    but = f"; run {superseded} was stopped all the same" if superseded else ""
    return Invalid(
        f"what the request brought about cannot be stored{but}",
        expected="text and numbers that the store can hold",
        got=f"{type(request).__name__} {request.id}: {why}",
        remedy="do not send it again as it is; the log of the supervisor names what was left out",
    )


def unavailable(why: str, request: OutsideRequest, superseded: str | None = None) -> StoreUnavailable:
    """The refusal of a request that may be sent again. `superseded`: the run that it stopped all the same."""
    return StoreUnavailable(
        why,
        superseded_run_id=superseded,
        expected="a store that takes writes",
        got=f"{type(request).__name__} {request.id}",
        remedy="send the same object again when the store is back: it has one effect",
    )
