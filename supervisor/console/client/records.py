"""Records: what a command can read of the sessions, and how it finds a run by the beginning of an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from actors.errors import Invalid, NotFound
from actors.model import Event, Message, Receipt, RunInfo
from supervisor.live_tree import Living
from supervisor.wire import SessionEntry, WaitingMessage

PREFIXES: Final = ("run_", "rcpt_")
RUNS_MAX: Final = 1_000
"""Runs of a session that are listed: the newest."""


class Records(Protocol):
    """The records of all sessions. Every method blocks, and raises StoreUnavailable or NoDaemon if that fails."""

    served: bool
    """True if a supervisor has the sessions. Otherwise no run that is recorded as live is worked on."""

    def sessions(self) -> list[SessionEntry]:
        """All sessions, by name."""

    def session(self, name: str) -> SessionEntry:
        """One session. Raises NotFound."""

    def thread(self, name: str) -> list[Message]:
        """The messages of a session."""

    def thread_end(self, name: str, last: int, since: str | None = None) -> tuple[list[Message], bool]:
        """The newest `last` messages of a session, or those since a run if they are more; True: there are older ones.

        Those since a run may be fewer where they are large.
        """

    def attachment(self, name: str, attachment: str) -> bytes:
        """The bytes of an attachment of a session, by its name. Raises NotFound."""

    def waiting(self, name: str) -> list[WaitingMessage]:
        """The messages of a session that wait, in their order."""

    def runs(self, name: str) -> list[RunInfo]:
        """The newest RUNS_MAX runs of a session, the oldest of them first."""

    def runs_beginning(self, start: str) -> list[RunInfo]:
        """The runs of any session whose id, or whose receipt's id, has this prefix, the oldest first."""

    def receipt(self, name: str, run_id: str) -> Receipt | None:
        """The receipt of a run of a session, if it is filed."""

    def events(self, name: str, after: int, run_id: str | None = None) -> list[Event]:
        """Some events of a session, or of one run of it, after a sequence number, in order; empty if there are none."""

    def living(self, name: str | None) -> Living:
        """The live tree of one session, or of all."""


def find_run(records: Records, identity: str) -> RunInfo:
    """Return the run with this id or this receipt, or with an id or a receipt's id that has this prefix.

    Raises:
        NotFound: there is none.
        Invalid: several have this prefix; the error names some.
    """
    # Ids begin with the time. A prefix is enough if it is unique, with or without `run_` or `rcpt_`.
    starts = (identity, *(prefix + identity for prefix in PREFIXES)) if identity else ()
    found = {run.run_id: run for start in starts for run in records.runs_beginning(start)}
    exact = [run for run in found.values() if identity in (run.run_id, run.receipt_id)]
    if len(exact) == 1:
        return exact[0]
    if len(found) > 1:
        named = [*found][-4:]
        raise Invalid(
            f"{len(found)} runs begin with {identity!r}",
            expected="an id, or so much of it that one run alone begins with it",
            got=", ".join(named) + (" and more" if len(found) > len(named) else ""),
            remedy="give more of the id",
        )
    if not found:
        raise NotFound(
            f"there is no run {identity!r}",
            expected="the id of a run or of its receipt, or the beginning of one",
            got=repr(identity),
            remedy="list the runs of a session: countermand runs SESSION",
        )
    return next(iter(found.values()))


def unknown_session(name: str, known: Sequence[str]) -> NotFound:
    """Return the refusal for a session that is not on record."""
    some = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return NotFound(
        f"there is no session {name!r}",
        expected=f"one of {some}" if known else "a session; there is none yet",
        got=repr(name),
        remedy="check the name and the state directory; countermand sessions lists them",
    )
