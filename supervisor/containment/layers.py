"""Layers: which layers of containment a daemon has, and why one is missing."""

from __future__ import annotations

from msgspec import Struct


class Layers(Struct, frozen=True):
    """What holds the process trees of a daemon.

    names: the layers that hold, of those that `supervisor.config` names, sorted. cgroup: the directory below which
    each tree has its group; None: there are no groups, and `why_not` says why. delegated: its manager has said that it
    is the daemon's to divide.
    """

    names: tuple[str, ...]
    cgroup: str | None
    why_not: str
    delegated: bool
