"""The store, read without the lock, also while another process holds the directory and writes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from actors.errors import AheadOfLog, StoreUnavailable
from actors.model import Event, Message, Receipt, RunInfo
from actors.ports import SessionRow
from supervisor.console.client.records import RUNS_MAX, unknown_session
from supervisor.live_processes import live_processes
from supervisor.live_tree import Living, living
from supervisor.lock import held
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import STORE_NAME
from supervisor.wire import SessionEntry, WaitingMessage


class StoreRecords:
    """`Records` of a state directory; a context manager.

    Raises:
        StoreUnavailable: there is no store yet, or it cannot be read; the error names the directory.
    """

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / STORE_NAME
        if not path.exists():
            raise StoreUnavailable(
                f"there is nothing to read in {state_dir}",
                expected="a state directory that a chat or a daemon has used before",
                got=f"no file {path}" if state_dir.exists() else "a directory that does not exist",
                remedy=f"name another with --state-dir, or begin there: countermand --state-dir {state_dir} chat",
            )
        self._state_dir = state_dir
        self._reader = SqliteReader(path)
        self.served = held(state_dir)

    def __enter__(self) -> StoreRecords:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()

    def sessions(self) -> list[SessionEntry]:
        """All sessions, by name."""
        return [_entry(row) for row in self._reader.every_session()]

    def session(self, name: str) -> SessionEntry:
        """One session. Raises NotFound."""
        row = self._reader.session(name)
        if row is None:
            raise unknown_session(name, [row.session for row in self._reader.sessions(limit=9)])
        return _entry(row)

    def thread(self, name: str) -> list[Message]:
        """The messages of a session."""
        return self._reader.thread(name)

    def thread_end(self, name: str, last: int, since: str | None = None) -> tuple[list[Message], bool]:
        """The newest messages of a session; see `Records`."""
        return self._reader.thread_end(name, last, since)

    def attachment(self, name: str, attachment: str) -> bytes:
        """The bytes of an attachment of a session, by its name. Raises NotFound."""
        return self._reader.attachment(name, attachment)

    def waiting(self, name: str) -> list[WaitingMessage]:
        """The messages of a session that wait, in their order."""
        return [WaitingMessage.of(row) for row in self._reader.waiting(name)]

    def runs(self, name: str) -> list[RunInfo]:
        """The newest runs of a session, the oldest of them first."""
        return self._reader.runs(name, RUNS_MAX)

    def runs_beginning(self, start: str) -> list[RunInfo]:
        """The runs of any session whose id, or whose receipt's id, has this prefix."""
        return self._reader.runs_beginning(start, RUNS_MAX)

    def receipt(self, name: str, run_id: str) -> Receipt | None:
        """The receipt of a run of a session, if it is filed."""
        return self._reader.receipt(name, run_id)

    def events(self, name: str, after: int, run_id: str | None = None) -> list[Event]:
        """Some events of a session, or of one run of it, after a sequence number, in order."""
        if run_id is not None:
            return self._reader.events_about(name, run_id, after)
        found = self._reader.events(name, after)
        if not found and after > (last_seq := self._reader.last_seq(name)):
            raise AheadOfLog.at(name, after, last_seq)
        return found

    def living(self, name: str | None) -> Living:
        """What lives now, in one session or in all."""
        return living(self._reader, live_processes(self._state_dir, self._reader, name), name, served=self.served)


def _entry(row: SessionRow) -> SessionEntry:
    # No actor has the session, as far as the store can tell.
    return SessionEntry(row.session, row.generation, row.seq, row.parked, row.quarantined, resident=False)
