"""The parts that all routes share: the service, the caller, strict bodies, and the refusals in the document."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import PathParameter, QueryParameter

from actors.decoding import decoder
from supervisor.http.access import WHO
from supervisor.http.refusals import check_named_once
from supervisor.http.service import ApiService
from supervisor.wire import Refused

_WHY: Final = {
    400: "The request is invalid.",
    401: "No token, or an unknown one (loopback only).",
    403: "A process of another user (Unix socket only).",
    404: "There is no such session, run, message, receipt or agent.",
    408: "The request did not arrive in time.",
    409: "It conflicts with the state: an active run, a reused id, a receipt that is not filed yet. See `code`.",
    413: "The body, or the message in it, is too large.",
    415: "The body is not declared as JSON.",
    421: "The Host header names another host (loopback only).",
    423: "The session is quarantined: it accepts a stop and nothing else.",
    429: "The session's queue is full.",
    431: "The request line and the headers are too large.",
    503: "The store accepts no writes, the agent could not be loaded, the daemon is ending, or a limit is reached.",
    504: "The session did not answer in time.",
}


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """Return how a route's refusals are described: those of the middleware, and those given."""
    chosen = sorted({400, 401, 403, 408, 415, 421, 431, 503, *statuses})
    return {
        status: ResponseSpec(data_container=Refused, description=_WHY[status], generate_examples=False)
        for status in chosen
    }


READ: Final = refusals(404)
WRITE: Final = refusals(404, 409, 413, 423, 429, 504)

SEQ_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

B = TypeVar("B", bound=msgspec.Struct)

TheService = NamedDependency[ApiService]
SessionName = Annotated[
    str,
    PathParameter(
        description="The session's name, 1 to 128 printable characters, percent-encoded.",
        schema_extra={"format": "session-name", "minLength": 1, "maxLength": 128},
    ),
]
RunId = Annotated[str, PathParameter(description="The id of a run.", schema_extra={"minLength": 1})]
Seq = Annotated[
    int, QueryParameter(ge=0, le=SEQ_MAX, description="The seq of the last event that you have; 0 for all.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=1_000, description="Limit on the entries; an answer may have fewer.")]
Offset = Annotated[int, QueryParameter(ge=0, le=2**31, description="The index of the first message to return.")]
WaitS = Annotated[float, QueryParameter(ge=0, le=86_400, description="Seconds to wait; bounded by the daemon.")]


def who(request: Request[Any, Any, Any]) -> str:
    """Return the caller of a request, as provenances name it."""
    name: str = request.scope["state"][WHO]
    return name


async def exact(request: Request[Any, Any, Any], data: B) -> B:
    """Return the body decoded strictly, as the type of `data`: Litestar accepts ``0`` for false and ``"5"`` for 5.

    Raises:
        msgspec.ValidationError: a field does not have its type.
        Invalid: a field appears twice; readers of JSON differ in which one counts.
    """
    body = await request.body()
    read: B = decoder(type(data))(body)
    # No field of a body is an object, so there is only one level to check.
    json.loads(body, object_pairs_hook=_check_fields, parse_int=str, parse_float=str)
    return read


def _check_fields(pairs: list[tuple[str, Any]]) -> None:
    check_named_once("field of the body", (name for name, _ in pairs))
