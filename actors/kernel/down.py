"""Down: the end of an actor, as its parent is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from pykka import ActorRef


class Down(Struct, frozen=True):
    """A child actor is gone; it comes after everything the child sent. `failure` is None for a normal stop."""

    urgent: ClassVar[bool] = False

    child: ActorRef[Any]
    key: str
    failure: str | None
