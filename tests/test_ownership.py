"""Process trees of the session, with real processes: they outlive their runs, and are ended with a proof."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pykka import ActorRegistry

from actors import (
    AsyncSpawn,
    AsyncTurn,
    How,
    NewMessage,
    Owner,
    ProcessActor,
    ReceiptPending,
    SessionActor,
    Spawn,
    Stop,
    ToolActor,
    Turn,
    tool,
)
from supervisor import SessionHandle
from supervisor.config import LAYERS
from supervisor.containment.processes.trees import ProcessTrees
from supervisor.store import schema
from supervisor.store.reader import SqliteReader
from tests.kit import WAIT_S, Kit, ask_stop, check_rest, log, poison, rows, say, stop, until
from tests.process_kit import NAMESPACE, needs_namespaces

# It ignores SIGHUP and has a part in a session of its own: what a dev server with a watcher looks like.
SERVER = "setsid sleep 60 & echo listening; sleep 61; :"


def serving(kit: Kit, script: str = SERVER, *, hand_over: bool = False, **options: Any) -> SessionHandle:
    """A session whose message ``serve`` starts a server for the session; any other message is a script."""

    @tool(isolation="thread")
    def serve(spawn: Spawn) -> str:
        process = spawn(["sh", "-c", kit.script(script)], name="server", owner="run" if hand_over else "session")
        if hand_over:
            process.hand_over()
        return process.process_id

    def agent(turn: Turn) -> str:
        text = turn.inputs[-1].content
        return (turn.call("serve") if text == "serve" else turn.call("shell", script=text)).content

    return kit.session(agent, tools=[serve], **options)


def served(session: SessionHandle) -> str:
    """Let it serve, to the end of that run. Returns the id of the tree."""
    run_id = say(session, "serve")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    process_id = session.run(run_id).result
    assert isinstance(process_id, str)
    assert [row.how for row in rows(receipt) if row.name == "server"] == [How.HANDED_OVER]
    return process_id


def ended(session: SessionHandle) -> Any:
    """The data of the one event of an end of a tree of the session."""
    (event,) = [e for e in log(session) if e.kind == "process.ended" and e.data.get("owner") == "session"]
    return event.data


@pytest.mark.parametrize(
    "layers", [LAYERS, pytest.param(NAMESPACE, marks=needs_namespaces)], ids=["default", "namespace"]
)
@pytest.mark.parametrize("hand_over", [False, True])
def test_l3_a_server_lives_on_through_stops_and_takeovers_and_dies_with_a_stop_of_the_session(
    kit: Kit, hand_over: bool, layers: frozenset[str]
) -> None:
    session = serving(kit, hand_over=hand_over, layers=layers)
    process_id = served(session)
    until(lambda: len(kit.alive()) >= 3, "the server")
    sleeping = say(session, "sleep 60; :")
    until(lambda: any(e.kind == "process.started" and e.run_id == sleeping for e in log(session)), "the script")
    taken_over = say(session, "echo there; sleep 60; :")
    until(lambda: any(e.kind == "tool.output" and e.run_id == taken_over for e in log(session)), "its output")
    stopped = stop(session)
    assert session.receipt(stopped.run_id, timeout=WAIT_S).complete
    assert len(kit.alive()) >= 3
    assert session.status().owned == (process_id,)
    end = stop(session, scope="session")
    assert end.outcome == "nothing_running"
    receipt = session.receipt(end.receipt_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert receipt.reaped >= 3
    assert [row.how for row in receipt.rows] == [How.SIGTERM]
    assert ended(session)["provenance"]["source"] == "user.test"
    assert session.status().owned == ()
    check_rest(session)


def test_l3_the_receipt_of_an_idle_stop_is_pending_until_the_server_is_gone(kit: Kit) -> None:
    session = serving(kit, "trap '' TERM; echo deaf; " + SERVER, grace_s=60.0)
    served(session)
    until(lambda: any(e.kind == "tool.output" for e in log(session)) or len(kit.alive()) >= 3, "the server")
    end = stop(session, scope="session")
    with pytest.raises(ReceiptPending):
        session.receipt(end.receipt_id)
    second = stop(session, scope="session", mode="immediate")
    for receipt_id in (end.receipt_id, second.receipt_id):
        receipt = session.receipt(receipt_id, timeout=WAIT_S)
        assert receipt.complete
        assert [row.how for row in receipt.rows] == [How.SIGKILL]
    assert kit.alive() == []
    assert ended(session)["provenance"]["reason"] == "the test says so"
    assert ended(session)["provenance"]["mode"] == "graceful"


def test_l3_a_server_that_exits_by_itself_is_on_record_without_a_cause(kit: Kit) -> None:
    session = serving(kit, "sleep 0.3; exit 7")
    process_id = served(session)
    until(lambda: session.status().owned == (), "its end")
    data = ended(session)
    assert (data["process_id"], data["how"], data["status"], data["proven"]) == (process_id, "exit", 7, True)
    assert "provenance" not in data


def test_l11_closing_the_supervisor_ends_it_with_a_cause(kit: Kit) -> None:
    session = serving(kit)
    served(session)
    until(lambda: len(kit.alive()) >= 3, "the server")
    assert kit.close()
    assert kit.alive() == []
    kit.start()
    assert kit.supervisor is not None
    assert ended(kit.supervisor.session("s1"))["provenance"]["source"] == "supervisor.shutdown"


@pytest.mark.parametrize("how", ["poison", "stop"])
@pytest.mark.parametrize("actor", [SessionActor, ProcessActor])
def test_l13_it_lives_on_when_its_session_or_its_actor_fails(kit: Kit, actor: type[Any], how: str) -> None:
    session = serving(kit)
    process_id = served(session)
    until(lambda: len(kit.alive()) >= 3, "the server")
    before = {one.pid for one in session.processes() if one.leader}
    (ref,) = ActorRegistry.get_by_class(actor)
    if how == "poison":
        poison(ref)
    else:
        ref.stop()
    until(lambda: not ref.is_alive(), "the actor's end")
    session.receipt(say(session, "echo on"), timeout=WAIT_S)
    assert session.status().owned == (process_id,)
    assert {one.pid for one in session.processes() if one.leader} == before
    receipt = session.receipt(stop(session, scope="session").receipt_id, timeout=WAIT_S)
    assert receipt.complete
    assert kit.alive() == []


def test_l13_a_tool_still_hears_of_the_exit_of_what_it_handed_over(kit: Kit) -> None:
    @tool(isolation="task")
    async def brief(spawn: AsyncSpawn) -> str:
        process = await spawn(["sh", "-c", kit.script("read line < fifo; echo heard; exit 5")], cwd=str(kit.state_dir))
        await process.hand_over()
        await process.hand_over()
        (kit.state_dir / "fifo").write_text("go\n")
        done = await process.wait()
        return f"{done.status} {done.output}"

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("brief")).content

    kit.state_dir.mkdir(mode=0o700, parents=True)
    os.mkfifo(kit.state_dir / "fifo")
    session = kit.session(agent, tools=[brief])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == "5 heard\n"
    until(lambda: session.status().owned == (), "its end")


def test_a_hand_over_of_what_has_ended_is_refused(kit: Kit) -> None:
    @tool(isolation="thread")
    def late(spawn: Spawn) -> str:
        process = spawn(["true"])
        process.wait()
        until(lambda: any(e.kind == "process.ended" for e in log(session)), "its end")
        with pytest.raises(ProcessLookupError):
            process.hand_over()
        return "refused"

    session = kit.session(lambda turn: turn.call("late").content, tools=[late])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == "refused"


def test_l3_a_tool_that_dies_with_its_actor_right_after_a_hand_over_does_not_take_the_tree_along(kit: Kit) -> None:
    held, entered = kit.gate(), kit.gate()

    @tool(isolation="thread")
    def hand(spawn: Spawn) -> str:
        spawn(["sh", "-c", kit.script(SERVER)]).hand_over()
        entered.set()
        held.wait()
        return ""

    session = kit.session(lambda turn: turn.call("hand").content, tools=[hand])
    run_id = say(session)
    assert entered.wait(WAIT_S)
    (ref,) = ActorRegistry.get_by_class(ToolActor)
    poison(ref)
    held.set()
    session.receipt(run_id, timeout=WAIT_S)
    # It goes on to start what it consists of.
    until(lambda: len(kit.alive()) >= 3, "the server")
    session.receipt(stop(session, scope="session").receipt_id, timeout=WAIT_S)
    assert kit.alive() == []


def test_l3_a_stop_between_the_cell_and_the_spawn_ends_what_is_spawned_then(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, entered = kit.gate(), kit.gate()
    spawn = ProcessTrees.spawn

    def late(self: ProcessTrees, *args: Any) -> None:
        entered.set()
        held.wait()
        spawn(self, *args)

    session = serving(kit)
    monkeypatch.setattr(ProcessTrees, "spawn", late)
    say(session, "serve")
    assert entered.wait(WAIT_S)
    end = stop(session, scope="session", mode="immediate")
    held.set()
    receipt = session.receipt(end.receipt_id, timeout=WAIT_S)
    until(lambda: session.status().owned == (), "its end")
    assert kit.alive() == []
    assert "server" in [row.name for row in receipt.rows] + [row.name for row in rows(receipt)]


DAEMON = """
    import os, sys, time
    from actors import NewMessage, Spawn, Stop, tool
    from supervisor import Config, Supervisor

    @tool(isolation="thread")
    def serve(spawn: Spawn) -> str:
        return spawn(["sh", "-c", sys.argv[2]], name="server", owner="session").process_id

    config = Config(
        state_dir=sys.argv[1],
        agents={"a": lambda turn: turn.call("serve").content},
        agent="a",
        tools=[serve],
        grace_s=60.0,
    )
    supervisor = Supervisor.start(config)
    session = supervisor.session("s1")
    session.receipt(session.ask(NewMessage(content="serve")).run_id, timeout=20)
    while not os.path.exists(sys.argv[4]):
        time.sleep(0.01)
    if sys.argv[3] == "stopping":
        print(session.ask(Stop(source="user.test", reason="by hand", scope="session")).receipt_id, flush=True)
    else:
        print("serving", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("when", ["serving", "stopping"])
def test_l12_when_the_daemon_is_killed_its_warden_ends_it_and_the_next_start_says_so(
    kit: Kit, tmp_path: Path, when: str
) -> None:
    # Told to end before it ignores that, it would end.
    up = tmp_path / "up"
    script = kit.script(f"trap '' TERM; setsid sleep 60 & sleep 61 & touch {up}; while :; do wait; done")
    argv = [sys.executable, "-c", textwrap.dedent(DAEMON), str(kit.state_dir), script, when, str(up)]
    daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    try:
        assert daemon.stdout is not None
        said = daemon.stdout.readline().strip()
        until(lambda: len(kit.alive()) >= 3, "the server")
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        if daemon.stdout is not None:
            daemon.stdout.close()
    session = kit.start().session("s1")
    until(lambda: [e for e in log(session) if e.kind == "process.ended"], "the news of its end")
    data = ended(session)
    assert data["proven"]
    assert data["provenance"]["source"] == ("user.test" if when == "stopping" else "supervisor.recovery")
    until(lambda: [pid for pid in kit.alive() if pid != daemon.pid] == [], "nobody")
    assert session.processes() == []
    if when == "stopping":
        receipt = session.receipt(said, timeout=WAIT_S)
        assert receipt.complete
        assert [row.name for row in receipt.rows] == ["server"]


def test_a_store_of_before_is_brought_up_to_date_with_its_process_rows(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    connection = sqlite3.connect(path, isolation_level=None)
    number, script = schema.migrations()[0]
    connection.executescript(script)
    connection.execute(f"PRAGMA user_version = {number}")
    old = b'{"session":"s","run_id":"r","call_id":"c","process_id":"p","name":"ls","state":"granted","end":null}'
    connection.execute("INSERT INTO processes VALUES ('s', 'p', 'granted', ?)", (old,))
    connection.close()
    schema.open_writer(path, 1.0).close()
    reader = SqliteReader(path)
    try:
        (row,) = reader.live_processes("s")
        assert (row.process_id, row.owner, row.ending) == ("p", Owner.RUN, None)
        assert reader.unfinished() == []
    finally:
        reader.close()


def test_the_same_stop_sent_again_has_one_effect_and_one_receipt(kit: Kit) -> None:
    session = serving(kit)
    served(session)
    once = Stop(source="user.test", reason="once", scope="session")
    first = ask_stop(session, once)
    assert session.ask(once) == first
    session.receipt(first.receipt_id, timeout=WAIT_S)
    assert session.ask(once) == first
    session.receipt(session.ask(NewMessage(content="serve")).run_id, timeout=WAIT_S)
    until(lambda: len(kit.alive()) >= 3, "another server")
    assert session.ask(once) == first
    assert len(session.status().owned) == 1
    session.receipt(stop(session, scope="session").receipt_id, timeout=WAIT_S)
