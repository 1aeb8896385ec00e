"""Carries over what somebody has installed into an environment of ours, such as agents, when a new one replaces it.

    python carry_over.py OLD NEW

OLD is the environment before, which was made at the path NEW and was moved; NEW is whole. What NEW has already stays as
it is in there: only the lock says what ours is. Standard library only; run with -I by the Python of NEW.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def main(old: Path, new: Path) -> int:
    """Copy, and print what was carried over; 1 where something has to be installed again by hand."""
    sites = sorted(old.glob("lib/python3.*/site-packages"))
    if not sites:
        return 0
    (site,) = new.glob("lib/python3.*/site-packages")
    ours = {name_of(one) for one in distributions(path=[str(site)])}
    before = list(distributions(path=[str(sites[0])]))
    theirs = sorted((one for one in before if name_of(one) not in ours), key=name_of)
    names = ", ".join(f"{name_of(one)} {one.version}" for one in theirs)
    if sites[0].parent.name != site.parent.name:
        if theirs:
            print(f"not carried over, since they are of {sites[0].parent.name}; install them again: {names}")
        return 1 if theirs else 0
    for one in theirs:
        for file in one.files or ():
            carry(Path(str(one.locate_file(file))), old, new)
    # What was put there without an installer, as a module or a .pth file.
    recorded = {Path(str(one.locate_file(file))).resolve() for one in before for file in one.files or ()}
    loose = [path for path in sites[0].iterdir() if is_loose(path, recorded) and not (site / path.name).exists()]
    for path in loose:
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, site / path.name, symlinks=True)
        else:
            carry(path, old, new)
    if theirs or loose:
        print(f"carried over: {', '.join([names] * bool(names) + sorted(path.name for path in loose))}")
    return 0


def name_of(one: Distribution) -> str:
    """The name of a distribution, as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", str(one.metadata["Name"])).lower()


def is_loose(path: Path, recorded: set[Path]) -> bool:
    """True if no distribution has a file at, or below, an entry of a folder of packages."""
    if path.name == "__pycache__":
        return False
    inside = path.resolve()
    return not any(file == inside or inside in file.parents for file in recorded)


def carry(path: Path, old: Path, new: Path) -> None:
    """Copy a file of the old environment to its place in the new one, if it is not there."""
    # By names alone: a link is carried over as the link that it is.
    path = Path(*shortened(path))
    if not path.is_relative_to(old) or not (path.exists() or path.is_symlink()):
        return
    place = new / path.relative_to(old)
    if not (place.exists() or place.is_symlink()):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place, follow_symlinks=False)


def shortened(path: Path) -> list[str]:
    """The parts of a path, each `..` taken out with what is before it."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
