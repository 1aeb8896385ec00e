"""Processes that a host asks for: what the actor says is what the host is told, at whatever moment the run ends.

The file has over 600 lines, and is whole: one conversation, ended at each of its points.
"""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.errors import QueueFull
from actors.gate.pending import fail, settle
from actors.model import Owner
from actors.plugin.spawning import Exit, Process
from supervisor.hosts.channel import UNSENT_MAX_BYTES
from supervisor.hosts.frames import CANCEL_REQUEST
from supervisor.hosts.lines import Code
from supervisor.hosts.processes import EXITS_MAX, KILLS_MAX
from tests.pool_kit import SESSION, Execution, Hosting, OneRun, Tree, hosting
from tests.process_kit import until

EXIT = Exit(3, "out\n", 4, 0.5)
SHOWN = {"status": 3, "output": "out\n", "total_bytes": 4, "duration_s": 0.5}


@pytest.fixture
def hosts() -> Iterator[Hosting]:
    with hosting() as made:
        yield made


def ask(tree: Tree, run: OneRun, fence: str | None = None, **params: Any) -> int:
    return tree.host.request("spawn", fence=fence or run.fence, argv=["make"], **params)


def spawned(tree: Tree, run: OneRun) -> Process:
    """A process that runs, and of which the host knows."""
    before = len(run.trees.asked)
    number = ask(tree, run)
    process = run.trees.next(before)
    settle(process._started, 77)
    answer = tree.host.next()
    assert answer == {"jsonrpc": "2.0", "id": number, "result": {"process": process.process_id, "pid": 77}}
    return process


def give_up(tree: Tree, run: OneRun, number: int) -> None:
    tree.host.note(CANCEL_REQUEST, fence=run.fence, requestId=number)


def error_of(frame: dict[str, Any], number: int) -> dict[str, Any]:
    assert frame["id"] == number
    error: dict[str, Any] = frame["error"]
    return error


def test_l14_requests_that_are_too_long_together_are_refused_and_the_others_stay_open(
    hosts: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.hosts.peer.REQUESTS_MAX_BYTES", 200_000)
    tree, run, _ = hosts.running()
    typed = base64.b64encode(bytes(60_000)).decode()
    first, _ = (ask(tree, run, stdin=typed) for _ in range(2))
    refused = ask(tree, run, stdin=typed)
    error = error_of(tree.host.next(), refused)
    assert error["code"] == Code.REFUSED
    assert "bytes together" in error["data"]["expected"]
    assert error["data"]["remedy"]
    # What is short has room all the time, and what is long has again once another one is answered.
    short = ask(tree, run)
    settle(run.trees.next(2)._started, 78)
    assert tree.host.next()["id"] == short
    settle(run.trees.next(0)._started, 77)
    assert tree.host.next()["id"] == first
    ask(tree, run, stdin=typed)
    run.trees.next(3)


# ── Started, and exited ───────────────────────────────────────────────────────────────────────────


def test_what_a_host_asks_for_is_what_the_actor_of_its_run_is_asked_for(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    typed = base64.b64encode(b"\0x").decode()
    ask(tree, run, cwd="/tmp", env={"A": "b"}, name="n", owner="session", stdin=typed)
    run.trees.next()
    ((spec, owner, _),) = run.trees.asked
    assert (spec.argv, spec.name, spec.cwd, spec.env, spec.stdin) == (("make",), "n", "/tmp", {"A": "b"}, b"\0x")
    assert (spec.pty, spec.pty_size, owner) == (False, (80, 24), Owner.SESSION)


def test_a_host_gets_the_start_of_its_command_and_its_exit_once(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    process = run.trees.next()
    assert tree.host.nothing()
    settle(process._started, 77)
    assert tree.host.next()["id"] == number
    settle(process._exited, EXIT)
    news = tree.host.next()
    assert news["method"] == "process"
    assert news["params"]["process"] == process.process_id
    assert (news["params"]["fence"], news["params"]["news"]) == (run.fence, "exited")
    assert news["params"]["exit"].items() >= SHOWN.items()
    for _ in range(2):
        waiting = tree.host.request("process.wait", fence=run.fence, process=process.process_id)
        answer = tree.host.next()
        assert answer["id"] == waiting
        assert answer["result"].items() >= SHOWN.items()


def test_one_that_waits_is_answered_at_the_exit_and_one_that_gives_up_at_once(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process = spawned(tree, run)
    waiting = tree.host.request("process.wait", fence=run.fence, process=process.process_id)
    given_up = tree.host.request("process.wait", fence=run.fence, process=process.process_id)
    tree.host.note(CANCEL_REQUEST, fence=run.fence, requestId=given_up)
    assert error_of(tree.host.next(), given_up)["code"] == Code.CANCELLED
    settle(process._exited, EXIT)
    frames = {frame.get("id"): frame for frame in (tree.host.next(), tree.host.next())}
    assert frames[waiting]["result"]["status"] == 3
    assert frames[None]["method"] == "process"


@pytest.mark.parametrize("when", ["asked", "about to be answered", "answered", "exited"])
def test_a_spawn_that_the_host_gives_up_is_ended_and_answered_once(hosts: Hosting, when: str) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    process = run.trees.next()
    if when == "about to be answered":
        # It has started, and the thread of all channels has not heard of that.
        def starts_and_is_given_up() -> None:
            settle(process._started, 77)
            give_up(tree, run, number)

        hosts.loop.call(starts_and_is_given_up)
    elif when != "asked":
        settle(process._started, 77)
        assert "result" in tree.host.next()
    if when == "exited":
        settle(process._exited, EXIT)
        assert tree.host.next()["method"] == "process"
    for _ in range(2):
        give_up(tree, run, number)
    until(lambda: run.trees.given_up, "it to be ended")
    if when == "asked":
        assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
        settle(process._started, 77)
    elif when == "about to be answered":
        # Whichever was first.
        assert tree.host.next()["id"] == number
    hosts.loop.call(lambda: None)
    assert tree.host.nothing()
    assert run.trees.given_up == [process.process_id]


@pytest.mark.parametrize("method", ["call", "steering", "spawn", "nothing known"])
def test_who_gives_up_a_request_ends_no_spawn_that_had_its_id_before(hosts: Hosting, method: str) -> None:
    tree, run, _ = hosts.running()
    spawned(tree, run)
    number = tree.host._numbers
    more: dict[str, dict[str, Any]] = {"call": {"tool": "t"}, "spawn": {"argv": ["make"]}}
    tree.host.send(id=number, method=method, params={"fence": run.fence, **more.get(method, {})})
    give_up(tree, run, number)
    if method == "spawn":
        until(lambda: run.trees.given_up, "the second one to be ended")
    # Frames are handled in their order: with the answer to this one, all before it were.
    behind = tree.host.request("nothing known")
    until(lambda: tree.host.next()["id"] == behind, "its answer")
    assert run.trees.given_up == [process.process_id for _, _, process in run.trees.asked[1:]]


def test_a_start_is_no_answer_to_another_spawn_that_has_its_id_by_now(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    first = run.trees.next()
    give_up(tree, run, number)
    assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
    tree.host.send(id=number, method="spawn", params={"fence": run.fence, "argv": ["make"]})
    second = run.trees.next(1)
    # It started all the same, before its end reached it.
    settle(first._started, 77)
    hosts.loop.call(lambda: None)
    settle(second._started, 78)
    assert tree.host.next()["result"] == {"process": second.process_id, "pid": 78}


def test_only_the_last_answers_to_spawns_can_be_given_up(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    numbers = []
    for one in range(EXITS_MAX + 1):
        numbers.append(ask(tree, run))
        settle(run.trees.next(one)._started, 77)
        assert tree.host.next()["id"] == numbers[-1]
    for number in (numbers[0], numbers[1]):
        give_up(tree, run, number)
    until(lambda: run.trees.given_up, "it to be ended")
    hosts.loop.call(lambda: None)
    assert run.trees.given_up == [run.trees.asked[1][2].process_id]


@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (OSError("no such file"), Code.RAISED, {"type": "OSError", "message": "no such file"}),
        (QueueFull("too many", expected="64", got="one more", remedy="wait"), Code.REFUSED, {"code": "queue_full"}),
    ],
)
def test_a_host_gets_the_reason_why_no_command_was_started(
    hosts: Hosting, error: Exception, code: Code, data: Any
) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    fail(run.trees.next()._started, error)
    refused = error_of(tree.host.next(), number)
    assert refused["code"] == code
    assert refused["data"].items() >= data.items()


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"argv": []}, Code.REFUSED),
        ({"argv": ["a\0b"]}, Code.REFUSED),
        ({"argv": "ls -l"}, Code.INVALID_PARAMS),
        ({"argv": ["ls"], "env": {"A=": "b"}}, Code.REFUSED),
        ({"argv": ["ls"], "pty": True, "stdin": "eA=="}, Code.REFUSED),
        ({"argv": ["ls"], "stdin": "no base64"}, Code.INVALID_PARAMS),
        ({"argv": ["ls"], "owner": "nobody"}, Code.INVALID_PARAMS),
        ({"argv": ["ls"], "pty_size": [0, 1]}, Code.REFUSED),
    ],
)
def test_what_is_no_command_is_refused_and_the_run_continues(hosts: Hosting, params: Any, code: Code) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request("spawn", fence=run.fence, **params)
    assert error_of(tree.host.next(), number)["code"] == code
    assert not run.trees.asked
    assert not run.over


def test_a_tree_that_was_lost_is_named_so(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process = spawned(tree, run)
    waiting = tree.host.request("process.wait", fence=run.fence, process=process.process_id)
    until(lambda: process._exited._done_callbacks[1:], "the wait")  # type: ignore[attr-defined]  # it is registered
    process._fail(OSError("its warden was lost"))
    frames = {frame.get("id"): frame for frame in (tree.host.next(), tree.host.next())}
    assert (frames[None]["params"]["news"], frames[None]["params"]["note"]) == ("lost", "its warden was lost")
    assert frames[waiting]["error"]["data"]["type"] == "OSError"


# ── Ended, and handed over ────────────────────────────────────────────────────────────────────────


def test_it_is_killed_and_handed_over_by_the_actor(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process = spawned(tree, run)
    number = tree.host.request("process.kill", fence=run.fence, process=process.process_id, grace_s=0.5)
    assert tree.host.next() == {"jsonrpc": "2.0", "id": number, "result": {}}
    assert run.trees.killed == [(process.process_id, 0.5)]
    number = tree.host.request("process.hand_over", fence=run.fence, process=process.process_id)
    until(lambda: run.trees.handed, "the request")
    assert tree.host.nothing()
    settle(run.trees.handed[0][1], None)
    assert tree.host.next() == {"jsonrpc": "2.0", "id": number, "result": {}}
    number = tree.host.request("process.hand_over", fence=run.fence, process=process.process_id)
    until(lambda: len(run.trees.handed) == 2, "the request")
    fail(run.trees.handed[1][1], ProcessLookupError("it has ended"))
    assert error_of(tree.host.next(), number)["data"]["type"] == "ProcessLookupError"


def test_l14_a_host_that_kills_a_tree_again_and_again_fills_no_mailbox(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process, other = spawned(tree, run), spawned(tree, run)

    def kill(one: Process, grace_s: float) -> None:
        number = tree.host.request("process.kill", fence=run.fence, process=one.process_id, grace_s=grace_s)
        assert tree.host.next() == {"jsonrpc": "2.0", "id": number, "result": {}}

    for grace_s in (2.0, 2.0, 3.0, 1.0, 2.0, 1.0):
        kill(process, grace_s)
    assert run.trees.killed == [(process.process_id, 2.0), (process.process_id, 1.0)]
    for tenth in range(20):
        kill(other, 9 - tenth / 10)
    of_the_other = [grace_s for one, grace_s in run.trees.killed if one == other.process_id]
    assert of_the_other == [*(9 - tenth / 10 for tenth in range(KILLS_MAX)), 0.0]


@pytest.mark.parametrize("method", ["process.wait", "process.kill", "process.hand_over"])
def test_a_process_that_the_run_does_not_have_is_refused(hosts: Hosting, method: str) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request(method, fence=run.fence, process="proc_of_another")
    assert error_of(tree.host.next(), number)["code"] == Code.REFUSED
    assert not run.trees.killed


def test_l14_of_those_that_have_exited_so_many_are_known(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    processes = []
    for _ in range(EXITS_MAX + 1):
        processes.append(spawned(tree, run))
        settle(processes[-1]._exited, EXIT)
        assert tree.host.next()["method"] == "process"
    for process, known in ((processes[0], False), (processes[1], True)):
        tree.host.request("process.wait", fence=run.fence, process=process.process_id)
        assert ("result" in tree.host.next()) is known


def test_l14_a_host_that_reads_no_news_is_not_read_either(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    much = Exit(0, "x" * 65_536, 65_536, 0.1)
    peer = hosts.pool._hosts[tree.process_id]._peer
    for number in range(200):
        if hosts.loop.call(lambda: peer.channel._answers_bytes > UNSENT_MAX_BYTES):
            break
        ask(tree, run)
        process = run.trees.next(number)
        settle(process._started, 1)
        settle(process._exited, much)
        for _ in range(3):
            # The word of the start is said in one turn of the loop, and that of the exit in the next.
            hosts.loop.call(lambda: None)
    assert hosts.loop.call(lambda: peer.channel._answers_bytes) <= UNSENT_MAX_BYTES + 3 * 70_000
    asked = len(run.trees.asked)
    assert asked < 200
    ask(tree, run)
    hosts.loop.call(lambda: None)
    assert len(run.trees.asked) == asked, "it is not read"
    run.cancel()
    tree.die(1)
    run.end()


# ── Pipes ─────────────────────────────────────────────────────────────────────────────────────────


def ends_of(count: int) -> tuple[list[int], list[int]]:
    """Pipes: the ends to read, and those to write."""
    pairs = [os.pipe() for _ in range(count)]
    return [read for read, _ in pairs], [write for _, write in pairs]


def at_end(reads: list[int]) -> bool:
    """Wait until no writer is left of any, and close them."""
    for read in reads:
        os.set_blocking(read, False)
        until(functools.partial(_ended, read), "the other end is closed")
        os.close(read)
    return True


def _ended(read: int) -> bool:
    try:
        return os.read(read, 10) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("first", [None, 1, 20])
def test_pipes_come_with_the_frame_in_the_order_of_the_streams(hosts: Hosting, first: int | None) -> None:
    tree, run, _ = hosts.running()
    reads, writes = ends_of(2)
    pipes = {"stderr": "follow", "stdout": "pipe"}
    tree.host.request_with(writes, "spawn", first=first, fence=run.fence, argv=["make"], pipes=pipes)
    for fd in writes:
        os.close(fd)
    run.trees.next()
    ((spec, _, _),) = run.trees.asked
    assert spec.streams == pipes
    assert spec.ends is not None
    taken = spec.ends.take()
    assert taken is not None
    assert list(taken) == ["stdout", "stderr"]
    for stream, read in zip(taken, reads, strict=True):
        assert not os.get_inheritable(taken[stream])
        os.write(taken[stream], stream.encode())
        os.close(taken[stream])
        assert os.read(read, 100) == stream.encode()
    assert at_end(reads)


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_as_many_have_to_come_as_are_named_and_none_stays_open(hosts: Hosting, sent: int) -> None:
    tree, run, _ = hosts.running()
    reads, writes = ends_of(sent)
    pipes = {"stdout": "pipe", "stderr": "pipe"}
    number = tree.host.request_with(writes, "spawn", fence=run.fence, argv=["make"], pipes=pipes)
    for fd in writes:
        os.close(fd)
    error = error_of(tree.host.next(), number)
    assert error["code"] == Code.REFUSED
    assert error["data"]["expected"].startswith("2 descriptors")
    assert at_end(reads)


def test_what_comes_with_other_frames_is_closed(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    reads, writes = ends_of(4)
    # Of a run that is over, invalid, no spawn, without a name.
    tree.host.request_with(writes[:1], "spawn", fence="s:99:", argv=["make"], pipes={"stdout": "pipe"})
    assert "error" in tree.host.next()
    tree.host.request_with(writes[1:2], "spawn", fence=run.fence, argv=[], pipes={"stdout": "pipe"})
    assert "error" in tree.host.next()
    tree.host.request_with(writes[2:3], "steering", fence=run.fence)
    tree.host.request_with(writes[3:], "spawn", fence=run.fence, argv=["make"])
    run.trees.next()
    for fd in writes:
        os.close(fd)
    assert at_end(reads)


def test_a_look_at_processes_is_answered_behind_the_cancel_that_was_before_it(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request("process.look", fence=run.fence)
    assert tree.host.next() == {"jsonrpc": "2.0", "id": number, "result": {}}
    run.cancel()
    number = tree.host.request("process.look", fence=run.fence)
    assert tree.host.next()["method"] == CANCEL_REQUEST
    assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
    assert run.refused() == {}


# ── Of a call that is executed here ───────────────────────────────────────────────────────────────


def test_what_a_call_starts_is_asked_of_the_calls_own_actor_and_ends_with_it(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="t", where="host")
    execution = Execution(run.call(), run.token)
    frame = tree.host.next()
    assert frame["method"] == "execute"
    number = ask(tree, run, execution.fence)
    process = execution.trees.next()
    assert not run.trees.asked
    settle(process._started, 5)
    assert tree.host.next()["id"] == number
    # A handle is of use to whoever has the run's fence too; not to one with the fence of another call.
    stale = tree.host.request("process.kill", fence=f"{run.fence}call_other", process=process.process_id)
    assert error_of(tree.host.next(), stale)["code"] == Code.REFUSED
    tree.host.request("process.kill", fence=run.fence, process=process.process_id)
    assert "result" in tree.host.next()
    assert [one for one, _ in execution.trees.killed] == [process.process_id]
    tree.host.answer(frame, content="done")
    execution.end()
    late = ask(tree, run, execution.fence)
    assert error_of(tree.host.next(), late)["code"] == Code.STALE


# ── A Stop at each moment ─────────────────────────────────────────────────────────────────────────


def until_cancelled(tree: Tree) -> None:
    frame = tree.host.next()
    assert frame["method"] == CANCEL_REQUEST, "the cancel is the first frame after the fence"


def test_a_stop_between_the_request_and_the_start_is_its_answer(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    process = run.trees.next()
    run.cancel()
    until_cancelled(tree)
    assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
    assert not settle(process._started, 77)


def test_a_stop_between_the_start_and_the_word_of_it_is_its_answer(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = ask(tree, run)
    process = run.trees.next()

    def both() -> None:
        # On the thread of the channels, so nothing is told in between.
        settle(process._started, 77)
        run.cancel()

    hosts.loop.call(both)
    until_cancelled(tree)
    assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
    settle(process._exited, EXIT)
    assert tree.host.nothing()


def test_a_stop_between_the_exit_and_its_frame_sends_the_stop_alone(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process = spawned(tree, run)
    waiting = tree.host.request("process.wait", fence=run.fence, process=process.process_id)
    hosts.loop.call(lambda: None)

    def both() -> None:
        run.cancel()
        settle(process._exited, EXIT)

    hosts.loop.call(both)
    until_cancelled(tree)
    assert error_of(tree.host.next(), waiting)["code"] == Code.CANCELLED
    assert tree.host.nothing()


def test_what_comes_behind_the_stop_is_refused_and_counted(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    process = spawned(tree, run)
    run.cancel()
    until_cancelled(tree)
    numbers = [
        ask(tree, run),
        tree.host.request("process.kill", fence=run.fence, process=process.process_id),
        tree.host.request("process.hand_over", fence=run.fence, process=process.process_id),
        tree.host.request("process.wait", fence=run.fence, process=process.process_id),
    ]
    for number in numbers:
        assert error_of(tree.host.next(), number)["code"] == Code.CANCELLED
    until(lambda: run.refused() == {"spawn": 1, "kill": 1, "hand_over": 1}, "the counts")
    assert len(run.trees.asked) == 1
    assert not run.trees.killed


def test_what_comes_for_an_earlier_run_is_stale(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    process = spawned(tree, run)
    tree.host.answer(frame, value=None)
    run.end()
    hosts.keep(tree)
    second = OneRun(generation=5)
    assert hosts.pool.reserve(hosts.status().name, SESSION, tree.process_id) == tree.process_id
    hosts.begin(tree, second)
    number = ask(tree, run)
    assert error_of(tree.host.next(), number)["code"] == Code.STALE
    number = tree.host.request("process.kill", fence=second.fence, process=process.process_id)
    assert error_of(tree.host.next(), number)["code"] == Code.REFUSED
    assert not run.trees.killed
    assert not second.trees.asked


def test_if_the_host_dies_meanwhile_no_frame_is_sent(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    asked = ask(tree, run)
    process = run.trees.next()
    tree.die(9)
    assert "the host of agent" in str(run.end().error)
    settle(process._started, 77)
    settle(process._exited, EXIT)
    hosts.until_state(tree, None)
    assert asked


# ── Any order ─────────────────────────────────────────────────────────────────────────────────────

STEPS = st.lists(
    st.sampled_from(
        ["ask", "start", "fail", "exit", "lose", "wait", "give_up", "give_up_spawn", "kill", "hand", "done", "cancel"]
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans())
def test_in_any_order_each_request_has_one_answer_and_each_process_one_word(script: list[str], dies: bool) -> None:
    with hosting() as hosts:
        tree, run, frame = hosts.running()
        asked: set[int] = set()
        frames: list[dict[str, Any]] = []
        waits: list[int] = []
        spawns: list[int] = []
        place = 0

        def latest() -> Process | None:
            return run.trees.asked[-1][2] if run.trees.asked else None

        for step in script:
            process = latest()
            # What was written so far is handled.
            hosts.loop.call(lambda: None)
            match step:
                case "ask":
                    spawns.append(ask(tree, run))
                    asked.add(spawns[-1])
                case "start" if process is not None:
                    settle(process._started, 1)
                case "fail" if process is not None:
                    fail(process._started, OSError("no"))
                case "exit" if process is not None and process._started.done():
                    settle(process._exited, EXIT)
                case "lose" if process is not None:
                    process._fail(OSError("lost"))
                case "wait" | "kill" | "hand" if process is not None:
                    method = {"wait": "process.wait", "kill": "process.kill", "hand": "process.hand_over"}[step]
                    asked.add(tree.host.request(method, fence=run.fence, process=process.process_id))
                    waits += [max(asked)] if step == "wait" else []
                case "give_up" if waits:
                    give_up(tree, run, waits[-1])
                case "give_up_spawn" if spawns:
                    give_up(tree, run, spawns[-1])
                case "done":
                    for _, handed in run.trees.handed[place:]:
                        settle(handed, None)
                    place = len(run.trees.handed)
                case "cancel":
                    run.cancel()
        if dies:
            tree.die(1)
            run.end()
            return
        run.cancel()
        tree.host.answer(frame, value=None)
        run.end()
        while len([one for one in frames if "id" in one and "method" not in one]) < len(asked):
            frames.append(tree.host.next())
        answers = [one["id"] for one in frames if "id" in one and "method" not in one]
        assert sorted(answers) == sorted(asked)
        told = [json.dumps(one["params"]["process"]) for one in frames if one.get("method") == "process"]
        assert len(told) == len(set(told))
        assert [one.get("method") for one in frames].count(CANCEL_REQUEST) <= 1
