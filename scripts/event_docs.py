"""Writes docs/events.md from the structs in actors/events.py. `--check` writes nothing, and fails if it is out of date.

.venv/bin/python scripts/event_docs.py
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterator
from enum import EnumMeta, StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct, UnsetType

from actors.events import DATA, EPHEMERAL, Data, EventKind, ProgressData
from actors.model import (
    Effect,
    How,
    Outcome,
    PartKind,
    Provenance,
    Receipt,
    ReturnReason,
    Row,
    RunParent,
    Signalled,
    StopOutcome,
    Where,
)
from actors.parts import MediaPart, TextPart
from actors.run_status import RunStatus
from generated import write_or_check

TARGET: Final = Path(__file__).parents[1] / "docs" / "events.md"
_FIELDS: Final = re.compile(r"^([a-z_]+(, [a-z_]+)*: )")
"""The beginning of a line of a docstring that is about fields."""
WORDS: Final[tuple[type[StrEnum], ...]] = (RunStatus, Outcome, StopOutcome, PartKind, How, ReturnReason, Where)
NOUNS: Final[tuple[type[Struct], ...]] = (Provenance, Receipt, Row, Effect, Signalled, RunParent, TextPart, MediaPart)

HEAD: Final = """# Events

<!-- Written by scripts/event_docs.py from actors/events.py; do not edit. -->

The log of a session is a list of events. The Python API, the HTTP API and the store give the same ones.

| key | type | |
|---|---|---|
| `seq` | whole number | The event's place in the log: it begins at 1 and has no gaps. |
| `session` | text | The session's name. |
| `generation` | whole number | The generation of the event's run; else that of the session. |
| `run_id` | text or null | The run that the event belongs to; null: the session's own. |
| `kind` | text | One of the kinds below. |
| `data` | object | The keys of its kind. |
| `at` | number | When it was decided. Seconds since the epoch, UTC. |

A later version may add kinds, and keys to a kind: ignore what you do not know. It renames and removes none. In Python,
`actors.data_of` returns an event's data as a struct.
"""


def document() -> str:
    """Return the text of docs/events.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## Kinds"
    for kind in EventKind:
        yield f"\n### `{kind}`\n"
        yield _prose(DATA[kind])
        if kind in EPHEMERAL:
            yield "It is not stored, has the seq of the last event, and comes only to those who ask for `ephemeral`."
        if kind is EventKind.UNREADABLE:
            yield "It is not stored: readers give it in place of a row that is damaged."
        if DATA[kind] is not ProgressData:
            yield from _table(DATA[kind])
    yield "\n## Objects in the data"
    for noun in NOUNS:
        yield f"\n### {noun.__name__}\n"
        yield _prose(noun)
        yield from _table(noun)
    yield "\n## Words in the data"
    for words in WORDS:
        yield f"\n### {words.__name__}\n"
        yield _prose(words)
        yield from _meanings(words)


def _meanings(words: type[StrEnum]) -> Iterator[str]:
    """Return the members of an enum as a table, each with the docstring below it."""
    (body,) = ast.parse(inspect.getsource(words)).body
    assert isinstance(body, ast.ClassDef)
    yield "\n| word | |\n|---|---|"
    for member, below in itertools.pairwise(body.body):
        match member, below:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str(meaning))):
                text = " ".join(meaning.split()).replace("``", "`")
                yield f"| `{words[name]}` | {text} |"
            case _:
                pass


def _prose(kind: type[Struct] | type[StrEnum]) -> str:
    """Return a docstring as Markdown: one paragraph a line."""
    lines = [line.strip() for line in (kind.__doc__ or "").strip().splitlines()]
    return "\n".join(_FIELDS.sub(r"- \1", line) for line in lines).replace("``", "`")


def _table(kind: type[Struct]) -> Iterator[str]:
    fields = msgspec.structs.fields(kind)
    if not fields:
        yield "\nIts data is empty."
        return
    hints = get_type_hints(kind, include_extras=True)
    described = issubclass(kind, Data)
    yield "\n| key | type | |\n|---|---|---|" if described else "\n| key | type |\n|---|---|"
    if isinstance(kind.__struct_config__.tag, str):
        yield f"| `{kind.__struct_config__.tag_field}` | `{kind.__struct_config__.tag}` |"
    for one in fields:
        inner, description = _split(hints[one.name])
        may_be_left_out = described and one.default is not NODEFAULT
        key = f"`{one.encode_name}`" + (" (may be left out)" if may_be_left_out else "")
        # Null is only written where a key is always there.
        words = _type(inner, null=not may_be_left_out)
        yield f"| {key} | {words} | {description} |" if described else f"| {key} | {words} |"


def _split(hint: Any) -> tuple[Any, str]:
    """Return a type without its description, and that."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return inner, next((note.description or "" for note in notes if isinstance(note, Meta)), "")
    return hint, ""


def _type(hint: Any, *, null: bool) -> str:
    """Return a type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = [_type(one, null=null) for one in arguments if one not in (type(None), UnsetType)]
        return " or ".join([*words, "null"] if null and type(None) in arguments else words)
    if origin is tuple:
        return f"list of {_type(arguments[0], null=null)}"
    if origin is dict:
        value = arguments[1]
        return "object" if value is Any else f"object of {_type(value, null=null)}"
    if isinstance(hint, EnumMeta) and issubclass(hint, StrEnum):
        return ", ".join(f"`{member}`" for member in hint)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    simple: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any JSON"}
    return simple[hint]


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, document(), "event_docs.py"))
