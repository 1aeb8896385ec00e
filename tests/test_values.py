"""The values of options: what is plain waits for no library, and what is not is looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


def command(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "supervisor.console", "--state-dir", str(directory), *args],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The packages that a command has loaded."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("config", "check", "--set", "grace_s=1", "--set", "drain_s=2"), 0),
        (("sessions", "--json"), 1),
        (("stop", "s1", "--reason", "enough"), 3),
    ],
)
def test_plain_values_and_defaults_are_taken_as_they_are(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    done = command(tmp_path, *args)
    assert done.returncode == code, done.stderr[-2000:]
    assert "pydantic" not in loaded(done)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("stop", "s1", "--timeout", "soon"), "--timeout"),
        (("stop", "s1", "--timeout", "-1"), "--timeout"),
        (("events", "s1", "--from-seq", "1.5"), "--from-seq"),
        (("events",), "SESSION"),
        (("send",), "SESSION"),
    ],
)
def test_what_is_not_plain_or_is_missing_is_refused(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    done = command(tmp_path, *args)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_number_that_is_given_is_one(tmp_path: Path) -> None:
    assert command(tmp_path, "stop", "s1", "--timeout", "2.5").returncode == 3
