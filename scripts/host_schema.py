"""Writes docs/host-protocol.json from the structs in supervisor/hosts/frames.py.

`--check` writes nothing, and fails if it is out of date.

.venv/bin/python scripts/host_schema.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from generated import write_or_check
from supervisor.hosts.schema import document

TARGET: Final = Path(__file__).parents[1] / "docs" / "host-protocol.json"


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, document(), "host_schema.py"))
