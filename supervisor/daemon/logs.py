"""The log: text on a terminal, JSON elsewhere, with priorities in systemd's journal.

A line names its session, run, generation and call: those to which it was bound, else those of the actor, the agent or
the tool that wrote it.

Logging never waits for the reader of the log. A line goes into a bounded queue, and a thread writes it. If LINES_MAX
lines wait already, later ones are counted and dropped, and a line says how many.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from loguru import logger

from actors.kernel.actor import log_context
from actors.kernel.log_context import CONTEXT, speak
from actors.text import below, one_line
from supervisor.daemon.settings import LogFormat, LogSettings

if TYPE_CHECKING:
    from loguru import Message, Record

LINES_MAX: Final = 10_000
LINE_MAX_CHARS: Final = 32_768
FLUSH_S: Final = 2.0
# The priorities of syslog(3), by which `journalctl -p` filters.
PRIORITIES: Final = {"TRACE": 7, "DEBUG": 7, "INFO": 6, "SUCCESS": 5, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
COLOURS: Final = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31", "DEBUG": "2", "TRACE": "2"}


class LineWriter:
    """Writes lines to a descriptor, on a thread of its own. `put` never waits, and may be called from any thread."""

    def __init__(self, fd: int, dropped: Callable[[int], str]) -> None:
        self._fd = fd
        self._dropped = dropped
        self._lines: deque[str] = deque()
        self._lost = 0
        self._writing = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="countermand-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queue a line; if the queue is full, drop and count it."""
        with self._changed:
            if len(self._lines) >= LINES_MAX:
                self._lost += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until every queued line is written. Returns False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing and not self._lost, timeout)

    def close(self, timeout: float) -> None:
        """Write the queued lines, for at most `timeout` seconds, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._closing)
                if not self._lines:
                    return
                lines, self._lines = self._lines, deque()
                lost, self._lost = self._lost, 0
                self._writing = True
            if lost:
                lines.append(self._dropped(lost))
            self._write("".join(lines).encode(errors="backslashreplace"))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                # Another process has made the descriptor non-blocking.
                time.sleep(0.01)
            except OSError:
                # The reader is gone, or the disk is full: there is nowhere to report that.
                return


class Logs:
    """The daemon's log. It receives lines of loguru and of the standard library, and uncaught exceptions.

    Args:
        fd: the descriptor to write to; standard error by default.
        journal: prefix lines with their priorities; None: if `fd` leads to the journal.
    """

    def __init__(self, fd: int = 2, *, journal: bool | None = None) -> None:
        self._terminal = os.isatty(fd)
        self._journal = leads_to_journal(fd, os.environ) if journal is None else journal
        self._render: Callable[[Record], str] = as_json
        self._writer = LineWriter(fd, self._lines_dropped)
        self._sink: int | None = None
        speak()
        logger.remove()
        logger.configure(patcher=add_context)
        logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
        logging.captureWarnings(capture=True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread

    def apply(self, settings: LogSettings) -> None:
        """Use a level and a format from now on. No line is lost at the change."""
        people = settings.format is LogFormat.PEOPLE or (settings.format is LogFormat.AUTO and self._terminal)
        self._render = (lambda record: as_text(record, colours=self._terminal)) if people else as_json
        level = settings.level.upper()
        before = self._sink
        self._sink = logger.add(self._put, level=level, format="", catch=False, backtrace=False, diagnose=False)
        if before is not None:
            logger.remove(before)

    def flush(self) -> bool:
        """Wait until every line is written, for at most FLUSH_S seconds."""
        return self._writer.flush(FLUSH_S)

    def close(self) -> None:
        """Write the queued lines, for at most FLUSH_S seconds. Later lines are lost."""
        logger.remove()
        self._sink = None
        sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
        logging.captureWarnings(capture=False)
        logging.basicConfig(force=True)
        self._writer.close(FLUSH_S)

    def _put(self, message: Message) -> None:
        record = message.record
        try:
            line = self._render(record)
        except Exception as error:  # noqa: BLE001  # a logged object may raise anything; the log goes on
            line = msgspec.json.encode({"message": f"a line could not be written: {error!r}"}).decode()
        self._writer.put(self._prefixed(line, PRIORITIES.get(record["level"].name, 6)))

    def _prefixed(self, line: str, priority: int) -> str:
        if not self._journal:
            return line + "\n"
        # Text may have a traceback below it; each line of that is a journal entry of its own.
        return "".join(f"<{priority}>{part}\n" for part in line.split("\n"))

    def _lines_dropped(self, count: int) -> str:
        text = f"{count} lines of the log were dropped: they were not read in time"
        line = msgspec.json.encode({"at": _utc(dt.datetime.now(dt.UTC)), "level": "warning", "message": text}).decode()
        return self._prefixed(line, 4)


def leads_to_journal(fd: int, environment: Mapping[str, str]) -> bool:
    """Return True if a descriptor is the stream that systemd has connected to its journal (``JOURNAL_STREAM``)."""
    try:
        seen = os.fstat(fd)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{seen.st_dev}:{seen.st_ino}"


def add_context(record: Record) -> None:
    """Add session, run, generation and call to a line that does not have them."""
    for name, value in log_context().items():
        record["extra"].setdefault(name, value)


def as_json(record: Record) -> str:
    """Return a record as one line of JSON."""
    line: dict[str, Any] = {
        "at": _utc(record["time"]),
        "level": record["level"].name.lower(),
        "message": record["message"][:LINE_MAX_CHARS],
        **{name: record["extra"][name] for name in CONTEXT if name in record["extra"]},
        "logger": f"{record['name']}:{record['line']}",
    }
    more = {name: value for name, value in record["extra"].items() if name not in CONTEXT}
    if more:
        line["extra"] = more
    if record["exception"] is not None:
        line["exception"] = _trace(record)
    return one_line(msgspec.json.encode(line, enc_hook=repr).decode())


def as_text(record: Record, *, colours: bool) -> str:
    """Return a record as one line of text; a traceback goes below, indented."""
    level = record["level"].name
    message = one_line(record["message"][:LINE_MAX_CHARS])
    text = f"{record['time']:%H:%M:%S}.{record['time'].microsecond // 1000:03d} {level:<8}{message}"
    about = " ".join(f"{name}={record['extra'][name]}" for name in CONTEXT if name in record["extra"])
    if about:
        text += f"  [{one_line(about)}]"
    if colours and level in COLOURS:
        text = f"\x1b[{COLOURS[level]}m{text}\x1b[0m"
    return text if record["exception"] is None else f"{text}\n{below(_trace(record))}"


def _utc(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: Record) -> str:
    exception = record["exception"]
    assert exception is not None
    out = io.StringIO()
    with contextlib.suppress(Exception):  # an exception may raise in its own __str__
        traceback.print_exception(exception.type, exception.value, exception.traceback, file=out)
    return out.getvalue()[-LINE_MAX_CHARS:].rstrip()


class _ToLoguru(logging.Handler):
    """Passes the standard library's log records on to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in PRIORITIES else "INFO"

        def name(ours: Record) -> None:
            ours["name"], ours["line"] = record.name, record.lineno

        patched = logger.patch(name)
        patched.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    logger.opt(exception=(kind, error, trace)).critical("uncaught: {}", kind.__name__)


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "?"
    error = args.exc_value or args.exc_type()
    logger.opt(exception=error).critical("uncaught in thread {}: {}", name, args.exc_type.__name__)
