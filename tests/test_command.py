"""The command's start: another package `supervisor` in its environment is named, in place of an ImportError."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
START = "import countermand; countermand.main()"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of packages with what supervisord's distribution has in it, as far as others can see it."""
    folder = tmp_path / "site-packages"
    (folder / "supervisor").mkdir(parents=True)
    (folder / "supervisor" / "__init__.py").write_text("#\n")
    (folder / "supervisor" / "supervisord.py").write_text("def main():\n    print('supervisord')\n")
    (folder / "supervisor" / "http.py").write_text("")
    info = folder / "supervisor-4.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.3.0\n")
    (info / "RECORD").write_text("supervisor/__init__.py,,\nsupervisor/supervisord.py,,\nsupervisor/http.py,,\n")
    return folder


def run(first: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{first}:{ROOT}:{ROOT / 'scripts'}",
        "HOME": str(first),
        "XDG_STATE_HOME": str(first),
    }
    return subprocess.run(
        [sys.executable, "-c", START, *words], capture_output=True, text=True, check=False, env=environment, cwd=first
    )


def install_ours(folder: Path) -> None:
    shutil.copytree(
        ROOT / "supervisor", folder / "supervisor", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )


def packages(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What `doctor` finds of packages."""
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["check"] == "packages")
    return dict(found)


def test_a_package_that_hides_ours_is_named_with_its_distribution_and_what_helps(theirs: Path) -> None:
    done = run(theirs, "--version")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("countermand: ")
    for said in (str(theirs / "supervisor"), "supervisor 4.3.0 (supervisord)", "one of its own"):
        assert said in done.stderr


def test_a_folder_of_that_name_without_a_distribution_is_named(tmp_path: Path) -> None:
    (tmp_path / "supervisor").mkdir()
    done = run(tmp_path, "--version")
    assert done.returncode == 0, "a folder without code hides nothing"
    (tmp_path / "supervisor" / "__init__.py").write_text("")
    done = run(tmp_path, "--version")
    assert done.returncode == 1
    assert str(tmp_path / "supervisor") in done.stderr
    assert "PYTHONPATH" in done.stderr


@pytest.mark.parametrize("last", ["theirs", "ours"])
def test_two_that_were_installed_into_one_folder_are_named_by_doctor(theirs: Path, last: str) -> None:
    install_ours(theirs)
    if last == "theirs":
        (theirs / "supervisor" / "__init__.py").write_text("#\n")
    done = run(theirs, "doctor", "--json")
    assert done.returncode == 1, done.stderr
    found = packages(done)
    assert not found["ok"]
    assert "supervisor 4.3.0 (supervisord)" in found["found"]
    assert str(theirs / "supervisor") in found["found"]
    assert "one of its own" in found["remedy"]


def test_what_supervisord_takes_along_when_it_is_uninstalled_is_named(tmp_path: Path) -> None:
    install_ours(tmp_path)
    (tmp_path / "supervisor" / "__init__.py").unlink()
    # Without the checkout on the path, which holds a whole one.
    shutil.copytree(ROOT / "actors", tmp_path / "actors", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "scripts" / "countermand.py", tmp_path)
    script = f"import sys; sys.path[:] = [one for one in sys.path if one != {str(ROOT)!r}]; {START}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", script, "doctor", "--state-dir", str(tmp_path / "state"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    found = packages(done)
    assert "lacks its __init__.py" in found["found"]
    assert "--force-reinstall" in found["remedy"]


def test_an_error_of_ours_while_the_command_is_imported_is_not_taken_for_theirs(tmp_path: Path) -> None:
    (tmp_path / "click").mkdir()
    (tmp_path / "click" / "__init__.py").write_text("raise ImportError('this click is broken')")
    done = run(tmp_path, "--version")
    assert done.returncode == 1
    assert "ImportError: this click is broken" in done.stderr


def test_where_no_other_is_the_command_starts_and_doctor_says_so(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout.startswith("countermand ")
    done = run(tmp_path, "doctor", "--json")
    assert packages(done)["ok"]


def test_what_an_agent_imports_in_a_host_it_can_import_in_the_daemons_process() -> None:
    import countermand
    from supervisor.hosts import runtime

    # The log of the daemon's process is the application's.
    for name in set(runtime.__all__) - {"log"}:
        assert getattr(countermand, name).__name__ == name
    with pytest.raises(AttributeError):
        countermand.log  # noqa: B018
