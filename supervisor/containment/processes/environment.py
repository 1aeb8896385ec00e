"""The part of the daemon's environment that commands get."""

from __future__ import annotations

from collections.abc import Mapping

TERMINAL = {"TERM": "xterm-256color"}
"""The environment of a command on a terminal, below our own."""
ENVIRONMENT_KEPT = frozenset({"PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"})
ENVIRONMENT_KEPT_PREFIX = "LC_"


PERSONAL = frozenset({"HOME", "LOGNAME", "SHELL", "TMPDIR", "USER"})
"""Variables of the daemon's user: a command that runs as another user does not get them."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables a tool may see: an allow-list, so that a secret is kept out under any name."""
    return {
        name: value
        for name, value in environment.items()
        if name in ENVIRONMENT_KEPT or name.startswith(ENVIRONMENT_KEPT_PREFIX)
    }
