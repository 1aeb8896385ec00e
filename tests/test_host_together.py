"""The daemon's side of hosts and the runtime of Python agents, together: only the session is played."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.gate.pending import settle
from actors.hosts import ToolOffer
from actors.messages import CallRequested, ProcessEnded, ProcessExited, ToolResult
from actors.model import How, Outcome
from actors.ports import SpawnSpec
from supervisor.agent import Agent
from supervisor.clock import SystemClock
from supervisor.hosts.pool import HostPool
from supervisor.ids import RandomIds
from tests.channel_kit import WAIT_S
from tests.host_kit import RUNTIME
from tests.pool_kit import NAME, SESSION, SETTINGS, Execution, OneRun, Trees, message
from tests.process_kit import until


class Commands(Trees):
    """Processes that are started, without wardens."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.started: dict[str, tuple[subprocess.Popen[bytes], threading.Thread]] = {}

    def spawn(self, process_id: str, spec: SpawnSpec, owner: Any, session: str = "") -> None:
        assert spec.channel is not None
        channel = os.dup(spec.channel)
        env = {**os.environ, **spec.env, "COUNTERMAND_CHANNEL": str(channel)}
        process = subprocess.Popen(spec.argv, cwd=self.folder, env=env, pass_fds=[channel])
        os.close(channel)

        def report() -> None:
            status = process.wait()
            owner.tell(ProcessExited(process_id, status, 1.0, 1.0, "", 0, lossy=False, held=False))
            owner.tell(ProcessEnded(process_id, How.EXIT, proven=True, at=1.0))

        thread = threading.Thread(target=report)
        thread.start()
        self.started[process_id] = (process, thread)

    def set_nice(self, process_id: str, nice: int) -> None:
        """They are as nice as this process."""

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        self.started[process_id][0].terminate()

    def read_output(self, process_id: str) -> None:
        """They print where this process does."""

    def forget(self, process_id: str) -> None:
        """Nothing is kept of them."""

    def close(self) -> None:
        for process, thread in self.started.values():
            process.kill()
            thread.join(WAIT_S)


@contextmanager
def started(folder: Path, code: str, *options: str) -> Iterator[tuple[HostPool, Commands]]:
    (folder / "mine.py").write_text(textwrap.dedent(code))
    spec = Agent(name=NAME, command=(sys.executable, str(RUNTIME), "mine:agent", *options), keep="session")
    clock, commands = SystemClock(), Commands(folder)
    pool = HostPool(commands, clock, RandomIds(), {NAME: spec}, SETTINGS, elsewhere=lambda callback: callback())
    pool.start()
    try:
        yield pool, commands
    finally:
        assert pool.close()
        commands.close()
        clock.close()


def begin(pool: HostPool, run: OneRun, *tools: ToolOffer, kept: str | None = None) -> str:
    process_id = pool.reserve(NAME, SESSION, kept)
    pool.run(process_id, run.core, tools, run.finish)
    return process_id


def wait_for_texts(run: OneRun, count: int) -> None:
    until(lambda: len(run.said()) == count, f"{count} texts")


def wait_for_file(path: Path) -> None:
    until(path.exists, str(path))


def reply(call: CallRequested, result: ToolResult) -> None:
    assert call.reply is not None
    settle(call.reply, result)


def give_back(run: OneRun, stop: threading.Event) -> None:
    """Do as a session does: what was said is in the log, and its credit is back."""
    done = 0
    while not stop.wait(0.001):
        told = list(run.told)
        for said in told[done:]:
            if hasattr(said, "size"):
                run.credit.give(said.size)
        done = len(told)


STORY = """
    import asyncio
    from countermand import tool

    @tool(isolation="thread")
    def double(number: int) -> int:
        '''Double it.'''
        return 2 * number

    async def agent(turn):
        await turn.emit("hears " + turn.inputs[-1].content)
        answer = await turn.call("shell", script="make")
        async def closure():
            await turn.progress(done=1)
            return {"seen": answer.content}
        seen = await turn.gate("look", {"at": "it"}, closure, deadline_s=9)
        twice = await turn.call("double", number=21)
        for number in range(500):
            await turn.emit(f"{number} ")
        await turn.emit("x" * 10_000)
        contents = [message.content for message in turn.messages]
        return [seen, twice.content, [one["name"] for one in turn.tools], contents]
"""


def test_a_run_says_calls_gates_and_returns(tmp_path: Path) -> None:
    with started(tmp_path, STORY, "--tool", "mine:double") as (pool, _):
        run, stop = OneRun(thread=[message("m1", "hello")]), threading.Event()
        giver = threading.Thread(target=give_back, args=(run, stop))
        giver.start()
        try:
            begin(pool, run, ToolOffer("shell", "Run it.", {"type": "object"}))
            call = run.call()
            assert (call.tool, call.arguments) == ("shell", {"script": "make"})
            reply(call, ToolResult(Outcome.FINISHED, "made"))
            for which, name, content in ((1, "look", '{"seen":"made"}'), (2, "double", "42")):
                call = run.call(which)
                assert call.tool == name
                result = Execution(call, run.token).end()
                assert (result.content, result.is_error) == (content, False)
                reply(call, result)
            done = run.end()
        finally:
            stop.set()
            giver.join(WAIT_S)
        assert (done.how, done.error) == (How.RETURNED, None)
        numbers = "".join(f"{number} " for number in range(500))
        long = numbers + "x" * 10_000
        thread = ["hello", "hears hello", "made", "", '{"seen":"made"}', "", "42", long]
        assert done.result == [{"seen": "made"}, "42", ["double", "shell"], thread]
        assert "".join(run.said()) == "hears hello" + long


def test_a_flood_that_is_not_read_waits_and_a_cancel_ends_it(tmp_path: Path) -> None:
    for kind, wait in (("def", ""), ("async def", "await ")):
        code = f"""
            {kind} agent(turn):
                while True:
                    {wait}turn.emit("more")
        """
        with started(tmp_path, code) as (pool, _):
            run = OneRun()
            begin(pool, run)
            wait_for_texts(run, SETTINGS.credit_events)
            run.cancel()
            assert run.end().how == How.CANCELLED
            assert len(run.said()) == SETTINGS.credit_events


def test_a_cancel_reaches_a_closure_and_the_agent_and_both_are_answered(tmp_path: Path) -> None:
    for kind, wait, sleep in (("def", "", "time.sleep"), ("async def", "await ", "await asyncio.sleep")):
        code = f"""
            import asyncio, time
            {kind} closure():
                open("begun", "w").close()
                {sleep}(1000)
            {kind} agent(turn):
                try:
                    {wait}turn.gate("f", {{}}, closure)
                finally:
                    {sleep}(0.01)
                    open("cleaned", "w").close()
        """
        folder = tmp_path / kind.replace(" ", "")
        folder.mkdir()
        with started(folder, code) as (pool, _):
            run = OneRun()
            begin(pool, run)
            execution = Execution(run.call(), run.token)
            wait_for_file(folder / "begun")
            run.cancel()
            assert run.end().how == How.CANCELLED
            assert isinstance(execution.end(), BaseException)
            assert (folder / "cleaned").exists()


def test_a_host_that_is_kept_gets_the_next_run_and_its_exit_functions_run_at_its_end(tmp_path: Path) -> None:
    code = """
        import atexit, os
        atexit.register(lambda: open("flushed", "w").close())
        def agent(turn):
            return os.getpid()
    """
    with started(tmp_path, code) as (pool, commands):
        first = OneRun()
        process_id = begin(pool, first)
        pid = first.end().result
        pool.keep(process_id, SESSION, lambda why: None)
        second = OneRun(generation=5)
        assert begin(pool, second, kept=process_id) == process_id
        assert second.end().result == pid
        commands.kill(process_id, 1.0)
        assert commands.started[process_id][0].wait(WAIT_S) == -signal.SIGTERM
        assert (tmp_path / "flushed").exists()


def test_an_agent_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    with started(tmp_path, "import nothing_of_that_name\n") as (pool, _):
        run = OneRun()
        begin(pool, run)
        error = run.end().error
        assert error is not None
        assert "No module named 'nothing_of_that_name'" in error
        assert "mine.py, line 1" in error
