"""The agent and the tools that run a case, and the configuration of the supervisor that they run in."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from actors import AsyncSpawn, AsyncTurn, CancelToken, tool
from actors.plugin.registration import Tool
from supervisor import Config
from supervisor.agent import Agent
from tests.gauntlet import census

GRACE_S = 0.2
KILL_S = 5.0
DEADLINE_S = 1.5
HEAVY_DEADLINE_S = 4.0
POLL_S = 0.01
PULSE_S = 0.005
RELEASE_S = 240.0
SILENT_S = RELEASE_S / 2
"""Where nobody has asked for an end, no deadline is over: a machine under load takes as long as it takes."""

LAYERS = ("auto", "cgroup", "subreaper", "namespace")


class LayerMissing(Exception):
    """A layer of containment was asked for that this build, or this machine, does not have."""


@dataclass
class Board:
    """What a case's tools and the gauntlet tell each other, by token. They live in one process."""

    pulses: dict[str, float] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    returned: dict[str, float] = field(default_factory=dict)
    looked: dict[str, str] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)

    def forget(self, token: str) -> None:
        """Leave nothing of a run that is over."""
        for by_token in (self.pulses, self.returned, self.looked, self.layers):
            by_token.pop(token, None)
        self.released.discard(token)


board = Board()


async def run_case(order: str, spawn: AsyncSpawn) -> str:
    """Run the command of a case, and return as the order says: as soon as all of it is up, at its exit, or never."""
    wanted = json.loads(order)
    spawned = spawn(wanted["argv"], cwd=wanted["folder"], env=wanted["env"], name=wanted["name"])
    if wanted["returns"] == "never":
        # A command may kill its warden before that has said that it runs.
        with suppress(OSError):
            await spawned
        await asyncio.sleep(RELEASE_S)
        return "never"
    process = await spawned
    if wanted["returns"] == "at exit":
        return f"exit {(await process.wait()).status}"
    await _until(lambda: census.read(Path(wanted["seen"])).lines >= wanted["ready"], SILENT_S)
    # Once it returns the run may end, and nobody is left to be looked at.
    board.layers[wanted["token"]] = census.layer_of(Path(wanted["seen"]))
    return "up"


async def _until(condition: Callable[[], bool], within_s: float) -> None:
    """Wait for what other processes and threads bring about, or for the end of the time for it."""
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110  # nobody there can set an event
        await asyncio.sleep(POLL_S)


@tool(isolation="thread")
def pulse(token_of_run: str, token: CancelToken) -> str:
    """Act again and again, after a look at the token each time: the last act is what the gauntlet asks for."""
    while not token.cancelled:
        board.pulses[token_of_run] = time.monotonic()
        token.wait(PULSE_S)
    return "cancelled"


@tool(isolation="thread")
def begin() -> str:
    """Do nothing, so that there is a call on record."""
    return "begun"


@tool(isolation="thread")
def look(token_of_run: str, seen: str) -> str:
    """Say who of an earlier run lives."""
    lives = census.living(token_of_run, Path(seen)).values()
    board.looked[token_of_run] = ", ".join(f"{life.name} (pid {life.pid})" for life in lives)
    return "looked"


async def gauntlet(turn: AsyncTurn) -> str:
    """Do what the input says; see the branches."""
    order = json.loads(turn.inputs[-1].content)
    token, case = order["token"], json.dumps(order.get("case"))
    match order["do"]:
        case "hold":
            # Until it is stopped, with somebody who acts beside the case for as long as the token lets him.
            await asyncio.gather(turn.call("case", order=case), turn.call("pulse", token_of_run=token))
            await turn.cancel_token.wait()
        case "wait":
            # Something else than the run's end ends the case (its call's deadline, say); the run goes on.
            await turn.call(order["tool"], order=case)
            await _until(lambda: token in board.released, RELEASE_S)
        case "leave":
            await turn.call("case", order=case)
            board.returned[token] = time.time()  # noqa: TID251  # it is compared with the times of events
        case "look":
            await turn.call("look", token_of_run=token, seen=order["seen"])
        case other:
            raise ValueError(f"the gauntlet does not say {other!r}")
    return str(order["do"])


def config(state_dir: Path, layer: str = "auto", host: Agent | None = None, deadline_s: float | None = None) -> Config:
    """Return the configuration of a supervisor for the gauntlet.

    Args:
        host: runs the cases, instead of the agent in this process.
        deadline_s: of each run.

    Raises:
        LayerMissing: this build has no such layer, or none that can be chosen.
    """
    chosen: dict[str, Any] = {
        "state_dir": state_dir,
        "agent": "gauntlet",
        "agents": {"gauntlet": host or gauntlet},
        "run_deadline_s": deadline_s,
        "tools": [
            Tool(run_case, name="case", isolation="task"),
            Tool(run_case, name="timed", isolation="task", deadline_s=DEADLINE_S),
            Tool(run_case, name="heavy", isolation="task", deadline_s=HEAVY_DEADLINE_S),
            pulse,
            begin,
            look,
        ],
        "grace_s": GRACE_S,
        "kill_s": KILL_S,
        "drain_s": 0.0,
    }
    return Config(**chosen, **layers_of(layer))


def layers_of(layer: str) -> Mapping[str, Any]:
    """The setting for a layer: its default, with or without that of control groups, or with namespaces instead."""
    if layer == "auto":
        return {}
    default = next((one.default for one in fields(Config) if one.name == "layers"), None)
    if not isinstance(default, frozenset):
        if layer == "subreaper":
            # There is no other layer to be switched off.
            return {}
        raise LayerMissing("this build has no layer of control groups that could be asked for")
    groups = {name for name in default if "cgroup" in str(name)}
    if layer == "cgroup" and not groups:
        raise LayerMissing(f"the layers of this build are {', '.join(map(str, default))}: none is of control groups")
    if layer == "namespace":
        return {"layers": (default - groups) | {"namespace"}}
    return {"layers": default if layer == "cgroup" else default - groups}


class Names:
    """Tokens of runs: each its own, none the beginning of another one. Any thread."""

    def __init__(self, prefix: str) -> None:
        assert prefix.startswith("cmg-"), "by which every token is known"
        self.prefix = prefix
        self._lock = threading.Lock()
        self._count = 0

    def next(self) -> str:
        """Return a token that was not given before."""
        with self._lock:
            self._count += 1
            return f"{self.prefix}{self._count:06d}."
