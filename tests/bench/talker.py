"""An agent that is measured inside and in a host. Nothing is imported here that an agent's interpreter may lack."""

from __future__ import annotations

import asyncio
import time
from typing import Any


async def talker(turn: Any) -> None:
    """Do what the message says: `texts N` as fast as it goes, `times N` one in 10 ms, or `wait` to be stopped."""
    word, _, count = turn.inputs[-1].content.partition(" ")
    if word == "texts":
        for number in range(int(count)):
            await turn.emit(f"word {number} ")
    elif word == "times":
        for _ in range(int(count)):
            # The monotonic clock is one for all processes of a machine.
            await turn.emit(repr(time.monotonic()))
            await asyncio.sleep(0.01)
    else:
        await turn.emit("up")
        await turn.cancel_token.wait()
