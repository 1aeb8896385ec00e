"""The end of a run in a host: it is told once, the clean-up is not disturbed, and every door tells it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host_kit import RUNTIME, interpreters, python_host

MOMENTS = Path(__file__).with_name("host_moments.py")

# ── At each moment ──


@pytest.mark.parametrize("python", [sys.executable, *interpreters()[2:3]])
@pytest.mark.parametrize("arguments", [("plain", "13", "0", "2", "160"), ("async", "41")])
def test_whenever_the_cancel_comes_it_is_raised_once_and_cuts_no_clean_up(python: str, arguments: tuple[str]) -> None:
    done = subprocess.run([python, str(MOMENTS), str(RUNTIME), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # As many moments as there were bytecodes.
    assert int(done.stdout) > 100


# ── An async agent ──


def test_each_further_method_of_the_turn_raises_the_cancel_again(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def agent(turn):
            seen = []
            try:
                await turn.emit("up")
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
            doors = (
                lambda: turn.emit("x"), lambda: turn.progress(x=1), turn.typing, turn.steering, lambda: turn.call("x"),
                lambda: turn.gate("x", {}, turn.typing),
            )
            for door in doors:
                try:
                    await door()
                except asyncio.CancelledError as error:
                    seen.append([type(error) is asyncio.CancelledError, error.provenance.reason])
            try:
                turn.cancel_token.raise_if_cancelled()
            except asyncio.CancelledError as error:
                seen.append(error.provenance.reason)
            return [seen, await turn.cancel_token.wait(), turn.cancel_token.provenance.mode, turn.cancelled_by.source]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        seen, *rest = host.answered(number)["result"]["value"]
        assert seen == [[True, "enough"]] * 6 + ["enough"]
        assert rest == [True, "graceful", "user.console"]


def test_where_it_waits_in_a_door_it_gets_the_class_itself_with_the_provenance(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def agent(turn):
            try:
                await turn.call("tool")
            except asyncio.CancelledError as error:
                await asyncio.sleep(0.01)
                return [type(error) is asyncio.CancelledError, error.provenance.reason]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        host.cancel(number)
        # The refusal that follows the cancel changes nothing.
        host.send(id=call["id"], error={"code": -32800, "message": "cancelled", "data": {"provenance": None}})
        assert host.answered(number)["result"]["value"] == [True, "enough"]


def test_task_groups_end_by_the_cancel_and_each_task_is_cancelled_once(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def child(turn, depth, how):
            try:
                if depth:
                    await group(turn, depth - 1)
                elif how == "door":
                    await turn.call("tool")
                elif how == "doors":
                    while True:
                        await asyncio.sleep(0)
                        turn.address
                        await turn.typing()
                else:
                    await asyncio.sleep(1000)
            except asyncio.CancelledError as error:
                assert type(error) is asyncio.CancelledError
                for _ in range(50):
                    await asyncio.sleep(0)
                print(depth, how)
                raise
        async def group(turn, depth):
            async with asyncio.TaskGroup() as group:
                for how in ("door", "doors", "sleep"):
                    group.create_task(child(turn, depth, how))
        async def agent(turn):
            await group(turn, 2)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run(credit={"events": 60, "bytes": 1_000_000})
        calls = 0
        # A group of 3, each with a group of 3, each with one of 3: of those 27 a third waits in a call.
        while calls < 9:
            calls += host.next()["method"] == "call"
        host.cancel(number)
        while "error" not in (answer := host.next()):
            assert answer["method"] == "typing"
        assert answer["error"]["code"] == -32800
        cleaned = sorted(host.stdout().splitlines())
        hows = ("door", "doors", "sleep")
        assert cleaned == sorted(
            f"{depth} {how}" for depth in range(3) for how in hows for _ in range(3 ** (2 - depth))
        )


def test_ones_own_time_limit_ends_the_call_alone_and_is_no_cancel(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio
        async def agent(turn):
            call = asyncio.ensure_future(turn.call("tool", n=1))
            await asyncio.sleep(0)
            await turn.emit("asked")
            call.cancel()
            try:
                await call
            except asyncio.CancelledError as error:
                await turn.emit("ended")
                return [turn.cancelled_by, hasattr(error, "provenance"), turn.messages[-2].content]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        host.take("emit")
        assert host.take("$/cancel_request")["params"] == {"requestId": call["id"], "fence": "s:1:"}
        # The agent goes on when the result is in its thread, and not before.
        host.ping()
        host.answer(call, call="c1", outcome="interrupted", content="nobody waited", is_error=True)
        host.take("emit")
        # The text opened a message of its own behind the result.
        assert host.answered(number)["result"]["value"] == [None, False, "nobody waited"]


def test_a_cancel_that_comes_with_the_run_or_after_it_does_no_harm(tmp_path: Path, python: str) -> None:
    for kind in ("def", "async def"):
        code = f"""
            {kind} agent(turn):
                return "begun"
        """
        with python_host(tmp_path, code, python=python) as host:
            host.hello()
            number = host.run()
            assert host.answered(number)["result"]["value"] == "begun"
            host.cancel(number)
            host.ping()
            second = host.run(fence="s:2:", generation=2)
            host.cancel(second, fence="s:2:")
            host.cancel(second, fence="s:2:", reason="again")
            answer = host.answered(second)
            assert answer.get("result") == {"value": "begun"} or answer["error"]["code"] == -32800
            if "error" in answer:
                assert answer["error"]["data"]["provenance"]["reason"] == "enough"


def test_an_agent_that_blocks_its_loop_is_cancelled_when_it_lets_go(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    code = """
        import asyncio
        async def agent(turn):
            await turn.emit("up")
            open("gate").read()
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "told"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        host.ping()
        (tmp_path / "gate").write_text("")
        assert host.answered(number)["result"]["value"] == "told"


def test_a_clean_up_that_fails_is_said_and_one_that_returns_counts_as_a_return(tmp_path: Path) -> None:
    for body, key, value in [("raise ValueError('x')", "error", "ValueError: x"), ("return 7", "result", 7)]:
        code = f"""
            import asyncio
            async def agent(turn):
                try:
                    await turn.call("tool")
                finally:
                    {body}
        """
        with python_host(tmp_path, code) as host:
            host.hello()
            number = host.run()
            host.take("call")
            host.cancel(number)
            answer = host.answered(number)[key]
            assert answer.get("message", answer.get("value")) == value


def test_exit_functions_may_run_a_loop_and_processes_are_not_joined(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio, atexit, concurrent.futures, time
        async def flush():
            print("flushed")
        atexit.register(lambda: asyncio.run(flush()))
        atexit.register(lambda: 1 / 0)
        async def agent(turn):
            pool = concurrent.futures.ProcessPoolExecutor(1)
            work = asyncio.get_running_loop().run_in_executor(pool, time.sleep, 1000)
            await turn.emit("up")
            await work
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800
        assert host.stdout() == "flushed\n"
        assert "ZeroDivisionError" in host.stderr()


# ── A plain agent ──


@pytest.mark.parametrize(
    "blocks",
    [
        "time.sleep(1000)",
        "os.read(os.pipe()[0], 1)",
        "threading.Event().wait()",
        "queue.Queue().get()",
        "select.select([os.pipe()[0]], [], [])",
        "subprocess.run(['sleep', '1000'])",
        "exec('while True: pass')",
        "turn.call('tool')",
        "turn.cancel_token.wait() and turn.typing()",
    ],
)
def test_whatever_blocks_a_plain_agent_is_interrupted_once(tmp_path: Path, blocks: str) -> None:
    code = f"""
        import os, queue, select, subprocess, threading, time
        from countermand import RunCancelled
        def agent(turn):
            told = []
            try:
                turn.emit("up")
                {blocks}
            except RunCancelled as error:
                told.append(error.provenance.reason)
                # A clean-up of many steps: the signal comes again and again until the agent was told, and no more.
                for _ in range(20):
                    time.sleep(0.005)
            try:
                turn.emit("x")
            except RunCancelled as error:
                told.append(error.provenance.source)
            return told
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        if "call" in blocks:
            host.take("call")
        host.cancel(number)
        assert host.answered(number)["result"]["value"] == ["enough", "user.console"]


def test_a_loop_that_a_plain_agent_runs_is_ended_as_it_is_used_to(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio
        async def other():
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.01)
                print("other")
        async def main(turn):
            task = asyncio.ensure_future(other())
            await asyncio.sleep(0)
            try:
                await asyncio.get_running_loop().run_in_executor(None, turn.emit, "up")
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
                print("main")
                raise
        def agent(turn):
            asyncio.run(main(turn))
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800
        assert host.stdout() == "main\nother\n"


def test_other_threads_of_a_plain_agent_are_cancelled_by_the_methods_of_the_turn(tmp_path: Path) -> None:
    code = """
        import threading
        from countermand import RunCancelled
        def agent(turn):
            seen = []
            def work():
                try:
                    turn.call("tool")
                except RunCancelled as error:
                    seen.append(error.provenance.reason)
            thread = threading.Thread(target=work)
            thread.start()
            try:
                turn.call("tool")
            except RunCancelled:
                thread.join()
            return seen
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("call")
        host.take("call")
        host.cancel(number)
        assert host.answered(number)["result"]["value"] == ["enough"]


def test_an_agent_with_a_handler_of_its_own_gets_one_signal(tmp_path: Path) -> None:
    code = """
        import signal, time
        def agent(turn):
            count = 0
            def handle(*_):
                nonlocal count
                count += 1
            signal.signal(signal.SIGINT, handle)
            turn.emit("up")
            while not count:
                time.sleep(0.01)
            time.sleep(0.2)
            return count
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        # In the door the handler is not needed: it is left, and looks.
        host.take("emit")
        host.cancel(number)
        answer = host.answered(number)
        assert answer.get("result") == {"value": 1} or answer["error"]["code"] == -32800


def test_an_interrupt_from_elsewhere_is_no_cancel(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    for kind in ("def", "async def"):
        code = f"{kind} agent(turn):\n    return open('gate').read()\n"
        with python_host(tmp_path, code) as host:
            host.hello()
            os.kill(host.process.pid, signal.SIGINT)
            number = host.run()
            os.kill(host.process.pid, signal.SIGINT)
            host.ping()
            (tmp_path / "gate").write_text("on")
            assert host.answered(number)["result"]["value"] == "on"


def test_callbacks_of_the_token_run_once(tmp_path: Path) -> None:
    code = """
        import queue
        from countermand import RunCancelled
        def agent(turn):
            called = queue.Queue()
            turn.cancel_token.add_callback(lambda: called.put("first"))
            turn.cancel_token.add_callback(lambda: called.put("removed"))()
            try:
                turn.call("tool")
            except RunCancelled:
                turn.cancel_token.add_callback(lambda: called.put("late"))
            return sorted([called.get(), called.get()]) + [called.empty()]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("call")
        host.cancel(number)
        assert host.answered(number)["result"]["value"] == ["first", "late", True]


def test_an_agent_that_has_the_classes_of_the_daemons_process_catches_them(tmp_path: Path) -> None:
    code = """
        import countermand
        from actors import RunCancelled
        def agent(turn):
            try:
                turn.call("tool")
            except RunCancelled as error:
                return [isinstance(error, countermand.RunCancelled), error.provenance.reason, str(error)]
    """
    root = str(RUNTIME.parents[2])
    with python_host(tmp_path, code, env={"COUNTERMAND_PATH": root}) as host:
        host.hello()
        number = host.run()
        host.take("call")
        host.cancel(number)
        value = host.answered(number)["result"]["value"]
        assert value == [True, "enough", "cancelled by user.console: enough"]
