"""The store, read without the lock, also while another process holds the directory and writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from actors.errors import Invalid, NotFound, StoreUnavailable
from actors.model import RunInfo
from supervisor.store.reader import SqliteReader

STORE_NAME: Final = "store.sqlite3"
PREFIXES: Final = ("run_", "rcpt_")


@contextmanager
def open_store(state_dir: Path) -> Iterator[SqliteReader]:
    """Open the store of a state directory for reading.

    Raises:
        StoreUnavailable: there is none yet, or it cannot be read; the error names the directory.
    """
    path = state_dir / STORE_NAME
    if not path.exists():
        raise StoreUnavailable(
            f"there is nothing to read in {state_dir}",
            expected="a state directory that a chat has used before",
            got=f"no file {path}" if state_dir.exists() else "a directory that does not exist",
            remedy=f"name another with --state-dir, or begin there: countermand --state-dir {state_dir} chat",
        )
    reader = SqliteReader(path)
    try:
        yield reader
    finally:
        reader.close()


def check_session(reader: SqliteReader, session: str) -> None:
    """Raise NotFound unless the store knows the session."""
    if reader.session(session) is None:
        names = [row.session for row in reader.sessions(limit=8)]
        raise NotFound(
            f"there is no session {session!r}",
            expected=f"one of {', '.join(names)}" if names else "a session; the store holds none yet",
            got=repr(session),
            remedy="check the name and the state directory",
        )


def find_run(reader: SqliteReader, identity: str) -> RunInfo:
    """Return the run with this id, with this receipt, or whose id or receipt's id alone begins like this.

    Raises:
        NotFound: there is none.
        Invalid: several begin like this; the error names some.
    """
    info = reader.find_run(identity)
    if info is None:
        receipt = reader.find_receipt(identity)
        if receipt is not None and receipt.run_id is not None:
            info = reader.find_run(receipt.run_id)
    if info is not None:
        return info
    # Ids begin with the time, so `why` takes as much of one as tells it from the others, with its prefix or without.
    starts = (identity, *(prefix + identity for prefix in PREFIXES)) if identity else ()
    found = [
        run
        for row in reader.sessions()
        for run in reader.runs(row.session)
        if starts and (run.run_id.startswith(starts) or run.receipt_id.startswith(starts))
    ]
    if len(found) > 1:
        raise Invalid(
            f"{len(found)} runs begin with {identity!r}",
            expected="an id, or so much of it that one run alone begins with it",
            got=", ".join(run.run_id for run in found[-4:]) + (" and more" if len(found) > 4 else ""),
            remedy="give more of the id",
        )
    if not found:
        raise NotFound(
            f"there is no run {identity!r}",
            expected="the id of a run or of its receipt, or the beginning of one",
            got=repr(identity),
            remedy="list the runs of a session: countermand runs SESSION",
        )
    return found[0]
