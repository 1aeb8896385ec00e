"""A host that says anything: its run ends once and clearly, others do not notice, and nothing grows."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loguru import logger

from actors.gate.pending import settle
from actors.messages import LateRefused, Said
from actors.model import How
from actors.plugin.spawning import Exit, Process
from supervisor.agent import Agent
from supervisor.hosts import channel as channel_module
from supervisor.hosts import peer as peer_module
from supervisor.hosts.channel import PIECE_BYTES, UNSENT_MAX_BYTES
from supervisor.hosts.frames import CANCEL_REQUEST
from supervisor.hosts.peer import REQUESTS_MAX
from tests.pool_kit import FINISHED, HELLO, NAME, Execution, Hosting, OneRun, Tree, hosting
from tests.process_kit import until

LINE_MAX = 20_000
"""The limit on a line here, so that one that is too long is quickly made."""

REQUESTS_BYTES = 30_000
"""The limit on the lines of open requests, likewise."""

Op = tuple[Any, ...]

FENCES = st.sampled_from(["own", "own", "own", "earlier", "the other's", "of a call", "nonsense"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
REQUESTS = st.sampled_from(
    [
        "call",
        "ask",
        "steering",
        "state",
        "hand_off",
        "guard",
        "hello",
        "emit",
        "run",
        "execute",
        "delegate",
        "telepathy",
        "",
    ]
)
OF_PROCESSES = st.sampled_from(["process.wait", "process.kill", "process.hand_over"])
NOTES = st.sampled_from(["emit", "progress", "typing", "log", CANCEL_REQUEST, "credit", "guard.done", "nothing known"])
ANSWER_PARTS = st.sampled_from(["answer.begin", "block", "emit", "answer.end", "answer.leave"])
NAMES = st.sampled_from(["write", "write", "", "\n", "x" * 1_000])
OPS: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("note"), NOTES, FENCES, JSON),
    st.tuples(st.just("request"), REQUESTS, FENCES, JSON, st.integers(1, 6)),
    st.tuples(st.just("guard"), FENCES, NAMES, st.booleans(), st.booleans()),
    st.tuples(st.just("host_call"), FENCES, st.integers(1, 6)),
    st.tuples(st.just("spawn"), FENCES, st.lists(st.text(max_size=3), max_size=2), JSON),
    st.tuples(st.just("process"), OF_PROCESSES, FENCES, st.integers(0, 3)),
    st.tuples(st.just("happens"), st.integers(0, 3), st.sampled_from(["starts", "exits", "fails"])),
    st.tuples(st.just("answer"), st.integers(1, 6), JSON),
    st.tuples(st.just("error"), st.integers(1, 6), st.sampled_from([-32800, -32000, 5])),
    st.tuples(st.just("emit"), FENCES, st.text(max_size=30)),
    st.tuples(st.just("answer_part"), ANSWER_PARTS, FENCES, st.integers(1, 2), JSON),
    st.tuples(st.just("whole_answer"), st.integers(1, 2), st.integers(0, 3)),
    st.tuples(st.just("flood"), st.integers(10, 300)),
    st.tuples(st.just("questions"), st.integers(10, 3_000)),
    st.tuples(st.just("stuffed"), st.integers(1, 6)),
    st.tuples(st.just("bytes"), st.binary(max_size=60)),
    st.tuples(st.just("cut_off"), st.integers(0, 40)),
    st.tuples(st.just("deep"), st.integers(1, 9_000)),
    st.tuples(st.just("long"), st.integers(LINE_MAX - 200, LINE_MAX + 200)),
    st.tuples(st.just("commit"), st.integers(1, 50)),
    st.tuples(
        st.just("reply"),
    ),
    st.tuples(
        st.just("execute"),
    ),
    st.tuples(
        st.just("read"),
    ),
    st.tuples(
        st.just("cancel"),
    ),
)


class Hostile:
    """A host with a run that does what a script says, beside one that behaves."""

    def __init__(self, hosts: Hosting, can: list[str]) -> None:
        self.hosts = hosts
        hosts.spare()
        self.good_tree, self.good = hosts.reserved("good"), OneRun(session="good")
        self.good_frame = hosts.begin(self.good_tree, self.good)
        hosts.spare({**HELLO, "can": can})
        self.tree, self.run = hosts.reserved(), OneRun()
        hosts.begin(self.tree, self.run)
        self.given = self.replied = self.executed = 0
        self.executions: list[Execution] = []
        self.numbers = itertools.count(100)

    def play(self, op: Op) -> None:
        getattr(self, f"op_{op[0]}")(*op[1:])
        self.check()

    def write(self, data: bytes) -> None:
        """Write what fits: whoever is not read waits in his own write, and here goes on with something else."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.tree.host.write_what_fits(data, 0.005)

    def send(self, **frame: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def fence(self, which: str) -> str:
        own = self.run.fence
        return {"own": own, "earlier": "s1:3:", "the other's": self.good.fence, "of a call": f"{own}call_1"}.get(
            which, "\x00"
        )

    def op_note(self, method: str, fence: str, data: Any) -> None:
        self.send(method=method, params={"fence": self.fence(fence), "text": data, "data": data, "requestId": 100})

    def op_request(self, method: str, fence: str, data: Any, number: int) -> None:
        self.send(id=number, method=method, params={"fence": self.fence(fence), "tool": "t", "arguments": data})

    def op_guard(self, fence: str, name: str, begins: bool, ends: bool) -> None:
        params = {"fence": self.fence(fence), "name": name}
        if begins:
            self.send(id=next(self.numbers), method="guard", params=params)
        if ends:
            self.send(method="guard.done", params=params)

    def op_host_call(self, fence: str, number: int) -> None:
        self.send(id=number, method="call", params={"fence": self.fence(fence), "tool": "t", "where": "host"})

    def op_spawn(self, fence: str, argv: list[str], data: Any) -> None:
        self.send(
            id=next(self.numbers), method="spawn", params={"fence": self.fence(fence), "argv": argv, "stdin": data}
        )

    def op_process(self, method: str, fence: str, which: int) -> None:
        asked = self.processes()
        process = asked[which].process_id if which < len(asked) else "proc_0"
        self.send(id=next(self.numbers), method=method, params={"fence": self.fence(fence), "process": process})

    def op_happens(self, which: int, what: str) -> None:
        """What becomes of a process that was asked for."""
        for process in self.processes()[which : which + 1]:
            if what == "starts":
                settle(process._started, 1)
            elif what == "exits" and process._started.done():
                settle(process._exited, Exit(0, "x" * 1_000, 1_000, 0.1))
            else:
                process._fail(OSError("it was lost"))

    def processes(self) -> list[Process]:
        of_calls = [one for execution in self.executions for one in execution.trees.asked]
        return [process for _, _, process in (*self.run.trees.asked, *of_calls)]

    def op_answer(self, number: int, result: Any) -> None:
        self.send(id=number, result=result)

    def op_error(self, number: int, code: int) -> None:
        self.send(id=number, error={"code": code})

    def op_emit(self, fence: str, text: str) -> None:
        self.send(method="emit", params={"fence": self.fence(fence), "text": text})

    def op_answer_part(self, method: str, fence: str, answer: int, data: Any) -> None:
        given = {"answer": answer, "text": "x", "data": {"any": data}, "provider": "p"}
        self.send(method=method, params={"fence": self.fence(fence), **given})

    def op_whole_answer(self, answer: int, calls: int) -> None:
        own = {"fence": self.run.fence, "answer": answer}
        self.send(method="answer.begin", params=own)
        for _ in range(calls):
            self.send(id=next(self.numbers), method="call", params={**own, "tool": "t"})
        self.send(method="answer.end", params=own)

    def op_flood(self, count: int) -> None:
        frame = {"jsonrpc": "2.0", "method": "emit", "params": {"fence": self.run.fence, "text": "x"}}
        self.write((json.dumps(frame).encode() + b"\n") * count)

    def op_questions(self, count: int) -> None:
        lines = (
            json.dumps({"jsonrpc": "2.0", "id": next(self.numbers), "method": "telepathy" + "?" * 60})
            for _ in range(count)
        )
        self.write("\n".join(lines).encode() + b"\n")

    def op_bytes(self, data: bytes) -> None:
        self.write(data + b"\n")

    def op_cut_off(self, length: int) -> None:
        self.write(b'{"jsonrpc":"2.0","method":"emit","params":{}}'[:length])

    def op_deep(self, depth: int) -> None:
        self.write(b'{"jsonrpc":"2.0","method":"x","params":' + b"[" * depth + b"]" * depth + b"}\n")

    def op_long(self, length: int) -> None:
        frame = json.dumps({"jsonrpc": "2.0", "method": "nothing known", "params": ""})
        self.write(frame[:-2].encode() + b"x" * (length - len(frame)) + b'"}\n')

    def op_commit(self, count: int) -> None:
        costly = [one for one in self.run.told if not isinstance(one, LateRefused) and hasattr(one, "size")]
        for one in costly[self.given : self.given + count]:
            self.run.credit.give(one.size)
        self.given = min(len(costly), self.given + count)

    def op_reply(self) -> None:
        for call in self.run.calls()[self.replied :]:
            if call.reply is not None:
                settle(call.reply, FINISHED)
        self.replied = len(self.run.calls())

    def op_execute(self) -> None:
        calls = [call for call in self.run.calls() if call.made is not None]
        self.executions += [Execution(call, self.run.token) for call in calls[self.executed :]]
        self.executed = len(calls)

    def op_stuffed(self, count: int) -> None:
        for number in itertools.islice(self.numbers, count):
            self.send(id=number, method="spawn", params={"fence": self.run.fence, "argv": ["x"], "stdin": "A" * 10_000})

    def op_read(self) -> None:
        self.tree.host.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self.tree.host.sock.recv(1_048_576):
                pass

    def op_cancel(self) -> None:
        self.run.cancel()

    def check(self) -> None:
        """Nothing has grown beyond its bound."""

        def look() -> None:
            host = self.hosts.pool._hosts.get(self.tree.process_id)
            if host is not None:
                peer = host._peer
                assert len(peer.channel._unread) <= LINE_MAX + PIECE_BYTES
                # What was read in one piece is answered.
                assert peer.channel.unsent_bytes <= 2 * UNSENT_MAX_BYTES + PIECE_BYTES * 4
                assert len(peer._open) <= REQUESTS_MAX
                assert peer._open_bytes == sum(peer._open.values()) <= REQUESTS_BYTES
                assert len(peer._asked) <= 1 + len(self.executions)

        self.hosts.loop.call(look)
        assert self.good.core.token.effects == (), "effects of a run that this host does not have"
        for effect in self.run.core.token.effects:
            assert effect.done <= effect.begun

    def committed_to_the_end(self) -> bool:
        self.op_commit(1_000)
        return self.run.over

    def finish(self) -> None:
        """Let it exit: its run has ended once, and the other goes on and ends well."""
        self.good_tree.host.note("emit", fence=self.good.fence, text="unharmed")
        until(lambda: self.good.said() == ["unharmed"], "the other host to be heard")
        self.tree.die(1)
        # What it had written waits for credit.
        until(self.committed_to_the_end, "the end of the run")
        done = self.run.end()
        if done.how is How.RAISED and done.error is not None:
            assert done.error
            assert len(done.error) < 1_000
        self.hosts.until_state(self.tree, None)
        self.op_execute()
        for execution in self.executions:
            execution.end()
        assert all(one.address == self.run.core.address for one in self.run.of(Said))
        self.good_tree.host.answer(self.good_frame, value="well")
        assert self.good.end().result == "well"
        assert not self.good.refused()
        assert len(self.good.told) == 1
        self.good_tree.die(0)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosting]:
    patch = pytest.MonkeyPatch()
    patch.setattr(channel_module, "LINE_MAX_BYTES", LINE_MAX)
    patch.setattr(peer_module, "REQUESTS_MAX_BYTES", REQUESTS_BYTES)
    with hosting(Agent(name=NAME, command=("the", "host"), spares=1)) as made:
        yield made
    patch.undo()


@pytest.fixture(scope="module")
def defects() -> Iterator[list[str]]:
    """What the thread of the channels has contained."""
    found: list[str] = []
    sink = logger.add(
        lambda text: found.append(str(text)), level="ERROR", filter=lambda it: it["exception"] is not None
    )
    yield found
    logger.remove(sink)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPS, max_size=25), st.sampled_from([[], ["credit"]]))
def test_a_host_that_says_anything_fails_clearly_and_alone(
    hosts: Hosting, defects: list[str], script: list[Op], can: list[str]
) -> None:
    hostile = Hostile(hosts, can)
    for op in script:
        hostile.play(op)
    hostile.finish()
    assert not defects


def test_a_host_that_never_reads_is_held_up_by_itself_and_ends_with_its_cancel(
    hosts: Hosting, defects: list[str]
) -> None:
    hostile = Hostile(hosts, [])
    for _ in range(30):
        hostile.play(("questions", 3_000))
    hostile.play(("cancel",))
    hostile.finish()
    assert not defects


def test_the_tree_of_a_test_is_the_hostile_one(hosts: Hosting) -> None:
    hostile = Hostile(hosts, [])
    tree: Tree = hostile.tree
    hostile.play(("bytes", b"nonsense"))
    until(lambda: hostile.run.over, "the end")
    assert tree is not hostile.good_tree
    hostile.finish()
