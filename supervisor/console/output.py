"""What commands print on standard output: lines, tables, or one JSON document."""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec

from supervisor.console.words import shown

PLAIN_WIDTH: Final = 200


def console() -> Any:
    """Return a rich console on standard output; not a terminal, it is plain and wide."""
    from rich.console import Console

    class Output(Console):
        """As rich has it, but a reader that has gone is for the command to handle, which ends quietly."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Output(width=width, highlight=False, markup=False, emoji=False)


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

    out.print(Text(text, style="bold"))


def say(out: Any, text: str, style: str = "") -> None:
    """Print text as it is; what is in it steers no terminal."""
    from rich.text import Text

    out.print(Text(shown(text), style=style), soft_wrap=True)


def print_json(value: object) -> None:
    """Print one JSON document, and nothing else, on standard output."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, of many, and have it out at once."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
