"""The account of a user that a command runs as, where that is not the daemon's.

It is looked up and taken by the process that becomes the command: a slow directory of users holds up its own tree only.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress

from supervisor.containment.guard import procfs
from supervisor.containment.guard.namespaces import call

NEEDED = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
"""What becoming another user takes, and ending what runs as one: capabilities, by their bits."""
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
REMEDY = (
    "start the daemon as root, or give it CAP_SETUID, CAP_SETGID and CAP_KILL; or take the user out, "
    "and the command runs as the daemon's"
)


def find(user: str) -> pwd.struct_passwd:
    """The account of a user, by name or else by uid; raises ValueError if there is none."""
    with suppress(KeyError):
        return pwd.getpwnam(user)
    with suppress(KeyError, OverflowError, ValueError):
        return pwd.getpwuid(int(user))
    raise ValueError("there is no account of that name or uid, which would say what its groups are")


def environment(account: pwd.struct_passwd) -> dict[str, str]:
    """What a command of that user has in its environment, as a login sets it."""
    name = account.pw_name
    return {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": account.pw_shell or "/bin/sh"}


def become(account: pwd.struct_passwd) -> None:
    """Be that user, for good; raises ValueError with the reason and what to do where we may not.

    Our own user is no other: then nothing is changed.
    """
    uid, gid = account.pw_uid, account.pw_gid
    if (uid, uid) == (os.getuid(), os.geteuid()):
        return
    lacking = [name for name, bit in NEEDED.items() if not _effective() >> bit & 1]
    if lacking:
        raise ValueError(f"this daemon has no {', '.join(lacking)}: {REMEDY}")
    try:
        groups = os.getgrouplist(account.pw_name, gid)
        _give_streams(uid)
        # What a daemon that is not root has of these would pass to the command, which could go back by it.
        call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise ValueError(f"{error.strerror}: {REMEDY}") from error


def _effective() -> int:
    """Our effective capabilities."""
    lines = procfs.read_text("/proc/self/status").splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def _give_streams(uid: int) -> None:
    """Let that user open our streams by name, such as /dev/stdout: pipes and a terminal are their maker's alone."""
    for fd in range(3):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
                os.fchown(fd, uid, -1)
