"""Ends at drawn moments: what runs, how it is ended, at which moment, and what has to hold afterwards.

Theory of operation. A run tells the steps that it is at. A moment is a step and a time after it, drawn from a seed: the
moments of a test spread over the start of a host, the imports of an agent, each of its steps and what lies between
them. The seed is printed, and a failure is tried again with `COUNTERMAND_SEED` set to it; in CI it is the test's own.

What is left is looked for from outside, by a mark in the environment of all that a host starts. What the receipt says
is held against what was seen there just before the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from actors import Receipt
from actors.decoding import decoder
from actors.messages import RunDeadline
from actors.model import How, PartKind, Policy, RunInfo
from supervisor import Agent, SessionHandle
from tests.ends_inside import Ends, Left
from tests.kit import WAIT_S, YEAR_S, Kit, alive, check_rest, log, rows, say, stop, until

TESTS = Path(__file__).parent
AGAIN = "say again"
"""What a session is asked for after an end."""
IDLE = -1
"""The step of a run that has ended by itself."""
PAUSE_S = 0.05
"""Moments that follow a step are drawn up to so long after it."""
SIGTERM_BIT = 1 << 14
SHELLS = ("sh", "dash", "bash")


@dataclass
class Kind:
    """A kind of agent: the word that it does, its steps, and what is drawn to follow the word.

    Without steps it is to be ended when its run has ended by itself.
    """

    word: str
    steps: int
    ways: tuple[str, ...] = ("",)
    agent: str = "ending_agents:agent"
    light: str = AGAIN
    """What is asked for instead of `AGAIN` where that would take too long, or would be taken for what is left."""
    start_s: float = 0.4
    """Moments that follow no step are drawn up to so long after the message was accepted."""

    def options(self, mark: str) -> dict[str, Any]:
        """How its hosts are started, as arguments of `Agent`; all that they start carries the mark."""
        return {"run": self.agent, "path": [str(TESTS)], "env": {mark: "1"}, "spares": 0}

    def message(self, draw: random.Random) -> str:
        return f"{self.word} {draw.choice(self.ways)}".strip()

    def messages(self, draw: random.Random) -> list[str]:
        """What a session is asked for in turn. The run of the last one is to be ended, the others end by themselves."""
        return [self.message(draw)]

    def prepare(self, folder: Path, mark: str, patch: pytest.MonkeyPatch) -> None:
        """Make what its runs need beside the agent."""

    def look(self, mark: str) -> Seen:
        """Look for the processes of its runs, from outside."""
        return look(mark)

    def hold(self) -> None:
        """Have the runs from here on go on for good."""

    def release(self) -> None:
        """Let them come to their end: the one that is to be ended has been told."""

    def answer(self, message: str) -> str:
        """What is said of a message that is answered: `say TEXT`."""
        return f"said: {message.partition(' ')[2]}"

    def finish(self, session: SessionHandle) -> None:
        """End what a session has when its last run has ended."""


@dataclass
class Example(Kind):
    """The example in Node, as it stands. Its `make` goes on until it is released, and leaves somebody behind."""

    word: str = "docs/examples/agent.mjs"
    steps: int = 2

    def options(self, mark: str) -> dict[str, Any]:
        return {"command": ["node", str(TESTS.parent / self.word)], "env": {mark: "1"}, "spares": 0}

    def message(self, draw: random.Random) -> str:
        return "<1>"

    def prepare(self, folder: Path, mark: str, patch: pytest.MonkeyPatch) -> None:
        self.released = folder / "released"
        work = folder / "work"
        work.write_text(
            f"""
            trap "" TERM
            [ -e {self.released} ] || setsid sleep 1000 >/dev/null 2>&1 &
            echo "<2>"
            until [ -e {self.released} ]; do sleep 0.02; done
            printf made
            """
        )
        make = folder / "bin" / "make"
        make.parent.mkdir()
        make.write_text(f"#!/bin/sh\n{mark}=1 exec sh {work}\n")
        make.chmod(0o755)
        patch.setenv("PATH", str(make.parent), prepend=os.pathsep)

    def look(self, mark: str) -> Seen:
        # They come to their own end when they are released.
        return Seen(look(mark).pids, frozenset())

    def hold(self) -> None:
        self.released.unlink(missing_ok=True)

    def release(self) -> None:
        self.released.touch()

    def answer(self, message: str) -> str:
        return f"You said: {message}\n<2>\nmade"


class Moment(NamedTuple):
    """A moment in a run: so long after a step.

    With step 0: after its message was accepted; with IDLE: after the run has ended by itself.
    """

    step: int
    delay_s: float

    def wait(self, session: SessionHandle, run_id: str) -> None:
        """Wait for it, or for the run to end by itself."""
        if self.step == IDLE:
            ended(session, run_id)
        elif self.step:
            until(lambda: f"<{self.step}>" in told(session, run_id), f"step {self.step}")
        time.sleep(self.delay_s)


def draw_moment(draw: random.Random, kind: Kind) -> Moment:
    if not kind.steps:
        return Moment(IDLE, draw.uniform(0.0, PAUSE_S))
    if draw.random() < 0.2:
        return Moment(0, draw.uniform(0.0, kind.start_s))
    return Moment(draw.randint(1, kind.steps), draw.uniform(0.0, PAUSE_S))


def draw_next(draw: random.Random, kind: Kind, count: int) -> list[str]:
    """What so many sessions are asked for after their ends: half of them to say it again, which ones is drawn."""
    again = count // 2
    return draw.sample([AGAIN, kind.light], count, counts=[again, count - again])


def drawn(name: str) -> random.Random:
    """What the moments of a test are drawn from. Its seed is printed, so that a failure shows it."""
    given = os.environ.get("COUNTERMAND_SEED", "")
    if given:
        seed = int(given)
    elif os.environ.get("CI"):
        seed = zlib.crc32(name.encode())
    else:
        seed = int.from_bytes(os.urandom(4), "big")
    print(f"COUNTERMAND_SEED={seed}")
    return random.Random(seed)


# ── What a session says ───────────────────────────────────────────────────────────────────────────


def said(session: SessionHandle, run_id: str) -> str:
    """All that a run has said."""
    return "".join(event.data["text"] for event in log(session) if event.kind == "text" and event.run_id == run_id)


def told(session: SessionHandle, run_id: str) -> str:
    """All that a run has said, and its commands."""
    kinds = {"text", "tool.output"}
    return "".join(event.data["text"] for event in log(session) if event.kind in kinds and event.run_id == run_id)


def run_of(session: SessionHandle, run_id: str) -> RunInfo:
    return next(run for run in session.runs() if run.run_id == run_id)


def ended(session: SessionHandle, run_id: str) -> RunInfo:
    """The run, once it has ended."""
    until(lambda: run_of(session, run_id).ended_at is not None, f"run {run_id} to end")
    return run_of(session, run_id)


def receipt_of(session: SessionHandle, run_id: str) -> Receipt:
    return session.receipt(run_of(session, run_id).receipt_id, timeout=WAIT_S)


# ── What is seen from outside ─────────────────────────────────────────────────────────────────────


class Seen(NamedTuple):
    """The processes of a run, as they were seen from outside before its end."""

    pids: frozenset[int]
    stubborn: frozenset[int]
    """Those that ignored SIGTERM, and do not end by themselves."""
    shells: frozenset[int] = frozenset()
    """Those of them that are shells: a fork of one, for a moment of its work, looks the same, and does end."""


def look(mark: str) -> Seen:
    """Look for the processes that carry the mark."""
    pids = frozenset(alive(mark))
    stubborn = frozenset(pid for pid in pids if _is_stubborn(pid))
    return Seen(pids, stubborn, frozenset(pid for pid in stubborn if _name(pid) in SHELLS))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        # It has ended, as a fork of a shell does.
        return SHELLS[0]


def _is_stubborn(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    if b"resource_tracker" in command:
        # The helper of multiprocessing ignores SIGTERM, and ends when nobody needs it.
        return False
    if _is_fork_of_a_shell(status, command):
        return False
    ignored = next((line for line in status.splitlines() if line.startswith("SigIgn:")), "SigIgn: 0")
    return bool(int(ignored.split()[1], 16) & SIGTERM_BIT)


def _is_fork_of_a_shell(status: str, command: bytes) -> bool:
    """True for a shell's own fork: it inherits what the shell ignores, and ends when it has begun a command."""
    fields = dict(line.split(":", 1) for line in status.splitlines())
    if fields["Name"].strip() not in SHELLS:
        return False
    try:
        return Path(f"/proc/{fields['PPid'].strip()}/cmdline").read_bytes() == command
    except OSError:
        return False


def check_receipt(receipt: Receipt, seen: Seen) -> None:
    """Hold a receipt against what was seen before the end that it is about."""
    assert receipt.complete, receipt
    all_rows = rows(receipt)
    assert all(row.how is not None for row in all_rows), receipt
    assert not [row for row in all_rows if row.how in (How.ABANDONED, How.OUT_OF_REACH)], receipt
    assert [row.kind for row in all_rows].count(PartKind.AGENT) == 1, receipt
    processes = [row for row in all_rows if row.kind == PartKind.PROCESS]
    host = next(row for row in processes if row.name == "host test")
    assert not seen.pids or host.pid in seen.pids, (receipt, seen)
    listed = [row.pid for row in processes if row.how != How.NOT_STARTED]
    assert receipt.reaped >= len(listed) == len(set(listed)), receipt
    # Nothing else ends one that ignores SIGTERM.
    assert seen.stubborn - seen.shells <= set(listed), (receipt, seen)
    assert not seen.stubborn or seen.stubborn & set(listed), (receipt, seen)
    for tree in processes:
        # The host, or what it has had started in a tree of its own.
        if seen.stubborn & {row.pid for row in tree.rows}:
            assert "SIGKILL" in [one.signal for one in tree.signals], (receipt, seen)


def check_idle(session: SessionHandle, receipt: Receipt) -> None:
    """A run had ended by itself, and its host was kept, when the daemon was killed: the host's end is on record."""
    assert receipt.complete, receipt
    (host,) = [row for row in rows(receipt) if row.name == "host test"]
    assert host.how == How.HANDED_OVER, receipt

    def ends() -> list[dict[str, Any]]:
        return [event.data for event in log(session) if event.kind == "process.ended" and "owner" in event.data]

    until(ends, "the kept host to end")
    (end,) = ends()
    assert end["proven"], end
    assert end["provenance"]["source"] == "supervisor.recovery", end


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


def by_stop(kit: Kit, session: SessionHandle, draw: random.Random) -> None:
    stop(session, mode=draw.choice(("graceful", "graceful", "immediate")))


def by_takeover(kit: Kit, session: SessionHandle, draw: random.Random) -> None:
    say(session, AGAIN, policy=Policy.INTERRUPT)


def by_expiry(kit: Kit, session: SessionHandle, draw: random.Random) -> None:
    kit.fire(RunDeadline)


def begin(session: SessionHandle, messages: Sequence[str]) -> str:
    """Send messages, each when the run of the one before has ended by itself; returns the run of the last."""
    *before, last = messages
    for message in before:
        assert ended(session, say(session, message)).status == "completed"
    return say(session, last)


def answers(session: SessionHandle, kind: Kind, message: str = AGAIN, run_id: str = "") -> None:
    """Check the session's next run, of a message: it says what it should, and its receipt is complete."""
    run_id = run_id or say(session, message)
    run = ended(session, run_id)
    assert run.status == "completed", run
    assert said(session, run_id) == kind.answer(message)
    receipt = receipt_of(session, run_id)
    assert receipt.complete, receipt


def next_turn_works(session: SessionHandle, kind: Kind, message: str = AGAIN, run_id: str = "") -> None:
    """Check the session's next run, its log, and that the session is at rest then."""
    answers(session, kind, message, run_id)
    check_rest(session)


End = Callable[[Kit, SessionHandle, random.Random], None]
ENDS: dict[str, tuple[End, str, int]] = {
    "stopped": (by_stop, "cancelled", 5),
    "taken over": (by_takeover, "cancelled", 5),
    "expired": (by_expiry, "expired", 4),
}
"""The ways to end a run: the status of a run that is ended so, and how often that is done to a kind of agent."""
KILLS, SESSIONS = 2, 3
"""So many daemons are killed, each with so many sessions. With the other ends these are twenty of each kind."""


def end_in_one_way(kit: Kit, kinds: Sequence[Kind], way: str, draw: random.Random) -> None:
    """End runs in one way, each of a kind that is drawn and at a moment of its own, and let the session go on.

    The kinds have hosts of the same options.
    """
    end, status, times = ENDS[way]
    supervisor = kit.start(Agent(**kinds[0].options(kit.mark)), run_deadline_s=YEAR_S)
    for number, asked in enumerate(draw_next(draw, kinds[0], times)):
        session, kind = supervisor.session(f"s{number}"), draw.choice(kinds)
        messages, moment = kind.messages(draw), draw_moment(draw, kind)
        print(f"{messages}: {way} at {moment}")
        kind.hold()
        run_id = begin(session, messages)
        moment.wait(session, run_id)
        seen = kind.look(kit.mark)
        assert run_of(session, run_id).ended_at is None, run_of(session, run_id)
        end(kit, session, draw)
        kind.release()
        assert ended(session, run_id).status == status, run_of(session, run_id)
        receipt = receipt_of(session, run_id)
        # The receipt is the proof: nobody is waited for after it.
        left = seen.pids & look(kit.mark).pids
        assert not left, receipt
        check_receipt(receipt, seen)
        later = [run.run_id for run in session.runs()][len(messages) :]
        then = AGAIN if later else asked
        print(f"then: {then}")
        next_turn_works(session, kind, then, *later)
        kind.finish(session)
        assert kit.alive() == []


def kill_daemons(kinds: Sequence[Kind], folder: Path, patch: pytest.MonkeyPatch, draw: random.Random) -> None:
    """Kill daemons with runs of these kinds, each daemon in a folder of its own below `folder`."""
    for number in range(KILLS):
        own = folder / str(number)
        own.mkdir()
        kit = Kit(own / "state")
        for kind in kinds:
            kind.prepare(own, kit.mark, patch)
        try:
            kill_daemon(kit, kinds, draw)
        finally:
            kit.clean()


def kill_daemon(kit: Kit, kinds: Sequence[Kind], draw: random.Random) -> None:
    """Kill a daemon with a few runs, each of a kind that is drawn; start another one."""
    options = kinds[0].options(kit.mark)
    drawn_kinds = [draw.choice(kinds) for _ in range(SESSIONS)]
    runs = [(kind.messages(draw), draw_moment(draw, kind)) for kind in drawn_kinds]
    print(f"killed: {runs}")
    for kind in kinds:
        kind.hold()
    argv = [str(kit.state_dir), msgspec.json.encode(options).decode(), msgspec.json.encode(runs).decode()]
    child = subprocess.run([sys.executable, "-m", "tests.ends_child", *argv], cwd=TESTS.parent, check=False)
    assert child.returncode == -signal.SIGKILL
    until(lambda: not kit.alive(), "everybody to die with the daemon")
    for kind in kinds:
        kind.release()
    supervisor = kit.start(Agent(**options))
    for number, asked in enumerate(draw_next(draw, kinds[0], SESSIONS)):
        session, kind, (messages, _) = supervisor.session(f"s{number}"), drawn_kinds[number], runs[number]
        killed = session.runs()[len(messages) - 1].run_id
        until(lambda session=session, run_id=killed: run_of(session, run_id).settled, "the receipt")  # type: ignore[misc]
        if run_of(session, killed).status == "completed":
            check_idle(session, receipt_of(session, killed))
        else:
            check_receipt(receipt_of(session, killed), Seen(frozenset(), frozenset()))
        for again in session.runs()[len(messages) :]:
            # It had said nothing, so its message is run again.
            assert again.retry_of == killed
            stop(session)
            check_receipt(receipt_of(session, again.run_id), Seen(frozenset(), frozenset()))
        next_turn_works(session, kind, asked)
        kind.finish(session)
    assert kit.alive() == []


# ── Inside ────────────────────────────────────────────────────────────────────────────────────────

INSIDE = 3
"""So many runs of a kind are ended inside a program."""
INSIDE_S = 100.0
"""A program that has not ended after so long hangs. No test depends on it."""


def end_inside(
    kit: Kit, kind: Kind, spelled: str, draw: random.Random, python: str = sys.executable, **env: str
) -> None:
    """End runs of an agent that is inside a program; whatever is left then, the receipt says so."""
    ends: Ends = []
    for _ in range(INSIDE):
        step, delay_s = draw_moment(draw, kind)
        ends.append((kind.message(draw), draw.choice((None, kind.light)), step, delay_s))
    # A loop that is blocked would block the next run too.
    for number, some in enumerate([[one] for one in ends] if kind.word == "block" else [ends]):
        print(f"inside: {some}")
        state_dir = kit.state_dir.with_name(f"inside-{number}")
        out = state_dir.with_suffix(".json")
        argv = [python, "-m", "tests.ends_inside", str(state_dir), kit.mark, spelled, str(out)]
        argv.append(msgspec.json.encode(some).decode())
        subprocess.run(argv, cwd=TESTS.parent, env={**os.environ, **env}, check=True, timeout=INSIDE_S)
        found = [decoder(Left)(line) for line in out.read_bytes().splitlines()]
        assert len(found) == len(some)
        for left in found:
            check_nothing_is_unsaid(left)


def check_nothing_is_unsaid(left: Left) -> None:
    """Hold a receipt against what was there when it came."""
    print(left)
    all_rows = rows(left.receipt)
    going_on = [row for row in all_rows if row.how in (How.ABANDONED, How.OUT_OF_REACH, None)]
    assert left.receipt.complete == (not going_on), left
    if left.pids or left.threads or left.tasks:
        assert not left.receipt.complete, left
    unknown = [row for row in going_on if row.how == How.OUT_OF_REACH]
    unnamed = set(left.pids) - {row.pid for row in all_rows}
    assert not unnamed or unknown, (unnamed, left)
