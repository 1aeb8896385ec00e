"""Questions to a person, and approvals: what waits, what an Answer does, and what ends it otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from actors import (
    Answer,
    Answered,
    Asking,
    AsyncTurn,
    Event,
    Invalid,
    NotFound,
    Outcome,
    Refused,
    RequestReused,
    RunStatus,
    StoreUnavailable,
    TooLarge,
    Turn,
    render_anthropic,
    tool,
)
from actors.model import SessionStatus
from actors.plugin.asking import approval_of, question_of
from supervisor import Agent, SessionHandle
from tests.kit import WAIT_S, Kit, check_rest, log, message, rows, say, settled, stop, until
from tests.sim.client import Client, Op
from tests.sim.world import World
from tests.world_kit import SEEDS, of, settings
from tests.world_kit import message as world_message
from tests.world_kit import settled as world_settled
from tests.world_kit import stop as world_stop

REASON = "wrong target"


@tool(isolation="task", approve=True)
async def remove(path: str) -> str:
    """Remove a file, if somebody allows it."""
    return f"removed {path}"


async def asks(turn: AsyncTurn) -> str:
    return await turn.ask("Deploy it?", options=["yes", "no"])


async def calls(turn: AsyncTurn) -> list[str]:
    result = await turn.call("remove", path="a.txt")
    return [result.outcome, result.content]


def waits(session: SessionHandle) -> str:
    """Wait until one call waits for a person, and return its id."""
    until(lambda: session.status().asking, "a call that waits for a person")
    return session.status().asking[0].call_id


def answer(session: SessionHandle, call_id: str, content: str = "", **options: Any) -> Answered:
    return session.ask(Answer(call_id=call_id, content=content, **options), timeout=WAIT_S)


def result_of(session: SessionHandle, run_id: str) -> Any:
    assert session.receipt(run_id, timeout=WAIT_S).complete
    run = session.run(run_id)
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    return run.result


def status_of(world: World) -> SessionStatus:
    future = world.inspect("s")
    assert world.run(future.done)
    status = future.get(timeout=0)
    assert isinstance(status, SessionStatus)
    return status


def of_calls(events: Iterable[Event]) -> list[str]:
    return [event.kind for event in events if event.kind.startswith(("tool.", "call."))]


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_question_waits_for_an_answer_which_is_its_result(kit: Kit, kind: str) -> None:
    def as_thread(turn: Turn) -> str:
        return turn.ask("Deploy it?", ["yes", "no"])

    session = kit.session(asks if kind == "task" else as_thread)
    run_id = say(session)
    call_id = waits(session)
    (asking,) = session.status().asking
    assert asking == Asking(call_id, "ask", "Deploy it?", ("yes", "no"), approval=False)
    assert answer(session, call_id, "yes, on Monday", origin="anna") == Answered(call_id, run_id)
    assert result_of(session, run_id) == "yes, on Monday"
    assert session.status().asking == ()
    events = check_rest(session)
    assert of_calls(events) == ["tool.requested", "call.waiting", "call.answered", "tool.ended"]
    waiting, answered, ended = [event.data for event in events if event.kind in of_calls(events)[1:]]
    assert waiting == {"call_id": call_id, "question": "Deploy it?", "options": ["yes", "no"]}
    assert answered == {"call_id": call_id, "content": "yes, on Monday", "allow": None, "by": "anna"}
    assert (ended["outcome"], ended["content"], ended["is_error"]) == ("finished", "yes, on Monday", False)
    asked, told = render_anthropic(session.thread())[1:3]
    assert asked["content"][0]["name"] == "ask"
    assert asked["content"][0]["input"] == {"question": "Deploy it?", "options": ["yes", "no"]}
    assert told["content"][0]["content"] == "yes, on Monday"


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_person_may_decline_to_answer(kit: Kit, kind: str) -> None:
    async def as_task(turn: AsyncTurn) -> list[str]:
        with pytest.raises(Refused) as refused:
            await turn.ask("Which key?")
        return [refused.value.result.outcome, refused.value.result.content]

    def as_thread(turn: Turn) -> list[str]:
        with pytest.raises(Refused) as refused:
            turn.ask("Which key?")
        return [refused.value.result.outcome, refused.value.result.content]

    session = kit.session(as_task if kind == "task" else as_thread)
    run_id = say(session)
    answer(session, waits(session), "ask\nsomebody else", allow=False)
    assert result_of(session, run_id) == ["not_started", "Not started: the user declined: ask\\nsomebody else"]


def test_a_question_is_not_answered_by_allowing_it(kit: Kit) -> None:
    session = kit.session(asks)
    run_id = say(session)
    call_id = waits(session)
    with pytest.raises(Invalid, match="asks a question, and not whether it may start"):
        answer(session, call_id, " ", allow=True)
    assert session.status().asking[0].call_id == call_id, "what is refused changes nothing"
    answer(session, call_id, "no")
    assert result_of(session, run_id) == "no"


@pytest.mark.parametrize("question", ["", "  ", 7, None, b"Deploy?"])
def test_what_is_no_question_is_refused(question: Any) -> None:
    with pytest.raises(Invalid, match="not a question"):
        question_of(question, ())


@pytest.mark.parametrize("options", ["yes", b"yes", 7, None, ["yes", 1], {"yes": "no"}])
def test_what_are_no_options_is_refused(options: Any) -> None:
    with pytest.raises(Invalid, match="not options"):
        question_of("Deploy it?", options)


def test_a_question_is_as_large_as_a_call_may_be(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> str:
        with pytest.raises(Invalid, match="this question is too large"):
            await turn.ask("x" * 1_048_577)
        return await turn.ask("\ud83d " + "x" * 1_000_000)

    session = kit.session(agent)
    run_id = say(session)
    call_id = waits(session)
    with pytest.raises(TooLarge):
        answer(session, call_id, "y" * 1_048_577)
    answer(session, call_id, "")
    assert result_of(session, run_id) == ""


def test_several_questions_wait_at_once_and_each_has_its_own_answer(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        return list(await asyncio.gather(*(turn.ask(f"{number}?") for number in range(3))))

    session = kit.session(agent)
    run_id = say(session)
    until(lambda: len(session.status().asking) == 3)
    for asking in reversed(session.status().asking):
        answer(session, asking.call_id, f"to {asking.question}")
    assert result_of(session, run_id) == ["to 0?", "to 1?", "to 2?"]


# ── Approvals ─────────────────────────────────────────────────────────────────────────────────────


def test_l2_a_tool_that_needs_approval_starts_when_it_is_allowed(kit: Kit) -> None:
    session = kit.session(calls, tools=[remove])
    run_id = say(session)
    call_id = waits(session)
    (asking,) = session.status().asking
    assert (asking.question, asking.approval) == ('May remove be called with {"path":"a.txt"}?', True)
    assert "tool.started" not in of_calls(log(session))
    answer(session, call_id, allow=True)
    assert result_of(session, run_id) == ["finished", "removed a.txt"]
    kinds = ["tool.requested", "call.waiting", "call.answered", "tool.started", "tool.ended"]
    assert of_calls(check_rest(session)) == kinds


def test_l2_a_tool_that_is_not_allowed_never_starts(kit: Kit) -> None:
    session = kit.session(calls, tools=[remove])
    run_id = say(session)
    answer(session, waits(session), "keep it", allow=False)
    assert result_of(session, run_id) == ["not_started", "Not started: the user declined: keep it"]
    assert of_calls(check_rest(session)) == ["tool.requested", "call.waiting", "call.answered", "tool.ended"]
    assert not [row for row in rows(session.receipt(run_id)) if row.kind == "call"]


def test_an_approval_has_to_allow_or_decline_and_an_invalid_call_is_not_asked_about(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        bad = await turn.call("remove", pth="a.txt")
        return [bad.outcome, (await turn.call("remove", path="b")).content]

    session = kit.session(agent, tools=[remove])
    run_id = say(session)
    call_id = waits(session)
    with pytest.raises(Invalid, match="asks whether it may start"):
        answer(session, call_id, "well")
    with pytest.raises(Invalid, match="not a bool"):
        Answer(call_id=call_id, allow="yes")  # type: ignore[arg-type]
    assert session.status().asking[0].call_id == call_id, "what is refused changes nothing"
    answer(session, call_id, allow=True)
    assert result_of(session, run_id) == ["not_started", "removed b"]
    assert [event.data["call_id"] for event in log(session) if event.kind == "call.waiting"] == [call_id]


@pytest.mark.parametrize("allow", [True, False])
def test_l2_only_a_person_says_whether_a_call_may_start(kit: Kit, allow: bool) -> None:
    session = kit.session(calls, tools=[remove])
    run_id = say(session)
    call_id = waits(session)
    with pytest.raises(Invalid, match="only a person") as refused:
        answer(session, call_id, "as the rules say", allow=allow, origin="bot")
    assert (refused.value.expected, refused.value.got) == ("origin='user', a person", "origin='bot'")
    assert "Stop" in refused.value.remedy
    assert session.status().asking[0].call_id == call_id, "what is refused changes nothing"
    answer(session, call_id, allow=True)
    assert result_of(session, run_id)[0] == "finished"


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_function_of_the_agents_own_may_need_approval(kit: Kit, kind: str) -> None:
    began = list[str]()

    async def as_task(turn: AsyncTurn) -> str:
        async def function() -> str:
            began.append("async")
            return "done"

        with pytest.raises(Refused):
            await turn.gate("wipe", {"disk": 1}, function, ask=True)
        return await turn.gate("wipe", {"disk": 2}, function, ask=True)

    def as_thread(turn: Turn) -> str:
        def function() -> str:
            began.append("plain")
            return "done"

        with pytest.raises(Refused):
            turn.gate("wipe", {"disk": 1}, function, ask=True)
        return turn.gate("wipe", {"disk": 2}, function, ask=True)

    session = kit.session(as_task if kind == "task" else as_thread)
    run_id = say(session)
    first = waits(session)
    answer(session, first, allow=False)
    until(lambda: session.status().asking and session.status().asking[0].call_id != first)
    assert began == []
    answer(session, waits(session), allow=True)
    assert result_of(session, run_id) == "done"
    assert len(began) == 1


def test_the_calls_of_an_answer_ask_when_it_has_ended(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        async with turn.answer() as answer:
            call = answer.call("remove", {"path": "a.txt"})
            await answer.text("I remove it. ")
        return [(await call).content]

    session = kit.session(agent, tools=[remove])
    run_id = say(session)
    answer(session, waits(session), allow=True)
    assert result_of(session, run_id) == ["removed a.txt"]
    kinds = [event.kind for event in check_rest(session)]
    assert kinds.index("answer.ended") < kinds.index("call.waiting")


def test_a_budget_of_calls_counts_allowed_calls_and_no_approval_is_asked_for_in_vain(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        await turn.ask("Which one?")
        await asyncio.gather(turn.call("remove", path="a"), turn.call("remove", path="b"))

    session = kit.session(agent, tools=[remove], max_calls=1)
    run_id = say(session)
    answer(session, waits(session), "both")
    until(lambda: len(session.status().asking) == 2)
    first, second = session.status().asking
    answer(session, first.call_id, allow=True)
    until(lambda: "tool.started" in of_calls(log(session)))
    answer(session, second.call_id, allow=True)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).status == RunStatus.EXPIRED
    ended = {event.data["call_id"]: event.data for event in check_rest(session) if event.kind == "tool.ended"}
    assert ended[second.call_id]["outcome"] == "not_started"
    assert "1 are its limit" in ended[second.call_id]["content"]
    kit.close()

    async def again(turn: AsyncTurn) -> None:
        for path in ("a", "b"):
            await turn.call("remove", path=path)

    session = kit.session(again, name="s2", tools=[remove], max_calls=1)
    run_id = say(session)
    answer(session, waits(session), allow=True)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).status == RunStatus.EXPIRED
    assert [event.kind for event in check_rest(session)].count("call.waiting") == 1


def test_a_question_whether_a_tool_may_be_called_says_if_it_does_not_show_everything() -> None:
    assert approval_of("sh\nell", {"script": "a\nb"}).text == 'May sh\\nell be called with {"script":"a\\nb"}?'
    text = approval_of("shell", {"script": "x" * 5_000 + "rm -rf /"}).text
    assert "and 3021 more characters, which are in its tool.requested" in text
    assert len(text) < 2_200


# ── Agents in hosts ───────────────────────────────────────────────────────────────────────────────

HOSTED = """
async def answer(turn):
    said = await turn.ask("Deploy it?", options=["yes", "no"])
    result = await turn.call("remove", path="a.txt")

    async def wipe():
        return "wiped"

    shell = await turn.call("shell", script="true")
    gated = [await turn.gate("wipe", {}, wipe), await turn.gate("wash", {}, wipe, ask=True)]
    return [said, result.content, *gated, shell.outcome]
"""


def test_an_agent_in_a_host_asks_and_its_tools_need_approval(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "asker.py").write_text(HOSTED)
    spec = Agent(run="asker:answer", path=[str(tmp_path)], env={kit.mark: "1"}, spares=0, ask=["shell", "wipe"])
    session = kit.start(spec, tools=[remove]).session("s1")
    run_id = say(session)
    answer(session, waits(session), "yes")
    seen = []
    for _ in range(4):
        until(lambda: any(one.call_id not in seen for one in session.status().asking), "the next question")
        (asking,) = session.status().asking
        seen.append(asking.call_id)
        answer(session, asking.call_id, "no shell", allow=asking.tool != "shell")
    assert result_of(session, run_id) == ["yes", "removed a.txt", "wiped", "wiped", "not_started"]
    asked = [event.data["question"] for event in check_rest(session) if event.kind == "call.waiting"]
    assert [question.split()[1] for question in asked] == ["it?", "remove", "shell", "wipe", "wash"]


def test_l5_a_stop_ends_the_question_of_an_agent_in_a_host(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "asker.py").write_text(HOSTED)
    session = kit.start(Agent(run="asker:answer", path=[str(tmp_path)], env={kit.mark: "1"}, spares=0)).session("s1")
    run_id = say(session)
    waits(session)
    stop(session, REASON)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).status == RunStatus.CANCELLED
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert ended["content"] == f"Not started: the user stopped it (user.test: {REASON})."
    assert kit.alive() == []


# ── Answers that come twice, late, or for something else ──────────────────────────────────────────


def test_l10_the_first_answer_stands(kit: Kit) -> None:
    session = kit.session(asks)
    run_id = say(session)
    call_id = waits(session)
    first = Answer(call_id=call_id, content="yes")
    session.ask(first, timeout=WAIT_S)
    with pytest.raises(NotFound, match="no call waits"):
        answer(session, call_id, "no")
    assert session.ask(first, timeout=WAIT_S) == Answered(call_id, run_id), "the same request has the same answer"
    with pytest.raises(RequestReused):
        session.ask(Answer(id=first.id, call_id=call_id, content="no"), timeout=WAIT_S)
    assert result_of(session, run_id) == "yes"
    assert [event.data["content"] for event in log(session) if event.kind == "call.answered"] == ["yes"]


def test_an_answer_to_a_call_that_does_not_wait_is_refused_and_a_dead_letter(kit: Kit) -> None:
    session = kit.session(asks)
    first = say(session)
    call_id = waits(session)
    stop(session)
    session.receipt(first, timeout=WAIT_S)
    say(session)
    until(lambda: session.status().asking and session.status().asking[0].call_id != call_id)
    with pytest.raises(NotFound):
        answer(session, call_id, "yes")
    assert len(session.status().asking) == 1, "the question of the next run waits on"
    supervisor = kit.supervisor
    assert supervisor is not None
    until(lambda: "answer" in [letter.kind for letter in supervisor.dead_letters()])
    stop(session)
    assert [event.kind for event in check_rest(session)].count("call.answered") == 0


# ── What ends it otherwise ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("agent", [asks, calls])
def test_l5_a_stop_ends_what_waits_as_not_started_and_never_as_declined(kit: Kit, agent: Callable[..., Any]) -> None:
    session = kit.session(agent, tools=[remove])
    run_id = say(session)
    waits(session)
    stop(session, REASON)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert not [row for row in rows(receipt) if row.kind == "call"]
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert ended["outcome"] == "not_started"
    assert ended["content"] == f"Not started: the user stopped it (user.test: {REASON})."
    assert session.status().asking == ()


def test_a_message_waits_behind_a_question_by_its_policy_and_a_takeover_ends_it(kit: Kit) -> None:
    session = kit.session(asks)
    first = say(session)
    call_id = waits(session)
    assert session.ask(message("later", policy="enqueue")).queued
    assert session.status().asking[0].call_id == call_id
    assert session.ask(message("now")).superseded_run_id == first
    (ended,) = [event.data for event in log(session) if event.kind == "tool.ended"]
    assert ended["content"] == "Not started: a new message took over."
    stop(session)
    settled(session)


def test_a_time_limit_of_the_agents_own_ends_its_question(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> str:
        try:
            async with asyncio.timeout(0.05):
                return await turn.ask("Anybody there?")
        except TimeoutError:
            return turn.messages[-1].content

    session = kit.session(agent)
    run_id = say(session)
    assert result_of(session, run_id) == "Not started: the agent stopped waiting for the call."
    assert session.status().asking == ()


def test_an_answered_question_is_no_call_that_may_have_had_effects(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        await turn.ask("Go on?")
        await asyncio.Event().wait()

    session = kit.session(agent)
    run_id = say(session)
    answer(session, waits(session), "yes")
    until(lambda: "tool.ended" in of_calls(log(session)))
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert "No call had started." in session.thread()[-1].content


def test_l12_a_restart_ends_a_question_and_says_why(kit: Kit) -> None:
    session = kit.session(asks)
    run_id = say(session)
    call_id = waits(session)
    kit.close()
    again = kit.session(asks)
    until(lambda: again.run(run_id).status == RunStatus.CANCELLED)
    assert again.status().asking == ()
    (ended,) = [event.data for event in check_rest(again) if event.kind == "tool.ended"]
    assert ended["outcome"] == "not_started"
    assert "the supervisor is shutting down" in ended["content"]
    with pytest.raises(NotFound):
        answer(again, call_id, "yes")


# ── In virtual time ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("word", ["ask", "allowed=0.5"])
def test_deadlines_stand_still_while_a_person_is_asked(seed: int, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(run_deadline_s=3.0, call_deadline_s=2.0)) as world:
        run = world.answer("s", world_message("a", f"{word} sleep=60"))
        world.wait(600.0)
        (waiting,) = of(world, "call.waiting")
        assert world.status(run.run_id) is RunStatus.IN_PROGRESS
        world.answer("s", Answer(call_id=waiting.data["call_id"], content="yes", allow=True))
        world_settled(world)
        assert world.status(run.run_id) is RunStatus.EXPIRED, "it goes on from where it stood"
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == Outcome.FINISHED


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_question_that_a_failure_of_the_store_has_ended_is_not_shown_as_waiting(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        world.answer("s", world_message("a", "ask"))
        world.run(lambda: bool(of(world, "call.waiting")))
        (waiting,) = of(world, "call.waiting")
        assert [one.call_id for one in status_of(world).asking] == [waiting.data["call_id"]]
        world.store.fail_next(3)
        with pytest.raises(StoreUnavailable):
            world.answer("s", world_message("b", "say=1", policy="enqueue"))
        status = status_of(world)
        assert (status.state, status.asking) == ("store_failed", ())
        with pytest.raises(StoreUnavailable):
            world.answer("s", Answer(call_id=waiting.data["call_id"], content="yes"))
        world_settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == Outcome.NOT_STARTED
        assert "the store failed" in ended.data["content"]


@pytest.mark.usefixtures("quiet")
def test_a_crash_ends_a_question_and_no_receipt_says_that_it_was_executed() -> None:
    with World(1) as world:
        run = world.answer("s", world_message("a", "ask"))
        world.wait(1.0)
        with world.crash() as after:
            after.answer("s", world_stop("later"))
            world_settled(after)
            (ended,) = of(after, "tool.ended")
            assert ended.data["outcome"] == Outcome.NOT_STARTED
            assert "the supervisor was restarted" in ended.data["content"]
            receipt = after.disk.receipt(run.run_id)
            assert receipt is not None
            assert [row.kind for row in receipt.rows] == ["agent"]


STOP: Op = ("stop", "graceful", None, None, "run", "user", None)
TROUBLES: dict[str, list[Op]] = {
    "a stop": [STOP],
    "a takeover": [("new", "ask say=1", "interrupt", "user", True, None), ("wait", 1.0), ("answer", 1, None)],
    "another answer": [("answer", 0, False), ("repeat", -1), ("repeat", -2)],
    "a crash": [("crash",), ("answer", 0, True)],
    "a store that fails": [("fail", 1), ("wait", 1.0), ("answer", 0, True)],
    "a store that does not say": [("lose", 1), STOP],
    "a store that hangs": [("hold", True), STOP, ("wait", 1.0), ("hold", False)],
    "a session that fails": [("poison", 0, 0, False), ("wait", 1.0), ("answer", 0, True)],
    "a run that fails": [("poison", 1, 0, True), ("answer", 0, True)],
    "a shutdown": [("shutdown", 0.5)],
    "a deletion": [("delete",), ("answer", 0, True)],
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("word", ["ask", "allowed=0.5"])
def test_what_comes_at_any_moment_around_an_answer_breaks_no_law(word: str, trouble: str) -> None:
    for before in range(0, 16, 3):
        for after in range(0, 20, 2):
            script: list[Op] = [
                ("new", f"{word} say=1", None, "user", True, None),
                ("wait", 1.0) if before == 15 else ("steps", before + 8),
                ("answer", 0, True),
                ("steps", after),
                *TROUBLES[trouble],
                ("wait", 1.0),
            ]
            with Client(1_000 * before + after) as client:
                client.play(script)
