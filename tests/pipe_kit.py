"""What tests of pipes share: which pipes this process has open."""

from __future__ import annotations

import os

from tests.kit import until


def descriptors() -> list[str]:
    """The pipes that this process has open."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sorted(link for link in links if link.startswith("pipe:"))


def no_more_than(before: list[str]) -> None:
    """Wait until this process has no other pipe open than before."""
    until(lambda: not set(descriptors()) - set(before), "every pipe is closed")
