"""Text that can be stored: what is accepted has a UTF-8 form, so that one row never takes a batch with it.

And text that can be shown: names, reasons, output and errors come from anybody. What is shown of them is visible: it
steers no terminal, and in a place that has one line it is one line, so that it cannot be taken for a line of ours.

What comes out is of the built-in types themselves. A subclass (a numpy number, a template's markup, an enum's member)
is a `str` or a `float` to everybody but the encoder, which takes none: so none goes on from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from actors.model import Json

DEPTH_MAX: Final = 100

CONTROLS: Final = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""What is made visible, as the inside of a character class: controls (C0, DEL, C1), the separators of lines and
paragraphs, what turns the direction of writing, and lone surrogates, which have no UTF-8 form."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_CONTROL_IN_LINES: Final = re.compile(f"(?![\\n\\t])[{CONTROLS}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def storable(text: str) -> str:
    """Return `text` as a plain `str`, lone surrogates replaced by U+FFFD; the same object where it is one already."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def not_utf8(text: str) -> bytes | None:
    """Return the bytes that `text` stands for where they are not UTF-8, which `storable` does not keep; else None.

    Bytes that somebody decoded with ``surrogateescape``, as `os.fsdecode` and `sys.argv` do, come out as they were.
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
    """Return `value` as JSON can hold it: texts made storable, what is not JSON shown as text. Never raises."""
    try:
        data = msgspec.json.encode(value)
        made: Json = msgspec.json.decode(data)
    except Exception:  # noqa: BLE001 - it is somebody else's object, and may raise anything
        return _as_json(value, ())
    # What is nested as deep as the interpreter's stack just now could not be read again from a deeper one.
    shallow = data.count(b"[") + data.count(b"{") <= DEPTH_MAX
    return made if shallow else _as_json(made, ())


def _as_json(value: Json, above: tuple[int, ...]) -> Json:
    """Show one value; `above` are the ids of what it is in."""
    if id(value) in above:
        return "(contains itself)"
    if len(above) > DEPTH_MAX:
        return "(nested too deeply)"
    try:
        return _plain(value, (*above, id(value)))
    except Exception:  # noqa: BLE001 - as above: one that cannot be shown takes nothing else with it
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
    """Return the type of `value` and the head of its text, for an error that says what came. Never raises."""
    kind = type(value).__name__
    try:
        return storable(f"{kind} {value!r:.80}")
    except Exception:  # noqa: BLE001 - as above
        return kind


def one_line(text: object) -> str:
    """Return a text as one line, with its newlines and all other controls made visible.

    What JSON leaves as it is comes out as JSON writes it, so that a line of JSON means the same afterwards.
    """
    return _CONTROL.sub(_escape, str(text))


def visible(text: object) -> str:
    """Return a text with its controls made visible, in as many lines as it has: newlines and tabs stay."""
    return _CONTROL_IN_LINES.sub(_escape, str(text))


def below(text: str) -> str:
    """Return lines that somebody else wrote, such as a traceback, as lines below one of ours: visible and indented."""
    return "\n".join(f"    {one_line(line)}" for line in text.split("\n"))


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if char < " " else f"\\u{ord(char):04x}")


def cut(text: str, max_bytes: int) -> str:
    """Return `text`, or its head with a marker that says how much was left out."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    head = data[:max_bytes].decode(errors="ignore")
    return f"{head}\n[cut: {len(data) - max_bytes} more bytes]"


def tail(text: str, max_chars: int) -> str:
    """Return the last `max_chars` characters of `text`."""
    return text if len(text) <= max_chars else text[-max_chars:]
