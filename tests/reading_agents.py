"""Agents that read the files of messages. They run in the supervisor's process, and are imported in hosts.

So nothing but the standard library is used here. What an agent found it returns.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import Any


def _of(data: bytes) -> list[Any]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def _plain(part: Any) -> list[Any]:
    return [part.type, part.text] if part.type == "text" else [part.type, part.media_type, part.size, part.name]


async def agent(turn: Any) -> Any:
    """Read each file of the last input, and all of the thread's."""
    if turn.inputs[-1].content == "steer":
        while not await turn.steering():
            pass
    parts = turn.inputs[-1].parts
    media = [part for part in parts if part.type == "media"]
    read = [_of(await turn.attachment(part)) for part in media]
    named = [_of(await turn.attachment(part.attachment)) for part in media]
    files = await turn.files()
    refused = []
    for wanted in ("att_none", 7):
        try:
            await turn.attachment(wanted)
        except Exception as error:  # its code is looked at
            refused.append(getattr(error, "code", repr(error)))
    return {
        "parts": [_plain(part) for part in parts],
        "same": read == named,
        "read": read,
        "files": {name: _of(data) for name, data in files.items()},
        "few": len(await turn.files(5)),
        "refused": refused,
    }


def plain(turn: Any) -> Any:
    """As `agent`, for plain code."""
    if turn.inputs[-1].content == "steer":
        while not turn.steering():
            pass
    parts = turn.inputs[-1].parts
    media = [part for part in parts if part.type == "media"]
    read = [_of(turn.attachment(part)) for part in media]
    named = [_of(turn.attachment(part.attachment)) for part in media]
    files = turn.files()
    refused = []
    for wanted in ("att_none", 7):
        try:
            turn.attachment(wanted)
        except Exception as error:  # its code is looked at
            refused.append(getattr(error, "code", repr(error)))
    return {
        "parts": [_plain(part) for part in parts],
        "same": read == named,
        "read": read,
        "files": {name: _of(data) for name, data in files.items()},
        "few": len(turn.files(5)),
        "refused": refused,
    }


async def stopped(turn: Any) -> Any:
    """Read a file again and again until the run ends, and say what the last read raised."""
    part = turn.inputs[-1].parts[0]
    await turn.emit("reading")
    while True:
        await turn.attachment(part)


def stopped_plain(turn: Any) -> Any:
    """As `stopped`, for plain code."""
    part = turn.inputs[-1].parts[0]
    turn.emit("reading")
    while True:
        turn.attachment(part)


def file_class() -> Any:
    """The class of files: of the host, or of the supervisor's process."""
    if "countermand" in sys.modules and hasattr(sys.modules["countermand"], "AsyncTurn"):
        return sys.modules["countermand"].File
    return __import__("actors").File


async def draws(turn: Any) -> Any:
    """Call tools of the daemon that return files, and read them at once."""
    found = []
    for how in turn.inputs[-1].content.split():
        result = await turn.call("draw", how=how)
        kept = [_of(await turn.attachment(part)) for part in result.parts]
        shown = [one for one in turn.messages if one.role == "tool"][-1]
        same = [part.attachment for part in shown.parts] == [part.attachment for part in result.parts]
        found.append([str(result.outcome), result.content, result.is_error, kept, same])
    return found


async def draws_itself(turn: Any) -> Any:
    """Gate a function of its own that returns files, and read them at once."""
    made = file_class()

    async def own() -> Any:
        return ["two", made(b"one", "image/png", "1.png"), made(b"two", "a/b")]

    await turn.gate("own", {}, own)
    shown = [one for one in turn.messages if one.role == "tool"][-1]
    return [shown.content, [_plain(part) for part in shown.parts], [_of(await turn.attachment(p)) for p in shown.parts]]


async def paints(turn: Any) -> Any:
    """Put an answer with a file on record, and read it inside of it."""
    size = int(turn.inputs[-1].content)
    found: list[Any] = []
    async with turn.answer(provider="p") as answer:
        await answer.text("before ")
        try:
            part = await answer.media(b"x" * size, "image/png", name="x.png")
            found = [_plain(part), _of(await turn.attachment(part))]
        except Exception as error:  # its code is looked at
            code: Any = getattr(error, "code", None)
            found = [code or repr(error)]
        await answer.text("behind")
    said = turn.messages[-1]
    return [found, [_plain(part) for part in said.parts], said.content]


def paints_plain(turn: Any) -> Any:
    """As `paints`, for plain code."""
    size = int(turn.inputs[-1].content)
    found: list[Any] = []
    with turn.answer(provider="p") as answer:
        answer.text("before ")
        try:
            part = answer.media(b"x" * size, "image/png", name="x.png")
            found = [_plain(part), _of(turn.attachment(part))]
        except Exception as error:  # its code is looked at
            code: Any = getattr(error, "code", None)
            found = [code or repr(error)]
        answer.text("behind")
    said = turn.messages[-1]
    return [found, [_plain(part) for part in said.parts], said.content]


async def paints_and_waits(turn: Any) -> Any:
    """Put a file on record, and wait in the middle of the answer."""
    async with turn.answer(provider="p") as answer:
        await answer.media(b"x", "image/png")
        await asyncio.Event().wait()
