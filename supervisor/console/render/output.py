"""What commands print: lines, tables, or one JSON document on standard output, and remarks on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from actors.text import one_line, visible

PLAIN_WIDTH: Final = 200
LAST_ON_A_TERMINAL: Final = 50
"""How many rows of a long list are shown there, unless more are asked for: drawing takes some ms a row."""

T = TypeVar("T")


def console() -> Any:
    """Return a rich console on standard output; not a terminal, it is plain and wide."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def newest(rows: Sequence[T], last: int | None, *, as_json: bool) -> Sequence[T]:
    """Return the newest `last` rows, which are the last ones; see `how_many`."""
    last = how_many(last, as_json=as_json)
    return rows[-last:] if last else rows


def how_many(last: int | None, *, as_json: bool) -> int:
    """Return how many of the newest rows are shown; 0: all. `last` None: as many as fit what they are shown on."""
    if last is None:
        return LAST_ON_A_TERMINAL if sys.stdout.isatty() and not as_json else 0
    return last


def say_left_out(out: Any, shown: int, what: str, of: str = "") -> None:
    """Print a line below a list of which older rows are not shown, with what shows them. `of`: how many there are."""
    from rich.text import Text

    out.print(Text(f"the newest {shown}{of and f' of {of}'} {what}; more of them: --last N, or 0 for all", style="dim"))


def grid(*columns: str, right: tuple[str, ...] = ()) -> Any:
    """Return an empty table with these columns; those named in `right` have their text there."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left")
    return table


def heading(out: Any, text: str) -> None:
    """Print a heading."""
    from rich.text import Text

    out.print(Text(one_line(text), style="bold"))


def say(out: Any, text: str, style: str = "") -> None:
    """Print a text as one line: what is in it steers no terminal, and is not taken for a line of ours."""
    from rich.text import Text

    out.print(Text(one_line(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """Print a remark about what the command does, on standard error."""
    print(f"countermand: {one_line(text)}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print one JSON document, and nothing else, on standard output."""
    document = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # JSON leaves DEL, C1 and the like as they are, and a terminal would take them for its own.
    sys.stdout.buffer.write(f"{visible(document)}\n".encode())


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, of many, and have it out at once."""
    sys.stdout.buffer.write(f"{one_line(msgspec.json.encode(value).decode())}\n".encode())
    sys.stdout.buffer.flush()
