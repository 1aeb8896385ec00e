"""`doctor`: faults around a daemon, seen from outside, and their remedies.

A daemon that answers checks itself. Facts that it cannot see, or cannot report when it is gone, are checked here: the
socket, the lock, the directory and the disk, ledgers and processes that no daemon watches, the systemd unit. Nothing
is changed: each finding says what to do about it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from actors.errors import CountermandError
from countermand import wrong_supervisor
from supervisor.console.client.api import Api, find_api, is_socket, quote_shell
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.commands.orphans import find_orphans, open_ledgers
from supervisor.console.commands.units import look_at_units
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, print_json, say
from supervisor.console.render.words import plural
from supervisor.containment.spool import use_of
from supervisor.lock import NAME as LOCK_NAME
from supervisor.lock import held, holder
from supervisor.store.health import DISK_LEAST_BYTES
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import STORE_NAME
from supervisor.wire import Diagnosis, Finding

INODES_LEAST: Final = 1_000
NAMED_MAX: Final = 5
PRIVATE: Final = (STORE_NAME, LOCK_NAME, "token", "wardens")
"""Files of the state directory that other users must not read."""


def examine(endpoint: Endpoint, *, as_json: bool) -> ExitCode:
    """Check everything, and print the findings. Return FAILED if there is a problem."""
    findings = list(_findings(endpoint))
    ok = all(one.ok for one in findings)
    if as_json:
        print_json(Diagnosis(ok, findings))
        return ExitCode.OK if ok else ExitCode.FAILED
    out = console()
    width = max(len(one.check) for one in findings)
    for one in findings:
        say(out, f"{'ok   ' if one.ok else 'WRONG'}  {one.check:<{width}}  {one.found}", "" if one.ok else "bold red")
        if one.remedy:
            say(out, f"       {'':<{width}}  to do: {one.remedy}", "" if one.ok else "yellow")
    wrong = sum(not one.ok for one in findings)
    say(out, "nothing is wrong" if ok else f"{plural(wrong, 'thing')} to see to", "dim" if ok else "bold")
    return ExitCode.OK if ok else ExitCode.FAILED


def _findings(endpoint: Endpoint) -> Iterator[Finding]:
    yield _packages()
    api: Api | None = None
    try:
        api = find_api(endpoint)
        yield _daemon(endpoint, api)
    except CountermandError as error:
        pid = holder(endpoint.state_dir / LOCK_NAME) if held(endpoint.state_dir) else None
        remedy = error.remedy if pid is None else f"look at process {pid} (countermand logs), or end it: kill {pid}"
        yield Finding("daemon", ok=False, found=f"{error.message}: {error.got}", remedy=remedy)
    own: list[Finding] = []
    if api is not None:
        try:
            own = api.get("/v1/doctor", Diagnosis).findings
        except CountermandError as error:
            yield Finding("daemon itself", ok=False, found=str(error), remedy="see countermand logs; restart it")
        endpoint = Endpoint(Path(api.info.state_dir), endpoint.named)
    yield from own
    seen = {one.check for one in own}
    # A named check of the daemon's own is the better one: it knows its limits.
    yield from (one for one in _places(endpoint.state_dir) if one.check not in seen)
    if "store" not in seen:
        yield _store(endpoint.state_dir)
    if "spool" not in seen:
        yield _spool(endpoint.state_dir / "spool")
    yield from _left_behind(endpoint, served=api is not None or held(endpoint.state_dir))
    yield from look_at_units(api.info.pid if api is not None else None)


def _packages() -> Finding:
    """Whether supervisord's package, which has the same name, is in this environment."""
    wrong = wrong_supervisor()
    if wrong is None:
        return Finding("packages", ok=True, found="no other package is called supervisor here")
    return Finding("packages", ok=False, found=wrong[0], remedy=wrong[1])


def _daemon(endpoint: Endpoint, api: Api | None) -> Finding:
    if api is not None:
        info = api.info
        return Finding(
            "daemon", ok=True, found=f"version {info.version} answers on {endpoint.socket}, process {info.pid}"
        )
    pid = holder(endpoint.state_dir / LOCK_NAME) if held(endpoint.state_dir) else None
    if is_socket(endpoint):
        who = f"; process {pid} has the directory" if pid else ""
        remedy = (
            f"look at process {pid} (countermand logs), or end it: kill {pid}"
            if pid
            else f"start one, which takes it away: countermand --state-dir {quote_shell(endpoint.state_dir)} serve"
        )
        return Finding("daemon", ok=False, found=f"no answer on the socket {endpoint.socket}{who}", remedy=remedy)
    if pid is not None:
        return Finding("daemon", ok=True, found=f"none; process {pid} has the directory, a chat or a library")
    return Finding("daemon", ok=True, found="none runs: start one with countermand serve, or countermand chat")


def _places(state_dir: Path) -> Iterator[Finding]:
    try:
        seen = state_dir.stat()
        disk = shutil.disk_usage(state_dir)
        inodes = os.statvfs(state_dir)
    except OSError as error:
        found = f"{state_dir}: {error.strerror}"
        there = isinstance(error, FileNotFoundError)
        remedy = "" if there else "mend its permissions, or name another with --state-dir"
        yield Finding("state directory", ok=there, found=found, remedy=remedy)
        return
    roomy = disk.free >= DISK_LEAST_BYTES and (inodes.f_files == 0 or inodes.f_favail >= INODES_LEAST)
    yield Finding(
        "disk",
        roomy,
        f"{disk.free // 1_048_576} MiB free in {state_dir}",
        "" if roomy else "free space: on a full disk messages are refused, and stops are kept in the journal only",
    )
    owner = seen.st_uid
    open_to = [state_dir.name] if seen.st_mode & 0o077 else []
    for name in PRIVATE:
        path = state_dir / name
        try:
            inside = path.lstat()
        except OSError:
            continue
        if inside.st_uid != owner or (stat.S_ISREG(inside.st_mode) and name == "token" and inside.st_mode & 0o077):
            open_to.append(name)
    fine = not open_to and os.geteuid() in (owner, 0)
    yield Finding(
        "permissions",
        fine,
        f"{state_dir} has mode {stat.S_IMODE(seen.st_mode):04o} and belongs to uid {owner}"
        + (f"; others reach, or own: {', '.join(open_to)}" if open_to else ""),
        "" if fine else f"chmod 700 {quote_shell(state_dir)}, and chown what is in it to uid {owner}",
    )


def _store(state_dir: Path) -> Finding:
    path = state_dir / STORE_NAME
    if not path.exists():
        return Finding("store", ok=True, found="none yet")
    try:
        reader = SqliteReader(path)
        count = len(reader.unfinished())
        reader.close()
    except CountermandError as error:
        return Finding("store", ok=False, found=str(error.got or error), remedy=error.remedy)
    return Finding("store", ok=True, found=f"readable; {plural(count, 'session')} with something to finish")


def _spool(folder: Path) -> Finding:
    try:
        files, size = use_of(folder)
    except OSError as error:
        remedy = f"mend the permissions of {quote_shell(folder)}"
        return Finding("spool", ok=False, found=f"{folder}: {error.strerror}", remedy=remedy)
    return Finding("spool", ok=True, found=f"{plural(files, 'file')} of long outputs, {size / 1_048_576:.1f} MiB")


def _left_behind(endpoint: Endpoint, *, served: bool) -> Iterator[Finding]:
    """Processes and ledgers that no daemon watches."""
    orphans = find_orphans()
    named = ", ".join(f"{one.pid} ({one.fence}) {one.command[:40]}" for one in orphans[:NAMED_MAX])
    pids = " ".join(str(one.pid) for one in orphans[:NAMED_MAX])
    yield Finding(
        "orphans",
        not orphans,
        f"{plural(len(orphans), 'process', 'processes')} of tools that no warden watches"
        + (f": {named}" if named else ""),
        f"see what they are, and end them: kill {pids}" if orphans else "",
    )
    loose = [] if served else open_ledgers(endpoint.state_dir)
    shown = ", ".join(loose[:NAMED_MAX])
    start = f"countermand --state-dir {quote_shell(endpoint.state_dir)} serve"
    yield Finding(
        "ledgers",
        not loose,
        f"{plural(len(loose), 'process tree')} not proven to have ended" + (f": {shown}" if shown else ""),
        f"start a daemon, which settles them and puts it on record: {start}" if loose else "",
    )
