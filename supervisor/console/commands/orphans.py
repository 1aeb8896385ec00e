"""Orphans: processes that a tool started and that no warden watches any more.

Every process of a tool has its fencing token in its environment, and a warden as an ancestor. A warden is a subreaper:
it becomes the parent of processes that lose theirs. So a process with the token and without such an ancestor has
escaped, whatever the records say. Trees of which only the ledger is left are found by the records.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from supervisor.containment.guard import ledger, procfs

TOKEN: Final = b"COUNTERMAND_FENCE="
# The second is that of an earlier release.
WARDENS: Final = (b"/containment/guard/zygote.py", b"/containment/zygote.py")
DEPTH_MAX: Final = 4_096


class Orphan(Struct, frozen=True):
    """A process that got away. `fence`: its token, ``session:generation:call``."""

    pid: int
    fence: str
    command: str


def find_orphans() -> list[Orphan]:
    """Return the processes of tools that no warden watches, as far as this user may see them, by their pids."""
    found = []
    for name in os.listdir("/proc"):
        pid = int(name) if name.isdigit() else 0
        # A tool may call this command itself.
        if not pid or pid == os.getpid():
            continue
        fence = _fence(pid)
        if fence is None or _is_watched(pid):
            continue
        again = procfs.stat(pid)
        if again is not None and again.state not in "ZX":
            command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            found.append(Orphan(pid, fence, command or f"[{again.name}]"))
    return sorted(found, key=lambda one: one.pid)


def open_ledgers(state_dir: Path) -> list[str]:
    """Return the ids of process trees that began, are not proven to have ended, and have no warden any more."""
    found = []
    for path in sorted((state_dir / "wardens").glob("*.ledger")):
        try:
            held = ledger.Ledger.lock(path, wait=False)
        except OSError:
            continue
        if held is None:
            # Its warden lives, and is at work.
            continue
        try:
            if ledger.said(held.words, "spawning") is not None and ledger.said(held.words, "empty") is None:
                found.append(path.stem)
        finally:
            held.close()
    return found


def _fence(pid: int) -> str | None:
    for word in _read(f"/proc/{pid}/environ").split(b"\0"):
        if word.startswith(TOKEN):
            return word[len(TOKEN) :].decode(errors="replace")
    return None


def _is_watched(pid: int) -> bool:
    """True if the way up from a process leads to a warden."""
    for _ in range(DEPTH_MAX):
        seen = procfs.stat(pid)
        if seen is None:
            # It has ended meanwhile.
            return True
        command = _read(f"/proc/{pid}/cmdline")
        if any(one in command for one in WARDENS):
            return True
        if seen.ppid <= 1:
            return False
        pid = seen.ppid
    return False


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
