"""The directory ``wardens/`` of a state directory: the ledgers, and files with the last daemon's boot and cgroup."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

from loguru import logger

from supervisor.containment.guard import cgroups, procfs


class WardenDir:
    """One daemon's directory of ledgers.

    Args:
        path: absolute, since the zygote has another working directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot = procfs.boot_id()
        self.restarted = False
        """True if the last daemon here ran in another boot."""
        self.cgroup: str | None = None
        """The cgroup below which each tree has its own; None if there is none, and `no_cgroup` says why."""
        self.no_cgroup = "it is switched off"

    def make(self) -> None:
        """Make the directory, and note this boot in it. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.restarted = self._note_boot()

    def ledger(self, process_id: str) -> Path:
        """The path of a tree's ledger."""
        return self.path / f"{quote(process_id, safe='')}.ledger"

    def ledgers(self) -> list[tuple[str, Path]]:
        """The ledgers in the directory, with the ids of their trees."""
        return [(unquote(path.stem), path) for path in self.path.glob("*.ledger")]

    def prepare_cgroup(self) -> str | None:
        """Find a cgroup for our trees and record it; returns the one of the last daemon of this boot, if any."""
        self.cgroup, self.no_cgroup = cgroups.prepare(str(self.path))
        if self.cgroup is None:
            logger.debug("process trees have no cgroup: {}", self.no_cgroup)
        path = self.path / "cgroup"
        noted = path.read_text().split("\n") if path.exists() else []
        path.write_text(f"{self.boot}\n{self.cgroup or ''}")
        return noted[1] if len(noted) == 2 and noted[0] == self.boot and noted[1] else None

    def _note_boot(self) -> bool:
        """Record this boot durably; True if the last daemon here ran in another one.

        Ledgers are not synced, so after a power failure a missing one does not prove that nothing was spawned.
        """
        path = self.path / "boot"
        before = path.read_text() if path.exists() else self.boot
        with path.open("w") as file:
            file.write(self.boot)
            file.flush()
            os.fsync(file.fileno())
        return before != self.boot
