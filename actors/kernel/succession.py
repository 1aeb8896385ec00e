"""Succession: which actor is told what a port knows, when an actor is replaced.

An actor that has failed, or whose session's actor has, is replaced while its own children may still have turns to
come, and so may it, if only its parent has failed. Such an actor may adopt what its children leave: that is right
while it is the one, and wrong once its successor has adopted it, since the reports would go where none is read. No
order of messages keeps the two apart, so the ports do: whoever is older than the successor comes too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.kernel.actor import made_before

if TYPE_CHECKING:
    from pykka import ActorRef


class Succession:
    """Of one thing that a port has. Not thread-safe: the port has a lock, or one thread."""

    __slots__ = ("_successor",)

    def __init__(self) -> None:
        self._successor: ActorRef[Any] | None = None

    def admits(self, owner: ActorRef[Any], *, anew: bool) -> bool:
        """Return True if `owner` may adopt it. `anew`: as the successor of one that was replaced."""
        if self._successor is not None and made_before(owner, self._successor):
            return False
        if anew:
            self._successor = owner
        return True
