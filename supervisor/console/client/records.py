"""Records: what is on record of sessions, asked of the daemon that runs, else read from the store on the disk.

A command that reads takes whichever there is, and shows the same. The daemon goes first: it may belong to another
user, and only it knows what has happened since its last write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from msgspec import Struct

from actors.errors import Invalid, NotFound
from actors.model import Event, Receipt, RunInfo
from actors.model import Message as ThreadMessage
from supervisor.console.client.endpoint import Place
from supervisor.live_tree import Living

PREFIXES: Final = ("run_", "rcpt_")
RUNS_MAX: Final = 1_000
"""Runs of a session that are listed: the newest."""


class SessionFacts(Struct, frozen=True):
    """A session as it is on record."""

    session: str
    generation: int
    last_seq: int
    parked: bool = False
    quarantined: bool = False


class WaitingFacts(Struct, frozen=True):
    """A message that waits for its turn, the run `run_id`. `accepted_at`: seconds since the epoch, UTC."""

    id: str
    run_id: str
    content: str
    accepted_at: float


class Records(Protocol):
    """What is on record. Every method blocks, and raises StoreUnavailable or NoDaemon where it cannot be read."""

    served: bool
    """True if somebody has the sessions in hand: what they say is live may be."""

    def sessions(self) -> list[SessionFacts]:
        """All sessions, by name."""

    def session(self, name: str) -> SessionFacts:
        """One session. Raises NotFound."""

    def thread(self, name: str) -> list[ThreadMessage]:
        """The messages of a session."""

    def attachment(self, name: str, attachment: str) -> bytes:
        """The bytes of an attachment of a session, by its name. Raises NotFound."""

    def waiting(self, name: str) -> list[WaitingFacts]:
        """The messages of a session that wait, in their order."""

    def runs(self, name: str) -> list[RunInfo]:
        """The newest RUNS_MAX runs of a session, the oldest of them first."""

    def runs_beginning(self, start: str) -> list[RunInfo]:
        """Runs of any session whose id, or whose receipt's, begins like this, the oldest first."""

    def receipt(self, name: str, run_id: str) -> Receipt | None:
        """The receipt of a run of a session, if it is filed."""

    def events(self, name: str, after: int, run_id: str | None = None) -> list[Event]:
        """Some events of a session, or about a run of it, behind a seq, in order; none where there are no more."""

    def living(self, name: str | None) -> Living:
        """What lives now, in one session or in all."""


@contextmanager
def open_records(place: Place, patience_s: float | None = None) -> Iterator[Records]:
    """Open what is on record at a place.

    Args:
        place: where a daemon is looked for, and the store where none runs.
        patience_s: how long a daemon may take for an answer, of which nothing is said; None: as long as it may, and
            that it takes long is said.

    Raises:
        StoreUnavailable: no daemon runs, and the store is not there or cannot be read.
        NoDaemon: a socket was named, and nobody answers on it.
    """
    from supervisor.console.client.reading import StoreRecords

    if place.named is None and not place.is_listening():
        with StoreRecords(place.state_dir) as records:
            yield records
        return
    # httpx takes longer to load than the store to be read: it is loaded where there is somebody to talk to.
    from supervisor.console.client.api import Api, need_api
    from supervisor.console.client.remote import RemoteRecords

    api = need_api(place) if patience_s is None else Api(place, answer_s=patience_s, on_wait=lambda _: None)
    try:
        yield RemoteRecords(api)
    finally:
        api.close()


def find_run(records: Records, identity: str) -> RunInfo:
    """Return the run with this id, with this receipt, or whose id or receipt's id begins like this.

    Raises:
        NotFound: there is none.
        Invalid: several begin like this; the error names some.
    """
    # Ids begin with the time: as much of one as tells it from the others will do, with its prefix or without.
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
