"""The end of a supervisor: again, interrupted, from inside of itself, from a signal handler, and in a forked child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from actors import AsyncTurn, Invalid, StateDirBusy, Turn
from supervisor import Config, Supervisor
from supervisor.lock import InstanceLock, held
from tests.kit import WAIT_S, Kit, say, until


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("countermand")]


def interrupt_when(condition: Any, signum: int = signal.SIGINT) -> threading.Thread:
    """Send this process a signal as soon as a condition holds."""

    def run() -> None:
        until(condition)
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def draining(supervisor: Supervisor) -> bool:
    return supervisor._drained and not ended(supervisor)


def ended(supervisor: Supervisor) -> bool:
    return not supervisor._undo


async def waits(turn: AsyncTurn) -> None:
    await turn.cancel_token.wait()


@pytest.mark.parametrize("drain_s", ["5", -1, float("inf"), float("nan"), True, [1]])
def test_a_close_that_cannot_be_right_is_refused_and_one_that_is_right_still_closes(kit: Kit, drain_s: Any) -> None:
    supervisor = kit.start()
    with pytest.raises(Invalid):
        supervisor.close(drain_s)
    assert not ended(supervisor)
    assert supervisor.close(0)
    assert not held(kit.state_dir)


def test_a_close_is_harmless_again_and_says_the_same(kit: Kit) -> None:
    supervisor = kit.start()
    assert supervisor.close()
    assert supervisor.close()
    assert ours() == []


def test_a_close_that_is_interrupted_in_the_drain_ends_everything_and_a_later_one_returns_false(kit: Kit) -> None:
    supervisor = kit.start(waits)
    say(supervisor.session("s"))
    sender = interrupt_when(lambda: draining(supervisor))
    with pytest.raises(KeyboardInterrupt):
        supervisor.close(WAIT_S)
    sender.join(WAIT_S)
    assert supervisor.close() is False, "nobody saw the sessions come to rest"
    assert ours() == []
    assert not held(kit.state_dir)
    kit.supervisor = None
    assert kit.start().close()


def test_a_close_that_is_interrupted_while_it_ends_things_is_finished_by_the_next(kit: Kit) -> None:
    supervisor = kit.start()

    def interrupted() -> None:
        if not once:
            once.append(1)
            raise KeyboardInterrupt

    once: list[int] = []
    supervisor._undo.insert(len(supervisor._undo) // 2, interrupted)
    with pytest.raises(KeyboardInterrupt):
        supervisor.close()
    assert held(kit.state_dir)
    assert supervisor.close()
    assert ours() == []
    assert not held(kit.state_dir)


def test_a_part_that_cannot_be_ended_keeps_no_other_from_being_ended(kit: Kit) -> None:
    supervisor = kit.start()

    def broken() -> None:
        raise RuntimeError("broken")

    supervisor._undo.append(broken)
    assert supervisor.close() is False
    assert ours() == []
    assert not held(kit.state_dir)


def test_a_signal_handler_that_closes_what_its_thread_is_closing_is_refused_and_blocks_nothing(kit: Kit) -> None:
    go = kit.gate()
    supervisor = kit.start(lambda turn: go.wait())
    say(supervisor.session("s"))
    told: list[bool] = []

    def handler(*_: object) -> None:
        told.append(supervisor.close())
        go.set()

    before = signal.signal(signal.SIGTERM, handler)
    try:
        sender = interrupt_when(lambda: draining(supervisor), signal.SIGTERM)
        # The run ends, and with it the drain, when the handler has its answer.
        supervisor.close(WAIT_S)
        sender.join(WAIT_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [False]
    assert ended(supervisor)


def test_a_close_beside_another_waits_for_it(kit: Kit) -> None:
    supervisor = kit.start(waits)
    say(supervisor.session("s"))
    answers: list[tuple[bool, bool]] = []

    def close() -> None:
        answers.append((supervisor.close(), ended(supervisor)))

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == [(True, True)] * 4


def test_an_async_agent_that_closes_its_supervisor_is_answered_and_everything_ends(kit: Kit) -> None:
    answers: list[bool] = []

    async def closes(turn: AsyncTurn) -> None:
        answers.append(supervisor.close(0))

    supervisor = kit.start(closes)
    say(supervisor.session("s"))
    until(lambda: answers, "the close from inside")
    assert answers == [False], "the run that closes cannot come to rest before it has closed"
    until(lambda: ours() == [], "the end of the loop that the agent was on")
    assert not held(kit.state_dir)


def test_a_plain_agent_and_a_callback_that_close_their_supervisor_are_answered(kit: Kit) -> None:
    answers: list[bool] = []

    def closes(turn: Turn) -> None:
        turn.cancel_token.add_callback(lambda: answers.append(supervisor.close(0)))
        answers.append(supervisor.close(0))

    supervisor = kit.start(closes)
    say(supervisor.session("s"))
    until(lambda: len(answers) == 2, "both answers")
    until(lambda: ours() == [], "the end of their threads")
    assert not held(kit.state_dir)


# ── Forked children ───────────────────────────────────────────────────────────────────────────────


class Child:
    """A child forked from this very process, which lives until it is told to go."""

    def __init__(self, body: Any = lambda: True) -> None:
        told, self._tell = os.pipe()
        heard, hears = os.pipe()
        self.pid = os.fork()  # noqa: TID251  # what a program around the supervisor may do
        if self.pid == 0:
            try:
                os.close(self._tell)
                os.write(hears, b"1" if body() else b"0")
                os.read(told, 1)
            finally:
                os._exit(0)
        os.close(told)
        os.close(hears)
        self.answer = os.read(heard, 1)
        os.close(heard)

    def end(self) -> None:
        os.close(self._tell)
        os.waitpid(self.pid, 0)


def test_a_forked_child_that_lives_on_does_not_keep_the_state_directory(kit: Kit) -> None:
    supervisor = kit.start()
    # While a process is being started, a copy of its pipes would hold up its start.
    until(lambda: supervisor._processes._zygotes.current is not None)
    child = Child()
    try:
        assert kit.close()
        assert not held(kit.state_dir)
        assert kit.start() is not supervisor
    finally:
        child.end()


def test_a_close_in_a_forked_child_returns_at_once_and_takes_nothing_from_the_parent(kit: Kit) -> None:
    supervisor = kit.start(waits)
    until(lambda: supervisor._processes._zygotes.current is not None)
    child = Child(supervisor.close)
    try:
        assert child.answer == b"0"
        assert held(kit.state_dir)
        with pytest.raises(StateDirBusy):
            Supervisor.start(Config(state_dir=kit.state_dir))
        say(supervisor.session("s"))
    finally:
        child.end()


def test_a_lock_that_a_forked_child_releases_stays_with_the_parent(kit: Kit) -> None:
    lock = InstanceLock(kit.state_dir)

    def release() -> bool:
        lock.release()
        return True

    child = Child(release)
    try:
        assert child.answer == b"1"
        assert held(kit.state_dir)
        lock.release()
        assert not held(kit.state_dir)
    finally:
        child.end()
        lock.release()


EMBEDDING = """
import asyncio
import sys
from loguru import logger
from actors import NewMessage
from supervisor import Config, Supervisor

if sys.argv[2] == "loud":
    logger.enable("actors")
    logger.enable("supervisor")

async def odd(turn):
    # Which goes on, and is worth a line.
    asyncio.get_running_loop().stop()

with Supervisor.start(Config(state_dir=sys.argv[1], agent="odd", agents={"odd": odd})) as supervisor:
    session = supervisor.session("s")
    session.receipt(session.ask(NewMessage(content="x")).run_id, timeout=30)
"""


@pytest.mark.parametrize("wish", ["", "loud"])
def test_in_a_program_that_embeds_it_nothing_is_logged_until_the_program_turns_it_on(kit: Kit, wish: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDING, str(kit.state_dir), wish], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert ("stopped the event loop" in done.stderr) is bool(wish)
    assert bool(done.stderr) is bool(wish)
