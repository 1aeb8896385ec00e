"""Usage and budgets: what runs have used is counted once, and a run that needs more than its budget expires."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
import pytest

from actors import AsyncTurn, RunStatus
from actors.decoding import decoder
from actors.errors import Invalid
from actors.hosts import HostedAgent
from actors.model import Provenance, RunInfo
from actors.ports import SessionRow
from actors.protocol.notes import who
from actors.usage import COUNT_MAX, Budget, Usage, of_answer
from supervisor import Agent, Config
from supervisor.console.render.words import usage_words
from supervisor.store.schema import STORE_NAME
from tests.http_kit import Api, api
from tests.kit import Kit, check_rest, kit, say
from tests.sim.hosts import Hosting
from tests.sim.world import World
from tests.test_http_metrics import value
from tests.world_kit import SEEDS, message, of, settings, settled

__all__ = ["api", "kit"]

pytestmark = pytest.mark.usefixtures("quiet")

ANSWER = Usage(input=1, output=2, reasoning=1)
"""What an answer of the scripted agent costs. It has three calls, of which one is refused."""


def ended(content: str, seed: int = 1, *, hosting: Hosting | None = None, **limits: Any) -> tuple[RunInfo, World]:
    with World(seed, settings=settings(**limits), hosting=hosting) as world:
        accepted = world.answer("s", message("a", content))
        settled(world)
        run = world.disk.run(accepted.run_id)
        assert run is not None
        return run, world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("content", "limits", "used"),
    [
        ("answer=0 say=1", {"max_tokens": 2}, ANSWER),
        ("answer_left=1 say=1", {"max_tokens": 2}, ANSWER),
        ("write=0.1 write=0.1 write=0.1", {"max_calls": 2}, Usage(calls=2)),
        ("fan=4", {"max_calls": 2}, Usage(calls=2)),
        # Both of its calls would be too many, and none starts.
        ("answer=0 say=1", {"max_calls": 1}, ANSWER),
        # One that is given up has begun all the same.
        ("limit=0.5 limit=0.5 say=1", {"max_calls": 1}, Usage(calls=1)),
    ],
)
def test_l14_a_run_that_needs_more_than_its_budget_expires(
    seed: int, content: str, limits: dict[str, Any], used: Usage
) -> None:
    run, world = ended(content, seed, **limits)
    assert run.status is RunStatus.EXPIRED
    assert run.provenance is not None
    assert run.provenance.source == "run.budget"
    if content != "fan=4":
        # Of calls that are asked for together, those before may not have started when one is too many.
        assert run.usage == used
    assert run.usage.calls <= used.calls
    assert not [event for event in of(world, "text") if "say" in content and event.seq > of(world, "run.status")[0].seq]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("content", "limits", "used"),
    [
        ("answer=0 say=1", {"max_tokens": 3}, msgspec.structs.replace(ANSWER, calls=2)),
        ("answer=0 say=1", {"max_calls": 2}, msgspec.structs.replace(ANSWER, calls=2)),
        ("write=0.1 bad write=0.1", {"max_calls": 2, "max_tokens": 1}, Usage(calls=2)),
    ],
)
def test_a_run_may_use_its_whole_budget(seed: int, content: str, limits: dict[str, Any], used: Usage) -> None:
    run, _ = ended(content, seed, **limits)
    assert (run.status, run.usage) == (RunStatus.COMPLETED, used)


def test_the_budget_of_an_agent_goes_before_the_configured_one() -> None:
    own = Hosting(7, HostedAgent("scripted", budget=Budget(max_calls=3)), calm=True)
    run, _ = ended("write=0.1 write=0.1 write=0.1", hosting=own, max_calls=1)
    assert (run.status, run.usage.calls) == (RunStatus.COMPLETED, 3)
    hasty = Hosting(7, HostedAgent("scripted", budget=Budget(deadline_s=2.0)), calm=True)
    run, _ = ended("forever", hosting=hasty, run_deadline_s=600.0)
    assert run.provenance is not None
    assert (run.status, run.provenance.source) == (RunStatus.EXPIRED, "run.deadline")
    assert run.ended_at is not None
    assert run.started_at is not None
    assert run.ended_at - run.started_at < 60.0


def test_a_budget_takes_what_it_leaves_open_from_another() -> None:
    assert Budget(max_calls=3).over(Budget(5, 6, 7.0)) == Budget(5, 3, 7.0)
    assert Budget().spent(Usage(input=COUNT_MAX)) is None
    assert Budget(max_tokens=5).spent(Usage(input=2, output=3, cached=9, reasoning=9)) is None
    assert Budget(max_tokens=5).spent(Usage(input=2, output=4)) is not None
    assert Budget(max_calls=2).calls_spent(Usage(calls=1), 0) is None
    assert Budget(max_calls=2).calls_spent(Usage(calls=1), 1) is not None


def test_a_sum_never_grows_beyond_what_the_store_holds() -> None:
    most = Usage(input=COUNT_MAX, output=COUNT_MAX)
    assert most.plus(most) == most
    assert most.tokens == COUNT_MAX
    assert decoder(Usage)(msgspec.json.encode(most)) == most
    assert of_answer({"input": 1, "images": 7}) == Usage(input=1)


def test_rows_of_an_earlier_version_have_used_nothing() -> None:
    assert decoder(SessionRow)(b'{"session": "s", "generation": 1, "seq": 2}').usage == Usage()


def test_a_source_of_a_later_version_is_read_and_another_word_is_none() -> None:
    later = decoder(Provenance)(b'{"source": "node.lost", "reason": "its node is gone"}')
    assert who(later) == "it was ended by node.lost (its node is gone)"
    for word in ("budget", "run.", ".run", "Run.budget", "run budget.x", "x." + "y" * 100):
        with pytest.raises(Invalid):
            Provenance(source=word, reason="it is no source")


@pytest.mark.parametrize("key", ["max_tokens", "max_calls"])
@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "7", 2**63])
def test_a_budget_is_a_whole_number(key: str, wrong: object) -> None:
    wanted: dict[str, Any] = {key: wrong}
    with pytest.raises(Invalid, match=key):
        Config(**wanted)
    with pytest.raises(Invalid, match=key):
        Agent(run="m:f", **wanted)


def test_a_table_of_an_agent_has_its_budget() -> None:
    assert Agent(run="m:f", max_tokens=9, run_deadline_s=3).budget == Budget(9, None, 3.0)
    with pytest.raises(Invalid, match="run_deadline_s"):
        Agent(run="m:f", run_deadline_s=0)


async def thrifty(turn: AsyncTurn) -> None:
    """Answer once, and say what that cost."""
    async with turn.answer(provider="test") as answer:
        answer.usage(input=1000, output=20, cached=500, pages=3)
        await answer.text("hello")


def test_l12_what_a_session_has_used_is_known_after_a_restart(kit: Kit) -> None:
    session = kit.session(thrifty)
    for _ in range(2):
        say(session)
        check_rest(session)
    once = Usage(input=1000, output=20, cached=500)
    assert [run.usage for run in session.runs()] == [once, once]
    assert session.status().usage == once.plus(once)
    kit.close()
    session = kit.session(thrifty)
    assert session.status().usage == once.plus(once)
    kit.close()
    # A row that cannot be read is rebuilt from those of the runs.
    with sqlite3.connect(kit.state_dir / STORE_NAME) as store:
        store.execute("UPDATE sessions SET doc = 'damaged'")
    store.close()
    assert kit.session(thrifty).status().usage == once.plus(once)


def test_the_api_and_the_metrics_have_what_was_used(api: Api) -> None:
    client = api.start(thrifty)
    api.session().ask(message("a", "go"))
    check_rest(api.session())
    used = client.get("/v1/sessions/s1").json()["usage"]
    assert used == {"input": 1000, "output": 20, "cached": 500, "reasoning": 0, "calls": 0}
    assert client.get("/v1/sessions/s1/runs").json()["runs"][0]["usage"] == used
    assert value(client, "tokens_total", kind="input") == 1000
    assert value(client, "tokens_total", kind="cached") == 500


def test_what_was_used_is_said_in_words() -> None:
    assert usage_words(Usage(calls=2)) == "2 calls"
    words = "1,020 tokens: 1,000 of input, 20 of output (500 cached); 1 call"
    assert usage_words(Usage(input=1000, output=20, cached=500, calls=1)) == words
