"""Schemas: what the types of a tool's parameters accept, as JSON schema and as conversion."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import Invalid
from .plain import as_json


class Secret:
    """Marks a tool's parameter: ``api_key: Annotated[str, Secret]``. Only the tool sees its values."""


_NAMED = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def bare(hint: Any) -> Any:
    """Return a type without what is annotated."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def is_secret(hint: Any, passed: tuple[int, ...] = ()) -> bool:
    """Return True if a mark is anywhere in a type: before Python 3.11 a default of None puts an Optional around it."""
    if id(hint) in passed:
        return False
    if getattr(hint, "__name__", type(hint).__name__) == Secret.__name__:
        return True
    fields = typing.get_type_hints(hint, include_extras=True).values() if dataclasses.is_dataclass(hint) else ()
    parts = (*typing.get_args(hint), *_extras(hint), *fields)
    return any(is_secret(part, (*passed, id(hint))) for part in parts)


def _extras(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises TypeError if it has none."""
    described = next((extra for extra in _extras(hint) if isinstance(extra, str)), None)
    if described is not None:
        return {**schema_of(bare(hint)), "description": described}
    hint = bare(hint)
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Any:
        return {}
    if hint is None or hint is type(None):
        return {"type": "null"}
    if origin in _UNIONS:
        return {"anyOf": [schema_of(one) for one in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and inner[1:] == (...,)):
        return {"type": "array", "items": schema_of(inner[0])} if inner else {"type": "array"}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])} if inner else {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return {"enum": [as_json(member.value) for member in origin]}
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        hints = typing.get_type_hints(origin, include_extras=True)
        needed = [field.name for field in dataclasses.fields(origin) if _needed(field)]
        inside = {field.name: schema_of(hints[field.name]) for field in dataclasses.fields(origin)}
        return {"type": "object", "properties": inside, "required": needed}
    if origin in _NAMED:
        return {"type": _NAMED[origin]}
    raise TypeError(f"no schema for {hint!r}")


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def converted(hint: Any, value: Any) -> Any:
    """Convert JSON to a type that `schema_of` describes. Raises TypeError or ValueError."""
    hint = bare(hint)
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _UNIONS:
        for one in inner:
            with contextlib.suppress(TypeError, ValueError):
                return converted(one, value)
        return _fits(value, False, " or ".join(getattr(one, "__name__", str(one)) for one in inner))
    if origin is typing.Literal:
        return _fits(value, value in inner, f"one of {inner}")
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(value)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        _fits(value, isinstance(value, dict), "an object")
        hints = typing.get_type_hints(origin, include_extras=True)
        unknown = sorted(set(value) - {field.name for field in dataclasses.fields(origin)})
        _fits(unknown, not unknown, "no further fields")
        return origin(**{name: converted(hints[name], one) for name, one in value.items()})
    if origin in (list, tuple, set, frozenset, Sequence):
        _fits(value, isinstance(value, list), "an array")
        made = [converted(inner[0] if inner else Any, one) for one in value]
        return made if origin in (list, Sequence) else origin(made)
    if origin in (dict, Mapping):
        _fits(value, isinstance(value, dict), "an object")
        return {key: converted(inner[1] if inner else Any, one) for key, one in value.items()}
    return _plainly(origin, value)


def _plainly(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if kind is None or kind is type(None):
        return _fits(value, value is None, "null")
    if kind is float:
        _fits(value, isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
        return float(value)
    return _fits(value, type(value) is kind, _NAMED.get(kind, str(kind)))


def _fits(value: Any, fits: bool, expected: str) -> Any:
    if not fits:
        raise ValueError(f"expected {expected}, got {value!r:.80}")
    return value


def seconds(value: Any) -> float | None:
    """Return a deadline as a number of seconds; None: it has none. Raises Invalid."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value < math.inf:
        raise Invalid("a deadline is a number of seconds", expected="at least 0.001", got=repr(value))
    return float(value)
