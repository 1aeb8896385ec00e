"""L3 Containment: every process of a run is dead within the grace and the kill time, and is called dead only then."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pytest

from actors import AsyncSpawn, AsyncTurn, CancelToken, How, Receipt, Row, RunStatus, Spawn, Turn, tool
from actors.messages import CallDeadline, RunDeadline
from supervisor.containment.guard import procfs
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, stop, until
from tests.process_kit import FREEZER, frozen, until_a_preforked_child_is_old

TREES = {
    "plain": "sleep 60; :",
    "background": "sleep 60 & sleep 60 & wait",
    "own session": "setsid sleep 60 & wait",
    "nohup": "nohup sleep 60 >/dev/null 2>&1 & sleep 60; :",
    "double fork": "( (setsid sleep 60 >/dev/null 2>&1 &) & ); sleep 60; :",
    "ignores SIGTERM": "trap '' TERM HUP INT; while :; do sleep 1; done",
    "child ignores SIGTERM": "(trap '' TERM; while :; do sleep 1; done) & wait",
    "stopped": "sleep 60 & kill -STOP $!; wait",
    "stops itself": "sleep 60 & kill -STOP $$",
    "closed output": "exec >/dev/null 2>&1; sleep 60; :",
}


def names(kit: Kit) -> list[str]:
    """The names of the processes of a test that run."""
    return [seen.name for pid in kit.alive() if (seen := procfs.stat(pid)) is not None]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_l3_after_a_stop_a_receipt_comes_when_the_tree_is_dead(kit: Kit, tree: str) -> None:
    session = kit.session()
    run_id = say(session, kit.script(tree))
    # The shell, and what it runs: the trap is set before the first child is there.
    until(lambda: len(kit.alive()) >= 1 + tree.count("sleep"), "the tree")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert receipt.reaped >= 1
    process = next(row for row in rows(receipt) if row.kind == "process")
    assert process.how in (How.SIGTERM, How.SIGKILL, How.EXIT)
    assert process.pid is not None
    assert session.run(run_id).status is RunStatus.CANCELLED
    check_rest(session)


def check_beginnings(receipt: Receipt) -> list[Row]:
    """No row begins before the one that it is below, and no process has two. Returns all rows."""
    for above in rows(receipt):
        for row in above.rows:
            if above.started_at is not None and row.started_at is not None:
                assert row.started_at >= above.started_at, (row, above)
    known = Counter((row.pid, row.started_at) for row in rows(receipt) if row.pid is not None)
    assert set(known.values()) <= {1}, known
    return rows(receipt)


@pytest.mark.parametrize("lost", [False, True], ids=["its warden ends it", "its warden is killed"])
def test_l3_a_command_is_one_row_of_a_receipt_and_begins_when_it_is_executed(kit: Kit, *, lost: bool) -> None:
    session = kit.session()
    until_a_preforked_child_is_old()
    run_id = say(session, kit.script("sleep 60 & sleep 60; :"))
    # Between its fork and its exec a child still has the shell's name.
    until(lambda: names(kit).count("sleep") == 2, "the tree")
    (leader,) = [one for one in session.processes() if one.leader]
    until(lambda: any(event.kind == "process.started" for event in log(session)), "it is known to have started")
    if lost:
        os.kill(leader.parent, signal.SIGKILL)
    else:
        stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    everybody = check_beginnings(receipt)
    (command,) = [row for row in everybody if row.pid == leader.pid]
    assert command.kind == "process"
    assert command.started_at == leader.started_at
    # The shell may have read the end of one of them before it died itself.
    assert {row.name for row in command.rows} == {"sleep"}
    assert command.reaped == len(command.rows) + 1
    assert receipt.complete


@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with")
def test_l3_a_command_that_cannot_be_killed_is_one_row_too(kit: Kit) -> None:
    session = kit.session(kill_s=5.0)
    until_a_preforked_child_is_old()
    run_id = say(session, kit.script("sleep 60; :"))
    until(lambda: len(kit.alive()) == 2, "the tree")
    (leader,) = [one for one in session.processes() if one.leader]
    with frozen(leader.pid):
        stop(session)
        receipt = session.receipt(run_id, timeout=WAIT_S)
        (left,) = [row for row in check_beginnings(receipt) if row.pid == leader.pid]
        assert (left.how, left.ended_at) == (How.ABANDONED, None)
        assert left.note.endswith("got SIGKILL, and is in an uninterruptible wait (state D)")
    until(lambda: any(event.kind == "receipt.amended" for event in log(session)), "its end amends the receipt")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    check_beginnings(receipt)


@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with")
def test_l3_a_process_that_cannot_be_killed_is_named_at_the_deadline_and_proven_gone_later(kit: Kit) -> None:
    # What is told later than the deadline amends the receipt; here the warden has time to tell it before.
    session = kit.session(kill_s=5.0)
    run_id = say(session, kit.script("sleep 60 & echo $!; wait"))
    until(lambda: names(kit).count("sleep") == 1, "the tree")
    (pid,) = [pid for pid in kit.alive() if (seen := procfs.stat(pid)) is not None and seen.name == "sleep"]
    with frozen(pid):
        stop(session)
        receipt = session.receipt(run_id, timeout=WAIT_S)
        assert not receipt.complete
        (left,) = [row for row in rows(receipt) if row.pid == pid]
        assert (left.how, left.ended_at) == (How.ABANDONED, None)
        assert left.note == "got SIGKILL, and is in an uninterruptible wait (state D)"
    until(lambda: any(event.kind == "receipt.amended" for event in log(session)), "its end amends the receipt")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    (gone,) = [row for row in rows(receipt) if row.pid == pid]
    assert gone.how in (How.SIGTERM, How.SIGKILL)
    assert kit.alive() == []


def test_l3_an_immediate_stop_kills_without_a_grace(kit: Kit) -> None:
    session = kit.session(grace_s=60.0)
    run_id = say(session, kit.script("trap '' TERM; sleep 60 & while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 2, "the tree")
    stop(session, mode="immediate")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete


def test_l3_a_second_stop_raises_the_mode(kit: Kit) -> None:
    session = kit.session(grace_s=60.0)
    run_id = say(session, kit.script("trap '' TERM; sleep 60 & while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 2, "the tree")
    first = stop(session)
    assert kit.alive() != []
    second = stop(session, mode="immediate")
    assert (first.outcome, second.outcome) == ("stopped", "stopping")
    assert first.receipt_id == second.receipt_id
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert [later.mode for later in receipt.later] == ["immediate"]


def test_l3_what_a_run_leaves_in_the_background_dies_with_its_natural_end(kit: Kit) -> None:
    session = kit.session()
    run_id = say(session, kit.script("setsid sleep 60 >/dev/null 2>&1 & sleep 60 >/dev/null 2>&1 & echo left"))
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert session.run(run_id).status is RunStatus.COMPLETED
    assert receipt.provenance is None
    assert receipt.complete
    assert receipt.reaped >= 3
    assert any("left" in message.content for message in session.thread() if message.role == "tool")


def test_l3_a_call_that_reaches_its_deadline_leaves_no_process(kit: Kit) -> None:
    left: list[int] = []

    @tool(isolation="task", deadline_s=3600.0)
    async def server(spawn: AsyncSpawn) -> str:
        process = await spawn(["sh", "-c", kit.script("setsid sleep 60 & sleep 60")])
        await process.wait()
        return "never"

    async def agent(turn: AsyncTurn) -> None:
        result = await turn.call("server")
        await turn.emit(result.outcome)
        # The run goes on: it is the call's deadline that ends the tree, not the run's end.
        while kit.alive():
            await turn.typing()
        left.extend(kit.alive())
        await turn.emit("alone")

    session = kit.session(agent, tools=[server])
    run_id = say(session)
    until(lambda: len(kit.alive()) >= 2, "the tree")
    kit.fire(CallDeadline)
    session.receipt(run_id, timeout=WAIT_S)
    texts = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert texts == ["interrupted", "alone"]
    assert left == []


@pytest.mark.parametrize("end", ["raises", "exits", "deadline"])
def test_l3_an_agent_that_fails_or_expires_leaves_no_process(kit: Kit, end: str) -> None:
    up = kit.gate()

    @tool(isolation="thread")
    def server(spawn: Spawn) -> str:
        spawn(["sh", "-c", kit.script("trap '' TERM; setsid sleep 60 & while :; do sleep 1; done")])
        return "up"

    def agent(turn: Turn) -> None:
        turn.call("server")
        until(lambda: len(kit.alive()) >= 2)
        up.set()
        if end == "raises":
            raise ValueError("no")
        if end == "exits":
            raise SystemExit(3)
        turn.cancel_token.wait()

    session = kit.session(agent, tools=[server], run_deadline_s=3600.0)
    run_id = say(session)
    assert up.wait(WAIT_S)
    if end == "deadline":
        kit.fire(RunDeadline)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert session.run(run_id).status == ("expired" if end == "deadline" else "failed")


def test_l3_no_call_of_a_new_run_starts_while_the_old_tree_lives(kit: Kit) -> None:
    seen: list[list[int]] = []

    @tool(isolation="thread")
    def look() -> str:
        seen.append(kit.alive())
        return ""

    def agent(turn: Turn) -> None:
        text = turn.inputs[-1].content
        turn.call("look") if text == "look" else turn.call("shell", script=text)

    session = kit.session(agent, tools=[look])
    say(session, kit.script("trap '' TERM; setsid sleep 60 & while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 2, "the tree")
    session.receipt(say(session, "look"), timeout=WAIT_S)
    assert seen == [[]]


def test_l3_the_barrier_stands_after_a_natural_end_too(kit: Kit) -> None:
    seen: list[list[int]] = []

    @tool(isolation="thread")
    def look() -> str:
        seen.append(kit.alive())
        return ""

    def agent(turn: Turn) -> None:
        text = turn.inputs[-1].content
        turn.call("look") if text == "look" else turn.call("shell", script=text)

    session = kit.session(agent, tools=[look])
    script = "(trap '' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 & sleep 0.1"
    first = say(session, kit.script(script))
    until(lambda: session.run(first).status is RunStatus.COMPLETED)
    session.receipt(say(session, "look"), timeout=WAIT_S)
    assert seen == [[]]


def test_l3_a_tool_that_ends_its_own_process_leaves_none(kit: Kit) -> None:
    @tool(isolation="thread")
    def brief(spawn: Spawn, token: CancelToken) -> str:
        process = spawn(["sh", "-c", kit.script("setsid sleep 60 & sleep 60")])
        until(lambda: len(kit.alive()) >= 2)
        process.kill(0.0)
        until(lambda: not kit.alive(), "the tree's end")
        return f"{process.wait(WAIT_S).status}"

    session = kit.session(lambda turn: turn.call("brief"), tools=[brief])
    session.receipt(say(session), timeout=WAIT_S)
    assert [message.content for message in session.thread() if message.role == "tool"] == ["-9"]


def test_l3_closing_the_supervisor_leaves_no_process(kit: Kit) -> None:
    supervisor = kit.start()
    for name in ("a", "b", "c"):
        say(supervisor.session(name), kit.script("trap '' TERM; setsid sleep 60 & while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 6, "the trees")
    assert kit.close()
    assert kit.alive() == []


def test_l3_many_trees_of_one_run_are_all_ended(kit: Kit) -> None:
    @tool(isolation="thread")
    def server(spawn: Spawn, name: str) -> str:
        spawn(["sh", "-c", kit.script("setsid sleep 60 & sleep 60")], name=name)
        return "up"

    def agent(turn: Turn) -> None:
        threads = [
            threading.Thread(target=turn.call, args=("server",), kwargs={"name": f"s{number}"}) for number in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        turn.cancel_token.wait()

    session = kit.session(agent, tools=[server])
    run_id = say(session)
    until(lambda: len(kit.alive()) >= 24, "the trees")
    until(lambda: len([event for event in log(session) if event.kind == "tool.ended"]) == 12)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert len([row for row in rows(receipt) if row.kind == "process" and row.name.startswith("s")]) >= 12
