"""The requests of a chat to its session. Each waits a limited time; a refusal, or a missing answer, is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from pykka import ActorDeadError, Timeout

from actors.errors import CountermandError, Invalid, StoreUnavailable
from actors.model import Mode, Policy, SessionStatus, StopOutcome
from actors.requests import Accepted, Answer, Answered, NewMessage, Stop, Stopped
from actors.text import one_line
from supervisor.console.chat.backends import BackendLimits, TalkSession
from supervisor.console.exits import ExitCode, of_error
from supervisor.console.render.words import head, not_durable, refusal_lines
from supervisor.console.tty.lines import LINE_MAX_BYTES, Line
from supervisor.console.tty.screen import Screen

ASK_TIMEOUT_S: Final = 30.0
SOURCE: Final = "user.console"
MAY_BE_ACCEPTED: Final = "  it may have been accepted, and then it runs: look before you enter it again"
ROOM: Final = "look at the disk of the state directory: if it is full, free space; then enter the line again"

R = TypeVar("R", Accepted, Stopped, Answered)


class ChatRequests:
    """Sends requests to one session. Main thread.

    Args:
        session: the session.
        limits: the limits of the session's backend.
        screen: where refusals are shown, and the progress of a stop.
        agent: which the messages name; None: none.
    """

    def __init__(self, session: TalkSession, limits: BackendLimits, screen: Screen, agent: str | None = None) -> None:
        self._session = session
        self._agent = agent
        self._limits = limits
        self._screen = screen
        self._stops = 0

    def send(self, line: Line, policy: Policy, *, merge: bool) -> Accepted | ExitCode:
        """Send a line as a message; return the answer, or the exit code of its refusal.

        What is shown then begins with the line: it is not sent again by itself.
        """

        def ask() -> Accepted:
            if line.cut:
                raise Invalid(
                    "the message is too large",
                    expected=f"at most {self._limits.message_max_bytes or LINE_MAX_BYTES} bytes of UTF-8",
                    got=f"a line of {line.total_bytes} bytes",
                    remedy="send it in parts, or put it in a file that the agent can read",
                )
            message = NewMessage(content=line.text, policy=policy, merge=merge, agent=self._agent)
            return self._session.ask(message, timeout=ASK_TIMEOUT_S)

        return self._answer(ask, f"not sent: {head(line.text)}", f"no answer to: {head(line.text)}")

    def answer(self, answer: Answer) -> None:
        """Answer a call that waits; a refusal is shown."""
        self._answer(lambda: self._session.ask(answer, timeout=ASK_TIMEOUT_S), "", "the answer was not confirmed")

    def stop(self, reason: str, *, quiet: bool) -> Stopped | None:
        """Stop what runs; the second call kills it. Return None if nothing was running, or no answer came.

        Args:
            reason: the reason, which is recorded.
            quiet: show nothing, since the screen is not read any more.
        """
        mode = Mode.GRACEFUL if self._stops == 0 else Mode.IMMEDIATE
        self._stops += 1
        stop = Stop(
            source=SOURCE,
            reason=reason if mode is Mode.GRACEFUL else f"{reason}, as a second stop",
            mode=mode,
            requested_by=f"uid {os.getuid()}",
        )
        stopped = self._answer(lambda: self._session.ask(stop, timeout=ASK_TIMEOUT_S), "", "the stop got no answer")
        if isinstance(stopped, ExitCode):
            return None
        if stopped.outcome == StopOutcome.NOTHING_RUNNING:
            self.forget_stops()
            return None
        if quiet:
            return stopped
        if not stopped.durable:
            self._screen.remark(not_durable(journalled=stopped.journalled))
        if mode is Mode.GRACEFUL:
            grace = "" if self._limits.grace_s is None else f"{self._limits.grace_s:g} s grace; "
            self._screen.remark(f"stopping… ({grace}Ctrl-C again kills at once)")
        else:
            self._screen.remark("killing…")
        return stopped

    def forget_stops(self) -> None:
        """Count stops anew, since nothing runs any more: the next one is graceful."""
        self._stops = 0

    def status(self) -> SessionStatus:
        """Return the state of the session.

        Raises:
            StoreUnavailable: no answer came.
        """
        try:
            return self._session.status(timeout=ASK_TIMEOUT_S)
        except (Timeout, ActorDeadError) as error:
            raise StoreUnavailable(
                "the session did not answer",
                expected=f"an answer within {ASK_TIMEOUT_S:g} s",
                got=str(error),
                remedy="look at the log (--verbose), and check the disk of the state directory",
            ) from error

    def _answer(self, ask: Callable[[], R], refused: str, unanswered: str) -> R | ExitCode:
        """Ask; a refusal is shown behind `refused`, and that no answer came behind `unanswered`."""
        try:
            return ask()
        except CountermandError as error:
            lines = _store_lines(error) if refused and isinstance(error, StoreUnavailable) else refusal_lines(error)
            self._screen.remark(*([refused] if refused else []), *lines)
            return of_error(error)
        except (Timeout, ActorDeadError) as error:
            self._screen.remark(f"{unanswered}: {error}", *([MAY_BE_ACCEPTED] if refused else []))
            return ExitCode.RUN


def _store_lines(error: StoreUnavailable) -> list[str]:
    """Say to a person why a message was not stored, and what to do. A program would send the same object again."""
    stopped = f"; run {error.superseded_run_id} was stopped all the same" if error.superseded_run_id else ""
    return [one_line(f"  {error.message}{stopped}"), f"  to do: {ROOM}"]
