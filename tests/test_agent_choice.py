"""Which agent answers: named by a message, chosen for a session, or handed over to by an agent."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from actors import AsyncTurn, NewMessage, Resume, Turn
from actors.agent_choice import AgentChoice
from actors.errors import AgentUnavailable, Invalid, NotFound
from actors.model import RunInfo
from actors.plugin.registration import Unloaded
from actors.requests import digest
from actors.run_status import RunStatus
from supervisor.store.schema import STORE_NAME
from tests.http_kit import Api, api, code
from tests.kit import Kit, check_rest, kit, say
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

__all__ = ["api", "kit"]

pytestmark = pytest.mark.usefixtures("quiet")


def run_of(world: World, request_id: str) -> RunInfo:
    """The run that has a message as its input."""
    run = next(event.run_id for event in of(world, "message") if event.data["id"] == request_id)
    found = world.disk.run(run or "")
    assert found is not None
    return found


def agents(world: World, *request_ids: str) -> list[str]:
    return [run_of(world, one).agent for one in request_ids]


def asked(world: World, request_id: str, content: str = "say=1", **changes: Any) -> None:
    world.answer("s", message(request_id, content, **changes))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_person_chooses_the_agent_of_the_session_and_a_client_that_of_a_run(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        for request_id, changes in (
            ("a", {}),
            ("b", {"agent": "other", "origin": "bot"}),
            ("c", {}),
            ("d", {"agent": "other"}),
            ("e", {"origin": "bot"}),
            ("f", {"agent": "scripted", "origin": "bot"}),
            ("g", {}),
        ):
            asked(world, request_id, **changes)
            world.settle()
        settled(world)
        assert agents(world, *"abcdefg") == ["scripted", "other", "scripted", "other", "other", "scripted", "other"]
        assert [event.data for event in of(world, "session.agent")] == [
            {"agent": "other", "by": "user", "message_id": "d"}
        ]
        with World(seed, settings=settings(), before=world) as later:
            asked(later, "h")
            settled(later)
            assert agents(later, "h") == ["other"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_message_of_a_session_chooses_its_agent_whoever_sends_it(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", agent="other", origin="bot")
        world.settle()
        asked(world, "b")
        settled(world)
        assert agents(world, "a", "b") == ["other", "other"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_messages_for_different_agents_share_no_turn(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "sleep=5")
        for request_id, agent, origin in (
            ("b", None, "bot"),
            ("c", "other", "bot"),
            ("d", "other", "user"),
            ("e", None, "user"),
            ("f", "scripted", "bot"),
        ):
            asked(world, request_id, agent=agent, origin=origin, policy="enqueue")
        settled(world)
        assert agents(world, *"abcdef") == ["scripted", "scripted", "other", "other", "other", "scripted"]
        runs = [run_of(world, one).run_id for one in "abcdef"]
        assert runs[2] == runs[3] == runs[4]
        assert len(set(runs)) == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_a_message_that_takes_over_leaves_what_waits_for_another_agent_in_its_place(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "forever")
        asked(world, "b", agent="other", origin="bot", policy="enqueue")
        asked(world, "c", origin="bot", policy="enqueue")
        taken = world.answer("s", message("d", "say=1"))
        assert [one.id for one in taken.with_messages] == ["c"]
        settled(world)
        assert agents(world, *"bcd") == ["other", "scripted", "scripted"]
        assert [event.data["id"] for event in of(world, "message")] == ["a", "c", "d", "b"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_what_takes_over_with_a_choice_that_waited_overtakes_nothing_that_names_no_agent(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "forever")
        asked(world, "b", policy="enqueue")
        asked(world, "c", agent="other", policy="enqueue")
        # It is for the agent that "c" chooses, and so would "b" be if it waited on.
        taken = world.answer("s", message("d", "say=1"))
        assert [one.id for one in taken.with_messages] == ["b", "c"]
        settled(world)
        assert agents(world, *"bcd") == ["other"] * 3
        assert [event.data["id"] for event in of(world, "message")] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_a_steer_for_another_agent_waits_for_a_turn(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "sleep=1 steer say=1")
        other = world.answer("s", message("b", "say=1", policy="steer", agent="other"))
        assert (other.policy, other.generation) == ("enqueue", None)
        settled(world)
        assert agents(world, "a", "b") == ["scripted", "other"]
        assert run_of(world, "a").inputs == ("a",)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_hands_its_session_over_and_a_rollback_takes_that_back(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "hand_off=other say=1")
        world.settle()
        asked(world, "b", "hand_off=broken hand_off=nobody say=1")
        world.settle()
        assert agents(world, "a", "b") == ["scripted", "other"]
        asked(world, "c", "hand_off=scripted forever")
        world.run(max_steps=2000)
        asked(world, "d", policy="rollback")
        settled(world)
        assert agents(world, "c", "d") == ["other", "other"]
        told = [event.data for event in of(world, "session.agent")]
        assert told[0] == {"agent": "other", "by": "scripted"}
        assert told[-1] == {"agent": "other", "by": "user", "message_id": "d"}


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_an_agent_that_cannot_be_loaded_holds_up_no_other(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        for name, error in (("broken", AgentUnavailable), ("nobody", NotFound)):
            refused = world.send("s", message(f"to-{name}", "say=1", agent=name))
            world.settle()
            assert isinstance(refused.outcome(), error)
        asked(world, "a", "forever")
        asked(world, "b", agent="other", policy="enqueue")
        asked(world, "c", agent="scripted", policy="enqueue")
        world.answer("s", stop(waiting="park"))
        world.settle()
        broken = {"scripted": world._agents["scripted"], "other": Unloaded("m:f", Invalid("it raises"))}
        with World(seed, agents=broken, settings=settings(), before=world) as later:
            # It takes along what waits for its own agent; what waits for the other one goes on waiting.
            asked(later, "d")
            later.settle()
            asked(later, "e", agent="scripted", origin="bot")
            later.settle()
            assert [run_of(later, one).status for one in "cde"] == [RunStatus.COMPLETED] * 3
            assert [row.message.id for row in later.disk.of("s").waiting.values()] == ["b"]


def test_a_choice_goes_back_to_the_agent_from_before_the_run() -> None:
    choice = AgentChoice("a").handed_over("r1", "b").handed_over("r1", "c")
    assert choice.rolled_back("r1") == AgentChoice("a")
    assert choice.rolled_back("r2") == choice
    assert choice.chosen("d").rolled_back("r1") == AgentChoice("d")


def test_a_message_without_an_agent_has_the_digest_that_it_always_had() -> None:
    assert digest(NewMessage(content="x", id="m")).hex() == "0ff147b1bbc0b3e39d78005a60cdda42"
    assert digest(NewMessage(content="x", id="m", agent="a")) != digest(NewMessage(content="x", id="m"))


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(Invalid, match="agent"):
        NewMessage(content="x", agent=name)


def test_plain_agents_hand_over_too_and_a_name_that_is_none_is_refused_there(kit: Kit) -> None:
    told: list[str] = []

    def first(turn: Turn) -> None:
        for name in ("", "nobody", "second"):
            try:
                turn.hand_off(name)
            except (Invalid, NotFound) as error:
                told.append(error.code)

    async def second(turn: AsyncTurn) -> None:
        await turn.emit("I am the second")

    session = kit.session(agents={"shell": first, "second": second})
    say(session)
    check_rest(session)
    assert (told, session.status().agent) == (["invalid", "not_found"], "second")
    say(session)
    check_rest(session)
    assert session.thread()[-1].content == "I am the second"


def test_l13_the_agent_of_a_session_whose_row_cannot_be_read_is_known_from_its_log(kit: Kit) -> None:
    async def first(turn: AsyncTurn) -> None:
        await turn.hand_off("second")

    async def second(turn: AsyncTurn) -> None:
        await turn.emit("I am the second")

    session = kit.session(agents={"shell": first, "second": second})
    say(session)
    check_rest(session)
    kit.close()
    with sqlite3.connect(kit.state_dir / STORE_NAME) as store:
        store.execute("UPDATE sessions SET doc = 'damaged'")
    store.close()
    session = kit.session(agents={"shell": first, "second": second})
    assert session.status().agent == "second"
    say(session)
    check_rest(session)
    assert session.thread()[-1].content == "I am the second"


def test_the_api_takes_an_agent_and_shows_it(api: Api) -> None:
    async def first(turn: AsyncTurn) -> None:
        await turn.emit("first")

    async def second(turn: AsyncTurn) -> None:
        await turn.emit("second")

    client = api.start(agents={"shell": first, "second": second})
    assert client.post("/v1/sessions/s1/messages", json={"content": "x", "agent": "second"}).status_code == 202
    check_rest(api.session())
    assert client.get("/v1/sessions/s1").json()["agent"] == "second"
    assert client.get("/v1/sessions/s1/thread").json()["messages"][-1]["content"] == "second"
    refused = client.post("/v1/sessions/s1/messages", json={"content": "x", "agent": "nobody"})
    assert (refused.status_code, code(refused)) == (404, "not_found")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", ["message", "resume"])
def test_l13_what_waits_for_an_agent_that_cannot_be_loaded_is_not_started_by_what_names_none(
    seed: int, by: str
) -> None:
    with World(seed, settings=settings()) as world:
        asked(world, "a", "forever")
        asked(world, "b", agent="other", policy="enqueue")
        world.answer("s", stop(waiting="park"))
        world.settle()
        broken = {"scripted": world._agents["scripted"], "other": Unloaded("m:f", Invalid("it raises"))}
        with World(seed, agents=broken, settings=settings(), before=world) as later:
            # It would be for the other agent, which the message before it has chosen.
            refused = later.send("s", message("c", "say=1") if by == "message" else Resume(id="c"))
            later.settle()
            assert isinstance(refused.outcome(), AgentUnavailable)
            assert [row.message.id for row in later.disk.of("s").waiting.values()] == ["b"]
            asked(later, "d", agent="scripted")
            later.settle()
            assert run_of(later, "d").status is RunStatus.COMPLETED
            assert [row.message.id for row in later.disk.of("s").waiting.values()] == ["b"]
