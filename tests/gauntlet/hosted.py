"""The agent that starts the command of a case itself, by `subprocess`. It runs in a host: standard library only.

It shares no memory with the gauntlet. Orders come as the run's message; what it says goes to files beside the file SEEN
of the case (see `roles`):

    SEEN gets `namespace` and `host PID TICKS`, so that the host is looked for like the processes of its command
    go         the gauntlet has seen the case, and the agent may leave it
    returned   when the agent returned, in epoch seconds
    stays      the next run in a host that was kept goes on
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIFE_S = 240.0
POLL_S = 0.01
TALK_S = 0.02


async def agent(turn: Any) -> str:
    """Do what the input says; see the branches."""
    order = json.loads(turn.inputs[-1].content)
    do, token, case = order["do"], order["token"], order.get("case")
    if do == "look":
        await turn.call("look", token_of_run=token, seen=order["seen"])
        return "look"
    folder = Path(case["folder"])
    _note_host(Path(case["seen"]))
    # It is on record from here on: a run that has asked for nothing is tried again after a crash.
    await turn.call("begin")
    if do != "stay":
        # The host reaps it or not, as code does that forgets what it has started.
        subprocess.Popen(case["argv"], cwd=folder, env={**os.environ, **case["env"]}, stdin=subprocess.DEVNULL)
    acting = [asyncio.ensure_future(_talk(turn)), asyncio.ensure_future(turn.call("pulse", token_of_run=token))]
    if do == "leave":
        await _until((folder / "go").exists)
        (folder / "returned").write_text(repr(time.time()))
    else:
        if do == "stay":
            (folder / "stays").touch()
        await asyncio.sleep(LIFE_S)
    return f"{do}, and {len(acting)} of its tasks are left"


def _note_host(seen: Path) -> None:
    stat = Path("/proc/self/stat").read_text()
    lines = (
        f"namespace {os.readlink('/proc/self/ns/pid')}\n",
        f"host {os.getpid()} {stat[stat.rindex(')') + 2 :].split()[19]}\n",
    )
    with seen.open("ab", buffering=0) as file:
        for line in lines:
            file.write(line.encode())


async def _talk(turn: Any) -> None:
    """Say something again and again: nothing of it may be on record after the fence."""
    for number in range(int(LIFE_S / TALK_S)):
        await turn.emit(f"{number} ")
        await asyncio.sleep(TALK_S)


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIFE_S
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
