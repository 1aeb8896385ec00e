"""Secret arguments: only the tool that marks them receives their values.

    @tool(isolation="thread")
    def fetch(url: str, api_key: Annotated[str, Secret]) -> str: ...

They are removed from a call before it is requested. In messages, events, the store and the thread the call shows a mark
in their place. Until the tool is called, their values are in a `Withheld`, whose repr does not show them. A restart
loses them, and that does no harm: an interrupted call is not repeated.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, get_args, get_origin

from msgspec import Struct

from actors.model import Json, JsonObject

MARK: Final = "[secret]"
"""Shown in place of a secret."""

TEXT_MIN_CHARS: Final = 4
"""A shorter text is not searched for in a tool's result: it may be there by chance."""


class Secret:
    """Marks a tool's parameter: ``api_key: Annotated[str, Secret]``. A mark inside a type makes all of it secret."""


def _texts(value: Json) -> Iterator[str]:
    """Yield the texts, and the numbers as texts, in plain JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _spelled(text: str) -> tuple[str, ...]:
    """Return how a text is found in others: as it is, and as the escapes of Python and JSON have it."""
    # In a text with both kinds of quotes, Python escapes one.
    python = (repr(text)[1:-1], repr(f'"{text}')[2:-1])
    return text, *python, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


class Withheld:
    """The secret arguments of one call, by name. Its repr does not show them."""

    __slots__ = ("_texts", "_values")

    def __init__(self, values: Mapping[str, Json] | None = None) -> None:
        self._values = dict(values or {})
        # The longest first: one may contain another.
        texts = [text for text in _texts(self._values) if len(text) >= TEXT_MIN_CHARS]
        self._texts = sorted({spelled for text in texts for spelled in _spelled(text)}, key=len)[::-1]

    def __repr__(self) -> str:
        return "Withheld()"

    def restored(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments for the tool, with the secret values."""
        return {**arguments, **self._values}

    def hidden_in(self, value: Json) -> Json:
        """Return plain JSON, such as the text of an error, with each secret in it replaced by the mark."""
        if not self._texts:
            return value
        if isinstance(value, str):
            for text in self._texts:
                value = value.replace(text, MARK)
            return value
        if isinstance(value, list):
            return [self.hidden_in(one) for one in value]
        if isinstance(value, dict):
            return {str(self.hidden_in(name)): self.hidden_in(one) for name, one in value.items()}
        return MARK if not isinstance(value, bool) and str(value) in self._texts else value


NOTHING: Final = Withheld()


def withheld(arguments: JsonObject, secret: frozenset[str], known: frozenset[str]) -> tuple[JsonObject, Withheld]:
    """Separate the secret arguments of a call.

    Args:
        arguments: the arguments of the call.
        secret: names of the secret parameters.
        known: names of all parameters. In a tool with secrets an unknown name counts as secret: it may be misspelt.

    Returns:
        The arguments to show, and the secret ones.
    """
    if not secret:
        return arguments, NOTHING
    taken = {name: value for name, value in arguments.items() if name in secret or name not in known}
    return {name: MARK if name in taken else value for name, value in arguments.items()}, Withheld(taken)


def is_secret(hint: object) -> bool:
    """Return True if an annotation has `Secret` in its metadata, in a part, or in a field of a type that it names."""
    return _is_secret(hint, set())


def _is_secret(hint: object, passed: set[int]) -> bool:
    if hint is Secret or isinstance(hint, Secret):
        return True
    if id(hint) in passed:
        return False
    passed.add(id(hint))
    metadata = hint.__metadata__ if get_origin(hint) is Annotated else ()  # type: ignore[attr-defined]  # one has it
    return any(_is_secret(part, passed) for part in (*metadata, *get_args(hint), *_fields(hint)))


def _fields(hint: object) -> tuple[object, ...]:
    """Return the annotations of a type's fields; empty if it has none."""
    if not isinstance(hint, type):
        return ()
    named = dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or hasattr(hint, "_fields")
    has_fields = named or issubclass(hint, Struct)
    return tuple(typing.get_type_hints(hint, include_extras=True).values()) if has_fields else ()
