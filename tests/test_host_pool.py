"""The pool: who has a host, when the next one is started, and what becomes of one that nobody needs.

The file has over 600 lines, and is whole: one pool, played by hand in each test.
"""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from actors.messages import ProcessEnded, ProcessExited
from actors.model import Event, How
from supervisor.agent import Agent
from supervisor.clock import SystemClock
from supervisor.hosts import host as host_module
from supervisor.hosts import pool as pool_module
from supervisor.hosts.host import HostState
from supervisor.hosts.pool import HostPool
from tests.pool_kit import HELLO, NAME, SESSION, SPEC, Ahead, Hosting, OneRun, Tree, hosting
from tests.process_kit import until


def spec(**options: Any) -> Agent:
    return Agent(name=NAME, command=("the", "host"), **options)


def states(hosts: Hosting) -> list[HostState]:
    return sorted(one.state for one in hosts.status().hosts)


def kept(hosts: Hosting, session: str = SESSION) -> Tree:
    """A host whose run has ended by itself, and that its session keeps."""
    hosts.spare()
    tree, run = hosts.reserved(session), OneRun(session=session)
    frame = hosts.begin(tree, run)
    tree.host.answer(frame, value=1)
    run.end()
    hosts.keep(tree, session)
    return tree


# ── Spares ────────────────────────────────────────────────────────────────────────────────────────


def test_a_host_is_started_as_its_spec_says() -> None:
    with hosting(spec(cwd="/srv", env={"MODEL": "small"}, user="agent", limits={"nofile": 99})) as hosts:
        started = hosts.trees.next().spec
        assert (started.argv, started.name, started.cwd) == (("the", "host"), f"host {NAME}", "/srv")
        assert (started.env, started.user, started.limits) == ({"MODEL": "small"}, "agent", {"nofile": 99})


def test_a_host_has_the_only_other_end_of_its_socket() -> None:
    with hosting() as hosts:
        tree = hosts.spare()
        # What the daemon holds is its own end: the socket ends when the host closes its.
        tree.host.sock.close()
        hosts.loop.until(lambda: hosts.pool._hosts[tree.process_id]._at_end, "the end of the socket")
        tree.die(0)


def test_spares_are_started_one_at_a_time_up_to_their_number() -> None:
    with hosting(spec(spares=3)) as hosts:
        for count in range(1, 4):
            tree = hosts.trees.next()
            hosts.loop.call(lambda: None)
            assert len(hosts.trees.trees) == count
            tree.host.request("hello", **HELLO)
            assert tree.host.next()["result"]
        hosts.loop.call(lambda: None)
        assert len(hosts.trees.trees) == 3
        assert states(hosts) == [HostState.SPARE] * 3


def test_a_spare_is_nice_until_it_has_said_hello_or_a_run_waits_for_it() -> None:
    with hosting() as hosts:
        first = hosts.spare()
        assert first.nice == [10, 0]
        assert hosts.reserved() is first
        starting = hosts.trees.next()
        assert starting.nice == [10]
        assert hosts.reserved("s2") is starting
        assert starting.nice == [10, 0]
        starting.host.request("hello", **HELLO)
        assert starting.host.next()["result"]
        assert starting.nice == [10, 0]
        hosts.trees.next()
        assert hosts.reserved("s3").nice == [10, 0]
        hosts.pool.drain()
        assert hosts.reserved("s4").nice == [0]


def test_each_agent_has_its_own_spares() -> None:
    with hosting(
        spec(), Agent(name="other", command=("other",), spares=2), Agent(name="cold", command=("cold",), spares=0)
    ) as hosts:
        hosts.spare()
        hosts.spare()
        hosts.spare()
        counts = {one.name: len(one.hosts) for one in hosts.pool.status()}
        assert counts == {NAME: 1, "other": 2, "cold": 0}


def test_a_session_gets_the_spare_and_the_next_one_is_started() -> None:
    with hosting() as hosts:
        first = hosts.spare()
        assert hosts.reserved() is first
        status = hosts.host(first)
        assert status is not None
        assert (status.state, status.session, status.runtime) == (HostState.RESERVED, SESSION, HELLO["runtime"])
        second = hosts.spare()
        assert hosts.reserved("s2") is second


def test_one_that_is_starting_is_given_before_a_new_one_is_started() -> None:
    with hosting() as hosts:
        starting = hosts.trees.next()
        assert hosts.reserved() is starting
        cold = hosts.trees.next()
        assert hosts.reserved("s2") is cold
        assert hosts.reserved("s3") not in (starting, cold)


def test_one_that_has_said_hello_is_given_before_one_that_has_not() -> None:
    with hosting(spec(spares=2)) as hosts:
        ready = hosts.spare()
        hosts.trees.next()
        assert hosts.reserved() is ready


def test_the_pool_knows_which_code_a_host_has_that_says_so_in_its_hello() -> None:
    with hosting() as hosts:
        hosts.spare({**HELLO, "code_changed_at": 1_750_000_000.5})
        assert hosts.pool.code_changed_at(hosts.reserved().process_id) == 1_750_000_000.5
        hosts.spare()
        assert hosts.pool.code_changed_at(hosts.reserved("s2").process_id) is None
        starting = hosts.reserved("s3")
        assert hosts.pool.code_changed_at(starting.process_id) is None
        assert hosts.pool.code_changed_at("proc_unknown") is None


def test_no_two_sessions_get_one_host() -> None:
    with hosting(spec(spares=4)) as hosts:
        for _ in range(4):
            hosts.spare()
        ids: list[str] = []

        def reserve(session: str) -> None:
            ids.extend(hosts.pool.reserve(NAME, session) for _ in range(10))

        threads = [threading.Thread(target=reserve, args=(f"s{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 80


def test_a_host_that_was_not_sent_its_run_goes_back() -> None:
    with hosting() as hosts:
        first = hosts.spare()
        hosts.reserved()
        hosts.pool.release(first.process_id)
        hosts.pool.release(first.process_id)
        assert hosts.reserved("s2") is first


def test_one_that_goes_back_while_it_starts_is_starting_again() -> None:
    with hosting(spec(spares=0)) as hosts:
        tree = hosts.reserved()
        hosts.pool.release(tree.process_id)
        # No spare is wanted.
        hosts.until_state(tree, None)
        assert tree.kills == [0.0]
        assert tree.forgotten


def test_when_one_goes_back_to_a_full_pool_the_newest_is_ended() -> None:
    with hosting() as hosts:
        first = hosts.spare()
        hosts.reserved()
        second = hosts.trees.next()
        hosts.pool.release(first.process_id)
        hosts.until_state(second, None)
        assert states(hosts) == [HostState.SPARE]
        assert second.kills == [0.0]
        assert not first.kills


def test_a_host_that_was_sent_a_run_is_not_given_back() -> None:
    with hosting() as hosts:
        tree, _, _ = hosts.running()
        hosts.pool.release(tree.process_id)
        status = hosts.host(tree)
        assert status is not None
        assert status.state == HostState.RUNNING


def test_unknown_ids_are_ignored() -> None:
    with hosting() as hosts:
        hosts.pool.release("proc_unknown")
        hosts.pool.keep("proc_unknown", SESSION, hosts.unwanted.append)  # type: ignore[arg-type]  # never called
        hosts.pool.heard("proc_unknown", ProcessEnded("proc_unknown", How.EXIT, proven=True, at=1.0))
        hosts.pool.reload(["unknown"])


# ── Spares that die, and agents that are broken ───────────────────────────────────────────────────


class Still(SystemClock):
    """A clock on which no time passes."""

    def monotonic(self) -> float:
        """Return the same time always."""
        return 1_000.0


def test_a_spare_that_dies_is_replaced_after_a_while_that_doubles() -> None:
    with hosting(clock=Still()) as hosts:
        clock = hosts.pool._clock
        waits = []
        for _ in range(8):
            tree = hosts.spare()
            tree.die(-9)
            hosts.until_state(tree, None)
            until(lambda: hosts.status().retry_in_s is not None, "the next try to be set")
            entry = hosts.pool._agents[NAME]
            waits.append(entry.retry_at - clock.monotonic())
            # The time has come.
            entry.retry_at = 0.0
            hosts.pool._refill_soon(entry)
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
        assert hosts.status().broken == "", "it is not broken: it can be started"


def test_a_spare_that_was_used_or_that_lived_long_has_not_failed() -> None:
    with hosting() as hosts:
        entry = hosts.pool._agents[NAME]
        entry.failures = 5
        hosts.spare()
        hosts.reserved()
        assert entry.failures == 0
        entry.failures = 5
        tree = hosts.spare()
        hosts.pool._hosts[tree.process_id].ready_at -= pool_module.RETRY_MAX_S
        tree.die(-9)
        hosts.until_state(tree, None)
        assert entry.failures == 1


def test_an_agent_that_cannot_be_loaded_is_broken_with_the_reason_and_the_end_of_its_output() -> None:
    with hosting(spec(), Agent(name="other", command=("other",)), clock=Still()) as hosts:
        for _ in range(2):
            tree = hosts.trees.next()
            if tree.spec.argv == ("other",):
                tree.host.request("hello", **HELLO)
                continue
            tree.host.request("hello", **HELLO, error="ModuleNotFoundError: no module named 'x'")
            assert tree.host.next()["result"]
            broken = tree
        broken.die(3, "Traceback: …")
        hosts.until_state(broken, None)
        status = hosts.status()
        assert status.broken == f"the agent {NAME} cannot be loaded: ModuleNotFoundError: no module named 'x'"
        assert status.output == "Traceback: …"
        assert status.retry_in_s is not None
        assert not broken.kills[:-1], "it was let to end by itself"
        until(lambda: states_of(hosts, "other") == [HostState.SPARE], "the other agent")
        assert hosts.status("other").broken == ""


def test_the_log_has_a_failure_once_until_it_is_another_one_and_a_runs_own_is_no_error_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_MAX_S", 0.0)
    monkeypatch.setattr(host_module, "EXIT_S", 0.05)
    logged: list[str] = []
    sink = logger.add(logged.append, format="{level} {message}", filter="supervisor.hosts.pool")
    try:
        with hosting() as hosts:
            for error in ("x", "x", "y", "y"):
                tree = hosts.trees.next()
                tree.host.request("hello", **HELLO, error=error)
                hosts.until_state(tree, None)
            tree = hosts.reserved()
            tree.host.request("hello", **HELLO, error="z")
            until(lambda: hosts.status().broken.endswith("z"), "the reason")
    finally:
        logger.remove(sink)
    said = f"the agent {NAME} cannot be loaded:"
    assert logged == [f"ERROR {said} x\n", f"ERROR {said} y\n", f"INFO {said} z\n"]


def states_of(hosts: Hosting, name: str) -> list[HostState]:
    return [one.state for one in hosts.status(name).hosts]


def test_a_host_that_cannot_load_its_agent_and_keeps_running_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "EXIT_S", 0.05)
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.host.request("hello", **HELLO, error="broken")
        hosts.until_state(tree, None)
        assert tree.kills == [0.0]


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (1, "SyntaxError", "ended before it said hello: exit status 1; its output ends:\nSyntaxError"),
        (-11, "", "ended before it said hello: killed by SIGSEGV"),
    ],
)
def test_a_host_that_ends_before_its_hello_makes_its_agent_broken(status: int, output: str, reason: str) -> None:
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.die(status, output)
        until(lambda: hosts.status().broken, "it to be broken")
        assert reason in hosts.status().broken
        assert hosts.status().output == output
        hosts.until_state(tree, None)
        assert tree.forgotten


def test_a_command_that_cannot_be_executed_makes_its_agent_broken() -> None:
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.host.sock.close()
        tree.end("cannot execute 'the'", How.NOT_STARTED)
        until(lambda: hosts.status().broken, "it to be broken")
        assert hosts.status().broken == f"the host of agent {NAME} could not be started: cannot execute 'the'"


def test_a_host_that_says_no_hello_in_time_is_ended_and_its_agent_broken() -> None:
    with hosting(spec(start_s=0.05)) as hosts:
        tree = hosts.trees.next()
        hosts.until_state(tree, None)
        assert hosts.status().broken == f"the host of agent {NAME} did not say hello within 0.05 s"
        assert tree.kills == [0.0]


def test_a_spare_that_is_reserved_while_it_starts_has_all_its_time_from_then_on() -> None:
    clock = Ahead()

    def timers_have_fired(ahead_s: float) -> None:
        clock.ahead_s = ahead_s
        for _ in range(2):
            hosts.loop.call(lambda: None)

    with hosting(spec(start_s=60.0), clock=clock) as hosts:
        starting = hosts.trees.next()
        # Its time counts from here.
        timers_have_fired(0.0)
        timers_have_fired(50.0)
        assert hosts.reserved() is starting
        timers_have_fired(100.0)
        assert not hosts.status().broken
        timers_have_fired(120.0)
        assert hosts.status().broken == f"the host of agent {NAME} did not say hello within 60 s"
        # What was lost is not given to the next one, whoever releases it when.
        hosts.pool.release(starting.process_id)
        assert hosts.reserved("s2") is not starting


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"emit","params":{"fence":"","text":""}}',
        b'{"jsonrpc":"2.0","id":1,"method":"call","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":"1"}}',
        b"hello",
    ],
)
def test_a_spare_that_breaks_the_protocol_is_ended_and_its_agent_broken(line: bytes) -> None:
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.host.write(line + b"\n")
        hosts.until_state(tree, None)
        assert "host.protocol" in hosts.status().broken


def test_a_run_of_a_broken_agent_tries_all_the_same_and_mends_it() -> None:
    with hosting() as hosts:
        hosts.trees.next().die(1)
        until(lambda: hosts.status().broken, "it to be broken")
        cold, run = hosts.reserved(), OneRun()
        hosts.pool.run(cold.process_id, run.core, (), run.finish)
        cold.host.request("hello", **HELLO)
        assert cold.host.next()["result"]
        assert cold.host.next()["method"] == "run"
        assert hosts.status().broken == ""


def test_without_a_socket_there_is_no_host_and_the_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(spec(spares=0)) as hosts:

        def full() -> Any:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket, "socketpair", full)
        run = OneRun()
        hosts.pool.run(hosts.pool.reserve(NAME, SESSION), run.core, (), run.finish)
        assert "Too many open files" in str(run.end().error)
        monkeypatch.undo()
        hosts.reserved()


# ── Hosts that a session keeps ────────────────────────────────────────────────────────────────────


def test_a_host_that_is_kept_is_for_the_next_run_of_its_session() -> None:
    with hosting() as hosts:
        tree = kept(hosts)
        hosts.until_state(tree, HostState.KEPT)
        other = hosts.reserved("s2")
        assert other is not tree
        assert hosts.pool.reserve(NAME, SESSION, tree.process_id) == tree.process_id
        run = OneRun(generation=5)
        assert hosts.begin(tree, run)["params"]["fence"] == f"{SESSION}:5:"


def test_what_a_kept_host_still_says_of_its_earlier_run_has_no_effect() -> None:
    with hosting() as hosts:
        hosts.spare()
        tree, earlier = hosts.reserved(), OneRun()
        frame = hosts.begin(tree, earlier)
        tree.host.answer(frame, value=1)
        earlier.end()
        hosts.keep(tree)
        hosts.pool.reserve(NAME, SESSION, tree.process_id)
        later = OneRun(generation=5)
        hosts.begin(tree, later)
        for _ in range(3):
            tree.host.note("emit", fence=earlier.fence, text="of the earlier run")
        tree.host.note("emit", fence=later.fence, text="of the later run")
        until(lambda: later.said() == ["of the later run"], "the later run to be heard")
        assert not earlier.said()
        until(lambda: earlier.refused() == {"text": 3}, "the earlier ones to be counted")
        assert not later.refused()


def log(*texts: str) -> list[Event]:
    """The log of a session with these messages; each has the first letter of its text as its id."""
    return [
        Event(seq, SESSION, seq, f"run_{seq}", "message", {"id": text[0], "content": text, "origin": "user"}, 1.0)
        for seq, text in enumerate(texts, start=1)
    ]


def next_run(hosts: Hosting, tree: Tree, generation: int, *texts: str) -> tuple[OneRun, dict[str, Any]]:
    """The next run in a host that its session keeps, and its frame. It is open."""
    assert hosts.pool.reserve(NAME, SESSION, tree.process_id) == tree.process_id
    run = OneRun(generation=generation, before=log(*texts))
    return run, hosts.begin(tree, run)


def end_run(hosts: Hosting, tree: Tree, run: OneRun, frame: dict[str, Any], **answer: Any) -> None:
    line = {"jsonrpc": "2.0", "id": frame["id"], **(answer or {"result": {"value": 1}})}
    tree.host.write(json.dumps(line).encode() + b"\n")
    run.end()
    hosts.keep(tree)


def test_a_host_that_keeps_the_thread_gets_what_is_new_in_it() -> None:
    with hosting() as hosts:
        hosts.spare({**HELLO, "can": ["thread_from"]})
        tree, first = hosts.reserved(), OneRun(before=log("a", "b", "c"))
        frame = hosts.begin(tree, first)
        assert "thread_from" not in frame["params"], "it has none so far"
        end_run(hosts, tree, first, frame)

        def told(generation: int, *texts: str) -> tuple[list[str], int | None]:
            run, frame = next_run(hosts, tree, generation, *texts)
            end_run(hosts, tree, run, frame)
            return [one["content"] for one in frame["params"]["thread"]], frame["params"].get("thread_from")

        assert told(5, "a", "b", "c", "d") == (["d"], 3)
        assert told(6, "a", "b", "c", "d") == ([], 4), "nothing is new"
        assert told(7, "a", "b changed", "c") == (["b changed", "c"], 1)
        assert told(8, "a", "b changed") == ([], 2), "it has become shorter"
        assert told(9, "x", "a") == (["x", "a"], None), "all is new"
        assert told(10) == ([], None), "all is gone"
        assert told(11, "x") == (["x"], None)


def test_a_host_that_does_not_keep_the_thread_gets_all_of_it() -> None:
    with hosting() as hosts:
        hosts.spare()
        tree, first = hosts.reserved(), OneRun(before=log("a"))
        end_run(hosts, tree, first, hosts.begin(tree, first))
        _, frame = next_run(hosts, tree, 5, "a", "b")
        assert [one["content"] for one in frame["params"]["thread"]] == ["a", "b"]
        assert "thread_from" not in frame["params"]


def test_a_host_that_has_perhaps_not_taken_the_thread_of_a_run_gets_all_of_the_next() -> None:
    with hosting() as hosts:
        hosts.spare({**HELLO, "can": ["thread_from"]})
        tree, first = hosts.reserved(), OneRun(before=log("a"))
        end_run(hosts, tree, first, hosts.begin(tree, first))
        second, frame = next_run(hosts, tree, 5, "a", "b")
        assert frame["params"]["thread_from"] == 1
        end_run(hosts, tree, second, frame, error={"code": -32602, "message": "it does not fit"})
        _, frame = next_run(hosts, tree, 6, "a", "b")
        assert [one["content"] for one in frame["params"]["thread"]] == ["a", "b"]


def test_a_kept_host_that_was_not_sent_its_next_run_is_kept() -> None:
    with hosting() as hosts:
        tree = kept(hosts)
        hosts.pool.reserve(NAME, SESSION, tree.process_id)
        hosts.pool.release(tree.process_id)
        hosts.until_state(tree, HostState.KEPT)
        assert hosts.pool.reserve(NAME, SESSION, tree.process_id) == tree.process_id


def test_the_word_that_a_host_is_kept_may_come_after_it_was_reserved_again() -> None:
    with hosting() as hosts:
        hosts.spare()
        tree, run = hosts.reserved(), OneRun()
        tree.host.answer(hosts.begin(tree, run), value=1)
        run.end()
        assert hosts.pool.reserve(NAME, SESSION, tree.process_id) == tree.process_id
        hosts.keep(tree)
        hosts.until_state(tree, HostState.RESERVED)
        hosts.begin(tree, OneRun(generation=5))
        hosts.until_state(tree, HostState.RUNNING)


def test_a_kept_host_is_never_given_to_another_session() -> None:
    with hosting(spec(spares=0)) as hosts:
        tree = hosts.reserved()
        tree.host.request("hello", **HELLO)
        run = OneRun()
        tree.host.next()
        tree.host.answer(hosts.begin(tree, run), value=1)
        run.end()
        hosts.keep(tree)
        assert hosts.pool.reserve(NAME, "s2", tree.process_id) != tree.process_id


@pytest.mark.parametrize("ended", ["dead", "cut off", "outdated"])
def test_a_kept_host_that_is_not_to_be_used_is_not_given(ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "EXIT_S", 0.05)
    with hosting() as hosts:
        tree = kept(hosts)
        if ended == "dead":
            tree.die(0)
            hosts.until_state(tree, None)
        elif ended == "cut off":
            tree.host.write(b"nonsense\n")
            until(lambda: hosts.unwanted, "its session to be told")
        else:
            hosts.pool.reload()
        assert hosts.pool.reserve(NAME, SESSION, tree.process_id) != tree.process_id


def test_a_kept_host_that_has_just_died_is_not_given() -> None:
    with hosting() as hosts:
        tree = kept(hosts)
        hosts.until_state(tree, HostState.KEPT)

        def dies_and_is_reserved() -> str:
            # On the thread of its channel, which so has not heard of the end.
            tree.host.sock.close()
            return hosts.pool.reserve(NAME, SESSION, tree.process_id)

        assert hosts.loop.call(dies_and_is_reserved) != tree.process_id
        tree.die(0)


@pytest.mark.parametrize("when", ["kept", "before that is said", "reserved again"])
def test_a_kept_host_that_is_cut_off_is_its_sessions_to_end_with_the_reason(when: str) -> None:
    with hosting() as hosts:
        if when == "before that is said":
            # Its run has ended by itself, and the session keeps it; the word of that comes behind a commit.
            hosts.spare()
            tree, run = hosts.reserved(), OneRun()
            tree.host.answer(hosts.begin(tree, run), value=1)
            run.end()
        else:
            tree = kept(hosts)
        host = hosts.pool._hosts[tree.process_id]
        if when == "reserved again":
            assert hosts.pool.reserve(NAME, SESSION, tree.process_id) == tree.process_id
        tree.host.write(b"nonsense\n")
        until(lambda: host.lost, "it to be cut off")
        if when == "before that is said":
            assert hosts.unwanted == []
            hosts.keep(tree)
        elif when == "reserved again":
            hosts.pool.release(tree.process_id)
        until(lambda: hosts.unwanted, "its session to be told")
        assert hosts.unwanted == [(tree, host.lost)]
        assert host.lost.startswith("host.protocol: ")
        assert (tree.kills, host.state) == ([], HostState.ENDING)
        # A session that was read anew may not have heard it.
        hosts.keep(tree)
        assert hosts.unwanted == [(tree, host.lost)] * 2
        assert hosts.pool.reserve(NAME, SESSION, tree.process_id) != tree.process_id


def test_of_too_many_kept_hosts_its_session_is_to_end_the_longest_unused() -> None:
    with hosting(kept_max=2) as hosts:
        first, second = kept(hosts, "s1"), kept(hosts, "s2")
        # The first is used once more.
        hosts.pool.reserve(NAME, "s1", first.process_id)
        run = OneRun(session="s1", generation=5)
        first.host.answer(hosts.begin(first, run), value=1)
        run.end()
        hosts.keep(first, "s1")
        third = kept(hosts, "s3")
        (told,) = hosts.unwanted
        assert told == (second, pool_module.TOO_MANY)
        assert not any(one.kills for one in (first, second, third)), "they are their sessions' to end"
        assert hosts.pool.reserve(NAME, "s2", second.process_id) != second.process_id
        # A session that was read anew may not have heard it.
        hosts.keep(second, "s2")
        hosts.keep(third, "s3")
        assert hosts.unwanted == [told, told]


# ── Reload ────────────────────────────────────────────────────────────────────────────────────────


def test_a_reload_replaces_the_spares_and_lets_runs_continue() -> None:
    with hosting() as hosts:
        running, run, frame = hosts.running()
        spare = hosts.spare()
        hosts.pool.reload([NAME])
        hosts.until_state(spare, None)
        fresh = hosts.spare()
        assert fresh is not spare
        running.host.answer(frame, value=1)
        assert run.end().how is How.RETURNED
        assert hosts.reserved() is fresh


def test_a_reload_tries_a_broken_agent_at_once() -> None:
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.die(1)
        hosts.until_state(tree, None)
        until(lambda: hosts.status().retry_in_s is not None, "the next try to be set")
        hosts.pool.reload()
        assert hosts.status().broken == ""
        hosts.spare()


def test_a_reload_of_a_reserved_host_ends_it_when_it_goes_back() -> None:
    with hosting() as hosts:
        tree = hosts.spare()
        hosts.reserved()
        hosts.pool.reload()
        hosts.pool.release(tree.process_id)
        hosts.until_state(tree, None)


# ── What an agent has in files ────────────────────────────────────────────────────────────────────


def test_a_reload_reads_the_files_of_variables_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.env"
    file.write_text("KEY=old\n")
    with hosting(spec(env_files=[str(file)])) as hosts:
        old = hosts.spare()
        assert old.spec.env == {"KEY": "old"}
        file.write_text("KEY=new\n")
        hosts.pool.reload()
        hosts.until_state(old, None)
        assert hosts.spare().spec.env == {"KEY": "new"}


def test_an_agent_whose_files_cannot_be_read_is_broken_until_they_can(tmp_path: Path) -> None:
    file = tmp_path / "mine.env"
    with hosting(spec(env_files=[str(file)])) as hosts:
        status = hosts.status()
        assert (status.broken, status.hosts) == (status.failure, ())
        assert f"{file} of agents.{NAME}.env_files cannot be used: No such file" in status.broken
        hosts.pool.run(hosts.pool.reserve(NAME, SESSION), (failed := OneRun()).core, (), failed.finish)
        assert "No such file" in str(failed.end().error)
        file.write_text("KEY=1\n")
        # It is tried again by itself.
        assert hosts.spare().spec.env == {"KEY": "1"}
        assert hosts.status().broken == ""
        assert hosts.status().failed_s_ago is not None


def test_without_spares_a_run_has_the_files_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.env"
    with hosting(spec(env_files=[str(file)], spares=0)) as hosts:
        file.write_text("KEY=1\n")
        hosts.pool.reserve(NAME, SESSION)
        until(lambda: hosts.pool._agents[NAME].env is not None, "it to be read")
        assert hosts.reserved().spec.env == {"KEY": "1"}


def test_files_that_cannot_be_read_at_a_reload_leave_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.env"
    file.write_text("KEY=1\n")
    with hosting(spec(env_files=[str(file)])) as hosts:
        running, run, frame = hosts.running()
        spare = hosts.spare()
        file.unlink()
        hosts.pool.reload()
        hosts.until_state(spare, None)
        assert "No such file" in hosts.status().broken
        running.host.answer(frame, value=1)
        assert run.end().how is How.RETURNED


def test_a_failure_is_remembered_when_it_is_mended() -> None:
    with hosting() as hosts:
        tree = hosts.trees.next()
        tree.die(1)
        hosts.until_state(tree, None)
        hosts.pool.reload()
        hosts.spare()
        status = hosts.status()
        assert (status.broken, status.ready) == ("", True)
        assert "exit status 1" in status.failure


def test_a_host_has_its_state_since_it_changed() -> None:
    with hosting() as hosts:
        tree = hosts.spare()
        spare = hosts.host(tree)
        assert spare is not None
        assert 0.0 <= spare.state_s <= spare.age_s
        until(lambda: getattr(hosts.host(tree), "state_s", 0.0) > 0.05, "time to pass")
        hosts.reserved()
        reserved = hosts.host(tree)
        assert reserved is not None
        assert reserved.state_s < reserved.age_s - 0.05


# ── Hosts that die while somebody has them ────────────────────────────────────────────────────────


def test_news_that_come_through_the_owner_of_a_tree_are_heard() -> None:
    with hosting(mortal=False) as hosts:
        tree, run, _ = hosts.running()
        tree.host.sock.close()
        exited = ProcessExited(tree.process_id, -6, 1.0, 1.0, "", 0, lossy=False, held=False)
        hosts.pool.heard(tree.process_id, exited)
        assert "SIGABRT" in str(run.end().error)
        for _ in range(2):
            hosts.pool.heard(tree.process_id, ProcessEnded(tree.process_id, How.EXIT, proven=True, at=1.0))
        hosts.until_state(tree, None)
        assert not tree.forgotten, "its run forgets it"


def test_a_reserved_host_that_has_ended_is_known_until_its_run_or_its_release() -> None:
    with hosting() as hosts:
        first = hosts.spare()
        hosts.reserved()
        first.die(0)
        hosts.loop.until(lambda: hosts.pool._hosts[first.process_id].ended, "its end")
        assert hosts.host(first) is None, "people are shown what is there"
        hosts.pool.release(first.process_id)
        assert first.process_id not in hosts.pool._hosts
        assert first.forgotten
        second = hosts.spare()
        run = OneRun()
        assert hosts.reserved() is second
        second.die(0)
        hosts.loop.until(lambda: hosts.pool._hosts[second.process_id].ended, "its end")
        hosts.pool.run(second.process_id, run.core, (), run.finish)
        assert run.end().how is How.RAISED
        assert second.process_id not in hosts.pool._hosts
        assert not second.forgotten, "its run forgets it"


@pytest.mark.parametrize("ready", [True, False])
def test_a_reserved_host_that_was_lost_and_that_no_run_asks_for_is_forgotten(
    ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RESERVED_S", 0.05)
    with hosting() as hosts:
        tree = hosts.spare() if ready else hosts.trees.next()
        assert hosts.reserved() is tree
        tree.die(-9)
        hosts.loop.until(lambda: tree.process_id not in hosts.pool._hosts, "it is forgotten")
        # It does not matter if somebody comes all the same.
        run = OneRun()
        hosts.pool.run(tree.process_id, run.core, (), run.finish)
        assert "there is no such host" in str(run.end().error)


def test_a_spare_that_exits_and_leaves_processes_behind_is_killed() -> None:
    with hosting(mortal=False) as hosts:
        tree = hosts.spare()
        tree.exit(0)
        until(lambda: tree.kills, "what is left to be killed")
        tree.end()
        hosts.until_state(tree, None)


# ── Hosts that do not answer ──────────────────────────────────────────────────────────────────────


def pass_by(hosts: Hosting, clock: Ahead, seconds: float) -> None:
    """Let a time pass: its timers have fired then. No time passes otherwise, as far as they can tell."""

    def jump() -> None:
        # On the thread of the timers: the handler whose frame the test has read is over, with the timer that it sets.
        clock.ahead_s += seconds

    hosts.loop.call(jump)
    for _ in range(2):
        hosts.loop.call(lambda: None)


def test_a_spare_that_answers_its_pings_stays_and_one_that_does_not_is_replaced() -> None:
    clock = Ahead()
    with hosting(clock=clock) as hosts:
        tree = hosts.spare({**HELLO, "can": ["ping"]})
        host = hosts.pool._hosts[tree.process_id]
        for _ in range(4):
            pass_by(hosts, clock, host_module.PING_S)
            ping = tree.host.next()
            assert ping["method"] == "ping"
            limit = hosts.loop.call(lambda: host._ping_alarm)
            tree.host.answer(ping)
            hosts.loop.until(lambda limit=limit: host._ping_alarm is not limit, "the answer is heard")  # type: ignore[misc]
        pass_by(hosts, clock, host_module.PING_S)
        assert tree.host.next()["method"] == "ping"
        assert not tree.kills
        pass_by(hosts, clock, host_module.PING_S)
        hosts.until_state(tree, None)
        assert tree.kills == [0.0]


def test_a_host_that_cannot_ping_or_has_a_run_is_not_pinged() -> None:
    clock = Ahead()
    with hosting(spec(spares=2), clock=clock) as hosts:
        mute = hosts.spare()
        speaking = hosts.spare({**HELLO, "can": ["ping"]})
        pass_by(hosts, clock, host_module.PING_S)
        pinged = speaking.host.next()
        assert pinged["method"] == "ping"
        assert hosts.reserved() is mute
        assert hosts.reserved("s2") is speaking
        run = OneRun(session="s2")
        hosts.pool.run(speaking.process_id, run.core, (), run.finish)
        assert speaking.host.next()["method"] == "run"
        pass_by(hosts, clock, host_module.PING_S)
        assert speaking.host.nothing()
        speaking.host.answer(pinged)
        for _ in range(3):
            pass_by(hosts, clock, host_module.PING_S)
            assert speaking.host.nothing()
        assert mute.host.nothing()
        assert not run.over


# ── The end ───────────────────────────────────────────────────────────────────────────────────────


def test_a_drain_ends_the_spares_at_once_and_lets_runs_continue_and_begin() -> None:
    with hosting() as hosts:
        running, run, frame = hosts.running()
        spare = hosts.spare()
        hosts.pool.drain()
        hosts.until_state(spare, None)
        cold = hosts.reserved("s2")
        cold.host.request("hello", **HELLO)
        cold.host.next()
        hosts.begin(cold, OneRun(session="s2"))
        running.host.answer(frame, value=1)
        assert run.end().how is How.RETURNED
        hosts.loop.call(lambda: None)
        assert len(hosts.trees.trees) == 3, "no spare is started any more"


def test_a_pool_that_is_closed_reserves_nothing_and_says_so() -> None:
    with hosting() as hosts:
        tree = hosts.spare()
        assert hosts.pool.close()
        assert tree.kills == [0.0]
        run = OneRun()
        process_id = hosts.pool.reserve(NAME, SESSION)
        assert process_id not in hosts.trees.trees
        hosts.pool.run(process_id, run.core, (), run.finish)
        assert "shutting down" in str(run.end().error)
        assert hosts.pool.close()


def test_a_run_that_comes_to_a_pool_which_is_closing_fails() -> None:
    with hosting() as hosts:
        hosts.spare()
        tree, run = hosts.reserved(), OneRun()
        assert hosts.pool.close()
        hosts.pool.run(tree.process_id, run.core, (), run.finish)
        assert "shutting down" in str(run.end().error)


def test_the_pool_is_the_port_of_the_actors() -> None:
    from actors.hosts import Hosts

    def takes(_: Hosts) -> None: ...

    with hosting(SPEC) as hosts:
        pool: HostPool = hosts.pool
        takes(pool)
