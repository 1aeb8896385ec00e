"""Agents in hosts that start what outlives an agent elsewhere: however a run ends, and whenever, nobody is left.

Of hosts that run as another user, and of those that sessions keep, one kind of agent is drawn for each end.
"""

from __future__ import annotations

import pwd
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from actors import Delete
from actors.model import How
from supervisor import Agent, SessionHandle
from supervisor.agent import RUNTIME
from supervisor.containment.guard import procfs
from tests.ends_kit import (
    AGAIN,
    ENDS,
    PAUSE_S,
    TESTS,
    Example,
    Kind,
    Seen,
    answers,
    begin,
    draw_moment,
    drawn,
    end_in_one_way,
    end_inside,
    ended,
    kill_daemons,
    next_turn_works,
    receipt_of,
)
from tests.kit import WAIT_S, Kit, log, rows, say, stop, until

KINDS = [
    Kind("thread", 3),
    Kind("multiprocessing", 4, ("fork", "spawn", "forkserver")),
    Kind("swallow", 3),
    Kind("block", 2, ("sleep", "busy", "regex", "wait", "child")),
    Kind("fork", 4),
    Kind("node", 3),
    Example(),
]
NODE = {"node", Example.word}


NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
PARAMS = {kind.word: pytest.param(kind, marks=[NO_NODE] if kind.word in NODE else [], id=kind.word) for kind in KINDS}
of_kinds = pytest.mark.parametrize("kind", PARAMS.values())
# A program in Node is inside of nothing.
of_kinds_inside = pytest.mark.parametrize("kind", [one for word, one in PARAMS.items() if word != Example.word])
in_ways = pytest.mark.parametrize("way", ENDS)


@in_ways
@of_kinds
def test_l3_no_process_is_left_however_and_whenever_a_run_is_ended(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, way: str
) -> None:
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    end_in_one_way(kit, [kind], way, drawn(f"{kind.word} {way}"))


@of_kinds
def test_l3_no_process_is_left_of_a_daemon_whenever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    kill_daemons([kind], tmp_path, monkeypatch, drawn(f"{kind.word} killed"))


@of_kinds_inside
def test_l5_whatever_keeps_running_of_an_agent_inside_is_in_the_receipt(kit: Kit, kind: Kind) -> None:
    # What never lets go of the interpreter's lock blocks all of the program, and nobody is left to write a receipt.
    inside = replace(kind, ways=tuple(way for way in kind.ways if way != "regex"))
    end_inside(kit, inside, f"tests.{kind.agent}", drawn(f"{kind.word} inside"))


# ── Hosts of another user ─────────────────────────────────────────────────────────────────────────

PYTHON_KINDS = [
    kind
    for kind in KINDS
    if not isinstance(kind, Example) and (kind.word not in NODE or shutil.which("node") is not None)
]
OTHER = "nobody"


@dataclass
class Theirs(Kind):
    """A kind whose hosts run as another user, with a Python that this one may execute."""

    python: str = ""

    def options(self, mark: str) -> dict[str, Any]:
        return {**super().options(mark), "user": OTHER, "python": self.python, "cwd": "/"}

    def look(self, mark: str) -> Seen:
        seen = super().look(mark)
        users = {uid for pid in seen.pids if (uid := _uid_of(pid)) is not None}
        assert users <= {pwd.getpwnam(OTHER).pw_uid}, users
        return seen


def _uid_of(pid: int) -> int | None:
    """The user of a process; None if it has ended."""
    try:
        lines = procfs.read_text(f"/proc/{pid}/status").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


@pytest.fixture(scope="module")
def theirs() -> list[Theirs]:
    """The kinds as another user's; skips where the user of the test cannot become that one."""
    needed = [str(RUNTIME), str(TESTS / "ending_agents.py")]
    trial = "import sys; [open(file).close() for file in sys.argv[1:]]; sys.exit(sys.version_info < (3, 9))"
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        with suppress(OSError, KeyError):
            account = pwd.getpwnam(OTHER)
            who: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            argv = [python or "python3", "-c", trial, *needed]
            if subprocess.run(argv, cwd="/", stderr=subprocess.DEVNULL, check=False, **who).returncode == 0:
                return [Theirs(kind.word, kind.steps, kind.ways, python=argv[0]) for kind in PYTHON_KINDS]
    pytest.skip(f"we may not become {OTHER!r}, or that user may not run a Python and read the tests")


@in_ways
def test_l3_no_process_is_left_of_another_users_host_whenever_its_run_is_ended(
    kit: Kit, theirs: list[Theirs], way: str
) -> None:
    end_in_one_way(kit, theirs, way, drawn(f"another user {way}"))


def test_l3_no_process_is_left_of_another_users_hosts_whenever_the_daemon_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: list[Theirs]
) -> None:
    kill_daemons(theirs, tmp_path, monkeypatch, drawn("another user killed"))


# ── Hosts that sessions keep ──────────────────────────────────────────────────────────────────────

FIRST = ("say first", "leave first")
"""What a kept host has done before. Of the second, two processes and a thread go on in it."""
KEPT_ENDS = 5
KEPT_MAX = 2
SESSIONS = 4


@dataclass
class Kept(Kind):
    """A kind whose hosts are kept: in the one of a run that is ended, another run has come to its end."""

    def options(self, mark: str) -> dict[str, Any]:
        return {**super().options(mark), "keep": "session"}

    def messages(self, draw: random.Random) -> list[str]:
        return [draw.choice(FIRST), self.message(draw)]

    def finish(self, session: SessionHandle) -> None:
        assert [event for event in log(session) if event.kind == "process.taken_back"], "the run began in a kept host"
        end_kept(session)


@dataclass
class KeptIdle(Kept):
    """A kind whose hosts are kept, and have no run at the moment."""

    def messages(self, draw: random.Random) -> list[str]:
        return [draw.choice(FIRST)]

    def finish(self, session: SessionHandle) -> None:
        end_kept(session)


KEPT = [Kept(kind.word, kind.steps, kind.ways) for kind in PYTHON_KINDS]
IDLE = [KeptIdle("say", 0)]


def end_kept(session: SessionHandle, *, most: int = 1) -> None:
    """Stop a session that has no run, but a host that it keeps; of `most`, the others were ending before."""
    stopped = stop(session)
    receipt = session.receipt(stopped.receipt_id, timeout=WAIT_S)
    assert (receipt.run_id, receipt.complete) == (None, True), receipt
    hosts = [row for row in receipt.rows if row.name == "host test"]
    assert 1 <= len(hosts) <= most, receipt
    assert {host.how for host in hosts} <= {How.SIGTERM, How.SIGKILL, How.EXIT}, receipt
    assert all(row.how not in (None, How.ABANDONED, How.OUT_OF_REACH) for row in rows(receipt)), receipt


def kept_ends(session: SessionHandle) -> list[dict[str, Any]]:
    """Wait until all hosts that a session kept, and no run has taken back, have ended; returns the data of that."""

    def ends() -> list[dict[str, Any]]:
        return [event.data for event in log(session) if event.kind == "process.ended" and "owner" in event.data]

    def kept() -> int:
        kinds = [event.kind for event in log(session)]
        return kinds.count("process.handed_over") - kinds.count("process.taken_back")

    until(lambda: len(ends()) == kept(), "the kept hosts to end")
    assert all(end["proven"] for end in ends()), ends()
    return ends()


@in_ways
def test_l3_no_process_is_left_of_a_kept_host_whenever_a_run_in_it_is_ended(kit: Kit, way: str) -> None:
    end_in_one_way(kit, KEPT, way, drawn(f"kept {way}"))


def test_l3_no_process_is_left_of_kept_hosts_whenever_the_daemon_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_daemons(KEPT, tmp_path, monkeypatch, drawn("kept killed"))


def test_l5_no_process_is_left_of_idle_kept_hosts_when_the_daemon_is_killed_and_their_ends_name_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_daemons(IDLE, tmp_path, monkeypatch, drawn("idle killed"))


def test_l3_no_process_is_left_of_a_kept_host_whenever_its_session_is_deleted(kit: Kit) -> None:
    draw = drawn("kept deleted")
    supervisor = kit.start(Agent(**KEPT[0].options(kit.mark)))
    for number in range(KEPT_ENDS):
        session, kind = supervisor.session(f"s{number}"), draw.choice(KEPT)
        messages, moment = kind.messages(draw), draw_moment(draw, kind)
        if draw.random() < 0.4:
            # Nothing runs in it, or the run is about to end.
            messages, moment = messages[:1], moment._replace(step=0)
        print(f"{messages}: deleted at {moment}")
        moment.wait(session, begin(session, messages))
        session.ask(Delete(source="user.test", reason="the test says so"), timeout=WAIT_S)
        # The answer is the proof: nobody is waited for after it.
        assert kit.alive() == []
        answers(session, kind)
        end_kept(session)
        assert kit.alive() == []


def test_l3_no_process_is_left_of_a_kept_host_when_it_was_idle_for_its_time(kit: Kit) -> None:
    draw = drawn("kept idle")
    idle_s = draw.uniform(0.0, 0.4)
    supervisor = kit.start(Agent(**{**KEPT[0].options(kit.mark), "keep_idle_s": idle_s}))
    for number in range(KEPT_ENDS):
        session = supervisor.session(f"s{number}")
        first, pause_s = draw.choice(FIRST), draw.uniform(0.0, 2 * idle_s)
        print(f"{first}: idle for {idle_s}, the next turn after {pause_s}")
        assert ended(session, say(session, first)).status == "completed"
        # About when its time is over: the next turn is in it, or in another one.
        time.sleep(pause_s)
        next_turn_works(session, KEPT[0])
        assert {end["provenance"]["source"] for end in kept_ends(session)} == {"host.retired"}
        assert all(receipt_of(session, run.run_id).complete for run in session.runs())
        assert kit.alive() == []


def test_l3_no_process_is_left_of_the_hosts_that_are_too_many_to_be_kept(kit: Kit) -> None:
    draw = drawn("kept too many")
    supervisor = kit.start(Agent(**KEPT[0].options(kit.mark)))
    assert supervisor._hosts is not None
    supervisor._hosts._kept_max = KEPT_MAX
    sessions = [supervisor.session(f"s{number}") for number in range(SESSIONS)]
    for message in ("leave again", AGAIN, AGAIN):
        runs = []
        for session in draw.sample(sessions, SESSIONS):
            print(f"{message}: {session.session}")
            runs.append((session, say(session, message)))
            # About when another one is kept, and the longest unused one ends.
            time.sleep(draw.uniform(0.0, 2 * PAUSE_S))
        for session, run_id in runs:
            answers(session, KEPT[0], message, run_id)

    def kept() -> set[str | None]:
        return {host.session for agent in supervisor.hosts() for host in agent.hosts}

    until(lambda: len(kept()) == KEPT_MAX, "the others to end")
    for session in sessions:
        if session.session in kept():
            # One that was too many may be ending still.
            end_kept(session, most=3)
        causes = [end["provenance"]["source"] for end in kept_ends(session)]
        assert set(causes) <= {"host.retired", "user.test"}
        assert causes.count("user.test") <= 1
    assert kit.alive() == []
