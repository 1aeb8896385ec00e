"""The `countermand` command: its options, and what `thread`, `runs` and `why` tell, also while the store is in use."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from actors import AsyncTurn, NewMessage, Stop, tool
from actors.decoding import decoder
from actors.errors import Invalid
from actors.model import How, PartKind, Provenance, Receipt, Row, Signalled
from actors.text import visible
from supervisor import Config, Supervisor
from supervisor.console.render.output import LAST_ON_A_TERMINAL
from supervisor.console.render.receipts import how_ended, table
from supervisor.console.render.words import head, refusal
from tests.console_kit import COMMAND, ROOT, WAIT_S, Desk, desk_at


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A store with a run that completed, one whose script failed, and one that was stopped; only to be read."""
    with desk_at(tmp_path_factory.mktemp("told")) as desk:
        assert desk.run("echo one\nexit 3\n", "chat", "--session", "s1").returncode == 1
        chatting = desk.start("chat", "--session", "s1")
        chatting.type(f"echo begun; sleep {desk.mark}\n")
        chatting.out.wait("begun")
        desk.wait_alive(1)
        chatting.process.terminate()
        assert chatting.ended() == 143
        yield desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path / "state") as opened:
        yield opened


# ── Options ───────────────────────────────────────────────────────────────────────────────────────


def test_options_are_taken_before_the_command_and_after_it_and_after_it_wins(desk: Desk, tmp_path: Path) -> None:
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    assert desk.run("echo x\n", "--state-dir", before, "--agent", "shell", "chat").returncode == 0
    assert desk.run("echo x\n", "chat", "--state-dir", after, "--agent", "shell").returncode == 0
    for where in (before, after):
        assert len(json.loads(desk.run("", "--state-dir", where, "runs", "--json").stdout)) == 1
    assert desk.run("echo y\n", "--state-dir", before, "chat", "--state-dir", after).returncode == 0
    assert len(json.loads(desk.run("", "runs", "--state-dir", before, "--json").stdout)) == 1
    assert len(json.loads(desk.run("", "runs", "--state-dir", after, "--json").stdout)) == 2
    assert desk.run("", "--agent", "nope", "chat").returncode == 1


def test_without_a_command_it_chats_in_the_session_main(desk: Desk) -> None:
    done = desk.run("echo hi\n")
    assert done.returncode == 0
    assert done.stdout.startswith("hi\n")
    assert len(desk.json("runs", "main")) == 1


def test_the_state_directory_comes_from_the_environment_else_from_xdg(desk: Desk, tmp_path: Path) -> None:
    env = {**desk.env, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert desk.run("true\n", "chat", env=env).returncode == 0
    assert (desk.state_dir / "store.sqlite3").exists()
    del env["COUNTERMAND_STATE_DIR"]
    assert desk.run("true\n", "chat", env=env).returncode == 0
    assert (tmp_path / "xdg" / "countermand" / "store.sqlite3").exists()


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("chat", "--help"), ("why", "-h")])
def test_version_and_help_answer_with_0_and_make_nothing(desk: Desk, args: tuple[str, ...]) -> None:
    done = desk.run("", *args)
    assert done.returncode == 0
    assert "countermand" in done.stdout
    assert not desk.state_dir.exists()


def test_debug_logs_come_on_standard_error_only_and_only_when_asked_for(desk: Desk) -> None:
    quiet, loud = desk.run("echo x\n", "chat"), desk.run("echo x\n", "-v", "chat")
    assert quiet.stderr == ""
    assert "DEBUG" in loud.stderr
    assert "DEBUG" not in loud.stdout


# ── thread, runs, why ─────────────────────────────────────────────────────────────────────────────


def test_thread_as_json_is_one_array_of_messages(told: Desk) -> None:
    messages = told.json("thread", "s1")
    assert messages == told.json("thread", "--session", "s1")
    assert [message["content"] for message in messages if message["role"] == "user"][:2] == ["echo one", "exit 3"]
    assert {message["role"] for message in messages} == {"user", "assistant", "tool", "note"}
    requested = [call["id"] for message in messages for call in message["tool_calls"]]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == requested


def test_runs_as_json_is_one_array_of_runs_the_oldest_first(told: Desk) -> None:
    runs = told.json("runs", "s1")
    assert [run["status"] for run in runs] == ["completed", "completed", "cancelled"]
    assert [run["result"] for run in runs[:2]] == [{"exit_code": 0}, {"exit_code": 3}]
    assert runs[2]["provenance"]["reason"] == "SIGTERM"


def test_receipts_as_json_are_those_of_the_runs_the_oldest_first(told: Desk) -> None:
    runs = told.json("runs", "s1")
    receipts = told.json("receipts", "s1")
    assert receipts == told.json("receipts", "--session", "s1")
    assert [receipt["receipt_id"] for receipt in receipts] == [run["receipt_id"] for run in runs]
    for run, receipt in zip(runs, receipts, strict=True):
        assert told.json("receipts", "--run", run["run_id"]) == receipt
    assert told.json("receipts", "--run", runs[2]["receipt_id"][:-2], "--session", "s1") == receipts[2]
    other = told.run("", "receipts", "s2", "--run", runs[2]["run_id"])
    assert (other.returncode, other.stdout) == (2, "")
    assert "'s2'" in other.stderr


def test_receipts_say_who_ended_a_run_and_with_its_id_what_became_of_each_part(told: Desk) -> None:
    runs = told.json("runs", "s1")
    text = told.run("", "receipts", "s1").stdout
    for run in runs:
        assert f"Run {run['run_id']}" in text
        assert f"receipt {run['receipt_id']}: everything ended" in text
    assert "SIGTERM" in text
    one = told.run("", "receipts", "--run", runs[2]["run_id"]).stdout
    assert "agent" in one
    assert "how it ended" in one
    assert runs[0]["run_id"] not in one


def test_why_as_json_is_one_document_with_the_run_and_its_receipt(told: Desk) -> None:
    run = told.json("runs", "s1")[2]
    story = told.json("why", run["run_id"])
    # Whether somebody works on it is said of the run, and stands beside what the store has of it.
    assert {**story["run"], "attended": story["attended"]} == run
    assert story["receipt"]["receipt_id"] == run["receipt_id"]
    assert story["inputs"][0]["content"].startswith("echo begun")
    assert [one["what"] for one in story["moments"]][-1] == f"its receipt was filed: {run['receipt_id']}"
    kinds = [row["kind"] for row in story["receipt"]["rows"]]
    assert kinds == ["agent", "call"]


def test_why_takes_a_receipt_and_the_beginning_of_an_id(told: Desk) -> None:
    run = told.json("runs", "s1")[2]
    del run["attended"]
    assert told.json("why", run["receipt_id"])["run"] == run
    assert told.json("why", run["run_id"][:-3])["run"] == run
    assert told.json("why", run["run_id"].removeprefix("run_")[:-3])["run"] == run
    several = told.run("", "why", "run_")
    assert several.returncode == 2
    assert "3 runs begin with 'run_'" in several.stderr


def test_why_names_who_stopped_it_and_what_became_of_each_part(told: Desk) -> None:
    run = told.json("runs", "s1")[2]
    text = told.run("", "why", run["run_id"]).stdout
    for part in (
        "user.console: SIGTERM",
        "cancelled",
        "echo begun",
        "ended by SIGTERM",
        run["receipt_id"],
        "proven dead",
    ):
        assert part in text
    assert "\x1b" not in text


def test_thread_and_runs_are_plain_text_when_not_on_a_terminal(told: Desk) -> None:
    thread, runs = told.run("", "thread", "s1"), told.run("", "runs", "s1")
    assert (thread.returncode, runs.returncode) == (0, 0)
    for part in ("user ·", "tool ·", "interrupted", "note ·", "echo one"):
        assert part in thread.stdout
    for part in (
        "completed (exit code 3)",
        "cancelled",
        "user.console: SIGTERM",
        *(r["run_id"] for r in told.json("runs", "s1")),
    ):
        assert part in runs.stdout
    assert "\x1b" not in thread.stdout + runs.stdout


def test_on_a_terminal_the_newest_are_shown_and_how_to_see_all(desk: Desk) -> None:
    async def silent(_turn: AsyncTurn) -> None:
        pass

    with Supervisor.start(Config(state_dir=desk.state_dir, agent="silent", agents={"silent": silent})) as supervisor:
        session = supervisor.session("s1")
        for number in range(LAST_ON_A_TERMINAL + 2):
            accepted = session.ask(NewMessage(content=f"message {number}."))
            session.receipt(accepted.run_id, timeout=WAIT_S)
    newest = [f"message {number}." for number in range(2, LAST_ON_A_TERMINAL + 2)]
    for command, of_all in (("thread", " messages"), ("runs", " of 52 runs")):
        terminal = desk.terminal(command, "s1")
        assert terminal.ended() == 0
        terminal.screen.wait(f"the newest 50{of_all}; more of them: --last N, or 0 for all")
        shown = terminal.screen.text
        assert [text for text in newest if text in shown] == newest
        assert "message 1." not in shown
        every = desk.terminal(command, "s1", "--last", "0")
        assert every.ended() == 0
        every.screen.wait(newest[-1])
        assert "message 0." in every.screen.text
        assert "the newest" not in every.screen.text
        assert "message 0." in desk.run("", command, "s1").stdout
        two = desk.run("", command, "s1", "--last", "2").stdout
        assert f"the newest 2{of_all}; more of them: --last N" in two
        assert [text for text in ("message 0.", *newest) if text in two] == newest[-2:]
        assert len(desk.json(command, "s1")) == LAST_ON_A_TERMINAL + 2
        assert len(desk.json(command, "s1", "--last", "3")) == 3


def test_the_run_that_runs_is_shown_however_many_wait_behind_it(desk: Desk) -> None:
    async def waits(turn: AsyncTurn) -> None:
        await turn.cancel_token.wait()

    with Supervisor.start(Config(state_dir=desk.state_dir, agent="waits", agents={"waits": waits})) as supervisor:
        session = supervisor.session("s1")
        for content in ("one", "two"):
            session.ask(NewMessage(content=content, policy="enqueue"))
        running, waiting = desk.json("runs", "s1")
        shown = desk.run("", "runs", "s1", "--last", "1").stdout
        assert running["run_id"] in shown
        assert waiting["run_id"] in shown
        assert "the newest 1 of 2 runs" in shown
        session.ask(Stop(source="user.test", reason="seen"))


def test_the_store_is_readable_while_a_chat_holds_it(desk: Desk) -> None:
    chatting = desk.start("chat", "--session", "s1")
    chatting.type(f"echo begun; sleep {desk.mark}\n")
    chatting.out.wait("begun")
    (run,) = desk.json("runs", "s1")
    assert run["status"] == "in_progress"
    assert desk.json("thread", "s1")[0]["role"] == "user"
    story = desk.json("why", run["run_id"])
    assert ({**story["run"], "attended": True}, story["receipt"]) == (run, None)
    assert "it has not ended yet" in desk.run("", "why", run["run_id"]).stdout
    # Reading has disturbed nobody.
    assert chatting.process.poll() is None
    assert len(desk.alive()) > 0


@pytest.mark.parametrize(
    ("args", "named", "code"),
    [
        (("thread", "nope"), "'nope'", 1),
        (("runs", "nope"), "'nope'", 1),
        (("why", "run_nope"), "'run_nope'", 1),
        (("why", ""), "''", 1),
        (("receipts", "nope"), "'nope'", 1),
        (("receipts", "--run", "run_nope"), "'run_nope'", 1),
        (("receipts", "--run", "run_"), "'run_'", 2),
        (("receipts", "s1", "--session", "s2"), "'s2'", 2),
        (("runs", "s1", "--session", "s2"), "'s2'", 2),
    ],
)
def test_what_is_not_known_is_refused_with_1_and_what_cannot_be_right_with_2(
    told: Desk, args: tuple[str, ...], named: str, code: int
) -> None:
    done = told.run("", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("thread", "nope"), "not_found"),
        (("why", "run_nope"), "not_found"),
        (("receipts", "--run", "run_"), "invalid"),
        (("events", "nope"), "not_found"),
        (("send", "s1", "true"), "no_daemon"),
        (("stop", "s1"), "no_daemon"),
    ],
)
def test_a_refusal_is_a_document_where_one_was_asked_for(told: Desk, args: tuple[str, ...], code: str) -> None:
    plain, asked = told.run("", *args), told.run("", *args, "--json")
    assert asked.returncode == plain.returncode > 0
    assert asked.stderr == plain.stderr
    error = json.loads(asked.stdout)["error"]
    assert set(error) == {"code", "message", "expected", "got", "remedy"}
    assert error["code"] == code
    assert error["message"] in plain.stderr


def test_a_state_directory_with_a_long_path_can_be_used_without_a_daemon(desk: Desk, tmp_path: Path) -> None:
    """Longer than a socket's path may be: no process listens there, so what needs no daemon goes on."""
    long = tmp_path.joinpath(*["x" * 60] * 3)
    assert len(str(long)) > 107
    done = desk.run("echo hi\n", "chat", "--session", "s1", "--state-dir", str(long))
    assert done.returncode == 0, done.stderr
    assert len(desk.json("thread", "s1", "--state-dir", str(long))) == 4
    assert len(desk.json("runs", "s1", "--state-dir", str(long))) == 1
    assert len(desk.json("sessions", "--state-dir", str(long))) == 1
    refused = desk.run("", "stop", "s1", "--state-dir", str(long))
    assert refused.returncode == 3
    assert "countermand.sock" in refused.stderr


@pytest.mark.parametrize("args", [("thread",), ("runs",), ("receipts",), ("why", "run_x")])
def test_a_directory_without_a_store_is_named_with_what_to_do(desk: Desk, args: tuple[str, ...]) -> None:
    done = desk.run("", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(desk.state_dir) in done.stderr
    assert "to do:" in done.stderr
    assert not desk.state_dir.exists()


def test_a_reader_that_has_gone_is_no_error(told: Desk) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        done = subprocess.run(
            [*COMMAND, "thread", "s1"], env=told.env, cwd=ROOT, stdout=write_fd, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_fd)
    assert (done.returncode, done.stderr) == (0, b"")


# ── Words and receipts ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("args", [("sessions",), ("thread", "s1"), ("runs", "s1", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_said_with_1(told: Desk, args: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *args], env=told.env, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *args]
    done = subprocess.run(closed, env=told.env, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_stored_cannot_steer_a_terminal() -> None:
    assert visible("a\x1b[2Jb\x07\n\tc\x9bd\u202ee") == "a\\x1b[2Jb\\x07\n\tc\\u009bd\\u202ee"
    assert head("one\n\ttwo\x1b") == "one two\\x1b"


FORGED = "\n  run_0000 completed\r\u2028\x85\x1b[2J\x9b2J\u202e"


def test_no_reason_or_name_makes_a_line_of_its_own_or_steers_the_terminal(desk: Desk) -> None:
    async def agent(turn: AsyncTurn) -> None:
        await turn.call("wait", secret=FORGED)

    @tool(isolation="task", name="wait")
    async def wait(secret: str) -> str:
        await asyncio.sleep(100)
        return secret

    config = Config(state_dir=desk.state_dir, agent="odd", agents={"odd": agent}, tools=[wait])
    with Supervisor.start(config) as supervisor:
        session = supervisor.session("s1")
        accepted = session.ask(NewMessage(content=f"go{FORGED}"))
        events = session.subscribe()
        assert any(event.kind == "tool.started" for event in events)
        session.ask(Stop(source="user.test", reason=f"because{FORGED}", requested_by=f"me{FORGED}"))
        session.receipt(accepted.run_id, timeout=WAIT_S)
    everything = [
        desk.run("", *args).stdout
        for args in (
            ("runs", "s1"),
            ("why", accepted.run_id),
            ("receipts", "s1"),
            ("receipts", "--run", accepted.run_id),
            ("events", "s1"),
            ("thread", "s1"),
            ("sessions",),
        )
    ]
    for told in everything:
        assert told
        assert visible(told) == told
        # In a thread a message has its lines, below its head.
        assert not any(line.startswith("run_0000") for line in told.splitlines())
    for told in (text for index, text in enumerate(everything) if index != 5):
        assert not any(line.strip().startswith("run_0000") for line in told.splitlines())
    # As JSON it is what it was, and yet nothing that a terminal would take for its own.
    document = desk.raw("runs", "s1", "--json").decode()
    assert visible(document) == document
    assert json.loads(document)[0]["provenance"]["reason"] == f"because{FORGED}"


def test_the_head_of_a_text_has_a_bound() -> None:
    assert len(head("x" * 10_000, 40)) == 40


def test_a_refusal_says_what_was_expected_what_came_and_what_to_do() -> None:
    text = refusal(Invalid("no", expected="a", got="b", remedy="c"))
    assert text == "no\n  expected: a\n  got: b\n  to do: c"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row(PartKind.AGENT, "a", 1.0, 2.0, How.CANCELLED), "cancelled"),
        (Row(PartKind.AGENT, "a", 1.0, 2.0, How.RAISED, note="ValueError: no"), "raised an error"),
        (Row(PartKind.PROCESS, "sleep", 1.0, 2.0, How.GONE, pid=7), "gone"),
        (Row(PartKind.CALL, "shell", 1.0, 2.0, How.GONE, note="what ran it is gone"), "lost with its supervisor"),
        (Row(PartKind.PROCESS, "sh", 1.0, 2.0, How.EXIT, status=3), "exited with 3"),
        (Row(PartKind.PROCESS, "sh", 1.0, 2.0, How.EXIT, status=-11), "killed by SIGSEGV"),
        # As receipts said it before.
        (Row(PartKind.AGENT, "a", 1.0, 2.0, How.RAISED, note="CancelledError: "), "cancelled"),
        (Row(PartKind.CALL, "shell", 1.0, 2.0, How.SIGKILL, note="what ran it is gone"), "lost with its supervisor"),
        (
            Row(
                PartKind.AGENT,
                "mine",
                1.0,
                2.0,
                How.SIGKILL,
                rows=(Row(PartKind.PROCESS, "host mine", 1.0, 2.0, How.SIGKILL),),
            ),
            "killed with its host",
        ),
        (Row(PartKind.PROCESS, "sleep", 1.0, 2.0, None, pid=7), "gone"),
        (Row(PartKind.PROCESS, "sleep", 1.0, None, None, pid=7), "still running"),
    ],
)
def test_how_a_part_ended_is_said_in_words_also_of_an_old_receipt(row: Row, said: str) -> None:
    assert how_ended(row) == said
    assert decoder(Row)(msgspec.json.encode(row)) == row


def test_a_receipt_names_what_could_not_be_ended_and_what_is_not_listed() -> None:
    signals = (Signalled("SIGTERM", 1.0), Signalled("SIGKILL", 3.0, "EPERM"))
    stuck = Row(PartKind.PROCESS, "sudo x", 1.0, None, How.ABANDONED, signals=signals, pid=77, note="not permitted")
    call = Row(PartKind.CALL, "shell", 1.0, 3.0, How.RAISED, note="ValueError: bad", rows=(stuck,))
    cause = Provenance(source="user.console", reason="x")
    text = table(
        Receipt("rcpt_1", "run_1", 1, cause, 1.0, 3.0, False, rows=(call,), reaped=1, omitted=2), 140, colour=False
    )
    for part in (
        "COULD NOT BE ENDED",
        "TERM, KILL (EPERM) +2.0 s",
        "77",
        "raised an error",
        "NOT everything",
        "1 process proven dead",
    ):
        assert part in text
    assert "2 parts more" in text
    assert "sudo x (pid 77): not permitted" in text
