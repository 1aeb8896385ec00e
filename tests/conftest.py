"""Profiles of hypothesis: no deadlines, since these machines are shared; in CI the examples are fixed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from actors.kernel.log_context import speak
from supervisor.strays.subreaper import PR_SET_CHILD_SUBREAPER
from tests.host_kit import python as python  # noqa: PLC0414
from tests.kit import faults as faults  # noqa: PLC0414
from tests.kit import kit as kit  # noqa: PLC0414  # the fixture, for every test below
from tests.kit import steps as steps  # noqa: PLC0414

for signum in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(signum) is signal.SIG_IGN:
        # As under nohup, or in the background of a script. Every daemon and chat that a test starts inherits it.
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)

_LIBC = ctypes.CDLL(None)


def pytest_runtest_setup() -> None:
    """Let no test inherit the orphans of the next ones: a program that is a subreaper stays one."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# What is tested here is the program too: its lines of the log are looked at.
speak()

# Nor is a machine called too slow for what it draws in a second.
SLOW = [HealthCheck.too_slow]
settings.register_profile("local", deadline=None, suppress_health_check=SLOW)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """No log lines of what a test in virtual time has fail."""
    from tests.sim.world import quiet_log

    with quiet_log():
        yield
