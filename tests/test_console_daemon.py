"""The console over the local API: each command against a real daemon, and what it says where there is none.

The file has over 600 lines, and is whole: a section for each command, against a daemon that is started in one way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.errors import NotFound
from actors.model import Receipt
from supervisor.console.client.api import Api, NoDaemon
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import Records
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.client.store_records import StoreRecords
from supervisor.console.commands.stop import requested, stop_all
from supervisor.console.exits import ExitCode
from supervisor.live_tree import Living
from supervisor.wire import SessionEntry
from tests.console_kit import COMMAND, ROOT, WAIT_S, Desk, short_desk
from tests.process_kit import until


@pytest.fixture(scope="module")
def served() -> Iterator[Desk]:
    """A daemon that the tests of this file share; each has sessions of its own."""
    with short_desk() as desk:
        desk.serve("--set", "grace_s=1")
        yield desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    with short_desk() as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"s{uuid.uuid4().hex[:10]}"


def send(desk: Desk, session: str, script: str, *args: str) -> str:
    """Send a script; return the run's id."""
    run_id: str = desk.json("send", session, script, *args)["accepted"]["run_id"]
    return run_id


def status(desk: Desk, session: str) -> list[str]:
    return [run["status"] for run in desk.json("runs", session)]


def wait_status(desk: Desk, session: str, wanted: str) -> None:
    """Until the last run of a session has a status; asked over one connection."""
    api = Api(Endpoint(desk.state_dir))
    try:
        records = RemoteRecords(api)
        until(lambda: [run.status for run in records.runs(session)][-1:] == [wanted], wanted, WAIT_S)
    finally:
        api.close()


def wait_said(desk: Desk, session: str, text: str) -> None:
    """Until a run of a session has said something."""
    api = Api(Endpoint(desk.state_dir))
    try:
        records = RemoteRecords(api)
        until(lambda: any(text in str(event.data.get("text")) for event in records.events(session, 0)), text, WAIT_S)
    finally:
        api.close()


# ── Without a daemon ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "args", [("send", "s1", "true"), ("stop", "s1"), ("stop", "--all"), ("kill", "run_x"), ("events", "s1", "-f")]
)
def test_what_acts_says_that_there_is_no_daemon_and_how_to_start_one(desk: Desk, args: tuple[str, ...]) -> None:
    done = desk.run("", *args)
    assert (done.returncode, done.stdout) == (3, "")
    assert str(desk.state_dir / "countermand.sock") in done.stderr
    assert "serve" in done.stderr
    assert not desk.state_dir.exists()


def test_a_socket_that_was_named_is_the_one_that_is_asked_also_by_what_reads(desk: Desk, served: Desk) -> None:
    assert desk.run("true\n", "chat").returncode == 0
    assert desk.run("", "runs", "main").returncode == 0
    for args in (("runs", "main"), ("chat",), ("sessions",)):
        done = desk.run("", *args, "--socket", str(desk.state_dir / "nobody"))
        assert (done.returncode, done.stdout) == (3, ""), args
        assert "nobody" in done.stderr
    named = desk.run("", "sessions", "--socket", str(served.state_dir / "countermand.sock"), "--json")
    assert json.loads(named.stdout) == served.json("sessions")


def test_what_a_killed_daemon_left_is_no_daemon_and_reading_continues_from_the_disk(desk: Desk) -> None:
    daemon = desk.serve()
    assert desk.run("", "send", "s1", "echo hello", "--wait").stdout.startswith("hello\n")
    daemon.kill()
    daemon.wait(WAIT_S)
    assert (desk.state_dir / "countermand.sock").is_socket()
    assert "hello" in desk.run("", "thread", "s1").stdout
    assert desk.run("", "send", "s1", "true").returncode == 3
    done = desk.run("echo embedded\n", "chat", "--session", "s1")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "embedded")


# ── send ──────────────────────────────────────────────────────────────────────────────────────────


def test_send_waits_if_asked_prints_what_the_run_says_and_has_its_exit_code(served: Desk, name: str) -> None:
    done = served.run("", "send", name, "echo one; echo two; exit 3", "--wait")
    assert done.returncode == 1
    assert done.stdout.startswith("one\ntwo\n")
    assert "runs as run_" in done.stderr
    sent = served.json("send", name, "echo three", "--wait")
    assert (sent["status"], sent["result"]) == ("completed", {"exit_code": 0})
    assert sent["receipt"]["run_id"] == sent["accepted"]["run_id"]
    assert served.run("echo piped\n", "send", name, "--wait").stdout.startswith("piped\n")


def test_a_script_that_was_killed_or_timed_out_says_so_to_a_waiter_and_to_a_later_reader(desk: Desk) -> None:
    desk.serve("--set", "grace_s=0.2", "--set", "call_deadline_s=3")
    for script, outcome, words, code in (
        ("kill -KILL $$", "killed", "killed by SIGKILL", -9),
        (f"sleep {desk.mark}", "timed_out", "timed out", None),
    ):
        done = desk.run("", "send", outcome, script, "--wait")
        assert (done.returncode, words in done.stdout + done.stderr) == (4, True)
        (run,) = desk.json("runs", outcome)
        assert (run["result"]["exit_code"], run["result"]["outcome"]) == (code, outcome)
        assert f"completed ({words})" in desk.run("", "runs", outcome).stdout
        assert f"completed, {words}" in desk.run("", "why", run["run_id"]).stdout


def test_a_message_sent_again_under_its_id_has_one_effect(served: Desk, name: str) -> None:
    identity = f"req-{uuid.uuid4()}"
    first, second = (send(served, name, "true", "--id", identity) for _ in range(2))
    assert first == second
    other = served.run("", "send", name, "false", "--id", identity)
    assert other.returncode == 1
    assert "other content" in other.stderr
    assert len(served.json("runs", name)) == 1


def test_send_waits_for_the_run_that_takes_its_message_whichever_that_is(served: Desk, name: str) -> None:
    """It waits behind a run, and a message that takes over brings it along: its output and exit code are that run's."""
    send(served, name, f"sleep {served.mark}")
    first = send(served, name, "echo first", "--policy", "enqueue", "--no-merge")
    waiting = served.start("send", name, "echo mine; exit 3", "--policy", "enqueue", "--no-merge", "--wait")
    waiting.err.wait("waits as run_")
    took_over = send(served, name, "true")
    assert took_over == first
    assert waiting.ended() == 1
    assert "mine" in waiting.out.text
    assert "waits as" in waiting.err.text
    assert "cancelled" not in waiting.err.text


def test_files_are_attached_to_a_message_named_in_the_thread_and_handed_out(
    served: Desk, name: str, tmp_path: Path
) -> None:
    cat, data = tmp_path / "cat.png", tmp_path / "data"
    cat.write_bytes(b"\x89PNG")
    data.write_bytes(b"")
    sent = served.run("", "send", name, "true", "--attach", str(cat), "-a", str(data), "--wait")
    assert sent.returncode == 0
    assert "cat.png, data" in sent.stdout, "the shell agent names what it does not use"
    (message,) = [one for one in served.json("thread", name) if one["role"] == "user"]
    assert [(part.get("name"), part.get("media_type")) for part in message["parts"]] == [
        ("cat.png", "image/png"),
        ("data", "application/octet-stream"),
        (None, None),
    ]
    shown = served.run("", "thread", name).stdout
    assert f"cat.png, image/png, 4 bytes: --attachment {message['attachments'][0]}" in shown
    assert served.raw("thread", name, "--attachment", message["attachments"][0]) == b"\x89PNG"
    assert served.run("", "send", name, "--attach", str(cat)).returncode == 0, "no text is needed, nor read"
    missing = served.run("", "send", name, "true", "--attach", str(tmp_path / "none"))
    assert missing.returncode != 0
    assert "none" in missing.stderr


def test_bytes_that_are_not_text_arrive_and_are_handed_out_to_the_byte(served: Desk, name: str) -> None:
    data = b"echo caf\xe9 \xff"
    for sent in (served.run(data, "send", name, "--wait"), served.run("", "send", name, os.fsdecode(data), "--wait")):
        # What can be shown of it is another script.
        assert (sent.returncode, "not run" in sent.stdout, "caf" in sent.stdout) == (4, True, False)
    messages = [one for one in served.json("thread", name) if one["role"] == "user"]
    assert [one["content"] for one in messages] == ["echo caf\ufffd \ufffd"] * 2
    (attachment,) = {name for one in messages for name in one["attachments"]}
    assert f"--attachment {attachment}" in served.run("", "thread", name).stdout
    assert served.raw("thread", name, "--attachment", attachment) == data
    # As from the store itself, where no daemon runs.
    records = StoreRecords(served.state_dir)
    with records:
        assert records.attachment(name, attachment) == data
    missing = served.run("", "thread", name, "--attachment", "att_none")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no such attachment" in missing.stderr


def test_send_says_that_a_message_which_waited_came_back(served: Desk, name: str) -> None:
    send(served, name, f"sleep {served.mark}")
    waiting = served.start("send", name, "echo never", "--policy", "enqueue", "--wait")
    waiting.err.wait("waits as run_")
    assert served.run("", "stop", name).returncode == 0
    assert waiting.ended() == 130
    assert "came back: withdrawn" in waiting.err.text
    assert not waiting.out.text


def test_send_again_under_its_id_shows_the_run_that_it_had(served: Desk, name: str) -> None:
    for _ in range(2):
        done = served.run("", "send", name, "echo once; exit 3", "--id", f"req-{name}", "--wait")
        assert (done.returncode, done.stdout.count("once\n")) == (1, 1)
    assert len(served.json("runs", name)) == 1


def test_a_message_that_is_refused_is_said_with_1_and_one_that_cannot_be_right_with_2(served: Desk, name: str) -> None:
    run_id = send(served, name, f"sleep {served.mark}")
    refused = served.run("", "send", name, "true", "--policy", "reject")
    assert refused.returncode == 1
    assert run_id in refused.stderr
    wrong = served.run("", "send", name, "true", "--policy", "nonsense")
    assert wrong.returncode == 2
    assert "interrupt" in wrong.stderr
    assert served.run("", "kill", run_id).returncode == 0


def test_a_refusal_of_the_daemon_keeps_its_code_and_the_run_that_it_names(served: Desk, name: str) -> None:
    run_id = send(served, name, f"sleep {served.mark}")
    refused = served.run("", "send", name, "true", "--policy", "reject", "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert (error["code"], error["run_id"]) == ("run_active", run_id)
    assert served.run("", "stop", name).returncode == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("send", "s", "true", "--policy", "bad"), "interrupt | enqueue | steer | reject | rollback"),
        (("stop", "s", "--mode", "bad"), "graceful | immediate"),
        (("stop", "s", "--scope", "bad"), "run | session"),
        (("stop", "s", "--waiting", "bad"), "withdraw | park | keep"),
        (("logs", "--level", "bad"), "trace | debug | info | warning | error | critical"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_those_that_are(
    desk: Desk, args: tuple[str, ...], words: str
) -> None:
    done = desk.run("", *args)
    assert done.returncode == 2
    assert words in done.stderr
    # What things are called inside is nobody's to know.
    for inside in ("NewMessage", "Policy", "Mode", "Scope", "Waiting"):
        assert inside not in done.stderr


def test_of_a_daemon_that_hangs_it_is_said_what_is_waited_for_and_then_what_to_do(desk: Desk) -> None:
    daemon = desk.serve()
    assert desk.run("", "send", "s1", "true", "--wait").returncode == 0
    daemon.send_signal(signal.SIGSTOP)
    try:
        done = desk.run("", "sessions")
        assert done.returncode == 3
        assert done.stderr.count("has not answered yet; waiting") == 1
        assert "to do: countermand doctor names its process" in done.stderr
        found = desk.run("", "doctor")
        assert f"to do: look at process {daemon.pid} (countermand logs), or end it: kill {daemon.pid}" in found.stdout
        # A shell that completes is told nothing.
        assert offered(desk, "countermand why run_") == []
        waiting = desk.start("chat")
        waiting.err.wait("has not answered yet")
        waiting.signal(signal.SIGINT)
        assert waiting.ended() == 130
    finally:
        daemon.send_signal(signal.SIGCONT)


def test_a_chat_has_no_word_over_the_configuration_of_a_daemon_that_runs(served: Desk) -> None:
    done = served.run("true\n", "chat", "--set", "grace_s=1")
    assert done.returncode == 2
    assert "the daemon that runs has a configuration of its own" in done.stderr


def test_a_message_for_an_agent_that_the_daemon_does_not_have_is_refused(served: Desk, name: str) -> None:
    refused = served.run("", "send", name, "true", "--agent", "another")
    assert refused.returncode == 1
    assert "there is no such agent" in refused.stderr
    assert "shell" in refused.stderr
    assert served.run("", "send", name, "true", "--agent", "shell", "--wait").returncode == 0
    assert len(served.json("runs", name)) == 1


def test_a_watcher_that_leaves_stops_nothing(served: Desk, name: str) -> None:
    watching = served.start("send", name, "echo begun; read -r -t 1000 < <(sleep 1000)", "--wait")
    watching.out.wait("begun")
    watching.signal(signal.SIGINT)
    assert watching.ended() == 130
    assert "goes on" in watching.err.text
    assert status(served, name) == ["in_progress"]
    assert served.run("", "stop", name).returncode == 0


# ── stop and kill ─────────────────────────────────────────────────────────────────────────────────


def test_stop_waits_for_the_receipt_and_nothing_is_alive_then(served: Desk, name: str) -> None:
    run_id = send(served, name, served.tree)
    served.wait_alive(3)
    done = served.run("", "stop", name, "--reason", "seen enough")
    assert served.alive() == []
    assert done.returncode == 0
    for part in (run_id, "the fence is at event", "everything ended", "KILL"):
        assert part in done.stdout
    (run,) = served.json("runs", name)
    assert (run["provenance"]["source"], run["provenance"]["reason"]) == ("user.console", "seen enough")
    assert run["provenance"]["requested_by"] == f"uid:{os.getuid()}"


def test_l6_after_a_kill_of_the_daemon_the_thread_says_what_a_call_had_printed(desk: Desk) -> None:
    daemon = desk.serve()
    send(desk, "s1", f"echo begun; sleep {desk.mark}")
    until(lambda: "begun" in desk.run("", "events", "s1").stdout, "its output", WAIT_S)
    daemon.kill()
    daemon.wait(WAIT_S)
    desk.serve()
    wait_status(desk, "s1", "failed")
    (result,) = [one for one in desk.json("thread", "s1") if one["role"] == "tool"]
    assert result["outcome"] == "interrupted"
    assert result["content"].endswith("Its output so far ended with:\nbegun\n")


def test_a_stop_of_a_session_waits_for_the_proof_of_what_the_session_itself_runs(desk: Desk) -> None:
    plugins = "tests.daemon_plugins"
    desk.serve("--set", "grace_s=1", "--set", "agent=keeps", "--set", f"agents.keeps={plugins}:keeps",
               "--set", f"tools=['{plugins}:keep']")  # fmt: skip
    for session in ("s1", "s2"):
        assert desk.run("", "send", session, desk.mark, "--wait").returncode == 0
    assert len(desk.alive()) == 2
    idle = desk.run("", "stop", "s1")
    assert (idle.returncode, idle.stdout) == (0, "nothing was running\n")
    done = desk.run("", "stop", "s1", "--scope", "session")
    assert done.returncode == 0
    assert "no run was active" in done.stdout
    assert "process sleep" in done.stdout
    assert "1 process proven dead" in done.stdout
    assert len(desk.alive()) == 1
    everywhere = desk.json("stop", "--all", "--scope", "session")
    (only,) = everywhere["stopped"]
    assert (only["session"], only["outcome"]) == ("s2", "nothing_running")
    assert (only["receipt"]["complete"], only["receipt"]["reaped"]) == (True, 1)
    assert desk.alive() == []


@pytest.mark.parametrize("option", [("--mode", "hard"), ("--scope", "x"), ("--waiting", "x"), ("--reason", "")])
def test_an_option_of_a_stop_that_cannot_be_right_is_a_mistake_in_usage(desk: Desk, option: tuple[str, str]) -> None:
    done = desk.run("", "stop", "s1", *option)
    assert done.returncode == 2
    assert "expected:" in done.stderr


def test_a_receipt_that_is_not_filed_yet_is_said_to_be_so_and_with_its_run_named_it_is_refused(
    served: Desk, name: str
) -> None:
    done = served.json("send", name, "true", "--wait")["accepted"]["run_id"]
    run_id = send(served, name, f"echo begun; sleep {served.mark}")
    wait_said(served, name, "begun")
    (receipt,) = served.json("receipts", name)
    assert receipt["run_id"] == done
    assert f"run {run_id} is in progress: its receipt is not filed yet" in served.run("", "receipts", name).stdout
    refused = served.run("", "receipts", "--run", run_id)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "not filed yet" in refused.stderr
    served.run("", "kill", run_id)
    assert served.json("receipts", "--run", run_id)["complete"] is True


def test_stop_says_when_nothing_was_running(served: Desk, name: str) -> None:
    assert served.run("", "send", name, "true", "--wait").returncode == 0
    answer = served.json("stop", name)
    assert (answer["outcome"], answer["receipt"]) == ("nothing_running", None)
    unknown = served.run("", "stop", f"{name}-not")
    assert (unknown.returncode, unknown.stdout) == (1, "")


def test_stop_of_one_run_leaves_the_rest_and_says_what_is_over(served: Desk, name: str) -> None:
    first = served.json("send", name, "true", "--wait")["accepted"]["run_id"]
    second = send(served, name, f"sleep {served.mark}")
    assert served.json("stop", name, "--run", first)["outcome"] == "already_over"
    assert status(served, name) == ["completed", "in_progress"]
    # So much of an id as tells it from the others will do.
    answer = served.json("stop", name, "--run", second.removeprefix("run_"), "--mode", "immediate")
    assert (answer["outcome"], answer["run_id"]) == ("stopped", second)
    assert answer["receipt"]["complete"]
    assert answer["receipt"]["provenance"]["mode"] == "immediate"


ASKER = """
async def answer(turn):
    await turn.emit("said: " + await turn.ask("Deploy it?", options=["yes", "no"]))
"""


def asking_agent(directory: Path) -> Path:
    """Write an agent that asks; return a configuration with it."""
    (directory / "asker.py").write_text(ASKER)
    config = directory / "asker.toml"
    config.write_text(f'agent = "asker"\n[agents.asker]\nrun = "asker:answer"\npath = ["{directory}"]\n')
    return config


def waiting_calls(desk: Desk, session: str) -> list[Any]:
    runs = [run for one in desk.json("ps", session)["sessions"] for run in one["runs"]]
    return [call for run in runs for call in run["calls"] if call["state"] == "waiting"]


def test_what_waits_for_a_person_is_listed_and_answered(desk: Desk, name: str, tmp_path: Path) -> None:
    desk.serve("--config", str(asking_agent(tmp_path)))
    run_id = send(desk, name, "go")
    until(lambda: waiting_calls(desk, name), "a call that waits", WAIT_S)
    (call,) = waiting_calls(desk, name)
    assert call["question"] == "Deploy it?"
    assert "call ask · waiting" in desk.run("", "ps", name).stdout
    unknown = desk.run("", "answer", name, "call_nobody", "yes")
    assert unknown.returncode == 1
    assert "no call waits for this answer" in unknown.stderr
    answered = desk.json("answer", name, call["call_id"], "on Monday", "--origin", "anna")
    assert (answered["call_id"], answered["run_id"]) == (call["call_id"], run_id)
    wait_status(desk, name, "completed")
    assert "said: on Monday" in desk.run("", "thread", name).stdout
    events = [json.loads(line) for line in desk.run("", "events", name, "--json").stdout.splitlines()]
    told = [event for event in events if event["kind"] == "call.answered"]
    assert [event["data"]["by"] for event in told] == ["anna"]


def test_send_shows_a_question_once_while_it_waits_and_how_it_is_answered(
    desk: Desk, name: str, tmp_path: Path
) -> None:
    desk.serve("--config", str(asking_agent(tmp_path)))
    waiting = desk.start("send", name, "go", "--wait", "--id", "req_1")
    waiting.err.wait("question: Deploy it? (yes, no)\n", f"  to answer: countermand answer {name} call_", " TEXT\n")
    # One that sees the question again, and one whose message waits behind its run.
    again = desk.start("send", name, "go", "--wait", "--id", "req_1", "--json")
    behind = desk.start("send", name, "too", "--wait", "--policy", "enqueue")
    for other in (again, behind):
        other.err.wait("question: Deploy it?", "to answer: ")
    (call_id,) = {call["call_id"] for call in waiting_calls(desk, name)}
    assert f"answer {name} {call_id} TEXT" in waiting.err.text
    nothing = desk.run("", "answer", name, call_id)
    assert (nothing.returncode, "TEXT to a question" in nothing.stderr) == (2, True), "Enter alone answers nothing"
    desk.json("answer", name, call_id, "yes")
    assert (waiting.ended(), waiting.out.text) == (0, "said: yes")
    assert again.ended() == 0
    assert json.loads(again.out.text)["status"] == "completed"
    behind.err.wait("question: Deploy it?")
    assert [one.err.text.count("question:") for one in (waiting, again, behind)] == [1, 1, 2]
    (second,) = [call["call_id"] for call in waiting_calls(desk, name)]
    desk.json("answer", name, second, "later", "--decline")
    assert behind.ended() != 0
    done = desk.run("", "send", name, "go", "--wait", "--id", "req_1")
    assert (done.stdout, "question:" in done.stderr) == ("said: yes", False), "it is answered"


def test_stop_parks_waiting_messages_if_it_is_asked_to(served: Desk, name: str) -> None:
    send(served, name, f"sleep {served.mark}")
    send(served, name, "echo later", "--policy", "enqueue")
    assert "waiting ·" in served.run("", "thread", name).stdout
    assert served.json("stop", name, "--waiting", "park")["withdrawn"] == []
    thread = served.run("", "thread", name).stdout
    assert "parked ·" in thread
    assert "echo later" in thread


def test_a_stop_that_is_not_waited_for_has_shut_the_fence(served: Desk, name: str) -> None:
    send(served, name, f'trap "" TERM; echo begun; sleep {served.mark}; sleep {served.mark}')
    wait_said(served, name, "begun")
    answer = served.json("stop", name, "--no-wait")
    assert (answer["outcome"], answer["receipt"]) == ("stopped", None)
    assert answer["fence_seq"] is not None
    wait_status(served, name, "cancelled")


def test_ctrl_c_ends_the_waiting_and_the_stop_holds(desk: Desk) -> None:
    desk.serve("--set", "grace_s=600")
    run_id = send(desk, "s1", desk.tree)
    desk.wait_alive(3)
    stopping = desk.start("stop", "s1")
    stopping.out.wait("is stopped")
    stopping.signal(signal.SIGINT)
    assert stopping.ended() == 130
    assert "the stop holds" in stopping.err.text
    # The answer may come from the journal, before the store has the Stop.
    wait_status(desk, "s1", "cancelling")
    late = desk.run("", "stop", "s1", "--run", run_id, "--timeout", "0.01")
    assert late.returncode == 1
    assert "not filed yet" in late.stdout
    killed = desk.json("kill", run_id)
    assert (killed["outcome"], killed["receipt"]["complete"]) == ("stopping", True)
    assert desk.alive() == []


def test_kill_ends_one_run_at_once_and_no_other(served: Desk, name: str) -> None:
    spared = send(served, f"{name}-spared", f"sleep {served.mark}")
    run_id = send(served, name, f'trap "" TERM; sleep {served.mark}')
    served.wait_alive(2)
    done = served.run("", "kill", run_id[:-2], "--reason", "too slow")
    assert done.returncode == 0
    assert "killed by SIGKILL" in done.stdout
    (run,) = served.json("runs", name)
    assert (run["provenance"]["mode"], run["provenance"]["reason"]) == ("immediate", "too slow")
    assert status(served, f"{name}-spared") == ["in_progress"]
    assert served.json("kill", run_id)["outcome"] == "already_over"
    assert served.run("", "kill", spared).returncode == 0
    unknown = served.run("", "kill", "run_nope")
    assert (unknown.returncode, unknown.stdout) == (1, "")


def test_stop_all_stops_every_session(desk: Desk) -> None:
    desk.serve("--set", "grace_s=0.2")
    for session in ("a", "b"):
        send(desk, session, f"sleep {desk.mark}")
    send(desk, "c", "true", "--wait")
    desk.wait_alive(2)
    done = desk.json("stop", "--all")
    assert sorted(one["session"] for one in done["stopped"]) == ["a", "b"]
    assert all(one["receipt"]["complete"] for one in done["stopped"])
    assert desk.alive() == []
    assert "nothing was running" in desk.run("", "stop", "--all").stdout


def test_stop_all_waits_once_for_all_receipts_and_names_those_that_are_not_filed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.serve("--set", "grace_s=600")
    runs = [send(desk, session, f"trap '' TERM; sleep {desk.mark}") for session in ("a", "b")]
    desk.wait_alive(2)
    waits, apis, receipt = list[float | None](), list[Api](), Api.receipt

    def noted(api: Api, session: str, identity: str, timeout: float | None, **options: Any) -> Receipt:
        waits.append(timeout)
        apis.append(api)
        return receipt(api, session, identity, timeout, **options)

    monkeypatch.setattr(Api, "receipt", noted)
    endpoint = Endpoint(desk.state_dir)
    assert stop_all(endpoint, requested("enough"), 0.5, as_json=False) == ExitCode.FAILED
    assert waits[1:] == [0.0], "the first one has taken all the time that there was"
    said = capsys.readouterr().out
    assert all(f"its receipt is not filed yet: countermand why {run}" in said for run in runs)

    def gone(api: Api, *_: Any, **__: Any) -> Receipt:
        apis.append(api)
        raise NoDaemon("it is gone")

    monkeypatch.setattr(Api, "receipt", gone)
    assert stop_all(endpoint, requested("enough"), 0.5, as_json=False) == ExitCode.NO_DAEMON
    told = capsys.readouterr()
    assert all(run in told.out for run in runs)
    assert all(f"session {session}: it is gone" in told.err for session in "ab")
    for api in apis:
        api.close()
    desk.run("", "stop", "--all", "--mode", "immediate")
    desk.wait_dead()


@pytest.mark.parametrize("args", [(), ("s1", "--all"), ("--all", "--run", "run_x")])
def test_stop_takes_one_session_or_all(desk: Desk, args: tuple[str, ...]) -> None:
    assert desk.run("", "stop", *args).returncode == 2
    refused = desk.run("", "stop", *args, "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "invalid"


# ── ps and sessions ───────────────────────────────────────────────────────────────────────────────


def test_ps_is_the_tree_of_session_run_call_and_process(served: Desk, name: str) -> None:
    run_id = send(served, name, served.tree)
    served.wait_alive(3)
    (session,) = served.json("ps", name)["sessions"]
    ((run,), ((call,),)) = session["runs"], [one["calls"] for one in session["runs"]]
    assert (session["session"], run["run_id"], run["generation"], call["tool"]) == (name, run_id, 1, "shell")
    assert {one["pid"] for one in call["processes"]} >= set(served.alive())
    text = served.run("", "ps", name).stdout
    places = [text.index(part) for part in (f"session {name}", f"run {run_id}", "call shell", f"sleep {served.mark}")]
    assert places == sorted(places)
    for one in call["processes"]:
        assert str(one["pid"]) in text
    (line,) = [one for one in served.json("sessions") if one["session"] == name]
    assert (line["state"], line["run_id"], line["processes"]) == ("running", run_id, len(call["processes"]))
    assert served.run("", "stop", name, "--mode", "immediate").returncode == 0
    assert served.json("ps", name) == {"sessions": [], "more": False, "served": True}
    (line,) = [one for one in served.json("sessions") if one["session"] == name]
    assert (line["state"], line["run_id"], line["processes"]) == ("idle", None, 0)


# ── What reads: the daemon and the disk tell the same ─────────────────────────────────────────────


def all_of(records: Records, run_id: str) -> list[Any]:
    """All that records say, but for what only a daemon has: who works on what lives, and which session has an actor."""

    def living(name: str | None) -> Living:
        return structs.replace(records.living(name), served=True)

    def stored(entry: SessionEntry) -> SessionEntry:
        return structs.replace(entry, resident=False)

    told: list[Any] = [[*map(stored, records.sessions())], living(None), records.runs_beginning("run_")]
    told += [records.runs_beginning(run_id[4:]), records.runs_beginning("nope"), records.receipt("s1", run_id)]
    for entry in records.sessions():
        name = entry.session
        assert stored(records.session(name)) == stored(entry)
        told += [records.thread(name), records.waiting(name), records.runs(name), living(name)]
        told += [records.receipt(name, run.run_id) for run in records.runs(name)]
        after = 2
        while events := records.events(name, after):
            told += events
            after = events[-1].seq
    for unknown in ("", "s00", "s2", "nope", "\n", "\ue000"):
        with pytest.raises(NotFound) as refused:
            records.session(unknown)
        told.append(str(refused.value))
    return told


def test_what_reads_says_the_same_of_a_daemon_and_of_the_disk(desk: Desk) -> None:
    daemon = desk.serve("--set", "grace_s=60")
    for session in ("s0", "s0 and more", "é/ü", "s"):
        send(desk, session, "echo hello; exit 1")
    run_id = send(desk, "s1", f"echo begun; sleep {desk.mark}")
    wait_said(desk, "s1", "begun")
    took_over = desk.json("send", "s1", f"echo took over; sleep {desk.mark}")
    wait_said(desk, "s1", "took over")
    send(desk, "s1", "echo later", "--policy", "enqueue")
    assert desk.run("", "stop", "s1", "--waiting", "park").returncode == 0
    for session in ("s0", "s0 and more", "é/ü", "s"):
        wait_status(desk, session, "completed")
    api = Api(Endpoint(desk.state_dir))
    served = all_of(RemoteRecords(api), run_id)
    api.close()
    text, refused = desk.run("", "why", run_id), desk.run("", "why", "run_")
    daemon.terminate()
    assert daemon.wait(WAIT_S) == 0
    assert not (desk.state_dir / "countermand.sock").exists()
    with StoreRecords(desk.state_dir) as records:
        assert served == all_of(records, run_id)
    assert text.stdout == desk.run("", "why", run_id).stdout
    assert (refused.returncode, refused.stderr) == (2, desk.run("", "why", "run_").stderr)
    _check_story(desk, run_id, took_over)


def _check_story(desk: Desk, run_id: str, took_over: Any) -> None:
    """The story of a run that a message took over: who, when, which message, the signals, the fence, what is held."""
    text = desk.run("", "why", run_id).stdout
    accepted = took_over["accepted"]
    for part in (
        "a new message took over",
        f"the message {accepted['message_id']}  echo took over;",
        f"went on as {accepted['run_id']}",
        "SIGTERM sent to",
        "fenced: from here on",
        "nothing came after the fence",
        "messages in the thread: 1 user",
        "1 assistant (partial)",
    ):
        assert part in text
    story = desk.json("why", run_id)
    moments = [moment["what"] for moment in story["moments"]]
    assert moments[0] == "began, as generation 1"
    assert story["moments"] == sorted(story["moments"], key=lambda one: (one["at"], one["seq"]))
    assert story["taken_over_by"] == [accepted["message_id"], accepted["run_id"]]
    assert story["held"]["events"]["session.fenced"] == 1


# ── events ────────────────────────────────────────────────────────────────────────────────────────


def test_events_are_followed_over_the_death_of_the_daemon_without_gap_or_double(desk: Desk) -> None:
    daemon = desk.serve()
    # What Python takes for the end of a line, and what a stream does not.
    odd = "a\u2028b\u0085c\x0bd"
    assert desk.run("", "send", "s1", f"printf '{odd}'", "--wait").returncode == 0
    following = desk.start("events", "s1", "--follow", "--json")
    following.out.wait('"run.ended"')
    daemon.kill()
    daemon.wait(WAIT_S)
    following.err.wait("the connection is lost")
    desk.serve()
    following.err.wait("connected again")
    assert desk.run("", "send", "s1", "echo after", "--wait").returncode == 0
    following.out.wait('"run.ended"')
    following.signal(signal.SIGINT)
    assert following.ended() == 130
    # Not splitlines: that is the mistake which this is about.
    events = [json.loads(line) for line in following.out.text.split("\n") if line]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    said = "".join(event["data"]["text"] for event in events if event["kind"] == "tool.output")
    assert odd in said
    assert "after" in said
    stored = desk.run("", "events", "s1", "--json").stdout.split("\n")
    assert [json.loads(line) for line in stored if line] == events


def test_following_ends_where_there_is_nothing_to_follow(served: Desk, name: str) -> None:
    assert served.run("", "events", f"{name}-not").returncode == 1
    following = served.start("events", name, "-f")
    assert served.run("", "send", name, "echo hello", "--wait").returncode == 0
    following.out.wait("run.ended")
    following.signal(signal.SIGTERM)
    assert following.ended() != 0


def test_l7_of_a_daemon_that_died_every_reader_says_that_its_runs_are_not_worked_on(desk: Desk) -> None:
    daemon = desk.serve()
    run_id = send(desk, "s1", "sleep 600")
    send(desk, "s1", "echo later", "--policy", "enqueue")
    until(lambda: desk.json("ps")["sessions"][0]["runs"][0]["calls"], "its call")
    readers = (("runs", "s1"), ("ps",), ("sessions",), ("why", run_id), ("receipts", "--session", "s1"))
    for reader in readers:
        assert "has ended" not in desk.run("", *reader).stdout
    assert [run["attended"] for run in desk.json("runs", "s1")] == [True, None]
    daemon.kill()
    daemon.wait(WAIT_S)
    until(lambda: not desk.json("ps")["sessions"][0]["runs"][0]["calls"][0]["processes"], "the end of its processes")
    for reader in readers:
        said = desk.run("", *reader)
        assert said.returncode == 0, said.stderr
        assert said.stdout.count("the daemon or chat of these unfinished runs has ended") == 1, reader
    refused = desk.run("", "receipts", "--run", run_id)
    assert "has ended" in refused.stderr
    assert "in progress, and no supervisor works on it" in desk.run("", "why", run_id).stdout
    assert [run["attended"] for run in desk.json("runs", "s1")] == [False, None]
    assert desk.json("why", run_id)["attended"] is False
    assert desk.json("sessions")[0]["state"] == "unattended"
    assert desk.json("ps")["served"] is False
    first = desk.run("", "ps").stdout
    assert desk.run("", "ps").stdout == first, "nothing of it grows"
    desk.serve()
    until(lambda: desk.json("runs", "s1")[0]["status"] == "failed", "its end")
    assert "has ended" not in desk.run("", "runs", "s1").stdout
    assert desk.json("ps")["served"] is True


@pytest.mark.parametrize("options", [(), ("--follow",)])
def test_a_position_behind_the_end_of_the_log_is_said_and_not_followed(
    served: Desk, name: str, options: tuple[str, ...]
) -> None:
    assert served.run("", "send", name, "echo hello", "--wait").returncode == 0
    ended = served.run("", "events", name, "--from-seq", "1000", *options)
    assert ended.returncode == 1
    assert "ends before this position" in ended.stderr
    assert "from_seq=0" in ended.stderr


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────


def test_logs_are_the_daemons_own_wherever_its_standard_error_goes(desk: Desk) -> None:
    daemon = desk.serve()
    for session in ("s1", "s2"):
        assert desk.run("", "send", session, "true", "--wait").returncode == 0
    text = desk.run("", "logs").stdout
    assert "INFO    ready: serving" in text
    assert "session=s1" in text
    only = desk.run("", "logs", "s2").stdout
    assert "session=s2" in only
    assert "session=s1" not in only
    assert desk.run("", "logs", "--level", "error").stdout == ""
    assert desk.run("", "logs", "--level", "loud").returncode == 2
    (last,) = desk.run("", "logs", "-n", "1", "--json").stdout.splitlines()
    assert json.loads(last)["session"] == "s2"
    following = desk.start("logs", "--follow")
    following.out.wait("session=s2")
    assert desk.run("", "send", "s3", "true", "--wait").returncode == 0
    following.out.wait("session=s3")
    daemon.terminate()
    assert daemon.wait(WAIT_S) == 0
    # It ends with the daemon whose log it is.
    assert following.ended() == 0


def test_a_log_that_only_a_terminal_sees_is_said_to_be_there(desk: Desk) -> None:
    argv = [*COMMAND, "serve"]
    daemon = subprocess.Popen(argv, env=desk.env, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        until(Endpoint(desk.state_dir).is_listening, "a daemon", WAIT_S)
        done = desk.run("", "logs")
        assert done.returncode == 1
        assert "pipe:" in done.stderr
        assert "to do:" in done.stderr
    finally:
        daemon.kill()
        daemon.communicate()


# ── chat ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_chat_attaches_to_the_daemon_and_leaves_it_running(served: Desk, name: str) -> None:
    done = served.run("echo one\nexit 4\n", "chat", "--session", name)
    assert done.returncode == 1
    assert done.stdout.startswith("one\n")
    assert "Traceback" not in done.stderr
    assert [run["result"] for run in served.json("runs", name)] == [{"exit_code": 0}, {"exit_code": 4}]
    other = served.run("true\n", "chat", "--session", name, "--agent", "nobody")
    assert other.returncode == 1
    assert "there is no such agent" in other.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_that_is_ended_is_no_stop_for_the_daemon(served: Desk, name: str, number: signal.Signals) -> None:
    chatting = served.start("chat", "--session", name)
    chatting.type(f"echo begun; sleep {served.mark}\n")
    chatting.out.wait("begun")
    chatting.signal(number)
    assert chatting.ended() == 128 + number
    assert status(served, name) == ["in_progress"]
    assert served.run("", "stop", name).returncode == 0


def test_ctrl_c_in_an_attached_chat_stops_and_shows_the_receipt(served: Desk, name: str) -> None:
    chatting = served.start("chat", "--session", name)
    chatting.type(f"echo begun; sleep {served.mark}\n")
    chatting.out.wait("begun")
    chatting.signal(signal.SIGINT)
    assert chatting.ended() == 130
    assert "everything ended" in chatting.err.text
    (run,) = served.json("runs", name)
    assert (run["status"], run["provenance"]["reason"]) == ("cancelled", "Ctrl-C")


def test_on_a_terminal_an_attached_chat_takes_over_stops_and_leaves(served: Desk, name: str) -> None:
    terminal = served.terminal("chat", "--session", name)
    terminal.screen.wait("daemon ")
    terminal.screen.wait("> ")
    terminal.line(f"echo be''gun; sleep {served.mark}")
    terminal.screen.wait("begun")
    terminal.line(f"echo ag''ain; sleep {served.mark}")
    # The proof is asked for when the run has ended, and what the next run prints may come before the answer.
    terminal.screen.wait("again", "proven dead")
    terminal.ctrl_c()
    terminal.screen.wait("everything ended")
    terminal.line(f"echo th''ird; sleep {served.mark}")
    terminal.screen.wait("third")
    terminal.ctrl_d()
    terminal.screen.wait("the daemon continues")
    assert terminal.ended() == 0
    assert status(served, name) == ["cancelled", "cancelled", "in_progress"]
    # Somebody else takes it up where it is.
    again = served.terminal("chat", "--session", name)
    again.screen.wait("countermand · session")
    again.ctrl_c()
    again.screen.wait("everything ended")
    again.ctrl_d()
    assert again.ended() == 0
    assert status(served, name)[-1] == "cancelled"


# ── Completions ───────────────────────────────────────────────────────────────────────────────────


def offered(desk: Desk, line: str) -> list[str]:
    env = {**desk.env, "_COUNTERMAND_COMPLETE": "bash_complete", "COMP_WORDS": line}
    env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    done = desk.run("", env=env)
    assert done.stderr == ""
    return [word.removeprefix("plain,") for word in done.stdout.split()]


def test_commands_sessions_and_runs_are_completed(served: Desk, name: str, desk: Desk) -> None:
    run_id = served.json("send", name, "true", "--wait")["accepted"]["run_id"]
    assert set(offered(served, "countermand se")) == {"send", "serve", "sessions"}
    assert offered(served, f"countermand stop {name[:-1]}") == [name]
    assert offered(served, f"countermand why {run_id[:-1]}") == [run_id]
    assert offered(served, f"countermand receipts --run {run_id[:-1]}") == [run_id]
    assert offered(served, "countermand rec") == ["receipts"]
    assert offered(served, "countermand stop --run run_zzz") == []
    # Without a store there is nothing to offer, and no word about it.
    assert offered(desk, "countermand stop ") == []
    elsewhere = f"countermand --state-dir {served.state_dir} stop {name[:-1]}"
    assert offered(desk, elsewhere) == [name]
    assert not Path(desk.state_dir).exists()
