"""Down: tells a parent that its child actor has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from pykka import ActorRef


class Down(Struct, frozen=True):
    """A child actor has ended. Down comes after everything that the child sent. `failure` is None for a normal stop."""

    urgent: ClassVar[bool] = False

    child: ActorRef[Any]
    key: str
    failure: str | None
