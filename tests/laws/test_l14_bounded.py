"""L14 Bounded: what a run can grow has a bound and a stated behaviour there; a slow subscriber slows nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, Invalid, NewMessage, QueueFull, Spawn, Stop, ToolResult, Turn, tool
from actors.gate.credit import Credit
from actors.hierarchy.session import SessionActor
from actors.kernel.mailbox import REQUESTS_MAX
from actors.messages import CallRequested, Committed
from actors.plugin.spawning import COMMAND_MAX_BYTES
from actors.ports import Settings
from tests.kit import WAIT_S, Kit, Listener, check_rest, fates, log, message, say, settled, stop, until


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def test_l14_a_full_queue_refuses_and_drops_nothing(kit: Kit) -> None:
    session = kit.session(hold, queue_max=3)
    say(session)
    waiting = [session.ask(message(str(number), policy="enqueue")).message_id for number in range(3)]
    for policy in ("enqueue", "steer"):
        with pytest.raises(QueueFull) as caught:
            session.ask(message("one too many", policy=policy))
        assert caught.value.code == "queue_full"
        assert caught.value.remedy
    assert session.status().waiting == 3
    accepted = session.ask(NewMessage(content="a person supersedes all the same"))
    assert [m.id for m in accepted.with_messages] == waiting
    stop(session)
    check_rest(session)


def test_l14_a_stop_is_taken_when_everything_else_is_refused(kit: Kit) -> None:
    session = kit.session(hold)
    say(session)
    ref = session.ref
    assert ref is not None
    gate = kit.keep_busy(ref)
    refused = 0
    sent = [message("m", policy="enqueue") for _ in range(REQUESTS_MAX + 10)]
    futures = [ref.ask(one, block=False) for one in sent]
    stopped = ref.ask(Stop(source="user.test", reason="enough"), block=False)
    gate.set()
    assert stopped.get(timeout=WAIT_S).outcome == "stopped"
    for future in futures:
        try:
            future.get(timeout=WAIT_S)
        except QueueFull:
            refused += 1
    assert refused >= 10
    settled(session)


def test_l14_a_message_over_the_limit_is_refused_with_the_limit(kit: Kit) -> None:
    session = kit.session(hold, message_max_bytes=10)
    with pytest.raises(Invalid) as caught:
        session.ask(NewMessage(content="\u00e9" * 6))
    assert "10" in caught.value.expected
    assert "12" in caught.value.got
    assert session.ask(NewMessage(content="\u00e9" * 5)).run_id is not None
    stop(session)
    check_rest(session)


def test_l14_the_logged_output_of_a_call_has_a_limit_and_one_marker_and_its_tail_is_kept(kit: Kit) -> None:
    session = kit.session()
    session.receipt(say(session, "seq 1 600000; echo the very end"), timeout=60)
    events = log(session)
    output = [event for event in events if event.kind == "tool.output"]
    size = sum(len(event.data["text"]) for event in output if not event.data.get("marker"))
    assert size <= 1_048_576
    assert [bool(event.data.get("marker")) for event in output].count(True) == 1
    assert output[-1].data["marker"]
    result = next(event for event in events if event.kind == "tool.ended")
    assert result.data["content"].endswith("the very end\n")
    assert len(result.data["content"]) < 70_000
    assert result.data["data"]["total_bytes"] > 4_000_000


def test_l14_the_processes_of_a_call_have_one_limit_of_logged_output_together(kit: Kit) -> None:
    @tool(isolation="thread")
    def several(spawn: Spawn) -> list[int]:
        scripts = [f"head -c 400001 /dev/zero | tr '\\0' {letter}" for letter in "abcd"]
        return [spawn(["sh", "-c", script]).wait().total_bytes for script in scripts]

    session = kit.session(lambda turn: turn.call("several").content, tools=[several])
    run = say(session)
    session.receipt(run, timeout=60)
    output = [event.data for event in log(session) if event.kind == "tool.output"]
    said = "".join(data["text"] for data in output if not data.get("marker"))
    assert said == "a" * 400_001 + "b" * 400_001 + "c" * (1_048_576 - 800_002)
    assert [bool(data.get("marker")) for data in output].count(True) == 1
    assert output[-1]["marker"]
    assert session.run(run).result == str([400_001] * 4).replace(" ", "")


def test_l14_a_run_has_bounded_credit_while_its_output_is_not_committed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = kit.gate()
    emitted: list[int] = []
    original = SessionActor._committed
    stalled = threading.Event()
    kept: list[tuple[SessionActor, Committed]] = []

    def stalls(self: SessionActor, committed: Committed) -> None:
        if emitted and not gate.is_set():
            kept.append((self, committed))
            stalled.set()
            return
        original(self, committed)

    of_run: list[Credit] = []

    def agent(turn: Turn) -> None:
        of_run.append(turn._core.credit)
        for number in range(100_000):
            turn.emit("x")
            emitted.append(number)

    monkeypatch.setattr(SessionActor, "_committed", stalls)
    session = kit.session(agent)
    run_id = say(session)
    assert stalled.wait(WAIT_S)
    most = Settings().credit_events
    until(lambda: of_run[0]._waiters, "the credit is used up")
    # While nothing is committed the agent cannot go on: its count stands still as often as it is looked at.
    before = len(emitted)
    for _ in range(50):
        session.status()
    assert most - 1 <= len(emitted) == before <= most + 1
    gate.set()
    assert session.ref is not None
    session.ref.tell(kept[-1][1])
    until(lambda: len(emitted) > before + most, "it goes on")
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    settled(session)


def test_l14_an_agent_that_says_very_much_is_heard_in_full(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        for number in range(20_000):
            turn.emit(f"{number}\n")

    session = kit.session(agent)
    session.receipt(say(session), timeout=60)
    said = next(m.content for m in session.thread() if m.role == "assistant")
    assert said == "".join(f"{number}\n" for number in range(20_000))


def test_l14_a_slow_subscriber_slows_no_other_and_misses_nothing(kit: Kit) -> None:
    gate = kit.gate()
    slow_events = []

    def agent(turn: Turn) -> None:
        for _ in range(5_000):
            turn.emit("x")

    session = kit.session(agent)
    subscription = session.subscribe()

    def read_slowly() -> None:
        for event in subscription:
            slow_events.append(event)
            gate.wait()

    thread = threading.Thread(target=read_slowly)
    thread.start()
    fast = Listener(session)
    run_id = say(session)
    session.receipt(run_id, timeout=60)
    events = check_rest(session)
    until(lambda: len(fast.events) == len(events), "the fast one has all")
    assert len(slow_events) <= 1
    gate.set()
    until(lambda: len(slow_events) == len(events), "the slow one too")
    subscription.close()
    thread.join(WAIT_S)
    assert slow_events == events == fast.close()


def test_l14_calls_over_the_limit_are_refused_and_those_below_it_are_not(kit: Kit) -> None:
    most = Settings().calls_open_max
    gate = kit.gate()
    results: list[ToolResult] = []
    entered = threading.Semaphore(0)

    @tool(isolation="thread")
    def wait() -> str:
        entered.release()
        gate.wait()
        return "done"

    def agent(turn: Turn) -> None:
        def call() -> None:
            results.append(turn.call("wait"))

        threads = [threading.Thread(target=call) for _ in range(most)]
        for thread in threads:
            thread.start()
        for _ in range(most):
            entered.acquire()
        results.append(turn.call("wait"))
        gate.set()
        for thread in threads:
            thread.join()

    session = kit.session(agent, tools=[wait])
    session.receipt(say(session), timeout=60)
    outcomes = [result.outcome for result in results]
    assert outcomes[0] == "not_started"
    assert str(most) in results[0].content
    assert outcomes[1:] == ["finished"] * most
    check_rest(session)


def test_l14_processes_over_the_limit_are_refused(kit: Kit) -> None:
    most = Settings().processes_max
    refused: list[BaseException] = []
    started: list[int] = []

    @tool(isolation="thread")
    def many(spawn: Spawn, token: CancelToken) -> str:
        for _ in range(most + 1):
            try:
                process = spawn(["sleep", "60"])
                started.append(process.pid or 0)
            except BaseException as error:
                refused.append(error)
        return "done"

    session = kit.session(lambda turn: turn.call("many"), tools=[many])
    receipt = session.receipt(say(session), timeout=60)
    assert len(started) == most
    assert len(refused) == 1
    assert isinstance(refused[0], QueueFull)
    assert str(most) in str(refused[0])
    assert receipt.reaped == most
    assert receipt.complete


def test_l14_a_request_to_a_session_name_that_cannot_be_is_refused(kit: Kit) -> None:
    supervisor = kit.start(hold)
    for name in ("", " ", "x" * 129, "a\nb"):
        with pytest.raises(Invalid):
            supervisor.session(name)


def test_l14_many_waiting_messages_each_become_an_input(kit: Kit) -> None:
    session = kit.session(hold)
    say(session)
    sent = [session.ask(message(str(number), policy="enqueue")).message_id for number in range(500)]
    accepted = session.ask(NewMessage(content="all"))
    assert len(accepted.with_messages) == 500
    stop(session)
    inputs, _ = fates(check_rest(session))
    assert inputs[1:-1] == sent


@tool(isolation="thread")
def count(text: str) -> int:
    """Count characters."""
    return len(text)


def test_l14_arguments_beyond_their_size_are_refused_in_a_result_and_kept_nowhere(kit: Kit) -> None:
    results: list[ToolResult] = []
    most = Settings().content_max_bytes - len('{"text":""}')

    def agent(turn: Turn) -> None:
        results.extend(turn.call("count", text="x" * size) for size in (most, most + 1))
        with pytest.raises(Invalid, match="progress is too large"):
            turn.progress(text="x" * (most + 1))

    session = kit.session(agent, tools=[count])
    run = say(session)
    settled(session)
    assert session.run(run).status == "completed", session.run(run).error
    taken, refused = results
    assert (taken.outcome, taken.content) == ("finished", str(most))
    assert (refused.outcome, refused.is_error) == ("not_started", True)
    assert f"{Settings().content_max_bytes + 1} bytes" in refused.content
    asked = [event.data["arguments"] for event in log(session) if event.kind == "tool.requested"]
    assert [len(one.get("text", "")) for one in asked] == [most, 0]
    check_rest(session)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_l14_what_calls_say_waits_for_credit_as_text_does(kit: Kit, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    gate = kit.gate()
    begun = threading.Semaphore(0)
    asked: list[str] = []
    kept: list[tuple[SessionActor, Committed]] = []
    report, committed = SessionActor._report, SessionActor._committed

    def counts(self: SessionActor, one: Any) -> None:
        if isinstance(one, CallRequested):
            asked.append(one.tool)
        report(self, one)

    def stalls(self: SessionActor, one: Committed) -> None:
        if asked and not gate.is_set():
            kept.append((self, one))
            return
        committed(self, one)

    text = "x" * (Settings().credit_bytes // 2)

    async def on_the_loop(turn: AsyncTurn) -> None:
        async def call() -> None:
            begun.release()
            await turn.call("count", text=text)

        await asyncio.gather(*(call() for _ in range(6)))

    def on_threads(turn: Turn) -> None:
        def call() -> None:
            begun.release()
            turn.call("count", text=text)

        threads = [threading.Thread(target=call) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    monkeypatch.setattr(SessionActor, "_report", counts)
    monkeypatch.setattr(SessionActor, "_committed", stalls)
    session = kit.session(on_threads if kind == "plain" else on_the_loop, tools=[count])
    run = say(session)
    for _ in range(6):
        assert begun.acquire(timeout=WAIT_S)
    until(lambda: bool(kept), "the first is stored, and nobody hears of it")
    for _ in range(50):
        session.status()
    # There is credit for one of them, and not for two.
    assert len(asked) == 1
    gate.set()
    assert session.ref is not None
    session.ref.tell(kept[-1][1])
    session.receipt(run, timeout=WAIT_S)
    assert len(asked) == 6
    assert session.run(run).status == "completed", session.run(run).error
    settled(session)
    check_rest(session)


def test_l14_a_command_that_exec_cannot_take_is_refused_before_anything_is_asked_for(kit: Kit) -> None:
    refused: list[str] = []

    @tool(isolation="thread")
    def large(spawn: Spawn) -> None:
        """Spawn what is too large."""
        for argv, env in ((["true", "x" * COMMAND_MAX_BYTES], {}), (["true"], {"X": "x" * COMMAND_MAX_BYTES})):
            with pytest.raises(Invalid, match="too large") as caught:
                spawn(argv, env=env)
            refused.append(caught.value.got)

    session = kit.session(lambda turn: turn.call("large").content, tools=[large])
    run = say(session)
    settled(session)
    assert session.run(run).status == "completed"
    assert len(refused) == 2
    assert not [event for event in log(session) if event.kind.startswith("process.")]
