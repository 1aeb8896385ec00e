"""`countermand demo`: what it shows is what is in the store, and it leaves nothing, however it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.decoding import convert
from actors.model import Receipt, RunInfo
from supervisor.console.commands import demo
from supervisor.console.commands.demo import AGAIN, ASK, BUILD, TEST
from supervisor.store.reader import SqliteReader
from tests.kit import alive, until

DEMO = [sys.executable, "-m", "supervisor.console", "demo"]
ROOT = Path(__file__).parents[1]
STEPS = {"taken over": "cancelled", "stopped": "cancelled", "killed with the daemon": "failed", "answered": "completed"}
"""What the steps are called, and the status of the run of each."""


def test_what_it_shows_is_in_the_store_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    done = subprocess.run([*DEMO, "--json", "--state-dir", str(folder)], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr, (folder / "output").read_text())
    story: dict[str, Any] = json.loads(done.stdout)
    assert (story["state_dir"], story["left"], alive(story["session"])) == (str(folder), 0, [])
    reader = SqliteReader(folder / "state" / "store.sqlite3")
    try:
        session = story["session"]
        runs: dict[str, RunInfo] = {run.run_id: run for run in reader.runs(session)}
        assert {step["what"]: runs[step["run_id"]].status for step in story["steps"]} == STEPS
        for step in story["steps"]:
            receipt = reader.receipt(session, step["run_id"])
            assert receipt == convert(step["receipt"], Receipt)
            assert receipt is not None
            assert (receipt.complete, step["left"]) == (True, 0)
            assert all(took >= 0 for took in step["seconds"].values())
        kept = json.loads(msgspec.json.encode(reader.thread(session)))
        assert story["thread"] == kept
    finally:
        reader.close()
    assert [message["content"] for message in kept if message["role"] == "user"] == [BUILD, TEST, AGAIN, ASK]
    results = [message["outcome"] for message in kept if message["role"] == "tool"]
    assert results == ["interrupted"] * 7
    told = kept[-1]["content"]
    assert told.startswith("Of my 7 calls 7 were interrupted. I was told:\n")
    for who in ("a new message took over", "the user stopped it (user.demo: enough)", "the supervisor was restarted"):
        assert f"\n- The run before this was interrupted: {who}" in told
    # The jobs ignore SIGTERM: it took a SIGKILL.
    first: Receipt = convert(story["steps"][0]["receipt"], Receipt)
    jobs = [row for call in first.rows if call.name == "shell" for row in call.rows]
    assert len(jobs) == 3
    assert {sent.signal for row in jobs for sent in row.signals} >= {"SIGTERM", "SIGKILL"}


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory for temporary ones, short enough for the path of a socket in one."""
    with tempfile.TemporaryDirectory(prefix="cm-", dir="/tmp") as folder:
        yield Path(folder)


def test_ctrl_c_ends_what_it_has_started_and_removes_what_it_has_written(short: Path) -> None:
    env = {**os.environ, "TMPDIR": str(short), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(DEMO, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as started:
        assert started.stdout is not None
        shown = b""
        while b"calls are at work" not in shown:
            line = started.stdout.readline()
            assert line, shown
            shown += line
        assert len(alive(str(short))) > 3
        started.send_signal(signal.SIGINT)
        shown += started.stdout.read()
    assert started.returncode == -signal.SIGINT, shown
    assert list(short.iterdir()) == []
    # Its zygote and its wardens have nothing of the jobs, and end by themselves.
    until(lambda: not alive(str(short)), "everybody to end")


def test_a_step_that_takes_too_long_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEP_S", 0.0)
    with pytest.raises(demo.DemoFailed, match="a step of the demo takes too long; expected a miracle"):
        demo._until(lambda: False, "a miracle")


def test_a_directory_that_has_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = subprocess.run([*DEMO, "--state-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the directory of --state-dir is not empty" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
