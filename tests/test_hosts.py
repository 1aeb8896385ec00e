"""Agents in real hosts, from end to end: however a run ends, nobody is left, and its receipt says what was there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import Receipt
from actors.model import How, Mode, PartKind, Policy, Row, RunInfo
from supervisor import SessionHandle, Supervisor
from supervisor.agent import Agent
from supervisor.containment.guard import procfs
from supervisor.hosts import host as host_module
from supervisor.hosts.host import HostState
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, settled, stop, until

TESTS = Path(__file__).parent
RUNTIME = TESTS.parent / "supervisor" / "hosts" / "countermand_host.py"
LONG_S = 60.0
"""Longer than any test: what has to end ends by what the test does."""


def hosted(kit: Kit, run: str = "hosted_agents:agent", **options: Any) -> Agent:
    """An agent of `hosted_agents` in hosts that carry the mark of the test."""
    return Agent(run=run, env={kit.mark: "1"}, **{"path": [str(TESTS)], "spares": 0, **options})


def session_of(kit: Kit, spec: Agent | None = None, **options: Any) -> SessionHandle:
    return kit.start(spec or hosted(kit), **options).session("s1")


def run_of(session: SessionHandle, run_id: str) -> RunInfo:
    return next(run for run in session.runs() if run.run_id == run_id)


def receipt_of(session: SessionHandle, run_id: str) -> Receipt:
    return session.receipt(run_of(session, run_id).receipt_id, timeout=WAIT_S)


def texts(session: SessionHandle, run_id: str | None = None) -> list[str]:
    return [
        event.data["text"]
        for event in log(session)
        if event.kind == "text" and (run_id is None or event.run_id == run_id)
    ]


def until_said(session: SessionHandle, text: str, run_id: str | None = None) -> None:
    until(lambda: any(text in said for said in texts(session, run_id)), f"it to say {text!r}")


def ended(session: SessionHandle, run_id: str) -> RunInfo:
    until(lambda: run_of(session, run_id).ended_at is not None, "the run to end")
    return run_of(session, run_id)


def host_row(receipt: Receipt) -> Row:
    """The row of the host in a receipt: below the agent's, or beside it."""
    return next(row for row in rows(receipt) if row.kind is PartKind.PROCESS and row.name == "host test")


def asleep(session: SessionHandle, content: str, **options: Any) -> str:
    """Begin a run that goes on, and wait until it has begun."""
    run_id = say(session, content, **options)
    until(lambda: texts(session, run_id), "it to begin")
    return run_id


def ledgers(kit: Kit) -> list[str]:
    return sorted(path.name for path in (kit.state_dir / "wardens").iterdir() if path.suffix == ".ledger")


def none_left(kit: Kit, receipt: Receipt) -> None:
    assert receipt.complete, receipt
    assert kit.alive() == []


def next_turn_works(session: SessionHandle) -> None:
    run_id = say(session, "say again")
    assert ended(session, run_id).status == "completed"
    assert texts(session, run_id) == ["said: again"]
    check_rest(session)


# ── A run ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_agent_in_a_host_says_calls_and_returns(kit: Kit) -> None:
    session = session_of(kit, grace_s=LONG_S)
    run_id = say(session, "call echo hello from $$")
    run = ended(session, run_id)
    assert (run.status, run.result) == ("completed", "finished")
    assert texts(session)[0].startswith("called: hello from ")
    receipt = receipt_of(session, run_id)
    assert host_row(receipt).how in (How.SIGTERM, How.EXIT)
    assert {row.kind for row in receipt.rows} >= {PartKind.AGENT}
    none_left(kit, receipt)
    next_turn_works(session)


def test_a_function_of_the_agents_own_is_gated(kit: Kit) -> None:
    session = session_of(kit)
    run_id = say(session, "gate quiet")
    assert ended(session, run_id).result == "QUIET"
    events = [event for event in check_rest(session) if event.run_id == run_id]
    asked = next(event.data for event in events if event.kind == "tool.requested")
    assert (asked["tool"], asked["arguments"]) == ("upper", {"text": "quiet"})
    assert (asked["provider_id"], asked["where"]) == ("toolu_01", "host")
    done = next(event.data for event in events if event.kind == "tool.ended")
    assert (done["outcome"], done["content"]) == ("finished", "QUIET")


def test_a_plain_agent_in_a_host_calls(kit: Kit) -> None:
    session = session_of(kit, hosted(kit, "hosted_agents:plain"))
    run_id = say(session, "call printf plain")
    assert ended(session, run_id).result == "plain"


def test_an_agent_that_raises_fails_its_run_with_what_it_raised(kit: Kit) -> None:
    session = session_of(kit)
    run = ended(session, say(session, "raise no good"))
    assert (run.status, run.error) == ("failed", "ValueError: no good")
    next_turn_works(session)


def test_each_run_has_a_host_of_its_own_and_a_spare_makes_it_ready(kit: Kit) -> None:
    session = session_of(kit, hosted(kit, spares=1))
    assert kit.supervisor is not None
    until(lambda: states(kit.supervisor) == [HostState.SPARE], "a spare")
    (spare,) = kit.alive()
    first = ended(session, say(session, "say one"))
    assert first.result["pid"] == spare
    until(lambda: states(kit.supervisor) == [HostState.SPARE], "the next spare")
    second = ended(session, say(session, "say two"))
    assert second.result["pid"] != spare
    assert first.result["heard"] == 2
    assert second.result["heard"] == 4, "the thread is the session's, not the host's"


def states(supervisor: Supervisor | None) -> list[HostState]:
    assert supervisor is not None
    return sorted(host.state for agent in supervisor.hosts() for host in agent.hosts)


def test_more_is_said_than_there_is_credit_for_at_once(kit: Kit) -> None:
    session = session_of(kit)
    run_id = asleep(session, "flood")
    until(lambda: len(texts(session, run_id)) > 2_000, "much to be said")
    stop(session, run_id=run_id)
    receipt = receipt_of(session, run_id)
    none_left(kit, receipt)
    check_rest(session)


# ── A Stop ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("run", ["hosted_agents:agent", "hosted_agents:plain"])
def test_an_agent_that_is_stopped_cleans_up_once_and_its_host_is_proven_dead(
    kit: Kit, tmp_path: Path, run: str
) -> None:
    session = session_of(kit, hosted(kit, run), grace_s=LONG_S)
    run_id = asleep(session, f"sleep {tmp_path}/cleaned")
    stop(session)
    receipt = receipt_of(session, run_id)
    assert (tmp_path / "cleaned").read_text().count("cleaned up") == 1
    assert receipt.provenance is not None
    assert receipt.provenance.source == "user.test"
    agent_row = next(row for row in rows(receipt) if row.kind is PartKind.AGENT)
    assert agent_row.how is How.CANCELLED
    assert host_row(receipt).how is How.SIGTERM
    none_left(kit, receipt)
    next_turn_works(session)


@pytest.mark.parametrize("what", ["children", "swallow", "block", "thread", "fork", "flood"])
@pytest.mark.parametrize("mode", [Mode.GRACEFUL, Mode.IMMEDIATE])
def test_whatever_it_has_started_ends_with_a_stop(kit: Kit, what: str, mode: Mode) -> None:
    session = session_of(kit)
    run_id = asleep(session, what)
    assert kit.alive()
    stop(session, mode=mode)
    receipt = receipt_of(session, run_id)
    said = len(texts(session, run_id))
    none_left(kit, receipt)
    assert receipt.reaped >= 1
    assert "said after the stop" not in texts(session)
    assert len(texts(session, run_id)) == said
    next_turn_works(session)


def test_a_stop_ends_a_call_of_the_daemons_that_the_host_waits_for(kit: Kit) -> None:
    session = session_of(kit)
    run_id = say(session, "call " + kit.script("trap '' TERM; echo up; sleep 1000").replace("\n", "; "))
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "the command to run")
    stop(session)
    none_left(kit, receipt_of(session, run_id))
    done = next(event.data for event in log(session) if event.kind == "tool.ended")
    assert done["outcome"] == "interrupted"
    next_turn_works(session)


def test_a_stop_ends_a_function_that_is_gated_and_its_call_is_interrupted(kit: Kit, tmp_path: Path) -> None:
    session = session_of(kit, grace_s=LONG_S)
    run_id = asleep(session, f"gated_sleep {tmp_path}/cleaned")
    stop(session)
    none_left(kit, receipt_of(session, run_id))
    assert (tmp_path / "cleaned").read_text() == "closure cleaned up\n"
    done = next(event.data for event in log(session) if event.kind == "tool.ended")
    assert done["outcome"] == "interrupted"


def test_a_stop_before_the_host_has_said_hello_ends_it_without_a_run(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)\nasync def agent(turn): ...\n")
    session = session_of(kit, hosted(kit, "slow:agent", path=[str(tmp_path)]))
    run_id = say(session, "anything")
    until(kit.alive, "the host to start")
    stop(session)
    receipt = receipt_of(session, run_id)
    none_left(kit, receipt)
    assert run_of(session, run_id).status == "cancelled"


# ── Other ends ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["children", "swallow", "block"])
def test_a_takeover_ends_the_earlier_run_and_the_later_one_works(kit: Kit, what: str) -> None:
    session = session_of(kit)
    first = asleep(session, what)
    second = say(session, "call echo taken over", policy=Policy.INTERRUPT)
    assert ended(session, second).status == "completed"
    assert texts(session, second) == ["called: taken over"]
    # The host of the later run ends after that run.
    receipt_of(session, second)
    none_left(kit, receipt_of(session, first))
    events = check_rest(session)
    # The later run's call waited for the proof that the earlier one is gone (the barrier).
    filed = next(e.seq for e in events if e.kind == "run.ended" and e.run_id == first)
    started = next(e.seq for e in events if e.kind == "tool.started" and e.run_id == second)
    assert filed < started or "session.barrier_forced" in [e.kind for e in events]


def test_an_agent_whose_runs_do_not_overlap_begins_when_the_earlier_one_is_gone(kit: Kit) -> None:
    session = session_of(kit, hosted(kit, overlap=False))
    first = asleep(session, "swallow")
    second = say(session, "say after it", policy=Policy.INTERRUPT)
    assert ended(session, second).status == "completed"
    events = check_rest(session)
    filed = next(e.seq for e in events if e.kind == "run.ended" and e.run_id == first)
    said = next(e.seq for e in events if e.kind == "text" and e.run_id == second)
    assert filed < said


@pytest.mark.parametrize("what", ["sleep", "swallow", "block"])
def test_a_run_that_takes_too_long_expires_and_no_process_is_left(kit: Kit, what: str) -> None:
    session = session_of(kit, run_deadline_s=1.0)
    run_id = say(session, what)
    assert ended(session, run_id).status == "expired"
    none_left(kit, receipt_of(session, run_id))


def test_a_shutdown_ends_runs_and_spares(kit: Kit) -> None:
    session = session_of(kit, hosted(kit, spares=2))
    assert kit.supervisor is not None
    asleep(session, "swallow")
    until(lambda: states(kit.supervisor).count(HostState.SPARE) == 2, "two spares")
    assert kit.close(0.0)
    assert kit.alive() == []


def test_an_idle_supervisor_ends_its_spares_when_it_is_closed(kit: Kit) -> None:
    session_of(kit, hosted(kit, spares=2))
    until(lambda: states(kit.supervisor) == [HostState.SPARE] * 2, "two spares")
    assert kit.close()
    assert kit.alive() == []
    assert ledgers(kit) == []


# ── Hosts that fail ───────────────────────────────────────────────────────────────────────────────

FAILURES = {
    "exit 0": "ended: exit status 0; its output ends:\nlast words",
    "exit 7": "ended: exit status 7; its output ends:\nlast words",
    "segv": "ended: killed by SIGSEGV",
    "kill SIGKILL": "ended: killed by SIGKILL",
    "kill SIGTERM": "ended: killed by SIGTERM",
    "close": "closed its connection",
    "write hello": "host.protocol",
    "write {}": "host.protocol",
    "long": "host.protocol",
    "overdraw": "it said more than it has credit for",
}


@pytest.mark.parametrize(("what", "error"), FAILURES.items(), ids=FAILURES)
def test_a_host_that_fails_fails_its_run_clearly_and_the_next_one_works(
    kit: Kit, what: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what != "close":
        # The end of its process is the better reason, and may be heard late.
        monkeypatch.setattr(host_module, "EXIT_S", WAIT_S)
    session = session_of(kit)
    run_id = say(session, what)
    run = ended(session, run_id)
    assert run.status == "failed"
    assert error in str(run.error)
    none_left(kit, receipt_of(session, run_id))
    next_turn_works(session)


def test_a_host_that_wants_too_much_memory_fails_alone(kit: Kit) -> None:
    session = session_of(kit, hosted(kit, limits={"as_bytes": 1_000_000_000}))
    run = ended(session, say(session, "memory"))
    assert run.status == "failed"
    assert "MemoryError" in str(run.error)
    next_turn_works(session)


def test_a_host_that_fails_leaves_no_process_that_it_has_started(kit: Kit) -> None:
    session = session_of(kit)
    run_id = asleep(session, "children")
    pids = [int(pid) for pid in texts(session, run_id)[0].split()]
    (own,) = [pid for pid in kit.alive() if pid not in pids]
    os.kill(own, 9)
    run = ended(session, run_id)
    assert (run.status, "killed by SIGKILL" in str(run.error)) == ("failed", True)
    none_left(kit, receipt_of(session, run_id))


def test_an_agent_that_cannot_be_imported_fails_its_runs_and_no_others(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("print('on the way')\nimport nothing_of_this_name\n")
    session = session_of(kit, hosted(kit, "broken:agent", path=[str(tmp_path)], spares=1))
    until(lambda: kit.supervisor is not None and kit.supervisor.hosts()[0].broken, "it to be broken")
    run = ended(session, say(session, "anything"))
    assert run.status == "failed"
    assert "nothing_of_this_name" in str(run.error)
    assert kit.supervisor is not None
    until(lambda: kit.supervisor.hosts()[0].output == "on the way\n", "its output")  # type: ignore[union-attr]
    # It is mended, and reloaded.
    (tmp_path / "broken.py").write_text("async def agent(turn):\n    await turn.emit('mended')\n")
    kit.supervisor.reload_hosts()
    run_id = say(session, "anything")
    assert ended(session, run_id).status == "completed"
    assert texts(session) == ["mended"]


def test_an_agent_has_its_own_tools_its_variables_and_its_modules(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import os
from countermand import tool

@tool(isolation="thread")
def double(number: int) -> int:
    return 2 * number

async def agent(turn):
    found = await turn.call("double", number=21)
    await turn.emit(f"{found.content} {os.environ['KEY']} {os.environ['MODEL']} {os.getcwd()}")
    await turn.emit(f" {[one['name'] for one in turn.tools]} {os.environ.get('COUNTERMAND_PATH')}")
"""
    )
    (tmp_path / "secrets").write_text("KEY='hush'\nMODEL=large\n")
    agent = Agent(
        run="mine:agent",
        path=[str(tmp_path)],
        cwd=str(tmp_path),
        env={kit.mark: "1", "MODEL": "small"},
        env_files=[str(tmp_path / "secrets")],
        tools=["mine:double"],
    )
    session = session_of(kit, agent)
    run = ended(session, say(session, "anything"))
    assert run.status == "completed", run
    assert "".join(texts(session)) == f"42 hush small {tmp_path} ['double'] None"


def test_a_command_that_is_not_there_fails_its_runs(kit: Kit) -> None:
    session = session_of(kit, Agent(command=["/no/such/command"]))
    run = ended(session, say(session, "anything"))
    assert run.status == "failed"
    assert "/no/such/command" in str(run.error)


# ── Kept hosts ────────────────────────────────────────────────────────────────────────────────────


def kept_session(kit: Kit, **options: Any) -> SessionHandle:
    return session_of(kit, hosted(kit, keep="session", **options))


def test_a_kept_host_runs_the_sessions_next_runs(kit: Kit) -> None:
    session = kept_session(kit)
    first = ended(session, say(session, "say one"))
    # The end of a run is on record before its host is handed over.
    until(lambda: states(kit.supervisor) == [HostState.KEPT], "the host to be kept")
    receipt = receipt_of(session, first.run_id)
    assert (receipt.complete, host_row(receipt).how) == (True, How.HANDED_OVER)
    second = ended(session, say(session, "say two"))
    assert second.result["pid"] == first.result["pid"]
    assert kit.supervisor is not None
    other = kit.supervisor.session("s2")
    third = ended(other, say(other, "say three"))
    assert third.result["pid"] != first.result["pid"], "another session has another host"


def test_each_run_in_a_kept_host_has_the_whole_thread(kit: Kit) -> None:
    session = kept_session(kit)
    pids = set()
    for content in ("recall 1", "gate some text", "recall 2", "raise", "recall 3", "recall 4"):
        run = ended(session, say(session, content))
        settled(session)
        if content.startswith("recall"):
            pids.add(run.result["pid"])
            thread = session.thread()
            assert thread.pop().content == f"recalled: {content[-1]}"
            calls = [[call.arguments for call in one.tool_calls] for one in thread]
            assert run.result["thread"] == [
                [one.id, one.role, one.content, made] for one, made in zip(thread, calls, strict=True)
            ]
    assert len(pids) <= 2, "the host is kept, at least from the end of a run to one that raises"


def test_a_stop_of_a_run_in_a_kept_host_ends_the_host(kit: Kit) -> None:
    session = kept_session(kit)
    first = ended(session, say(session, "say one"))
    run_id = asleep(session, "children")
    stop(session)
    receipt = receipt_of(session, run_id)
    none_left(kit, receipt)
    assert host_row(receipt).how in (How.SIGTERM, How.SIGKILL)
    again = ended(session, say(session, "say again"))
    assert again.result["pid"] != first.result["pid"]


def test_a_stop_that_finds_no_run_ends_a_kept_host(kit: Kit) -> None:
    session = kept_session(kit)
    ended(session, say(session, "say one"))
    assert kit.alive()
    stop(session)
    until(lambda: not kit.alive(), "the kept host to end")
    next_turn_works(session)


def test_what_a_kept_host_left_of_an_earlier_run_says_nothing(kit: Kit, tmp_path: Path) -> None:
    session = kept_session(kit)
    over = tmp_path / "over"
    ended(session, say(session, f"leave {over}"))
    over.touch()
    until(lambda: kit.supervisor is not None and kit.supervisor.hosts()[0].hosts[0].refused > 3, "it to go on")
    run_id = asleep(session, "sleep")
    stop(session)
    receipt_of(session, run_id)
    assert "said by what was left behind" not in texts(session)
    until(lambda: not kit.alive(), "everything of it to end")
    check_rest(session)


def test_a_kept_host_that_dies_is_replaced(kit: Kit) -> None:
    session = kept_session(kit)
    first = ended(session, say(session, "say one"))
    os.kill(first.result["pid"], 9)
    # Not before it is reaped: its first thread may be a zombie while another has the socket still.
    until(lambda: procfs.stat(first.result["pid"]) is None, "it to be reaped")
    settled(session)
    second = ended(session, say(session, "say two"))
    assert second.status == "completed", second
    assert second.result["pid"] != first.result["pid"]


def test_a_kept_host_that_is_idle_ends(kit: Kit) -> None:
    session = kept_session(kit, keep_idle_s=0.2)
    ended(session, say(session, "say one"))
    until(lambda: not kit.alive(), "it to end")
    next_turn_works(session)


# ── The daemon is killed ──────────────────────────────────────────────────────────────────────────


def test_hosts_in_every_state_die_with_the_daemon_and_each_run_is_closed(kit: Kit, tmp_path: Path) -> None:
    script = """
import sys
from tests.kit import Kit, say
from tests.test_hosts import hosted
from actors.requests import NewMessage
from supervisor import Config, Supervisor
from supervisor.agent import Agent
from pathlib import Path
kit = Kit(Path(sys.argv[1])); kit.mark = sys.argv[2]
agents = {
    "test": hosted(kit, spares=1),
    "keeping": hosted(kit, keep="session", spares=0),
}
supervisor = Supervisor.start(Config(state_dir=kit.state_dir, agents=agents, agent="test", grace_s=0.3, kill_s=1.0))
say(supervisor.session("s1"), "children")
say(supervisor.session("s2"), "swallow")
print("up", flush=True)
import time
time.sleep(1000)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(kit.state_dir), kit.mark],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        # Two hosts with a run, their children, and a spare.
        until(lambda: len(kit.alive()) >= 7, "everything to run")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    until(lambda: not kit.alive(), "everybody to die with the daemon")
    supervisor = kit.start(hosted(kit))
    for name in ("s1", "s2"):
        session = supervisor.session(name)
        until(lambda session=session: session.runs()[0].settled, "the receipt")  # type: ignore[misc]
        receipt = session.receipt(session.runs()[0].receipt_id, timeout=WAIT_S)
        assert receipt.complete, receipt
        assert host_row(receipt)
        next_turn_works(session)
    # The spare's ledger is gone; no row names it.
    until(lambda: ledgers(kit) == [], "the ledgers to be removed")
