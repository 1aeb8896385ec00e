"""`logs`: the daemon's own log, from a file or the journal.

The daemon writes its log only to standard error, and the kernel tells where that leads. A regular file is read, the
journal is read through journalctl. A terminal or a pipe cannot be read, and the command says so. If no daemon runs,
the journal of its unit is read, which helps after a crash.

The events of sessions are not in this log: `events` shows them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from actors.decoding import decoder
from actors.errors import CountermandError, NotFound
from actors.kernel.log_context import CONTEXT
from actors.text import below, one_line
from supervisor.console.client.api import Api, find_api, no_daemon
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.render.output import console, say
from supervisor.console.tty.streams import is_unread, when_unread

UNIT: Final = "countermand.service"
POLL_S: Final = 0.2
TAIL_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of a file are read, from its end."""
LEVELS: Final = ("trace", "debug", "info", "warning", "error", "critical")
_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim", "trace": "dim"}
CURSOR: Final = "-- cursor: "
Unread = threading.Event | None
"""Set when the output is not read any more; None if no further lines are waited for."""
_PRIORITY: Final = re.compile(r"^<[0-7]>")


class Wanted(msgspec.Struct, frozen=True):
    """Which lines are wanted: the last so many, of a session, of a level or above."""

    lines: int = 50
    session: str | None = None
    level: str | None = None

    @property
    def chosen(self) -> bool:
        """True if not every line is wanted."""
        return self.session is not None or self.level is not None

    def last(self, lines: Iterable[str]) -> deque[str]:
        """Return the last so many of the lines that are wanted."""
        return deque((line for line in lines if self.fits(_decoded(line))), maxlen=self.lines)

    def fits(self, said: dict[str, Any] | None) -> bool:
        """True for a line that is wanted; None is one that is no JSON, and tells neither its session nor its level."""
        if said is None:
            return self.session is None and self.level is None
        if self.session is not None and said.get("session") != self.session:
            return False
        level = str(said.get("level", "info"))
        return self.level is None or level not in LEVELS or LEVELS.index(level) >= LEVELS.index(self.level)


def show_logs(endpoint: Endpoint, wanted: Wanted, unit: str, *, follow: bool, as_json: bool) -> None:
    """Print the daemon's log; with `follow` also new lines, until the command is ended.

    Args:
        endpoint: where the daemon is.
        wanted: which lines.
        unit: the unit whose journal is read if no daemon runs.
        follow: go on with new lines.
        as_json: print lines that are JSON as they were written.

    Raises:
        NoDaemon: no daemon runs, and there is no journal, or it has nothing of the unit.
        NotFound: the log goes to a place where it cannot be read.
    """
    out = console()
    unread = threading.Event()
    if follow:
        # Before the first line is written, since writing it may show that the output is not read.
        when_unread(unread.set)
    lines = _source(endpoint, unit, wanted, unread if follow else None)
    with contextlib.closing(lines):
        for text in lines:
            said = _decoded(text)
            if not wanted.fits(said):
                continue
            if as_json:
                if said is not None:
                    print(one_line(text), flush=True)
            elif said is None:
                say(out, text)
            else:
                for line in as_text(said).split("\n"):
                    say(out, line, _STYLES.get(str(said.get("level")), ""))
            out.file.flush()
            if is_unread():
                return


def as_text(said: dict[str, Any]) -> str:
    """Return a line of the log as people read it."""
    at = str(said.get("at", ""))
    level = str(said.get("level", "")).upper()
    text = f"{_local(at)} {level:<8}{said.get('message', '')}"
    about = " ".join(f"{name}={said[name]}" for name in CONTEXT if name in said)
    text = one_line(f"{text}  [{about}]" if about else text)
    return f"{text}\n{below(str(said['exception']))}" if said.get("exception") else text


def _local(at: str) -> str:
    import datetime as dt

    try:
        return dt.datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return at


def _decoded(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        return decoder(dict[str, Any])(text)
    except msgspec.MsgspecError:
        return None


def _source(endpoint: Endpoint, unit: str, wanted: Wanted, follow: Unread) -> Generator[str, None, None]:
    api = find_api(endpoint)
    if api is None:
        if shutil.which("journalctl") is None:
            raise no_daemon(endpoint, "no process listens there, and this system has no journal")
        return _after_the_end(endpoint, unit, wanted, follow)
    try:
        return _of_daemon(api, wanted, follow)
    finally:
        api.close()


def _after_the_end(
    endpoint: Endpoint, unit: str, wanted: Wanted, follow: threading.Event | None
) -> Generator[str, None, None]:
    """What the journal has kept of a daemon that has ended."""
    found = False
    for line in _journal(_of_unit(unit), wanted, follow):
        found = True
        yield line
    if not found:
        raise no_daemon(endpoint, f"no process listens there, and the journal has nothing of {unit}")


def _of_daemon(api: Api, wanted: Wanted, follow: Unread) -> Generator[str, None, None]:
    pid = api.info.pid
    link = Path(f"/proc/{pid}/fd/2")
    try:
        target, seen = os.readlink(link), link.stat()
    except OSError as error:
        raise NotFound(
            f"where the log of process {pid} goes cannot be seen",
            expected="a daemon of this user's, on this machine",
            got=error.strerror or str(error),
            remedy="ask as the daemon's own user, or as root",
        ) from error
    if stat.S_ISREG(seen.st_mode):
        # Read through the descriptor: the daemon still writes to a file that was moved away.
        return _file(link, pid, wanted, follow)
    if stat.S_ISSOCK(seen.st_mode) and shutil.which("journalctl") is not None:
        return _journal(_of_process(pid), wanted, follow)
    what = "a terminal" if stat.S_ISCHR(seen.st_mode) and "null" not in target else target
    raise NotFound(
        "the log goes where this command cannot read it",
        expected="a daemon whose standard error is a file or the journal",
        got=f"process {pid}, whose log goes to {what}",
        remedy="look there; or start it under systemd, or with 2>>FILE; countermand events SESSION shows a session",
    )


def _of_process(pid: int) -> list[str]:
    """Select by the unit, if it has one: that includes lines before its start, and after its next start."""
    unit = unit_of(pid)
    if unit is None:
        return [f"_PID={pid}"]
    name, of_user = unit
    return ["--user-unit" if of_user else "--unit", name]


def unit_of(pid: int) -> tuple[str, bool] | None:
    """Return the systemd unit that a process is in, and whether it is a user's; None if it is in none."""
    try:
        path = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2]
    except OSError:
        return None
    units = [part for part in path.split("/") if part.endswith(".service") and not part.startswith("user@")]
    return (units[-1], "/user@" in path) if units else None


def _of_unit(unit: str) -> list[str]:
    # The system's unit or the user's, whichever exists.
    return ["--unit", unit, "--user-unit", unit]


def _journal(which: list[str], wanted: Wanted, follow: Unread) -> Generator[str, None, None]:
    """Yield the lines of the journal, then new ones. These begin at the cursor of the last line, so there is no gap."""
    cursor = ""

    def before() -> Generator[str, None, None]:
        nonlocal cursor
        # Only wanted lines count, so it is not known how far back the last ones are.
        lines = "all" if wanted.chosen else str(wanted.lines)
        options = ("--show-cursor",) if follow is not None else ()
        for line in _journalctl(*which, f"--lines={lines}", *options, cursor=follow is not None):
            if line.startswith(CURSOR):
                cursor = line.removeprefix(CURSOR)
            else:
                yield line

    yield from wanted.last(before())
    if follow is not None:
        behind = [f"--after-cursor={cursor}"] if cursor else []
        yield from _journalctl(*which, "--lines=all", "--follow", *behind, follow=follow)


def _journalctl(*arguments: str, cursor: bool = False, follow: Unread = None) -> Generator[str, None, None]:
    """What it prints, until `follow` is set.

    Asked for a `cursor` where there is no line it ends with 1 and says nothing: that is no failure.
    """
    said = False
    argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if follow is not None:

        def end() -> None:
            follow.wait()
            process.terminate()

        threading.Thread(target=end, name="console-journal", daemon=True).start()
    try:
        for line in process.stdout:
            said = True
            yield line.decode(errors="replace").rstrip("\n")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait()
    if process.returncode > 0 and (said or not cursor):
        raise CountermandError(
            "the journal could not be read", got=f"journalctl ended with {process.returncode}", remedy="see above"
        )


def _file(path: Path, pid: int, wanted: Wanted, follow: Unread) -> Generator[str, None, None]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        *whole, rest = file.read().split(b"\n")
        yield from wanted.last(_PRIORITY.sub("", line.decode(errors="replace")) for line in whole)
        while follow is not None:
            piece = file.read()
            if not piece:
                if follow.wait(POLL_S) or not Path(f"/proc/{pid}").exists():
                    return
                continue
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield _PRIORITY.sub("", line.decode(errors="replace"))
