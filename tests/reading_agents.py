"""Agents that read the files of messages. They run in the supervisor's process, and are imported in hosts.

So nothing but the standard library is used here. What an agent found it returns.
"""

from __future__ import annotations

import hashlib
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
