"""Who of a case lives, found without the product's help; and how what is left is ended.

Theory of operation. A process of a case is found by either of two signs: the run's token in its environment or its
command line, which a child has from its fork on; or a line that it wrote itself, with its pid and its start time,
which holds whatever it did to both later. A walker that forks and exits faster than /proc is read may show neither,
so such cases *beat*: their file grows for as long as one of them lives.

A pid alone names nobody. Whoever is signalled here is opened as a pidfd first, and looked at again after that: if
pid and start time are those that were seen, the descriptor is of that process.

This file reads /proc by itself, and shares nothing with `supervisor.containment`: it is there to contradict it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BEAT_S = 0.08
END_S = 30.0
DEAD = "ZX"
SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat: linux/sched.h."""
MARK = b"/cmg-"
"""Stands in the command line of every role, before the token: it is in the path of the file to write to."""


class Life(Struct, frozen=True):
    """A living process: its pid, the start in ticks that makes it its own, whose it is (real uid), and its looks.

    `exits`: the kernel has it on its way out, and nothing of its own is executed any more. `killed`: it was sent a
    SIGKILL, and executes nothing of its own either, but waits for a processor to end on.
    """

    pid: int
    ticks: int
    uid: int
    name: str
    state: str
    command: str
    exits: bool = False
    killed: bool = False

    @property
    def started_at(self) -> float:
        """When it began: epoch seconds, exact to a tick."""
        now = time.time()  # noqa: TID251  # the times in a receipt are of this clock
        return now - time.clock_gettime(time.CLOCK_BOOTTIME) + self.ticks / TICKS_PER_S


@dataclass
class Seen:
    """What the processes of a case wrote about themselves; see `roles`. `lines` counts those that say who is up.

    `hosts`: the processes that agents run in, which are among `everybody` and not among `lines`.
    `space`: the PID namespace of the case, if that is not ours; the numbers here are ours all the same.
    """

    lines: int = 0
    everybody: set[tuple[int, int]] = field(default_factory=set)
    hear: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)
    groups: list[str] = field(default_factory=list)
    far: set[tuple[int, int]] = field(default_factory=set)
    space: str = ""
    hosts: set[tuple[int, int]] = field(default_factory=set)


def read(path: Path) -> Seen:
    """Read what was written so far; a line that is not whole yet is left out."""
    seen = Seen()
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return seen
    for line in text.split("\n")[:-1]:
        word, _, rest = line.partition(" ")
        if word == "group":
            seen.groups.append(rest)
            continue
        if word == "namespace":
            # The far side of a case is in ours.
            seen.space = rest if rest != os.readlink("/proc/self/ns/pid") else seen.space
            continue
        numbers = [int(number) for number in rest.split() if number.isdigit()]
        if len(numbers) != 2:
            continue
        if word == "far":
            seen.far.add((numbers[0], numbers[1]))
            continue
        if word == "heard":
            seen.heard.add(numbers[0])
            continue
        seen.everybody.add((numbers[0], numbers[1]))
        if word == "host":
            seen.hosts.add((numbers[0], numbers[1]))
            continue
        seen.lines += 1
        if word == "hears":
            seen.hear.add(numbers[0])
    return _translated(seen, path) if seen.space else seen


def forget(path: Path) -> None:
    """Nobody asks about a case any more."""
    _outside.pop(path, None)


# ── Numbers of a namespace ────────────────────────────────────────────────────────────────────────

_outside: dict[Path, dict[tuple[int, int], int]] = {}
"""Of each file, our number of whoever wrote theirs there, with the start that makes it their own."""


def _translated(seen: Seen, path: Path) -> Seen:
    """What was seen with our numbers. Who was dead before they were looked for has none, and is left out."""
    known = _outside.setdefault(path, {})
    missing = {one for one in seen.everybody if one not in known}
    if missing:
        known.update(_find_outside(missing, seen.space))
    ours = {pid: outside for (pid, _), outside in known.items()}
    return Seen(
        seen.lines,
        {(known[one], one[1]) for one in seen.everybody if one in known},
        {ours[pid] for pid in seen.hear if pid in ours},
        {ours[pid] for pid in seen.heard if pid in ours},
        seen.groups,
        seen.far,
        seen.space,
        {(known[one], one[1]) for one in seen.hosts if one in known},
    )


def _find_outside(wanted: set[tuple[int, int]], space: str) -> dict[tuple[int, int], int]:
    """Our numbers of those who are wanted, by theirs in that namespace and their starts."""
    depth, found = len(_numbers("self")), {}
    for name in os.listdir("/proc"):
        numbers = _numbers(name) if name.isdigit() else []
        life = look(int(name)) if len(numbers) > depth else None
        if life is not None and (numbers[depth], life.ticks) in wanted and _is_below(life.pid, space):
            found[numbers[depth], life.ticks] = life.pid
    return found


def _numbers(name: str) -> list[int]:
    """The numbers of a process, ours first, then those in ever deeper namespaces."""
    for line in _bytes(f"/proc/{name}/status").split(b"\n"):
        if line.startswith(b"NSpid:"):
            return [int(number) for number in line.split()[1:]]
    return []


def _is_below(pid: int, space: str) -> bool:
    """True if a process or one above it is in that namespace: it may be in one that was made there."""
    while pid > 1:
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == space:
                return True
        except OSError:
            pass
        stat = _bytes(f"/proc/{pid}/stat")
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1]) if stat else 0
    return False


def look(pid: int) -> Life | None:
    """Look at a process; None where there is none, or it is dead and only not reaped."""
    folder = f"/proc/{pid}"
    try:
        text = Path(f"{folder}/stat").read_text(errors="replace")
        uid = os.stat(folder).st_uid
        command = Path(f"{folder}/cmdline").read_bytes()
        status = Path(f"{folder}/status").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    closed = text.rindex(")")
    fields = text[closed + 2 :].split()
    if fields[0] in DEAD:
        return None
    killed = False
    for line in status.split("\n"):
        # The owner of the folder is root for one that executed what it may not read; the real uid is in here.
        if line.startswith("Uid:"):
            uid = int(line.split()[1])
        if line.startswith(("SigPnd:", "ShdPnd:")):
            killed = killed or bool(int(line.split()[1], 16) & SIGKILL_BIT)
    shown = command.replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    exits = bool(int(fields[6]) & PF_EXITING)
    return Life(pid, int(fields[19]), uid, text[text.index("(") + 1 : closed], fields[0], shown, exits, killed)


def marked(token: str) -> list[Life]:
    """Whoever has the token in their environment or command line, ourselves aside."""
    needle, found = token.encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        command = _bytes(f"/proc/{name}/cmdline")
        # One that shows another run's token is that run's, and with a thousand of them there it is not looked at twice.
        if needle in command or (MARK not in command and needle in _bytes(f"/proc/{name}/environ")):
            life = look(int(name))
            if life is not None:
                found.append(life)
    return found


def _bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 131_072)
    except OSError:
        return b""
    finally:
        os.close(fd)


def living(token: str, path: Path) -> dict[int, Life]:
    """Everybody of a case who lives, by pid: those who carry its token, and those who wrote themselves down.

    But not who was started elsewhere, nor their children; see `far_side`. Whoever is on the way out is given the time
    that a busy kernel takes for that.
    """
    until = time.monotonic() + END_S
    while (found := _living_now(token, path)) and all(life.exits for life in found.values()):
        if time.monotonic() >= until:
            break
        time.sleep(BEAT_S)
    return found


def _living_now(token: str, path: Path) -> dict[int, Life]:
    found = {life.pid: life for life in marked(token)}
    seen = read(path)
    for pid, ticks in seen.everybody:
        if pid not in found:
            life = look(pid)
            if life is not None and life.ticks == ticks:
                found[pid] = life
    far = {life.pid for one in far_side(seen) for life in (one, *below(one.pid))}
    return {pid: life for pid, life in found.items() if pid not in far}


def far_side(seen: Seen) -> list[Life]:
    """Who lives of those that another daemon started for a case: no stop reaches them, and the receipt says so."""
    return [life for pid, ticks in seen.far if (life := look(pid)) is not None and life.ticks == ticks]


def tokens_alive(prefix: str, paths: Mapping[str, Path]) -> set[str]:
    """The tokens, of those that `paths` names, of which somebody lives: one look at /proc for all of them."""
    pattern = re.compile(re.escape(prefix.encode()) + rb"\d+\.")
    alive: set[str] = set()
    elsewhere = [life for path in paths.values() for life in far_side(read(path))]
    far = {life.pid for one in elsewhere for life in (one, *below(one.pid))}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and int(name) not in far:
            found = set(pattern.findall(_bytes(f"/proc/{name}/cmdline") + b"\0" + _bytes(f"/proc/{name}/environ")))
            if found and look(int(name)) is not None:
                alive |= {token.decode() for token in found}
    for token, path in paths.items():
        if token not in alive and any(
            (life := look(pid)) is not None and life.ticks == ticks for pid, ticks in read(path).everybody
        ):
            alive.add(token)
    return alive & paths.keys()


def beats(path: Path) -> bool:
    """True if somebody who only beats lives: the file grows while we watch."""
    before = _size(path)
    time.sleep(BEAT_S)
    return _size(path) > before


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def below(pid: int) -> list[Life]:
    """Everybody alive below a process."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        data = _bytes(f"/proc/{entry}/stat").decode(errors="replace") if entry.isdigit() else ""
        if data:
            parents[int(entry)] = int(data[data.rindex(")") + 2 :].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return [life for one in found - {pid} if (life := look(one)) is not None]


def still(lives: Iterable[Life]) -> list[Life]:
    """Those of them who live, as the processes that they were."""
    return [life for life in lives if (now := look(life.pid)) is not None and now.ticks == life.ticks]


class Household(Struct, frozen=True):
    """What a process has: dead children anywhere below it that nobody reaped, wardens, descriptors, threads."""

    zombies: int
    wardens: int
    descriptors: int
    threads: int


def household(pid: int) -> Household:
    """Count what is below a process, and what it holds itself."""
    parents, names, dead = {}, {}, set()
    for entry in os.listdir("/proc"):
        data = _bytes(f"/proc/{entry}/stat").decode(errors="replace") if entry.isdigit() else ""
        if not data:
            continue
        fields = data[data.rindex(")") + 2 :].split()
        parents[int(entry)], names[int(entry)] = int(fields[1]), data[data.index("(") + 1 : data.rindex(")")]
        if fields[0] in DEAD:
            dead.add(int(entry))
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below and child not in below}:
        below |= more
    return Household(
        zombies=len(below & dead),
        wardens=sum(1 for one in below - dead if names.get(one) == "cm-warden"),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
    )


def own_group(pid: int | str = "self") -> str:
    """The path of a process's control group of version 2; empty if it has none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def layer_of(seen: Path) -> str:
    """Which layer holds a case: whether its namespace or its group is another one than ours, by the kernel's word."""
    case = read(seen)
    if case.space and case.everybody:
        return "namespace"
    for pid, _ in sorted(case.everybody):
        group = own_group(pid)
        if group:
            return "subreaper" if group == own_group() else "cgroup"
    return ""


def signal_exactly(life: Life, number: int) -> bool:
    """Signal that very process, and nobody who has its pid now; True if it was sent."""
    try:
        fd = os.pidfd_open(life.pid)
    except OSError:
        return False
    try:
        now = look(life.pid)
        if now is None or now.ticks != life.ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def end_all(token: str, paths: list[Path], *, beating: bool = True, within_s: float = END_S) -> int:
    """Kill whoever is left of runs whose tokens begin so, until nobody is found; returns how many were signalled.

    Those who may not be signalled are left, and end by themselves. Those who can only be heard (`beating`) cannot be
    caught either: the file that they write to is removed, which is their sign to end.
    """
    noted: set[tuple[int, int]] = set()
    ended: set[tuple[int, int]] = set()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        left = {life.pid: life for life in marked(token)}
        for path in paths:
            seen = read(path)
            noted |= seen.everybody | seen.far
        for pid, ticks in noted:
            life = None if pid in left else look(pid)
            if life is not None and life.ticks == ticks:
                left[pid] = life
        sent = {(life.pid, life.ticks) for life in left.values() if signal_exactly(life, signal.SIGKILL)}
        ended |= sent
        loud = [path for path in paths if beating and _beat_lately(path) and beats(path)]
        for path in loud:
            path.unlink(missing_ok=True)
        if not sent and not loud:
            break
        time.sleep(0.005)
    return len(ended)


def _beat_lately(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < 1.0  # noqa: TID251  # it is compared with a file's time
    except OSError:
        return False
