"""The daemon of the soak, on a disk of its own where that can be had."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import uuid
from pathlib import Path
from typing import Final

import psutil

from supervisor.console.client.endpoint import Endpoint
from tests.crash_kit import MARK_NAME, ROOT, Scripts, alive
from tests.daemon_kit import Foreground

DISK_BYTES: Final = 1 << 31
WAIT_S: Final = 120.0
LAST_WORDS_CHARS: Final = 20_000
"""A crash writes the stacks of all threads."""


class Disk:
    """A file system in a file, for the state directory: it can be full, and nobody else's is. It needs root."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.place = place
        place.mkdir(mode=0o700)
        image = folder / "disk"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        self.mounted = False
        # There may be no such programs, or no right to mount.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
                subprocess.run(command, capture_output=True, check=True)
            self.mounted = True
        place.chmod(0o700)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            # What has just been killed may have files open there.
            subprocess.run(["umount", "--lazy", str(self.place)], check=True)


class Stand:
    """A daemon that is started again whenever it has ended; `close` ends it and all that it has started.

    Args:
        folder: an empty directory.
        set: further settings, as ``serve --set`` takes them.
    """

    def __init__(self, folder: Path, *more: str) -> None:
        self.mark = uuid.uuid4().hex
        self.scripts = Scripts(folder, self.mark)
        self._daemon = Foreground(folder)
        self.state_dir = self._daemon.state_dir
        self.disk = Disk(folder, self.state_dir)
        self.endpoint = Endpoint(self.state_dir)
        self.lives = 0
        # Held while it is started or ended.
        self.changing = threading.RLock()
        worker = "tests.load_agents:worker"
        hosted = (
            f'{{run = "{worker}", path = ["{ROOT}"], keep = "session", keep_idle_s = 3.0, '
            f'env = {{{MARK_NAME} = "{self.mark}"}}}}'
        )
        self._settings = (
            f'agents = {{inside = {{run = "{worker}", in_process = true}}, hosted = {hosted}}}',
            "agent=inside",
            "grace_s=0.3",
            f"kill_s={WAIT_S}",
            "drain_s=2.0",
            "passivate_s=1.0",
            *more,
        )

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return self._daemon.process.pid

    @property
    def log_file(self) -> Path:
        """What the daemon has logged."""
        return self._daemon.log_file

    def start(self) -> None:
        """Start the daemon, and wait until it is ready."""
        with self.changing:
            self._daemon.ready(*self._settings)
            self.lives += 1

    def again(self, number: signal.Signals) -> None:
        """End the daemon by a signal, and start it again. Raises AssertionError if it ended in another way."""
        with self.changing:
            ended = self._ended(number)
            expected = -number if number == signal.SIGKILL else 0
            assert ended == expected, f"the daemon ended with {ended} at {number.name}: {self.last_words()}"
            self.start()

    def end(self) -> None:
        """End the daemon as systemd does. Raises AssertionError unless it says that nothing is left."""
        with self.changing:
            ended = self._ended(signal.SIGTERM)
            assert ended == 0, f"the daemon ended with {ended}: {self.last_words()}"

    def _ended(self, number: signal.Signals) -> int:
        self._daemon.process.send_signal(number)
        try:
            # It has `kill_s` to see what ignores SIGTERM die.
            return self._daemon.process.wait(2 * WAIT_S)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGABRT)
            self._daemon.process.wait()
            raise AssertionError(f"the daemon does not end at {number.name}: {self.last_words()}") from None

    def check(self) -> None:
        """Raise AssertionError if the daemon has ended by itself."""
        with self.changing:
            ended = self._daemon.process.poll()
            assert ended is None, f"the daemon ended by itself with {ended}: {self.last_words()}"

    def named(self, name: str) -> list[psutil.Process]:
        """What runs below the daemon under a name."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [one for one in psutil.Process(self.pid).children(recursive=True) if _name(one) == name]
        return []

    def hosts(self) -> list[psutil.Process]:
        """The hosts: what executes an agent in a process of its own."""
        return [one for one in self.named("python") if "countermand_host.py" in " ".join(_argv(one))]

    def last_words(self) -> str:
        """The end of the daemon's log."""
        return self.log_file.read_text(errors="replace")[-LAST_WORDS_CHARS:]

    def alarms(self) -> dict[str, int]:
        """How often the log has each message of level critical, and each that begins with "internal error"."""
        found: dict[str, int] = {}
        for line in self.log_file.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                said = json.loads(line)
                if said["level"] == "critical" or said["message"].startswith("internal error"):
                    found[said["message"][:200]] = found.get(said["message"][:200], 0) + 1
        return found

    def close(self) -> None:
        """End everything, and unmount the disk."""
        self._daemon.close()
        for pid in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.disk.close()


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
