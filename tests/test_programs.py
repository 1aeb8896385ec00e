"""Programs as agents: a process of the session, resumed by its id, told the truth, and ended whatever it does.

Here they are stand-ins that speak the protocols, with the faults that such programs have. The real ones are in
`test_real_programs.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import Answer
from actors.decoding import convert, decoder
from actors.errors import Invalid
from actors.messages import RunDeadline
from actors.model import Policy
from supervisor import Agent, Config, McpServer, SessionHandle, Supervisor
from supervisor.hosts.frames import McpServerNow
from supervisor.hosts.runtime import daemon_log
from supervisor.hosts.runtime.programs import program as programs
from supervisor.hosts.runtime.programs import servers as program_servers
from supervisor.hosts.runtime.programs.program import PATH_CHARS, Program, ProgramEnded, not_there
from supervisor.hosts.runtime.programs.prompts import GONE, HISTORY_MAX_BYTES, prompt
from supervisor.hosts.runtime.programs.rpc import RpcError
from supervisor.hosts.runtime.values import MediaPart, Message, TextPart
from supervisor.hosts.runtime.wire import line
from supervisor.presets import PRESETS
from supervisor.supervisor import plugins_of
from tests.ends_kit import ENDS, Kind, drawn, end_in_one_way, ended, kill_daemons, receipt_of, said
from tests.kit import WAIT_S, YEAR_S, Kit, check_rest, kit, log, rows, say, stop, until
from tests.process_kit import unread_bytes
from tests.program_kit import ACP_AGENT, Stand, answer, asking, at_step, done, handed, note_of, served

__all__ = ["kit"]

FAULTS = ("", "deaf", "end_turn", "mute", "chatter", "deaf chatter", "slow")


@pytest.fixture
def stand(kit: Kit, tmp_path: Path) -> Stand:
    """A stand-in that speaks ACP."""
    return Stand(kit, tmp_path)


class Acp(Kind):
    """The stand-in, ended at its first text, in a tool, between tools, and while it asks."""

    def __init__(self) -> None:
        super().__init__(word="work", steps=4, ways=FAULTS)

    def without_permission(self) -> Acp:
        """It never asks: while a person is asked, the run's deadline stands still."""
        self.ways = tuple(f"{way} free" for way in self.ways)
        return self

    def options(self, mark: str) -> dict[str, Any]:
        command = [sys.executable, str(ACP_AGENT)]
        return {"preset": "acp", "command": command, "env": {mark: "1"}, "spares": 0, "cwd": str(self.folder)}

    def prepare(self, folder: Path, mark: str, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder

    def finish(self, session: SessionHandle) -> None:
        # Its host is kept.
        assert session.receipt(stop(session).receipt_id, timeout=WAIT_S).complete


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ENDS)
def test_l3_nothing_is_left_of_a_program_however_and_whenever_its_turn_is_ended(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    kind = Acp().without_permission() if way == "expired" else Acp()
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    end_in_one_way(kit, [kind], way, drawn(f"acp {way}"))


def test_l3_nothing_is_left_of_a_program_whenever_its_daemon_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_daemons([Acp()], tmp_path, monkeypatch, drawn("acp killed"))


@pytest.mark.parametrize("faults", FAULTS)
def test_l1_a_program_that_takes_no_cancel_is_ended_and_says_nothing_after_it(stand: Stand, faults: str) -> None:
    session = stand.session(grace_s=WAIT_S)
    run_id = say(session, f"work hold {faults}")
    at_step(session, run_id, 2)
    stop(session)
    # No grace is so long that it has certainly read that by then; what ignores it, or its SIGTERM, waits for no end.
    until(lambda: stand.noted("session/cancel"), "it to be asked")
    if not {"deaf", "mute"} & set(faults.split()):
        until(lambda: stand.noted("end"), "what it does then")
    stop(session, mode="immediate")
    receipt = receipt_of(session, run_id)
    assert receipt.complete, receipt
    assert stand.kit.alive() == []
    assert "after the" not in said(session, run_id)
    events = check_rest(session)
    (tool,) = [event.data for event in events if event.kind == "tool.ended"]
    assert tool["outcome"] == "interrupted"
    ((pid, _),) = stand.noted("session/cancel")
    assert done(session, "say again") == "said: again"
    (first, _), (second, resumed) = stand.noted("session/new") + stand.noted("session/load")
    assert first == pid != second
    assert resumed["sessionId"] == stand.noted("session/prompt")[0][1]["sessionId"]
    note = note_of(stand.prompts()[1])
    assert "the user stopped it (user.test: the test says so)" in note
    assert f"It was to answer: work hold {faults}" in note
    assert "- tool execute {'title': 'make test', 'input': {'command': 'make test'}}: Interrupted: the user" in note


def test_a_program_that_says_nothing_is_ended_by_nothing_but_a_limit(stand: Stand) -> None:
    session = stand.session(run_deadline_s=YEAR_S)
    run_id = say(session, "quiet")
    until(lambda: said(session, run_id) == "quiet", "its last word")
    stand.kit.fire(RunDeadline)
    assert ended(session, run_id).status == "expired"
    assert receipt_of(session, run_id).complete
    assert done(session, "say again") == "said: again"
    assert "the run reached its deadline" in note_of(stand.prompts()[1])


def test_while_a_program_says_nothing_it_is_told_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "QUIET_S", 0.001)

    async def listen() -> None:
        told = list[float]()
        enough = asyncio.Event()

        async def quiet(seconds: float) -> None:
            told.append(seconds)
            if len(told) == 3:
                enough.set()

        program = Program("cat", ["cat"])
        await program.start()
        program.listen()
        coming: Coroutine[Any, Any, Any] = program.next(quiet)
        message = asyncio.create_task(coming)
        await enough.wait()
        await program.write({"said": 1})
        assert await message == {"said": 1}
        assert told[:3] == pytest.approx([0.001, 0.002, 0.003])
        await program.end()

    asyncio.run(listen())


def test_what_a_program_prints_is_read_to_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LINE_MAX_BYTES", 1000)

    async def messages(script: str) -> list[Any]:
        program, found = Program("sh", ["sh", "-c", script]), list[Any]()
        await program.start()
        program.listen()
        try:
            while True:
                found.append(await program.next())
        except ProgramEnded as error:
            found.append(error.message)
        await program.end()
        return found

    many = programs.INBOX_MAX * 3
    found = asyncio.run(messages(f"""for i in $(seq {many}); do echo "{{\\"n\\":$i}}"; done; exit 3"""))
    assert found == [*({"n": number} for number in range(1, many + 1)), "sh ended: exit status 3"]
    long = """printf '{"n":"%s"}\n' $(seq -s, 1000)"""
    assert asyncio.run(messages(f"{long}; exec sleep 1000")) == ["sh wrote a line of more than 1000 bytes"]
    child = "sleep 1000 & echo '{\"child\": '$!'}'; exit 4"
    (child_said, end) = asyncio.run(messages(child))
    os.kill(child_said["child"], signal.SIGKILL)
    assert end == "sh ended: exit status 4", "a child that has its pipes hides its end from nobody"
    closed = "echo '{}'; exec >&- 2>&-; exec sleep 1000"
    assert asyncio.run(messages(closed)) == [{}, "sh ended: it closed its output, and runs on"]
    noise = "echo hello; echo '[1]'; echo '{}'; echo broken >&2; kill -9 $$"
    assert asyncio.run(messages(noise)) == [{}, "sh ended: killed by SIGKILL; its standard error ends:\nbroken"]


def test_the_failure_of_a_run_has_the_exit_status_and_the_last_words_of_its_program(stand: Stand) -> None:
    session = stand.session()
    done(session, "say hello")
    run_id = say(session, "crash")
    run = ended(session, run_id)
    assert run.status == "failed"
    assert run.error is not None
    assert "python" in run.error
    assert "exit status 7; its standard error ends:\nout of tokens" in run.error
    assert receipt_of(session, run_id).complete
    assert done(session, "say again") == "said: again"
    assert "exit status 7" in note_of(stand.prompts()[-1])
    assert len(stand.noted("session/new")) == len(stand.noted("session/load")) == 1


# ── Sessions of its own ───────────────────────────────────────────────────────────────────────────


def test_a_program_stays_while_turns_end_by_themselves_and_is_told_nothing_twice(stand: Stand) -> None:
    session = stand.session()
    first, second = done(session, "count"), done(session, "count")
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    assert first.split()[1] == second.split()[1]
    assert stand.prompts() == ["count", "count"]


def test_what_a_program_says_after_its_turn_is_of_no_later_one(stand: Stand) -> None:
    session = stand.session()
    done(session, "say late")
    until(lambda: stand.noted("late"), "the late words")
    ((pid, _),) = stand.noted("late")
    until(lambda: unread_bytes(pid, 1) == 0, "the host to read them")
    assert done(session, "say again") == "said: again"


def test_l12_a_program_is_resumed_by_its_id_after_a_restart(stand: Stand) -> None:
    done(stand.session(), "say hello")
    stand.kit.close()
    assert done(stand.session(), "say again") == "said: again"
    assert [pid for pid, _ in stand.noted("session/new")] != [pid for pid, _ in stand.noted("session/load")]
    assert stand.prompts() == ["say hello", "say again"]


def test_a_session_that_is_gone_is_replaced_and_both_sides_hear_of_it(stand: Stand) -> None:
    session = stand.session("--forget")
    done(session, "say hello")
    run_id = say(session, "work")
    asking(session)
    stop(session)
    receipt_of(session, run_id)
    assert stand.noted("session/load") == []
    text = done(session, "say again")
    gone = stand.noted("session/load")[0][1]["sessionId"]
    assert text.endswith("said: again")
    assert f"no longer has its session {gone}. It starts a new one" in text
    note = note_of(stand.prompts()[-1])
    assert GONE in note
    assert "- user: say hello\n- assistant: said: hello\n- user: work\n- assistant: <1>" in note
    assert "- assistant (cut off): <3><4>\n- tool execute {'title': 'make deploy'" in note
    assert "the user stopped it" in note
    assert done(session, "say once more") == "said: once more"
    assert len(stand.noted("session/new")) == 2


def test_an_error_that_may_pass_fails_the_run_and_the_session_is_resumed_later(stand: Stand) -> None:
    session = stand.session()
    done(session, "say hello")
    receipt_of(session, say(session, "crash"))
    (stand.folder / "sessions" / "busy").touch()
    run = ended(session, say(session, "say again"))
    assert run.status == "failed"
    assert "refused session/load: Internal error ({'details': 'locked'})" in str(run.error)
    assert done(session, "say once more") == "said: once more"
    assert (len(stand.noted("session/new")), len(stand.noted("session/load"))) == (1, 2)


@pytest.mark.parametrize(
    ("gone", "number", "message", "data"),
    [
        (True, -32600, "no rollout found for thread id 0198aaaa-1111-7222-8333-444455556666", None),
        (True, -32600, "thread not found: 0198aaaa-1111-7222-8333-444455556666", None),
        (True, -32603, "Internal error", {"details": "No previous sessions found for this project."}),
        (True, -32603, "Internal error", {"details": 'Invalid session identifier "0198aaaa".'}),
        (True, -32603, "Internal error: OpenCode service failure", {"service": "session"}),
        (True, -32002, "Resource not found", None),
        (True, -32602, "Invalid params", {"session_id": "Session not found"}),
        (True, -32601, "Method not found", None),
        (True, -32603, "Unknown sessionId abc", None),
        (True, -32603, "Invalid sessionId", None),
        (True, -32603, "No conversation found with session ID: abc", None),
        (True, -32603, "Could not find session abc", None),
        (True, -32603, 'Session with id "a.b/c" not found', None),
        (True, -32603, "rollout file not found", None),
        (True, -32603, "session_not_found", None),
        (True, -32603, "failed to load rollout /x/y.jsonl: No such file or directory (os error 2)", None),
        (False, -32603, "Session not loaded: authentication token not found", None),
        (False, -32603, "Internal error", {"details": "Failed to load session data"}),
        (False, -32603, "Internal error: OpenCode service failure", {"service": "provider"}),
        (False, -32603, "failed to load rollout: permission denied", None),
        (False, -32602, "Invalid params", {"mcpServers": "command not found"}),
    ],
)
def test_a_session_is_gone_only_if_the_program_says_so(gone: bool, number: int, message: str, data: object) -> None:
    # As Codex 0.171, Gemini CLI 0.61, OpenCode 1.18 and the SDKs of ACP have it.
    assert RpcError("it", "session/load", {"code": number, "message": message, "data": data}).gone is gone


def test_l6_a_call_that_a_program_makes_without_asking_is_on_record_as_begun_before(stand: Stand) -> None:
    session = stand.session()
    run_id = say(session, "work deaf")
    at_step(session, run_id, 2)
    stop(session)
    receipt_of(session, run_id)
    events = log(session)
    assert {event.data.get("begun") for event in events if event.kind == "tool.requested"} == {True}
    assert "not_started" not in {event.data["outcome"] for event in events if event.kind == "tool.ended"}


def test_a_rollback_takes_the_session_back_and_the_program_is_told_what_to_disregard(stand: Stand) -> None:
    session = stand.session()
    done(session, "say hello")
    run_id = say(session, "work deaf")
    at_step(session, run_id, 2)
    assert done(session, "say again", policy=Policy.ROLLBACK) == "said: again"
    note = note_of(stand.prompts()[-1])
    assert "taken back, with what followed from it, except for effects: user: work deaf" in note
    assert receipt_of(session, run_id).complete


def test_a_program_that_takes_over_a_session_is_told_what_was_said_before(stand: Stand) -> None:
    (stand.folder / "other.py").write_text("async def agent(turn):\n    await turn.emit('I am another')\n")
    other = Agent(run="other:agent", path=[str(stand.folder)], env={stand.kit.mark: "1"}, spares=0)
    own = stand.agent()
    stand.kit.supervisor = Supervisor.start(
        Config(state_dir=stand.kit.state_dir, agents={"other": other, "test": own}, agent="test", drain_s=0.1)
    )
    session = stand.kit.supervisor.session("s1")
    done(session, "hello", agent="other")
    done(session, "say mine", agent="test")
    done(session, "and now", agent="other")
    done(session, "say again", agent="test")
    first, second = map(note_of, stand.prompts())
    assert "- user: hello\n- assistant: I am another" in first
    assert "hello" not in second
    assert "- user: and now\n- assistant: I am another" in second


# ── Permissions ───────────────────────────────────────────────────────────────────────────────────


def test_l2_what_a_program_asks_permission_for_waits_for_a_person(stand: Stand) -> None:
    session = stand.session()
    run_id = say(session, "ask")
    answer(session, asking(session), allow=True)
    assert ended(session, run_id).status == "completed"
    assert said(session, run_id) == "it was {'outcome': 'selected', 'optionId': 'yes'}"
    kinds = [event.kind for event in log(session) if event.kind.startswith(("call.", "tool."))]
    assert kinds == ["tool.requested", "call.waiting", "call.answered", "tool.started", "tool.ended"]
    assert all("begun" not in event.data for event in log(session) if event.kind == "tool.requested")
    (result,) = [event.data for event in log(session) if event.kind == "tool.ended"]
    assert (result["outcome"], result["content"]) == ("finished", "deployed")


def test_what_a_program_asks_at_the_end_of_its_turn_is_rejected_and_the_run_completes(stand: Stand) -> None:
    session = stand.session()
    run_id = say(session, "rush")
    run = ended(session, run_id)
    assert run.status == "completed", run.error
    assert [event.data["outcome"] for event in log(session) if event.kind == "tool.ended"][:1] == ["finished"]
    # If it came so late, it is answered in the next turn at the latest.
    done(session, "say again")
    answers = [outcome for _, outcome in stand.noted("answer")]
    assert answers == [{"outcome": {"outcome": "selected", "optionId": "no"}}]


def test_l2_what_a_person_declines_is_rejected_and_never_began(stand: Stand) -> None:
    session = stand.session()
    run_id = say(session, "ask")
    answer(session, asking(session), allow=False, content="too risky")
    assert ended(session, run_id).status == "completed"
    assert said(session, run_id) == "it was {'outcome': 'selected', 'optionId': 'no'}"
    (result,) = [event.data for event in log(session) if event.kind == "tool.ended"]
    assert (result["outcome"], result["content"]) == ("not_started", "Not started: the user declined: too risky")


@pytest.mark.parametrize("way", ["stop", "takeover"])
def test_l5_a_stop_cancels_what_waits_and_nobody_has_rejected_it(stand: Stand, way: str) -> None:
    # It is not killed before it has read that its question is cancelled.
    session = stand.session(grace_s=WAIT_S)
    run_id = say(session, "ask")
    call_id = asking(session)
    if way == "stop":
        stop(session)
        assert receipt_of(session, run_id).complete
        done(session, "say again")
    else:
        done(session, "say again", policy=Policy.INTERRUPT)
        assert receipt_of(session, run_id).complete
    ((_, decided),) = stand.noted("answer")
    assert decided == {"outcome": {"outcome": "cancelled"}}
    (result,) = [event.data for event in log(session) if event.kind == "tool.ended"]
    assert result["outcome"] == "not_started"
    assert "declined" not in result["content"]
    with pytest.raises(Exception, match="call"):
        session.ask(Answer(call_id=call_id, allow=True), timeout=WAIT_S)
    until(lambda: not session.status().asking, "no question")
    assert "Not started" in note_of(stand.prompts()[1])


# ── MCP servers that it is handed ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failed", "state", "why"),
    [
        (None, "handed over", ""),
        ({"files": "no such file"}, "ended", "no such file"),
        # What a program says may be anything, such as a text that was cut within a character.
        ({"files": "gone \ud83d"}, "ended", "gone \ufffd"),
        ({"files": {"code": 1}}, "ended", "{'code': 1}"),
        ("all of them", "handed over", ""),
    ],
)
def test_what_a_program_says_of_its_servers_is_shown_whatever_it_is(
    failed: Any, state: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    wire: Any = SimpleNamespace(note=lambda method, params: sent.append(line(method=method, params=params)))
    monkeypatch.setattr(daemon_log, "daemon", [wire])
    monkeypatch.setattr(program_servers, "servers", lambda: {"files": {}})
    program_servers.show(failed)
    (frame,) = sent
    shown = convert(decoder(dict[str, Any])(frame)["params"], McpServerNow)
    assert (shown.name, shown.state, shown.why) == ("files", state, why)


@pytest.mark.parametrize("way", ["between two runs", "in a run"])
def test_l3_the_servers_that_a_program_is_handed_are_its_children_and_end_with_it(
    stand: Stand, tmp_path: Path, way: str
) -> None:
    session = stand.session(mcp=handed(stand.kit, tmp_path))
    done(session, "say hello")
    (server,) = served(tmp_path, 1)
    ((program, asked),) = stand.noted("session/new")
    assert (server["parent"], server["cwd"], server["key"]) == (program, str(tmp_path / "place"), "secret")
    assert asked["mcpServers"][1] == {
        "type": "http",
        "name": "web",
        "url": "http://127.0.0.1:9/mcp",
        "headers": [{"name": "A", "value": "Bearer hidden"}],
    }
    assert server["pid"] in stand.kit.alive(), "it goes on, as the program does"
    supervisor = stand.kit.supervisor
    assert supervisor is not None
    (host,) = supervisor.hosts()[0].hosts
    assert [(one.name, one.state, one.why) for one in host.mcp] == [
        ("files", "handed over", ""),
        ("web", "handed over", ""),
    ]
    if way == "in a run":
        run_id = say(session, "work hold deaf")
        at_step(session, run_id, 2)
        stop(session)
        receipt = receipt_of(session, run_id)
        assert receipt.complete
        assert server["pid"] in [row.pid for row in rows(receipt)], "it is in the receipt"
    else:
        stop(session)
    until(lambda: not stand.kit.alive(), "nothing to be left")
    # The next turn resumes, with servers of its own.
    done(session, "say again")
    assert served(tmp_path, 2)[1]["pid"] != server["pid"]
    assert stand.noted("session/load")[0][1]["mcpServers"] == asked["mcpServers"]


def test_a_program_that_can_use_no_server_by_http_fails_the_run_with_what_to_do(stand: Stand, tmp_path: Path) -> None:
    session = stand.session("--no-http", mcp=handed(stand.kit, tmp_path))
    run = ended(session, say(session, "say hello"))
    assert "cannot use the MCP server 'web'" in str(run.error)
    assert "to do: leave it out of the key 'mcp'" in str(run.error)
    assert "hidden" not in str(run.error)
    assert not [event for event in log(session) if event.kind == "run.output"]


@pytest.mark.parametrize("rules", [{"allow": []}, {"deny": ["delete"]}, {"ask": ["write"]}])
def test_a_server_with_rules_is_handed_to_no_program(tmp_path: Path, rules: dict[str, Any]) -> None:
    agents = {"a": Agent(preset="gemini", mcp=["files"])}
    with pytest.raises(Invalid, match="which it would not keep") as refused:
        plugins_of(Config(state_dir=tmp_path, agents=agents, mcp={"files": McpServer(command="p", **rules)}))
    assert f"got files, with {next(iter(rules))}" in str(refused.value)
    assert "the program's own configuration" in refused.value.remedy


# ── Configuration ─────────────────────────────────────────────────────────────────────────────────


def test_a_program_that_is_not_there_is_its_agents_own_failure(kit: Kit) -> None:
    session = kit.start(Agent(preset="acp", command=["no-such-program", "--acp"], env={kit.mark: "1"})).session("s1")
    run = ended(session, say(session, "say hello"))
    assert run.status == "failed"
    assert run.error is not None
    assert "the program 'no-such-program' cannot be started" in run.error
    assert "to do: install it, or name it in the key 'command' of the agent" in run.error
    assert not [event for event in log(session) if event.kind == "run.output"], "there is no more to say"
    supervisor = kit.supervisor
    assert supervisor is not None
    until(lambda: "the program 'no-such-program' cannot be started" in supervisor.hosts()[0].broken, "a broken agent")


@pytest.mark.parametrize("name", sorted(name for name, one in PRESETS.items() if one.command))
def test_the_program_of_each_preset_is_named_with_what_installs_it(kit: Kit, name: str) -> None:
    session = kit.start(Agent(preset=name, env={"PATH": "/nowhere"}, spares=0)).session("s1")
    run = ended(session, say(session, "say hello"))
    program = PRESETS[name].command[0]  # type: ignore[index]
    assert f"the program {program!r} cannot be started" in str(run.error)
    assert "got there is no such program; PATH is /nowhere; to do: npm install -g " in str(run.error)


@pytest.mark.parametrize("length", [PATH_CHARS, PATH_CHARS + 1])
def test_of_a_long_path_only_the_beginning_is_shown(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setenv("PATH", "p" * length)
    got = not_there(["my-agent"], "there is none").got
    assert got == f"there is none; PATH is {'p' * PATH_CHARS if length == PATH_CHARS else 'p' * (PATH_CHARS - 1) + '…'}"


def test_a_program_that_goes_away_after_the_start_fails_its_run_without_a_traceback(kit: Kit, tmp_path: Path) -> None:
    program = tmp_path / "my-agent"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    supervisor = kit.start(Agent(preset="acp", command=[str(program)], env={kit.mark: "1"}, spares=1))
    until(lambda: supervisor.hosts()[0].ready, "a spare")
    program.unlink()
    session = supervisor.session("s1")
    run = ended(session, say(session, "say hello"))
    assert f"the program {str(program)!r} cannot be started" in str(run.error)
    assert not [event for event in log(session) if event.kind == "run.output"]


def test_a_program_that_wants_a_login_says_so(stand: Stand) -> None:
    session = stand.session("--login")
    run = ended(session, say(session, "say hello"))
    assert run.status == "failed"
    assert run.error is not None
    assert "Authentication required; to do: log in with the program itself" in run.error


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"preset": "acp"}, "it is not clear what program an agent is"),
        ({"preset": "nonsense"}, "the key 'preset' has an invalid value"),
        ({"preset": "gemini", "run": "a:b"}, "the key 'run' is for an agent without a preset"),
        ({"preset": "gemini", "ask": ["shell"]}, "the key 'ask' is for an agent without a preset"),
        ({"preset": "gemini", "tools": ["shell"]}, "the key 'tools' is for an agent without a preset"),
        ({"preset": "gemini", "python": "python3"}, "the key 'python' is for an agent in Python"),
        ({"preset": "gemini", "env": {"COUNTERMAND_PROGRAM": "x"}}, "the key 'env' has an invalid value"),
    ],
)
def test_the_keys_of_a_preset_are_checked_together(values: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Agent(**values)


def test_a_preset_keeps_its_host_and_has_no_overlap_unless_told_so() -> None:
    plain, preset = Agent(run="a:b"), Agent(preset="gemini")
    told = Agent(preset="gemini", keep="run", overlap=True, command=["gemini", "--acp", "--yolo"])
    assert (plain.keep, plain.overlap, preset.keep, preset.overlap) == ("run", True, "session", False)
    assert (told.keep, told.overlap, told.spelled) == ("run", True, "gemini: gemini --acp --yolo")


# ── Prompts ───────────────────────────────────────────────────────────────────────────────────────


def test_a_prompt_holds_so_much_of_the_thread_and_the_newest_of_it() -> None:
    long = "x" * 2_000
    before = [Message(f"m{number}", "user", f"{number} {long}", run_id="r") for number in range(100)]
    inputs = [Message("now", "user", "do it", run_id="now")]
    text = prompt([*before, *inputs], inputs, None, gone=False)
    assert HISTORY_MAX_BYTES * 0.9 < len(text) < HISTORY_MAX_BYTES * 1.1
    assert "(earlier messages are left out)\n- user: " in text
    assert "- user: 99 x" in text
    assert "- user: 1 x" not in text
    assert text.endswith("\n\ndo it")
    assert prompt(inputs, inputs, "r", gone=False) == "do it"
    assert prompt([], [], "r", gone=False) == "Go on."


def test_a_prompt_names_the_files_of_messages_and_results() -> None:
    cat, note = MediaPart("a", "image/png", 10, "cat.png"), "[This file is not shown: cat.png, image/png, 10 bytes]"
    alone = Message("m1", "user", "", run_id="r", parts=(cat,))
    assert prompt([alone], [alone], None, gone=False) == note
    between = Message("m2", "user", "a\n\nb", run_id="s", parts=(TextPart("a"), cat, TextPart("b")))
    assert prompt([between], [between], None, gone=False) == f"a\n\n{note}\n\nb"
    said = Message("m3", "assistant", "a cat", run_id="r", parts=(TextPart("a cat"), cat))
    result = Message("m4", "tool", "drawn", run_id="r", outcome="finished", parts=(cat,))
    text = prompt([alone, said, result, between], [between], None, gone=False)
    told = f"- user: {note}\n- assistant: a cat\n\n{note}\n- tool a call: drawn\n\n{note}\n"
    assert told in text, text
