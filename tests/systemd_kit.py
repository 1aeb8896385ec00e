"""A live systemd for tests, where PID 1 is something else: a manager of its own in namespaces of its own.

It is a user's manager or the system's, and knows the units of the test alone. It sees the machine's files, but what
is below /run, and for the system's manager below /etc, /opt and /var/lib, is its own: what it or a test writes there
is gone with it. Everything runs in one cgroup, and the end of that is the end of everything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.kit import until

SYSTEMD: Final = Path("/lib/systemd/systemd")
BOOT_S: Final = 60.0
COMMAND_S: Final = 120.0
APT_S: Final = 300.0

TARGETS: Final = ("basic", "sysinit", "shutdown", "exit", "sockets", "network", "default", "multi-user")

_COMMON = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0
chmod 700 /run/user/0
while mountpoint -q /sys/fs/cgroup; do umount -R -l /sys/fs/cgroup; done
mount -t cgroup2 none /sys/fs/cgroup
"""
BOOT: Final = {
    # The manager of a user is no PID 1, so its parent stays to be one.
    "user": _COMMON
    + r"""
mkdir /sys/fs/cgroup/user
echo $$ > /sys/fs/cgroup/user/cgroup.procs
"$SYSTEMD" --user --unit=basic.target --show-status=no &
wait
""",
    # Its files: a layer over the machine's, which is thrown away.
    "system": _COMMON
    + r"""
layers=$(mktemp -d)
mount -t tmpfs tmpfs "$layers"
for place in /etc /opt /var/lib; do
    mkdir -p "$place" "$layers/$place/over" "$layers/$place/work"
    mount -t overlay overlay -o "lowerdir=$place,upperdir=$layers/$place/over,workdir=$layers/$place/work" "$place"
done
mount -t tmpfs tmpfs /etc/systemd/system
cp "$SYSTEMD_UNIT_PATH"/* /etc/systemd/system/
export SYSTEMD_UNIT_PATH=/etc/systemd/system container=test
exec "$SYSTEMD" --system --unit=basic.target --show-status=no
""",
}


def cgroup2() -> Path | None:
    """Where cgroup v2 is mounted; on hybrid machines not at the usual place."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


def need_systemd() -> None:
    """Have systemd here, installed if need be; skip the test where that cannot be, and say why."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a manager in namespaces of its own needs root on Linux")
    root = cgroup2()
    if root is None:
        pytest.skip("there is no cgroup v2")
    probe = root / f"countermand-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe.mkdir()
        probe.rmdir()
        subprocess.run(
            ["unshare", "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--fork", "true"],
            check=True,
            capture_output=True,
            timeout=COMMAND_S,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no cgroup or no namespace can be made here: {error}")
    if SYSTEMD.exists() and shutil.which("systemctl"):
        return
    if shutil.which("apt-get") is None:
        pytest.skip("systemd is not here, and there is no apt to install it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "systemd"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=APT_S, env=environment, check=False)
        if done.returncode != 0:
            pytest.skip(f"systemd is not here and cannot be installed: {done.stderr.strip()[-300:]}")


class Manager:
    """A systemd that runs, with a directory of units. End it with `close`, whatever happened."""

    def __init__(self, kind: Literal["user", "system"], directory: Path) -> None:
        root = cgroup2()
        assert root is not None
        self.kind = kind
        self.units = directory / "units"
        self.units.mkdir(parents=True)
        for target in TARGETS:
            (self.units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        self.log = directory / "manager.log"
        self.cgroup = root / f"countermand-test-{uuid.uuid4().hex[:12]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Boot it; returns when it takes commands."""
        self.cgroup.mkdir()
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/",
            "SYSTEMD": str(SYSTEMD),
            "SYSTEMD_LOG_TARGET": "console",
            "SYSTEMD_LOG_LEVEL": "info",
            **self._environment(),
        }
        join = f"echo $$ > {self.cgroup}/cgroup.procs; exec unshare --mount --cgroup --pid --ipc --uts --fork"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f'{join} --kill-child --mount-proc bash -c "$0"', BOOT[self.kind]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        until(self._is_up, f"a manager; {self.log.read_text()}", BOOT_S)

    def run(
        self,
        *command: str,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout: float = COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command beside the units, as root."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", "-i", "-u", "--"]
        done = subprocess.run(
            [*enter, *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self._environment(), **(environment or {})},
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.tail()}"
        return done

    def ctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run systemctl."""
        return self.run("systemctl", f"--{self.kind}", *words, check=check)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.ctl("show", "--value", "-p", name, unit).stdout.strip()

    def tail(self) -> str:
        """The end of what the manager has said."""
        return self.log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End everything in it, and take the cgroup away."""
        if self.cgroup.exists():
            with contextlib.suppress(OSError):
                (self.cgroup / "cgroup.kill").write_text("1")
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(BOOT_S)
        deadline = time.monotonic() + BOOT_S
        while self.cgroup.exists() and time.monotonic() < deadline:
            for path in sorted(self.cgroup.rglob("*"), reverse=True):
                if path.is_dir():
                    with contextlib.suppress(OSError):
                        path.rmdir()
            with contextlib.suppress(OSError):
                self.cgroup.rmdir()
            time.sleep(0.02)
        assert not self.cgroup.exists(), "something of the manager is left"

    def _environment(self) -> dict[str, str]:
        if self.kind == "user":
            return {"SYSTEMD_UNIT_PATH": str(self.units), "XDG_RUNTIME_DIR": "/run/user/0"}
        where = self.units if self._pid == 0 else "/etc/systemd/system"
        return {"SYSTEMD_UNIT_PATH": str(where)}

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the manager has ended: {self.tail()}"
        private = "run/user/0/systemd/private" if self.kind == "user" else "run/systemd/private"
        for path in self.cgroup.rglob("cgroup.procs"):
            for pid in path.read_text().split():
                try:
                    is_manager = Path(f"/proc/{pid}/comm").read_text().strip() == "systemd"
                    up = is_manager and Path(f"/proc/{pid}/root/{private}").exists()
                except OSError:
                    continue
                if up:
                    self._pid = int(pid)
                    return True
        return False


@contextlib.contextmanager
def manager(kind: Literal["user", "system"], directory: Path) -> Iterator[Manager]:
    """A Manager that is closed whatever happens; not started yet, so that units can be put in place."""
    need_systemd()
    made = Manager(kind, directory)
    try:
        yield made
    finally:
        made.close()
