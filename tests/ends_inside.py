"""A program with a supervisor whose agent runs inside it: ends its runs, and tells what is left beside what is said.

    python -m tests.ends_inside STATE_DIR MARK MODULE:FUNCTION OUT ENDS

ENDS is a list of a message, the message that takes over from its run (null: a Stop ends it), and a step and the seconds
after it, as JSON. For each one a line is written to the file OUT: the receipt, and the processes, the threads and the
tasks that began with the run and are there when the receipt is. It needs no more than the packages of the agent and of
the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from typing import Any

import msgspec

from actors import AsyncTurn, NewMessage, Receipt, Stop
from actors.decoding import decoder
from actors.model import Policy
from supervisor import Config, SessionHandle, Supervisor
from supervisor.containment.guard import procfs

WAIT_S = 60.0
Ends = list[tuple[str, str | None, int, float]]
AGENTS = ("ending_agents.py", "sdk_agents.py")


class Left(msgspec.Struct):
    """What is there with the receipt: pids, and where the threads and tasks are."""

    receipt: Receipt
    pids: list[int]
    threads: list[str]
    tasks: list[str]


class Inside:
    """The agent, and what it has running."""

    def __init__(self, spelled: str) -> None:
        module, _, name = spelled.partition(":")
        self.function: Any = getattr(importlib.import_module(module), name)
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def agent(self, turn: AsyncTurn) -> None:
        """Do what the agent does."""
        self.loops.add(asyncio.get_running_loop())
        await self.function(turn)

    def pids(self) -> set[int]:
        """The processes below this one, its own helpers aside."""
        seen = [procfs.stat(pid) for pid in procfs.descendants()]
        return {one.pid for one in seen if one is not None and not one.dead and not one.name.startswith("cm-")}

    def threads(self) -> dict[int, str]:
        """The threads that are in the agent's code, but for those of the loops."""
        found = {}
        for ident, frame in sys._current_frames().items():
            code: Any = frame
            names = []
            while code is not None:
                names.append((os.path.basename(code.f_code.co_filename), code.f_code.co_name))
                code = code.f_back
            own = [name for file, name in names if file in AGENTS]
            # What a loop runs is among the tasks.
            if own and ("base_events.py", "run_forever") not in names and ident != threading.get_ident():
                found[ident] = own[0]
        return found

    def tasks(self) -> dict[int, str]:
        """The tasks of the agent's code."""
        found = {}
        for loop in self.loops:
            for task in asyncio.all_tasks(loop):
                code = getattr(task.get_coro(), "cr_code", None)
                if code is not None and os.path.basename(code.co_filename) in AGENTS:
                    found[id(task)] = code.co_name
        return found


def said(session: SessionHandle, run_id: str) -> str:
    """All that a run has said so far."""
    last, texts = session.status().last_seq, []
    with session.subscribe(timeout=WAIT_S) as subscription:
        for event in subscription:
            if event.kind == "text" and event.run_id == run_id:
                texts.append(event.data["text"])
            if event.seq >= last:
                break
    return "".join(texts)


def end(supervisor: Supervisor, inside: Inside, number: int, told: tuple[str, str | None, int, float]) -> Left:
    """Begin a run, end it at its moment, and look."""
    content, later, step, delay_s = told
    before = inside.pids(), inside.threads(), inside.tasks()
    session = supervisor.session(f"s{number}")
    run_id = session.ask(NewMessage(content=content), timeout=WAIT_S).run_id
    assert run_id is not None
    deadline = time.monotonic() + WAIT_S
    while step and f"<{step}>" not in said(session, run_id):
        assert time.monotonic() < deadline, f"step {step} of {content}: {session.runs()}"
        time.sleep(0.01)
    time.sleep(delay_s)
    if later is not None:
        session.ask(NewMessage(content=later, policy=Policy.INTERRUPT), timeout=WAIT_S)
    else:
        session.ask(Stop(source="user.test", reason="the test says so"), timeout=WAIT_S)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    threads, tasks = inside.threads(), inside.tasks()
    return Left(
        receipt,
        sorted(inside.pids() - before[0]),
        [name for ident, name in threads.items() if ident not in before[1]],
        [name for ident, name in tasks.items() if ident not in before[2]],
    )


def main() -> None:
    state_dir, mark, spelled, out, ends = sys.argv[1:]
    os.environ[mark] = "1"
    inside = Inside(spelled)
    supervisor = Supervisor.start(
        Config(
            state_dir=state_dir, agents={"test": inside.agent}, agent="test", grace_s=0.3, kill_s=0.5, subreaper=True
        )
    )
    with open(out, "wb") as file:
        file.writelines(
            msgspec.json.encode(end(supervisor, inside, number, told)) + b"\n"
            for number, told in enumerate(decoder(Ends)(ends))
        )
    # Threads and a blocked loop may go on for good.
    while there := [pid for pid in procfs.descendants() if (seen := procfs.stat(pid)) is not None and not seen.dead]:
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
