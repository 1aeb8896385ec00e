"""Chat: the loop of `chat`, its stops, and its end.

Theory of operation. The chat is one loop over one inbox. Other threads do nothing but put items there: one reads lines
from standard input, one prints the session's events, one waits for receipts, and one reads signals
(`daemon/signals.py`). So a Stop never waits behind output that is not read, and of two things that happen at the same
time the loop decides one first.

From a pipe, each line waits in the queue of the session (`enqueue`, with a turn of its own). The next line is read when
the run has ended and its output is printed. On a terminal, a line is read at any time and supersedes what runs
(`interrupt`). There the exit code of a script does not become that of the chat, since a person sees it.

If a daemon runs, the chat is a client of it. Ctrl-C is a person's request and stops what runs in the daemon too. But
the end of the client (by Ctrl-D, by a signal, or because its output is not read) is no Stop: the daemon continues.

The races, and why each is closed:
  - The position from which events are printed is read before the supervisor starts. So the effects of recovery on a
    session that was cut off are printed too.
  - A Stop names no run: it ends what runs when the session handles it. If the run has just ended, the answer says so,
    and nothing happens.
  - Pasted text is one message. A line that begins with ``/`` is not sent: ``/stop`` must not start a run. Those that
    answer a question name it by its number (`questions.py`).
  - A second Ctrl-C while a run is ending joins the first Stop and raises its mode; the first cause stands.
  - At the end of the input, the chat waits until the session is at rest and everything up to its last event is printed.
    After a signal it waits for the receipt instead, and only a limited time for the output, which may not be read.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty, SimpleQueue
from typing import Final

from loguru import logger
from msgspec import Struct

from actors.errors import CountermandError
from actors.events import CallWaitingData, RunEndedData, RunStartedData, RunStatusData, data_of
from actors.model import Event, Policy, Receipt, SessionActivity
from actors.questions import Asking
from actors.requests import Accepted, checked_session
from actors.run_status import RunStatus
from supervisor.config import Config
from supervisor.console.chat.backends import Backend, Embedded
from supervisor.console.chat.printer import OutputGone, Printed, Printer, PrinterFailed
from supervisor.console.chat.questions import Questions
from supervisor.console.chat.requests import ChatRequests
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.ending import EndedBy
from supervisor.console.exits import ExitCode, of_run
from supervisor.console.render.question import asked
from supervisor.console.render.receipts import table
from supervisor.console.render.words import ERROR_CHARS, cause, head, plural, refusal_lines
from supervisor.console.tty.lines import EndOfInput, Line, LineReader
from supervisor.console.tty.pasting import Paste
from supervisor.console.tty.screen import Screen
from supervisor.console.tty.streams import when_unread
from supervisor.daemon.signals import Signals

OUTPUT_WAIT_S: Final = 1.0
"""How long a stopped chat waits until a slow reader has taken the output before the stop, in seconds."""


class SignalCame(Struct, frozen=True):
    """A signal came."""

    number: int


class Filed(Struct, frozen=True):
    """The receipt of a stopped run is filed; None if the supervisor ended before that."""

    run_id: str
    receipt: Receipt | None


Item = Line | EndOfInput | Event | Printed | OutputGone | PrinterFailed | SignalCame | Filed


def chat(
    config: Config | None, session: str, endpoint: Endpoint | None = None, *, agent: str | None = None
) -> ExitCode:
    """Chat with a session until the input ends or a signal comes; see the head of this file.

    Args:
        config: the configuration of the supervisor that is started if no daemon runs; None: a daemon has to run.
        session: the session's name.
        endpoint: where to look for a daemon; None: do not look for one.
        agent: the agent that the user named: each message names it. None: the session's.

    Raises:
        CountermandError: it could not be started: the directory is in use, the agent or the session's name is wrong.
        EndedBy: a signal came, and everything that it had to end has ended.
    """
    checked_session(session)
    screen = Screen()
    inbox: SimpleQueue[Item] = SimpleQueue()
    logger.debug("chat with session {}", session)
    # Done before signals are handled: a daemon may answer late, and Ctrl-C has to end the wait.
    attached = _attached(config, endpoint, screen)
    with Signals(hand_on=lambda number: inbox.put(SignalCame(number))):
        backend: Backend
        if attached is not None:
            backend = attached
        else:
            assert config is not None, "there is no daemon, so the chat needs a configuration"
            backend = Embedded(config, session, screen)
        drain_s: float | None = 0.0
        try:
            talk = Chat(backend, session, screen, inbox, agent)
            code = talk.run()
            # A stop has ended everything that it had to. Without one, runs of other sessions may continue for a while.
            drain_s = 0.0 if code is ExitCode.STOPPED else None
        finally:
            backend.close(drain_s)
    if talk.ended_by is not None:
        raise EndedBy(talk.ended_by)
    return code


def _attached(config: Config | None, endpoint: Endpoint | None, screen: Screen) -> Backend | None:
    """Attach to the daemon at an endpoint; None if there is none, and the chat has to start a supervisor."""
    if config is not None and (endpoint is None or not endpoint.is_listening()):
        return None
    assert endpoint is not None, "a daemon has an endpoint"
    # Here, for it takes longer to load than a chat without it to start.
    from supervisor.console.chat.attached import Attached
    from supervisor.console.client.api import need_api

    return Attached(need_api(endpoint), screen)


class Chat:
    """One conversation from this process's standard input.

    Args:
        backend: the backend that has the session.
        session: the session's name.
        screen: where to write.
        inbox: where other threads put what happens.
        agent: which the messages name; None: none.
    """

    def __init__(
        self, backend: Backend, session: str, screen: Screen, inbox: SimpleQueue[Item], agent: str | None = None
    ) -> None:
        self._backend = backend
        self._agent = agent
        self._session = backend.session(session)
        self._requests = ChatRequests(self._session, backend.limits, screen, agent)
        self._before = backend.before(session)
        self._screen = screen
        self._inbox = inbox
        self._interactive = os.isatty(0)
        self._paste = Paste()
        self._questions = Questions()
        self._code = ExitCode.OK
        self._mine: set[str] = set()
        self._live: set[str] = set()
        self._superseded: set[str] = set()
        self._awaited: str | None = None
        self._input_over = False
        self._leave_at: float | None = None
        self._receipts_due = 0
        self._leaving = False
        self._quiet = False
        self._done = False
        self.ended_by: int | None = None
        """The signal that ended the chat."""

    def run(self) -> ExitCode:
        """Run until there is nothing left to do. Main thread."""
        status = self._requests.status()
        if status.run_id is not None:
            self._live.add(status.run_id)
        self._greet()
        for asking in status.asking:
            self._ask(asking)
        self._printer = Printer(self._session, self._before.last_seq, self._screen, self._inbox.put)
        self._lines = LineReader(self._inbox.put)
        when_unread(lambda: self._inbox.put(OutputGone()))
        try:
            self._lines.ask()
            while not self._done:
                self._prompt_if_idle()
                self._take(self._next())
        finally:
            self._lines.close()
            self._printer.close()
            self._screen.leave_prompt()
        return self._code

    def _next(self) -> Item | None:
        """Wait for the next item and return it; None if the time to leave comes first."""
        if self._leave_at is None:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, self._leave_at - time.monotonic()))
        except Empty:
            return None

    def _take(self, item: Item | None) -> None:
        match item:
            case Line():
                self._line(item)
            case EndOfInput():
                self._end_of_input(item)
            case Event():
                self._event(item)
            case SignalCame():
                self._signal(signal.Signals(item.number))
            case Filed():
                self._filed(item)
            case Printed():
                # It was requested when the session was at rest. Something may have started since.
                self._done = self._at_rest() is not None
            case OutputGone() if self._quiet:
                # Both the printer and the watcher of standard output notice it.
                return
            case OutputGone():
                if item.error:
                    self._screen.remark(f"the output could not be written: {item.error}")
                self._quiet = True
                self._leave("the output is not read any more" if not item.error else "the output cannot be written")
            case PrinterFailed():
                self._screen.remark(*refusal_lines(item.error))
                self._earn(ExitCode.RUN)
                self._leave("the events could not be read any more")
            case None if self._leaving:
                self._screen.remark("the receipt is not filed yet; what still runs is ended now, or by the next start")
                self._done = True
            case None:
                self._leave_stopped("the console was left (Ctrl-D)")

    def _earn(self, code: ExitCode) -> None:
        if self._interactive and code is not ExitCode.STOPPED:
            return
        self._code = max(self._code, code)

    # ── Input ─────────────────────────────────────────────────────────────────────────────────────

    def _line(self, entered: Line) -> None:
        line: Line | None = entered
        if self._interactive:
            self._screen.line_entered()
            line = self._paste.take(entered)
        if self._leaving:
            return
        accepted = self._send(line) if line is not None and line.text.strip() and not self._command(line) else None
        if accepted is None or accepted.run_id is None:
            self._lines.ask()
            return
        self._mine.add(accepted.run_id)
        self._live.add(accepted.run_id)
        if accepted.with_messages:
            self._screen.remark(f"taken along: {plural(len(accepted.with_messages), 'message')} that waited")
        if accepted.superseded_run_id is not None:
            self._superseded.add(accepted.superseded_run_id)
            self._screen.remark("this takes over; what ran before is being ended first…")
        if self._interactive:
            self._lines.ask()
        else:
            self._awaited = accepted.run_id

    def _command(self, line: Line) -> bool:
        """Take a line that a person began with a slash: it answers a question, or is refused. False: it is another."""
        if not (self._interactive and line.text.startswith("/")):
            return False
        try:
            answer = self._questions.answer(line.text)
        except CountermandError as error:
            self._screen.remark(*refusal_lines(error))
            return True
        if answer is not None:
            self._requests.answer(answer)
            return True
        self._screen.remark(
            f"not sent, since it begins with /: {head(line.text)}",
            "Ctrl-C stops what runs, Ctrl-D leaves; put a space in front to send it as a message",
        )
        return True

    def _send(self, line: Line) -> Accepted | None:
        """Send a line as a message; return None if it was refused."""
        # A person's line takes over at once. A line from a pipe waits for the end of what runs.
        policy = Policy.INTERRUPT if self._interactive else Policy.ENQUEUE
        answer = self._requests.send(line, policy, merge=self._interactive)
        if isinstance(answer, ExitCode):
            self._earn(answer)
            return None
        return answer

    def _end_of_input(self, end: EndOfInput) -> None:
        self._input_over = True
        if end.error:
            self._screen.remark(f"the input could not be read to its end: {end.error}")
            self._earn(ExitCode.FAILED)
        self._screen.leave_prompt()
        if self._interactive and self._backend.outlives:
            if self._live:
                self._screen.remark("left; the daemon continues what runs")
            self._done = True
            return
        self._leave_when_at_rest()
        if self._interactive and self._at_rest() is None and not self._leaving:
            self._leave_at = time.monotonic() + self._backend.limits.drain_s
            self._screen.remark(
                f"leaving: what runs may continue for {self._backend.limits.drain_s:g} s and is then stopped; "
                "Ctrl-C stops it now"
            )

    # ── What the session does ─────────────────────────────────────────────────────────────────────

    def _event(self, event: Event) -> None:
        run_id = event.run_id or ""
        match data_of(event):
            case RunStartedData() as data:
                self._live.add(run_id)
                if run_id not in self._mine and data.retry_of:
                    self._screen.remark(f"run {data.retry_of} had not begun: it is tried again as {run_id}")
            case RunStatusData(status=status) as data:
                if status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.EXPIRED) and run_id in self._mine:
                    self._earn(of_run(status, data.result))
                known = any(run.run_id == run_id for run in self._before.cut_off)
                if status in (RunStatus.FAILED, RunStatus.EXPIRED) and not known:
                    self._screen.remark(f"run {run_id} {status}{_why(data)}")
            case CallWaitingData() as data:
                self._ask(Asking(data.call_id, "", data.question, data.options, data.approval))
            case RunEndedData() as data:
                self._run_ended(run_id, data.receipt, data.status)
            case _:
                return

    def _ask(self, asking: Asking) -> None:
        """Show a question, and how it is answered."""
        lines = self._questions.show(asking)
        if lines and not self._interactive:
            # Its lines are messages.
            lines = asked(asking, self._session.session if self._backend.outlives else None)
        if lines:
            self._screen.remark(*lines)

    def _run_ended(self, run_id: str, receipt: Receipt, status: RunStatus) -> None:
        self._live.discard(run_id)
        if not self._leaving:
            # When leaving, each receipt is shown as it is filed, even if the output before it is not read.
            if status == RunStatus.CANCELLED and run_id in self._mine and not self._interactive:
                self._earn(ExitCode.STOPPED)
            if run_id in self._superseded and receipt.complete:
                gone = plural(receipt.reaped, "process", "processes")
                self._screen.remark(f"what ran before has ended, {gone} proven dead (countermand why {run_id})")
            elif status == RunStatus.CANCELLED or not receipt.complete:
                self._show_receipt(run_id, receipt)
            if not self._live:
                self._requests.forget_stops()
            if run_id == self._awaited:
                self._lines.ask()
        self._superseded.discard(run_id)
        if self._input_over and not self._leaving:
            self._leave_when_at_rest()

    def _show_receipt(self, run_id: str, receipt: Receipt) -> None:
        by = f" by {cause(receipt.provenance)}" if receipt.provenance is not None else ""
        self._screen.remark(f"run {run_id} was ended{by}")
        self._screen.block(table(receipt, self._screen.width, colour=self._screen.err_is_terminal))

    # ── Stopping and leaving ──────────────────────────────────────────────────────────────────────

    def _signal(self, number: signal.Signals) -> None:
        if number is not signal.SIGINT:
            self.ended_by = number
            self._leave(number.name)
            return
        if self._interactive:
            self._screen.interrupted()
            # The terminal has discarded the rest of a paste, with the mark of its end.
            self._paste.drop()
        if not self._interactive or self._input_over or self._leaving:
            self.ended_by = self.ended_by or number
            self._leave_stopped("Ctrl-C")
        elif self._live:
            self._requests.stop("Ctrl-C", quiet=self._quiet)
        else:
            self._screen.remark("nothing is running; Ctrl-D leaves")

    def _leave(self, reason: str) -> None:
        """Leave because the user is gone. Stop what runs, unless a daemon runs it."""
        if not self._backend.outlives:
            self._leave_stopped(reason)
            return
        self._earn(ExitCode.STOPPED)
        self._done = True

    def _leave_stopped(self, reason: str) -> None:
        """Stop what runs, and leave when its receipt is filed. A second call kills what runs."""
        self._leaving = True
        self._earn(ExitCode.STOPPED)
        stopped = self._requests.stop(reason, quiet=self._quiet)
        if self._receipts_due:
            return
        if stopped is None or stopped.run_id is None:
            self._done = True
            return
        # This process ends even if no receipt comes, for example because the store is down.
        self._leave_at = time.monotonic() + self._backend.limits.ending_s
        for run_id in (*stopped.joined, stopped.run_id):
            self._await_receipt(run_id)

    def _await_receipt(self, run_id: str) -> None:
        """Wait for the receipt on a thread, and put it into the inbox, even if the output is not read meanwhile."""

        def wait() -> None:
            try:
                receipt = self._session.receipt(run_id, timeout=None)
            except CountermandError:
                receipt = None
            self._inbox.put(Filed(run_id, receipt))

        self._receipts_due += 1
        threading.Thread(target=wait, name="console-receipt", daemon=True).start()

    def _filed(self, filed: Filed) -> None:
        self._receipts_due -= 1
        self._done = self._receipts_due == 0
        if self._quiet:
            return
        self._printer.wait(self._requests.status().last_seq, OUTPUT_WAIT_S)
        if filed.receipt is not None:
            self._show_receipt(filed.run_id, filed.receipt)

    def _at_rest(self) -> int | None:
        """Return the session's last `seq` if nothing runs in it and nothing is about to start; else None.

        In a daemon only the runs of this chat's own messages count: other clients may keep the session busy for ever.
        """
        status = self._requests.status()
        if self._backend.outlives:
            return None if self._mine & self._live else status.last_seq
        runs = status.run_id is not None or bool(status.ending)
        starts = status.waiting > 0 and not status.parked and status.state is SessionActivity.IDLE
        return None if runs or starts else status.last_seq

    def _leave_when_at_rest(self) -> None:
        last_seq = self._at_rest()
        if last_seq is not None:
            self._printer.tell_at(last_seq)

    # ── What a person sees ────────────────────────────────────────────────────────────────────────

    def _prompt_if_idle(self) -> None:
        if self._interactive and not (
            self._live or self._paste.open or self._input_over or self._leaving or self._done
        ):
            self._screen.prompt()

    def _greet(self) -> None:
        if self._interactive:
            self._screen.ask_for_marks()
            name, agent = self._session.session, self._agent or self._before.agent or self._backend.agent
            self._screen.remark(f"countermand · session {name} · agent {agent} · {self._backend.where}")
            what = "a shell script" if agent == "shell" else "a message"
            self._screen.remark(f"Enter runs {what}, a new one takes over; Ctrl-C stops, Ctrl-D leaves.")
        before = self._before
        news = []
        if before.cut_off:
            runs = plural(len(before.cut_off), "run")
            last = before.cut_off[-1].run_id
            news.append(f"{runs} cut off when its supervisor ended: countermand why {last}")
        if before.waiting and before.parked:
            news.append(f"{plural(before.waiting, 'message')} parked, which your next message takes along")
        elif before.waiting:
            news.append(f"{plural(before.waiting, 'message')} waiting, which are run now")
        if news:
            self._screen.remark("restored: " + "; ".join(news))


def _why(data: RunStatusData) -> str:
    if data.provenance is not None:
        return f": {data.provenance.source}: {head(data.provenance.reason, 300)}"
    return f": {head(data.error, ERROR_CHARS)}" if data.error else ""
