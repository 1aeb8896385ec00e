"""The gauntlet as an ordinary user: a child of the one that was started as root.

Root makes what the user cannot (a folder, two setuid programs for the cases that execute one), starts the child with
the user's ids and nothing else, and afterwards ends whatever the child could not: processes of another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gauntlet import census
from tests.gauntlet.cases import SETPRIV_NAME, SETUID_NAME, make_setuid

ROOT = Path(__file__).resolve().parent.parent.parent
PROBE_S = 30.0
PROBE = "import msgspec, pykka, tests.gauntlet.cases"


class NotPossible(Exception):
    """The gauntlet cannot be run as that user; the text says why."""


def run(user: str, argv: list[str]) -> int:
    """Run the gauntlet as `user` (a name, or a uid that needs no name); returns its exit code.

    Raises:
        NotPossible: this is not root, there is no such user, or no Python that the user may run.
    """
    if os.geteuid() != 0:
        raise NotPossible("--user is for root, who may become somebody else")
    uid, gid = _ids(user)
    if uid == 0:
        raise NotPossible("--user is for an ordinary user")
    folder = Path(tempfile.mkdtemp(prefix="cm-gauntlet-root-"))
    try:
        # Who is not of the user's group cannot come to the setuid programs.
        os.chown(folder, 0, gid)
        folder.chmod(0o710)
        home = folder / "home"
        home.mkdir()
        os.chown(home, uid, gid)
        environment = _environment(folder, home, gid)
        return _run(_python(uid, gid, environment, home), argv, uid, gid, environment, home)
    finally:
        census.end_all(str(folder), list(home.glob("*/*/seen")))
        shutil.rmtree(folder, ignore_errors=True)


def _run(python: str, argv: list[str], uid: int, gid: int, environment: dict[str, str], home: Path) -> int:
    child = subprocess.Popen(
        [python, "-m", "tests.gauntlet", *argv],
        cwd=ROOT,
        env=environment,
        user=uid,
        group=gid,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
    )
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        # A process of another user is out of the child's reach, and is found by what it wrote of itself.
        census.end_all(str(home), list(home.glob("*/*/seen")))


def _ids(user: str) -> tuple[int, int]:
    if user.isdigit():
        try:
            entry = pwd.getpwuid(int(user))
        except KeyError:
            return int(user), int(user)
    else:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise NotPossible(f"there is no user {user!r}; a uid without a name will do") from None
    return entry.pw_uid, entry.pw_gid


def _environment(folder: Path, home: Path, gid: int) -> dict[str, str]:
    """What the child gets: paths for its Python, a place for its files, and the programs that are made for it."""
    made = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
        SETUID_NAME: str(make_setuid(_public(folder / "setuid", gid), 0)),
    }
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        copy = _public(folder / "setpriv-of-root", gid) / "setpriv"
        shutil.copyfile(setpriv, copy)
        os.chown(copy, 0, gid)
        copy.chmod(0o4710)
        made[SETPRIV_NAME] = str(copy)
    return made


def _public(path: Path, gid: int) -> Path:
    path.mkdir()
    os.chown(path, 0, gid)
    path.chmod(0o750)
    return path


def _python(uid: int, gid: int, environment: dict[str, str], home: Path) -> str:
    """A Python that the user may run and that imports what the gauntlet needs. Root's own is often in root's home."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [sys.executable, *(f"{place}/{version}" for place in ("/usr/bin", "/usr/local/bin"))]
    for python in candidates:
        try:
            done = subprocess.run(
                [python, "-c", PROBE],
                cwd=ROOT,
                env={**environment, "HOME": str(home)},
                user=uid,
                group=gid,
                extra_groups=[],
                capture_output=True,
                timeout=PROBE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python
    raise NotPossible(f"uid {uid} may run none of {', '.join(candidates)} with this project's packages")
