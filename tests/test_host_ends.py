"""Agents in hosts that start what outlives an agent elsewhere: however a run ends, and whenever, nobody is left."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from supervisor import Agent, SessionHandle
from tests.ends_kit import (
    TESTS,
    Example,
    Kind,
    Moment,
    Seen,
    by_expiry,
    by_stop,
    by_takeover,
    check_receipt,
    draw_moment,
    drawn,
    ended,
    look,
    next_turn_works,
    receipt_of,
    run_of,
)
from tests.kit import YEAR_S, Kit, say, stop, until

End = Callable[[Kit, SessionHandle, random.Random], None]
ENDS: dict[str, tuple[End, str, int]] = {
    "stopped": (by_stop, "cancelled", 5),
    "taken over": (by_takeover, "cancelled", 5),
    "expired": (by_expiry, "expired", 4),
}
"""The ways to end a run: the status of a run that is ended so, and how often that is done to a kind of agent."""
KILLS, SESSIONS = 2, 3
"""So many daemons are killed, each with so many sessions. With the other ends these are twenty of each kind."""
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
of_kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[NO_NODE] if kind.word in NODE else [], id=kind.word) for kind in KINDS]
)


@pytest.mark.parametrize("way", ENDS)
@of_kinds
def test_l3_nobody_is_left_however_and_whenever_a_run_is_ended(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, way: str
) -> None:
    draw = drawn(f"{kind.word} {way}")
    end, status, times = ENDS[way]
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    supervisor = kit.start(Agent(**kind.options(kit.mark)), run_deadline_s=YEAR_S)
    for number in range(times):
        session = supervisor.session(f"s{number}")
        message, moment = kind.message(draw), draw_moment(draw, kind)
        print(f"{message}: {way} at {moment}")
        kind.hold()
        run_id = say(session, message)
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
        later = [run.run_id for run in session.runs() if run.run_id != run_id]
        next_turn_works(session, kind, *later)
        assert kit.alive() == []


@of_kinds
def test_l3_nobody_is_left_of_a_daemon_whenever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    draw = drawn(f"{kind.word} killed")
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        kit = Kit(folder / "state")
        kind.prepare(folder, kit.mark, monkeypatch)
        try:
            killed(kit, kind, draw)
        finally:
            kit.clean()


def killed(kit: Kit, kind: Kind, draw: random.Random) -> None:
    """Kill a daemon with a few runs; start another one."""
    options = kind.options(kit.mark)
    runs: list[tuple[str, Moment]] = [(kind.message(draw), draw_moment(draw, kind)) for _ in range(SESSIONS)]
    print(f"killed: {runs}")
    kind.hold()
    argv = [str(kit.state_dir), msgspec.json.encode(options).decode(), msgspec.json.encode(runs).decode()]
    child = subprocess.run([sys.executable, "-m", "tests.ends_child", *argv], cwd=TESTS.parent, check=False)
    assert child.returncode == -signal.SIGKILL
    until(lambda: not kit.alive(), "everybody to die with the daemon")
    kind.release()
    supervisor = kit.start(Agent(**options))
    for number in range(SESSIONS):
        session = supervisor.session(f"s{number}")
        first = session.runs()[0].run_id
        until(lambda session=session: session.runs()[0].settled, "the receipt")  # type: ignore[misc]
        check_receipt(receipt_of(session, first), Seen(frozenset(), frozenset()))
        for again in session.runs()[1:]:
            # It had said nothing, so its message is run again.
            assert again.retry_of == first
            stop(session)
            check_receipt(receipt_of(session, again.run_id), Seen(frozenset(), frozenset()))
        next_turn_works(session, kind)
    assert kit.alive() == []
