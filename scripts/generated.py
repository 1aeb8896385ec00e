"""A document that is made from the code: written, or checked to be up to date."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(target: Path, text: str, script: str) -> int:
    """Write `text` to `target`; with `--check` among the arguments only compare.

    Returns:
        The exit code: 1 if it is out of date. Then stderr names the document, and the `script` that writes it.
    """
    if "--check" not in sys.argv[1:]:
        target.write_text(text)
        return 0
    if target.read_text() == text:
        return 0
    print(f"docs/{target.name} is out of date: run scripts/{script}", file=sys.stderr)
    return 1
