"""The agent of the load. It also runs in hosts, so it needs the standard library alone."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any


async def worker(turn: Any) -> dict[str, int]:
    """Do what each input says, as the load writes it: a word, a colon, and what it takes.

    ``sh`` runs a script; ``two`` runs one twice at once; ``text`` streams that many pieces; ``steer`` asks for
    messages between short calls and does what they say, too; ``own`` starts a script itself and leaves it.
    """
    todo = list(turn.inputs)
    done = 0
    if not todo:
        await turn.emit("Resumed without an input.")
    while todo:
        word, _, rest = todo.pop(0).content.partition(":")
        match word:
            case "sh":
                await turn.call("shell", script=rest)
            case "two":
                await asyncio.gather(turn.call("shell", script=rest), turn.call("shell", script="sleep 0.05"))
            case "text":
                for number in range(int(rest.partition("#")[0])):
                    await turn.emit(f"{number} ")
                    await asyncio.sleep(0.001)
            case "steer":
                await turn.call("shell", script=rest)
                for _ in range(3):
                    todo.extend(await turn.steering())
                    await asyncio.sleep(0.005)
            case "own":
                subprocess.Popen(["sh", "-c", rest], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
                await asyncio.sleep(0.05)
            case _:
                raise ValueError(f"the load does not say {word!r}")
        done += 1
    return {"done": done}
