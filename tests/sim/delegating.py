"""What an agent gives to another one: a message, as a part of its run; or its session, from the next message on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from actors.errors import AgentUnavailable, NotFound
from actors.model import Outcome
from actors.plugin.turn import AsyncTurn
from actors.run_status import RunStatus
from tests.sim.watch import Watch

AGENTS: Final = ("scripted", "other", "other", "other", "other", "broken", "nobody")
SESSIONS: Final = ("", "", "", "", "", "@c", "@c", "@s", "@t")
WORK: Final = (
    "say:1",
    "say:2+write:1+say:1",
    "write:0.1+say:1",
    "run:30,children=2",
    "run:1+say:1",
    "run:30,ignores_term",
    "run:40,never_dies",
    "leave:60+say:1",
    "sleep:60",
    "late:9",
    "deaf:9",
    "stubborn",
    "stubborn",
    "stubborn",
    "raise",
    "forever",
    "tidy:3",
    "save:1+raise",
    "effect:1",
    "ask",
    "steer+sleep:1+steer",
    "serve:60",
    "delegate:other/say;1*write;1",
    "delegate:scripted/run;30*say;1",
    "delegate:other/delegate;other",
)


def delegation(random: Random) -> str:
    """Draw a word that delegates."""
    limit = f"limit={random.choice((0.05, 1))}/" if random.random() < 0.1 else ""
    return f"delegate={random.choice(AGENTS)}{random.choice(SESSIONS)}/{limit}{random.choice(WORK)}"


def delegated_words(random: Random, content: str) -> str:
    """Have a message delegate once or twice: near its beginning, or beside the rest of it."""
    words = content.split()
    for _ in range(random.choice((1, 1, 2))):
        words.insert(random.randint(0, min(len(words), 2)), delegation(random))
    if random.random() < 0.3:
        words.insert(random.randint(0, min(len(words), 2)), f"left_{delegation(random)}")
    return " ".join(words)


async def delegate(turn: AsyncTurn, watch: Watch, value: str) -> None:
    """Delegate: ``AGENT[@SESSION]/[limit=SECONDS/]WORDS``, with ``+`` for a space and ``:`` for ``=``."""
    to, _, words = value.partition("/")
    limit_s = None
    if words.startswith("limit="):
        limit, _, words = words.removeprefix("limit=").partition("/")
        limit_s = float(limit)
    agent, _, session = to.partition("@")
    words = words.replace("+", " ").replace(":", "=").replace("*", "+").replace(";", ":") or "say=1"
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            done = await turn.delegate(agent, words, session=session or None)
            watch.children.told(turn.address.run, done)
            if done.outcome == Outcome.FINISHED and done.status is RunStatus.COMPLETED:
                await turn.emit(f"delegated to {done.run_id} ")


async def hand_off(turn: AsyncTurn, watch: Watch, agent: str) -> None:
    """Hand the session over; in vain to an agent that cannot be loaded, or is not there."""
    with suppress(AgentUnavailable, NotFound):
        await turn.hand_off(agent)
        watch.choices.told(turn.address.session, turn.address.run, agent)


async def leave_delegated(turn: AsyncTurn, watch: Watch, value: str) -> None:
    """Delegate, and go on: the agent may end before that."""
    task = asyncio.ensure_future(delegate(turn, watch, value))
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
