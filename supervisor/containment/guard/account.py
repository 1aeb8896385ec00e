"""The account of the user that a command runs as, if that is not the daemon's.

The process that becomes the command looks it up: a slow user directory delays only its own tree.

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
"""The capabilities needed to become another user and to end that user's processes, by their bits."""
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
    why = "there is no account of that name or uid, which would say what its groups are"
    raise ValueError(f"{why}: add one to this machine, or name another user")


def environment(account: pwd.struct_passwd) -> dict[str, str]:
    """The environment of a command of that user, as a login sets it."""
    name = account.pw_name
    return {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": account.pw_shell or "/bin/sh"}


def become(account: pwd.struct_passwd) -> None:
    """Become that user, for good; changes nothing if we are that user already.

    Raises ValueError with the reason and a remedy if we may not.
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
        # A command could return to our user with the ambient capabilities of a daemon that is not root.
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
    """Let that user open our streams by name, such as /dev/stdout: pipes and terminals belong to their maker."""
    for fd in range(3):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
                os.fchown(fd, uid, -1)
