"""The runtime of Python agents in hosts: the real file, started by a real interpreter; the daemon is played by hand.

The file has over 600 lines, and is whole: a section for each part of the one file that it starts.
"""

from __future__ import annotations

import ast
import glob
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host_kit import RUNTIME, Daemon, python_host

ECHO = """
    from countermand import AsyncTurn

    async def agent(turn: AsyncTurn) -> str:
        await turn.emit("you said " + turn.inputs[0].content)
        return turn.address.fence
"""


# ── The file ──


SHARED = RUNTIME.parents[2] / "actors" / "plugin" / "rendering.py"
"""Loaded in a host too."""
SOURCES = [RUNTIME, SHARED, *sorted((RUNTIME.parent / "runtime").glob("*.py"))]


def executed(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a file, without what is there for type checkers alone."""
    for node in tree.body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from ast.walk(node)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_it_is_written_for_python_3_9(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_it_needs_the_standard_library_and_itself_alone(source: Path) -> None:
    nodes = list(executed(ast.parse(source.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names |= {node.module or "" for node in froms if not node.level}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert all(node.level <= 1 for node in froms)


def test_an_interpreter_that_is_too_old_is_refused_with_the_reason(tmp_path: Path) -> None:
    old = next((path for path in glob.glob(os.path.expanduser("~/.pyenv/versions/3.8.*/bin/python3"))), None)
    if old is None:
        pytest.skip("there is no Python 3.8")
    with python_host(tmp_path, ECHO, python=old) as host:
        assert host.exit_status() == 64
        assert "needs Python 3.9, or later" in host.stderr()


# ── Hello ──


def test_an_agent_runs_and_its_value_is_the_answer(tmp_path: Path, python: str) -> None:
    with python_host(tmp_path, ECHO, python=python) as host:
        hello = host.hello()
        assert hello["protocol"] == [1]
        assert hello["runtime"].startswith("python 3.")
        assert hello["agent"] == {"async": True}
        assert {"credit", "ping"} <= set(hello["can"])
        number = host.run()
        assert host.take("emit")["params"] == {"fence": "s:1:", "text": "you said hi"}
        assert host.answered(number)["result"] == {"value": "s:1:"}


def test_the_turn_has_the_span_of_the_sender_of_the_message(tmp_path: Path, python: str) -> None:
    for kind in ("def", "async def"):
        with python_host(tmp_path, f"{kind} agent(turn): return turn.traceparent", python=python) as host:
            host.hello()
            number = host.run(_meta={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
            assert host.answered(number)["result"]["value"].startswith("00-0af7")
            others: list[dict[str, Any]] = [{}, {"_meta": None}, {"_meta": {"other": 1}}]
            for run, more in enumerate(others, start=2):
                number = host.run(fence=f"s:{run}:", generation=run, run=f"run_{run}", **more)
                assert host.answered(number)["result"]["value"] is None


def test_the_thread_of_a_run_is_kept_for_the_next_one_whatever_the_agent_does_with_it(
    tmp_path: Path, python: str
) -> None:
    code = """
        import copy

        async def agent(turn):
            seen = copy.deepcopy([
                [one.id, one.content, [call.arguments for call in one.tool_calls], [part.data for part in one.parts]]
                for one in turn.messages
            ])
            for one in turn.messages:
                for has in (*[call.arguments for call in one.tool_calls], *[part.data for part in one.parts]):
                    has["changed"] = has["a"].append("changed")
            return seen
    """
    call = {"id": "c1", "name": "shell", "arguments": {"a": [1]}}
    block = {"type": "block", "provider": "p", "data": {"a": [2]}}
    called = {"id": "m1", "role": "assistant", "content": "", "tool_calls": [call], "parts": [block]}
    wanted = [["m1", "", [{"a": [1]}], [{"a": [2]}]], ["m2", "two", [], []], ["m3", "three", [], []]]

    def message(number: int, content: str) -> dict[str, Any]:
        return {"id": f"m{number}", "role": "user", "content": content}

    with python_host(tmp_path, code, python=python) as host:
        assert "thread_from" in host.hello()["can"]

        def seen(**params: Any) -> Any:
            return host.answered(host.run(**params))["result"]["value"]

        assert seen(thread=[called, message(2, "two")]) == wanted[:2]
        assert seen(thread=[message(3, "three")], thread_from=2) == wanted
        assert seen(thread=[], thread_from=3) == wanted
        assert seen(thread=[message(2, "other")], thread_from=1) == [wanted[0], ["m2", "other", [], []]]
        refused = host.answered(host.run(thread=[], thread_from=3))
        assert refused["error"]["code"] == -32602
        assert "the last run came with 2 messages, and 3 are left out" in refused["error"]["message"]
        assert seen(thread=[message(3, "three")]) == wanted[2:], "it goes on"


def test_a_module_that_is_not_installed_is_reported_in_a_line_with_its_place_and_ends_the_host(
    tmp_path: Path, python: str
) -> None:
    with python_host(tmp_path, "import os\nimport no_such_module_here\n", python=python) as host:
        assert host.hello()["error"] == (
            f"No module named 'no_such_module_here' ({tmp_path / 'mine.py'}, line 2), when mine:agent was loaded; "
            f"expected it to be installed for {python}, or in a directory of the key 'path'; to do: install the "
            "package that has it, or name an interpreter that has it in the key 'python'"
        )
        assert host.exit_status() == 3
        assert host.stderr() == ""


def test_a_package_that_says_what_it_lacks_is_reported_in_a_line(tmp_path: Path) -> None:
    code = """
        try:
            import no_such_module_here
        except ImportError as error:
            raise ImportError("install mine[more]") from error
    """
    with python_host(tmp_path, code) as host:
        assert host.hello()["error"].startswith("ImportError: install mine[more] (")
        assert host.exit_status() == 3
        assert host.stderr() == ""


def test_an_error_of_the_agents_own_code_is_reported_with_its_traceback(tmp_path: Path) -> None:
    code = """
        from countermand import tool

        @tool(timeout_s=-1)
        def wrong() -> None: ...
    """
    with python_host(tmp_path, code) as host:
        assert "mine.py, line 4), when mine:agent was loaded" in host.hello()["error"]
        assert host.exit_status() == 3
        assert "Traceback" in host.stderr()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1", "has no attribute 'agent'"),
        ("agent = 1", "is not a function"),
        ("raise SystemExit('no key')", "SystemExit: no key"),
        ("def agent(turn):\n  return (", "SyntaxError"),
        ("def agent(turn): ...\ndef prepare():\n  raise KeyError('MODEL')", "KeyError: 'MODEL'"),
    ],
)
def test_whatever_an_import_raises_is_the_error_of_hello(tmp_path: Path, code: str, said: str) -> None:
    with python_host(tmp_path, code) as host:
        assert said in host.hello()["error"]
        assert host.exit_status() == 3


def test_a_daemon_that_refuses_the_host_ends_it(tmp_path: Path) -> None:
    with python_host(tmp_path, ECHO) as host:
        frame = host.take("hello")
        host.send(id=frame["id"], error={"code": -32002, "message": "no common protocol", "data": {"expected": [9]}})
        assert host.exit_status() == 3
        assert "no common protocol; expected [9]" in host.stderr()


def test_a_daemon_that_closes_the_socket_ends_the_host(tmp_path: Path) -> None:
    code = """
        import time
        def agent(turn):
            turn.emit("up")
            while True:
                try:
                    time.sleep(1000)
                except BaseException:
                    pass
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        host.run()
        host.take("emit")
        host.sock.close()
        assert host.exit_status() == 75


def test_a_host_without_its_variable_says_how_it_is_started(tmp_path: Path) -> None:
    with Daemon(["env", "-u", "COUNTERMAND_CHANNEL", sys.executable, str(RUNTIME), "mine:agent"], tmp_path) as host:
        assert host.exit_status() == 64
        assert "module:function" in host.stderr()


def test_what_the_agent_starts_has_neither_the_socket_nor_its_number(tmp_path: Path) -> None:
    code = """
        import os, subprocess, sys
        LOOK = "import os; print(os.environ.get('COUNTERMAND_CHANNEL'), sorted(os.listdir('/proc/self/fd')))"
        def agent(turn):
            # Not even if all that may be inherited is.
            return subprocess.run([sys.executable, "-c", LOOK], close_fds=False, stdout=subprocess.PIPE).stdout.decode()
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        # 3 is the folder that is listed.
        assert host.answered(host.run())["result"]["value"] == "None ['0', '1', '2', '3']\n"


def test_the_modules_beside_the_runtime_are_not_the_agents(tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "theirs.py").write_text("NAME = 'theirs'")
    code = """
        import importlib.util, os, sys, theirs
        def agent(turn):
            hidden = importlib.util.find_spec("countermand_host") is None
            return [hidden, theirs.NAME, os.environ.get("COUNTERMAND_PATH")]
    """
    with python_host(tmp_path, code, env={"COUNTERMAND_PATH": str(extra)}) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == [True, "theirs", None]


# ── Values and errors ──


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        ("None", None),
        ("{'a': (1, 2.5, True, None), 3: {'x'}}", {"a": [1, 2.5, True, None], "3": ["x"]}),
        ("[float('nan'), 10 ** 30, 'half \\ud83d']", [None, str(10**30), "half \ufffd"]),
        ("Colour.RED", "red"),
        ("Point(1, 2)", {"x": 1, "y": 2}),
        ("[ring]", [["(contains itself)"]]),
        ("Odd()", "(Odd: cannot be shown)"),
        ("datetime.date(2031, 5, 1)", "2031-05-01"),
    ],
)
def test_a_value_becomes_json(tmp_path: Path, returned: str, value: object) -> None:
    code = f"""
        import dataclasses, datetime, enum
        class Colour(enum.Enum):
            RED = "red"
        @dataclasses.dataclass
        class Point:
            x: int
            y: int
        class Odd:
            def __repr__(self): raise ValueError
        ring = []
        ring.append(ring)
        def agent(turn):
            return {returned}
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == value


def test_a_value_that_is_too_large_is_cut_to_the_beginning_of_its_text(tmp_path: Path) -> None:
    with python_host(tmp_path, "def agent(turn):\n    return ['x' * 9_000_000]\n") as host:
        host.hello()
        value = host.answered(host.run())["result"]["value"]
        assert value.startswith('["xxx')
        assert value.endswith("more bytes]")
        assert len(value) < 1_100_000


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    ("body", "name", "text"),
    [
        ("raise KeyError('x')", "KeyError", "'x'"),
        ("raise SystemExit(4)", "SystemExit", "4"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise asyncio.CancelledError", "CancelledError", ""),
        ("return open_ended()", "Invalid", "code that is never run"),
        ("raise Odd", "Odd", "could not be made"),
    ],
)
def test_what_an_agent_raises_is_the_answer_and_the_host_lives_on(
    tmp_path: Path, kind: str, body: str, name: str, text: str
) -> None:
    code = f"""
        import asyncio
        class Odd(Exception):
            def __str__(self): raise ValueError
        async def open_ended(): ...
        {kind} agent(turn):
            if turn.address.generation == 1:
                {body}
            return "well"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        error = host.answered(host.run())["error"]
        assert error["code"] == -32000
        assert error["message"].startswith(f"{name}: ")
        assert error["data"]["type"] == name
        assert text in error["data"]["message"]
        assert "mine.py" in host.stderr() or name == "Invalid"
        assert host.answered(host.run(fence="s:2:", generation=2))["result"]["value"] == "well"


def test_what_tasks_and_threads_raise_does_not_end_the_host(tmp_path: Path) -> None:
    code = """
        import asyncio, threading
        async def ends():
            raise SystemExit(9)
        async def fails():
            raise ValueError("a task failed")
        def thread():
            raise ValueError("a thread failed")
        async def agent(turn):
            tasks = [asyncio.ensure_future(one()) for one in (ends, fails)]
            await asyncio.wait(tasks)
            one = threading.Thread(target=thread)
            one.start()
            one.join()
            await turn.emit("on")
            return "well"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        assert host.answered(number)["result"]["value"] == "well"
        assert "a thread failed" in host.stderr()


def test_an_agent_may_close_its_output_and_fail(tmp_path: Path) -> None:
    code = """
        import sys
        def agent(turn):
            sys.stdout.close()
            sys.stderr.close()
            raise ValueError("no words")
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert host.answered(host.run())["error"]["message"] == "ValueError: no words"
        # What cannot be reported does not end the thread that reports it.
        host.send(method="credit", params={})
        number = host.run(fence="s:2:")
        host.send(method="credit", params={})
        assert host.answered(number)["error"]["code"] == -32000
        host.ping()


# ── The wire ──


def test_the_wire_answers_while_the_agent_blocks_its_loop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    code = """
        async def agent(turn):
            await turn.emit("up")
            return open("gate").read()
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.ping()
        (tmp_path / "gate").write_text("through")
        assert host.answered(number)["result"]["value"] == "through"


def test_what_it_does_not_know_or_may_not_do_is_answered(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with python_host(tmp_path, "def agent(turn):\n    return open('gate').read()\n") as host:
        host.hello()
        host.send(method="no_such_thing", params={})
        assert host.answered(host.request("no_such_thing"))["error"]["code"] == -32601
        assert host.answered(host.request("run", fence="s:1:"))["error"]["code"] == -32602
        assert host.answered(host.request("execute", fence="s:1:c", call="c", of=77))["error"]["code"] == -32800
        number = host.run()
        refused = host.answered(host.run(fence="s:2:", generation=2))["error"]
        assert (refused["code"], refused["data"]["code"]) == (-32003, "run_active")
        host.cancel(999)
        host.send(method="credit", params={"fence": "s:0:", "events": 1, "bytes": 1})
        host.send(method="credit", params={})
        host.ping()
        (tmp_path / "gate").write_text("on")
        assert host.answered(number)["result"]["value"] == "on"


def test_a_long_text_is_said_in_pieces_and_what_is_no_text_is_refused(tmp_path: Path) -> None:
    code = """
        from countermand import Invalid
        def agent(turn):
            turn.emit("")
            turn.emit("\\U0001f600" * 40_000 + "\\ud800")
            turn.progress(done=0.5)
            turn.typing()
            refused = []
            for wrong in (lambda: turn.emit(7), lambda: turn.progress(x="x" * 2_000_000), lambda: turn.call(7),
                          lambda: turn.call("big", x="x" * 9_000_000), lambda: turn.gate("f", None, print),
                          lambda: turn.gate("f", {}, print, deadline_s=-1)):
                try:
                    wrong()
                except Invalid as error:
                    refused.append(error.code)
            return refused
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        frames = [host.take("emit") for _ in range(3)]
        assert all(len(frame["params"]["text"].encode()) <= 65_536 for frame in frames)
        assert "".join(frame["params"]["text"] for frame in frames) == "\U0001f600" * 40_000 + "\ufffd"
        assert host.take("progress")["params"]["data"] == {"done": 0.5}
        assert host.take("typing")["params"] == {"fence": "s:1:"}
        assert host.answered(number)["result"]["value"] == ["invalid"] * 6


def test_a_line_for_the_log_comes_once_the_daemon_knows_the_host(tmp_path: Path) -> None:
    code = """
        from countermand import log
        log("at import")
        def agent(turn):
            log("a line", "warning", left=3)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        assert host.take("log")["params"] == {"level": "warning", "text": "a line", "fields": {"left": 3}}
        host.answered(number)
        assert "at import" in host.stderr()


def test_what_it_prints_is_there_before_what_it_says_next(tmp_path: Path) -> None:
    code = """
        def agent(turn):
            print("printed")
            turn.call("tool")
            print("no newline", end="")
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        assert host.stdout() == "printed\n"
        host.answer(call, call="c1", outcome="finished", content="", is_error=False, data=None)
        host.answered(number)
        assert host.stdout() == "printed\nno newline"


# ── Credit ──


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_without_credit_an_agent_waits_until_some_is_given(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            for number in range(5):
                {wait}turn.emit(str(number))
            {wait}turn.emit("x" * 500)
            {wait}turn.emit("last")
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run(credit={"events": 2, "bytes": 300})
        frames = [host.take("emit"), host.take("emit")]
        host.ping()
        # Both are back: two more may be said.
        host.send(method="credit", params={"fence": "s:1:", "events": 2, "bytes": sum(one["size"] for one in frames)})
        frames = [host.take("emit"), host.take("emit")]
        host.ping()
        host.send(method="credit", params={"fence": "s:1:", "events": 1, "bytes": frames[0]["size"]})
        assert host.take("emit")["params"]["text"] == "4"
        host.ping()
        # The long line costs all the bytes.
        host.send(method="credit", params={"fence": "s:1:", "events": 2, "bytes": 2 * frames[0]["size"]})
        assert len(host.take("emit")["params"]["text"]) == 500
        host.ping()
        host.send(method="credit", params={"fence": "s:1:", "events": 1, "bytes": 300})
        assert host.take("emit")["params"]["text"] == "last"
        assert host.answered(number)["result"]["value"] is None


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_a_cancel_wakes_a_task_that_waits_for_credit(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            while True:
                {wait}turn.emit("more")
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run(credit={"events": 3, "bytes": 10_000})
        host.texts(3)
        host.ping()
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800


# ── Several runs ──


def test_a_kept_host_has_one_loop_and_nothing_of_the_earlier_run_in_the_next(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio, contextvars
        name = contextvars.ContextVar("name", default="nobody")
        loops, left = [], []
        async def goes_on(turn):
            try:
                while True:
                    await asyncio.sleep(0)
                    await turn.emit("late")
            except asyncio.CancelledError as error:
                left.append(error.provenance.source)
        async def prepare():
            loops.append(asyncio.get_running_loop())
        async def agent(turn):
            loops.append(asyncio.get_running_loop())
            before = name.get()
            name.set("somebody")
            if turn.address.generation == 1:
                asyncio.ensure_future(goes_on(turn))
                await asyncio.sleep(0)
            return [before, len(set(loops)), left, turn.cancelled_by]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        host.run()
        frames = [host.next()]
        while "result" not in frames[-1]:
            frames.append(host.next())
        assert frames[-1]["result"]["value"] == ["nobody", 1, [], None]
        number = host.run(fence="s:2:", generation=2, run="run_2")
        while (frame := host.next()).get("method") == "emit":
            # Said before its run had ended: it carries the fence of that.
            assert frame["params"]["fence"] == "s:1:"
        assert (frame["id"], frame["result"]["value"]) == (number, ["nobody", 1, ["run.ended"], None])


def test_the_exit_functions_of_a_run_that_ended_by_itself_run_at_sigterm(tmp_path: Path, python: str) -> None:
    for kind in ("def", "async def"):
        code = f"""
            import asyncio, atexit, threading, time
            atexit.register(print, "flushed")
            async def beside():
                try:
                    await asyncio.sleep(1000)
                finally:
                    print("closed")
            threading.Thread(target=time.sleep, args=(1000,)).start()
            {kind} agent(turn):
                if "async" in "{kind}":
                    global task
                    task = asyncio.ensure_future(beside())
                    {"await asyncio.sleep(0)" if "async" in kind else ""}
                return "well"
        """
        with python_host(tmp_path, code, python=python) as host:
            host.hello()
            host.answered(host.run())
            os.kill(host.process.pid, signal.SIGTERM)
            assert host.exit_status() == -signal.SIGTERM
            assert host.stdout() == ("closed\nflushed\n" if "async" in kind else "flushed\n")


def test_in_a_run_sigterm_ends_the_host_as_any_process(tmp_path: Path) -> None:
    for body in ("time.sleep(1000)", "exec('while True: pass')"):
        code = f"import atexit, time\natexit.register(print, 'x')\ndef agent(turn):\n    turn.emit('up')\n    {body}\n"
        with python_host(tmp_path, code) as host:
            host.hello()
            host.run()
            host.take("emit")
            os.kill(host.process.pid, signal.SIGTERM)
            assert host.exit_status() == -signal.SIGTERM
            assert host.stdout() == ""


# ── Other processes ──


def test_a_forked_child_cannot_speak_for_the_agent(tmp_path: Path, python: str) -> None:
    code = """
        import os
        def agent(turn):
            child = os.fork()
            if not child:
                turn.emit("I am the agent")
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            turn.emit("I am")
            return os.WEXITSTATUS(status)
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        assert host.take("emit")["params"]["text"] == "I am"
        assert host.answered(number)["result"]["value"] == 75


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_child_of_multiprocessing_can_import_the_agents_module(tmp_path: Path, method: str) -> None:
    code = f"""
        import multiprocessing
        from countermand import Message, RunCancelled, Turn
        def work(message):
            return Message(id="m2", role="assistant", content=message.content.upper())
        def agent(turn):
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                return pool.apply(work, (turn.inputs[0],)).content
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == "HI"


# ── The module `countermand` ──


def test_names_that_the_runtime_has_not_come_from_the_package_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "countermand.py").write_text("Turn = 'theirs'\nmain = 'the command'\n")
    code = """
        import countermand
        from countermand import Turn, main
        def agent(turn):
            found = [main, isinstance(turn, Turn), countermand.__name__, countermand.Turn is Turn]
            for wrong in ("from countermand import nothing", "import countermand.nothing"):
                try:
                    exec(wrong)
                except ImportError as error:
                    found.append(type(error).__name__)
            return found
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        found = host.answered(host.run())["result"]["value"]
        assert found == ["the command", True, "countermand", True, "ImportError", "ModuleNotFoundError"]


def test_without_an_installed_package_there_are_the_runtimes_names_alone(tmp_path: Path) -> None:
    code = """
        import countermand
        def agent(turn):
            try:
                countermand.main
            except AttributeError as error:
                return str(error)
    """
    with python_host(tmp_path, code, python="/usr/bin/python3") as host:
        host.hello()
        value = host.answered(host.run())["result"]["value"]
        assert value == "module 'countermand' has no attribute 'main'"
