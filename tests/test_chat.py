"""`countermand chat`: lines in, runs out, by pipe and on a terminal; what a stop does, and the exit codes.

The file has over 600 lines, and is whole: one command, from a pipe and on a terminal.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from actors.errors import Invalid
from actors.model import Policy, Waiting
from actors.questions import Asking
from actors.requests import NewMessage, Stop
from actors.run_status import RunStatus
from supervisor import Config, Supervisor
from supervisor.console.chat.questions import Questions
from supervisor.console.exits import ExitCode, of_run
from supervisor.console.tty.lines import LINE_MAX_BYTES, EndOfInput, Line, LineReader
from supervisor.console.tty.pasting import ASK_FOR_MARKS, BEGIN, END, NO_MORE_MARKS, Paste
from tests.console_kit import WAIT_S, Desk, desk_at
from tests.process_kit import until
from tests.store_kit import small_disk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path / "state") as opened:
        yield opened


# ── From a pipe ───────────────────────────────────────────────────────────────────────────────────


def test_lines_from_a_pipe_run_in_order_and_only_output_is_on_standard_output(desk: Desk) -> None:
    done = desk.run("echo one\n\n   \necho two\nprintf three", "chat", "--session", "s1")
    assert (done.returncode, done.stderr) == (0, "")
    said = [line for line in done.stdout.splitlines() if not line.startswith("[exit code 0")]
    assert said == ["one", "two", "three"]
    assert [run["status"] for run in desk.json("runs", "s1")] == ["completed"] * 3


def test_each_line_is_waited_for_until_its_run_has_fully_ended(desk: Desk) -> None:
    # The first leaves a process in the background, which ends with its run: before the second begins.
    done = desk.run(f"sleep {desk.mark} & echo one\npgrep -fc '^sleep {desk.mark}'; true\n", "chat")
    assert done.returncode == 0
    assert "\n0\n" in done.stdout
    runs = desk.json("runs")
    first = desk.json("why", runs[0]["run_id"])["receipt"]
    assert first["ended_at"] <= runs[1]["created_at"]


def test_a_script_that_is_not_utf8_is_not_run_and_its_bytes_are_kept(desk: Desk) -> None:
    done = desk.run(b"echo a\xffb\necho after\n", "chat", "--session", "s1")
    assert done.returncode == 4
    assert "not run" in done.stdout
    assert "after" in done.stdout
    first = next(one for one in desk.json("thread", "s1") if one["role"] == "user")
    assert first["content"] == "echo a\ufffdb"
    assert desk.raw("thread", "s1", "--attachment", first["attachments"][0]) == b"echo a\xffb"


def test_a_script_that_fails_makes_the_exit_code_1_and_the_next_line_runs(desk: Desk) -> None:
    done = desk.run("exit 7\necho after\n", "chat")
    assert done.returncode == 1
    assert "after" in done.stdout


def test_a_message_over_the_limit_is_refused_with_2_and_the_next_line_runs(desk: Desk) -> None:
    done = desk.run(f"# {'x' * 1_100_000}\necho after\n", "chat")
    assert done.returncode == 2
    assert "too large" in done.stderr
    assert "after" in done.stdout


def test_a_run_that_fails_makes_the_exit_code_4(desk: Desk) -> None:
    chatting = desk.start_with_agent("fail")
    chatting.type("hello\n")
    chatting.stdin.close()
    assert chatting.ended() == 4
    assert "failed: ValueError: the agent has a defect" in chatting.err.text


def test_a_run_that_expires_makes_the_exit_code_4_and_names_the_deadline(desk: Desk) -> None:
    chatting = desk.start_with_agent("wait")
    chatting.type("hello\n")
    chatting.stdin.close()
    assert chatting.ended() == 4
    assert "expired: run.deadline" in chatting.err.text


@pytest.mark.parametrize(
    ("args", "named", "code"),
    [
        (["chat", "--nope"], "--nope", 2),
        (["nope"], "nope", 2),
        (["chat", "--session", ""], "session", 2),
        (["chat", "--session", "x" * 129], "session", 2),
        (["--state-dir", "", "chat"], "--state-dir", 2),
        (["chat", "--agent", "nope"], "nope", 1),
        (["--state-dir", "/dev/null/x", "chat"], "/dev/null/x", 1),
    ],
)
def test_wrong_usage_is_refused_with_2_what_is_not_there_with_1_and_both_are_named(
    desk: Desk, args: list[str], named: str, code: int
) -> None:
    done = desk.run("echo never\n", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_in_use_is_refused_with_1_and_its_pid_is_named(desk: Desk) -> None:
    holder = desk.start("chat")
    holder.type("echo there\n")
    holder.out.wait("there")
    done = desk.run("echo never\n", "chat")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(holder.pid) in done.stderr
    assert "to do:" in done.stderr
    holder.stdin.close()
    assert holder.ended() == 0


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_stops_the_run_prints_the_receipt_and_ends_the_chat(
    desk: Desk, number: signal.Signals, reason: str
) -> None:
    chatting = desk.start("chat", "--session", "s1")
    chatting.type(desk.tree + "\necho never\n")
    chatting.out.wait("started")
    desk.wait_alive(3)
    chatting.signal(number)
    assert chatting.ended() == 128 + number
    assert not desk.alive()
    assert f"user.console: {reason}" in chatting.err.text
    assert "killed by SIGKILL" in chatting.err.text
    assert "everything ended, " in chatting.err.text
    (run,) = desk.json("runs", "s1")
    assert (run["status"], run["provenance"]["source"]) == ("cancelled", "user.console")
    assert run["provenance"]["reason"] == reason


def test_a_signal_with_nothing_running_ends_the_chat(desk: Desk) -> None:
    chatting = desk.start("chat")
    chatting.type("echo there\n")
    chatting.out.wait("[exit code 0")
    chatting.signal(signal.SIGTERM)
    assert chatting.ended() == 143


def test_a_second_sigint_kills_at_once(desk: Desk) -> None:
    chatting = desk.start("chat", "--set", "grace_s=600")
    chatting.type(desk.tree + "\n")
    chatting.out.wait("started")
    desk.wait_alive(3)
    chatting.signal(signal.SIGINT)
    chatting.err.wait("stopping")
    chatting.signal(signal.SIGINT)
    assert chatting.ended() == 130
    assert not desk.alive()
    (run,) = desk.json("runs")
    assert run["provenance"]["mode"] == "graceful"
    assert [later["mode"] for later in run["later"]] == ["immediate"]


def test_a_reader_that_takes_no_output_does_not_prevent_a_stop(desk: Desk) -> None:
    chatting = desk.start("chat", gather_output=False)
    chatting.type(f"head -c 600000 /dev/zero | tr '\\0' x; echo; {desk.tree}\n")
    desk.wait_alive(3)
    chatting.signal(signal.SIGINT)
    assert chatting.ended() == 130
    assert not desk.alive()
    assert "everything ended" in chatting.err.text


def test_a_reader_that_has_gone_ends_the_chat_quietly(desk: Desk) -> None:
    chatting = desk.start("chat", gather_output=False)
    # It prints nothing: who reads is looked at, not only met with a write.
    chatting.type(f"sleep {desk.mark}\n")
    desk.wait_alive(1)
    chatting.stdin.close()
    chatting.stdout.close()
    assert chatting.ended() == 130
    assert chatting.err.text == ""
    assert not desk.alive()
    (run,) = desk.json("runs")
    assert run["provenance"]["reason"] == "the output is not read any more"


def test_l7_after_kill_9_the_next_chat_closes_the_run_and_why_says_recovery(desk: Desk) -> None:
    chatting = desk.start("chat")
    chatting.type(desk.tree + "\n")
    chatting.out.wait("started")
    desk.wait_alive(3)
    os.kill(chatting.pid, signal.SIGKILL)
    chatting.ended()
    again = desk.run("echo again\n", "chat")
    assert again.returncode == 0, again.stderr
    assert "again" in again.stdout
    assert "started" not in again.stdout
    desk.wait_dead()
    first, second = desk.json("runs")
    assert f"1 run cut off when its supervisor ended: countermand why {first['run_id']}" in again.stderr
    assert (first["status"], second["status"]) == ("failed", "completed")
    assert first["provenance"]["source"] == "supervisor.recovery"
    told = desk.run("", "why", first["run_id"])
    assert told.returncode == 0
    assert "supervisor.recovery" in told.stdout


def test_l12_parked_messages_are_announced_and_taken_along_in_their_order(desk: Desk) -> None:
    with Supervisor.start(Config(state_dir=desk.state_dir)) as supervisor:
        session = supervisor.session("s1")
        session.ask(NewMessage(content=f"sleep {desk.mark}"))
        session.ask(NewMessage(content="echo parked", policy=Policy.ENQUEUE))
        stopped = session.ask(Stop(source="user.test", reason="for later", waiting=Waiting.PARK))
        session.receipt(stopped.run_id, timeout=WAIT_S)
    done = desk.run("echo mine\n", "chat", "--session", "s1")
    assert done.returncode == 0
    assert "1 message parked" in done.stderr
    assert "taken along: 1 message" in done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("[")] == ["parked", "mine"]


# ── On a terminal ─────────────────────────────────────────────────────────────────────────────────


def test_on_a_terminal_ctrl_c_stops_shows_the_receipt_and_the_chat_continues(desk: Desk) -> None:
    terminal = desk.terminal("chat", "--session", "s1")
    terminal.screen.wait("> ")
    terminal.line(desk.tree)
    terminal.screen.wait("started\r\n")
    desk.wait_alive(3)
    terminal.ctrl_c()
    terminal.screen.wait("stopping… (2 s grace")
    terminal.screen.wait("user.console: Ctrl-C")
    terminal.screen.wait("killed by SIGKILL")
    terminal.screen.wait("everything ended, ")
    assert not desk.alive()
    terminal.screen.wait("> ")
    terminal.line("echo $((40+2))")
    terminal.screen.wait("42\r\n")
    terminal.screen.wait("> ")
    terminal.ctrl_d()
    assert terminal.ended() == 0
    assert [run["status"] for run in desk.json("runs", "s1")] == ["cancelled", "completed"]


def test_on_a_terminal_a_second_ctrl_c_kills_at_once(desk: Desk) -> None:
    terminal = desk.terminal("chat", "--set", "grace_s=600")
    terminal.screen.wait("> ")
    terminal.line(desk.tree)
    terminal.screen.wait("started\r\n")
    desk.wait_alive(3)
    terminal.ctrl_c()
    terminal.screen.wait("stopping…")
    terminal.ctrl_c()
    terminal.screen.wait("killing…")
    terminal.screen.wait("everything ended, ")
    assert not desk.alive()
    (run,) = desk.json("runs")
    assert [later["mode"] for later in run["later"]] == ["immediate"]


def test_on_a_terminal_a_line_during_a_run_takes_over(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.line(f"echo first; sleep {desk.mark}")
    terminal.screen.wait("first\r\n")
    desk.wait_alive(1)
    terminal.line("echo $((40+2))")
    terminal.screen.wait("takes over")
    terminal.screen.wait("42\r\n")
    assert not desk.alive()
    terminal.screen.wait("> ")
    terminal.ctrl_d()
    assert terminal.ended() == 0
    first, second = desk.json("runs")
    assert (first["status"], first["provenance"]["source"]) == ("cancelled", "session.new_message")
    assert second["status"] == "completed"


def test_on_a_terminal_a_line_on_a_full_disk_is_named_with_what_to_do_and_the_next_one_with_room_runs(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 8 * 1024 * 1024) as disk, desk_at(disk.path / "state") as desk:
        terminal = desk.terminal("chat")
        terminal.screen.wait("> ")

        terminal.line("echo $((40+2))")
        terminal.screen.wait("42\r\n")
        disk.fill()

        def refuses() -> bool:
            """The store may still have room in blocks of its own: type one line more."""
            if "not sent: # xxx" not in terminal.screen.text and terminal.is_read():
                terminal.line(f"# {'x' * 3_000}")
            return "not sent: # xxx" in terminal.screen.text

        until(refuses, "the disk to be full")
        terminal.screen.wait("not sent: # xxx", "the store does not take writes: ", "then enter the line again")
        disk.free()

        def has_answered() -> bool:
            """Its output begins a line, or stands behind the prompt."""
            return re.search(r"^(> )?43$", terminal.screen.text.replace("\x1b[?2004h", ""), re.MULTILINE) is not None

        def takes() -> bool:
            """Type a line; True when its run has said what it was to say, False if it is refused."""
            before = terminal.screen.text.count("not sent: echo")
            terminal.line("echo $((40+3))")
            until(lambda: has_answered() or terminal.screen.text.count("not sent: echo") > before, "an answer")
            return has_answered()

        until(takes, "the disk to have room")
        assert "send the same object" not in terminal.screen.text
        assert terminal.screen.text.count("the store failed and is reopened") <= 1
        terminal.ctrl_d()
        assert terminal.ended() == 0


def test_on_a_terminal_ctrl_c_with_nothing_running_says_how_to_leave(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.ctrl_c()
    terminal.screen.wait("nothing is running; Ctrl-D leaves")
    terminal.screen.wait("> ")
    terminal.ctrl_d()
    assert terminal.ended() == 0
    # The session has not even come into being.
    assert "there is no session 'main'" in desk.run("", "runs").stderr


def test_on_a_terminal_ctrl_d_lets_what_runs_end_and_leaves(desk: Desk, tmp_path: Path) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.line(f"cd {tmp_path}; echo first; while [ ! -e go ]; do sleep 0.05; done; echo $((40+2))")
    terminal.screen.wait("first\r\n")
    terminal.ctrl_d()
    terminal.screen.wait("leaving:")
    (tmp_path / "go").touch()
    assert terminal.ended() == 0
    assert "42\n" in terminal.screen.text
    assert [run["status"] for run in desk.json("runs")] == ["completed"]


def test_on_a_terminal_ctrl_c_after_ctrl_d_stops_what_runs_and_leaves_with_130(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.line(f"echo first; sleep {desk.mark}")
    terminal.screen.wait("first\r\n")
    desk.wait_alive(1)
    terminal.ctrl_d()
    terminal.screen.wait("leaving:")
    terminal.ctrl_c()
    # As everywhere: who stopped it, and what became of each part.
    terminal.screen.wait("was ended by user.console: Ctrl-C")
    terminal.screen.wait("everything ended")
    assert terminal.ended() == 130
    assert not desk.alive()
    assert [run["status"] for run in desk.json("runs")] == ["cancelled"]


HOSTILE = r"\033[1A\033[2K\033]0;title\007\033]52;c;aGk=\033\\\033P1\033\\\033c\302\2332J\033[8mconcealed\n"


def test_on_a_terminal_what_runs_shows_text_and_colours_and_steers_nothing(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.line(f"printf '\\033[31mred\\033[0m'; printf '{HOSTILE}'")
    terminal.screen.wait("concealed\r\n\x1b[0m")
    terminal.screen.wait("> ")
    shown = terminal.screen.text.partition("concealed\\n'\n")[2]
    assert "\x1b[31mred\x1b[0m" in shown
    # The console's own: it wipes its prompt, and says things in dim.
    left = set(re.findall(r"\x1b(?:\[[^a-zA-Z]*[a-zA-Z])?", shown))
    assert left <= {ASK_FOR_MARKS, "\x1b[31m", "\x1b[8m", "\x1b[0m", "\x1b[2m", "\x1b[K"}
    assert not re.search("[\x07\x80-\x9f]", shown)


def test_into_a_pipe_what_runs_comes_as_it_is(desk: Desk) -> None:
    done = desk.run(f"printf '{HOSTILE}'\n", "chat")
    assert done.returncode == 0
    assert "\x1b[1A\x1b[2K\x1b]0;title\x07" in done.stdout
    assert "\\x1b" not in done.stdout


def test_l10_ctrl_c_and_a_signal_together_have_one_effect(desk: Desk) -> None:
    terminal = desk.terminal("chat", "--set", "grace_s=600")
    terminal.screen.wait("> ")
    terminal.line(desk.tree)
    terminal.screen.wait("started\r\n")
    desk.wait_alive(3)
    terminal.ctrl_c()
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended() in (130, 143)
    assert not desk.alive()
    (run,) = desk.json("runs")
    assert run["status"] == "cancelled"
    causes = [run["provenance"], *run["later"]]
    assert sorted(cause["reason"].split(",")[0] for cause in causes) == ["Ctrl-C", "SIGTERM"]
    story = desk.json("why", run["run_id"])
    assert story["receipt"]["complete"]
    assert terminal.screen.text.count(story["receipt"]["receipt_id"]) == 1


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────


def read_all(data: bytes) -> list[Line | EndOfInput]:
    """Every item that a reader gives of an input with these bytes."""
    items: SimpleQueue[Line | EndOfInput] = SimpleQueue()
    read_fd, write_fd = os.pipe()

    def write() -> None:
        with open(write_fd, "wb") as end:
            end.write(data)

    writer = threading.Thread(target=write)
    reader = LineReader(items.put, read_fd)
    writer.start()
    got: list[Line | EndOfInput] = []
    try:
        while not (got and isinstance(got[-1], EndOfInput)):
            reader.ask()
            got.append(items.get(timeout=WAIT_S))
    finally:
        reader.close()
        # A writer that is left with half of its data gets EPIPE.
        os.close(read_fd)
        writer.join()
    return got


def test_l14_a_line_without_end_is_counted_and_not_kept() -> None:
    size = LINE_MAX_BYTES * 2
    long, after, end = read_all(b"x" * size + b"\nafter")
    assert isinstance(long, Line)
    assert (long.cut, long.total_bytes) == (True, size)
    assert len(long.text) < size
    assert after == Line("after", 5)
    assert end == EndOfInput()


def test_a_reader_of_lines_reads_on_only_when_asked() -> None:
    got: list[Line | EndOfInput] = []
    read_fd, write_fd = os.pipe()
    reader = LineReader(got.append, read_fd)
    try:
        reader.ask()
        os.write(write_fd, b"one\r\ntwo\n")
        until(lambda: len(got) == 1, "one line")
        reader.ask()
        until(lambda: len(got) == 2, "the second line")
        assert got == [Line("one", 4), Line("two", 3)]
    finally:
        # It waits for input now, and ends all the same.
        reader.ask()
        reader.close()
        os.close(read_fd)
        os.close(write_fd)


def test_a_reader_of_lines_can_be_closed_with_unread_lines_left() -> None:
    got: list[Line | EndOfInput] = []
    read_fd, write_fd = os.pipe()
    reader = LineReader(got.append, read_fd)
    try:
        os.write(write_fd, b"one\ntwo\n")
        reader.ask()
        until(lambda: len(got) == 1, "one line")
    finally:
        reader.close()
        os.close(read_fd)
        os.close(write_fd)
    assert got == [Line("one", 3)]


@pytest.mark.parametrize(
    ("status", "result", "code"),
    [
        (RunStatus.COMPLETED, {"exit_code": 0}, ExitCode.OK),
        (RunStatus.COMPLETED, "text", ExitCode.OK),
        (RunStatus.COMPLETED, {"exit_code": 2}, ExitCode.FAILED),
        (RunStatus.COMPLETED, {"exit_code": -9, "outcome": "killed"}, ExitCode.RUN),
        (RunStatus.COMPLETED, {"exit_code": None, "outcome": "timed_out"}, ExitCode.RUN),
        (RunStatus.COMPLETED, {"answer": 42}, ExitCode.OK),
        (RunStatus.FAILED, None, ExitCode.RUN),
        (RunStatus.EXPIRED, None, ExitCode.RUN),
        (RunStatus.CANCELLED, None, ExitCode.STOPPED),
    ],
)
def test_a_run_earns_the_exit_code_of_its_status(status: RunStatus, result: object, code: ExitCode) -> None:
    assert of_run(status, result) is code


# ── Pasting, and what looks like a command ────────────────────────────────────────────────────────


def test_on_a_terminal_what_is_pasted_is_one_message(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    # The terminal is asked to mark what is pasted, and asked for nothing any more at the end.
    terminal.screen.wait(ASK_FOR_MARKS)
    terminal.screen.wait("> ")
    terminal.type(f"{BEGIN}echo $((40+1))\n\nsleep 0.1\necho $((40+2))\n{END}")
    terminal.type("\n")
    terminal.screen.wait("41\r\n42\r\n")
    terminal.screen.wait("> ")
    terminal.ctrl_d()
    assert terminal.ended() == 0
    assert terminal.screen.text.endswith(NO_MORE_MARKS)
    (run,) = desk.json("runs")
    assert run["status"] == "completed"
    assert desk.json("thread")[0]["content"] == "echo $((40+1))\n\nsleep 0.1\necho $((40+2))\n"


def test_on_a_terminal_ctrl_c_drops_a_paste_that_has_no_end(desk: Desk) -> None:
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.type(f"{BEGIN}echo never\n")
    terminal.screen.wait("echo never\r\n")
    # Read by now: the terminal throws away what has not been.
    until(terminal.is_read, "the line is read", WAIT_S)
    terminal.ctrl_c()
    terminal.screen.wait("nothing is running")
    terminal.screen.wait("> ")
    terminal.line("echo $((40+2))")
    terminal.screen.wait("42\r\n")
    assert [one["content"] for one in desk.json("thread") if one["role"] == "user"] == ["echo $((40+2))"]


def test_on_a_terminal_a_line_that_begins_with_a_slash_is_not_sent_and_starts_nothing_that_waits(desk: Desk) -> None:
    with Supervisor.start(Config(state_dir=desk.state_dir)) as supervisor:
        session = supervisor.session("main")
        session.ask(NewMessage(content=f"sleep {desk.mark}"))
        session.ask(NewMessage(content="echo parked", policy=Policy.ENQUEUE))
        stopped = session.ask(Stop(source="user.test", reason="for later", waiting=Waiting.PARK))
        session.receipt(stopped.run_id, timeout=WAIT_S)
    terminal = desk.terminal("chat")
    terminal.screen.wait("> ")
    terminal.line("/stop")
    terminal.screen.wait("not sent, since it begins with /: /stop\r\nCtrl-C stops what runs, Ctrl-D leaves")
    terminal.screen.wait("> ")
    assert [run["status"] for run in desk.json("runs")] == ["cancelled", "queued"]
    terminal.line(" /bin/echo $((40+2))")
    terminal.screen.wait("42\r\n")


def test_on_a_terminal_a_question_is_answered_by_its_number(desk: Desk) -> None:
    terminal = desk.terminal_with_agent("ask")
    terminal.screen.wait("> ")
    terminal.line("go")
    terminal.screen.wait("question 1: Deploy it? (yes, no)\r\n  to answer: /answer 1 yes or /answer 1 no")
    for wrong in ("/answer yes", "/answer 2 yes", "/allow 0", "/answer 1st"):
        terminal.line(wrong)
        terminal.screen.wait("there is no such question")
    terminal.line("/answer 1 on Monday ")
    terminal.screen.wait("said: on Monday\r\n")
    terminal.screen.wait("question 2: Really?")
    terminal.line("/answer 1 no")
    terminal.screen.wait("no call waits for this answer")
    terminal.line("/answer 2 yes")
    terminal.screen.wait("said: yes\r\n")
    told = [one["content"] for one in desk.json("thread", "s1") if one["role"] == "tool"]
    assert told == ["on Monday", "yes"]


@pytest.mark.parametrize(
    ("line", "content", "allow"),
    [
        ("/answer 1 a\nb", "a\nb", None),
        ("/answer 1", "", None),
        ("/allow 1", "", True),
        ("/decline 1  too early ", "too early", False),
    ],
)
def test_a_line_that_answers_a_question(line: str, content: str, allow: bool | None) -> None:
    questions = Questions()
    asking = Asking("call_1", "shell", "May it?", approval=True)
    assert questions.show(asking) == ["question 1: May it?", "  to answer: /allow 1, or /decline 1 WHY"]
    assert questions.show(asking) == [], "it is shown once"
    made = questions.answer(line)
    assert made is not None
    assert (made.call_id, made.content, made.allow) == ("call_1", content, allow)
    assert questions.answer("/stop") is None
    assert questions.answer("/allowed 1") is None


def test_a_number_that_no_question_has_is_refused_however_long() -> None:
    questions = Questions()
    questions.show(Asking("call_1", "ask", "Deploy it?"))
    for number in ("", "0", "2", "01", "1st", "-1", "\u0661", "1" * 5_000):
        with pytest.raises(Invalid, match="no such question"):
            questions.answer(f"/answer {number}")


@pytest.mark.parametrize(("options", "remedy"), [((), "/answer 1 TEXT"), (("a", "b"), "/answer 1 a or /answer 1 b")])
def test_a_question_that_no_approval_is_cannot_be_allowed(options: tuple[str, ...], remedy: str) -> None:
    questions = Questions()
    assert questions.show(Asking("call_1", "ask", "Which?", options))[1] == f"  to answer: {remedy}"
    for word in ("allow", "decline"):
        with pytest.raises(Invalid) as refused:
            questions.answer(f"/{word} 1")
        assert refused.value.remedy == remedy


def test_from_a_pipe_a_question_is_shown_with_what_answers_it(desk: Desk) -> None:
    chatting = desk.start_with_agent("ask")
    chatting.type("go\n")
    chatting.err.wait("question: Deploy it?", "nobody can answer it here; Ctrl-C ends it")
    chatting.signal(signal.SIGINT)
    chatting.ended()
    assert [run["status"] for run in desk.json("runs", "s1")] == ["cancelled"]


def test_from_a_pipe_a_line_that_begins_with_a_slash_is_a_script(desk: Desk) -> None:
    assert desk.run("/bin/echo one\n", "chat").stdout.startswith("one\n")


def entered(*texts: str) -> list[Line | None]:
    paste = Paste()
    return [paste.take(Line(text, len(text.encode()))) for text in texts]


def test_lines_between_the_marks_of_a_paste_are_one_message_with_what_is_typed_around_it() -> None:
    *before, last = entered(f"for i in {BEGIN}1 2; do", "echo $i", f"done{END}; echo typed")
    assert before == [None, None]
    assert last is not None
    assert last.text == "for i in 1 2; do\necho $i\ndone; echo typed"
    assert [line and line.text for line in entered("a", f"{BEGIN}b{END}", f"{BEGIN}c", f"d{END}{BEGIN}e", END)] == [
        *("a", "b", None, None),
        "c\nde\n",
    ]


def test_l14_a_paste_without_end_is_counted_and_not_kept() -> None:
    part = "x" * (LINE_MAX_BYTES // 4)
    *_, last = entered(BEGIN, *[part] * 16, END)
    assert last is not None
    assert last.cut
    assert last.total_bytes > 16 * len(part)
    assert len(last.text) <= LINE_MAX_BYTES


# ── Its own configuration ─────────────────────────────────────────────────────────────────────────


def configured(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "countermand.toml"
    file.write_text(text)
    return ["--config", str(file)]


def test_without_a_daemon_it_has_the_configuration_that_a_daemon_would_have(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "async def answer(turn):\n    await turn.emit('mine: ' + turn.inputs[0].content)\n"
    )
    env = {**desk.env, "PYTHONPATH": str(tmp_path)}
    args = configured(tmp_path, 'agents = { mine = "mine:answer" }\nagent = "mine"\n')
    assert desk.run("hello\n", "chat", *args, env=env).stdout == "mine: hello"
    # The environment names a file too, and the command line goes over the file.
    assert desk.run("hello\n", env={**env, "COUNTERMAND_CONFIG": args[1]}).stdout == "mine: hello"
    assigned = ("--set", "agents={me='mine:answer'}", "--set", "agent=me")
    assert desk.run("hello\n", "chat", *assigned, env=env).stdout == "mine: hello"
    # A person's choice: the session keeps it.
    assert desk.run("echo hello\n", "chat", *args, "--agent", "shell", env=env).stdout.startswith("hello\n")
    assert desk.run("echo again\n", "chat", *args, env=env).stdout.startswith("again\n")


def test_l14_it_ends_whatever_the_interpreter_would_wait_for(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import asyncio, time\n"
        "async def leaves(turn):\n"
        "    asyncio.get_running_loop().run_in_executor(None, time.sleep, 1000)\n"
        "    await turn.emit('said')\n"
    )
    env = {**desk.env, "PYTHONPATH": str(tmp_path)}
    assigned = (
        "--set",
        "agents={me={run='mine:leaves', in_process=true}}",
        "--set",
        "agent=me",
        "--set",
        "grace_s=0.1",
        "--set",
        "kill_s=0.2",
    )
    done = desk.run("hello\n", "chat", *assigned, env=env)
    assert (done.returncode, done.stdout) == (0, "said")
    assert "thread sleep" in done.stderr


def test_its_state_directory_may_be_named_in_the_configuration(desk: Desk, tmp_path: Path) -> None:
    del desk.env["COUNTERMAND_STATE_DIR"]
    args = configured(tmp_path, f'state_dir = "{desk.state_dir}"\n')
    assert desk.run("echo hello\n", "chat", *args, env={**desk.env, "HOME": str(tmp_path)}).returncode == 0
    assert desk.json("runs", "--state-dir", str(desk.state_dir))[0]["status"] == "completed"


def test_a_configuration_that_cannot_be_right_is_refused_with_all_that_is_wrong(desk: Desk, tmp_path: Path) -> None:
    args = configured(tmp_path, 'grace_s = "long"\nbarrier = "nope"\n')
    done = desk.run("true\n", "chat", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "grace_s" in done.stderr
    assert "barrier" in done.stderr
    assert "Traceback" not in done.stderr
