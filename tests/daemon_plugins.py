"""Agents that tests put into a daemon by its configuration, to see what a defect in it comes to."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from loguru import logger

from actors import AsyncTurn, Spawn, Turn, tool
from supervisor.daemon.logs import LINES_MAX
from supervisor.router import SupervisorActor
from supervisor.store.sqlite import SqliteStore

T = TypeVar("T")


class Never(threading.Event):
    """Work for the store's thread that it never comes back from."""

    def set(self) -> None:
        """Hang."""
        threading.Event().wait()


def hang(turn: Turn) -> None:
    """Hang the part that the message names, for good."""
    # A run with a call on record is not begun anew after a restart.
    turn.call("shell", script="true")
    part = turn.inputs[0].content
    while not gc.isenabled():
        # It is off until the daemon is ready: one that hangs before could not start.
        time.sleep(0.01)
    logger.info("hanging the {}", part)
    if part == "store":
        _only(SqliteStore)._queue.put(Never())
    else:
        actor: Any = _only(SupervisorActor)
        actor._pong = threading.Event().wait
    time.sleep(3600)


def deaf(turn: Turn) -> None:
    """Work on and on, and never look at the token."""
    turn.emit("working\n")
    threading.Event().wait()


def _only(kind: type[T]) -> T:
    # What was there when the daemon was ready is not listed otherwise.
    gc.unfreeze()
    (found,) = (one for one in gc.get_objects() if isinstance(one, kind))
    return found


def talks(turn: Turn) -> None:
    """Log from a plain agent, and from a tool on the event loop."""
    logger.info("the agent talks")
    turn.call("talk")


@tool(isolation="task")
async def talk() -> str:
    """Log from a tool."""
    logger.bind(colour="red").info("the tool talks")
    logging.getLogger("library").warning("the library talks")
    return "talked"


def floods(turn: Turn) -> None:
    """Log more than the log's queue holds."""
    for number in range(LINES_MAX + 5_000):
        logger.info("{} {}", number, "x" * 100)


def chatters(turn: Turn) -> None:
    """Log without a pause, until it is stopped."""
    while not turn.cancel_token.cancelled:
        logger.info("chatter")


@tool(isolation="thread")
def keep(seconds: str, spawn: Spawn) -> None:
    """Start a process that is the session's own."""
    spawn(["sleep", seconds], owner="session")


def keeps(turn: Turn) -> None:
    """Start what the message names for the session."""
    turn.call("keep", seconds=turn.inputs[0].content)


def _hears_nothing() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def leaves(turn: Turn) -> str:
    """Leave what the interpreter waits for at its end: threads that are no daemons, a worker of a pool, a child."""
    threading.Thread(target=threading.Event().wait).start()
    ThreadPoolExecutor().submit(threading.Event().wait)
    child = multiprocessing.get_context("fork").Process(target=_hears_nothing)
    child.start()
    logger.info("left a child: {}", child.pid)
    return turn.inputs[0].content


async def works_on(turn: AsyncTurn) -> None:
    """Block a thread of the loop's executor, for good."""

    def never_ends() -> None:
        logger.info("blocked")
        threading.Event().wait()

    await asyncio.to_thread(never_ends)


def loses(turn: Turn) -> str:
    """Start a process that leaves an orphan, which ends soon."""
    done = subprocess.run(["sh", "-c", "sleep 0.2 >&- & echo $!"], capture_output=True, text=True, check=True)
    logger.info("lost an orphan: {}", done.stdout.strip())
    return turn.inputs[0].content


def starts(turn: Turn) -> None:
    """Start a process without `spawn`, and wait for it."""
    turn.call("shell", script="true")
    with subprocess.Popen(["sleep", "1000"]) as process:
        logger.info("started a process: {}", process.pid)
