"""The agent of `countermand demo`: its model is a script on this machine, and its tools ignore SIGTERM.

It is an agent as any other: it renders the thread for its model, puts the answer on record piece by piece, and waits
for the calls. The model has read the thread: asked what has happened, it can say nothing but what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from countermand import render_openai

PROVIDER: Final = "script"
PIECE_S: Final = 0.02
"""Between two pieces of a text: about as a model on a network."""

STUBBORN: Final = (
    'trap "" TERM HUP INT\necho compiling\nsleep 300',
    '(trap "" TERM; setsid sleep 300) &\ntrap "" TERM\necho serving in the background\nsleep 300',
    'trap "" TERM\nfor number in 1 2 3; do (sleep 300) & done\necho testing\nwait; sleep 300',
)
"""Each is a shell script that outlives a SIGTERM, with children, one of them in a session of its own."""


async def answer(turn: Any) -> None:
    """Answer a turn, as any agent with a model does."""
    calls: list[Any] = [None]
    while calls:
        thread, calls = render_openai(turn.messages, provider=PROVIDER), []
        async with turn.answer(provider=PROVIDER, model="script") as said:
            for piece in script(thread):
                if piece in STUBBORN:
                    calls.append(said.call("shell", {"script": piece}))
                else:
                    await asyncio.sleep(PIECE_S)
                    await said.text(piece)
        await asyncio.gather(*calls)


def script(thread: list[dict[str, Any]]) -> Iterator[str]:
    """Give the answer of the model: pieces of a text, and the scripts of calls."""
    asked = str(next(message["content"] for message in reversed(thread) if message["role"] == "user"))
    if asked.endswith("?"):
        yield from told(thread)
        return
    if "test" in asked:
        yield from ("I test it. ", "That job ", "ignores SIGTERM too.")
        yield STUBBORN[-1]
    else:
        yield from ("I start ", "three jobs. ", "Each of them ", "ignores SIGTERM.")
        yield from STUBBORN


def told(thread: list[dict[str, Any]]) -> Iterator[str]:
    """Say what the thread says: which calls came to no end, and what ended the runs that they were of."""
    results = [str(message["content"]) for message in thread if message["role"] == "tool"]
    cut_off = sum(result.startswith("Interrupted: ") for result in results)
    yield f"Of my {len(results)} calls {cut_off} were interrupted. I was told:"
    for message in thread:
        if message["role"] == "user":
            for line in str(message["content"]).splitlines():
                if line.startswith("The run before this was "):
                    yield f"\n- {line}"
