"""The shell agent and tool: what became of a script is said where an agent, a model and a script look."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from actors import AsyncTurn, ToolResult, tool
from actors.messages import CallDeadline
from supervisor import SessionHandle
from supervisor.agents.shell import shell
from tests.kit import WAIT_S, Kit, check_rest, log, say, stop, until


def returned(session: SessionHandle, run_id: str) -> Any:
    """What the agent of a run returned, when the run is over."""
    session.receipt(run_id, timeout=WAIT_S)
    run = session.run(run_id)
    assert run.error is None
    check_rest(session)
    return run.result


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("true", {"exit_code": 0}),
        ("exit 3", {"exit_code": 3}),
        ("kill -KILL $$", {"exit_code": -9, "outcome": "killed", "problem": "killed by SIGKILL"}),
    ],
)
def test_a_run_says_how_its_script_ended(kit: Kit, script: str, result: object) -> None:
    session = kit.session()
    assert returned(session, say(session, script)) == result


def test_a_run_says_that_its_script_was_timed_out_and_so_does_the_thread(kit: Kit) -> None:
    session = kit.session(call_deadline_s=3600.0)
    run_id = say(session, kit.script("echo begun; sleep 60"))
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "the script runs")
    kit.fire(CallDeadline)
    result = returned(session, run_id)
    assert (result["exit_code"], result["outcome"]) == (None, "timed_out")
    assert "reached its deadline" in result["problem"]
    (tool,) = (one for one in session.thread() if one.role == "tool")
    assert (tool.outcome, tool.is_error) == ("interrupted", True)
    assert tool.content.endswith("Its output so far ended with:\nbegun\n")
    # What the agent was given is what the thread says.
    assert tool.content in next(one.content for one in session.thread()[2:] if one.role == "assistant")


def test_a_run_says_that_its_script_was_refused(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def deaf() -> None:
        inside.set()
        gate.wait()

    async def agent(turn: AsyncTurn) -> object:
        return await (turn.call("deaf") if turn.inputs[-1].content == "deaf" else shell(turn))

    session = kit.session(agent, tools=[deaf], barrier="strict", grace_s=0.05, kill_s=0.1)
    first = say(session, "deaf")
    assert inside.wait(WAIT_S)
    stop(session)
    assert not session.receipt(first, timeout=WAIT_S).complete
    result = returned(session, say(session, "true"))
    assert (result["exit_code"], result["outcome"]) == (None, "not_started")
    assert result["problem"].startswith("Not started: something of an earlier run could not be ended")


def test_an_agent_reads_what_ended_its_call_and_by_which_signal_its_command_died(kit: Kit) -> None:
    seen: list[ToolResult] = []

    async def agent(turn: AsyncTurn) -> None:
        seen.append(await turn.call("shell", script="kill -TERM $$"))
        seen.append(await turn.call("shell", script=kit.script("sleep 60")))

    session = kit.session(agent, call_deadline_s=3600.0)
    run_id = say(session)
    until(lambda: len([event for event in log(session) if event.kind == "process.started"]) == 2, "the second script")
    kit.fire(CallDeadline)
    returned(session, run_id)
    killed, timed_out = seen
    assert (killed.is_error, killed.data["exit_code"], killed.data["signal"]) == (True, -15, "SIGTERM")
    assert killed.provenance is None
    assert timed_out.provenance is not None
    assert (timed_out.outcome, timed_out.provenance.source) == ("interrupted", "tool.deadline")
