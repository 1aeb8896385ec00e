"""MCP servers in a run, with the official SDK on both sides: whatever they do, they end with it, in its receipt."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors import Answer
from supervisor import Agent, SessionHandle
from tests.kit import WAIT_S, Kit, check_rest, kit, rows, say, stop, until
from tests.test_sdks import INSTALL_S, PYTHON, ROOT, sdks

__all__ = ["kit", "sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)


def session(kit: Kit, folder: Path, agent: str, **more: str) -> SessionHandle:
    env = {kit.mark: "1", "ROOT": str(ROOT), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **more}
    spec = Agent(run=f"tests.mcp_agents:{agent}", python=PYTHON, path=[str(ROOT)], env=env, spares=0)
    return kit.start(spec, grace_s=1.0).session("s1")


def own(offered: list[str]) -> list[str]:
    """Tools without those that each of the servers has for other tests."""
    return [name for name in offered if not name.endswith(("_header", "_note", "_pid", "_variable"))]


def test_tools_of_servers_are_called_asked_for_change_and_go_and_a_server_that_dies_is_started_again(
    sdks: None, kit: Kit, tmp_path: Path
) -> None:
    used = session(kit, tmp_path, "use")
    run_id = say(used)
    until(lambda: used.status().asking, "the approval is asked for")
    used.ask(Answer(call_id=used.status().asking[0].call_id, allow=True), timeout=WAIT_S)
    receipt = used.receipt(run_id, timeout=WAIT_S)
    assert used.run(run_id).error is None
    seen = used.run(run_id).result
    assert isinstance(seen, dict)
    says = [f"{name}_say" for name in ("changing", "daemon", "denied", "dying")]
    assert own(seen["offered"]) == sorted([*says, "changing_learn", "dying_die"])
    assert seen["broken"] == ["gone"]
    assert seen["said"] == ["finished", "HELLO", False]
    assert seen["wrong"][0] == "not_started"
    assert seen["learnt"] == ["finished", "learnt", False]
    assert own(seen["changed"]) == ["changing_say", "changing_shout"]
    assert seen["shouted"] == ["finished", "HELLO!", False]
    assert seen["unlearnt"][2] is True
    assert seen["up to one"] == ["changing_say"]
    ended = "the MCP server dying has ended, and the call may have had effects"
    assert [ended in one[1] for one in seen["died"]] == [True] * 4 + [False]
    assert "has ended 4 times" in seen["died"][4][1]
    assert receipt.complete
    assert len([row for row in rows(receipt) if row.kind == "process" and "python" in row.name]) >= 4
    check_rest(used)
    kit.close()
    assert kit.alive() == []


@pytest.mark.parametrize("kind", ["cancels", "stubborn"])
def test_l3_a_stop_ends_a_server_within_the_grace_whether_it_takes_the_cancel_or_not(
    sdks: None, kit: Kit, tmp_path: Path, kind: str
) -> None:
    held, note = session(kit, tmp_path, "hold"), tmp_path / "note"
    run_id = say(held, f"{kind} {note}")
    until(note.exists, "the call is in the server")
    stop(held)
    receipt = held.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    (ended,) = [event for event in check_rest(held) if event.kind == "tool.ended"]
    assert ended.data["outcome"] == "interrupted"
    kit.close()
    assert kit.alive() == []


@pytest.fixture
def served(sdks: None) -> Iterator[str]:
    """A server that is somebody else's, on a port; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "tests.mcp_servers", "cancels", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: _answers(port), "the server answers")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("by", ["stdio", "http"])
def test_a_call_that_is_given_up_is_cancelled_in_the_server_which_goes_on(
    sdks: None, kit: Kit, tmp_path: Path, request: pytest.FixtureRequest, by: str
) -> None:
    more = {"URL": request.getfixturevalue("served")} if by == "http" else {}
    given_up = session(kit, tmp_path, "give_up", **more)
    run_id = say(given_up, str(tmp_path / "note"))
    assert given_up.receipt(run_id, timeout=WAIT_S).complete
    assert (given_up.run(run_id).error, given_up.run(run_id).result) == (None, "ON")
    assert (tmp_path / "note").read_text() == "cancelled"
    check_rest(given_up)


class Unending(BaseHTTPRequestHandler):
    """A server of an older version of the protocol, with a session whose end it does not answer."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "unending", "version": "1"},
            },
            "tools/list": {"tools": []},
        }
        if "id" not in asked:
            self.reply(202)
        elif asked["method"] in results:
            self.reply(200, {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]})
        else:
            error = {"code": -32601, "message": "there is no such method"}
            self.reply(200, {"jsonrpc": "2.0", "id": asked["id"], "error": error})

    def do_GET(self) -> None:
        self.reply(405)

    def do_DELETE(self) -> None:
        self.server.asked_to_end.set()
        self.server.released.wait()

    def reply(self, status: int, answer: Any = None) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", "one")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_l14_the_end_of_a_client_is_not_waited_for_beyond_its_bound(sdks: None, kit: Kit, tmp_path: Path) -> None:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Unending)
    server.daemon_threads = True
    server.asked_to_end, server.released = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        left = session(kit, tmp_path, "leave", URL=f"http://127.0.0.1:{server.server_address[1]}/mcp")
        run_id = say(left)
        assert left.receipt(run_id, timeout=WAIT_S).complete
        assert (left.run(run_id).error, left.run(run_id).result) == (None, "{}")
        assert server.asked_to_end.is_set(), "the end has no answer, and the run has ended"
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
    check_rest(left)
