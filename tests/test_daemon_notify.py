"""Words to systemd, the watchdog, and signals: each against the real thing, a socket or a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from actors.messages import Pong
from actors.model import ServicePhase
from supervisor.daemon.notify import STATUS_MAX_CHARS, Notifier
from supervisor.daemon.signals import WAKE, Signals
from supervisor.daemon.watchdog import Watchdog
from tests.daemon_kit import PROJECT
from tests.kit import until

WAIT_S = 30.0


class Ear:
    """A socket that hears what is told to systemd."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(WAIT_S)

    def hear(self) -> str:
        return self._socket.recv(65536).decode()

    def silent(self) -> bool:
        """True if nothing was told that was not heard."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(65536)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(WAIT_S)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Notifier, Ear]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@countermand-{uuid.uuid4().hex}"
    ear = Ear(address)
    notifier = Notifier(address, watchdog_s=1.0)
    yield notifier, ear
    notifier.close()
    ear.close()


def test_each_word_is_what_systemd_reads(told: tuple[Notifier, Ear]) -> None:
    notifier, ear = told
    notifier.ready("serving")
    assert ear.hear() == "READY=1\nSTATUS=serving"
    notifier.reloading()
    begin, usec, _ = ear.hear().split("\n")
    assert begin == "RELOADING=1"
    assert usec.startswith("MONOTONIC_USEC=")
    assert int(usec.partition("=")[2]) > 0
    notifier.stopping("refusing")
    assert ear.hear() == "STOPPING=1\nSTATUS=refusing"
    notifier.extend(1.5)
    assert ear.hear() == "EXTEND_TIMEOUT_USEC=1500000"
    notifier.feed()
    assert ear.hear() == "WATCHDOG=1"


def test_a_status_is_one_line_of_bounded_length_and_not_sent_twice(told: tuple[Notifier, Ear]) -> None:
    notifier, ear = told
    notifier.status("a\nREADY=1 \n b")
    assert ear.hear() == "STATUS=a READY=1 b"
    notifier.status("a\nREADY=1 \n b")
    assert ear.silent()
    notifier.status("x" * 100_000)
    assert len(ear.hear()) == len("STATUS=") + STATUS_MAX_CHARS


def test_a_missing_listener_is_no_error(tmp_path: Path) -> None:
    for notifier in (Notifier(), Notifier(str(tmp_path / "nobody")), Notifier("@nobody-" + uuid.uuid4().hex)):
        notifier.ready("serving")
        notifier.close()
        notifier.close()
        notifier.status("more")


def test_what_systemd_has_put_into_the_environment_is_taken_out() -> None:
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier.from_environment(environment)
    assert environment == {"HOME": "/"}
    assert notifier.watchdog_s == 3.0
    notifier.close()
    others = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert Notifier.from_environment(others).watchdog_s is None
    assert Notifier.from_environment({"WATCHDOG_USEC": "0"}).watchdog_s is None


# ── The watchdog ──────────────────────────────────────────────────────────────────────────────────


class Parts:
    """The supervisor and the store, as the watchdog asks them; each can be made to hang, or to fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.supervisor = True
        self.store = True
        self.error: Exception | None = None

    def ping(self, timeout: float) -> Pong | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if not self.supervisor:
            threading.Event().wait(timeout)
            return None
        return Pong(1, ServicePhase.SERVING, 0)

    def store_responds(self, timeout: float) -> bool:
        if not self.store:
            threading.Event().wait(timeout)
        return self.store


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    made = Ear(str(tmp_path / "notify"))
    yield made
    made.close()


def fed(ear: Ear) -> bool:
    """Whether the next word is food."""
    return ear.hear() == "WATCHDOG=1"


def test_it_is_fed_while_both_answer_and_an_error_is_an_answer(tmp_path: Path, ear: Ear) -> None:
    parts, notifier, seen = Parts(), Notifier(str(tmp_path / "notify"), watchdog_s=0.04), list[Pong]()
    watchdog = Watchdog(parts, notifier, seen.append)
    try:
        assert all(fed(ear) for _ in range(3))
        assert seen[0].sessions == 1
        parts.error = OSError("the disk is full")
        before = parts.asked
        until(lambda: parts.asked > before + 2, "more questions")
        assert all(fed(ear) for _ in range(3))
    finally:
        watchdog.close()
        notifier.close()


@pytest.mark.parametrize("part", ["supervisor", "store"])
def test_a_part_that_hangs_is_not_fed_for_and_named(tmp_path: Path, ear: Ear, part: str) -> None:
    parts, notifier = Parts(), Notifier(str(tmp_path / "notify"), watchdog_s=0.04)
    setattr(parts, part, False)
    watchdog = Watchdog(parts, notifier, lambda _: None)
    try:
        name = "the supervisor" if part == "supervisor" else "the store's thread"
        assert ear.hear() == f"STATUS={name} does not answer"
        until(lambda: parts.asked > 5, "more questions")
        assert ear.silent(), "the same status is said once, and nothing is fed"
        setattr(parts, part, True)
        assert fed(ear)
    finally:
        watchdog.close()
        notifier.close()


def test_without_a_watchdog_no_actor_is_pinged() -> None:
    parts = Parts()
    Watchdog(parts, Notifier(), lambda _: None).close()
    assert parts.asked == 0


# ── Signals ───────────────────────────────────────────────────────────────────────────────────────


def test_signals_are_read_in_their_order_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in Signals.TAKEN]
    with Signals() as signals:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
            assert signals.wait(WAIT_S) == number
        assert signals.wait(0.0) is None
        threading.Timer(0.01, signals.wake).start()
        assert signals.wait(WAIT_S) == WAKE
    assert [signal.getsignal(number) for number in Signals.TAKEN] == before
    signals.wake()


def test_a_signal_in_the_middle_of_a_line_of_the_log_logs_nothing_itself() -> None:
    # loguru 390: its own thread holds the lock that a handler which logs would wait for.
    said: list[str] = []

    def sink(message: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        said.append(message)

    with Signals() as signals:
        handler = logger.add(sink, level=0, format="{message}", catch=False)
        try:
            logger.info("hello")
        finally:
            logger.remove(handler)
        assert signals.wait(WAIT_S) == signal.SIGHUP
    assert said == ["hello\n"]


def test_more_wakes_than_fit_block_no_thread() -> None:
    with Signals() as signals:
        for _ in range(100_000):
            signals.wake()
        assert signals.wait(WAIT_S) == WAKE


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    script = (
        "import os, signal\nfrom supervisor.daemon.signals import Signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with Signals() as signals:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print(signals.wait(0.1), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout == "None True\n"
