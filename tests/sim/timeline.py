"""The timeline of one schedule, for people: what the client did, what was handled, what became durable, what broke.

It is made by playing the schedule once more with everything watched; the actors are the same and know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final
from unittest import mock

import msgspec
from pykka._envelope import Envelope

from actors.kernel.actor import Actor
from actors.ports import Batch
from tests.sim.client import Client, Op
from tests.sim.disk import Disk
from tests.sim.schedule import Schedule

LINE_MAX: Final = 150
PLAIN: Final = (str, int, float, bool, tuple, list, type(None))


def timeline(schedule: Schedule) -> list[str]:
    """Play a schedule; returns a line for each thing that happened, the time first, in virtual seconds."""
    lines: list[str] = []
    with schedule.client() as client:

        def line(who: str, what: str) -> None:
            text = f"{client.world.clock.monotonic():10.5f}  {who:<22} {what}"
            lines.append(text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…")

        with _recorded(line):
            try:
                client.play(schedule.script)
            except AssertionError as error:
                lines.append(f"{'':10}  BROKEN: {error}")
    return lines


@contextmanager
def _recorded(line: Any) -> Iterator[None]:
    receive, write, do = Actor._receive, Disk.write, Client._do

    def received(self: Actor, envelope: Envelope[Any]) -> None:
        line(f"{type(self).__name__.removesuffix('Actor').lower()} {self.key}", _shown(envelope.message))
        receive(self, envelope)

    def written(self: Disk, batch: Batch) -> bool:
        line("store", f"batch {batch.number} of {batch.session}: {', '.join(row.request_id for row in batch.requests)}")
        for event in batch.events:
            line("", f"  {event.seq} g{event.generation} {event.run_id or ''} {event.kind} {_shown(event.data)}")
        return write(self, batch)

    def done(self: Client, op: Op) -> None:
        line("client", repr(op))
        do(self, op)

    with (
        mock.patch.object(Actor, "_receive", received),
        mock.patch.object(Disk, "write", written),
        mock.patch.object(Client, "_do", done),
    ):
        yield


def _shown(value: object) -> str:
    """A message or the data of an event, without what is at its default."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(one)}" for key, one in value.items())
    if isinstance(value, msgspec.Struct):
        names, defaults = value.__struct_fields__, value.__struct_defaults__
        default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        said = [(name, getattr(value, name)) for name in names if name not in default or _differs(value, name, default)]
        return f"{type(value).__name__}({', '.join(f'{name}={_shown(one)}' for name, one in said)})"
    return str(value) if isinstance(value, Enum) else repr(value) if isinstance(value, PLAIN) else type(value).__name__


def _differs(value: msgspec.Struct, name: str, default: dict[str, Any]) -> bool:
    shown = getattr(value, name)
    return bool(shown != default[name]) and shown not in ({}, [], ())
