"""Decode and convert what has a type, on any thread.

What msgspec learns about a type it keeps on the type, also before that is whole. Meanwhile it runs Python code (that of
an Enum, for one), so another thread may come to the same type, use what is there, and crash the process (msgspec 0.22).
So msgspec learns each type under one lock, and nothing else in this project has it learn one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

# Reentrant: the garbage collector may run a finalizer under it, and that may decode something.
_lock: Final = threading.RLock()
_decoders: Final[dict[Any, Callable[[bytes | str], Any]]] = {}


@overload
def decoder(kind: type[T]) -> Callable[[bytes | str], T]: ...
@overload
def decoder(kind: Any) -> Callable[[bytes | str], Any]: ...
def decoder(kind: Any) -> Callable[[bytes | str], Any]:
    """Return the function that decodes a value of a type from JSON; kept for as long as the process lives.

    It raises msgspec.MsgspecError, or what the type itself raises.
    """
    made = _decoders.get(kind)
    if made is None:
        with _lock:
            made = _decoders[kind] = msgspec.json.Decoder(kind).decode  # noqa: TID251
    return made


def learn(kind: Any) -> None:
    """Have msgspec learn a type, so that any thread may use it from now on. Raises TypeError if it cannot be used."""
    with _lock:
        msgspec.json.Decoder(kind)  # noqa: TID251


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises what msgspec raises where a schema cannot describe it."""
    learn(kind)
    return msgspec.json.schema(kind)  # noqa: TID251


@overload
def convert(value: Any, kind: type[T]) -> T: ...
@overload
def convert(value: Any, kind: Any) -> Any: ...
def convert(value: Any, kind: Any) -> Any:
    """Return a value, made of JSON's types, as one of a type.

    It raises msgspec.ValidationError, or what the type itself raises.
    """
    learn(kind)
    return msgspec.convert(value, kind)  # noqa: TID251
