"""One turn of a program: it is started or resumed where necessary, told what it has not seen, asked, and cancelled.

What differs from format to format is a `Talker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import CountermandError
from ..turn import AsyncTurn
from .calls import ToolCalls
from .program import Program, not_there
from .prompts import prompt

COMMAND = "COUNTERMAND_PROGRAM"
"""The variable with the program's command, as a list in JSON."""

SESSION, RUN = "session", "run"
"""What is saved: the id of the program's own session, and the run that asked it the last time."""


class SessionGone(CountermandError):
    """The program has no session with the id by which it was to be resumed."""


class Talker(Protocol):
    """A program that is spoken to in one format, and one session of it."""

    program: Program

    async def open(self, session: str | None) -> str:
        """Start the program with a session: a new one, or the one with this id. Returns its id.

        Raises:
            SessionGone: there is no such session; a new talker is to open a new one.
        """

    async def ask(self, turn: AsyncTurn, calls: ToolCalls, text: str) -> Any:
        """Prompt it, and pass on what it says and does until its turn has ended. Returns what is known of the end."""

    async def cancel(self) -> None:
        """Ask it to end its turn, and wait until it has. May be cut off at any moment."""


class _Kept:
    """The program of this host, and the id of its session."""

    talker: Talker | None = None
    session: str = ""


_kept = _Kept()


def command() -> list[str]:
    """Return the command of the program, from the environment; what it starts does not get that."""
    given = os.environ.pop(COMMAND, None)
    if given is not None:
        _command[:] = json.loads(given)
    return _command


_command: list[str] = []


def check() -> None:
    """Check that the program is there. Raises Invalid if it is not."""
    if shutil.which(command()[0]) is None:
        raise not_there(_command, "there is no such program")


async def converse(turn: AsyncTurn, name: str, make: Callable[[], Talker]) -> Any:
    """Have the program answer a turn.

    Args:
        turn: the turn.
        name: of the program, for texts.
        make: makes a talker, whose program has not been started.
    """
    known, seen = turn.state.get(SESSION), turn.state.get(RUN)
    talker, gone = _kept.talker, False
    if talker is None or not talker.program.alive or _kept.session != known:
        if talker is not None:
            await talker.program.end()
        talker, gone = await _opened(make, known)
    session = _kept.session
    # Before anything is said in this turn, which is no news to it.
    text = prompt(turn.messages, turn.inputs, None if gone or known is None else seen, gone=gone)
    if gone:
        await turn.emit(f"[{name} no longer has its session {known}. It starts a new one, told what was said.]\n")
    await turn.save(**{SESSION: session, RUN: turn.address.run})
    calls = ToolCalls(turn)
    talker.program.listen()
    try:
        value = await talker.ask(turn, calls, text)
        await calls.close()
    except asyncio.CancelledError:
        await _cancelled(turn, talker)
        raise
    finally:
        talker.program.ignore()
    return value


async def _opened(make: Callable[[], Talker], known: str | None) -> tuple[Talker, bool]:
    """Start the program and its session; returns True beside it if the one that was known is gone."""
    for session in (known, None):
        talker = _kept.talker = make()
        try:
            _kept.session = await talker.open(session)
        except SessionGone as error:
            sys.stderr.write(f"{error}\n")
            await talker.program.end()
        else:
            return talker, session != known
    raise AssertionError("a new session is not gone")


async def _cancelled(turn: AsyncTurn, talker: Talker) -> None:
    """Ask the program to cancel, and wait for that, but no longer than half of the grace."""
    asked = asyncio.ensure_future(talker.cancel())
    await asyncio.wait([asked], timeout=turn._run.grace_s / 2)
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError, CountermandError):
        await asked
