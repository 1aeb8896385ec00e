"""Spawns from a tool: what is no command is refused where it was asked, and nobody waits for one that cannot come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pykka import ActorRegistry
from pykka._envelope import Envelope

from actors import CancelToken, Invalid, RunCancelled, Spawn, tool
from actors.gate.pending import Pending
from actors.hierarchy.tool import ToolActor
from actors.messages import SpawnRequested
from actors.model import Address, How
from actors.plugin.spawning import STDIN_MAX_BYTES, Process, _owner, checked
from actors.ports import SpawnSpec
from tests.kit import Kit, check_rest, say
from tests.process_kit import bench, until
from tests.test_text import Unshowable

WRONG: list[dict[str, Any]] = [
    {"argv": []},
    {"argv": "ls -l"},
    {"argv": b"ls"},
    {"argv": 5},
    {"argv": ["ls", 5]},
    {"argv": ["l\0s"]},
    {"cwd": 5},
    {"cwd": b"/"},
    {"cwd": "/a\0b"},
    {"name": 5},
    {"name": "a\0b"},
    {"env": 5},
    {"env": ["A=b"]},
    {"env": {"A": 5}},
    {"env": {5: "a"}},
    {"env": {"A": "x\0y"}},
    {"env": {"A\0": "x"}},
    {"env": {"A=B": "x"}},
    {"env": {"": "x"}},
    {"owner": "nobody"},
    {"owner": None},
    {"owner": 5},
    {"pty": 1},
    {"pty": "yes"},
    {"pty_size": (80,)},
    {"pty_size": (80, 0)},
    {"pty_size": (80, True)},
    {"pty_size": "ab"},
    {"pty_size": (80, 10_001)},
    {"pty_size": 80},
    {"stdin": "text"},
    {"stdin": 5},
    {"stdin": b"x" * (STDIN_MAX_BYTES + 1)},
    {"stdin": b"typed", "pty": True},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong!r:.40}")
def test_what_is_no_command_is_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"argv": ["ls"], "cwd": None, "env": None, "name": None, **wrong}
    spawn = Spawn(lambda *_: None, Pending(CancelToken(lambda callback: callback())), lambda *_: None)
    with pytest.raises(Invalid):
        spawn(**given)


def test_an_owner_that_cannot_even_be_shown_is_refused_too() -> None:
    with pytest.raises(Invalid):
        _owner(Unshowable())


def test_the_texts_of_a_command_are_exact() -> None:
    class Text(str):
        __slots__ = ()

    spec = checked([Text("ls")], Text("/"), {Text("A"): Text("b")}, Text("n"))
    assert spec == SpawnSpec(("ls",), "n", "/", {"A": "b"})
    texts = [*spec.argv, spec.name, spec.cwd, *spec.env, *spec.env.values()]
    assert {type(text) for text in texts} == {str}
    assert checked(["ls"], None, None, None).name == "ls"


def test_what_a_command_reads_and_its_terminal_are_of_built_in_types() -> None:
    class Number(int):
        __slots__ = ()

    spec = checked(["ls"], None, None, None, False, [Number(100), Number(40)], bytearray(b"x"))  # type: ignore[arg-type]
    assert (spec.pty, spec.pty_size, spec.stdin) == (False, (100, 40), b"x")
    assert [type(spec.stdin), *map(type, spec.pty_size)] == [bytes, int, int]
    assert checked(["ls"], None, None, None, True).pty


def test_after_a_spawn_that_was_refused_the_next_one_runs(kit: Kit) -> None:
    @tool(isolation="thread")
    def many(spawn: Spawn) -> list[str]:
        told = []
        for wrong in WRONG:
            try:
                spawn(**{"argv": ["true"], **wrong})
            except Invalid as error:
                told.append(error.code)
        return [*told, str(spawn(["true"]).wait().status)]

    session = kit.session(lambda turn: turn.call("many").content, tools=[many])
    run = say(session)
    receipt = session.receipt(run, timeout=60)
    assert session.run(run).result.count("invalid") == len(WRONG)
    assert receipt.complete
    check_rest(session)


def test_a_command_that_cannot_be_sent_ends_as_not_started_and_leaves_no_descriptor(tmp_path: Path) -> None:
    with bench(tmp_path) as opened:
        opened.sh("true", "p0")
        opened.owner.ended("p0")
        before = opened.descriptors_at_rest()
        unsendable: Any = {"A": object()}
        opened.trees.spawn("p1", SpawnSpec(("true",), "n", None, unsendable), opened.owner)  # type: ignore[arg-type]
        ended = opened.owner.ended("p1")
        assert ended.how is How.NOT_STARTED
        assert ended.proven
        assert "TypeError" in ended.note
        until(lambda: opened.descriptors_at_rest() <= before, "its descriptors are closed")
        opened.sh("echo on", "p2")
        assert opened.owner.exited("p2").status == 0


def test_a_spawn_that_is_asked_for_while_its_call_ends_is_refused(kit: Kit) -> None:
    gate, entered = kit.gate(), kit.gate()

    @tool(isolation="thread")
    def hold() -> None:
        entered.set()
        gate.wait()

    session = kit.session(lambda turn: turn.call("hold").content, tools=[hold])
    run = say(session)
    assert entered.wait(20)
    (ref,) = ActorRegistry.get_by_class(ToolActor)
    process = Process(Pending(CancelToken(lambda callback: callback())), lambda grace_s: None)
    request = SpawnRequested(Address(session.session, 1, run, "c"), "p", SpawnSpec(("true",), "n", None, {}), process)
    actor = ref._actor_weakref()
    assert actor is not None
    actor.hand_back([Envelope(request)])
    with pytest.raises(RunCancelled):
        process._started.result(0)
    with pytest.raises(RunCancelled):
        process._exited.result(0)
    gate.set()
    session.receipt(run, timeout=20)
