"""The runtime of Python agents in hosts: the real file, started by a real interpreter; the daemon is played by hand."""

from __future__ import annotations

import ast
import glob
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.host_kit import RUNTIME, Daemon, python_host

ECHO = """
    from countermand import AsyncTurn

    async def agent(turn: AsyncTurn) -> str:
        await turn.emit("you said " + turn.inputs[0].content)
        return turn.address.fence
"""


def interpreters() -> list[str]:
    """Return one interpreter of each version that is here, and the system's own."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    versions = [found for minor in range(9, 20) for found in glob.glob(f"{root}/versions/3.{minor}.*/bin/python3")[:1]]
    return [sys.executable, *(path for path in ("/usr/bin/python3", *versions) if os.access(path, os.X_OK))]


@pytest.fixture(params=interpreters())
def python(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


# ── The file ──


def test_it_is_written_for_python_3_9() -> None:
    ast.parse(RUNTIME.read_text(), feature_version=(3, 9))


def test_it_needs_the_standard_library_alone() -> None:
    imports = [
        node for node in ast.walk(ast.parse(RUNTIME.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


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


def test_a_module_that_cannot_be_imported_is_told_with_its_line_and_ends_the_host(tmp_path: Path, python: str) -> None:
    with python_host(tmp_path, "import os\nimport no_such_module_here\n", python=python) as host:
        error = host.hello()["error"]
        assert "ModuleNotFoundError: No module named 'no_such_module_here'" in error
        assert "mine.py, line 2" in error
        assert "mine:agent" in error
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
        assert "no common protocol" in host.stderr()


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


# ── A cancel, as it mostly is ──


def test_an_async_agent_is_told_once_cleans_up_and_then_answers(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio, atexit
        atexit.register(print, "exit function")
        async def other():
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.01)
                print("other task")
        async def numbers():
            try:
                yield 1
            finally:
                await asyncio.sleep(0)
                print("generator")
        async def agent(turn):
            global task, generator
            task = asyncio.ensure_future(other())
            generator = numbers()
            await generator.__anext__()
            await turn.emit("up")
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError as error:
                assert type(error) is asyncio.CancelledError
                await asyncio.sleep(0.01)
                print("agent", turn.cancelled_by.source)
                raise
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        error = host.answered(number)["error"]
        assert error["code"] == -32800
        assert error["data"]["provenance"]["reason"] == "enough"
        assert host.stdout().split("\n") == ["agent user.console", "other task", "generator", "exit function", ""]
        os.kill(host.process.pid, signal.SIGTERM)
        assert host.exit_status() == -signal.SIGTERM


def test_a_plain_agent_is_interrupted_where_it_blocks(tmp_path: Path, python: str) -> None:
    code = """
        import atexit, time
        from countermand import RunCancelled
        atexit.register(print, "exit function")
        def agent(turn):
            try:
                turn.emit("up")
                time.sleep(1000)
            except RunCancelled as error:
                time.sleep(0.01)
                print("agent", error.provenance.source, turn.cancelled_by.reason)
                raise
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800
        assert host.stdout().split("\n") == ["agent user.console enough", "exit function", ""]
        os.kill(host.process.pid, signal.SIGTERM)
        assert host.exit_status() == -signal.SIGTERM
