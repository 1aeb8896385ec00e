"""What a command gets of the daemon's environment."""

from __future__ import annotations

from collections.abc import Mapping

TERMINAL = {"TERM": "xterm-256color"}
"""The environment of a command on a terminal, below our own."""
ENVIRONMENT_KEPT = frozenset({"PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"})
ENVIRONMENT_KEPT_PREFIX = "LC_"


PERSONAL = frozenset({"HOME", "LOGNAME", "SHELL", "TMPDIR", "USER"})
"""What is the daemon's user's: a command that runs as another one has none of it from here."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a tool may see of the daemon's environment: an allow-list, so that a secret needs no name to be kept out."""
    return {
        name: value
        for name, value in environment.items()
        if name in ENVIRONMENT_KEPT or name.startswith(ENVIRONMENT_KEPT_PREFIX)
    }
