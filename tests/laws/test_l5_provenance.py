"""L5 Provenance: nothing ends by another hand without a record of whose, and the first cause stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors import CancelToken, How, Invalid, Mode, NewMessage, Provenance, Row, RunStatus, Spawn, Stop, Turn, tool
from actors.messages import CallDeadline
from supervisor import SessionHandle
from tests.kit import WAIT_S, Kit, StoreFaults, check_rest, log, message, poison, rows, say, settled, stop, until


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def until_holding(session: SessionHandle, run_id: str) -> None:
    until(lambda: any(e.kind == "text" and e.run_id == run_id for e in log(session)), "the agent holds")


def by_user(kit: Kit, session: SessionHandle) -> SessionHandle:
    stop(session, "wrong target", requested_by="uid 1000", sent_at=123.0)
    return session


def by_message(kit: Kit, session: SessionHandle) -> SessionHandle:
    session.ask(NewMessage(content="another"))
    return session


def by_deadline(kit: Kit, session: SessionHandle) -> SessionHandle:
    return session


def by_session_failure(kit: Kit, session: SessionHandle) -> SessionHandle:
    assert session.ref is not None
    poison(session.ref)
    return session


def by_run_failure(kit: Kit, session: SessionHandle) -> SessionHandle:
    from pykka import ActorRegistry

    from actors import RunActor

    for ref in ActorRegistry.get_by_class(RunActor):
        poison(ref)
    return session


def by_shutdown(kit: Kit, session: SessionHandle) -> SessionHandle:
    kit.close(0.0)
    return kit.session(hold)


ENDS: dict[str, tuple[Callable[[Kit, SessionHandle], SessionHandle], RunStatus]] = {
    "user.test": (by_user, RunStatus.CANCELLED),
    "session.new_message": (by_message, RunStatus.CANCELLED),
    "run.deadline": (by_deadline, RunStatus.EXPIRED),
    "actor.failure": (by_session_failure, RunStatus.FAILED),
    "actor.failure of a run": (by_run_failure, RunStatus.FAILED),
    "supervisor.shutdown": (by_shutdown, RunStatus.CANCELLED),
}


@pytest.mark.parametrize("name", ENDS)
def test_l5_each_way_to_end_a_run_is_named(kit: Kit, name: str) -> None:
    act, status = ENDS[name]
    source = name.split(maxsplit=1)[0]
    session = kit.session(hold, run_deadline_s=0.5 if source == "run.deadline" else None)
    run_id = say(session)
    if source != "run.deadline":
        # That one comes by itself, whether or not the agent has come to hold.
        until_holding(session, run_id)
    session = act(kit, session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    run = session.run(run_id)
    assert run.status is status
    for provenance in (receipt.provenance, run.provenance):
        assert provenance is not None
        assert provenance.source == source
        assert provenance.reason.strip()
        assert provenance.initiated_at > 0
    event = next(e for e in log(session) if e.kind == "run.status" and e.run_id == run_id)
    assert event.data["provenance"]["source"] == source
    if source == "user.test":
        assert receipt.provenance == Provenance(
            source="user.test", reason="wrong target", requested_by="uid 1000", initiated_at=123.0
        )
    stop(session)
    settled(session)


def test_l5_a_run_that_ends_by_its_own_completion_has_none(kit: Kit) -> None:
    session = kit.session()
    run_id = say(session, "true")
    assert session.receipt(run_id, timeout=WAIT_S).provenance is None
    assert session.run(run_id).provenance is None


def test_l5_the_deadline_of_a_call_is_named_in_its_end(kit: Kit) -> None:
    inside = kit.gate()

    @tool(isolation="thread", deadline_s=3600.0)
    def slow(token: CancelToken) -> None:
        inside.set()
        token.wait()
        causes.append(token.provenance)

    causes: list[Provenance | None] = []
    session = kit.session(lambda turn: turn.call("slow"), tools=[slow])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    kit.fire(CallDeadline)
    session.receipt(run_id, timeout=WAIT_S)
    ended = next(event for event in log(session) if event.kind == "tool.ended")
    assert ended.data["provenance"]["source"] == "tool.deadline"
    until(lambda: causes, "the tool's end")
    assert causes[0] is not None
    assert causes[0].source == "tool.deadline"


def test_l5_the_first_cause_stands_and_later_ones_are_appended(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    def deaf(turn: Turn) -> None:
        inside.set()
        gate.wait()

    session = kit.session(deaf, kill_s=30.0)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session, "first")
    assert stop(session, "second").outcome == "stopping"
    assert stop(session, "third", run_id=run_id).outcome == "stopping"
    gate.set()
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.reason == "first"
    assert [later.reason for later in receipt.later] == ["second", "third"]


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "", "reason": "r"},
        {"source": "user.test", "reason": ""},
        {"source": "user.test", "reason": "  \n"},
        {"source": " ", "reason": "r"},
        {"source": "nobody", "reason": "r"},
        {"source": "user.", "reason": "r"},
        {"source": None, "reason": "r"},
    ],
)
def test_l5_an_empty_or_unknown_cause_cannot_be_constructed(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        Stop(**fields)
    assert caught.value.remedy
    if fields["source"] is not None:
        with pytest.raises(Invalid):
            Provenance(**fields)


@pytest.mark.parametrize("source", ["supervisor.shutdown", "session.new_message", "actor.failure", "run.deadline"])
def test_l5_a_request_from_outside_cannot_claim_an_inside_source(source: str) -> None:
    with pytest.raises(Invalid):
        Stop(source=source, reason="pretending")


def test_l5_the_end_of_a_process_by_a_stop_is_reported_with_its_signals(kit: Kit) -> None:
    session = kit.session(grace_s=3600.0)
    run_id = say(session, kit.script("sleep 60; :"))
    until(lambda: len(kit.alive()) >= 2)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    call = next(row for row in receipt.rows if row.kind == "call")
    process = call.rows[0]
    assert [signalled.signal for signalled in process.signals][:1] == ["SIGTERM"]
    assert process.signals[0].at >= receipt.fenced_at - 1.0


def of_processes(session: SessionHandle, run_id: str) -> list[tuple[Row, str | None]]:
    """The trees in a run's receipt, with the source that the event of the end of each names; the first ended first."""
    trees = [row for row in rows(session.receipt(run_id, timeout=WAIT_S)) if row.kind == "process" and row.reaped]
    ends = [event for event in log(session) if event.kind == "process.ended"]
    assert len(trees) == len(ends)
    sources = [event.data["provenance"]["source"] if "provenance" in event.data else None for event in ends]
    return list(zip(sorted(trees, key=lambda row: row.ended_at or 0.0), sources, strict=True))


@pytest.mark.parametrize("grace_s", [0.0, 60.0])
def test_l5_a_process_that_its_own_tool_ends_says_so_and_one_that_ends_by_itself_does_not(
    kit: Kit, grace_s: float
) -> None:
    @tool(isolation="thread")
    def both(spawn: Spawn) -> None:
        own = spawn(["sh", "-c", "exit 3"])
        assert own.wait(WAIT_S).status == 3
        own.kill(grace_s)
        other = spawn(["sleep", "60"])
        other.kill(grace_s)
        other.wait(WAIT_S)

    session = kit.session(lambda turn: turn.call("both"), tools=[both])
    run_id = say(session)
    (first, no_source), (second, source) = of_processes(session, run_id)
    assert (first.how, first.status, first.provenance, no_source) == (How.EXIT, 3, None, None)
    assert second.how is (How.SIGTERM if grace_s else How.SIGKILL)
    assert second.provenance is not None
    assert second.provenance.source == source == "tool.kill"
    assert "both" in second.provenance.reason
    assert second.provenance.mode is (Mode.GRACEFUL if grace_s else Mode.IMMEDIATE)
    assert second.provenance.requested_by == next(
        event.data["call_id"] for event in log(session) if "call_id" in event.data
    )
    assert session.receipt(run_id).provenance is None


@pytest.mark.parametrize("grace_s", [0.0, 60.0])
def test_l5_a_kill_that_comes_at_the_end_of_a_command_is_not_said_to_have_ended_it(kit: Kit, grace_s: float) -> None:
    """What the warden keeps for itself is in the tree's groups for a moment more, and gets the signal."""

    @tool(isolation="thread")
    def late(spawn: Spawn) -> None:
        for _ in range(20):
            own = spawn(["sh", "-c", "exit 3"])
            own.wait(WAIT_S)
            own.kill(grace_s)

    session = kit.session(lambda turn: turn.call("late"), tools=[late])
    trees = of_processes(session, say(session))
    assert len(trees) == 20
    for row, source in trees:
        assert (row.how, row.status, row.signals, row.provenance, source) == (How.EXIT, 3, (), None, None)


def test_l5_a_tool_that_ends_its_process_because_of_a_stop_is_not_the_first_cause(kit: Kit) -> None:
    @tool(isolation="thread")
    def tidy(spawn: Spawn, token: CancelToken) -> None:
        process = spawn(["sh", "-c", kit.script("trap '' TERM; echo ready; sleep 60")])
        has_it.set()
        token.wait()
        process.kill(0.0)

    # What a stop meets within `spawn` raises there.
    has_it = threading.Event()
    session = kit.session(lambda turn: turn.call("tidy"), tools=[tidy], grace_s=60.0)
    run_id = say(session)
    assert has_it.wait(WAIT_S)
    until(lambda: any(event.kind == "tool.output" for event in log(session)))
    stop(session)
    ((row, source),) = of_processes(session, run_id)
    assert (row.how, row.provenance, source) == (How.SIGKILL, None, None)
    provenance = session.receipt(run_id).provenance
    assert provenance is not None
    assert provenance.source == "user.test"


def test_l5_a_process_of_the_session_that_a_tool_ends_says_so(kit: Kit) -> None:
    @tool(isolation="thread")
    def serve(spawn: Spawn) -> None:
        server = spawn(["sleep", "60"], owner="session")
        server.kill(0.0)
        server.wait(WAIT_S)

    session = kit.session(lambda turn: turn.call("serve"), tools=[serve])
    say(session)
    until(lambda: any(event.kind == "process.ended" for event in log(session)))
    (ended,) = [event for event in log(session) if event.kind == "process.ended"]
    assert (ended.data["how"], ended.data["provenance"]["source"]) == ("sigkill", "tool.kill")


@pytest.mark.parametrize("source", ["tool.deadline", "run.ended"])
def test_l5_a_process_that_ends_with_its_call_or_its_run_says_so(kit: Kit, source: str) -> None:
    spawned = kit.gate()

    @tool(isolation="thread", deadline_s=3600.0)
    def leave(spawn: Spawn, token: CancelToken) -> None:
        spawn(["sleep", "60"])
        spawned.set()
        if source == "tool.deadline":
            token.wait()

    # It dies of SIGTERM, and has the time for it.
    session = kit.session(lambda turn: turn.call("leave"), tools=[leave], grace_s=3600.0)
    run_id = say(session)
    assert spawned.wait(WAIT_S)
    if source == "tool.deadline":
        kit.fire(CallDeadline)
    ((row, said),) = of_processes(session, run_id)
    assert row.how is How.SIGTERM
    assert row.provenance is not None
    assert row.provenance.source == said == source


def test_l5_a_queued_run_that_ends_without_starting_names_its_end(kit: Kit) -> None:
    session = kit.session(hold)
    until_holding(session, say(session))
    queued = session.ask(message("two", policy="enqueue"))
    assert queued.run_id is not None
    stop(session, "both")
    receipt = session.receipt(queued.run_id, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.reason == "both"
    check_rest(session)


@pytest.mark.parametrize("when", ["at once", "when it has failed again"])
def test_l5_a_run_that_a_failing_store_has_ended_keeps_that_cause_after_a_later_stop(
    kit: Kit, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The run is over, its tree is dead, and then a person stops it: the first cause stands, and so does the answer."""

    def agent(turn: Turn) -> None:
        turn.call("shell", script="sleep 600")

    session = kit.session(agent)
    run_id = say(session)
    until(lambda: bool(session.processes()), "its command runs")
    if when == "at once":
        # Until it is answered the session is not read anew: it stays as the failure has left it.
        faults.may_read.clear()
    faults.fail(session)
    if when != "at once":
        faults.fail_again()
        until(lambda: not session.processes(), "its tree is dead")
    # However slow the machine is, the session is read before a Stop is answered without it.
    monkeypatch.setattr("actors.hierarchy.late_stops.STOP_UNREAD_S", WAIT_S)
    asked = Stop(source="user.test", reason="too late", requested_by="a person", sent_at=0.0)
    told = session.ask(asked, timeout=WAIT_S)
    expected = ("stopping", run_id) if when == "at once" else ("nothing_running", None)
    assert (told.outcome, told.run_id) == expected
    faults.failing = False
    faults.may_read.set()
    until(lambda: session.ask(asked, timeout=WAIT_S).durable, "the store is back")
    final = session.ask(asked, timeout=WAIT_S)
    assert (final.outcome, final.run_id, final.receipt_id) == (told.outcome, told.run_id, told.receipt_id)
    receipt, (info, *others) = session.receipt(run_id, timeout=WAIT_S), session.runs()
    assert not others, "what a person stopped is not tried again"
    assert receipt.provenance is not None
    assert info.provenance == receipt.provenance
    assert receipt.provenance.source == "store.failure"
    assert [later.requested_by for later in receipt.later] == (["a person"] if when == "at once" else [])
    assert all(later.initiated_at == 0.0 for later in receipt.later), "when it was asked for, also in 1970"
    assert info.status is (RunStatus.CANCELLED if when == "at once" else RunStatus.FAILED)
    assert session.receipt(told.receipt_id, timeout=WAIT_S).complete
