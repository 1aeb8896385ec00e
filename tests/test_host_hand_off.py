"""A session that an agent in a host hands over: a plain agent and an async one, and behind a fence never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.model import Policy
from supervisor import Config, SessionHandle, Supervisor
from supervisor.agent import Agent
from tests.kit import KILL_S, WAIT_S, Kit, check_rest, kit, log, say, stop, until

__all__ = ["kit"]

CODE = """
import asyncio
import os
import time
from pathlib import Path

from countermand import CountermandError


async def first(turn):
    told = []
    for name in ("", "nobody", 7, "second"):
        try:
            await turn.hand_off(name)
        except CountermandError as error:
            told.append(error.code)
    if turn.inputs[-1].content == "sleep":
        try:
            await turn.emit("asleep")
            await asyncio.sleep(1000)
        finally:
            try:
                await turn.hand_off("plain")
            except asyncio.CancelledError:
                Path("refused").write_text("refused")
    return told


def plain(turn):
    told = []
    for name in ("", "nobody", 7, "second"):
        try:
            turn.hand_off(name)
        except CountermandError as error:
            told.append(error.code)
    if turn.inputs[-1].content == "sleep":
        try:
            turn.emit("asleep")
            time.sleep(1000)
        finally:
            try:
                turn.hand_off("first")
            except asyncio.CancelledError:
                Path("refused").write_text("refused")
    return told


async def second(turn):
    await turn.emit("I am the second")
"""


def session_of(kit: Kit, folder: Path, agent: str) -> SessionHandle:
    (folder / "handing.py").write_text(CODE)
    common: dict[str, Any] = {"path": [str(folder)], "env": {kit.mark: "1"}, "cwd": str(folder), "spares": 0}
    agents = {name: Agent(run=f"handing:{name}", **common) for name in ("first", "plain", "second")}
    kit.supervisor = Supervisor.start(
        Config(state_dir=kit.state_dir, grace_s=WAIT_S, kill_s=KILL_S, drain_s=0.1, agents=agents, agent=agent)
    )
    return kit.supervisor.session("s1")


@pytest.mark.parametrize("agent", ["first", "plain"])
def test_an_agent_in_a_host_hands_its_session_over_and_the_next_message_is_the_others(
    kit: Kit, tmp_path: Path, agent: str
) -> None:
    session = session_of(kit, tmp_path, agent)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["invalid", "not_found", "invalid"]
    assert session.status().agent == "second"
    say(session)
    events = check_rest(session)
    assert session.thread()[-1].content == "I am the second"
    handed = [event.data for event in events if event.kind == "session.agent"]
    assert handed == [{"agent": "second", "by": agent}]


@pytest.mark.parametrize("agent", ["first", "plain"])
def test_l1_after_a_stop_no_host_hands_its_session_over(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    run_id = say(session, "sleep")
    until(lambda: any(event.kind == "text" for event in log(session)), "it sleeps")
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert (tmp_path / "refused").exists()
    check_rest(session)
    assert session.status().agent == "second", "what it had done before stands"


@pytest.mark.parametrize("agent", ["first", "plain"])
def test_a_rollback_takes_the_hand_over_of_a_host_back(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    say(session, "sleep")
    until(lambda: any(event.kind == "text" for event in log(session)), "it sleeps")
    assert session.status().agent == "second"
    say(session, "again", policy=Policy.ROLLBACK, agent="second")
    check_rest(session)
    agents = [event.data["agent"] for event in log(session) if event.kind == "session.agent"]
    assert agents[:2] == ["second", None], "it has the configured one again"
