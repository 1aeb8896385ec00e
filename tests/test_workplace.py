"""Where a command begins, also when the directory of its supervisor is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from actors.errors import Invalid
from actors.model import How
from supervisor import Config, Supervisor
from supervisor.containment.workplace import Workplace
from tests.process_kit import Bench, bench

ROOT = Path(__file__).parent.parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that this process is in; it can be removed."""
    made = tmp_path / "here"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def b(here: Path, state: Path) -> Iterator[Bench]:
    assert here.is_dir()
    with bench(state) as opened:
        yield opened


def says(b: Bench, process_id: str, cwd: str | None = None) -> str:
    b.sh("pwd", process_id, cwd=cwd)
    assert b.owner.ended(process_id).status == 0
    return b.owner.text(process_id).strip()


def test_a_command_begins_where_the_supervisor_is_wherever_that_goes(b: Bench, here: Path, tmp_path: Path) -> None:
    assert says(b, "p1") == str(here)
    os.chdir(tmp_path)
    assert says(b, "p2") == str(tmp_path)
    assert says(b, "p3", cwd="here") == str(here)


def test_the_directory_above_a_link_is_that_of_its_target(b: Bench, here: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "project"
    target.mkdir(parents=True)
    (here / "link").symlink_to(target)
    for process_id, cwd in (("p1", "link/.."), ("p2", f"{here}/link/..")):
        b.sh("pwd -P", process_id, cwd=cwd)
        assert b.owner.ended(process_id).status == 0
        assert b.owner.text(process_id).strip() == str(target.parent)


def test_where_that_was_removed_commands_run_in_an_empty_directory(b: Bench, here: Path, state: Path) -> None:
    assert says(b, "p1") == str(here)
    here.rmdir()
    assert says(b, "p2") == str(state / "workplace")
    assert list((state / "workplace").iterdir()) == []
    assert says(b, "p3", cwd="/") == "/"


def test_where_another_one_has_its_name_commands_begin_in_that(b: Bench, here: Path) -> None:
    here.rmdir()
    here.mkdir()
    assert says(b, "p1") == str(here)


def test_a_directory_that_a_command_asks_for_and_that_is_gone_is_that_commands_failure(b: Bench, here: Path) -> None:
    (here / "below").mkdir()
    assert says(b, "p1", cwd="below") == str(here / "below")
    (here / "below").rmdir()
    here.rmdir()
    for process_id, cwd in (("p2", "below"), ("p3", str(here))):
        b.sh("pwd", process_id, cwd=cwd)
        ended = b.owner.ended(process_id)
        assert ended.how is How.NOT_STARTED
        assert "cannot enter the directory" in ended.note
    b.sh("exit 7", "p4")
    assert b.owner.ended("p4").status == 7


def test_a_supervisor_that_is_started_in_a_removed_directory_works(here: Path, state: Path) -> None:
    here.rmdir()
    with bench(state) as b:
        assert says(b, "p") == str(state / "workplace")


def test_what_is_removed_is_said_once(here: Path, state: Path) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(message.record["message"]), level="WARNING")
    place = Workplace(state)
    here.rmdir()
    assert {place.path(None) for _ in range(3)} == {str(state / "workplace")}
    logger.remove(sink)
    assert said == [f"the directory {here} was removed: commands begin in {state / 'workplace'} instead"]


def test_a_relative_state_directory_is_refused_where_there_is_nothing_that_it_begins_in(here: Path) -> None:
    here.rmdir()
    console = [sys.executable, "-m", "supervisor.console"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in ("chat", "serve"):
        done = subprocess.run(
            [*console, "--state-dir", "below", command],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        assert (done.returncode, "in a working directory that was removed" in done.stderr) == (2, True), done.stderr
    with pytest.raises(Invalid):
        Supervisor.start(Config(state_dir="below"))
