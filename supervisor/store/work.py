"""The kinds of work in the writer's queue."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from actors.errors import StoreUnavailable
from actors.ports import Batch
from supervisor.store.health import error_text
from supervisor.store.tables import Statement

if TYPE_CHECKING:
    from pykka import ActorRef


class DoesNotFollow(StoreUnavailable):
    """A batch is not the next one: one before it has failed."""


class Commit:
    """A batch to write. `error` is why it failed, None if it is durable; `unfit`: its own data is at fault."""

    __slots__ = ("batch", "error", "owner", "since", "statements", "unfit")

    def __init__(self, batch: Batch, owner: ActorRef[Any], since: float) -> None:
        self.batch = batch
        self.owner = owner
        self.since = since
        self.error: str | None = None
        self.unfit = False
        self.statements: list[Statement] | None = None

    def failed(self, error: BaseException) -> None:
        """Record that the batch cannot be stored, or follows one that could not."""
        self.error = error_text(error)
        self.unfit = not isinstance(error, DoesNotFollow)


class Load:
    """A session to read. `by_writer`: however long its log is."""

    __slots__ = ("by_writer", "owner", "session", "since")

    def __init__(self, session: str, owner: ActorRef[Any], since: float) -> None:
        self.session = session
        self.owner = owner
        self.since = since
        self.by_writer = False


class Find:
    """A settled run to read, with its receipt."""

    __slots__ = ("owner", "run_id", "session")

    def __init__(self, session: str, run_id: str, owner: ActorRef[Any]) -> None:
        self.session = session
        self.run_id = run_id
        self.owner = owner


class Attempt:
    """A small write that tests whether writes succeed again."""


Work: TypeAlias = Commit | Load | Find | Attempt | threading.Event
"""An event is set when its turn comes."""
