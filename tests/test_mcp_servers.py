"""MCP servers of the configuration, with the official SDK on both sides: they go on between runs, and end with a Stop.

Each is below the host that its session keeps. So each end of a run that is no end by itself is tried with a server that
does as it is asked, and with one that does nothing that it is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Answer
from supervisor import Agent, McpServer, SessionHandle
from supervisor.containment.guard import procfs
from supervisor.http.agents import agent_entries
from tests.ends_kit import receipt_of, run_of, said
from tests.kit import WAIT_S, Kit, check_rest, kit, log, say, settled, stop, until
from tests.model_kit import PRESETS
from tests.model_kit import options as model_options
from tests.scripted_moments import Moments
from tests.scripted_moments import serving as provider_serving
from tests.scripted_provider import PROVIDERS
from tests.test_sdks import INSTALL_S, PYTHON, ROOT, sdks

__all__ = ["kit", "sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)

FOR_ALL = {"PYTHONDONTWRITEBYTECODE": "1"}
SECRET = "its-secret-0123"


def on_stdio(kit: Kit, kind: str, *, tee: Path | None = None, **options: Any) -> McpServer:
    """A server of `mcp_servers`; `tee`: a file with all that it is sent."""
    env = {kit.mark: "1", **FOR_ALL, **options.pop("env", {})}
    command, *args = [PYTHON, "-m", "tests.mcp_servers", kind]
    if tee is not None:
        command, args = "sh", ["-c", 'f=$1; shift; tee "$f" | "$@"', "sh", str(tee), command, *args]
    return McpServer(command=command, args=args, cwd=str(ROOT), env=env, **options)


def agent(kit: Kit, *names: str, **options: Any) -> Agent:
    run = {"run": "tests.mcp_agents:steps", "python": PYTHON, "path": [str(ROOT)], "spares": 0}
    chosen: dict[str, Any] = {**run, **options}
    return Agent(mcp=names, env={kit.mark: "1", **FOR_ALL}, **chosen)


def session(kit: Kit, grace_s: float = 1.0, **servers: McpServer) -> SessionHandle:
    return kit.start(agent(kit, *servers), mcp=servers, grace_s=grace_s).session("s1")


def ask(session: SessionHandle, *steps: list[Any]) -> str:
    return say(session, json.dumps(steps))


def came(session: SessionHandle, run_id: str) -> list[Any]:
    """What came of the steps of a run, which ends by itself."""
    receipt_of(session, run_id)
    run = session.run(run_id)
    assert (run.status, run.error) == ("completed", None)
    assert isinstance(run.result, list)
    return run.result


def done(session: SessionHandle, *steps: list[Any]) -> list[Any]:
    return came(session, ask(session, *steps))


def pid_of(session: SessionHandle, name: str) -> int:
    """The pid of a server, as it says in a run of its own."""
    ((outcome, content, is_error),) = done(session, ["call", f"{name}_pid", {}])
    assert (outcome, is_error) == ("finished", False)
    return int(content)


def methods(sent: Path) -> list[str]:
    """What a server was sent."""
    return [str(json.loads(line).get("method")) for line in sent.read_text().splitlines()]


def states(kit: Kit) -> dict[str, tuple[str, int | None, str]]:
    """The servers of the only host, as people are shown them."""
    assert kit.supervisor is not None
    (entry,) = (one for one in agent_entries(kit.supervisor) if one.hosts)
    (host,) = entry.hosts
    return {one.name: (one.state, one.tools, one.why) for one in host.mcp}


def command(pid: int) -> bytes:
    """The command of a process; of one that has ended, nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def served(sdks: None) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server that is somebody else's, on a port: its URL, and what starts it anew."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = list[subprocess.Popen[bytes]]()

    def end() -> None:
        for process in running:
            process.kill()
            process.wait()
        running.clear()

    def start() -> None:
        end()
        command = [PYTHON, "-m", "tests.mcp_servers", "cancels", str(port)]
        running.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        until(answers, "the server answers")

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    start()
    yield f"http://127.0.0.1:{port}/mcp", start
    end()


# ── Between runs ──────────────────────────────────────────────────────────────────────────────────


def test_a_server_goes_on_between_runs_and_the_next_one_sees_what_has_changed_in_it(sdks: None, kit: Kit) -> None:
    used = session(kit, changing=on_stdio(kit, "changing", deny=["header"], ask=["note"]))
    run_id = ask(used, ["list"], ["call", "changing_pid", {}], ["call", "changing_learn", {}], ["list"])
    (before, broken), (_, pid, _), learnt, (after, _) = came(used, run_id)
    assert (sorted(before), broken) == (
        ["changing_learn", "changing_note", "changing_pid", "changing_say", "changing_variable"],
        {},
    )
    assert learnt == ["finished", "learnt", False]
    assert "changing_learn" not in after
    run_id = ask(used, ["call", "changing_shout", {"word": "on"}], ["call", "changing_note", {"text": "asked"}])
    until(lambda: used.status().asking, "the approval is asked for")
    used.ask(Answer(call_id=used.status().asking[0].call_id, allow=True), timeout=WAIT_S)
    assert came(used, run_id) == [["finished", "ON!", False], ["finished", "noted asked", False]]
    assert pid_of(used, "changing") == int(pid)
    check_rest(used)
    assert states(kit) == {"changing": ("running", 5, "")}
    assert kit.supervisor is not None
    (shown,) = [one for one in kit.supervisor.processes() if one.pid == int(pid)]
    assert (shown.session, shown.leader) == ("s1", False)
    # It has died between two runs: the next one begins with another.
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: procfs.stat(int(pid)) is None, "it to be reaped")
    assert pid_of(used, "changing") != int(pid)
    kit.close()
    assert kit.alive() == []


def test_a_session_has_servers_of_its_own_which_get_their_variables_and_not_those_of_others(
    sdks: None, kit: Kit, tmp_path: Path
) -> None:
    file = tmp_path / "env"
    file.write_text(f"TOKEN={SECRET}\n")
    mine = on_stdio(kit, "changing", env={"PLAIN": "plain"}, env_files=[str(file)])
    first = session(kit, mine=mine, other=on_stdio(kit, "cancels"))
    assert kit.supervisor is not None
    second = kit.supervisor.session("s2")
    assert pid_of(first, "mine") != pid_of(second, "mine")
    names = [("mine", "PLAIN"), ("mine", "TOKEN"), ("other", "TOKEN"), ("mine", "COUNTERMAND_MCP")]
    found = done(first, *(["call", f"{server}_variable", {"name": name}] for server, name in names))
    assert [text for _, text, _ in found] == ["plain", SECRET, "it is not there", "it is not there"]
    marker = done(first, ["call", "mine_variable", {"name": "COUNTERMAND_TREE"}])[0][1]
    assert marker != "it is not there", "what is left of it would not be found"
    # In no event but the result of the call that asked for it.
    shown = [event for event in log(first) if SECRET in str(event)]
    assert [event.kind for event in shown if event.kind != "tool.ended"] in ([], ["run.status"])
    check_rest(first)


def test_a_server_by_url_gets_its_headers_and_is_found_again_when_it_was_started_anew(
    kit: Kit, tmp_path: Path, served: tuple[str, Callable[[], None]]
) -> None:
    url, start_anew = served
    file = tmp_path / "env"
    file.write_text(f"TOKEN={SECRET}\n")
    server = McpServer(url=url, headers={"Authorization": "Bearer ${TOKEN}"}, env_files=[str(file)])
    used = session(kit, there=server)
    shown = done(used, ["call", "there_header", {"name": "authorization"}])
    assert shown == [["finished", f"Bearer {SECRET}", False]]
    pid = pid_of(used, "there")
    start_anew()
    assert pid_of(used, "there") != pid
    check_rest(used)


# ── A Stop ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["cancels", "stubborn"])
def test_l3_a_stop_in_a_call_sends_the_cancel_and_ends_the_server_whatever_it_does(
    sdks: None, kit: Kit, tmp_path: Path, kind: str
) -> None:
    note, sent = tmp_path / "note", tmp_path / "sent"
    used = session(kit, WAIT_S, files=on_stdio(kit, kind, tee=sent))
    pid = pid_of(used, "files")
    run_id = ask(used, ["call", "files_hold", {"note": str(note)}])
    until(note.exists, "the call is in the server")
    stop(used)
    # No grace is so long that it has certainly come there by then.
    until(lambda: methods(sent)[-1] == "notifications/cancelled", "the cancel is in the server")
    stop(used, mode="immediate")
    receipt = receipt_of(used, run_id)
    assert receipt.complete
    assert kit.alive() == []
    assert methods(sent)[-1] == "notifications/cancelled"
    (ended,) = [event for event in check_rest(used) if event.kind == "tool.ended" and event.run_id == run_id]
    assert ended.data["outcome"] == "interrupted"
    assert pid_of(used, "files") != pid
    kit.close()
    assert kit.alive() == []


def test_l3_a_stop_while_a_server_starts_ends_it(sdks: None, kit: Kit, tmp_path: Path) -> None:
    note = tmp_path / "note"
    used = session(kit, files=on_stdio(kit, "starting", env={"NOTE": str(note)}))
    run_id = ask(used, ["list"])
    until(lambda: note.exists() and note.read_text(), "it starts")
    stop(used)
    assert receipt_of(used, run_id).complete
    assert kit.alive() == []
    check_rest(used)


@pytest.mark.parametrize("kind", ["cancels", "stubborn", "daemon"])
def test_l3_a_stop_between_two_calls_or_two_runs_ends_the_servers(
    sdks: None, kit: Kit, tmp_path: Path, kind: str
) -> None:
    used = session(kit, files=on_stdio(kit, kind))
    pid = pid_of(used, "files")
    run_id = ask(used, ["call", "files_say", {"word": "hello"}], ["wait", str(tmp_path / "waits")])
    until((tmp_path / "waits").exists, "it waits")
    stop(used)
    assert receipt_of(used, run_id).complete
    assert kit.alive() == []
    again = pid_of(used, "files")
    assert again != pid
    settled(used)
    stop(used)
    until(lambda: not kit.alive(), "the kept host and its servers to end")
    check_rest(used)


def test_l4_a_message_that_takes_over_begins_when_the_servers_of_the_run_before_have_ended(
    sdks: None, kit: Kit, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    # It does not end before.
    used = session(kit, 4.0, files=on_stdio(kit, "stubborn"))
    pid = pid_of(used, "files")
    held = ask(used, ["call", "files_hold", {"note": str(note)}])
    until(note.exists, "the call is in the server")
    found = done(used, ["there", pid], ["call", "files_pid", {}])
    assert found[0] is False
    assert int(found[1][1]) != pid
    assert receipt_of(used, held).complete
    check_rest(used)


def test_l3_servers_die_with_their_daemon_in_a_call_and_between_runs(sdks: None, kit: Kit, tmp_path: Path) -> None:
    script = """
import sys, threading
from pathlib import Path
from tests.kit import Kit, until
from tests.test_mcp_servers import ask, on_stdio, pid_of, session
kit = Kit(Path(sys.argv[1]))
kit.mark = sys.argv[2]
note = Path(sys.argv[3])
used = session(kit, files=on_stdio(kit, "stubborn"), other=on_stdio(kit, "daemon"))
pid_of(used, "other")
idle = kit.supervisor.session("s2")
pid_of(idle, "files")
ask(used, ["call", "files_hold", {"note": str(note)}])
until(note.exists, "the call is in the server")
print("reached", flush=True)
threading.Event().wait()
"""
    argv = [sys.executable, "-c", script, str(kit.state_dir), kit.mark, str(tmp_path / "note")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        child.kill()
    until(lambda: not kit.alive(), "everything to die with the daemon")
    used = session(kit, files=on_stdio(kit, "cancels"))
    killed = used.runs()[-1]
    assert receipt_of(used, killed.run_id).complete
    assert done(used, ["call", "files_say", {"word": "on"}]) == [["finished", "ON", False]]
    check_rest(used)


# ── Servers that fail ─────────────────────────────────────────────────────────────────────────────


def test_l14_a_server_that_dies_in_its_calls_is_started_again_so_often_in_a_run_and_in_the_next_one(
    sdks: None, kit: Kit
) -> None:
    used = session(kit, dying=on_stdio(kit, "dying"), gone=McpServer(command="/no/such/program"))
    *died, (tools, broken) = done(used, *[["call", "dying_die", {}]] * 4, ["list"])
    ended = "the MCP server dying has ended, and the call may have had effects"
    assert [(outcome, ended in text, is_error) for outcome, text, is_error in died] == [("finished", True, True)] * 4
    assert tools == []
    assert broken["dying"] == (
        "the MCP server dying has ended 4 times in this run; the last time: the MCP server dying has ended"
    )
    assert broken["gone"].startswith("the MCP server gone has ended 4 times in this run; the last time: [Errno 2]")
    assert states(kit)["dying"] == ("ended", None, "the MCP server dying has ended")
    assert states(kit)["gone"][2].startswith("[Errno 2] No such file")
    found = done(used, ["list"], ["call", "dying_say", {"word": "on"}])
    assert found[1] == ["finished", "ON", False]
    assert found[0][1]["gone"].startswith("the MCP server gone does not start: [Errno 2] No such file")
    check_rest(used)


def test_l13_a_tool_that_cannot_be_offered_is_left_out_and_the_others_are_there(sdks: None, kit: Kit) -> None:
    used = session(kit, odd=on_stdio(kit, "odd"))
    (tools, broken), called = done(used, ["list"], ["call", "odd_say", {"word": "on"}])
    assert tools == ["odd_header", "odd_note", "odd_pid", "odd_say", "odd_variable"]
    assert "its tool count is left out: the schema of the tool 'odd_count' is not valid" in broken["odd"]
    assert called == ["finished", "ON", False]
    check_rest(used)


def test_two_lists_at_once_of_a_server_that_has_died_get_the_one_that_is_started_anew(sdks: None, kit: Kit) -> None:
    files = on_stdio(kit, "cancels")
    chosen = agent(kit, "files", run="tests.mcp_agents:together")
    used = kit.start(chosen, mcp={"files": files}).session("s1")
    assert came(used, say(used)) == [{}, {}]
    check_rest(used)


def test_a_server_that_answers_nothing_after_a_call_was_given_up_is_ended_and_another_one_goes_on(
    sdks: None, kit: Kit, tmp_path: Path
) -> None:
    deaf = on_stdio(kit, "stubborn", grace_s=0.5)
    used = session(kit, deaf=deaf, good=on_stdio(kit, "cancels", grace_s=WAIT_S))
    pid, good = pid_of(used, "deaf"), pid_of(used, "good")
    found = done(
        used,
        ["bound", "START_S", 10 * WAIT_S],
        ["give up", "good_hold", {"note": str(tmp_path / "good")}],
        ["call", "good_pid", {}],
        ["give up", "deaf_hold", {"note": str(tmp_path / "deaf")}],
        ["call", "deaf_pid", {}],
    )
    assert (found[0], found[1]) == (True, ["finished", str(good), False])
    assert found[2] is True
    assert found[3][0] == "finished"
    assert int(found[3][1]) != pid
    until(lambda: procfs.stat(pid) is None, "it is ended")
    check_rest(used)
    kit.close()
    assert kit.alive() == []


def test_l14_a_server_that_does_not_start_in_its_time_has_no_tools_and_is_ended(
    sdks: None, kit: Kit, tmp_path: Path
) -> None:
    slow = on_stdio(kit, "starting", env={"NOTE": str(tmp_path / "note")})
    used = session(kit, slow=slow)
    ((tools, broken),) = done(used, ["bound", "START_S", 0.5], ["list"])
    assert tools == []
    assert broken == {"slow": "the MCP server slow took more than 0.5 s to start, or to list its tools"}
    until(lambda: not [pid for pid in kit.alive() if b"starting" in command(pid)], "it is ended")
    assert kit.alive(), "its host goes on"
    check_rest(used)


# ── A model ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model(tmp_path: Path) -> Iterator[tuple[Moments, Callable[..., Agent]]]:
    """A provider, and what makes an agent of it."""
    moments = Moments(tmp_path / "reached", "key")
    (tmp_path / "key").write_text("key")
    with provider_serving(moments) as url:

        def agent(kit: Kit, preset: str, *names: str) -> Agent:
            chosen = model_options(preset, url, kit.mark, key_file=str(tmp_path / "key"), ask=[])
            return Agent(**{**chosen, "mcp": names})

        yield moments, agent
    assert not moments.refused


@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_gets_the_tools_of_its_servers_by_one_line(
    sdks: None, kit: Kit, model: tuple[Moments, Callable[..., Agent]], preset: str
) -> None:
    moments, agent = model
    servers = {"files": on_stdio(kit, "changing", ask=["note"]), "gone": McpServer(command="/no/such/program")}
    used = kit.start(agent(kit, preset, *servers), mcp=servers).session("s1")
    run_id = say(used, "[do mcp mcp1]")
    until(lambda: len(used.status().asking) == 2 or run_of(used, run_id).ended_at, "a person is asked about both calls")
    for asked in used.status().asking:
        used.ask(Answer(call_id=asked.call_id, allow=True), timeout=WAIT_S)
    receipt_of(used, run_id)
    assert run_of(used, run_id).status == "completed", run_of(used, run_id)
    assert said(used, run_id).endswith("Done mcp1.")
    first, second = moments.requests["mcp1"]
    format_ = PROVIDERS[PRESETS[preset].provider]
    results = format_.results(second[format_.messages]).values()
    assert sorted(map(str, results)) == ["noted mcp1:first", "noted mcp1:hold"]
    offered = json.dumps(first["tools"])
    assert "files_say" in offered
    assert "shell" in offered
    shown = [event for event in log(used) if event.kind == "run.output" and "the MCP server gone" in str(event)]
    assert len(shown) == 1, "both requests have the same reason"
    kit.close()
    assert kit.alive() == []


def test_l3_a_stop_of_a_model_in_a_call_of_a_server_sends_the_cancel(
    sdks: None, kit: Kit, tmp_path: Path, model: tuple[Moments, Callable[..., Agent]]
) -> None:
    _, agent = model
    sent = tmp_path / "sent"
    servers = {"files": on_stdio(kit, "holding", tee=sent)}
    used = kit.start(agent(kit, "openai", "files"), mcp=servers, grace_s=WAIT_S).session("s1")
    run_id = say(used, "[do mcp mcp1]")
    until(lambda: [event for event in log(used) if event.kind == "tool.ended"], "one call has ended, and one holds")
    assert not run_of(used, run_id).ended_at
    until(lambda: methods(sent).count("tools/call") == 2, "both calls are in the server")
    stop(used)
    until(lambda: methods(sent)[-1] == "notifications/cancelled", "the cancel is in the server")
    stop(used, mode="immediate")
    assert receipt_of(used, run_id).complete
    assert kit.alive() == []
    assert methods(sent)[-1] == "notifications/cancelled"
    check_rest(used)
