"""Writes docs/host-protocol.json from the structs in supervisor/hosts/frames.py.

`--check` writes nothing, and fails if it is out of date.

.venv/bin/python scripts/host_schema.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from supervisor.hosts.schema import document

TARGET: Final = Path(__file__).parents[1] / "docs" / "host-protocol.json"


def main() -> int:
    """Write the schema, or check it."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(document())
        return 0
    if TARGET.read_text() == document():
        return 0
    print("docs/host-protocol.json is out of date: run scripts/host_schema.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
