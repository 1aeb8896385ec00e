"""Foreign objects to plain JSON: values, results and errors of the agent's code, for the wire."""

from __future__ import annotations

import contextlib
import enum
import inspect
import json
import math
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from .errors import Invalid
from .files import checked, is_file
from .values import ToolResult

RESULT_MAX_BYTES = 1_048_576
ERROR_MAX_BYTES = 65_536
TEXT_MAX_CHARS = 16_384
"""Of one `emit`: 64 KiB in UTF-8 at most."""
DEPTH_MAX = 100


def storable(text: str) -> str:
    """Return `text` with each half of a surrogate pair replaced by U+FFFD: it has no UTF-8 form."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def pieces(text: object) -> list[str]:
    """Divide a text into pieces, one for each frame. Raises Invalid if it is no text."""
    if not isinstance(text, str):
        raise Invalid(
            "an agent can emit text only",
            expected="a str",
            got=type(text).__name__,
            remedy="emit(str(value)), or progress(value) for data",
        )
    text = storable(text)
    return [text[start : start + TEXT_MAX_CHARS] for start in range(0, len(text), TEXT_MAX_CHARS)]


def progress(data: Mapping[str, Any]) -> Any:
    """Return what a `progress` shows, as JSON. Raises Invalid if it is too large."""
    made = as_json(data)
    size = len(dumped(made).encode())
    if size > RESULT_MAX_BYTES:
        raise Invalid(
            "this progress is too large",
            expected=f"at most {RESULT_MAX_BYTES} bytes as JSON",
            got=f"{size} bytes",
            remedy="show less of it, or emit it as text",
        )
    return made


def cut(text: str, max_bytes: int) -> str:
    """Return `text`, or its beginning with a marker that says how much was left out."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    return f"{data[:max_bytes].decode(errors='ignore')}\n[cut: {len(data) - max_bytes} more bytes]"


def words(error: BaseException) -> str:
    """Return an error's class and text. What its class raises meanwhile is contained."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an exception class may do anything in its __str__
        text = "(its text could not be made)"
    return cut(storable(f"{type(error).__name__}: {text}"), ERROR_MAX_BYTES)


def report(error: BaseException) -> None:
    """Print an error with its traceback, unless the agent has closed where it goes to."""
    with contextlib.suppress(Exception):
        # In one piece: what follows the first piece may come behind the end of the run, and is then not of it.
        sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        sys.stderr.flush()


def as_json(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Convert a value to JSON: texts made storable, other objects shown as text. `above`: ids of its containers."""
    if id(value) in above:
        return "(contains itself)"
    if len(above) > DEPTH_MAX:
        return "(nested too deeply)"
    try:
        return _as_json(value, (*above, id(value)))
    except Exception:  # noqa: BLE001  # it is a foreign object; the other values are still shown
        return f"({type(value).__name__}: cannot be shown)"


def _as_json(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return as_json(value.value, above)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int):
        # JSON readers elsewhere hold 64 bits; a larger integer is shown as text.
        number = int.__int__(value)
        return number if -(2**63) <= number < 2**64 else str(number)
    if isinstance(value, float):
        exact = float.__float__(value)
        return exact if math.isfinite(exact) else None
    if isinstance(value, Mapping):
        return {
            storable(key if isinstance(key, str) else str(key)): as_json(item, above) for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item, above) for item in value]
    # Of a dataclass, or of a struct of msgspec's.
    fields = getattr(value, "__dataclass_fields__", getattr(value, "__struct_fields__", None))
    if fields is not None and not isinstance(value, type):
        return {name: as_json(getattr(value, name), above) for name in fields}
    if callable(getattr(value, "isoformat", None)):
        return storable(value.isoformat())
    return storable(repr(value))


def check_has_run(value: Any) -> None:
    """Check that a function's result is a value.

    Raises:
        Invalid: it is a coroutine or a generator, so the function's code has not run. It is closed.
    """
    if inspect.isawaitable(value) or inspect.isasyncgen(value) or inspect.isgenerator(value):
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
        raise Invalid(
            "the function returned code that is never run",
            expected="an async function, or a plain one that returns its result",
            got=type(value).__name__,
            remedy="declare it with 'async def' and without 'yield', and await what it calls",
        )


def bounded_json(value: Any) -> Any:
    """Convert what a function returned to JSON; if it is too large, return the beginning of its text."""
    check_has_run(value)
    if isinstance(value, str):
        return cut(storable(value), RESULT_MAX_BYTES)
    made = as_json(value)
    text = dumped(made)
    return made if len(text.encode()) <= RESULT_MAX_BYTES else cut(text, RESULT_MAX_BYTES)


def as_result(value: Any) -> ToolResult:
    """Convert a function's return value to the result of its call: a text unchanged, anything else as JSON."""
    if isinstance(value, ToolResult) or type(value).__name__ == ToolResult.__name__:
        # It may be that of the daemon's process.
        content = cut(storable(value.content), RESULT_MAX_BYTES)
        parts = checked(getattr(value, "parts", ()))
        return ToolResult("finished", content, bool(value.is_error), bounded_json(value.data), parts=parts)
    if value is None:
        return ToolResult("finished", "")
    if is_file(value):
        return ToolResult("finished", "", parts=checked([value]))
    if isinstance(value, (list, tuple)) and any(is_file(one) for one in value):
        texts = [bounded_json(one) for one in value if not is_file(one)]
        content = "\n".join(text if isinstance(text, str) else dumped(text) for text in texts)
        return ToolResult("finished", cut(content, RESULT_MAX_BYTES), parts=checked(filter(is_file, value)))
    made = bounded_json(value)
    return ToolResult("finished", made if isinstance(made, str) else dumped(made))


def dumped(value: Any) -> str:
    """Return plain JSON as a text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
