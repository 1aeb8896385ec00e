"""What ends the wait of an idle host: a run, or a signal that does not interrupt that wait.

Such a signal comes between the interpreter's last look at its flags and the system call that waits. That gap is made
to last here: the main thread blocks the signal, so that another thread of the host takes it.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from pathlib import Path

import pytest

from supervisor.hosts.runtime.wakeup import DRAIN_BYTES, Wakeup
from tests.host_kit import PATIENCE_S, Daemon, python_host

HEAD = """
        import asyncio, atexit, signal
        atexit.register(print, "flushed")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
"""
PLAIN = "def agent(turn): return 'well'"
ASYNC = "async def agent(turn): return 'well'"
PLAIN_WITH_A_LOOP = """
        async def loop_of_its_own():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print, "heard")
        def agent(turn):
            asyncio.run(loop_of_its_own())
"""
ASYNC_WITH_A_HANDLER = """
        async def agent(turn):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, print, "heard")
            loop.remove_signal_handler(signal.SIGUSR1)
"""


def wait_until_idle(host: Daemon) -> None:
    """Wait until the main thread sleeps."""
    pid, seen, deadline = host.process.pid, 0, time.monotonic() + PATIENCE_S
    while seen < 20:
        assert time.monotonic() < deadline, "the main thread does not sleep"
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
        seen = seen + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.005)


def wait_until_printed(host: Daemon, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while host.stdout() != text:
        assert time.monotonic() < deadline, (host.stdout(), host.stderr())
        time.sleep(0.005)


@pytest.mark.parametrize("agent", [PLAIN, ASYNC], ids=["plain", "async"])
def test_a_signal_that_does_not_interrupt_its_wait_ends_a_host_without_a_run(
    tmp_path: Path, python: str, agent: str
) -> None:
    with python_host(tmp_path, HEAD + 8 * " " + agent, python=python) as host:
        host.hello()
        host.ping()
        wait_until_idle(host)
        os.kill(host.process.pid, signal.SIGTERM)
        assert host.exit_status() == -signal.SIGTERM
        assert host.stdout() == "flushed\n"


@pytest.mark.parametrize(
    "agent",
    [8 * " " + PLAIN, 8 * " " + ASYNC, PLAIN_WITH_A_LOOP, ASYNC_WITH_A_HANDLER],
    ids=["plain", "async", "plain with a loop", "async with a handler"],
)
def test_a_signal_that_does_not_interrupt_its_wait_ends_a_host_between_two_runs(
    tmp_path: Path, python: str, agent: str
) -> None:
    with python_host(tmp_path, HEAD + agent, python=python) as host:
        host.hello()
        for number in (1, 2):
            assert "result" in host.answered(host.run(fence=f"s:{number}:", generation=number, run=f"run_{number}"))
        wait_until_idle(host)
        os.kill(host.process.pid, signal.SIGTERM)
        assert host.exit_status() == -signal.SIGTERM
        assert host.stdout() == "flushed\n"


def test_a_handler_that_an_async_agent_leaves_on_the_loop_is_called_while_its_host_is_idle(
    tmp_path: Path, python: str
) -> None:
    code = """
        async def agent(turn):
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print, "heard")
    """
    with python_host(tmp_path, HEAD + code, python=python) as host:
        host.hello()
        host.answered(host.run())
        wait_until_idle(host)
        os.kill(host.process.pid, signal.SIGUSR1)
        wait_until_printed(host, "heard\n")
        wait_until_idle(host)
        os.kill(host.process.pid, signal.SIGTERM)
        assert host.exit_status() == -signal.SIGTERM
        assert host.stdout() == "heard\nflushed\n"


def test_a_plain_agent_has_its_wakeup_descriptor_back_in_the_next_run(tmp_path: Path, python: str) -> None:
    code = """
        loop, heard = asyncio.new_event_loop(), []
        async def hear():
            heard.append(asyncio.Event())
            loop.add_signal_handler(signal.SIGUSR1, heard[0].set)
        def agent(turn):
            if not heard:
                return loop.run_until_complete(hear())
            turn.emit("up")
            loop.run_until_complete(heard[0].wait())
            return "heard"
    """
    with python_host(tmp_path, HEAD + code, python=python) as host:
        host.hello()
        host.answered(host.run())
        wait_until_idle(host)
        number = host.run(fence="s:2:", generation=2, run="run_2")
        host.take("emit")
        wait_until_idle(host)
        os.kill(host.process.pid, signal.SIGUSR1)
        assert host.answered(number)["result"]["value"] == "heard"


# ── The wakeup ──


def test_a_full_pipe_blocks_no_writer_and_ends_the_wait() -> None:
    wakeup, waiting = Wakeup(), queue.SimpleQueue[int]()
    for _ in range(DRAIN_BYTES + 10):
        wakeup.wake()
    waiting.put(1)
    assert wakeup.next_of(waiting) == 1


def test_the_descriptor_that_was_set_is_set_again_unless_it_was_closed() -> None:
    wakeup, waiting = Wakeup(), queue.SimpleQueue[int]()
    read, written = os.pipe()
    os.set_blocking(written, False)
    before = signal.set_wakeup_fd(written)
    try:
        waiting.put(1)
        wakeup.next_of(waiting)
        assert signal.set_wakeup_fd(written) == written
        os.close(written)
        waiting.put(2)
        assert wakeup.next_of(waiting) == 2
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
