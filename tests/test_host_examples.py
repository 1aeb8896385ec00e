"""The examples of hosts in other languages: each is started as it stands, and the daemon is played by hand."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from supervisor.hosts import frames
from tests.host_kit import Daemon, Json
from tests.process_kit import until

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
NODE = pytest.param("agent.mjs", marks=pytest.mark.skipif(shutil.which("node") is None, reason="there is no node"))
BASH = pytest.param(
    "agent.sh", marks=pytest.mark.skipif(not (shutil.which("bash") and shutil.which("jq")), reason="there is no jq")
)

Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def begin(example: str, agent: str = "") -> Daemon:
        code = (EXAMPLES / example).read_text()
        if agent:
            # Another agent in the same host.
            own = re.compile(r"(?ms)^(async function agent.*?|agent\(\) )\{$.*?^\}$")
            assert len(own.findall(code)) == 1
            code = own.sub(lambda found: f"{found[1]}{{\n{agent}\n}}", code)
        (tmp_path / example).write_text(code)
        return Daemon(["node" if example.endswith(".mjs") else "bash", example], tmp_path)

    return begin


def checked(frame: Json) -> Json:
    """Check a request or a notification as the daemon does."""
    assert frames.host_params(frame["method"], msgspec.json.encode(frame["params"])) is not None
    return frame


def hello(host: Daemon) -> None:
    frame = checked(host.take("hello"))
    host.answer(frame, protocol=1, limits={}, can=[])


def up_to_the_call(host: Daemon) -> tuple[int, Json]:
    hello(host)
    number = host.run(thread=[{"id": "m1", "role": "user", "content": 'a "b"\n$x', "generation": 1, "run_id": "run_1"}])
    assert checked(host.take("emit"))["params"] == {"fence": "s:1:", "text": 'You said: a "b"\n$x\n'}
    call = checked(host.take("call"))
    assert call["params"] == {"fence": "s:1:", "tool": "shell", "arguments": {"script": "make test"}}
    return number, call


@pytest.mark.parametrize("example", [NODE, BASH])
def test_an_example_runs_its_agent_again_and_again(start: Start, example: str) -> None:
    with start(example) as host:
        number, call = up_to_the_call(host)
        host.answer(call, call="c1", outcome="finished", content="two words", is_error=False, data=None)
        assert checked(host.take("emit"))["params"]["text"] == "two words"
        if example == "agent.mjs":
            gated = checked(host.take("call"))
            assert gated["params"] == {"fence": "s:1:", "tool": "report", "arguments": {"words": 2}, "where": "host"}
            executed = host.request("execute", fence="s:1:c2", call="c2", of=gated["id"], deadline_s=None)
            assert host.answered(executed)["result"] == {"content": "2 words"}
            host.answer(gated, call="c2", outcome="finished", content="2 words", is_error=False, data=None)
            assert host.answered(number)["result"] == {"value": {"report": "2 words"}}
        else:
            assert host.answered(number)["result"] == {"value": {"ok": True}}
        host.send(method="no_such_thing", params={})
        host.cancel(number)
        host.run(fence="s:2:", generation=2)
        assert checked(host.take("emit"))["params"]["fence"] == "s:2:"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_a_call_that_is_refused_is_not_executed_in_node(start: Start) -> None:
    with start("agent.mjs", 'return await turn.gate("tool", {}, () => console.log("executed"));') as host:
        hello(host)
        number = host.run()
        call = checked(host.take("call"))
        host.answer(call, call="c1", outcome="not_started", content="a Stop came", is_error=True, data=None)
        error = host.answered(number)["error"]
        assert (error["code"], error["message"], host.stdout()) == (-32000, "a Stop came", "")


@pytest.mark.parametrize("example", [NODE, BASH])
def test_a_cancel_ends_an_example_in_its_call(start: Start, example: str) -> None:
    with start(example) as host:
        number, call = up_to_the_call(host)
        host.cancel(number)
        host.send(id=call["id"], error={"code": -32800, "message": "cancelled"})
        assert host.answered(number)["error"]["code"] == -32800


@pytest.mark.parametrize("example", [NODE, BASH])
def test_the_end_of_the_socket_ends_an_example(start: Start, example: str) -> None:
    with start(example) as host:
        up_to_the_call(host)
        host.sock.close()
        assert host.exit_status() == 75


LOOK = "echo ${COUNTERMAND_CHANNEL:-none} $(ls -l /proc/$$/fd | grep -c socket:) >found"
LOOKS = {
    "agent.mjs": f"""
        const {{ execFileSync }} = await import("node:child_process");
        execFileSync("bash", ["-c", "{LOOK}"], {{ stdio: "ignore" }});
    """,
    "agent.sh": f"work bash -c '{LOOK}'; value=null",
}


@pytest.mark.parametrize("example", [NODE, BASH])
def test_what_an_example_starts_has_not_its_channel(tmp_path: Path, start: Start, example: str) -> None:
    with start(example, LOOKS[example]) as host:
        hello(host)
        assert host.answered(host.run())["result"]["value"] is None
    assert (tmp_path / "found").read_text() == "none 0\n"


STAYS = {
    "agent.mjs": """
        try {
          turn.emit("up");
          console.log("at work");
          await turn.call("never", {});
        } finally {
          await new Promise((done) => setTimeout(done, 10));
          console.log("cleaned");
          try { turn.emit("late"); } catch (error) { console.log(error.message); }
        }
    """,
    "agent.sh": """
        emit up
        work bash -c 'trap "echo cleaned; exit" TERM; echo at work; while true; do sleep 0.01; done' ||
            emit late || echo enough
        return 1
    """,
}


@pytest.mark.parametrize("example", [NODE, BASH])
def test_an_example_is_cancelled_once_and_by_each_further_method_of_the_turn(start: Start, example: str) -> None:
    with start(example, STAYS[example]) as host:
        hello(host)
        number = host.run()
        checked(host.take("emit"))
        if example == "agent.mjs":
            host.take("call")
        # It hears a signal from now on.
        until(lambda: host.stdout() == "at work\n", "it to be at work")
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800
        assert host.stdout() == "at work\ncleaned\nenough\n"


def test_the_example_in_node_is_short() -> None:
    assert len((EXAMPLES / "agent.mjs").read_text().splitlines()) < 60
