"""A short soak, and that its judgement sees what is planted. `scripts/soak` goes on for as long as one likes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from actors.model import Event
from tests.crash_kit import MARK_NAME, Told, fingerprint, nobody_left
from tests.kit import until
from tests.soak import main
from tests.soak.samples import Sample, Samples, curve
from tests.soak.stand import Stand
from tests.soak.verdict import verdict

# httpcore leaves a Unix socket open with which it could not connect.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LOAD_S = 8.0
NOTES = Console(quiet=True)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    try:
        with nobody_left(made.mark):
            yield made
    finally:
        made.close()
        # Here, and not in another test.
        gc.collect()


@pytest.mark.timeout(600)
def test_a_daemon_that_much_happens_to_loses_nothing_and_leaves_nothing(stand: Stand) -> None:
    seed = secrets.token_hex(4)
    report = main.soak(stand, NOTES, seed, LOAD_S, senders=3)
    assert not report["alarms"], (seed, report["alarms"])
    assert report["seen"]["answers"], seed
    assert sum(report["faults"].values()), seed
    main.show(NOTES, report)


@pytest.fixture
def loaded(stand: Stand) -> tuple[Stand, Told]:
    """A daemon that was loaded, and has ended, and what its clients were told."""
    kept: list[Told] = []

    class Kept(Told):
        def __init__(self) -> None:
            super().__init__()
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "Told", Kept)
        main.soak(stand, NOTES, "planted", 2.0, senders=1, calm=True)
    (told,) = kept
    verdict(stand, told)
    return stand, told


@pytest.mark.timeout(600)
def test_what_is_planted_is_seen(loaded: tuple[Stand, Told]) -> None:
    stand, told = loaded
    survivor = subprocess.Popen(["sleep", "300"], env={**os.environ, MARK_NAME: stand.mark})
    try:
        until(lambda: Path(f"/proc/{survivor.pid}/comm").read_text() == "sleep\n", "it runs")
        with pytest.raises(AssertionError, match="is dead"):
            verdict(stand, told)
    finally:
        survivor.kill()
        survivor.wait()
    verdict(stand, told)

    (session, given) = next((name, events) for name, events in told.events.items() if events)
    last = max(given)
    lost = Event(last + 10_000, session, 1, None, "text", {"text": "lost"}, 0.0)
    told.events[session][lost.seq] = fingerprint(lost)
    with pytest.raises(AssertionError, match="stored None"):
        verdict(stand, told)
    del told.events[session][lost.seq]

    word = next(iter(stand.scripts.all_runs()), "twice")
    ran = stand.scripts.ran.read_text() if stand.scripts.ran.exists() else ""
    stand.scripts.ran.write_text(f"{ran}{word}\n{word}\n")
    with pytest.raises(AssertionError, match="scripts ran twice"):
        verdict(stand, told)
    stand.scripts.ran.write_text(ran)

    with contextlib.closing(sqlite3.connect(stand.state_dir / "store.sqlite3")) as store, store:
        (run_id, doc) = store.execute("SELECT run_id, doc FROM runs WHERE settled = 1").fetchone()
        changed = json.dumps({**json.loads(doc), "settled": False})
        store.execute("UPDATE runs SET doc = ? WHERE run_id = ?", [changed.encode(), run_id])
    with pytest.raises(AssertionError, match="not settled"):
        verdict(stand, told)


def test_a_daemon_that_ends_by_itself_is_seen(stand: Stand) -> None:
    stand.start()
    stand.check()
    os.kill(stand.pid, signal.SIGSEGV)
    os.waitid(os.P_PID, stand.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(AssertionError, match=r"by itself with -11: (.|\n)*Segmentation fault"):
        stand.check()
    with pytest.raises(AssertionError, match="ended with -11"):
        stand.end()


def samples_of(stand: Stand, *memory_mb: float) -> Samples:
    made = Samples(stand)
    made.end()
    made.all = [Sample(2.0 * n, 1, mb, 20, 70, 10, 30, 5.0) for n, mb in enumerate(memory_mb)]
    return made


def test_what_grows_is_seen_and_what_only_goes_up_and_down_is_not(stand: Stand) -> None:
    assert not samples_of(stand, *([70.0, 90.0] * 40)).growing()
    assert samples_of(stand, *(70.0 + n for n in range(80))).growing() == {"memory_mb": (99.5, 139.5)}
    # Too few to say anything.
    assert not samples_of(stand, *(70.0 + 10 * n for n in range(8))).growing()


def test_a_curve_begins_at_zero_and_shows_the_greatest_of_each_part() -> None:
    assert curve([]) == ""
    assert curve([0.0, 0.0]) == "▁▁"
    assert curve([8.0, 1.0, 4.0]) == "█▂▅"
    assert curve([1.0] * 600 + [8.0] + [1.0] * 599)[28:32] == "▂▂█▂"
