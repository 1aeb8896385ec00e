"""The polite step of the ladder: which processes it signals, and which its record says got the signal."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.containment.guard import cgroups
from tests.process_kit import OWN_GROUP, needs_cgroups

ROOT = Path(__file__).parent.parent

ASK = """
import ctypes, os, signal, sys, time
from supervisor.containment.guard import cgroups, ladder, ledger, procfs
from supervisor.containment.guard.tree_record import TreeRecord
path, when, end, group = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] or None
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
asks, asked = os.pipe()
says, said = os.pipe()

def live():
    # In short sleeps: a signal that comes just before one is handled only behind it.
    for _ in range(6000):
        time.sleep(0.01)
    os._exit(1)

def late():
    # SIGWINCH comes after a SIGTERM that was sent before it: the lower number is handled first.
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    signal.signal(signal.SIGWINCH, lambda *_: os.write(said, b"heard" if heard else b"quiet"))
    if end == "leads":
        os.setpgid(0, 0)
    os.write(said, b"%d" % os.getpid())
    if end == "dead":
        os._exit(0)
    live()

def command():
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.write(said, b"up")
    os.read(asks, 1)
    if os.fork() == 0:
        late()
    live()

leader = os.fork()
if leader == 0:
    command()
os.read(says, 100)
if group:
    cgroups.join(group, leader)

def fork_now():
    global pid
    os.write(asked, b".")
    pid = int(os.read(says, 100))
    if end == "dead":
        while not procfs.stat(pid).dead:
            pass

class Hooked(ladder.Moment):
    times = 0

    def __init__(self):
        # The first one is before the signal to the group, the second one after it, both behind the look.
        Hooked.times += 1
        if (Hooked.times, when) == (1, "before"):
            fork_now()
        super().__init__()
        if (Hooked.times, when) in ((1, "meanwhile"), (2, "after")):
            fork_now()

ladder.Moment = Hooked
ledger.create(path, "p", 0.0, "boot")
record = TreeRecord(ledger.Ledger.lock(path, wait=True), None)
ladder.Ladder(record, group, None, subreaper=True, say=print)._ask()
row = record.rows.get(pid, {"signals": [], "note": ""})
print([one["signal"] for one in record.rows[leader]["signals"]], [one["signal"] for one in row["signals"]])
print(row.get("note", ""))
if end != "dead":
    os.kill(pid, signal.SIGWINCH)
    print(os.read(says, 100).decode())
for one in (leader, pid):
    os.kill(one, signal.SIGKILL)
    os.waitpid(one, 0)
if end == "dead":
    record.ended(pid, 0, 0.0)
print([row["note"] for row in record.last_word("", proven=True)["rows"] if row["pid"] == pid])
"""
BOTH = "['SIGTERM', 'SIGCONT']"
MAYBE = "it was forked about when its process group got a signal, and may have got it too: SIGTERM"
GONE = "gone by then; its status went to its own parent"


@pytest.fixture
def group() -> Iterator[str]:
    assert OWN_GROUP is not None
    path = os.path.join(OWN_GROUP, f"countermand-test-{uuid.uuid4().hex}")
    os.mkdir(path)
    yield path
    cgroups.end(path, 10.0)


def ask(tmp_path: Path, when: str, end: str = "lives", group: str = "") -> list[str]:
    """Ask a command that forks at that moment; returns the lines of `ASK`."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path / "p.ledger"), when, end, group],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_l5_a_process_forked_between_the_look_and_the_signal_to_its_group_is_recorded_as_signalled(
    tmp_path: Path,
) -> None:
    assert ask(tmp_path, "before") == [f"{BOTH} {BOTH}", "", "heard", f"['{GONE}']"]


def test_l5_a_process_forked_while_the_signal_is_sent_has_a_row_that_says_it_may_have_got_it(tmp_path: Path) -> None:
    assert ask(tmp_path, "meanwhile") == [f"{BOTH} []", MAYBE, "heard", f"['{MAYBE}; {GONE}']"]


def test_l5_a_process_that_left_its_group_or_ended_meanwhile_may_have_got_the_signal(tmp_path: Path) -> None:
    for number, end in enumerate(("leads", "dead")):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert ask(folder, "before", end)[:2] == [f"{BOTH} []", MAYBE]


def test_l5_a_process_forked_after_the_signal_is_not_recorded_as_signalled(tmp_path: Path) -> None:
    assert ask(tmp_path, "after") == [f"{BOTH} []", "", "quiet", "[]"]


@needs_cgroups
@pytest.mark.parametrize("end", ["lives", "leads"])
def test_l3_what_is_forked_to_clean_up_after_the_signal_is_not_asked_to_end(
    tmp_path: Path, group: str, end: str
) -> None:
    assert ask(tmp_path, "after", end, group) == [f"{BOTH} []", "", "quiet", "[]"]
