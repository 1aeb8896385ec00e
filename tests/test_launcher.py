"""Launchers: a library starts its own child by a path. It is in a tree of the run, and has its streams as they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from actors.errors import Invalid, RunCancelled
from actors.model import How, Mode
from actors.plugin import launcher
from actors.plugin.launcher import CANNOT, LOST, PREFIX
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, stop, until
from tests.pipe_kit import descriptors, no_more_than
from tests.pipe_points import answer, request, server
from tests.test_pipes import WHO, done, run_async, run_plain


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where launchers are made."""
    made = tmp_path / "launchers"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def left(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(PREFIX)]


@pytest.mark.parametrize("who", WHO)
def test_a_library_talks_with_its_child_which_is_in_a_tree_of_the_run(kit: Kit, folder: Path, who: str) -> None:
    async def body(spawn: Any) -> str:
        program, *arguments = server()
        child = await asyncio.create_subprocess_exec(spawn.launcher(program), *arguments, stdin=-1, stdout=-1)
        assert child.stdin is not None
        assert child.stdout is not None
        for number in range(20):
            child.stdin.write(request(number))
            assert json.loads(await child.stdout.readline()) == answer(number)
        child.stdin.close()
        assert await child.stdout.read() == b""
        return str(await child.wait())

    session = run_async(kit, who, body)
    before = descriptors()
    run_id = say(session)
    assert done(session, run_id) == "0"
    receipt = session.receipt(run_id, timeout=WAIT_S)
    (tree,) = [row for row in rows(receipt) if row.kind == "process"]
    assert (tree.name, tree.how) == (sys.executable, How.EXIT)
    assert not [event for event in log(session) if event.kind in ("tool.output", "run.output")]
    check_rest(session)
    no_more_than(before)
    until(lambda: not left(folder), "its files are removed")


def test_the_command_gets_everything_as_the_library_gives_it(kit: Kit, tmp_path: Path) -> None:
    def body(spawn: Any) -> list[Any]:
        path = spawn.launcher("sh")
        assert (os.path.basename(path), spawn.launcher("sh")) == ("sh", path)
        script = 'echo "$MINE $0 $*"; pwd; cat; echo bad >&2; exit 7'
        ran = subprocess.run(
            [path, "-c", script, "a b", "c'd", "$e"],
            input="typed",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"MINE": "é", "PATH": os.environ["PATH"]},
            check=False,
        )
        return [ran.returncode, ran.stdout, ran.stderr]

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) == [7, f"é a b c'd $e\n{tmp_path}\ntyped", "bad\n"]


def test_streams_that_are_closed_are_empty(kit: Kit) -> None:
    def body(spawn: Any) -> int:
        script = f'exec "{spawn.launcher("cat")}" <&- >&-'
        return subprocess.run(["sh", "-c", script], check=False).returncode

    session = run_plain(kit, "agent", body)
    run_id = say(session)
    # A shell may leave orphans, for all that can be seen.
    assert not session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).result == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_it_ends_by_the_signal_that_ends_the_command(kit: Kit, number: signal.Signals) -> None:
    def body(spawn: Any) -> int:
        return subprocess.run([spawn.launcher("sh"), "-c", f"kill -{int(number)} $$"], check=False).returncode

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) == -number


STUBBORN = "trap '' TERM; setsid sleep 600 & echo up; while :; do sleep 1; done"


@pytest.mark.parametrize(
    ("ended", "script", "how"),
    [
        (subprocess.Popen.terminate, "echo up; exec sleep 600", How.SIGTERM),
        (subprocess.Popen.terminate, STUBBORN, How.SIGKILL),
        (subprocess.Popen.kill, STUBBORN, How.SIGKILL),
    ],
    ids=["asked", "asked and stubborn", "killed"],
)
def test_if_the_library_ends_its_child_the_tree_ends(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, ended: Any, script: str, how: How
) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 0.3 if script == STUBBORN else WAIT_S)

    def body(spawn: Any) -> str:
        path = spawn.launcher("sh")
        with subprocess.Popen([path, "-c", script], stdout=subprocess.PIPE, env={**os.environ, kit.mark: "1"}) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            ended(child)
            assert child.stdout.read() == b""
        return "ended"

    session = run_plain(kit, "agent", body)
    run_id = say(session)
    assert done(session, run_id) == "ended"
    trees = [row for row in rows(session.receipt(run_id, timeout=WAIT_S)) if row.kind == "process" and row.name == "sh"]
    assert how in {row.how for row in trees}
    assert not kit.alive()


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("who", WHO)
def test_a_stop_in_the_middle_ends_it_and_proves_it(kit: Kit, folder: Path, who: str, mode: Mode) -> None:
    at = threading.Event()

    async def body(spawn: Any) -> None:
        program, *arguments = server()
        child = await asyncio.create_subprocess_exec(
            spawn.launcher(program), *arguments, stdin=-1, stdout=-1, env={**os.environ, kit.mark: "1"}
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(request(1))
        await child.stdout.readline()
        child.stdin.write(request(2, "hang"))
        at.set()
        await child.stdout.readline()
        # The end of its output may come first.
        await asyncio.Event().wait()

    session = run_async(kit, who, body)
    before = descriptors()
    run_id = say(session)
    assert at.wait(WAIT_S)
    stop(session, mode=mode)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert sys.executable in [row.name for row in rows(receipt) if row.kind == "process"]
    assert not kit.alive()
    check_rest(session)
    no_more_than(before)
    until(lambda: not left(folder), "its files are removed")


def test_a_command_that_cannot_be_started_says_why(kit: Kit) -> None:
    def body(spawn: Any) -> list[Any]:
        ran = subprocess.run([spawn.launcher("no-such-thing")], capture_output=True, text=True, check=False)
        with pytest.raises(Invalid, match="program"):
            spawn.launcher("")
        return [ran.returncode, ran.stderr]

    session = run_plain(kit, "agent", body)
    status, said = done(session, say(session))
    assert status == CANNOT
    assert said.startswith("countermand: no-such-thing cannot be started: cannot execute 'no-such-thing'")


def test_when_the_code_has_ended_nothing_is_launched(kit: Kit) -> None:
    kept = list[list[str]]()
    spawns = list[Any]()

    def body(spawn: Any) -> None:
        spawns.append(spawn)
        kept.append(Path(spawn.launcher("true")).read_text().split("\n")[1].split(" ")[1:-1])

    session = run_plain(kit, "agent", body)
    done(session, say(session))
    ran = subprocess.run(kept[0], capture_output=True, text=True, check=False)
    assert ran.returncode == CANNOT
    assert "its run is over, or cannot be reached" in ran.stderr
    with pytest.raises(RunCancelled):
        spawns[0].launcher("true")


def test_another_user_is_not_listened_to(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(spawn: Any) -> int:
        path = spawn.launcher("true")
        # What it is held against: neither root nor this user.
        monkeypatch.setattr(launcher, "_users", lambda: (os.getuid() + 1,))
        return subprocess.run([path], check=False).returncode

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) in (LOST, CANNOT)


def test_so_many_commands_are_served_at_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "CONNECTIONS_MAX", 1)

    def body(spawn: Any) -> list[int]:
        path = spawn.launcher("cat")
        with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
            assert first.stdin is not None
            assert first.stdout is not None
            first.stdin.write(b"up\n")
            first.stdin.flush()
            assert first.stdout.readline() == b"up\n"
            second = subprocess.run([path], stdin=subprocess.DEVNULL, check=False).returncode
            first.stdin.close()
            return [second, first.wait()]

    session = run_plain(kit, "agent", body)
    second, first = done(session, say(session))
    assert second in (LOST, CANNOT)
    assert first == 0


def test_what_a_killed_process_has_left_is_removed_by_the_next_launcher(kit: Kit, folder: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, 'actors/plugin'); import launcher;"
        "launcher.Launcher(print).path('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, check=False)
    (abandoned,) = left(folder)
    alive = launcher.Launcher(lambda *_: pytest.fail("nothing is launched"))
    assert abandoned not in left(folder)
    held = left(folder)

    def body(spawn: Any) -> str:
        return str(spawn.launcher("true"))

    session = run_plain(kit, "agent", body)
    done(session, say(session))
    until(lambda: left(folder) == held, "only that of the living is there")
    alive.close()
    assert not left(folder)
