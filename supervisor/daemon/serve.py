"""`serve`: a supervisor in the foreground, from its settings to an empty cgroup.

Coming: the log, signals, settings, the supervisor (its lock first), sockets, the API, the watchdog; then READY. Each
rests on those before it. A second daemon fails at the lock, before it has touched anything of the first.

Going, each phase told to systemd (STATUS) and to the log:

1. *Refuse*: sessions take no new messages any more. The API answers on, so that people can look, and Stop.
2. *Drain*: runs may end by themselves, for `drain_s` seconds. A second SIGTERM or SIGINT cuts that short.
3. *Interrupt*: what still runs ends with ``supervisor.shutdown``; its processes are asked, then killed.
4. *Flush*: the API closes, what is left is written, and every process is proven gone.

Each phase has a limit, and systemd is asked for patience no longer than that. A third signal ends the process on the
spot: the wardens see that and end their trees.

The main thread does nothing but wait, for signals and for what it has begun: it is the one that they interrupt.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, cast

from loguru import logger

from actors.errors import CountermandError, StoreUnavailable
from actors.messages import Pong
from supervisor.daemon import collector, story
from supervisor.daemon.logs import Logs
from supervisor.daemon.notify import Notifier
from supervisor.daemon.settings import RELOADED, LogSettings, Settings, Source
from supervisor.daemon.signals import WAKE, Signals
from supervisor.daemon.sockets import Sockets, passed, refuse_if_served
from supervisor.daemon.watchdog import Watchdog
from supervisor.lock import held
from supervisor.supervisor import CLOSE_STEP_S, Supervisor

TICK_S: Final = 1.0
LOOK_S: Final = 1.0
"""How often it is looked whether clients can still reach the socket."""
PATIENCE_S: Final = 15.0
"""What systemd is asked for, each tick."""
CLOSING_STEPS: Final = 8
"""How many steps of the end take up to `CLOSE_STEP_S` each."""


class Exit(IntEnum):
    """How the process ends. systemd starts it again after FAILED, and not after REFUSED."""

    OK = 0
    FAILED = 1
    """The store or a socket could not be used, or the shutdown left something that is not proven to have ended."""
    REFUSED = 2
    """The configuration or the state directory is invalid, or another daemon uses the directory or the socket."""


class ApiServer(Protocol):
    """What serves the API, on threads of its own."""

    def start(self) -> None:
        """Begin to serve; returns when it does."""

    def move(self, old: socket.socket, new: socket.socket) -> object:
        """Serve on a new socket in the place of an old one, which is closed; connections go on."""

    def close(self) -> object:
        """End every connection, and return when that is done."""


def serve(source: Source) -> int:
    """Run the daemon in the foreground until a signal ends it; returns the exit code. Main thread only."""
    # For SIGABRT, which the watchdog sends: written by C code, without a lock.
    faulthandler.enable()
    # Half of the time to be ready goes into reading the API's code, which can go on while the store is opened.
    threading.Thread(target=_load_api, name="countermand-loading", daemon=True).start()
    notifier = Notifier.from_environment(os.environ)
    logs = Logs()
    logs.apply(LogSettings())
    try:
        with Signals() as signals:
            return Daemon(source, notifier, logs, signals).run()
    except CountermandError as error:
        logger.error("{}", error)
        notifier.status(error.message)
        return Exit.FAILED if isinstance(error, StoreUnavailable) else Exit.REFUSED
    except Exception:  # noqa: BLE001  # the log is about to close, and has to hold it
        logger.opt(exception=True).critical("the daemon failed")
        return Exit.FAILED
    finally:
        logs.close()
        notifier.close()


class Daemon:
    """One daemon, from its start to its end.

    Args:
        source: where the settings come from, at the start and at each reload.
        notifier: hears how it goes.
        logs: takes its format and level from the settings.
        signals: what ends it and reloads it.
    """

    def __init__(self, source: Source, notifier: Notifier, logs: Logs, signals: Signals) -> None:
        self._source = source
        self._notifier = notifier
        self._logs = logs
        self._signals = signals
        self._settings = source.load()
        # What a reload has changed since is in here.
        self._now = self._settings
        logs.apply(self._settings.log)

    def run(self) -> int:
        """Start, serve until a signal says otherwise, stop. Raises CountermandError where it cannot start."""
        settings = self._settings
        self._notifier.status("opening the store")
        given = passed(os.environ)
        if not given and not held(settings.state_dir):
            # Before the store is opened: a daemon of version 0.1 whose lock was removed still has it.
            refuse_if_served(settings.socket)
        supervisor = Supervisor.start(settings.config, taps=[story.tell])
        sockets: Sockets | None = None
        server: ApiServer | None = None
        try:
            sockets = Sockets(settings.state_dir, given, settings.socket, settings.http.address)
            server = _api_server(supervisor, sockets.all, settings.token_file)
            if server is not None:
                server.start()
        except BaseException:
            if sockets is not None:
                sockets.close()
            supervisor.close(0.0)
            raise
        place = f"on {sockets}" if server is not None else f"nobody on {sockets}"
        watchdog = Watchdog(supervisor, self._notifier, lambda pong: self._notifier.status(_serving(place, pong)))
        self._notifier.ready(f"serving {place}")
        collector.release()
        logger.info("ready: serving {}, process {}, state in {}", place, os.getpid(), settings.state_dir)
        self._signals.on_child = supervisor.reap
        for name, why in supervisor.unloaded().items():
            logger.error("{} cannot be used: {}; mend it, and reload or restart", name, why)
        self._until_told(place, supervisor, lambda: _look_after(sockets, server))
        watchdog.close()
        return _Shutdown(self, supervisor, server, sockets).run()

    def _until_told(self, place: str, supervisor: Supervisor, look: Callable[[], object]) -> None:
        while (number := self._signals.wait(LOOK_S)) in (None, WAKE, signal.SIGHUP):
            if number == signal.SIGHUP:
                self._reload(place, supervisor)
            look()
        logger.info("{}: shutting down", signal.Signals(number).name)

    def _reload(self, place: str, supervisor: Supervisor) -> None:
        """Read the settings again. What would touch a run waits for the next start (law L11).

        What could not be loaded is tried again, by the name that the start had for it: nothing runs that uses it.
        """
        self._notifier.reloading()
        status = f"serving {place}"
        try:
            fresh = self._source.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, the runs have nothing to do with it
            # What is no refusal of ours may have no words of its own.
            said = error if isinstance(error, CountermandError) else repr(error)
            logger.error("the configuration was not read again, and stays as it is: {}", said)
            status += "; the configuration could not be read again"
        else:
            now = [key for key in self._now.changes(fresh) if key in RELOADED]
            later = [key for key in self._settings.changes(fresh) if key not in RELOADED]
            self._now = fresh
            self._logs.apply(fresh.log)
            logger.info("the configuration was read again; changed: {}", ", ".join(now) or "nothing")
            self._mend(fresh, supervisor)
            if later:
                logger.warning("changed, but only at the next start: {}", ", ".join(later))
                status += f"; at the next start: {', '.join(later)}"
        self._notifier.ready(status)

    def _mend(self, fresh: Settings, supervisor: Supervisor) -> None:
        names, fresh_names = self._settings.found["agents"].value, fresh.found["agents"].value
        agents = {name: one for name, one in fresh.config.agents.items() if fresh_names[name] == names.get(name)}
        for name in supervisor.mend(agents, fresh.tools):
            logger.info("{} could be loaded now", name)
        for one in fresh.unloaded:
            logger.error("{} cannot be used: {}", one.spelled, one.why)

    @property
    def settings(self) -> Settings:
        """Those that hold now, reloads included."""
        return self._now

    @property
    def notifier(self) -> Notifier:
        """Hears how it goes."""
        return self._notifier

    @property
    def signals(self) -> Signals:
        """What may hurry a shutdown."""
        return self._signals


class _Shutdown:
    """The end of a daemon: a thread takes the steps, the main thread says how far they are."""

    def __init__(self, daemon: Daemon, supervisor: Supervisor, server: ApiServer | None, sockets: Sockets) -> None:
        self._notifier = daemon.notifier
        self._signals = daemon.signals
        self._supervisor = supervisor
        self._server = server
        self._sockets = sockets
        self._drain_s = daemon.settings.config.drain_s
        self._phase = ""
        self._quiet = False
        self._drained = threading.Event()
        self._closed = threading.Event()

    def run(self) -> int:
        config = self._supervisor.config
        started = time.monotonic()
        limit = started + self._drain_s + config.grace_s + config.kill_s + CLOSING_STEPS * CLOSE_STEP_S
        self._notifier.stopping("refusing new messages")
        self._enter("draining", f"for at most {self._drain_s:g} s")
        self._notifier.extend(PATIENCE_S)
        threading.Thread(target=self._steps, name="countermand-shutdown", daemon=True).start()
        hurries = 0
        while not self._closed.is_set():
            number = self._signals.wait(TICK_S)
            if number in (signal.SIGINT, signal.SIGTERM):
                hurries += 1
                self._hurry(hurries)
            self._tell(started)
            _look_after(self._sockets, self._server)
            # From STOPPING on the watchdog is not watched, and this is what has a limit.
            if time.monotonic() < limit:
                self._notifier.extend(PATIENCE_S)
        if not self._quiet:
            busy = ", ".join([*self._supervisor.busy_threads(), *self._supervisor.left()])
            logger.error("not everything is proven to have ended; the next start takes it up; busy: {}", busy or "-")
            return Exit.FAILED
        logger.info("ended, after {:.1f} s: every session at rest, every process gone", time.monotonic() - started)
        self._notifier.status("ended")
        return Exit.OK

    def _steps(self) -> None:
        try:
            self._supervisor.drain(self._drain_s)
            self._drained.set()
            self._enter("closing the API")
            if self._server is not None:
                self._server.close()
            self._sockets.close()
            self._enter("ending processes, and writing what is left")
            self._quiet = self._supervisor.close(0.0)
        except Exception:  # noqa: BLE001  # whatever it is, the process has to end
            logger.opt(exception=True).critical("the shutdown failed")
        finally:
            self._closed.set()
            self._signals.wake()

    def _hurry(self, hurries: int) -> None:
        if hurries == 1:
            logger.warning("told again: what still runs is interrupted now")
            self._supervisor.hurry()
            return
        logger.critical("told a third time: ending on the spot; wardens end what runs")
        self._notifier.status("ending on the spot")
        os._exit(Exit.FAILED)

    def _tell(self, started: float) -> None:
        """Say how far the drain is; the phases after it say so themselves."""
        if self._drained.is_set():
            return
        pong = self._supervisor.ping(TICK_S)
        if pong is None or self._drained.is_set():
            return
        if pong.phase == "draining":
            left_s = max(0.0, self._drain_s - (time.monotonic() - started))
            self._enter("draining", f"{_sessions(pong.awaited)} at work, {left_s:.0f} s left")
        elif pong.phase == "interrupting":
            self._enter("interrupting", f"{_sessions(pong.awaited)} still ending")

    def _enter(self, phase: str, more: str = "") -> None:
        self._notifier.status(f"{phase}: {more}" if more else phase)
        if phase != self._phase:
            self._phase = phase
            logger.info("shutting down: {}{}", phase, f", {more}" if more else "")


def _look_after(sockets: Sockets, server: ApiServer | None) -> None:
    """Listen again where somebody has removed the socket."""
    moved = sockets.restore()
    if moved is not None and server is not None:
        server.move(*moved)


def _api_server(supervisor: Supervisor, sockets: Sequence[socket.socket], token_file: Path) -> ApiServer | None:
    """The one place where the daemon meets the API. None where this installation has no API."""
    http = _load_api()
    if http is None:
        logger.warning("the API is not part of this installation")
        return None
    tokens = None
    if any(one.family != socket.AF_UNIX for one in sockets):
        tokens = importlib.import_module("supervisor.http.access").read_tokens(token_file)
    return cast("ApiServer", http.HttpServer(supervisor, sockets, tokens=tokens))


def _load_api() -> ModuleType | None:
    try:
        # Not needed here: the server's thread would read it else, when the store is open.
        importlib.import_module("supervisor.http.serving")
        return importlib.import_module("supervisor.http.server")
    except ModuleNotFoundError as error:
        if error.name not in ("supervisor.http", "supervisor.http.server"):
            raise
        return None


def _serving(place: str, pong: Pong) -> str:
    return f"serving {place}; {_sessions(pong.sessions)} live"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
