"""Arguments that a tool marks as secret: the tool is given them, and nobody else sees them.

    @tool(isolation="thread")
    def fetch(url: str, api_key: Annotated[str, Secret]) -> str: ...

They are taken out of a call before it is asked for. From there on, in messages, events, the store and the thread, the
call shows a mark in their place; what they were is in a `Withheld`, which shows nothing of itself, until the tool is
called. After a restart nobody has them, and nobody needs them: a call that was cut off is not made again.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, get_args, get_origin

from msgspec import Struct

from actors.model import Json, JsonObject

MARK: Final = "[secret]"
"""What is shown in place of a secret."""

TEXT_MIN_CHARS: Final = 4
"""A shorter text is not looked for in what a tool says: it is in there by chance."""


class Secret:
    """Marks a tool's parameter: ``api_key: Annotated[str, Secret]``. Also within a type, which is secret as a whole."""


def _texts(value: Json) -> Iterator[str]:
    """The texts, and the numbers as texts, in plain JSON."""
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


class Withheld:
    """Secret arguments of one call, by name. Its text says nothing of them."""

    __slots__ = ("_texts", "_values")

    def __init__(self, values: Mapping[str, Json] | None = None) -> None:
        self._values = dict(values or {})
        # The longest first: one may hold another.
        self._texts = sorted({text for text in _texts(self._values) if len(text) >= TEXT_MIN_CHARS}, key=len)[::-1]

    def __repr__(self) -> str:
        return "Withheld()"

    def restored(self, arguments: JsonObject) -> JsonObject:
        """Return arguments as the tool takes them, with what was withheld."""
        return {**arguments, **self._values}

    def hidden_in(self, value: Json) -> Json:
        """Return plain JSON, such as the text of an error, with the mark wherever it says a secret."""
        if not self._texts:
            return value
        if isinstance(value, str):
            for text in self._texts:
                value = value.replace(text, MARK).replace(repr(text)[1:-1], MARK)
            return value
        if isinstance(value, list):
            return [self.hidden_in(one) for one in value]
        if isinstance(value, dict):
            return {str(self.hidden_in(name)): self.hidden_in(one) for name, one in value.items()}
        return value


NOTHING: Final = Withheld()


def withheld(arguments: JsonObject, secret: frozenset[str], known: frozenset[str]) -> tuple[JsonObject, Withheld]:
    """Take the secret arguments out of a call.

    Args:
        arguments: of the call.
        secret: names of the parameters that are.
        known: names of all parameters. Of a tool that has secrets, what goes by another name may be one, misspelt.

    Returns:
        The arguments as they are shown, and what was taken out.
    """
    if not secret:
        return arguments, NOTHING
    taken = {name: value for name, value in arguments.items() if name in secret or name not in known}
    return {name: MARK if name in taken else value for name, value in arguments.items()}, Withheld(taken)


def is_secret(hint: object) -> bool:
    """True if an annotation holds `Secret`: in its metadata, in a part of it, or in a field of a type that it names."""
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
    """The annotations of a type's fields; of what has none, nothing."""
    if not isinstance(hint, type):
        return ()
    named = dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or hasattr(hint, "_fields")
    has_fields = named or issubclass(hint, Struct)
    return tuple(typing.get_type_hints(hint, include_extras=True).values()) if has_fields else ()
