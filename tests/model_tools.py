"""A tool of an agent's own, which runs in its host: it shows the environment of what it starts."""

from __future__ import annotations

import subprocess


def note(text: str) -> str:
    """Show the environment."""
    return f"{text}: {subprocess.run(['env'], capture_output=True, text=True, check=True).stdout}"
