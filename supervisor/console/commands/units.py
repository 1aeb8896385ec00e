"""The systemd unit of the daemon, where there is one: whether it still says what containment rests on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from supervisor.console.commands.logs import UNIT, unit_of
from supervisor.wire import Finding

ANSWER_S: Final = 10.0
RULES: Final = {
    "Type": (("notify", "notify-reload"), "systemd cannot tell when it is ready, and feeds no watchdog"),
    "KillMode": (("mixed",), "a stop kills wardens before they have ended their trees"),
    "OOMPolicy": (("continue",), "a tool that runs out of memory takes the daemon along"),
    "Delegate": (("yes",), "its process trees can have no cgroups of their own"),
    "Restart": (("on-failure", "always", "on-abnormal", "on-abort", "on-watchdog"), "after a crash nothing starts it"),
}
"""By property of a unit: the values that are right, and the consequence of any other value."""
ASKED: Final = (*RULES, "LoadState", "ActiveState", "NeedDaemonReload", "FragmentPath", "ExecStart")


def look_at_units(pid: int | None) -> Iterator[Finding]:
    """Check the unit of the running daemon, or the installed units if no daemon runs. Waits for systemd.

    Args:
        pid: the daemon's pid; None if there is none.
    """
    if shutil.which("systemctl") is None:
        yield Finding("unit", ok=True, found="this system has no systemd")
        return
    own = unit_of(pid) if pid is not None else None
    if pid is not None and own is None:
        yield Finding("unit", ok=True, found="the daemon runs without systemd")
        return
    asked = [own] if own is not None else [(UNIT, False), (UNIT, True)]
    installed = 0
    for name, of_user in asked:
        said = _properties(name, of_user=of_user)
        if said.get("LoadState", "not-found") != "not-found":
            installed += 1
            yield from _look(name, said, of_user=of_user)
    if not installed:
        yield Finding("unit", ok=True, found="none is installed, or no systemd answers")


def _look(name: str, said: dict[str, str], *, of_user: bool) -> Iterator[Finding]:
    systemctl = "systemctl --user" if of_user else "systemctl"
    where = said.get("FragmentPath") or name
    wrong = [
        f"{key}={said[key] or '(nothing)'}: {why}"
        for key, (allowed, why) in RULES.items()
        if key in said and said[key] not in allowed
    ]
    program = said.get("ExecStart", "").partition("path=")[2].partition(" ;")[0]
    if program and not Path(program).exists():
        wrong.append(f"ExecStart={program}: there is no such program")
    if wrong:
        words = "; ".join(wrong)
        remedy = f"mend {where} and its drop-ins ({systemctl} cat {name}), or run scripts/install again"
        yield Finding("unit", ok=False, found=f"{where}: {words}", remedy=remedy)
    elif said.get("NeedDaemonReload") == "yes":
        found = f"{where} has changed since systemd read it"
        yield Finding("unit", ok=False, found=found, remedy=f"{systemctl} daemon-reload")
    elif said.get("ActiveState") == "failed":
        found = f"{name} has failed, and systemd does not try again"
        remedy = f"see why: countermand logs; then {systemctl} reset-failed {name} && {systemctl} start {name}"
        yield Finding("unit", ok=False, found=found, remedy=remedy)
    else:
        yield Finding("unit", ok=True, found=f"{where}, {said.get('ActiveState', 'unknown')}")


def _properties(name: str, *, of_user: bool) -> dict[str, str]:
    """What systemd says of a unit; nothing where no manager answers."""
    argv = ["systemctl", *(["--user"] if of_user else []), "show", name, f"--property={','.join(ASKED)}"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S, check=False, env=os.environ)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in done.stdout.splitlines()) if done.returncode == 0 else ()
    return {key: value for key, equals, value in pairs if equals}
