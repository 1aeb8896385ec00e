"""Errors as answers: ``{"error": {"code", "message", "expected", "got", "remedy", …}}``, with a status by the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException
from loguru import logger
from msgspec import Struct, field
from pykka import ActorDeadError, Timeout

from actors.errors import CountermandError, Invalid, TooLarge
from actors.text import storable
from supervisor.wire import Refusal, Refused

STATUSES: Final = {
    "invalid": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "run_active": 409,
    "request_reused": 409,
    "request_too_old": 409,
    "receipt_pending": 409,
    "ahead_of_log": 409,
    "already_input": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "quarantined": 423,
    "queue_full": 429,
    "headers_too_large": 431,
    "internal": 500,
    "store_unavailable": 503,
    "agent_unavailable": 503,
    "shutting_down": 503,
    "busy": 503,
    "no_answer": 504,
}
"""The status of each code; 500 for any other."""

RETRY_AFTER_S: Final = {"queue_full": 1, "receipt_pending": 1, "store_unavailable": 2, "shutting_down": 5, "busy": 2}


NAMED_MAX: Final = 5
"""Limit on the names that an error lists."""


class Busy(CountermandError):
    """A limit of the API is reached."""

    code = "busy"


class Failure(Struct, frozen=True):
    """An error as an answer, ready to be sent."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def failure(error: BaseException) -> Failure:
    """Return the answer to an error. An error that is not a refusal is a defect: its details are only logged."""
    match error:
        case CountermandError():
            refusal = Refusal(
                error.code,
                error.message,
                error.expected,
                error.got,
                error.remedy,
                getattr(error, "run_id", None),
                getattr(error, "superseded_run_id", None),
            )
        case HTTPException():
            refusal = _of_http(error)
        case msgspec.MsgspecError():
            refusal = Refusal("invalid", "invalid body", got=str(error), remedy="see /v1/openapi.json")
        case UnicodeDecodeError() | RecursionError():
            # Our code raises neither: the body is not UTF-8, or nested too deeply.
            refusal = Refusal("invalid", "the body cannot be read", "JSON in UTF-8", type(error).__name__, "correct it")
        case Timeout():
            refusal = Refusal(
                "no_answer",
                "the session did not answer in time",
                "an answer within the time that a request may take",
                str(error),
                "send it again under the same id to get the answer",
            )
        case ActorDeadError():
            refusal = Refusal(
                "shutting_down",
                "the supervisor has ended",
                remedy="send it again, under the same id, after the restart",
            )
        case _:
            logger.opt(exception=error).error("a request failed")
            refusal = Refusal("internal", "this is a defect of the daemon", remedy="report it; its log has the details")
    return packed(refusal)


def packed(refusal: Refusal) -> Failure:
    """Return a refusal with its status and headers."""
    headers: dict[str, str] = {}
    if refusal.code in RETRY_AFTER_S:
        headers["retry-after"] = str(RETRY_AFTER_S[refusal.code])
    if refusal.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if refusal.code == "too_large":
        # The rest of the body is not worth reading.
        headers["connection"] = "close"
    return Failure(STATUSES.get(refusal.code, 500), msgspec.json.encode(Refused(refusal)), headers)


def check_named_once(what: str, names: Iterable[str]) -> None:
    """Raise Invalid if a name appears twice, since readers differ in which one counts. `what`: what has the names."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise Invalid(
            f"a {what} is named twice",
            expected="each once",
            got=", ".join(storable(f"{name:.80}") for name in twice[:NAMED_MAX]),
            remedy="leave out all but one of them",
        )


def respond(error: Exception, body_max: int) -> Response[bytes]:
    """Answer an error that a route raised; `body_max` is the limit on a body, in bytes."""
    if isinstance(error, HTTPException) and error.status_code == 413:
        error = TooLarge("the body is too large", expected=f"a body of at most {body_max} bytes", remedy="send less")
    made = failure(error)
    headers = {**made.headers}
    if isinstance(error, HTTPException) and error.status_code == 405:
        headers.update({name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"})
    return Response(made.body, status_code=made.status, headers=headers, media_type="application/json")


async def answer(error: CountermandError, send: Any) -> None:
    """Answer a request that reached no route."""
    made = failure(error)
    headers = {"content-type": "application/json", "content-length": str(len(made.body)), **made.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": made.status, "headers": raw})
    await send({"type": "http.response.body", "body": made.body, "more_body": False})


def as_bytes(made: Failure, reason: str) -> bytes:
    """Return an answer in the wire format, for a connection that is closed after it."""
    head = [
        f"HTTP/1.1 {made.status} {reason}",
        "content-type: application/json",
        f"content-length: {len(made.body)}",
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + made.body


def _of_http(error: HTTPException) -> Refusal:
    words = {
        404: Refusal("not_found", "there is nothing at this path", remedy="see /v1/openapi.json for what there is"),
        405: Refusal("method_not_allowed", "this path does not take this method", remedy="see /v1/openapi.json"),
    }
    found = words.get(error.status_code)
    if found is not None:
        return found
    if error.status_code >= 500 and "disconnected" in error.detail:
        return Refusal("invalid", "the body is incomplete")
    if error.status_code >= 500:
        logger.opt(exception=error).error("a request failed")
        return Refusal("internal", "this is a defect of the daemon", remedy="report it; its log has the details")
    return Refusal(
        "invalid",
        "invalid request",
        expected="a request as in the OpenAPI document",
        got=_got(error),
        remedy="see /v1/openapi.json",
    )


def _got(error: HTTPException) -> str:
    extra = error.extra if isinstance(error.extra, list) else []
    found = [f"{one.get('key', '')}: {one.get('message', '')}" for one in extra if isinstance(one, dict)]
    return "; ".join(found)[:500] or error.detail[:500]
