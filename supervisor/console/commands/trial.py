"""`agents try`: one message to one agent, in a temporary supervisor.

It needs no daemon, and does not touch one that runs. It reads the configuration as a daemon would, and keeps its state
in a directory that it removes at the end. So an agent can be tried before the daemon has it.

A thread follows the run; the main thread waits for signals. The first Ctrl-C stops the run, the second one kills it.
SIGTERM and SIGHUP stop the run, and the command then ends by that signal.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Final

from actors.errors import CountermandError, Invalid, NotFound
from actors.model import Mode
from actors.requests import NewMessage, Stop
from supervisor.agent import Agent
from supervisor.config import Config
from supervisor.console.commands.watch import Delivery, RunPrinter, earned, watched
from supervisor.console.ending import EndedBy
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import print_json
from supervisor.console.render.receipts import table
from supervisor.console.tty.screen import OutputClosed, Screen
from supervisor.daemon.settings import DaemonSettings
from supervisor.daemon.signals import WAKE, Signals
from supervisor.session_handle import SessionHandle
from supervisor.supervisor import Supervisor

SESSION: Final = "try"
EXIT_S: Final = 2.0
"""How long to wait for the host to end after the end of its run is stored, in seconds."""
LOOK_S: Final = 0.01
BUILT_IN: Final = "shell"


def try_agent(
    settings: DaemonSettings, name: str, content: str, *, timeout: float | None = None, as_json: bool = False
) -> ExitCode:
    """Send a message to an agent; print the output of its run, and the receipt on standard error. Main thread.

    Args:
        settings: the daemon's settings, which have the agent.
        name: the agent's name.
        content: the message's content.
        timeout: the run expires after so many seconds; None: the deadline of the settings applies.
        as_json: print a `Delivery` instead of the output.

    Returns: the exit code of the run; FAILED if something of the run is not proven to have ended.

    Raises:
        NotFound, AgentUnavailable: there is no such agent, or it cannot be loaded.
        EndedBy: a signal came, and the run has ended.
    """
    trial = _Trial(_config_of(settings, name, timeout), Screen(), as_json=as_json)
    try:
        return trial.run(content)
    finally:
        if trial.quiet:
            shutil.rmtree(trial.state_dir, ignore_errors=True)


def _config_of(settings: DaemonSettings, name: str, timeout: float | None) -> Config:
    """Return a configuration with only this agent, in a new directory. Its host is for one run."""
    agent = settings.config.agents.get(name)
    if agent is None and name != BUILT_IN:
        raise NotFound(
            "there is no such agent in the configuration",
            expected=" | ".join(sorted({*settings.config.agents, BUILT_IN})),
            got=name,
            remedy=f"choose one of these, or write a table [agents.{name}]"
            + (f" into {settings.file}" if settings.file is not None else " into a file, and name it with --config"),
        )
    if isinstance(agent, Agent):
        agent = dataclasses.replace(agent, spares=0, keep="run")
        if timeout is not None:
            agent = dataclasses.replace(agent, run_deadline_s=None)
    if timeout is not None and timeout <= 0:
        text = "--timeout is not more than 0"
        raise Invalid(text, expected="seconds, more than 0", got=f"{timeout:g}", remedy="leave it out")
    return dataclasses.replace(
        settings.config,
        state_dir=tempfile.mkdtemp(prefix="countermand-try-"),
        agent=name,
        agents={} if agent is None else {name: agent},
        run_deadline_s=settings.config.run_deadline_s if timeout is None else timeout,
        drain_s=0.0,
    )


class _Trial:
    """One trial. `quiet`: all its processes are proven to have ended."""

    def __init__(self, config: Config, screen: Screen, *, as_json: bool) -> None:
        self._config = config
        self._screen = screen
        self._as_json = as_json
        self._printer = RunPrinter(screen, silent=as_json, prints=True)
        self._delivery: Delivery | None = None
        self._error: BaseException | None = None
        self._unread = False
        self.quiet = True

    @property
    def state_dir(self) -> str:
        """The directory of its records."""
        return str(self._config.state_dir)

    def run(self, content: str) -> ExitCode:
        ended_by: int | None = None
        with Signals() as signals:
            supervisor = Supervisor.start(self._config)
            signals.on_child = supervisor.reap
            try:
                session = supervisor.session(SESSION)
                thread = threading.Thread(target=self._follow, args=(session, content, signals.wake), daemon=True)
                thread.start()
                ended_by = self._wait(session, thread, signals)
                self._tell_rest(supervisor)
            finally:
                self.quiet = supervisor.close(0.0)
        if ended_by is not None:
            raise EndedBy(ended_by)
        if self._error is not None:
            raise self._error
        return self._earned()

    def _follow(self, session: SessionHandle, content: str, wake: Callable[[], None]) -> None:
        try:
            accepted = session.ask(NewMessage(content=content))
            self._delivery = watched(
                session.subscribe(), accepted, self._printer, session.runs, lambda: session.status().asking
            )
        except OutputClosed:
            self._unread = True
        except BaseException as error:  # noqa: BLE001  # it is raised on the main thread
            self._error = error
        finally:
            wake()

    def _tell_rest(self, supervisor: Supervisor) -> None:
        """Show what the host printed after the end of the run, which is not in the run's log."""
        deadline = time.monotonic() + EXIT_S
        while any(one.hosts for one in supervisor.hosts()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for status in supervisor.hosts():
            self._printer.printed(behind(self._printer.heard, status.printed))
        self._printer.printed_all()

    def _wait(self, session: SessionHandle, thread: threading.Thread, signals: Signals) -> int | None:
        """Wait for the end of the run; stop it at a signal. Return the signal that has to end the command, if any."""
        asked, ended_by = 0, None
        while True:
            number = signals.wait()
            if number == WAKE:
                thread.join()
                return ended_by
            asked += 1
            if number != signal.SIGINT:
                ended_by = number
            mode = Mode.GRACEFUL if asked == 1 else Mode.IMMEDIATE
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number or 0).name
            self._screen.remark(f"{name}: {'stopping' if asked == 1 else 'killing'} the run")
            try:
                session.ask(Stop(source="user.console", reason=name, mode=mode))
            except CountermandError as error:
                self._screen.remark(str(error))

    def _earned(self) -> ExitCode:
        sent = self._delivery
        if sent is None:
            return ExitCode.STOPPED
        if self._as_json:
            print_json(sent)
        code = earned(sent, self._screen, receipt_follows=not self._as_json)
        if sent.receipt is not None and not self._as_json:
            self._screen.block(
                table(sent.receipt, self._screen.width, colour=self._screen.err_is_terminal, told=sent.error)
            )
        proven = self.quiet and (sent.receipt is None or sent.receipt.complete)
        if not proven:
            self._screen.remark(f"not everything is proven to have ended; its records are in {self.state_dir}")
        return max(code, ExitCode.OK if proven and not self._printer.failed else ExitCode.FAILED)


def behind(shown: str, end: str) -> str:
    """Return the rest of a text: `shown` is its beginning, and `end` its end; they may overlap."""
    if end.startswith(shown):
        return end[len(shown) :]
    # The beginning of a long text is cut off. Look for the last part of what was shown, and return what follows it.
    last = shown[-len(end) // 2 :]
    _, found, rest = end.partition(last)
    return rest if found else end
