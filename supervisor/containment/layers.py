"""Layers: which layers of containment a daemon has, and why one is missing."""

from __future__ import annotations

from msgspec import Struct


class Layers(Struct, frozen=True):
    """The layers of containment that a daemon has.

    names: the active layers, of those in `supervisor.config`, sorted. cgroup: the directory below which each tree has
    its group; None: there are no groups, and `why_not` says why. delegated: the cgroup manager has delegated it to the
    daemon.
    """

    names: tuple[str, ...]
    cgroup: str | None
    why_not: str
    delegated: bool
