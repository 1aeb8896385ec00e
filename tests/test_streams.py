"""The standard streams of the command: closed, full, unread, or of another encoding; and the end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence

import pytest

from supervisor.console.tty.screen import OutputClosed, Screen
from supervisor.console.tty.streams import when_unread
from tests.console_kit import COMMAND, ROOT, WAIT_S, Desk, desk_at, short_desk


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A store with a run, only to be read."""
    with desk_at(tmp_path_factory.mktemp("told")) as desk:
        assert desk.run("echo 🚀\n", "chat", "--session", "s1").returncode == 0
        yield desk


@pytest.fixture(scope="module")
def served() -> Iterator[Desk]:
    with short_desk() as desk:
        desk.serve()
        yield desk


def shell(desk: Desk, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which "$@" is the command."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *args],
        env=desk.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )


# ── Closed ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("closed", ["2>&-", "2>&- >&-", "2>&- <&-", "2>/dev/full", "2>&1 >/dev/null | true"])
def test_a_standard_error_that_takes_nothing_changes_no_result(served: Desk, closed: str) -> None:
    served.run("", "send", "closed", f"sleep {served.mark}")
    served.wait_alive(1)
    done = shell(served, f'"$@" {closed}; exit "${{PIPESTATUS[0]}}"', "stop", "closed")
    assert done.returncode == 0
    assert not served.alive()
    # What is refused has its code all the same.
    assert shell(served, f'"$@" {closed}; exit "${{PIPESTATUS[0]}}"', "stop").returncode == 2


def test_nothing_that_is_opened_later_takes_the_number_of_a_closed_stream(told: Desk) -> None:
    show = (
        "import os, sys; from supervisor.console.tty.streams import open_streams; open_streams();"
        "file = open('/dev/zero');"
        "sys.exit(0 if file.fileno() > 2 and os.stat(0) == os.stat(1) == os.stat(2) == os.stat('/dev/null') else 1)"
    )
    python = COMMAND[0]
    done = subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", python, "-c", show], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_a_message_from_a_closed_standard_input_is_refused(served: Desk) -> None:
    done = shell(served, '"$@" <&-', "send", "closed")
    assert done.returncode == 2
    assert "standard input cannot be read" in done.stderr


# ── Full, or unread ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("script", "code"), [("echo out; exit 3", 1), ("echo out", 1)])
def test_a_run_whose_output_cannot_be_written_is_waited_for_and_that_is_said_with_1(
    served: Desk, script: str, code: int
) -> None:
    done = shell(served, '"$@" >/dev/full', "send", "full", script, "--wait")
    assert done.returncode == code
    assert done.stderr.count("No space left on device") == 1
    assert [run["status"] for run in served.json("runs", "full")][-1] == "completed"


def test_the_highest_exit_code_decides_also_where_the_output_cannot_be_written(told: Desk) -> None:
    done = shell(told, '"$@" >/dev/full', "stop", "s1", "--mode", "bad", "--json")
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_a_run_that_is_not_followed_to_its_end_is_not_reported_as_completed(served: Desk) -> None:
    # It prints nothing after its first line.
    script = f"echo first; sleep {served.mark}; exit 3"
    done = shell(served, '"$@" | head -1; exit "${PIPESTATUS[0]}"', "send", "unread", script, "--wait")
    assert (done.returncode, done.stdout) == (130, "first\n")
    assert "goes on without a watcher" in done.stderr
    assert served.json("stop", "unread")["outcome"] == "stopped"


@pytest.mark.parametrize("args", [("events", "followed", "--follow"), ("logs", "--follow")])
def test_a_follower_without_a_reader_ends(served: Desk, args: tuple[str, ...]) -> None:
    assert served.run("", "send", "followed", "true", "--wait").returncode == 0
    following = served.start(*args, gather_output=False)
    assert following.stdout.read(1)
    following.stdout.close()
    assert following.ended() == 0


def test_a_gone_reader_is_noticed_also_while_nothing_is_written() -> None:
    ours, theirs = os.pipe()
    gone = threading.Event()
    when_unread(gone.set, theirs)
    os.close(ours)
    assert gone.wait(WAIT_S)
    os.close(theirs)


@pytest.mark.parametrize(("path", "unread"), [("/dev/full", False), ("", True)])
def test_a_screen_says_whether_it_is_unread_or_takes_nothing(path: str, unread: bool) -> None:
    if path:
        fd = os.open(path, os.O_WRONLY)
    else:
        ours, fd = os.pipe()
        os.close(ours)
    with pytest.raises(OutputClosed) as caught:
        Screen(fd, fd).output("x")
    assert caught.value.unread is unread
    os.close(fd)


# ── Of another encoding ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("args", [("thread", "s1"), ("runs", "s1"), ("events", "s1")])
def test_what_an_encoding_lacks_is_shown_by_its_number(told: Desk, args: Sequence[str]) -> None:
    env = {**told.env, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*COMMAND, *args], env=env, cwd=ROOT, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\\U0001f680" in done.stdout.decode("latin-1")


# ── Ended by a signal ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "begun"),
    [
        (("send", "loop", "echo begun; sleep 60", "--wait"), "begun"),
        (("events", "loop", "--follow"), "run.started"),
        (("logs", "--follow"), "ready"),
        (("chat", "--session", "loop"), ""),
    ],
)
def test_ctrl_c_ends_a_command_by_the_signal_itself_so_that_a_loop_of_the_shell_ends(
    served: Desk, args: Sequence[str], begun: str
) -> None:
    assert served.run("", "send", "loop", "true", "--wait").returncode == 0
    running = served.start(*args)
    if begun:
        running.out.wait(begun)
    else:
        running.type("echo begun; sleep 60\n")
        running.out.wait("begun")
    running.signal(signal.SIGINT)
    running.ended()
    assert running.process.returncode == -signal.SIGINT
    served.run("", "stop", "loop")


def test_ctrl_c_is_handled_where_the_parent_process_has_blocked_it(served: Desk) -> None:
    assert served.run("", "send", "blocked", "true", "--wait").returncode == 0
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [COMMAND[0], "-c", block, *COMMAND, "events", "blocked", "--follow"]
    with subprocess.Popen(argv, env=served.env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert following.wait(WAIT_S) == -signal.SIGINT


def test_a_loop_of_the_shell_ends_with_ctrl_c(served: Desk) -> None:
    inside = " ".join(COMMAND)
    terminal = served.bash(f"for i in 1 2 3; do echo ROUND $i; {inside} send loop 'echo begun; sleep 60' --wait; done")
    terminal.screen.wait("begun\r\n")
    terminal.ctrl_c()
    terminal.ended()
    assert terminal.screen.text.count("ROUND") == 1
    served.run("", "stop", "loop")
