"""What agents and tools start by themselves inside the supervisor's process: real processes, threads and tasks.

The file has over 600 lines, and is whole: all that is started is looked for with the same helpers.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pykka import ActorRef

from actors import AsyncTurn, CancelToken, Receipt, Row, Stop, Turn, tool
from actors.errors import ReceiptPending
from actors.messages import StrayEnded, StrayFound
from actors.model import Address, How, Isolation, PartKind
from actors.ports import ProcessRow
from supervisor import Agent, Config, Supervisor
from supervisor.clock import SystemClock
from supervisor.containment import offspring
from supervisor.containment.guard import procfs
from supervisor.containment.guard.ledger import MARKER
from supervisor.containment.guard.unix import readable
from supervisor.daemon.serve import DaemonExit
from supervisor.executor import _ON_THREADS
from supervisor.http.health import diagnose
from supervisor.live_tree import living
from supervisor.store.reader import SqliteReader
from supervisor.strays import attribution
from supervisor.strays.children import LOOKS_MAX, STARTS_MAX, UNKNOWN, _is_of
from supervisor.strays.reports import ENDED_MAX, OTHERS, STRAYS_MAX
from supervisor.strays.run_end import LEFT_OUT, NAMED_BY_ANOTHER, ORPHANS, SERVED
from supervisor.strays.strays import Strays
from supervisor.strays.subreaper import PR_SET_CHILD_SUBREAPER, inherits_orphans
from tests.daemon_kit import Foreground, seed
from tests.daemon_plugins import starts
from tests.kit import GRACE_S, KILL_S, WAIT_S, alive, log, poison, rows, say, settled, stop, until

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
open(sys.argv[1] + "." + str(os.getpid()), "w").close()
time.sleep(1000)
"""
ORPHAN = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
open(sys.argv[1] + "." + str(os.getpid()), "w").close()
time.sleep(1000)
"""
KEPT_TASKS: list[asyncio.Task[None]] = []
KEPT: list[subprocess.Popen[bytes]] = []
"""What nobody waits for, so that the collector does not complain of it."""


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """Orphans fall to this process for no longer than a test: those of later tests would stay zombies in it."""
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A path that is in the command line of every process of a test."""
    made = str(tmp_path / f"stray-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        for pid in alive(made):
            os.kill(pid, signal.SIGKILL)
        while KEPT:
            KEPT.pop().wait()


def command(mark: str, script: str = STUBBORN) -> list[str]:
    return [sys.executable, "-S", "-c", script, mark]


def up(mark: str, count: int = 2) -> bool:
    """True when so many of its processes have said that they run."""
    folder = Path(mark).parent
    return len([one for one in folder.iterdir() if one.name.startswith(Path(mark).name)]) >= count


def started(tmp_path: Path, agent: Any, *tools: Any, **options: Any) -> Supervisor:
    config: dict[str, Any] = {"grace_s": GRACE_S, "kill_s": KILL_S, "drain_s": 0.0, "subreaper": True} | options
    return Supervisor.start(
        Config(state_dir=tmp_path / "state", agent="mine", agents={"mine": agent}, tools=tools, **config)
    )


def receipt_of(supervisor: Supervisor, run_id: str) -> Receipt:
    return supervisor.session("s").receipt(run_id, timeout=WAIT_S)


def amended(supervisor: Supervisor, run_id: str) -> Receipt:
    """The receipt, once it is complete."""
    until(lambda: receipt_of(supervisor, run_id).complete, "the receipt to be amended")
    return receipt_of(supervisor, run_id)


def asked_to_end(supervisor: Supervisor) -> bool:
    """True when all processes that were found got their SIGTERM. None gets one if the grace is over before that."""
    with supervisor._strays._lock:
        found = [one.process for one in supervisor._strays._reports.strays.values() if one.process is not None]
        return bool(found) and all(one.signals for one in found)


def of_kind(receipt: Receipt, kind: str) -> list[Row]:
    return [row for row in rows(receipt) if row.kind == kind]


def call(name: str, **arguments: Any) -> Callable[[AsyncTurn], Any]:
    """An agent that makes one call, and waits."""

    async def agent(turn: AsyncTurn) -> None:
        await turn.call(name, **arguments)
        await asyncio.sleep(1000)

    return agent


# ── Ways in which a process is started ───────────────────────────────────────────────────────────────


def by_popen(mark: str) -> None:
    KEPT.append(subprocess.Popen(command(mark)))


def by_run(mark: str) -> None:
    subprocess.run(command(mark), check=False)


def by_system(mark: str) -> None:
    os.system(f"exec {sys.executable} -S -c '{STUBBORN}' {mark}")


def by_posix_spawn(mark: str) -> None:
    os.posix_spawn(sys.executable, command(mark), os.environ)


def by_fork(mark: str) -> None:
    if os.fork() == 0:  # noqa: TID251  # as foreign code does
        os.execv(sys.executable, command(mark))


def _becomes(mark: str) -> None:
    os.execv(sys.executable, command(mark))


def by_multiprocessing(mark: str) -> None:
    multiprocessing.get_context("fork").Process(target=_becomes, args=(mark,)).start()


def by_spawning(mark: str) -> None:
    multiprocessing.get_context("spawn").Process(target=_becomes, args=(mark,)).start()


PLAIN: list[Any] = [by_popen, by_run, by_system, by_posix_spawn, by_fork, by_multiprocessing, by_spawning]


async def by_asyncio(mark: str) -> None:
    process = await asyncio.create_subprocess_exec(*command(mark))
    await process.wait()


async def by_thread(mark: str) -> None:
    await asyncio.to_thread(by_run, mark)


async def by_executor(mark: str) -> None:
    await asyncio.get_running_loop().run_in_executor(None, by_run, mark)


async def by_task(mark: str) -> None:
    task = asyncio.create_task(by_asyncio(mark))
    await asyncio.shield(task)


AWAITED: list[Any] = [by_asyncio, by_thread, by_executor, by_task]


@pytest.mark.parametrize("way", PLAIN + AWAITED)
def test_l3_a_process_that_a_tool_starts_by_itself_is_ended_with_its_run_and_proven(
    tmp_path: Path, mark: str, way: Any
) -> None:
    if asyncio.iscoroutinefunction(way):

        @tool(isolation="task", name="starts")
        async def awaited() -> None:
            """Start one."""
            await way(mark)

        starts: Any = awaited
    else:

        @tool(isolation="thread", name="starts")
        def plain() -> None:
            """Start one."""
            way(mark)

        starts = plain
    with started(tmp_path, call("starts"), starts, grace_s=WAIT_S) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: up(mark) and set(alive(mark)) <= {one.pid for one in supervisor.processes()}, "both, in ps")
        assert {one.run_id for one in supervisor.processes()} == {run_id}
        stop(supervisor.session("s"))
        until(lambda: asked_to_end(supervisor), "they are asked to end")
        stop(supervisor.session("s"), mode="immediate")
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert not alive(mark)
        assert not supervisor.processes()
        (called,) = of_kind(receipt, "call")
        found = [row for row in called.rows if row.kind == "subprocess"]
        assert found, receipt
        assert [one.signal for one in found[0].signals] == ["SIGTERM", "SIGCONT", "SIGKILL"]
        assert any(row.rows for row in found), "the one below it, in a session of its own"
        # These wait for the process, and may take its status first.
        assert receipt.reaped >= (1 if way in (by_run, by_system) else 2)
        assert [own.wait() for own in KEPT] == [-signal.SIGKILL] * len(KEPT), "whoever waits reads it afterwards too"


def test_l3_a_stop_that_kills_at_once_kills_what_is_below_such_a_process_with_it(tmp_path: Path, mark: str) -> None:
    @tool(isolation="thread")
    def starts() -> None:
        """Start one."""
        by_run(mark)

    with started(tmp_path, call("starts"), starts, grace_s=60.0) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: up(mark), "both processes")
        until(supervisor.left, "it is known")
        stop(supervisor.session("s"), mode="immediate")
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert not alive(mark)


@pytest.mark.parametrize("way", [by_popen, by_asyncio])
def test_l3_what_an_agent_starts_by_itself_is_ended_when_its_run_has_come_to_its_own_end(
    tmp_path: Path, mark: str, way: Any
) -> None:
    async def agent(turn: AsyncTurn) -> str:
        if asyncio.iscoroutinefunction(way):
            await asyncio.create_subprocess_exec(*command(mark))
        else:
            way(mark)
        while not up(mark):  # noqa: ASYNC110  # of processes
            await asyncio.sleep(0.01)
        return turn.inputs[0].content

    with started(tmp_path, agent) as supervisor:
        receipt = receipt_of(supervisor, say(supervisor.session("s")))
        assert receipt.complete
        assert not alive(mark)
        (agent_row,) = receipt.rows
        (row,) = [one for one in agent_row.rows if one.kind == "subprocess"]
        assert row.provenance is not None
        assert row.provenance.source == "run.ended"


def test_l3_code_that_waits_for_a_process_of_its_own_reads_its_status_after_a_stop_too(tmp_path: Path) -> None:
    read: dict[str, int] = {}
    waits = threading.Event()

    @tool(isolation="thread")
    def plain() -> None:
        """Wait for one."""
        read["plain"] = subprocess.Popen(["sleep", "1000"]).wait()

    @tool(isolation="task")
    async def awaited() -> None:
        """Wait for one."""
        process = await asyncio.create_subprocess_exec("sleep", "1000")
        try:
            waits.set()
            await process.wait()
        finally:
            read["awaited"] = await process.wait()

    async def agent(turn: AsyncTurn) -> None:
        await asyncio.gather(turn.call("plain"), turn.call("awaited"))

    with started(tmp_path, agent, plain, awaited, grace_s=WAIT_S) as supervisor:
        run_id = say(supervisor.session("s"))
        assert waits.wait(WAIT_S)
        until(lambda: len(supervisor.left()) >= 2, "both processes")
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert read == {"plain": -signal.SIGTERM, "awaited": -signal.SIGTERM}
        assert len(of_kind(receipt, "subprocess")) == 2


def test_what_the_program_starts_outside_of_agents_and_tools_is_neither_touched_nor_named(
    tmp_path: Path, mark: str
) -> None:
    with started(tmp_path, call("nothing")) as supervisor:
        run_id = say(supervisor.session("s"))
        own = subprocess.Popen(command(mark))
        KEPT.append(own)
        until(lambda: up(mark), "both processes")
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert not of_kind(receipt, "subprocess")
        assert len(alive(mark)) == 2
        assert own.poll() is None


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "in a tree of another supervisor"])
def test_l3_an_orphan_of_unknown_origin_is_named_and_left_alone(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch, *, outer: bool
) -> None:
    if outer:
        # As a command has them that a tool of the other one has started: what it starts inherits them.
        monkeypatch.setenv(MARKER, "proc_outer")
        monkeypatch.setenv("COUNTERMAND_FENCE", "main:1:")

    def agent(turn: Turn) -> None:
        subprocess.run(command(mark, ORPHAN), check=True)
        while not up(mark, 1):
            threading.Event().wait(0.01)
        turn.emit("done")

    with started(tmp_path, agent) as supervisor:
        run_id = say(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert not receipt.complete
        (row,) = [one for one in of_kind(receipt, "subprocess") if one.note == UNKNOWN]
        assert row.how is How.OUT_OF_REACH
        assert row.pid in alive(mark)
        os.kill(row.pid or 0, signal.SIGKILL)
        (row,) = [one for one in of_kind(amended(supervisor, run_id), "subprocess") if one.pid == row.pid]
        assert (row.how, row.status) == (How.EXIT, -signal.SIGKILL)
        until(lambda: procfs.stat(row.pid or 0) is None, "no code waits for it, so the supervisor reaps it")


def test_l3_an_orphan_that_falls_to_a_thread_which_starts_processes_of_the_program_is_not_missed(
    tmp_path: Path, mark: str
) -> None:
    assert threading.get_native_id() == os.getpid(), "orphans fall to this thread"

    def agent(turn: Turn) -> None:
        subprocess.run(command(mark, ORPHAN), check=True)

    with started(tmp_path, agent) as supervisor:
        run_id = say(supervisor.session("s"))

        def filed() -> bool:
            # As before a process that then cannot be made.
            sys.audit("os.fork")
            with contextlib.suppress(ReceiptPending):
                return bool(supervisor.session("s").receipt(run_id))
            return False

        until(filed, "the receipt")
        assert not receipt_of(supervisor, run_id).complete
        assert alive(mark)


@pytest.mark.parametrize(
    ("line", "command", "own"),
    [
        (["sleep", "3"], ["sleep", "3"], True),
        (["/bin/sh", "/opt/tool.sh", "x"], ["/opt/tool.sh", "x"], True),
        (["node", "/usr/bin/npm", "i"], ["npm", "i"], True),
        (["sleep", "3"], ["/bin/sh", "-c", "exec sleep 3"], True),
        (["sleep", "3"], ["sleep", "4"], False),
        (["sleep", "3"], ["/bin/sh", "-c", "true"], False),
        ([], ["true"], False),
    ],
)
def test_a_child_is_the_programs_own_if_its_command_line_may_be(line: list[str], command: list[str], own: bool) -> None:
    assert _is_of(line, command) is own


def test_l5_a_run_whose_orphan_the_receipt_of_another_run_names_is_not_said_to_be_over(
    tmp_path: Path, mark: str
) -> None:
    begun, left, go = threading.Event(), threading.Event(), threading.Event()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "plain":
            begun.set()
            go.wait(WAIT_S)
            return
        assert begun.wait(WAIT_S)
        subprocess.run(command(mark, ORPHAN), check=True)
        left.set()
        turn.cancel_token.wait()

    with started(tmp_path, agent) as supervisor:
        other, session = supervisor.session("other"), supervisor.session("s")
        plain, leaves = say(other, "plain"), say(session, "leaves")
        assert left.wait(WAIT_S)
        until(lambda: up(mark, 1), "the orphan")
        go.set()
        (row,) = of_kind(other.receipt(plain, timeout=WAIT_S), "subprocess")
        assert row.note == UNKNOWN
        stop(session)
        receipt = receipt_of(supervisor, leaves)
        assert not receipt.complete
        assert [row.note for row in of_kind(receipt, "subprocess") if row.how == How.OUT_OF_REACH] == [NAMED_BY_ANOTHER]
    assert alive(mark)


IN_A_HOST = """
import asyncio, os

async def agent(turn):
    go, _, calls = turn.inputs[0].content.partition(" ")
    await turn.emit("begun")
    while not os.path.exists(go):
        await asyncio.sleep(0.01)
    if calls:
        await turn.call("here")
"""


@pytest.mark.parametrize("calls", [False, True])
def test_l5_an_orphan_is_named_in_the_receipt_of_a_run_in_a_host_only_if_code_of_it_was_executed_here(
    tmp_path: Path, mark: str, *, calls: bool
) -> None:
    @tool(isolation="thread")
    def here() -> None:
        """Do nothing."""

    def leaves(turn: Turn) -> None:
        subprocess.run(command(mark, ORPHAN), check=True)
        until(lambda: up(mark, 1), "the orphan")
        turn.emit("left")
        turn.cancel_token.wait()

    (tmp_path / "in_a_host.py").write_text(IN_A_HOST)
    hosted = Agent(run="in_a_host:agent", path=[str(tmp_path)], spares=0)
    agents: dict[str, Agent | Callable[..., Any]] = {"leaves": leaves, "hosted": hosted}
    config = Config(
        state_dir=tmp_path / "state", agent="leaves", agents=agents, tools=[here], subreaper=True, drain_s=0.0
    )
    with Supervisor.start(config) as supervisor:
        session, other, go = supervisor.session("s"), supervisor.session("other"), tmp_path / "go"
        run_id = say(session, f"{go} call" if calls else str(go), agent="hosted")
        until(lambda: any(event.kind == "text" for event in log(session)), "it to begin")
        say(other, "anything")
        until(lambda: any(event.kind == "text" for event in log(other)), "it to leave one")
        go.touch()
        receipt = receipt_of(supervisor, run_id)
        assert [row.note for row in of_kind(receipt, "subprocess")] == [UNKNOWN] * calls
        assert receipt.complete is not calls


def test_l3_where_orphans_fall_to_another_process_a_run_that_started_one_is_not_complete(
    tmp_path: Path, mark: str
) -> None:
    assert not inherits_orphans()

    def agent(turn: Turn) -> None:
        if turn.inputs[0].content == "start":
            subprocess.run(["true", mark], check=True)

    with started(tmp_path, agent, subreaper=False) as supervisor:
        assert receipt_of(supervisor, say(supervisor.session("s"), "nothing")).complete
        receipt = receipt_of(supervisor, say(supervisor.session("s"), "start"))
        assert not receipt.complete
        (row,) = [one for one in of_kind(receipt, "subprocess") if one.name == ORPHANS]
        assert row.how is How.OUT_OF_REACH
        assert "subreaper=True" in row.note


def test_what_an_agent_starts_in_a_context_of_its_own_is_the_programs(tmp_path: Path, mark: str) -> None:
    def agent(turn: Turn) -> None:
        KEPT.append(contextvars.Context().run(subprocess.Popen, command(mark)))
        until(lambda: up(mark), "both processes")

    with started(tmp_path, agent) as supervisor:
        receipt = receipt_of(supervisor, say(supervisor.session("s")))
        assert receipt.complete, receipt
        assert not of_kind(receipt, "subprocess")
        assert len(alive(mark)) == 2


def test_the_status_of_what_the_program_had_started_before_is_the_programs_to_read(tmp_path: Path) -> None:
    own = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read(); sys.exit(7)"], stdin=-1)
    with started(tmp_path, call("nothing")) as supervisor:
        own.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        until(lambda: (seen := procfs.stat(own.pid)) is None or seen.dead, "its end")
        stop(supervisor.session("s"), run_id=say(supervisor.session("s")))
        assert supervisor._strays._watcher.thread is not None
        supervisor._strays._watcher.turn()
        assert own.wait() == 7


def test_l13_a_process_of_another_supervisors_agent_puts_no_receipt_in_doubt(tmp_path: Path, mark: str) -> None:
    async def starts_one(turn: AsyncTurn) -> None:
        KEPT.append(subprocess.Popen(command(mark)))  # noqa: ASYNC220  # as code does
        await turn.cancel_token.wait()

    async def waits(turn: AsyncTurn) -> None:
        await turn.cancel_token.wait()

    with started(tmp_path / "a", starts_one) as one, started(tmp_path / "b", waits) as other:
        run_id = say(other.session("s"))
        say(one.session("s"))
        until(lambda: up(mark), "both processes")
        stop(other.session("s"))
        receipt = receipt_of(other, run_id)
        assert receipt.complete, receipt
        assert len(alive(mark)) == 2


SHARED = """
import multiprocessing, sys, time
from multiprocessing import resource_tracker
from pathlib import Path
from actors import NewMessage, Stop
from supervisor import Agent, Config, Supervisor
from supervisor.clock import SystemClock

def work(s):
    time.sleep(s)

def agent(turn):
    resource_tracker.ensure_running()
    process = multiprocessing.get_context("forkserver").Process(target=work, args=(0,))
    process.start()
    process.join()
    while not turn.cancel_token.wait(0.1):
        pass

if __name__ == "__main__":
    options = {"grace_s": 0.2, "kill_s": 0.5, "subreaper": True}
    config = Config(state_dir=Path(sys.argv[1]), agent="m", agents={"m": agent}, **options)
    with Supervisor.start(config) as supervisor:
        session = supervisor.session("s")
        run_id = session.ask(NewMessage(content="x")).run_id
        while multiprocessing.forkserver._forkserver._forkserver_pid is None:
            time.sleep(0.01)
        mine = multiprocessing.get_context("forkserver").Process(target=work, args=(1000,))
        mine.start()
        tracker = resource_tracker._resource_tracker._pid
        session.ask(Stop(source="user.console", reason="enough"))
        receipt = session.receipt(run_id, timeout=60)
        print(receipt.complete, [(str(row.kind), row.note) for row in receipt.rows[0].rows])
        print(mine.is_alive(), Path(f"/proc/{tracker}/exe").exists())
        mine.kill()
        mine.join()
"""


def test_l13_what_multiprocessing_keeps_for_the_whole_program_is_no_runs_to_end(tmp_path: Path) -> None:
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    ran = subprocess.run(
        [sys.executable, script, tmp_path / "state"], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"False {[('subprocess', SERVED)]}", "True True"]


def test_l14_of_what_a_timer_starts_after_its_run_so_many_ends_are_kept_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.strays.reports.ENDED_MAX", 3)
    count = 0

    async def agent(turn: AsyncTurn) -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            nonlocal count
            KEPT.append(subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=-1))
            KEPT[-1].stdin.close()  # type: ignore[union-attr]  # it is a pipe
            count += 1
            if count < 20:
                loop.call_later(0.001, again)

        loop.call_later(0.001, again)

    with started(tmp_path, agent) as supervisor:
        receipt_of(supervisor, say(supervisor.session("s")))
        until(lambda: count == 20, "the last of them")
        # One whose pid is not known yet would be one more of them a moment later.
        until(lambda: not supervisor._strays._children.starting and not supervisor.left(), "the ends of all")
        assert len(supervisor._strays._reports.strays) <= 3
        assert len(supervisor._strays._reports._ended) <= 3
    assert ENDED_MAX > 3
    while KEPT:
        KEPT.pop().wait()


def test_l14_of_threads_that_are_gone_no_start_is_kept_and_no_process_is_looked_for(tmp_path: Path) -> None:
    done = threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        gate = threading.Event()

        def fails() -> None:
            # As one that could not be started: it is announced, and never there.
            sys.audit("subprocess.Popen", "nothing", ["nothing"], None, None)
            gate.wait()

        threads = []
        for _ in range(2 * STARTS_MAX):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(fails,))
            thread.start()
            threads.append(thread)
        gate.set()
        for thread in threads:
            thread.join()
        # A thread that was joined is there for a moment more.
        tasks = {str(thread.native_id) for thread in threads}
        until(lambda: tasks.isdisjoint(os.listdir("/proc/self/task")), "the end of the threads")
        # So many more, one after the other, that all are looked for again.
        for _ in range(STARTS_MAX):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(fails,))
            thread.start()
            thread.join()
        fails()
        done.set()
        await turn.cancel_token.wait()

    with started(tmp_path, agent) as supervisor:
        say(supervisor.session("s"))
        assert done.wait(WAIT_S)
        with supervisor._strays._lock:
            assert len(supervisor._strays._children._starts) <= STARTS_MAX
        stop(supervisor.session("s"))


def looked_for_in_vain(supervisor: Supervisor) -> bool:
    """True when the process of the one start that there is was looked for so often as one is."""
    with supervisor._strays._lock:
        return [one.looks for one in supervisor._strays._children._starts.values()] == [LOOKS_MAX]


def test_l13_a_start_of_which_no_process_comes_keeps_the_watching_thread_from_nothing(tmp_path: Path) -> None:
    def agent(turn: Turn) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.posix_spawn("/no/such/program", ["program"], {})
        turn.cancel_token.wait()

    with started(tmp_path, agent) as supervisor:
        say(supervisor.session("s"))
        until(lambda: looked_for_in_vain(supervisor), "the last look")
        assert supervisor._strays._watcher.turn() is None, "nothing is due until it is woken"
        stop(supervisor.session("s"))


def test_l3_a_process_that_comes_long_after_its_start_was_announced_is_found_when_its_run_is_ended(
    tmp_path: Path, mark: str
) -> None:
    go_on = threading.Event()

    def agent(turn: Turn) -> None:
        # As `subprocess.Popen` does, whose fork may be late on a busy machine.
        sys.audit("subprocess.Popen", "sh", ["sh"], None, None)
        go_on.wait(WAIT_S)
        ctypes.CDLL(None).system(f"exec {sys.executable} -S -c '{STUBBORN}' {mark}".encode())

    with started(tmp_path, agent) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: looked_for_in_vain(supervisor), "the last look")
        go_on.set()
        until(lambda: up(mark), "both processes")
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert not alive(mark)


def test_l13_where_no_thread_can_be_had_to_watch_the_next_start_has_one(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[threading.Thread] = []

    class NoRoom(threading.Thread):
        def start(self) -> None:
            if self.name == "countermand-strays" and not refused:
                refused.append(self)
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(threading, "Thread", NoRoom)
    with started(tmp_path, lambda turn: KEPT.append(subprocess.Popen(command(mark))), subreaper=False) as supervisor:
        run_id = say(supervisor.session("s"))
        assert receipt_of(supervisor, run_id)
        assert refused
        until(lambda: not alive(mark), "the end of what it had started")


def test_l14_a_supervisor_that_has_ended_holds_no_descriptor(tmp_path: Path) -> None:
    with started(tmp_path / "first", call("nothing"), subreaper=False):
        pass
    before = set(os.listdir("/proc/self/fd"))
    for number in range(3):
        with started(tmp_path / str(number), call("nothing"), subreaper=False):
            pass
    # What an earlier test has left may be closed meanwhile.
    assert len(set(os.listdir("/proc/self/fd"))) <= len(before)


# ── Threads and tasks ────────────────────────────────────────────────────────────────────────────────


def test_l3_a_thread_that_keeps_running_is_named_holds_the_barrier_and_amends_the_receipt_when_it_ends(
    tmp_path: Path,
) -> None:
    go_on, began = threading.Event(), threading.Event()

    def works_on() -> None:
        began.set()
        go_on.wait(WAIT_S)

    @tool(isolation="task")
    async def threaded() -> None:
        """Work on a thread."""
        await asyncio.to_thread(works_on)

    @tool(isolation="thread")
    def nothing() -> None:
        """Do nothing."""

    async def agent(turn: AsyncTurn) -> None:
        await turn.call(turn.inputs[0].content)

    with started(tmp_path, agent, threaded, nothing, barrier="strict", kill_s=0.5) as supervisor:
        session = supervisor.session("s")
        run_id = say(session, "threaded")
        assert began.wait(WAIT_S)
        stop(session)
        receipt = receipt_of(supervisor, run_id)
        assert not receipt.complete
        (row,) = of_kind(receipt, "thread")
        assert (row.name.rpartition(".")[2], row.how, row.ended_at) == ("works_on", How.ABANDONED, None)
        assert any("works_on" in one for one in supervisor.left())
        assert any("works_on" in one for one in session.status().barrier)
        (live,) = living(supervisor.store, supervisor.processes()).sessions
        assert [(one.kind, one.name.rpartition(".")[2], one.run_id) for one in live.strays] == [
            ("thread", "works_on", run_id)
        ]
        assert not next(one for one in diagnose(supervisor) if one.check == "strays").ok
        say(session, "nothing")
        settled(session)
        assert [one for one in log(session) if one.kind == "tool.ended"][-1].data["outcome"] == "not_started"
        go_on.set()
        (row,) = of_kind(amended(supervisor, run_id), "thread")
        assert row.ended_at is not None
        assert not supervisor.left()
        assert not living(supervisor.store, supervisor.processes()).sessions
        assert next(one for one in diagnose(supervisor) if one.check == "strays").ok
        say(session, "nothing")
        settled(session)
        assert [one for one in log(session) if one.kind == "tool.ended"][-1].data["outcome"] == "finished"


def test_l3_a_thread_that_keeps_running_in_this_process_is_not_gone_for_the_next_supervisor_in_it(
    tmp_path: Path,
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(WAIT_S)

    async def leaves(turn: AsyncTurn) -> None:
        asyncio.get_running_loop().run_in_executor(None, work)

    def ignores(turn: Turn) -> None:
        work()

    try:
        for agent in (leaves, ignores):
            with started(tmp_path, agent, subreaper=False) as supervisor:
                run_id = say(supervisor.session("s"))
                assert begun.wait(WAIT_S)
                stop(supervisor.session("s"))
                assert not receipt_of(supervisor, run_id).complete
            with started(tmp_path, agent, subreaper=False) as supervisor:
                supervisor.session("s").ask(Stop(source="user.test", reason="it is taken up"), timeout=WAIT_S)
                assert not receipt_of(supervisor, run_id).complete
                gate.set()
                receipt = amended(supervisor, run_id)
                assert {row.how for row in rows(receipt) if row.kind in ("agent", "thread")} == {How.RETURNED}
            begun.clear()
            gate.clear()
    finally:
        gate.set()


def test_l6_the_task_of_a_call_is_the_calls_and_no_task_of_its_agents(tmp_path: Path) -> None:
    began = threading.Event()

    @tool(isolation="task")
    async def waits() -> None:
        """Wait."""
        began.set()
        await asyncio.sleep(1000)

    with started(tmp_path, call("waits"), waits) as supervisor:
        run_id = say(supervisor.session("s"))
        assert began.wait(WAIT_S)
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete
        assert [row.kind for row in rows(receipt)] == ["agent", "call"]


def test_l8_a_task_of_an_agents_own_is_cancelled_once_when_its_run_has_ended_and_may_clean_up(tmp_path: Path) -> None:
    told: list[str] = []

    async def works_on() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            told.append("cancelled")
            await asyncio.sleep(0.2)
            told.append("cleaned up")
            raise

    async def agent(turn: AsyncTurn) -> str:
        task = asyncio.create_task(works_on())
        await asyncio.sleep(0)
        return f"{turn.inputs[0].content} {task.get_name()}"

    with started(tmp_path, agent) as supervisor:
        receipt = receipt_of(supervisor, say(supervisor.session("s")))
        assert receipt.complete
        assert told == ["cancelled", "cleaned up"]
        (row,) = of_kind(receipt, "task")
        assert (row.name.rpartition(".")[2], row.how) == ("works_on", How.CANCELLED)


def test_l3_a_task_that_swallows_its_cancel_is_named_abandoned_until_it_ends(tmp_path: Path) -> None:
    go_on = threading.Event()

    async def deaf() -> None:
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    kept: list[Any] = []

    async def keeping(turn: AsyncTurn) -> None:
        kept.append(asyncio.create_task(deaf()))
        await asyncio.sleep(1000)

    with started(tmp_path, keeping, kill_s=0.5) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: kept, "the task")
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert not receipt.complete
        assert [row.how for row in of_kind(receipt, "task")] == [How.ABANDONED]
        go_on.set()
        assert [row.how for row in of_kind(amended(supervisor, run_id), "task")] == [How.RETURNED]


def test_l14_of_very_many_tasks_the_last_ones_are_named_together(tmp_path: Path) -> None:
    ended: list[int] = []

    async def works_on(number: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(number)

    async def agent(turn: AsyncTurn) -> str:
        tasks = [asyncio.create_task(works_on(number)) for number in range(3 * STRAYS_MAX)]
        await asyncio.sleep(0)
        return f"{turn.inputs[0].content} {len(tasks)}"

    with started(tmp_path, agent) as supervisor:
        receipt = receipt_of(supervisor, say(supervisor.session("s")))
        assert receipt.complete
        assert sorted(ended) == list(range(3 * STRAYS_MAX))
        found = of_kind(receipt, "task")
        assert len(found) == STRAYS_MAX + 1
        assert [(row.name.endswith(OTHERS), row.note) for row in found if row.note] == [
            (True, f"and {2 * STRAYS_MAX - 1} more")
        ]


def test_l14_beyond_a_bound_all_strays_of_a_run_are_one_of_each_kind_and_are_counted(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.strays.reports.OPEN_MAX", 3)
    go_on = threading.Event()

    @tool(isolation="task")
    async def starts() -> None:
        """Leave a process, a task and a thread."""
        by_popen(mark)
        by_popen(mark)
        asyncio.get_running_loop().run_in_executor(None, go_on.wait, WAIT_S)
        KEPT_TASKS.append(asyncio.create_task(asyncio.sleep(1000)))

    async def agent(turn: AsyncTurn) -> None:
        for _ in range(5):
            await turn.call("starts")
        await turn.emit("all")
        await asyncio.sleep(1000)

    with started(tmp_path, agent, starts) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: up(mark, 20), "all processes")
        until(lambda: any(one.kind == "text" for one in log(supervisor.session("s"))), "all calls have ended")
        with supervisor._strays._lock:
            # Three and the one that stands for the others, of three kinds at most.
            assert len(supervisor._strays._reports.strays) <= 3 + 3
        stop(supervisor.session("s"))
        go_on.set()
        receipt = amended(supervisor, run_id)
    assert not alive(mark)
    found = [row for kind in ("subprocess", "task", "thread") for row in of_kind(receipt, kind)]
    assert len(found) <= 3 + 3
    others = {str(row.kind): row for row in found if row.name.endswith(OTHERS)}
    counts = {kind: int(row.note.removeprefix("and ").removesuffix(" more")) for kind, row in others.items()}
    assert len(found) + sum(counts.values()) == 20
    assert sum(row.reaped for row in of_kind(receipt, "subprocess")) >= 20
    assert others["subprocess"].reaped >= 2 * (counts["subprocess"] + 1)
    assert [own.wait() for own in KEPT] == [-signal.SIGKILL] * 10


def test_l14_orphans_beyond_a_bound_are_counted_and_the_receipt_says_so(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.strays.reports.OPEN_MAX", 2)

    def agent(turn: Turn) -> None:
        for number in range(5):
            subprocess.run(command(mark, ORPHAN), check=True)
            while not up(mark, number + 1):
                threading.Event().wait(0.01)
        turn.emit("done")

    with started(tmp_path, agent) as supervisor:
        run_id = say(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert not receipt.complete
        listed = [row for row in of_kind(receipt, "subprocess") if row.note == UNKNOWN]
        (doubt,) = [row for row in of_kind(receipt, "subprocess") if row.name == ORPHANS]
        assert doubt.how is How.OUT_OF_REACH
        assert len(listed) < 5
        assert doubt.note == LEFT_OUT.format(5 - len(listed))
        assert len(alive(mark)) == 5


def test_l14_of_what_ends_below_a_process_so_many_are_kept_and_all_are_counted() -> None:
    script = "for _ in 1 2 3 4 5; do sleep 1000 & done; wait"
    with subprocess.Popen(["/bin/sh", "-c", script]) as process:
        root = offspring.opened(process.pid, None)
        assert root is not None
        found = offspring.Offspring(root)
        until(lambda: not found.look() and len(found.members) == 6, "all of them")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(offspring, "ROWS_MAX", 2)
            found.kill()
            until(lambda: found.gone, "their ends")
            assert len(found.ended) == len(found.rows()) == 2
            assert found.reaped == 6
        found.close()


@pytest.mark.parametrize("last", ["the process", "its child"])
def test_a_process_that_ends_while_its_tree_is_looked_at_is_counted_and_its_status_is_read(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    with subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & exec sleep 1000"]) as process:
        root = offspring.opened(process.pid, None)
        assert root is not None
        found = offspring.Offspring(root)
        until(lambda: not found.look() and len(found.members) == 2, "both")
        (child,) = [member for member in found.members.values() if member is not root]
        lives, dies = (root, child) if last == "the process" else (child, root)
        os.kill(dies.pid, signal.SIGKILL)
        until(lambda: not dies.alive, "the first end")
        lives_fd = lives.fd

        def seen_alive_and_killed(fd: int) -> bool:
            seen = readable(fd)
            if fd == lives_fd and not seen:
                os.kill(lives.pid, signal.SIGKILL)
                until(lambda: readable(fd), "the last end")
            return seen

        monkeypatch.setattr(offspring, "readable", seen_alive_and_killed)
        assert [found.gone, found.gone] == [False, True], "it was alive at the first look"
        assert (found.reaped, found.status) == (2, -signal.SIGKILL)
        found.close()


def test_l3_what_a_late_thread_starts_after_the_receipt_is_killed_at_once_and_amends_it(
    tmp_path: Path, mark: str
) -> None:
    go_on, began = threading.Event(), threading.Event()
    status: list[int] = []

    def late() -> None:
        began.set()
        go_on.wait(WAIT_S)
        status.append(subprocess.run(command(mark), check=False).returncode)

    async def agent(turn: AsyncTurn) -> None:
        await asyncio.to_thread(late)

    with started(tmp_path, agent, kill_s=0.2) as supervisor:
        run_id = say(supervisor.session("s"))
        assert began.wait(WAIT_S)
        stop(supervisor.session("s"))
        assert not receipt_of(supervisor, run_id).complete
        go_on.set()
        receipt = amended(supervisor, run_id)
        assert status == [-signal.SIGKILL]
        assert not alive(mark)
        assert [row.kind for row in receipt.rows[0].rows] == ["thread", "subprocess"]


def test_l3_a_process_of_a_clean_up_is_not_signalled_before_the_grace_is_over(tmp_path: Path) -> None:
    status: list[int] = []
    waiting = threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        try:
            waiting.set()
            await asyncio.sleep(1000)
        finally:
            process = await asyncio.create_subprocess_exec("sleep", "0.3")
            status.append(await process.wait())

    with started(tmp_path, agent, grace_s=WAIT_S) as supervisor:
        run_id = say(supervisor.session("s"))
        assert waiting.wait(WAIT_S)
        stop(supervisor.session("s"))
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete
        assert status == [0]


def test_l3_a_process_of_a_clean_up_that_is_ahead_of_the_end_of_its_run_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status: list[int] = []
    waiting = threading.Event()
    end = Strays.end

    def end_later(strays: Strays, address: Address, grace_s: float) -> None:
        until(lambda: bool(strays.left() or status))
        end(strays, address, grace_s)

    async def agent(turn: AsyncTurn) -> None:
        try:
            waiting.set()
            await asyncio.sleep(1000)
        finally:
            process = await asyncio.create_subprocess_exec("sleep", "0.3")
            status.append(await process.wait())

    monkeypatch.setattr(Strays, "end", end_later)
    with started(tmp_path, agent, grace_s=WAIT_S) as supervisor:
        run_id = say(supervisor.session("s"))
        assert waiting.wait(WAIT_S)
        stop(supervisor.session("s"))
        assert receipt_of(supervisor, run_id).complete
        assert status == [0]


def test_l13_a_run_whose_actors_failed_has_its_strays_taken_over_and_ended(tmp_path: Path, mark: str) -> None:
    @tool(isolation="thread")
    def starts() -> None:
        """Start one, and wait."""
        by_run(mark)

    with started(tmp_path, call("starts"), starts) as supervisor:
        run_id = say(supervisor.session("s"))
        until(lambda: up(mark), "both processes")
        until(supervisor.left, "it is known")
        session = supervisor._actor._actor_weakref().children["s"]  # type: ignore[union-attr]
        poison(session)
        until(lambda: not alive(mark), "all are ended")
        receipt = receipt_of(supervisor, run_id)
        assert receipt.complete, receipt
        assert any(row.kind == "subprocess" and row.signals for row in rows(receipt))


def test_the_hook_does_nothing_for_other_events_and_lets_no_error_out() -> None:
    class Broken:
        @property
        def host(self) -> Any:
            raise RuntimeError("it is asked for its host")

    def within() -> int:
        broken: Any = Broken()
        attribution.enter(broken)
        return subprocess.run(["true"], check=True).returncode

    assert contextvars.copy_context().run(within) == 0
    assert attribution.current() is None


def test_a_child_that_code_forks_attributes_nothing(tmp_path: Path) -> None:
    def agent(turn: Turn) -> str:
        reading, writing = os.pipe()
        pid = os.fork()  # noqa: TID251  # as foreign code does
        if pid == 0:
            os.write(writing, b"%d" % (subprocess.run(["true"], check=False).returncode + len(_ON_THREADS)))
            os._exit(0)
        os.close(writing)
        assert _ON_THREADS, "this very one"
        said = os.read(reading, 10).decode()
        os.waitpid(pid, 0)
        return said + turn.inputs[0].content

    with started(tmp_path, agent, subreaper=False) as supervisor:
        session = supervisor.session("s")
        run_id = say(session)
        assert receipt_of(supervisor, run_id)
        assert session.run(run_id).result == "0go"


# ── In a daemon ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Foreground]:
    """A daemon that is ended whatever happens."""
    made = Foreground(tmp_path)
    try:
        yield made
    finally:
        made.close()


def runs_agent(daemon: Foreground, name: str) -> None:
    """Start a daemon in which an agent of tests/daemon_plugins.py runs a message."""
    seed(daemon.state_dir, daemon.mark, s="go")
    chosen = (f"agents.{name}.run=tests.daemon_plugins:{name}", f"agents.{name}.in_process=true", f"agent={name}")
    daemon.ready(*chosen, "drain_s=0.2", "grace_s=0.2", "kill_s=0.5")


def live_rows(daemon: Foreground) -> list[ProcessRow]:
    reader = SqliteReader(daemon.state_dir / "store.sqlite3")
    try:
        return reader.live_processes()
    finally:
        reader.close()


def test_l14_the_daemon_ends_whatever_the_interpreter_would_wait_for(daemon: Foreground) -> None:
    runs_agent(daemon, "leaves")
    child = int(daemon.wait_says("left a child")["message"].rpartition(" ")[2])
    until(lambda: procfs.stat(child) is None or procfs.stat(child).dead, "the child's end")  # type: ignore[union-attr]
    assert daemon.end() == DaemonExit.OK


def test_l3_the_daemons_last_log_line_names_a_thread_that_keeps_running(daemon: Foreground) -> None:
    runs_agent(daemon, "works_on")
    daemon.wait_says("blocked")
    assert daemon.end() == DaemonExit.FAILED
    assert "never_ends" in daemon.wait_says("not everything is proven to have ended")["message"]


def test_l3_an_orphan_falls_to_the_daemon_and_is_reaped_by_it(daemon: Foreground) -> None:
    runs_agent(daemon, "loses")
    orphan = int(daemon.wait_says("lost an orphan")["message"].rpartition(" ")[2])
    until(lambda: procfs.stat(orphan) is None, "it is reaped")
    assert daemon.end() == DaemonExit.OK


def test_l12_what_code_had_started_when_the_daemon_was_killed_is_ended_by_the_next_start(daemon: Foreground) -> None:
    runs_agent(daemon, "starts")
    pid = int(daemon.wait_says("started a process")["message"].rpartition(" ")[2])
    until(lambda: any(row.pid == pid for row in live_rows(daemon)), "it is on record")
    daemon.end(signal.SIGKILL)
    assert procfs.stat(pid) is not None
    config = Config(daemon.state_dir, grace_s=GRACE_S, kill_s=KILL_S, agents={"starts": starts}, agent="starts")
    with Supervisor.start(config) as supervisor:
        run = supervisor.session("s").runs()[-1]
        receipt = receipt_of(supervisor, run.run_id)
        seen = procfs.stat(pid)
        assert seen is None or seen.dead
        (row,) = [one for one in of_kind(receipt, "subprocess") if one.pid == pid]
        assert row.ended_at is not None
        assert not receipt.complete, "an orphan of it could not be seen"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of its own is made by root")


@needs_root
def test_as_process_1_the_daemon_reaps_what_falls_to_it(daemon: Foreground, tmp_path: Path) -> None:
    first = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    state, log_file = tmp_path / "one", tmp_path / "one.log"
    command = [*first, sys.executable, "-m", "supervisor.console", "serve", "--state-dir", str(state)]
    with log_file.open("wb") as written:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
    try:
        until((state / "countermand.sock").exists, "the socket")
        inside = procfs.children(process.pid)[0]
        enter = ["nsenter", "-t", str(inside), "-p", "-m"]
        said = subprocess.run([*enter, "sh", "-c", "setsid sleep 0.1 >&- & echo $!"], capture_output=True, check=True)
        orphan = said.stdout.decode().strip()
        look = [*enter, "test", "-e", f"/proc/{orphan}"]
        until(lambda: subprocess.run(look, check=False).returncode == 1, "it is reaped")
        os.kill(inside, signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait(WAIT_S)


def test_l14_of_a_session_that_is_read_anew_no_stray_is_kept_that_has_ended_but_those_of_runs_that_are_asked_for() -> (
    None
):
    clock, told = SystemClock(), list[object]()
    strays, token = Strays(clock), CancelToken(lambda callback: callback())

    class Owner:
        def tell(self, message: object) -> None:
            told.append(message)

    owner = cast("ActorRef[Any]", Owner())
    runs = [Address("s", 1, "over"), Address("s", 1, "asked"), Address("t", 1, "another"), Address("s", 1, "goes on")]
    try:
        bodies = [strays.within(run, Isolation.HOST, token, lambda finish: None) for run in runs]
        kept = [strays._run(run) for run in runs]
        found = []
        for run in kept:
            strays.adopt(run.address, owner)
            one = StrayFound(run.address, strays._reports.new_id("thread", run.address), PartKind.THREAD, "x", 1.0)
            found.append(strays._reports.found(run, one))
        for stray in found[:3]:
            strays._ends.ended(stray, How.RETURNED)
        strays.forget_ended("s", {"asked"})
        assert list(strays._reports.strays.values()) == found[1:]
        strays._ends.ended(found[3], How.RETURNED)
        assert isinstance(told[-1], StrayEnded)
        assert list(strays._reports.strays.values()) == found[1:3]
        strays.forget_ended("s", ())
        strays.forget_ended("t", ())
        assert not strays._reports.strays
        assert not strays._reports._sessions._ids
        assert bodies
    finally:
        strays.close()
        clock.close()


def test_l3_the_strays_of_a_tool_are_reported_to_the_run_of_an_agent_that_is_executed_elsewhere() -> None:
    """The agent's own code is in its host; what it calls here is attributed, and told before the agent's end."""
    clock, told, ends = SystemClock(), list[object](), list[Callable[[object], None]]()
    strays = Strays(clock)
    run, call = Address("s", 1, "r"), Address("s", 1, "r", "c")
    token = CancelToken(lambda callback: callback())

    class Owner:
        def tell(self, message: object) -> None:
            told.append(message)

    try:
        strays.within(run, Isolation.HOST, token, ends.append)(told.append)
        strays.adopt(run, cast("ActorRef[Any]", Owner()))
        gc.collect()
        release = threading.Event()

        def starts() -> None:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            KEPT.append(child)
            release.wait(WAIT_S)

        thread = threading.Thread(target=strays.within(call, Isolation.THREAD, token, starts), daemon=True)
        thread.start()
        until(lambda: any(isinstance(one, StrayFound) for one in told))
        release.set()
        thread.join(WAIT_S)
        strays.end(run, 0.0)
        until(lambda: any(isinstance(one, StrayEnded) for one in told))
        ends[0]("done")
        # Whoever executes it says so again: that is none of the strays' business.
        ends[0]("again")
        assert told[-2:] == ["done", "again"]
        assert [type(one) for one in told[:2]] == [StrayFound, StrayEnded]
    finally:
        strays.close()
        clock.close()
        for child in KEPT:
            child.kill()
            child.wait(WAIT_S)
        KEPT.clear()
