"""`serve`: a supervisor in the foreground, from its settings to an empty cgroup.

Startup order: the log, signals, settings, the supervisor (its lock first), sockets, the API, the watchdog; then READY.
Each needs those before it. A second daemon fails at the lock, before it has touched anything of the first.

Shutdown reports each phase to systemd (STATUS) and to the log:

1. *Refuse*: sessions accept no new messages. The API still answers, so that people can read, and Stop.
2. *Drain*: runs get `drain_s` seconds to end by themselves. A second SIGTERM or SIGINT ends this phase.
3. *Interrupt*: active runs are ended with ``supervisor.shutdown``; their processes are asked to end, then killed.
4. *Flush*: the API closes, all decisions are written, and every process is proven gone.

Each phase has a limit, and systemd is asked to wait no longer than that. A third signal ends the process at once: the
wardens see that and end their trees.

The main thread only waits, for signals and for the steps that it has started, because signals interrupt it.
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
from actors.model import ServicePhase
from actors.plugin.registration import Unloaded
from supervisor.daemon import collector, run_log
from supervisor.daemon.logs import Logs
from supervisor.daemon.notify import Notifier
from supervisor.daemon.settings import RELOADED, DaemonSettings, LogSettings, Source
from supervisor.daemon.signals import WAKE, Signals
from supervisor.daemon.sockets import Sockets, passed, refuse_if_served
from supervisor.daemon.watchdog import Watchdog
from supervisor.lock import held
from supervisor.supervisor import CLOSE_STEP_S, Supervisor

TICK_S: Final = 1.0
LOOK_S: Final = 1.0
"""Time between two checks that clients can still reach the socket."""
PATIENCE_S: Final = 15.0
"""How long systemd is asked to wait, at each tick."""
CLOSING_STEPS: Final = 8
"""The number of closing steps that take up to `CLOSE_STEP_S` each."""


class DaemonExit(IntEnum):
    """The exit codes of the daemon. systemd starts it again after FAILED, and not after REFUSED."""

    OK = 0
    FAILED = 1
    """The store or a socket could not be used, or the shutdown left something that is not proven to have ended."""
    REFUSED = 2
    """The configuration or the state directory is invalid, or another daemon uses the directory or the socket."""


class ApiServer(Protocol):
    """Serves the API, on threads of its own."""

    def start(self) -> None:
        """Start to serve; returns when it serves."""

    def move(self, old: socket.socket, new: socket.socket) -> object:
        """Serve on a new socket instead of an old one, which is closed; connections stay open."""

    def close(self) -> object:
        """End every connection; returns when that is done."""


def serve(source: Source) -> int:
    """Run the daemon in the foreground until a signal ends it. Returns the exit code. Main thread only."""
    # For SIGABRT, which the watchdog sends: the stacks are written by C code, without a lock.
    faulthandler.enable()
    # Importing the API's code takes half of the startup time; it can go on while the store is opened.
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
        return DaemonExit.FAILED if isinstance(error, StoreUnavailable) else DaemonExit.REFUSED
    except Exception:  # noqa: BLE001  # it has to be logged before the log closes
        logger.opt(exception=True).critical("the daemon failed")
        return DaemonExit.FAILED
    finally:
        logs.close()
        notifier.close()


class Daemon:
    """One daemon, from its start to its end.

    Args:
        source: where the settings come from, at the start and at each reload.
        notifier: notifies systemd.
        logs: the log; the settings give its format and level.
        signals: the inbox of the signals that end and reload the daemon.
    """

    def __init__(self, source: Source, notifier: Notifier, logs: Logs, signals: Signals) -> None:
        self._source = source
        self._notifier = notifier
        self._logs = logs
        self._signals = signals
        self._settings = source.load()
        # With the changes of reloads.
        self._now = self._settings
        logs.apply(self._settings.log)

    def run(self) -> int:
        """Start, serve until a signal, and shut down. Raises CountermandError if it cannot start."""
        settings = self._settings
        self._notifier.status("opening the store")
        given = passed(os.environ)
        if not given and not held(settings.state_dir):
            # Before the store is opened: a daemon of version 0.1 whose lock file was removed still has it open.
            refuse_if_served(settings.socket)
        supervisor = Supervisor.start(settings.config, taps=[run_log.log_events])
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
        where = f"on {sockets}" if server is not None else "without an API"
        watchdog = Watchdog(supervisor, self._notifier, lambda pong: self._notifier.status(_serving(where, pong)))
        self._notifier.ready(f"serving {where}")
        collector.release()
        logger.info("ready: serving {}, process {}, state in {}", where, os.getpid(), settings.state_dir)
        self._signals.on_child = supervisor.reap
        for name, why in supervisor.unloaded().items():
            logger.error("{} cannot be used: {}; mend it, and reload or restart", name, why)
        self._serve_until_signal(where, supervisor, lambda: _restore_socket(sockets, server))
        watchdog.close()
        return _DaemonShutdown(self, supervisor, server, sockets).run()

    def _serve_until_signal(self, where: str, supervisor: Supervisor, look: Callable[[], object]) -> None:
        while (number := self._signals.wait(LOOK_S)) in (None, WAKE, signal.SIGHUP):
            if number == signal.SIGHUP:
                self._reload(where, supervisor)
            look()
        logger.info("{}: shutting down", signal.Signals(number).name)

    def _reload(self, where: str, supervisor: Supervisor) -> None:
        """Read the settings again. Changes that would touch a run take effect at the next start (law L11).

        Agents and tools that could not be loaded are tried again, under the names of the start: no run uses them. Hosts
        without a run are replaced, so their agents' code is loaded again.
        """
        self._notifier.reloading()
        status = f"serving {where}"
        try:
            fresh = self._source.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # no error of the settings may touch a run
            # An error that is not ours may have an empty text.
            text = error if isinstance(error, CountermandError) else repr(error)
            logger.error("the configuration was not read again, and stays as it is: {}", text)
            status += "; the configuration could not be read again"
        else:
            try:
                status += self._take(fresh, supervisor)
            except (Exception, SystemExit):  # noqa: BLE001  # nor may what it does with them
                logger.opt(exception=True).error("the reload failed; what it had not reached stays as it is")
                status += "; the reload failed"
        self._notifier.ready(status)

    def _take(self, fresh: DaemonSettings, supervisor: Supervisor) -> str:
        """Take over settings that were read again. Returns what to add to the status."""
        now = [key for key in self._now.changes(fresh) if key in RELOADED]
        later = [key for key in self._settings.changes(fresh) if key not in RELOADED]
        self._now = fresh
        self._logs.apply(fresh.log)
        logger.info("the configuration was read again; changed: {}", ", ".join(now) or "nothing")
        self._mend(fresh, supervisor)
        supervisor.reload_hosts()
        if not later:
            return ""
        logger.warning("changed, but only at the next start: {}", ", ".join(later))
        return f"; at the next start: {', '.join(later)}"

    def _mend(self, fresh: DaemonSettings, supervisor: Supervisor) -> None:
        names, fresh_names = self._settings.found["agents"].value, fresh.found["agents"].value
        agents = {name: one for name, one in fresh.config.agents.items() if fresh_names[name] == names.get(name)}
        for name in supervisor.mend(agents, fresh.tools):
            logger.info("{} could be loaded now", name)
        refused = supervisor.unloaded()
        for spelled, tool in fresh.tools.items():
            if not isinstance(tool, Unloaded) and f"tool {spelled}" in refused:
                logger.error("{} cannot be used: {}", spelled, refused[f"tool {spelled}"])
        for one in fresh.unloaded:
            logger.error("{} cannot be used: {}", one.spelled, one.why)

    @property
    def settings(self) -> DaemonSettings:
        """The present settings, including reloads."""
        return self._now

    @property
    def notifier(self) -> Notifier:
        """Notifies systemd."""
        return self._notifier

    @property
    def signals(self) -> Signals:
        """The signals, which may hurry a shutdown."""
        return self._signals


class _DaemonShutdown:
    """The shutdown of a daemon: a thread takes the steps, and the main thread reports their progress."""

    def __init__(self, daemon: Daemon, supervisor: Supervisor, server: ApiServer | None, sockets: Sockets) -> None:
        self._notifier = daemon.notifier
        self._signals = daemon.signals
        self._supervisor = supervisor
        self._server = server
        self._sockets = sockets
        self._drain_s = daemon.settings.config.drain_s
        self._phase = ""
        self._hurried = False
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
            self._report(started)
            _restore_socket(self._sockets, self._server)
            # From STOPPING on systemd ignores the watchdog; this limit takes its place.
            if time.monotonic() < limit:
                self._notifier.extend(PATIENCE_S)
        if not self._quiet:
            busy = ", ".join([*self._supervisor.busy_threads(), *self._supervisor.left()])
            logger.error("not everything is proven to have ended; the next start continues; busy: {}", busy or "-")
            return DaemonExit.FAILED
        logger.info("ended, after {:.1f} s: every session at rest, every process gone", time.monotonic() - started)
        self._notifier.status("ended")
        return DaemonExit.OK

    def _steps(self) -> None:
        try:
            self._supervisor.drain(self._drain_s)
            self._drained.set()
            self._enter("closing the API")
            if self._server is not None:
                self._server.close()
            self._sockets.close()
            self._enter("ending processes, and writing the rest")
            self._quiet = self._supervisor.close(0.0)
        except Exception:  # noqa: BLE001  # the process has to end in any case
            logger.opt(exception=True).critical("the shutdown failed")
        finally:
            self._closed.set()
            self._signals.wake()

    def _hurry(self, hurries: int) -> None:
        if hurries == 1:
            logger.warning("second signal: active runs are interrupted now")
            self._hurried = True
            self._supervisor.hurry()
            return
        logger.critical("third signal: ending on the spot; wardens end their trees")
        self._notifier.status("ending on the spot")
        os._exit(DaemonExit.FAILED)

    def _report(self, started: float) -> None:
        """Report the progress of the drain; later phases report their own."""
        if self._drained.is_set():
            return
        pong = self._supervisor.ping(TICK_S)
        if pong is None or self._drained.is_set():
            return
        if pong.phase is ServicePhase.DRAINING and self._hurried:
            # The signal came before the drain had begun: until then it has no effect.
            self._supervisor.hurry()
        elif pong.phase is ServicePhase.DRAINING:
            left_s = max(0.0, self._drain_s - (time.monotonic() - started))
            self._enter("draining", f"{_sessions(pong.awaited)} at work, {left_s:.0f} s left")
        elif pong.phase is ServicePhase.INTERRUPTING:
            self._enter("interrupting", f"{_sessions(pong.awaited)} still ending")

    def _enter(self, phase: str, more: str = "") -> None:
        self._notifier.status(f"{phase}: {more}" if more else phase)
        if phase != self._phase:
            self._phase = phase
            logger.info("shutting down: {}{}", phase, f", {more}" if more else "")


def _restore_socket(sockets: Sockets, server: ApiServer | None) -> None:
    """Create the socket again if it was removed."""
    moved = sockets.restore()
    if moved is not None and server is not None:
        server.move(*moved)


def _api_server(supervisor: Supervisor, sockets: Sequence[socket.socket], token_file: Path) -> ApiServer | None:
    """Return the API's server; None if this installation has no API. The daemon uses the API only here."""
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
        # Imported early: otherwise the server's thread would import it, after the store is open.
        importlib.import_module("supervisor.http.serving")
        return importlib.import_module("supervisor.http.server")
    except ModuleNotFoundError as error:
        if error.name not in ("supervisor.http", "supervisor.http.server"):
            raise
        return None


def _serving(where: str, pong: Pong) -> str:
    return f"serving {where}; {_sessions(pong.sessions)} live"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
