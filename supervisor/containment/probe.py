"""Checks by a trial that a tree can have a namespace here: a dozen settings could forbid it."""

from __future__ import annotations

import subprocess
import sys

from actors.errors import Invalid
from supervisor.containment.guard import namespaces

PROBE_S = 10.0


def require_namespace() -> None:
    """Make and end a namespace as a warden does, in a process of its own. Any thread; takes about 50 ms.

    Raises:
        Invalid: that failed; the error names the step and what to check.
    """
    command = [sys.executable, "-I", "-S", "-X", "utf8", namespaces.__file__]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S, env={}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused(str(error)) from error
    if done.returncode != 0:
        raise _refused(done.stdout.strip() or f"the trial exited with {done.returncode}: {done.stderr.strip()[-200:]}")


def _refused(why: str) -> Invalid:
    return Invalid(
        "the layer 'namespace' is not available here",
        expected="a PID namespace with a /proc of its own, in a user namespace where we are not privileged",
        got=why,
        remedy="allow it (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, a filter of system "
        "calls, mounts over parts of /proc by a container or a unit), or take 'namespace' out of the layers",
    )
