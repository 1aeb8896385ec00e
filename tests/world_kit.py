"""What tests in virtual time share: requests with ids of their own, and the check of all laws at rest."""

from __future__ import annotations

from typing import Any

from actors.model import Event
from actors.ports import Settings
from actors.requests import NewMessage, Stop
from tests.sim.laws import LogLaws
from tests.sim.world import World

SEEDS = range(12)


def settings(**changes: Any) -> Settings:
    return Settings(agent="scripted", **changes)


def stop(request_id: str = "x", **changes: Any) -> Stop:
    return Stop(id=request_id, source="user.test", reason="wrong target", **changes)


def message(request_id: str, content: str, **changes: Any) -> NewMessage:
    return NewMessage(id=request_id, content=content, **changes)


def of(world: World, kind: str) -> list[Event]:
    return [event for event in world.events() if event.kind == kind]


def settled(world: World, *, fold: bool = True) -> LogLaws:
    """Let everything come to rest, and check every law on the log; the thread after every event, if asked for."""
    world.settle()
    laws = LogLaws(fold=fold)
    for event in world.events():
        laws.take([event])
        if fold:
            laws.check_thread()
    laws.finished()
    assert not world.watch.broken
    return laws
