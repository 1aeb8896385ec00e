"""Printer: prints the events of a session.

One thread takes the events in order. It prints the output of runs, and passes news on to the chat; by then everything
before that news has been printed. If the output is not read, only this thread blocks: events wait in the store
meanwhile, and other threads carry out a Stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from actors.errors import CountermandError, StoreUnavailable
from actors.events import (
    EventKind,
    MessageData,
    ReceiptAmendedData,
    RunStatusData,
    SessionBarrierForcedData,
    SessionMessageReturnedData,
    SessionQuarantinedData,
    TextData,
    ToolOutputData,
    ToolRequestedData,
    data_of,
)
from actors.model import Event
from supervisor.console.chat.backends import TalkSession
from supervisor.console.render.words import head, with_files
from supervisor.console.tty.screen import OutputClosed, Screen

NEWS: Final = frozenset({EventKind.RUN_STARTED, EventKind.RUN_STATUS, EventKind.RUN_ENDED, EventKind.CALL_WAITING})
READ_TRIES_MAX: Final = 5


class Printed(Struct, frozen=True):
    """Everything up to and including `seq` was printed."""

    seq: int


class OutputGone(Struct, frozen=True):
    """The output is not read any more. With `error`: it cannot be written, for example because the disk is full."""

    error: str = ""


class PrinterFailed(Struct, frozen=True):
    """The events cannot be read any more."""

    error: CountermandError


PrinterNews = Event | Printed | OutputGone | PrinterFailed


class Printer:
    """Prints a session's events after `from_seq`, on a thread of its own.

    Args:
        session: the session.
        from_seq: the `seq` of the last event that is not printed.
        screen: where to print.
        on_news: called on that thread; it must not block.
    """

    def __init__(
        self, session: TalkSession, from_seq: int, screen: Screen, on_news: Callable[[PrinterNews], None]
    ) -> None:
        self._session = session
        self._screen = screen
        self._on_news = on_news
        self._changed = threading.Condition()
        self._position = from_seq
        self._awaited: int | None = None
        self._spoke: tuple[str | None, str] = (None, "")
        self._subscription = session.subscribe(from_seq)
        threading.Thread(target=self._run, name="console-printer", daemon=True).start()

    def tell_at(self, seq: int) -> None:
        """Report `Printed` when everything up to `seq` has been printed, which may be now."""
        with self._changed:
            self._awaited = seq
        self._tell_if_there()

    def wait(self, seq: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds until everything up to `seq` was printed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._position >= seq, timeout)

    def close(self) -> None:
        """Stop printing."""
        self._subscription.close()

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                event = next(self._subscription)
                failures = 0
                self._show(event)
            except StopIteration:
                return
            except OutputClosed as closed:
                self._on_news(OutputGone("" if closed.unread else str(closed)))
                return
            except StoreUnavailable as error:
                failures += 1
                if failures >= READ_TRIES_MAX:
                    self._on_news(PrinterFailed(error))
                    return
                continue
            except CountermandError as error:
                self._on_news(PrinterFailed(error))
                return
            with self._changed:
                self._position = event.seq
                self._changed.notify_all()
            if event.kind in NEWS:
                self._on_news(event)
            self._tell_if_there()

    def _tell_if_there(self) -> None:
        with self._changed:
            if self._awaited is None or self._position < self._awaited:
                return
            self._awaited = None
            position = self._position
        self._on_news(Printed(position))

    def _show(self, event: Event) -> None:
        match data_of(event):
            case ToolOutputData(marker=True) as data:
                self._screen.remark(f"[{data.text.strip().strip('[]')}]")
            case (ToolOutputData() | TextData()) as data:
                # The agent's text does not continue on a line that a tool has begun.
                speaker = (event.run_id, event.kind)
                self._screen.output(data.text, fresh_line=speaker != self._spoke)
                self._spoke = speaker
            case ToolRequestedData() as data if data.tool != "shell":
                arguments = ", ".join(f"{name}={value!r}" for name, value in data.arguments.items())
                self._screen.remark(f"calls {head(data.tool)}({head(arguments)})")
            case MessageData() as data if data.parts:
                self._screen.remark(f"with the message: {with_files('', data.parts)}")
            case SessionMessageReturnedData() as data:
                reason = data.reason.replace("_", " ")
                self._screen.remark(f"a message was returned, {reason}: {head(with_files(data.content, data.parts))}")
            case SessionBarrierForcedData() as data:
                left = ", ".join(data.abandoned)
                self._screen.remark(f"could not be ended and was abandoned: {left} (run {data.run_id})")
            case SessionQuarantinedData():
                self._screen.remark("the session failed too often: from now on it accepts nothing but a stop")
            case ReceiptAmendedData():
                self._screen.remark(f"the receipt of run {event.run_id} was amended: countermand why {event.run_id}")
            case RunStatusData():
                # The text is complete. An ended run leaves no colour behind, and no half of a control sequence.
                self._screen.end_message()
            case _:
                return
