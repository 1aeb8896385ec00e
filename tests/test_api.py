"""The actor API from outside: names, fields, defaults, refusals, both faces, and the actors as Pykka's citizens.

The file has over 600 lines, and is whole: it is the list of what a program may rely on.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pykka
import pytest
from pykka import ActorDeadError, ActorRegistry

import actors
import supervisor
from actors import (
    Accepted,
    Answer,
    BlockingAskError,
    CountermandError,
    Event,
    Invalid,
    Message,
    Mode,
    NewMessage,
    NotFound,
    Outcome,
    Policy,
    QueueFull,
    ReceiptPending,
    Resume,
    Resumed,
    RunActive,
    RunStatus,
    Scope,
    SessionActor,
    StateDirBusy,
    Stop,
    Stopped,
    Turn,
    Waiting,
    Withdraw,
    Withdrawn,
    tool,
)
from actors.dead_letters import DeadLetters
from actors.kernel.actor import Actor
from actors.kernel.dispatcher import PooledDispatcher
from actors.messages import Committed, RunFinished
from actors.plugin.registration import Plugins
from actors.ports import Ports, Settings
from supervisor import Config, SessionHandle, Supervisor
from supervisor.clock import SystemClock
from supervisor.containment.processes.trees import ProcessTrees
from supervisor.executor import ThreadExecutor
from supervisor.ids import RandomIds
from supervisor.publisher import EventHub
from supervisor.router import SupervisorActor
from supervisor.store.sqlite import SqliteStore
from supervisor.strays.strays import Strays
from tests.kit import WAIT_S, Kit, Listener, check_rest, log, message, say, settled, stop, until


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def fields(kind: Any) -> set[str]:
    return set(kind.__struct_fields__)


# ── Names and shapes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("module", [actors, supervisor])
def test_every_public_name_is_there_and_is_no_module(module: Any) -> None:
    for name in module.__all__:
        assert not inspect.ismodule(getattr(module, name)), name


def test_the_decorator_of_tools_is_the_public_name_tool() -> None:
    @tool(isolation="thread")
    def mine() -> str:
        return ""

    assert actors.tool is tool
    assert mine() == ""


def test_answers_and_values_have_the_fields_that_are_promised() -> None:
    assert fields(Accepted) >= {
        "message_id",
        "run_id",
        "generation",
        "policy",
        "queued",
        "superseded_run_id",
        "with_messages",
        "returned",
    }
    assert fields(Stopped) >= {"outcome", "run_id", "receipt_id", "fence_seq", "durable", "withdrawn", "joined"}
    assert fields(Resumed) >= {"run_id", "generation", "with_messages"}
    assert fields(Withdrawn) >= {"message_id", "outcome"}
    assert fields(Event) >= {"seq", "generation", "run_id", "kind", "data"}
    assert fields(Message) >= {
        "id",
        "role",
        "content",
        "generation",
        "run_id",
        "status",
        "tool_calls",
        "tool_call_id",
        "outcome",
    }
    assert fields(actors.Receipt) >= {
        "receipt_id",
        "run_id",
        "generation",
        "provenance",
        "fenced_at",
        "ended_at",
        "complete",
        "rows",
        "reaped",
    }
    assert fields(actors.Row) >= {"kind", "name", "started_at", "ended_at", "how", "status", "signals", "pid"}
    assert fields(actors.Provenance) >= {"source", "reason", "mode", "requested_by", "initiated_at", "cause"}


def test_requests_have_the_defaults_that_are_promised() -> None:
    one = NewMessage(content="x")
    assert (one.policy, one.origin, one.merge, one.sent_at) == (None, "user", True, None)
    request = Stop(source="user.x", reason="y")
    assert (request.run_id, request.scope, request.mode, request.origin, request.sent_at) == (
        None,
        Scope.RUN,
        Mode.GRACEFUL,
        "user",
        None,
    )
    assert request.resolved_waiting is Waiting.WITHDRAW
    assert Resume().origin == "user"


def test_the_configuration_has_the_defaults_that_are_promised(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path)
    assert (config.agent, dict(config.agents), list(config.tools)) == ("shell", {}, [])
    assert (config.grace_s, config.kill_s, config.drain_s) == (2.0, 5.0, 10.0)
    assert (config.run_deadline_s, config.call_deadline_s) == (None, None)
    assert (config.queue_max, config.message_max_bytes, config.barrier) == (1000, 1_048_576, "forced")


@pytest.mark.parametrize(
    ("make", "field", "word", "value"),
    [
        (lambda w: NewMessage(content="", policy=w), "policy", "steer", Policy.STEER),
        (lambda w: Stop(source="user.x", reason="y", scope=w), "scope", "session", Scope.SESSION),
        (lambda w: Stop(source="user.x", reason="y", mode=w), "mode", "immediate", Mode.IMMEDIATE),
        (lambda w: Stop(source="user.x", reason="y", waiting=w), "waiting", "park", Waiting.PARK),
    ],
)
def test_enums_are_words_and_words_are_taken(make: Any, field: str, word: str, value: Any) -> None:
    assert getattr(make(word), field) is value
    assert getattr(make(value), field) == word
    with pytest.raises(Invalid) as caught:
        make("nonsense")
    assert word in caught.value.expected


def test_statuses_and_outcomes_are_words() -> None:
    assert [str(status) for status in RunStatus] == [
        "queued",
        "in_progress",
        "cancelling",
        "completed",
        "failed",
        "expired",
        "cancelled",
    ]
    assert [str(outcome) for outcome in Outcome] == ["not_started", "interrupted", "finished"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("RunActive", "run_active"),
        ("QueueFull", "queue_full"),
        ("RequestReused", "request_reused"),
        ("RequestTooOld", "request_too_old"),
        ("StoreUnavailable", "store_unavailable"),
        ("NotFound", "not_found"),
        ("Invalid", "invalid"),
        ("Quarantined", "quarantined"),
        ("ReceiptPending", "receipt_pending"),
    ],
)
def test_refusals_have_one_root_and_a_code(name: str, code: str) -> None:
    kind = getattr(actors, name)
    assert issubclass(kind, CountermandError)
    assert kind.code == code


@pytest.mark.parametrize(
    "make",
    [
        lambda: NewMessage(content=None),  # type: ignore[arg-type]
        lambda: NewMessage(content="x", origin=""),
        lambda: NewMessage(content="x", sent_at="now"),  # type: ignore[arg-type]
        lambda: Withdraw(message_id=""),
        lambda: Answer(call_id="", content=""),
    ],
)
def test_a_request_that_cannot_be_right_is_refused_where_it_is_made(make: Any) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grace_s", -1),
        ("kill_s", float("nan")),
        ("queue_max", 0),
        ("message_max_bytes", True),
        ("barrier", "loose"),
        ("run_deadline_s", 0),
        ("agent", ""),
        ("state_dir", " "),
    ],
)
def test_a_configuration_that_cannot_be_right_names_its_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Config(**{"state_dir": tmp_path, key: value})
    assert key in str(caught.value)


def test_an_agent_that_is_not_there_is_refused_at_the_start_and_holds_no_lock(kit: Kit) -> None:
    with pytest.raises(NotFound) as caught:
        Supervisor.start(Config(state_dir=kit.state_dir, agents={"mine": hold}, agent="yours"))
    assert "mine" in caught.value.expected
    assert kit.start(hold).sessions() == []


def test_a_second_supervisor_on_the_same_directory_is_refused(kit: Kit) -> None:
    kit.start(hold)
    with pytest.raises(StateDirBusy) as caught:
        Supervisor.start(Config(state_dir=kit.state_dir))
    assert caught.value.pid is not None


@pytest.mark.parametrize("isolation", [None, "fibre", "task"])
def test_a_tool_without_a_fitting_isolation_is_refused_with_the_choices(kit: Kit, isolation: Any) -> None:
    def plain() -> None:
        return None

    with pytest.raises(Invalid) as caught:
        actors.Tool(plain, isolation=isolation)
    assert "thread" in caught.value.expected


# ── One session ───────────────────────────────────────────────────────────────────────────────────


def test_the_example_of_the_interface_works_as_it_is_written(kit: Kit) -> None:
    with Supervisor.start(Config(state_dir=kit.state_dir, agent="shell")) as running:
        session = running.session("s1")
        accepted = session.ask(message("echo made", policy="interrupt"), timeout=30)
        assert accepted.run_id is not None
        assert accepted.generation == 1
        assert not accepted.queued
        session.receipt(accepted.run_id, timeout=WAIT_S)
        stopped = session.ask(Stop(source="user.console", reason="wrong target"))
        assert stopped.outcome == "nothing_running"
        assert session.receipt(stopped.receipt_id, timeout=WAIT_S).run_id is None
        kinds = [event.kind for event in session.subscribe(from_seq=0, timeout=0.1)]
        assert kinds[:3] == ["message", "run.started", "tool.requested"]
        assert "made\n" in [m.content for m in session.thread()]
        assert session.status().state == "idle"
        assert [run.run_id for run in session.runs()] == [accepted.run_id]
        assert session.run(accepted.run_id).status == "completed"
        assert running.sessions() == ["s1"]
    with pytest.raises(ActorDeadError):
        session.ask(NewMessage(content="too late"))


def test_a_receipt_is_found_by_its_own_id_and_by_its_runs(kit: Kit) -> None:
    session = kit.session(hold)
    run_id = say(session)
    stopped = stop(session)
    by_run = session.receipt(run_id, timeout=WAIT_S)
    assert session.receipt(stopped.receipt_id) == by_run
    assert by_run.receipt_id == stopped.receipt_id
    for nobody in ("run_nobody", "", None):
        with pytest.raises(NotFound):
            session.receipt(nobody)
    with pytest.raises(NotFound):
        session.run("run_nobody")


def test_a_receipt_that_is_not_filed_is_pending(kit: Kit) -> None:
    session = kit.session(hold)
    run_id = say(session)
    with pytest.raises(ReceiptPending) as caught:
        session.receipt(run_id)
    assert caught.value.code == "receipt_pending"
    with pytest.raises(ReceiptPending):
        session.receipt(session.run(run_id).receipt_id, timeout=0.05)
    stop(session)
    settled(session)


def test_tell_does_the_same_without_an_answer(kit: Kit) -> None:
    session = kit.session(hold)
    session.tell(NewMessage(content="told"))
    until(lambda: session.status().state == "running")
    session.tell(message("refused", policy="reject"))
    session.tell(Stop(source="user.test", reason="told"))
    until(lambda: session.runs() and session.runs()[0].status is RunStatus.CANCELLED)
    check_rest(session)
    assert len(session.runs()) == 1


def test_a_sessions_policies_are_the_defaults_of_its_origins(kit: Kit) -> None:
    session = kit.start(hold).session("s1", policies={"user": "enqueue"})
    say(session)
    accepted = session.ask(NewMessage(content="waits"))
    assert (accepted.policy, accepted.queued) == (Policy.ENQUEUE, True)
    assert session.ask(message("takes over", policy="interrupt")).superseded_run_id is not None
    stop(session)
    settled(session)


def test_others_than_a_person_wait_by_default(kit: Kit) -> None:
    session = kit.session(hold)
    say(session)
    accepted = session.ask(NewMessage(content="tick", origin="schedule"))
    assert (accepted.policy, accepted.queued, accepted.generation) == (Policy.ENQUEUE, True, None)
    stop(session)
    settled(session)


def test_an_answer_that_no_call_waits_for_is_refused_and_a_dead_letter(kit: Kit) -> None:
    session = kit.session(hold)
    with pytest.raises(NotFound):
        session.ask(Answer(call_id="call_nobody", content="yes"))
    supervisor = kit.supervisor
    assert supervisor is not None
    # It is kept at the end of the turn that has refused it.
    until(lambda: [letter.kind for letter in supervisor.dead_letters()] == ["answer"])


def test_resume_without_anything_to_resume_is_refused(kit: Kit) -> None:
    session = kit.session(hold)
    with pytest.raises(Invalid):
        session.ask(Resume())
    run_id = say(session)
    with pytest.raises(RunActive) as caught:
        session.ask(Resume())
    assert caught.value.run_id == run_id
    with pytest.raises(NotFound):
        session.ask(Withdraw(message_id="req_nobody"))
    stop(session)
    settled(session)


def test_the_shell_resumed_says_what_was_interrupted_and_completes(kit: Kit) -> None:
    session = kit.session()
    say(session, kit.script("sleep 60; :"))
    until(lambda: len(kit.alive()) >= 2)
    stop(session, "wrong target")
    settled(session)
    resumed = session.ask(Resume())
    assert resumed.with_messages == ()
    session.receipt(resumed.run_id, timeout=WAIT_S)
    assert session.run(resumed.run_id).status is RunStatus.COMPLETED
    said = session.thread()[-1]
    assert "wrong target" in said.content
    assert any(event.kind == "session.resumed" for event in log(session))


def test_an_ask_whose_time_is_over_raises_and_the_same_object_brings_the_answer(kit: Kit) -> None:
    session = kit.session(hold)
    say(session)
    assert session.ref is not None
    one = message("x", policy="enqueue")
    release = kit.keep_busy(session.ref)
    with pytest.raises(pykka.Timeout):
        session.ask(one, timeout=0)
    release.set()
    assert session.ask(one).message_id == one.id
    stop(session)
    settled(session)


def test_a_queue_that_is_full_refuses_with_a_remedy(kit: Kit) -> None:
    session = kit.session(hold, queue_max=1)
    say(session)
    session.ask(message("waits", policy="enqueue"))
    with pytest.raises(QueueFull) as caught:
        session.ask(message("too many", policy="enqueue"))
    error = caught.value
    assert (error.code, bool(error.expected), bool(error.got), bool(error.remedy)) == ("queue_full", True, True, True)
    stop(session)
    settled(session)


# ── Subscribing ───────────────────────────────────────────────────────────────────────────────────


def test_a_subscription_gives_what_is_stored_first_and_then_what_comes(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.emit("x"))
    session.receipt(say(session), timeout=WAIT_S)
    stored = log(session)
    got: list[Event] = []
    with session.subscribe(from_seq=0) as subscription:
        run_id = say(session)
        for event in subscription:
            got.append(event)
            if event.kind == "run.ended" and event.run_id == run_id:
                break
    assert got[: len(stored)] == stored
    assert [event.seq for event in got] == list(range(1, len(got) + 1))
    assert all(event.generation is not None for event in got)


def test_from_seq_gives_those_after_it(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.emit("x"))
    session.receipt(say(session), timeout=WAIT_S)
    last = session.status().last_seq
    assert [event.seq for event in session.subscribe(from_seq=2, timeout=0.05)] == list(range(3, last + 1))
    assert list(session.subscribe(from_seq=last, timeout=0.05)) == []


def test_a_subscription_is_ended_by_close_from_another_thread(kit: Kit) -> None:
    session = kit.session(hold)
    subscription = session.subscribe()
    over = threading.Event()

    def read() -> None:
        for _ in subscription:
            continue
        over.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not over.is_set()
    subscription.close()
    assert over.wait(WAIT_S)
    thread.join()


def test_a_subscription_ends_with_the_supervisor_and_has_all_events_then(kit: Kit) -> None:
    session = kit.session(hold)
    got: list[Event] = []
    subscription = session.subscribe()
    thread = threading.Thread(target=lambda: got.extend(subscription))
    thread.start()
    run_id = say(session)
    kit.close(0.0)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert (got[-1].kind, got[-1].run_id) == ("run.ended", run_id)


def test_a_session_may_be_subscribed_to_before_it_exists(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.emit("x"))
    with session.subscribe(timeout=WAIT_S) as subscription:
        say(session)
        assert next(iter(subscription)).kind == "message"


def test_ephemeral_events_come_only_to_subscribers_that_ask(kit: Kit) -> None:
    begin, go_on = kit.gate(), kit.gate()

    def agent(turn: Turn) -> None:
        begin.wait()
        turn.typing()
        turn.progress(done=0.5)
        # Shown as they come: whoever reads the store meanwhile may be past them.
        go_on.wait()
        turn.emit("x")

    session = kit.session(agent)
    shown, plain = Listener(session, ephemeral=True), Listener(session)
    run_id = say(session)
    begin.set()
    until(lambda: {"typing", "progress"} <= {event.kind for event in list(shown.events)}, "what is not stored")
    go_on.set()
    session.receipt(run_id, timeout=WAIT_S)
    until(lambda: "run.ended" in {event.kind for event in list(plain.events)}, "the end")
    assert not {"typing", "progress"} & {event.kind for event in plain.close()}
    shown.close()


# ── The awaitable face ────────────────────────────────────────────────────────────────────────────


def test_the_awaitable_face_does_the_same(kit: Kit) -> None:
    session = kit.session(hold)

    async def use() -> None:
        aio = session.aio
        accepted = await aio.ask(NewMessage(content="go"), timeout=WAIT_S)
        assert accepted.run_id is not None
        assert (await aio.status()).run_id == accepted.run_id
        async for event in aio.subscribe(timeout=WAIT_S):
            if event.kind == "text":
                break
        with pytest.raises(RunActive):
            await aio.ask(message("no", policy="reject"))
        with pytest.raises(ReceiptPending):
            await aio.receipt(accepted.run_id)
        stopped = await aio.ask(Stop(source="client.test", reason="enough"))
        receipt = await aio.receipt(accepted.run_id, timeout=WAIT_S)
        assert receipt.receipt_id == stopped.receipt_id
        kinds = [event.kind async for event in aio.subscribe(timeout=0.1)]
        assert kinds[0] == "message"
        # A Stop that a busy store is slow to take is reported once it is stored, behind all else.
        assert kinds[-1] in ("run.ended", "session.stop_durable")
        assert [m.role for m in await aio.thread()] == ["user", "assistant", "note"]
        assert (await aio.run(accepted.run_id)).status is RunStatus.CANCELLED
        assert len(await aio.runs()) == 1
        assert aio.ref is session.ref

    asyncio.run(use())


def test_an_awaited_ask_may_be_cancelled_and_sent_again(kit: Kit) -> None:
    session = kit.session(hold)
    one = NewMessage(content="go")

    async def use() -> None:
        task = asyncio.create_task(session.aio.ask(one))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.aio.ask(one)).message_id == one.id

    asyncio.run(use())
    assert len(session.runs()) == 1
    stop(session)
    settled(session)


def test_many_awaited_asks_at_once_block_no_loop(kit: Kit) -> None:
    session = kit.session(hold)

    async def use() -> list[Any]:
        return await asyncio.gather(*(session.aio.ask(message(str(n), policy="enqueue")) for n in range(100)))

    answers = asyncio.run(use())
    assert len({answer.message_id for answer in answers}) == 100
    stop(session)
    settled(session)


# ── Pykka's citizens ──────────────────────────────────────────────────────────────────────────────


def test_the_sessions_ref_is_a_pykka_ref_that_the_registry_knows(kit: Kit) -> None:
    session = kit.session(hold)
    assert session.ref is None
    session.status()
    ref = session.ref
    assert isinstance(ref, pykka.ActorRef)
    assert ref.is_alive()
    assert ActorRegistry.get_by_class(SessionActor) == [ref]
    assert ActorRegistry.get_by_urn(ref.actor_urn) == ref


def test_a_direct_ask_is_answered_by_the_protocol_after_its_commit(kit: Kit) -> None:
    session = kit.session(hold)
    session.status()
    ref = session.ref
    assert ref is not None
    accepted = ref.ask(NewMessage(content="direct"), timeout=WAIT_S)
    assert isinstance(accepted, Accepted)
    assert [m.content for m in session.thread()][:1] == ["direct"], "the answer came before the commit"
    stopped = ref.ask(Stop(source="client.ref", reason="direct"), timeout=WAIT_S)
    assert isinstance(stopped, Stopped)
    assert stopped.run_id == accepted.run_id
    with pytest.raises(CountermandError):
        ref.ask(Withdraw(message_id="req_nobody"), timeout=WAIT_S)
    assert ref.is_alive()
    settled(session)


def test_a_handle_stays_valid_when_its_actor_was_stopped(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session)
    old = session.ref
    assert old is not None
    old.stop()
    assert not old.is_alive()
    second = say(session)
    assert session.receipt(first, timeout=WAIT_S).provenance.source == "actor.failure"  # type: ignore[union-attr]
    assert session.ref is not None
    assert session.ref != old
    assert stop(session).run_id == second
    check_rest(session)


def test_a_blocking_ask_from_a_handler_raises(kit: Kit) -> None:
    session = kit.session(hold)
    session.status()
    target = session.ref
    assert target is not None

    class Asks(Actor):
        def on_receive(self, message: Any) -> Any:
            return target.ask(message) if target is not None else None

    dispatcher = PooledDispatcher(2, name="test")
    try:
        ref = Asks.start(dispatcher=dispatcher)
        with pytest.raises(BlockingAskError):
            ref.ask(NewMessage(content="x"), timeout=WAIT_S)
        until(lambda: not ref.is_alive(), "a defect of the handler ends its actor")
    finally:
        dispatcher.close(WAIT_S)
    assert target.is_alive()
    stop(session)
    settled(session)


def test_stop_all_ends_every_actor_and_leaves_no_process(kit: Kit) -> None:
    session = kit.session()
    say(session, kit.script("trap '' TERM; setsid sleep 60 & while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 3, "the tree")
    ActorRegistry.stop_all(timeout=WAIT_S)
    until(lambda: not kit.alive(), "every process dead")
    assert ActorRegistry.get_all() == []
    with pytest.raises(ActorDeadError):
        session.ask(NewMessage(content="x"))


class ByHand:
    """A SessionActor on ports that were put together by hand."""

    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir()
        self.clock = SystemClock()
        self.store = SqliteStore(state_dir / "store.sqlite3", clock=self.clock)
        self.hub = EventHub(self.store.reader)
        self.strays = Strays(self.clock)
        self.executor = ThreadExecutor(self.clock, on_loop=self.strays.serve)
        self.processes = ProcessTrees(state_dir, self.clock, kill_s=1.0)
        self.processes.start()
        self.dispatcher = PooledDispatcher(2, name="by-hand")
        self.ports = Ports(
            clock=self.clock,
            ids=RandomIds(),
            executor=self.executor,
            strays=self.strays,
            processes=self.processes,
            store=self.store,
            publisher=self.hub,
            dispatcher=self.dispatcher,
            dead_letters=DeadLetters(),
            settings=Settings(agent="hold", grace_s=0.3, kill_s=1.0),
        )

    def close(self) -> None:
        ActorRegistry.stop_all(timeout=WAIT_S)
        self.dispatcher.close(WAIT_S)
        self.processes.close(WAIT_S)
        self.executor.close(WAIT_S)
        self.strays.close()
        self.hub.close()
        self.store.close(WAIT_S)
        self.clock.close()


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    made = ByHand(tmp_path / "by-hand")
    try:
        yield made
    finally:
        made.close()


def test_a_session_actor_is_started_by_hand_as_any_pykka_actor(by_hand: ByHand) -> None:
    ref = SessionActor.start(by_hand.ports, Plugins({"hold": hold}, []), "s1")
    accepted: Any = ref.ask(NewMessage(content="by hand"), timeout=WAIT_S)
    assert accepted.generation == 1
    until(lambda: any(e.kind == "text" for e in by_hand.store.reader.events("s1", 0, 100)))
    stopped: Any = ref.ask(Stop(source="user.hand", reason="enough"), timeout=WAIT_S)
    assert (stopped.outcome, stopped.run_id) == ("stopped", accepted.run_id)
    until(lambda: by_hand.store.reader.receipt("s1", accepted.run_id), "the receipt")
    ref.stop()
    assert not ref.is_alive()
    again = SessionActor.start(by_hand.ports, Plugins({"hold": hold}, []), "s1")
    idle: Any = again.ask(Stop(source="user.hand", reason="again"), timeout=WAIT_S)
    assert idle.outcome == "nothing_running"


def test_leaving_the_with_drains_a_run_that_ends_in_time(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("x")
        gate.wait()

    session = kit.session(agent)
    run_id = say(session)
    closing = threading.Thread(target=kit.close, args=(WAIT_S,))
    closing.start()

    def refused() -> str:
        with pytest.raises(CountermandError) as caught:
            session.ask(message("more", policy="reject"))
        return caught.value.code

    until(lambda: refused() == "shutting_down", "it drains")
    gate.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    session = kit.session(agent)
    assert session.run(run_id).status is RunStatus.COMPLETED


def test_a_handle_of_a_supervisor_that_ended_says_so(kit: Kit) -> None:
    session: SessionHandle = kit.session(hold)
    say(session)
    kit.close(0.0)
    for use in (lambda: session.ask(NewMessage(content="x")), session.status, lambda: session.tell(Resume())):
        with pytest.raises(ActorDeadError):
            use()


def test_a_session_is_at_rest_only_when_what_its_turn_decided_is_written(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, turn_end, answer = SessionActor._report, SessionActor.on_turn_end, SupervisorActor._answer_if_quiet
    ended, answered = threading.Event(), threading.Event()
    found: list[object] = []

    def with_a_commit_behind_it(self: SessionActor, report: Any) -> None:
        handle(self, report)
        if isinstance(report, RunFinished):
            # As if the commit of an earlier batch came now, in the turn that has just ended the run.
            self.actor_ref.tell(Committed(0))
            ended.set()

    def held_open(self: SessionActor) -> None:
        if ended.is_set() and not answered.is_set():
            # Long enough for a word that comes too early to be heard.
            answered.wait(0.3)
        turn_end(self)

    def at_rest(self: SupervisorActor) -> None:
        if self._draining is not None and not self._noisy:
            found.append(session._store.receipt("s1", run_id))
            answered.set()
        answer(self)

    monkeypatch.setattr(SessionActor, "_report", with_a_commit_behind_it)
    monkeypatch.setattr(SessionActor, "on_turn_end", held_open)
    monkeypatch.setattr(SupervisorActor, "_answer_if_quiet", at_rest)
    inside = threading.Event()

    def agent(turn: Turn) -> None:
        inside.set()
        turn.cancel_token.wait()
        # Until the fence is published, so that no batch is on its way when the agent ends.
        until(lambda: any(event.kind == "run.status" for event in list(listener.events)), "the fence")

    session = kit.session(agent)
    listener = Listener(session)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    assert kit.close(0.0)
    assert found
    assert None not in found
    assert listener.close()[-1].kind == "run.ended"
