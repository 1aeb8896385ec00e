"""Messages to the actor of a process tree, and its news, which go up to the owner of the tree.

A `Halt` goes to a run and to a tool too.
"""

from __future__ import annotations

from typing import TypeAlias

from actors.messages.children import ChildReport
from actors.messages.lanes import Command, Report
from actors.model import How, Provenance, Row, Signalled


class Halt(Command, frozen=True):
    """End now: ask, and kill after `grace_s` seconds; 0 kills at once. It may come again with less grace."""

    provenance: Provenance
    grace_s: float


class Release(Command, frozen=True):
    """Drop the tree: another actor has it from now on."""


class ProcessStarted(Report, frozen=True):
    """The command of a tree runs, as `pid`. `spool`: the file for its output, if that is more than is shown."""

    process_id: str
    pid: int
    at: float
    spool: str | None = None


class ProcessOutput(Report, frozen=True):
    """Some output, decoded. `marker` says that the limit of logged output is reached and no more follows."""

    process_id: str
    stream: str
    text: str
    marker: bool = False


class OutputRead(Report, frozen=True):
    """All that a tree had printed when this was asked for has been reported: see `Processes.read_output`."""

    process_id: str


class ProcessExited(Report, frozen=True):
    """The command itself exited (its tree may live on); its output was drained for a bounded time.

    status: the exit status, negative for a signal.
    tail, total_bytes: the last 64 KiB of the output, and the size of all of it.
    lossy: some bytes were not UTF-8 and were replaced.
    held: a process of the tree still holds the output open.
    cpu_s, max_rss_kb: in seconds; in KiB.
    spool, spooled_bytes: the path of a file with the exact bytes of the output, if the tail is not all of it, or not
        exact, or more may come; and how many bytes it has by now.
    """

    process_id: str
    status: int
    at: float
    duration_s: float
    tail: str
    total_bytes: int
    lossy: bool
    held: bool
    cpu_s: float = 0.0
    max_rss_kb: int = 0
    spool: str | None = None
    spooled_bytes: int = 0


class ProcessRemaining(Report, frozen=True):
    """Some processes of a killed tree survive so far; `rows` and `note` say which and why.

    It describes the moment `at` and is not an end: they are waited for, and ProcessEnded follows. It is sent again when
    the survivors change.
    """

    process_id: str
    at: float
    rows: tuple[Row, ...]
    note: str


class ProcessEnded(Report, frozen=True):
    """The last report of a tree. `proven`: no process of it is left, by ECHILD; else it was lost, and `note` says how.

    `how` is the end of the command itself; NOT_STARTED if nothing was spawned. `rows` are the processes of the tree
    that were seen; `reaped` counts all. `status` is as in ProcessExited, and None if it is not known. `child` is the
    last report of a child run. ``out_of_reach``: what is left of it, if anything, cannot be seen.
    """

    process_id: str
    how: How
    proven: bool
    at: float
    status: int | None = None
    pid: int | None = None
    started_at: float | None = None
    reaped: int = 0
    rows: tuple[Row, ...] = ()
    signals: tuple[Signalled, ...] = ()
    note: str = ""
    child: ChildReport | None = None


class ChildStarted(Report, frozen=True):
    """The child run that stands where a tree does has begun, and that is durable."""

    process_id: str
    at: float


class ChildClosed(Report, frozen=True):
    """The child run has ended, or is ending: it brings nothing more, and its own parts may still be ending."""

    process_id: str
    report: ChildReport


ProcessNews: TypeAlias = (
    ProcessStarted | ProcessOutput | ProcessExited | ProcessRemaining | ProcessEnded | ChildStarted | ChildClosed
)


class ProcessKilled(Report, frozen=True):
    """A tool, or an agent, ends a tree that it started, with `grace_s` seconds of grace.

    That is the cause of its end, unless it was being ended already. Its own actor ends a tree of the run, after
    it has sent this; the session ends a tree of its own when it receives this.
    """

    process_id: str
    provenance: Provenance
    grace_s: float
