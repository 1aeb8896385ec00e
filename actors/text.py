"""Makes text storable and safe to show.

Storable: every accepted text has a UTF-8 form, so that one row cannot fail a whole batch.

Safe to show: names, reasons, output and errors are foreign. Their control characters are made visible, so that they
cannot control a terminal. Where one line is expected they stay one line, so that they cannot fake a line of ours.

Results are of the built-in types themselves. The encoder refuses subclasses of `str` or `float` (a numpy number, a
template's markup, an enum member), so they are converted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from actors.decoding import decoder
from actors.model import Json

DEPTH_MAX: Final = 100

CONTROLS: Final = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""The characters that are made visible, as the inside of a character class: controls (C0, DEL, C1), separators of lines
and paragraphs, characters that change the writing direction, and lone surrogates, which have no UTF-8 form."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_CONTROL_IN_LINES: Final = re.compile(f"(?![\\n\\t])[{CONTROLS}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def storable(text: str) -> str:
    """Return `text` as a plain `str` with lone surrogates replaced by U+FFFD; the same object if it is one already."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def not_utf8(text: str) -> bytes | None:
    """Return the bytes of a `text` that is not UTF-8, since `storable` would lose them; else None.

    Bytes that were decoded with ``surrogateescape``, as by `os.fsdecode` and in `sys.argv`, are restored exactly.
    """
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass")
    return None


def storable_json(value: Json) -> Json:
    """Return `value` converted to JSON: texts made storable, other objects shown as text. Never raises."""
    try:
        data = msgspec.json.encode(value)
        made: Json = decoder(Any)(data)
    except Exception:  # noqa: BLE001 - it is a foreign object, and may raise anything
        return _as_json(value, ())
    # A value that is nested as deeply as the stack allows here could not be decoded again from a deeper stack.
    shallow = data.count(b"[") + data.count(b"{") <= DEPTH_MAX
    return made if shallow else _as_json(made, ())


def _as_json(value: Json, above: tuple[int, ...]) -> Json:
    """Convert one value; `above` are the ids of the containers around it."""
    if id(value) in above:
        return "(contains itself)"
    if len(above) > DEPTH_MAX:
        return "(nested too deeply)"
    try:
        return _plain(value, (*above, id(value)))
    except Exception:  # noqa: BLE001 - as above; the other values are still shown
        return f"({type(value).__name__}: cannot be shown)"


def _plain(value: Json, above: tuple[int, ...]) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # JSON readers elsewhere hold 64 bits; a larger integer is shown as text.
        number = int.__int__(value)
        return number if -(2**63) <= number < 2**64 else str(number)
    if isinstance(value, float):
        exact = float.__float__(value)
        return exact if math.isfinite(exact) else str(exact)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {_key(key): _as_json(item, above) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(item, above) for item in value]
    return storable(repr(value))


def _key(key: object) -> str:
    return storable(key if isinstance(key, str) else str(key))


def shown(value: object) -> str:
    """Return the type of `value` and the beginning of its text, for an error message. Never raises."""
    kind = type(value).__name__
    try:
        return storable(f"{kind} {value!r:.80}")
    except Exception:  # noqa: BLE001 - as above
        return kind


def one_line(text: object) -> str:
    """Return a text as one line, with newlines and all other controls made visible.

    A character that JSON leaves unescaped is escaped as JSON would, so that a line of JSON keeps its meaning.
    """
    return _CONTROL.sub(_escape, str(text))


def visible(text: object) -> str:
    """Return a text with its controls made visible, except newlines and tabs."""
    return _CONTROL_IN_LINES.sub(_escape, str(text))


def below(text: str) -> str:
    """Return foreign lines, such as a traceback, to be shown below a line of ours: visible and indented."""
    return "\n".join(f"    {one_line(line)}" for line in text.split("\n"))


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if char < " " else f"\\u{ord(char):04x}")


def cut(text: str, max_bytes: int) -> str:
    """Return `text`, or its beginning with a marker that says how much was left out."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    head = data[:max_bytes].decode(errors="ignore")
    return f"{head}\n[cut: {len(data) - max_bytes} more bytes]"


def tail(text: str, max_chars: int) -> str:
    """Return the last `max_chars` characters of `text`."""
    return text if len(text) <= max_chars else text[-max_chars:]
