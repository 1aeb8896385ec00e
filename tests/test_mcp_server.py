"""`countermand mcp`: an agent of somebody else's, with the official SDK, supervises the sessions of a daemon."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.console.client.endpoint import Endpoint
from supervisor.console.commands.mcp_server import CALLS_MAX, WAIT_MAX_S, Calls, Control, Wait
from tests.console_kit import ROOT, WAIT_S, Desk, short_desk
from tests.process_kit import until
from tests.test_sdks import INSTALL_S, PYTHON, sdks

__all__ = ["sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)


@pytest.fixture(scope="module")
def served(sdks: None) -> Iterator[Desk]:
    with short_desk() as desk:
        desk.serve("--set", "grace_s=1")
        yield desk


def client(desk: Desk, *what: str, session: str | None = None) -> subprocess.Popen[str]:
    """Start the SDK's client with the server that it is to use."""
    command = [PYTHON, "-m", "supervisor.console", "mcp", "--state-dir", str(desk.state_dir)]
    command += [] if session is None else [session]
    argv = [PYTHON, str(Path(__file__).with_name("mcp_supervising.py")), json.dumps(command), *what]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=desk.env)


def seen_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        assert process.stdout is not None
        seen: dict[str, Any] = json.loads(process.stdout.readline())
        assert process.wait(WAIT_S) == 0
    return seen


def test_an_agent_starts_stops_and_proves_a_run_through_mcp(served: Desk) -> None:
    process = client(served, "supervise", "supervised", served.tree)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    served.wait_alive(3)
    process.stdin.write("go on\n")
    process.stdin.flush()
    seen = seen_by(process)
    served.wait_dead()

    assert sorted(seen["tools"]) == ["receipt", "send", "sessions", "status", "stop"]
    assert seen["tools"]["stop"]["required"] == ["session", "reason"]
    assert seen["nothing"]["told"]["error"]["code"] == "not_found"
    assert seen["sent"] == seen["again"], "the same id has one effect"
    run_id = seen["sent"]["told"]["accepted"]["run_id"]
    assert seen["given up"] == "CancelledError"
    assert seen["running"]["told"]["status"]["run_id"] == run_id, "who gives up a wait stops nothing"
    stopped = seen["stopped"]["told"]
    assert (stopped["outcome"], stopped["run_id"], stopped["receipt"]["complete"]) == ("stopped", run_id, True)
    assert stopped["receipt"]["provenance"]["source"] == "client.mcp"
    assert stopped["receipt"]["provenance"]["reason"] == "it takes too long"
    assert seen["receipt"]["told"] == stopped["receipt"]
    assert seen["over"]["told"]["outcome"] == "already_over"
    done = seen["done"]["told"]
    assert (done["run"]["status"], done["run"]["result"], done["ended"]) == ("completed", {"exit_code": 3}, True)
    assert "exit code 3" in done["text"]
    assert seen["wrong"]["error"] is True
    assert seen["wrong"]["told"]["error"]["code"] == "invalid"
    assert seen["unknown"]["told"]["error"]["code"] == "not_found"
    (first,) = [one for one in served.json("thread", "supervised") if one["id"] == "first"]
    assert first["role"] == "user"


def test_a_server_for_one_session_controls_no_other(served: Desk) -> None:
    seen = seen_by(client(served, "only", "exit 0", session="mine"))
    assert sorted(seen["tools"]) == ["receipt", "send", "status", "stop"]
    assert all("session" not in schema["properties"] for schema in seen["tools"].values())
    assert seen["sent"]["told"]["run"]["session"] == "mine"
    # Whatever it names, it is its own.
    assert [one["session"] for one in served.json("sessions") if one["session"] in {"mine", "another"}] == ["mine"]


def test_without_the_sdk_it_says_what_to_install(served: Desk) -> None:
    done = served.run("", "mcp")
    assert done.returncode == 2
    assert "install countermand[mcp]" in done.stderr


def test_l14_a_stop_is_sent_while_as_many_calls_wait_as_may_and_a_cancel_does_not_drop_it(served: Desk) -> None:
    waiting: list[Wait] = []

    class Noting(Control):
        def wait(self, wait: Wait, given_up: Callable[[], bool]) -> Any:
            waiting.append(wait)
            return super().wait(wait, given_up)

    calls = Calls(Noting(Endpoint(served.state_dir), None))
    message = {"session": "crowded", "content": f"sleep {served.mark}"}

    async def crowd() -> tuple[Any, Any]:
        run = (await calls.call("send", message))["accepted"]
        asked = {"session": "crowded", "run_id": run["run_id"], "wait_s": WAIT_MAX_S}
        waits = [asyncio.create_task(calls.call("receipt", asked)) for _ in range(CALLS_MAX + 1)]
        await asyncio.to_thread(until, lambda: len(waiting) >= CALLS_MAX, "so many wait", WAIT_S)
        stopped = await calls.call("stop", {"session": "crowded", "reason": "enough", "wait_s": WAIT_S})
        await asyncio.gather(*waits)

        again = (await calls.call("send", message))["accepted"]
        free = threading.Event()
        busy = [calls.sending["stop"].submit(free.wait) for _ in range(CALLS_MAX)]
        dropped = asyncio.create_task(calls.call("stop", {"session": "crowded", "reason": "now", "wait_s": 0}))
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.gather(dropped, return_exceptions=True)
        free.set()
        assert all(one.result() for one in busy)
        ended = await calls.call("receipt", {**asked, "run_id": again["run_id"], "wait_s": WAIT_S})
        return stopped, ended

    stopped, ended = asyncio.run(crowd())
    assert stopped["receipt"]["complete"]
    assert ended["provenance"]["reason"] == "now"
    served.wait_dead()


def test_l14_a_call_may_wait_up_to_its_limit(tmp_path: Path) -> None:
    control = Control(Endpoint(tmp_path), None)
    for name in ("send", "stop", "receipt"):
        assert control.schema(name)["properties"]["wait_s"]["maximum"] == WAIT_MAX_S
