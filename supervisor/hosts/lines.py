"""Lines: one JSON-RPC 2.0 object each. The one place where they are encoded and taken apart.

`decoded` takes a line apart into a `Request`, a `Notification` or an `Answer`; what is inside stays JSON, for `frames`.

A half of a surrogate pair, which JSON can escape and UTF-8 cannot hold, becomes U+FFFD; models are streamed in pieces,
and some libraries cut such a pair in two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from actors.decoding import decoder
from actors.model import Json
from actors.plugin.pipes import Theirs
from actors.text import one_line, storable_json

LINE_MAX_BYTES: Final = 8 * 1024 * 1024
"""Limit on a line, without its newline. The daemon's `run` may be longer: it has the whole thread."""

ID_MAX: Final = 2**53 - 1
"""The largest whole number that every JSON reader can hold."""

EXCERPT_BYTES: Final = 200
"""How much of a line that is no frame is shown."""


class Code(IntEnum):
    """The code of an error: those of JSON-RPC, one of ACP, and our own."""

    PARSE = -32700
    INVALID_REQUEST = -32600
    NO_METHOD = -32601
    INVALID_PARAMS = -32602
    CANCELLED = -32800
    RAISED = -32000
    STALE = -32001
    NO_PROTOCOL = -32002
    REFUSED = -32003


class NotAFrame(Exception):  # it names what came
    """A line is no frame, or a frame does not fit its method; the text says why."""


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The answer to a request that failed."""

    code: Annotated[int, Meta(description="One of the codes in the text of this protocol.")]
    message: Annotated[str, Meta(description="For people.")] = ""
    data: Annotated[Json, Meta(description="For programs; see the code.")] = None


# ── Encoding ──────────────────────────────────────────────────────────────────────────────────────

_encode: Final = msgspec.json.Encoder().encode


def encoded(body: Mapping[str, object]) -> bytes:
    """Return a frame as a line, with its newline."""
    return _encode({"jsonrpc": "2.0", **body}) + b"\n"


def request(number: int, method: str, params: Struct | Raw) -> bytes:
    """Return the line of a request."""
    return encoded({"id": number, "method": method, "params": params})


def notification(method: str, params: Struct) -> bytes:
    """Return the line of a notification."""
    return encoded({"method": method, "params": params})


def answer(number: int, result: Struct) -> bytes:
    """Return the line of an answer."""
    return encoded({"id": number, "result": result})


def refusal(number: int | None, code: Code, message: str, data: Json = None) -> bytes:
    """Return the line of an answer that says what failed; `number` is None if it is not known."""
    return encoded({"id": number, "error": ErrorObject(int(code), message, data)})


# ── Decoding ──────────────────────────────────────────────────────────────────────────────────────


class Request(NamedTuple):
    """The other side asks; `size` is the length of the line in bytes. `given`: descriptors that came with it."""

    id: int
    method: str
    params: bytes
    size: int
    given: Theirs | None = None


class Notification(NamedTuple):
    """The other side reports; `size` is the length of the line in bytes.

    `mended`: a half of a surrogate pair in it was replaced.
    """

    method: str
    params: bytes
    size: int
    mended: bool = False


class Answer(NamedTuple):
    """The other side answers a request: with `result`, which is JSON, or with `error`."""

    id: int
    result: bytes
    error: ErrorObject | None


Frame: TypeAlias = Request | Notification | Answer


class _Envelope(Struct):
    jsonrpc: Literal["2.0"]
    id: Annotated[int, Meta(ge=1, le=ID_MAX)] | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw()
    result: Raw = Raw()
    error: ErrorObject | UnsetType | None = UNSET


_decode_envelope: Final = decoder(_Envelope)
FAULTS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What the decoder raises for lines that are no frames."""


def decoded(line: bytes) -> Frame:
    """Take a line apart. Raises NotAFrame."""
    envelope, mended = _envelope(line)
    number, method = envelope.id, envelope.method
    has_result, has_error = bool(envelope.result), envelope.error is not UNSET
    if method is not UNSET:
        if has_result or has_error:
            raise NotAFrame(f"it has a method and is an answer: {excerpt(line)}")
        params = bytes(envelope.params) or b"{}"
        if number is UNSET:
            return Notification(method, params, len(line), mended)
        if number is None:
            raise NotAFrame(f"the id of a request is null: {excerpt(line)}")
        return Request(number, method, params, len(line))
    if has_result == has_error:
        raise NotAFrame(f"it has no method, and not one of result and error: {excerpt(line)}")
    if number is UNSET or number is None:
        raise NotAFrame(f"it answers no request: {excerpt(line)}")
    if not has_error:
        return Answer(number, bytes(envelope.result), None)
    if not isinstance(envelope.error, ErrorObject):
        raise NotAFrame(f"its error is null: {excerpt(line)}")
    return Answer(number, b"", envelope.error)


def _envelope(line: bytes) -> tuple[_Envelope, bool]:
    """Return a line as an object, and whether it was mended for that."""
    try:
        return _decode_envelope(line), False
    except FAULTS as error:
        mended = _mended(line)
        if mended is None:
            raise NotAFrame(f"{described(error)}: {excerpt(line)}") from None
    return _envelope(mended)[0], True


def _mended(data: bytes) -> bytes | None:
    """Return JSON with each half of a surrogate pair replaced by U+FFFD; None if it has none, or is no JSON."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    try:
        # The decoder of the standard library accepts them.
        made = _encode(storable_json(json.loads(data)))
    except (ValueError, RecursionError):
        return None
    return made if made != data else None


def described(error: Exception) -> str:
    """Return what a decoder refused."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def excerpt(line: bytes) -> str:
    """Return the beginning of a line that is no frame, to be shown on one line."""
    return repr(one_line(line[:EXCERPT_BYTES].decode(errors="replace")))
