"""`agents try`: one message to one agent, in a supervisor that is made for it and leaves nothing behind.

No daemon is needed, and one that runs is not touched: the configuration is read as a daemon would read it, and the
state is kept in a directory that is removed. So an agent can be tried before a daemon has it.

A thread follows the run; the main thread waits for signals. The first Ctrl-C stops the run as a person would, the
second one kills it; SIGTERM and SIGHUP stop it, and the command then ends by that signal.
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
"""How long the host's own end is waited for, once its run has ended and is on record."""
LOOK_S: Final = 0.01
BUILT_IN: Final = "shell"


def try_agent(
    settings: DaemonSettings, name: str, content: str, *, timeout: float | None = None, as_json: bool = False
) -> ExitCode:
    """Send a message to an agent, print what its run says, and on standard error its receipt. Main thread.

    Args:
        settings: the daemon's; the agent is one of theirs.
        name: of the agent.
        content: of the message.
        timeout: seconds after which the run expires; None: as the settings say.
        as_json: print a `Delivery` instead of what the run says.

    Returns: what the run earned; FAILED if something of it is not proven to have ended.

    Raises:
        NotFound, AgentUnavailable: there is no such agent, or it cannot be loaded.
        EndedBy: a signal ended it, and the run has ended.
    """
    trial = _Trial(_config_of(settings, name, timeout), Screen(), as_json=as_json)
    try:
        return trial.run(content)
    finally:
        if trial.quiet:
            shutil.rmtree(trial.state_dir, ignore_errors=True)


def _config_of(settings: DaemonSettings, name: str, timeout: float | None) -> Config:
    """Return a configuration with this agent, whose host is there for one run, in a new directory."""
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
    if timeout is not None and timeout <= 0:
        text = "--timeout is no time"
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
    """One trial. `quiet`: everything of it is proven to have ended."""

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
        """Where its records are."""
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
            self._delivery = watched(session.subscribe(), accepted, self._printer, session.runs)
        except OutputClosed:
            self._unread = True
        except BaseException as error:  # noqa: BLE001  # it is raised on the main thread
            self._error = error
        finally:
            wake()

    def _tell_rest(self, supervisor: Supervisor) -> None:
        """Show what its process has printed that came behind the end of the run, and so is not in its log."""
        deadline = time.monotonic() + EXIT_S
        while any(one.hosts for one in supervisor.hosts()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for status in supervisor.hosts():
            self._printer.printed(behind(self._printer.heard, status.printed))
        self._printer.printed_all()

    def _wait(self, session: SessionHandle, thread: threading.Thread, signals: Signals) -> int | None:
        """Wait for the end of the run, and stop it at a signal. Returns a signal that ends the command too."""
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
            self._screen.block(table(sent.receipt, self._screen.width, colour=self._screen.err_is_terminal))
        proven = self.quiet and (sent.receipt is None or sent.receipt.complete)
        if not proven:
            self._screen.remark(f"not everything is proven to have ended; its records are in {self.state_dir}")
        return max(code, ExitCode.OK if proven and not self._printer.failed else ExitCode.FAILED)


def behind(shown: str, end: str) -> str:
    """Return what of `end`, the end of a text of which `shown` is the beginning, comes behind that."""
    if end.startswith(shown):
        return end[len(shown) :]
    # It has no beginning any more: a text that long ends where the last of what was shown ends in it.
    last = shown[-len(end) // 2 :]
    _, found, rest = end.partition(last)
    return rest if found else end
