"""Files in the simulator: messages, results and answers that have some, and what has to hold of them.

Each file has bytes of its own, so that it is seen if one stands for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from actors.attachments import File, attachment_name
from actors.errors import NotFound
from actors.parts import MediaPart
from actors.plugin.turn import AsyncTurn
from actors.ports import Batch
from tests.sim.model_answers import PROVIDER

if TYPE_CHECKING:
    from tests.sim.disk import Disk
    from tests.sim.watch import Watch


def files_of(content: str, identity: str) -> list[File]:
    """The files of a message that a client sends."""
    values = [int(word.partition("=")[2]) for word in content.split() if word.startswith("files=")]
    return [File(f"{identity} {number}".encode(), "a/b") for number in range(sum(values))]


def draws(inside: Callable[[str], AbstractContextManager[None]]) -> Callable[..., Any]:
    """Make the tool that returns files."""

    async def draws(number: int, fence: str, of: str = "") -> list[Any]:
        """Await, then return files."""
        with inside(fence):
            await asyncio.sleep(0.1)
            return ["drawn", *(File(f"{fence} {count}".encode(), "a/b") for count in range(number))]

    return draws


async def _reads(turn: AsyncTurn, watch: Watch, _: str) -> None:
    await _read(turn, watch, (part for message in turn.inputs for part in message.parts))


async def _draws(turn: AsyncTurn, watch: Watch, number: str) -> None:
    result = await turn.call("draws", number=int(number), of=turn.address.run)
    await _read(turn, watch, result.parts)


async def _paints(turn: AsyncTurn, watch: Watch, number: str) -> None:
    if hasattr(turn, "host"):
        # A file of a host goes over the wire, which tests of hosts are about.
        return
    async with turn.answer(provider=PROVIDER) as answer:
        for count in range(int(number)):
            await _read(turn, watch, [await answer.media(f"{turn.address.run} {count}".encode(), "image/png")])


WORDS: Final = {"files": _reads, "draws": _draws, "paints": _paints}
"""A message with files that its agent reads; a tool that returns files; an answer with files."""


async def _read(turn: AsyncTurn, watch: Watch, parts: Iterable[object]) -> None:
    for part in parts:
        if not isinstance(part, MediaPart) or hasattr(turn, "host"):
            continue
        try:
            data = await turn.attachment(part)
        except NotFound:
            watch.break_(f"{turn.address.run} knows of {part.attachment}, which cannot be read (L12)")
        else:
            if attachment_name(data) != part.attachment or len(data) != part.size:
                watch.break_(f"{turn.address.run} reads other bytes as {part.attachment} (L6)")


def check_batch(disk: Disk, batch: Batch) -> None:
    """Each file that an event names has its bytes: in the same batch, or there already (law L12)."""
    kept = set() if batch.erase else set(disk.of(batch.session).attachments)
    kept.update(one.name for one in batch.attachments)
    for event in batch.events:
        if event.kind in ("message", "session.message_waiting", "media", "tool.ended"):
            for part in _parts(event.data):
                name = part.get("attachment")
                assert name is None or name in kept, f"{event.kind} names {name}, whose bytes are not stored (L12)"


def _parts(data: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [data["part"]] if "part" in data else data.get("parts", ())
