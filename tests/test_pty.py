"""Commands on a terminal: they find one, it is theirs, its output comes whole, and they end as others do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from actors import AsyncSpawn, How, Spawn, tool
from supervisor.containment.guard import procfs
from tests.kit import Kit, check_rest, log, say
from tests.process_kit import Bench, bench, held_by, until

PYTHON = sys.executable


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as opened:
        yield opened


def test_each_of_its_streams_is_the_terminal_which_is_its_own(b: Bench) -> None:
    script = (
        "import os, sys\n"
        "print([os.isatty(fd) for fd in (0, 1, 2)], os.ttyname(0) == os.ttyname(1) == os.ttyname(2))\n"
        "print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp(), open('/dev/tty').isatty())\n"
        "print([fd for fd in range(3, 1000) if os.path.exists(f'/proc/self/fd/{fd}')][1:])\n"
    )
    b.run((PYTHON, "-S", "-c", script), pty=True)
    b.owner.ended()
    assert b.owner.text(stream="stdout").splitlines() == ["[True, True, True] True", "True True True", "[]"]


def test_programs_that_need_a_terminal_find_one(b: Bench) -> None:
    b.run(("tty",), pty=True)
    assert b.owner.exited().status == 0
    assert b.owner.text().startswith("/dev/pts/")
    b.run(("tty",), "without")
    assert b.owner.exited("without").status == 1


@pytest.mark.parametrize(("size", "shown"), [((80, 24), "24 80\n"), ((132, 43), "43 132\n")])
def test_the_terminal_has_the_size_that_was_asked_for(b: Bench, size: tuple[int, int], shown: str) -> None:
    b.run(("stty", "size"), pty=True, pty_size=size)
    assert b.owner.exited().tail == shown


def test_a_terminal_inside_of_the_terminal_works(b: Bench) -> None:
    if shutil.which("script") is None:
        pytest.skip("there is no script(1) here")
    b.run(("script", "-qec", "tty; stty size", "/dev/null"), pty=True)
    assert b.owner.exited().status == 0
    lines = b.owner.text().split()
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:] == ["24", "80"]


def test_a_terminal_has_a_name_even_where_the_daemon_has_none(tmp_path: Path) -> None:
    for environment, expected in (({}, "xterm-256color"), ({"TERM": "vt100"}, "vt100")):
        path = {"PATH": os.environ["PATH"]}
        with bench(tmp_path / expected, environment={**path, **environment}) as b:
            b.sh('echo "$TERM"', pty=True)
            assert b.owner.exited().tail == f"{expected}\n"


def test_lines_come_as_they_were_written_and_all_of_them(b: Bench) -> None:
    for number in range(20):
        b.run((PYTHON, "-S", "-c", "for n in range(20000): print('é', n)"), f"p{number}", pty=True)
    expected = "".join(f"é {number}\n" for number in range(20_000))
    for number in range(20):
        exited = b.owner.exited(f"p{number}")
        assert exited.total_bytes == len(expected.encode())
        assert b.owner.text(f"p{number}") == expected
        assert not exited.held


def test_nothing_is_typed_and_a_reader_of_the_terminal_waits_until_it_is_stopped(b: Bench) -> None:
    b.sh("echo up; cat", pty=True)
    b.owner.wait_text("up")
    until(lambda: len(b.alive()) == 2, "cat runs")
    b.trees.kill("p", 10.0)
    ended = b.owner.ended()
    assert (ended.proven, ended.how) == (True, How.SIGTERM)
    assert b.owner.text() == "up\n"
    b.assert_nobody_left()


def test_what_heeds_a_sigterm_has_half_of_the_grace_for_it(b: Bench) -> None:
    b.sh("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done", pty=True)
    b.owner.wait_text("up")
    b.trees.kill("p", 10_000.0)
    ended = b.owner.ended()
    assert ended.status == 7
    assert b.owner.text().endswith("bye\n")
    assert {one.signal for one in ended.signals} == {"SIGTERM", "SIGCONT"}


def test_an_interactive_shell_which_does_not_heed_a_sigterm_is_hung_up_within_the_grace(b: Bench) -> None:
    b.run(("/bin/sh", "-c", "trap '' TERM; trap 'echo hung up; exit 3' HUP; echo up; while :; do sleep 0.05; done"))
    b.owner.wait_text("up")
    b.run(("/bin/bash", "--norc", "-i"), "bash", pty=True)
    b.owner.wait_text("$", "bash") if os.getuid() else b.owner.wait_text("#", "bash")
    b.trees.kill("bash", 4.0)
    ended = b.owner.ended("bash")
    assert (ended.how, ended.proven) == (How.EXIT, True)
    assert [one.signal for one in ended.signals] == ["SIGTERM", "SIGCONT", "SIGHUP"]
    # Without a terminal nobody is hung up.
    b.trees.kill("p", 0.3)
    assert [one.signal for one in b.owner.ended("p").signals] == ["SIGTERM", "SIGCONT", "SIGKILL"]


def test_l3_what_left_its_terminal_and_ignores_all_is_killed(b: Bench) -> None:
    deaf = "trap '' TERM HUP; echo deaf >&2; while :; do sleep 0.05; done"
    b.sh(f'setsid sh -c "{deaf}" & trap "" TERM HUP; {deaf}', pty=True)
    until(lambda: b.owner.text().count("deaf") == 2, "both are deaf")
    b.trees.kill("p", 0.2)
    assert b.owner.ended().proven
    b.assert_nobody_left()


def test_l3_when_the_command_exits_its_terminal_hangs_up_and_what_ignores_that_stays_in_the_tree(
    b: Bench, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    wait = f"while ! test -e {deaf}; do sleep 0.01; done"
    b.sh(f"(trap '' HUP; : > {deaf}; sleep 1000) & sleep 1001 & {wait}; echo hi; exit 3", pty=True)
    exited = b.owner.exited()
    assert (exited.status, exited.tail, exited.held) == (3, "hi\n", True)
    until(lambda: len(b.alive()) <= 2, "one in the background, and the shell around it")
    assert b.alive()
    b.trees.kill("p", 5.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


def test_a_command_that_cannot_be_executed_leaves_no_terminal(b: Bench) -> None:
    b.sh("true", "first", pty=True)
    b.owner.ended("first")
    before = b.descriptors_at_rest()
    for number in range(10):
        b.run(("/nonexistent",), f"p{number}", pty=True)
        ended = b.owner.ended(f"p{number}")
        assert ended.how is How.NOT_STARTED
        assert "No such file" in ended.note
    until(lambda: b.descriptors_at_rest() <= before, "its descriptors are closed")


def test_the_warden_and_the_zygote_get_no_terminal(b: Bench) -> None:
    b.sh("echo up; exec sleep 1000", pty=True)
    pid = b.owner.started().pid
    b.owner.wait_text("up")
    for other in (b.warden_of(pid), b.zygote_pid()):
        fields = Path(f"/proc/{other}/stat").read_text().rsplit(")", 1)[1].split()
        assert fields[4] == "0", "the number of its controlling terminal"
        targets = held_by(other)
        assert targets
        assert not [target for target in targets if "pts" in target or "ptmx" in target]
    seen = procfs.stat(pid)
    assert seen is not None
    assert seen.sid == pid


# ── Through tools ─────────────────────────────────────────────────────────────────────────────────


@tool(isolation="thread")
def plain(spawn: Spawn) -> str:
    return spawn(["stty", "size"], pty=True, pty_size=(100, 40)).wait().output


@tool(isolation="task")
async def awaited(spawn: AsyncSpawn) -> str:
    return (await (await spawn(["stty", "size"], pty=True)).wait()).output


@pytest.mark.parametrize(("one", "shown"), [("plain", "40 100\n"), ("awaited", "24 80\n")])
def test_both_kinds_of_tool_can_ask_for_a_terminal(kit: Kit, one: str, shown: str) -> None:
    session = kit.session(lambda turn: turn.call(one).content, tools=[plain, awaited])
    run = say(session)
    session.receipt(run, timeout=60)
    assert session.run(run).result == shown
    check_rest(session)


def test_the_shell_tool_can_ask_for_a_terminal(kit: Kit) -> None:
    def agent(turn: object) -> list[str]:
        call = turn.call  # type: ignore[attr-defined]
        return [call("shell", script="test -t 0 && echo yes || echo no", pty=pty).content for pty in (True, False)]

    session = kit.session(agent)
    run = say(session)
    session.receipt(run, timeout=60)
    assert session.run(run).result == ["yes\n", "no\n"]
    assert [event.data["stream"] for event in log(session) if event.kind == "tool.output"] == ["stdout", "stdout"]


def test_what_a_tool_gives_a_command_to_read_is_all_that_it_reads(kit: Kit) -> None:
    given = b"first\n\0\xff" + b"x" * 300_000

    @tool(isolation="thread")
    def feeds(spawn: Spawn) -> list[object]:
        counted = spawn(["wc", "-c"], stdin=given).wait().output.strip()
        digest = spawn(["sh", "-c", "read line; echo $line; sha256sum"], stdin=given).wait().output.split()
        return [counted, *digest[:2], spawn(["cat"]).wait().output, spawn(["cat"], stdin=b"").wait().output]

    session = kit.session(lambda turn: turn.call("feeds").content, tools=[feeds])
    run = say(session)
    session.receipt(run, timeout=60)
    expected = [str(len(given)), "first", sha256(given[6:]).hexdigest(), "", ""]
    assert json.loads(str(session.run(run).result)) == expected


def test_input_cannot_be_written_and_is_in_no_other_process(b: Bench) -> None:
    b.sh("echo x >&0 || echo refused; cat; echo up; exec sleep 1000", stdin=b"given\n")
    pid = b.owner.started().pid
    b.owner.wait_text("up")
    assert b.owner.text(stream="stdout") == "refused\ngiven\nup\n"
    targets = held_by(b.warden_of(pid))
    assert targets
    assert not [target for target in targets if "countermand-input" in target]
