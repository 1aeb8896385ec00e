"""Makes `first_release.sqlite3` and `first_release.json`: a store that the first release wrote, and how it reads it.

It uses public names and the store's reader, and runs with the environment of the first release (commit 5207ecc):

    git archive 5207ecc | tar x -C FOLDER && FOLDER/scripts/run --version
    FOLDER/.venv/bin/python tests/data/make_first_release.py

A child runs a session `s1` in which everything has settled, leaves a run and two messages in `s2` unfinished, and is
killed. The store is copied then, into one file. What the first release reads in it is written down; then it recovers a
copy, and what it reads in `s2` is written down too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actors import AsyncSpawn, AsyncTurn, Delete, NewMessage, Resume, Stop, Withdraw, tool
from supervisor import Config, SessionHandle, Supervisor
from supervisor.store.reader import SqliteReader

HERE = Path(__file__).parent
STORE = "store.sqlite3"
WAIT_S = 30.0


@tool(isolation="task")
async def count(text: str, spawn: AsyncSpawn) -> int:
    """Count the bytes of a text, in a process."""
    process = await spawn(["wc", "-c"], stdin=text.encode())
    return int((await process.wait()).output)


@tool(isolation="task")
async def hold(spawn: AsyncSpawn) -> None:
    """Run a process that ends when it is told to."""
    await (await spawn(["sleep", "600"], name="held")).wait()


@tool(isolation="task")
async def keep(spawn: AsyncSpawn) -> str:
    """Start a process and hand it over to the session."""
    process = await spawn(["sleep", "600"], name="kept")
    await process.hand_over()
    return "kept"


@tool(isolation="task")
async def wait() -> None:
    """Wait without a process."""
    await asyncio.sleep(600)


async def worker(turn: AsyncTurn) -> dict[str, Any] | None:
    """Do what the last input says."""
    words = turn.inputs[-1].content.split(maxsplit=1) if turn.inputs else ["say", "resumed"]
    match words:
        case ["say", text]:
            await turn.emit(text)
            return {"said": text}
        case ["count", text]:
            await turn.emit("counting ")
            await turn.emit("bytes")
            counted = await turn.call("count", text=text)
            await turn.emit(f"counted {counted.content}")
        case ["call", name]:
            await turn.emit(f"calling {name}")
            await turn.call(name)
        case ["steered"]:
            while not (messages := await turn.steering()):  # noqa: ASYNC110  # nothing says that one has come
                await asyncio.sleep(0.05)
            await turn.emit(f"steered by {messages[0].content}")
        case ["fail"]:
            raise ValueError("it fails as it was asked to")
        case _:
            await turn.emit("nothing to do")
    return None


def config(folder: Path) -> Config:
    """Return how both lives are started."""
    return Config(state_dir=folder, agent="worker", agents={"worker": worker}, tools=[count, hold, keep, wait])


def until(holds: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def started(session: SessionHandle, kind: str, run_id: str | None) -> None:
    """Wait for an event of a kind of a run."""
    for event in session.subscribe(timeout=WAIT_S):
        if event.kind == kind and event.run_id == run_id:
            return
    raise TimeoutError


def live(folder: Path) -> None:
    """The child: the session, until it is killed."""
    supervisor = Supervisor.start(config(folder))
    session = supervisor.session("s1")
    # Messages, text, a call with a process.
    said = session.ask(NewMessage(content="say hello"))
    session.receipt(said.run_id, timeout=WAIT_S)
    counted = session.ask(NewMessage(content="count four"))
    session.receipt(counted.run_id, timeout=WAIT_S)
    # A Stop with its receipt, and one that came too late.
    held = session.ask(NewMessage(content="call hold"))
    started(session, "process.started", held.run_id)
    session.ask(Stop(source="user.demo", reason="seen enough"))
    session.receipt(held.run_id, timeout=WAIT_S)
    session.ask(Stop(source="user.demo", reason="too late", run_id=held.run_id))
    # A takeover, with a message that waits and is withdrawn before it.
    held = session.ask(NewMessage(content="call hold"))
    started(session, "process.started", held.run_id)
    waiting = session.ask(NewMessage(content="say never", policy="enqueue", origin="robot"))
    session.ask(Withdraw(message_id=waiting.message_id))
    taken = session.ask(NewMessage(content="say taken over"))
    for run_id in (held.run_id, taken.run_id):
        session.receipt(run_id, timeout=WAIT_S)
    # A rollback, of a run that was given what waited.
    held = session.ask(NewMessage(content="call wait"))
    started(session, "tool.started", held.run_id)
    rolled = session.ask(NewMessage(content="say rolled back", policy="rollback"))
    for run_id in (held.run_id, rolled.run_id):
        session.receipt(run_id, timeout=WAIT_S)
    # Steering, and a message that was too late for it.
    steered = session.ask(NewMessage(content="steered"))
    started(session, "run.started", steered.run_id)
    session.ask(NewMessage(content="say left", policy="steer"))
    session.receipt(steered.run_id, timeout=WAIT_S)
    # A failure; a Stop that parks, and a Resume.
    failed = session.ask(NewMessage(content="fail"))
    session.receipt(failed.run_id, timeout=WAIT_S)
    held = session.ask(NewMessage(content="call wait"))
    started(session, "tool.started", held.run_id)
    session.ask(NewMessage(content="say parked", policy="enqueue"))
    session.ask(Stop(source="client.demo", reason="for now", mode="immediate", waiting="park"))
    session.receipt(held.run_id, timeout=WAIT_S)
    resumed = session.ask(Resume())
    session.receipt(resumed.run_id, timeout=WAIT_S)
    # A tree that is handed over, and ended by a Stop of the session.
    kept = session.ask(NewMessage(content="call keep"))
    session.receipt(kept.run_id, timeout=WAIT_S)
    stopped = session.ask(Stop(source="user.demo", reason="all of it", scope="session"))
    session.receipt(stopped.receipt_id, timeout=WAIT_S)
    # A session that was deleted.
    gone = supervisor.session("gone")
    said = gone.ask(NewMessage(content="say gone"))
    gone.receipt(said.run_id, timeout=WAIT_S)
    gone.ask(Delete(source="user.demo", reason="not needed"))
    # What a crash cuts off.
    session = supervisor.session("s2")
    said = session.ask(NewMessage(content="say before"))
    session.receipt(said.run_id, timeout=WAIT_S)
    cut = session.ask(NewMessage(content="call wait"))
    started(session, "tool.started", cut.run_id)
    session.ask(NewMessage(content="say behind", policy="enqueue"))
    session.ask(NewMessage(content="say last", policy="enqueue", merge=False))
    print("ready", flush=True)
    signal.pause()


def read(store: SqliteReader, name: str) -> dict[str, Any]:
    """Return what is read of a session in the store."""
    runs = store.runs(name)
    return {
        "events": store.events(name),
        "thread": store.thread(name),
        "runs": runs,
        "receipts": {run.run_id: store.receipt(name, run.run_id) for run in runs},
        "stop_receipts": [
            store.receipt(name, event.data["receipt"]["receipt_id"])
            for event in store.events(name)
            if event.kind == "receipt.filed"
        ],
    }


def make() -> None:
    """Have a child make the store, copy it, and write down what is read in it."""
    folder, copied = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    child = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.kill()
    child.wait()
    store = HERE / "first_release.sqlite3"
    store.unlink(missing_ok=True)
    with sqlite3.connect(folder / STORE) as connection:
        connection.execute("VACUUM INTO ?", (str(store),))
    shutil.copy(store, copied / STORE)
    reader = SqliteReader(copied / STORE)
    before = {name: read(reader, name) for name in ("s1", "s2", "gone")}
    reader.close()
    with Supervisor.start(config(copied)) as supervisor:
        session = supervisor.session("s2")
        until(lambda: session.status().state == "idle" and not session.status().waiting)
        until(lambda: all(run.settled for run in supervisor.store.runs("s2")))
        after = read(supervisor.store, "s2")
    expected = {"stored": before, "recovered": {"s2": after}}
    (HERE / "first_release.json").write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=1) + b"\n")
    for used in (folder, copied):
        shutil.rmtree(used)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        live(Path(sys.argv[1]))
    else:
        make()
        os._exit(0)
