"""What an agent saves: its later runs have it, behind a fence nothing is saved, and a rollback undoes it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from actors import AsyncTurn, Delete, TooLarge, Turn
from actors.events import EventData, MessageRetractedData, SessionStateData
from actors.model import Event, JsonObject
from actors.protocol.saves import SAVED_MAX_BYTES
from actors.saved import Saved
from supervisor import Agent, SessionHandle
from tests.kit import WAIT_S, Kit, check_rest, kit, log, say, settled, stop, until

__all__ = ["kit"]


class Notes:
    """An agent that saves what its message says, ``key=value``, and notes what state it began with."""

    def __init__(self) -> None:
        self.read: list[JsonObject] = []
        self.inside = threading.Event()

    async def __call__(self, turn: AsyncTurn) -> None:
        """Do what the input says."""
        self.read.append(turn.state)
        for word in turn.inputs[-1].content.split():
            key, _, value = word.partition("=")
            if key == "wait":
                self.inside.set()
                await asyncio.Event().wait()
            elif key != "read":
                await turn.save(**{key: value or None})


def done(session: SessionHandle, content: str, **options: Any) -> str:
    """Have a run do what a message says, to its end."""
    run_id = say(session, content, **options)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    return run_id


def saves(session: SessionHandle) -> list[tuple[str | None, Any]]:
    """Return what is on record as saved: by run."""
    return [(event.run_id, event.data["changes"]) for event in log(session) if event.kind == "session.state"]


def test_l6_what_a_run_saves_the_next_one_reads_and_none_removes_it(kit: Kit) -> None:
    agent = Notes()
    session = kit.session(agent.__call__)
    first = done(session, "a=1 b=2")
    second = done(session, "a c=3")
    done(session, "read")
    assert agent.read == [{}, {"a": "1", "b": "2"}, {"b": "2", "c": "3"}]
    assert saves(session) == [(first, {"a": "1"}), (first, {"b": "2"}), (second, {"a": None}), (second, {"c": "3"})]
    check_rest(session)


def test_l1_behind_a_stop_nothing_is_saved_and_what_was_saved_before_stays(kit: Kit) -> None:
    inside, read, told = threading.Event(), list[JsonObject](), list[type[BaseException]]()

    async def agent(turn: AsyncTurn) -> None:
        read.append(turn.state)
        if turn.inputs[-1].content == "read":
            return
        await turn.save(step=1)
        try:
            inside.set()
            await asyncio.Event().wait()
        finally:
            try:
                await turn.save(step=2)
            except BaseException as error:
                told.append(type(error))
                raise

    session = kit.session(agent)
    first = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    assert session.receipt(first, timeout=WAIT_S).complete
    done(session, "read")
    assert told == [asyncio.CancelledError]
    assert read == [{}, {"step": 1}]
    assert saves(session) == [(first, {"step": 1})]


def test_l6_a_rollback_undoes_what_its_run_had_saved_and_an_interruption_does_not(kit: Kit) -> None:
    agent = Notes()
    session = kit.session(agent.__call__)
    done(session, "a=1 b=1")
    for policy in ("rollback", "interrupt"):
        agent.inside.clear()
        run_id = say(session, f"a=2 b c={policy} wait")
        assert agent.inside.wait(WAIT_S)
        done(session, "read", policy=policy)
        assert session.receipt(run_id, timeout=WAIT_S).complete
    settled(session)
    assert agent.read[2::2] == [{"a": "1", "b": "1"}, {"a": "2", "c": "interrupt"}]


def test_l12_what_was_saved_is_read_again_after_a_restart_and_is_deleted_with_its_session(kit: Kit) -> None:
    agent = Notes()
    session = kit.session(agent.__call__)
    done(session, "a=1")
    assert kit.supervisor is not None
    done(kit.supervisor.session("s2"), "b=2")
    kit.close()
    supervisor = kit.start(agent.__call__)
    session = supervisor.session("s1")
    done(session, "read")
    assert agent.read[-1] == {"a": "1"}
    session.ask(Delete(source="user.test", reason="enough"), timeout=WAIT_S)
    done(session, "read")
    assert agent.read[-1] == {}
    done(supervisor.session("s2"), "read")
    assert agent.read[-1] == {"b": "2"}


def test_l14_a_state_that_would_be_too_large_is_refused_whole_and_the_run_continues(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        half = "x" * (SAVED_MAX_BYTES // 2)
        await turn.save(a=half)
        with pytest.raises(TooLarge, match="too large"):
            await turn.save(b=half, c=1)
        kept = sorted(turn.state)
        await turn.save(a=None)
        await turn.save(b=half, c=1)
        return kept + sorted(turn.state)

    session = kit.session(agent)
    run_id = done(session, "go")
    assert session.run(run_id).result == ["a", "b", "c"]
    assert [sorted(changes) for _, changes in saves(session)] == [["a"], ["a"], ["b", "c"]]


def test_a_plain_agent_saves_from_several_threads_and_its_state_is_a_copy(kit: Kit) -> None:
    def agent(turn: Turn) -> JsonObject:
        threads = [threading.Thread(target=lambda n=n: turn.save(**{f"key{n}": [n]})) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        turn.state["key0"].append("not saved")
        return turn.state

    session = kit.session(agent)
    run_id = done(session, "go")
    assert session.run(run_id).result == {f"key{n}": [n] for n in range(8)}
    assert len(saves(session)) == 8


# ── In a host ──────────────────────────────────────────────────────────────────────────────────────


ASYNC_AGENT = """
import asyncio

async def agent(turn):
    state = turn.state
    for word in turn.inputs[-1].content.split():
        key, _, value = word.partition("=")
        if key == "wait":
            await turn.emit("waits")
            try:
                await asyncio.Event().wait()
            finally:
                await turn.save(late=1)
        elif key == "large":
            try:
                await turn.save(large="x" * 70_000)
            except Exception as error:
                await turn.emit(error.code)
        elif key != "read":
            await turn.save(**{key: value or None})
    return [state, turn.state]
"""
PLAIN_AGENT = ASYNC_AGENT.replace("async ", "").replace("asyncio.Event().wait()", "turn.cancel_token.wait()")


@pytest.mark.parametrize("code", [ASYNC_AGENT, PLAIN_AGENT.replace("await ", "")], ids=["async", "plain"])
def test_an_agent_in_a_host_has_the_same_state(kit: Kit, tmp_path: Path, code: str) -> None:
    (tmp_path / "saving.py").write_text(code)
    spec = Agent(run="saving:agent", path=[str(tmp_path)], env={kit.mark: "1"}, cwd=str(tmp_path), spares=0)
    session = kit.start(spec).session("s1")
    first = done(session, "a=1 b=2 large a")
    assert session.run(first).result == [{}, {"b": "2"}]
    assert "too_large" in [event.data.get("text") for event in log(session)]
    stopped = say(session, "a=3 wait")
    until(lambda: "waits" in [event.data.get("text") for event in log(session)], "the agent waits")
    stop(session)
    assert session.receipt(stopped, timeout=WAIT_S).complete
    last = done(session, "read")
    assert session.run(last).result == [{"a": "3", "b": "2"}] * 2
    assert [changes for _, changes in saves(session)] == [{"a": "1"}, {"b": "2"}, {"a": None}, {"a": "3"}]


# ── The fold ──────────────────────────────────────────────────────────────────────────────────────


def folded(*steps: tuple[str | None, EventData]) -> Saved:
    """Fold events of runs."""
    saved = Saved()
    for run_id, data in steps:
        saved.add(Event(1, "s", 1, run_id, data.event_kind, {}, 0.0), data)
    return saved


def changes(agent: str, **made: Any) -> SessionStateData:
    """Return the data of one save."""
    return SessionStateData(agent=agent, changes=made)


UNDONE = MessageRetractedData(run_id="r2", ids=())


def test_each_agent_has_a_state_of_its_own() -> None:
    saved = folded(("r1", changes("one", a=1)), ("r2", changes("two", a=2)), ("r3", changes("one", b=3)))
    assert (saved.of("one"), saved.of("two"), saved.of("three")) == ({"a": 1, "b": 3}, {"a": 2}, {})


def test_a_rollback_of_a_run_that_saved_nothing_undoes_nothing() -> None:
    assert folded(("r1", changes("one", a=1)), ("r2", UNDONE)).of("one") == {"a": 1}


def test_a_state_that_was_read_stays_as_it_was() -> None:
    saved = folded(("r1", changes("one", a=1)))
    before = saved.of("one")
    saved.add(Event(2, "s", 1, "r2", "session.state", {}, 0.0), changes("one", a=None))
    assert (before, saved.of("one")) == ({"a": 1}, {})
