"""The MCP servers that this host is configured with."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

SETTINGS = "COUNTERMAND_MCP"
"""The variable with the servers: an object in JSON, with the keys of each by its name."""


@functools.cache
def servers() -> dict[str, dict[str, Any]]:
    """Return the keys of each server, by its name. From the first call on what this process starts cannot see them."""
    found: dict[str, dict[str, Any]] = json.loads(os.environ.pop(SETTINGS, "{}"))
    return found
