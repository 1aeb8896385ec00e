"""Reads attachments for agents, on threads of its own: a disk that hangs holds up these reads alone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from actors.errors import StoreUnavailable
from actors.gate.pending import fail, settle
from supervisor.store.reader import SqliteReader

READS_AT_ONCE: Final = 4


class AttachmentReads:
    """Reads attachments. A read waits for one of `READS_AT_ONCE` threads, which start with the first reads.

    Args:
        reader: reads the store.
    """

    def __init__(self, reader: SqliteReader) -> None:
        self._reader = reader
        self._pool = ThreadPoolExecutor(READS_AT_ONCE, "countermand-attachments")

    def read(self, session: str, name: str, reply: Future[bytes]) -> None:
        """Have `reply` resolved with the bytes of an attachment, or with NotFound or StoreUnavailable."""
        try:
            self._pool.submit(self._read, session, name, reply)
        except RuntimeError as error:
            # It is closed, or no thread can be started.
            fail(reply, StoreUnavailable("the store cannot be read", got=str(error)))

    def close(self) -> None:
        """Begin no further read. What is read at the moment is read to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, session: str, name: str, reply: Future[bytes]) -> None:
        if reply.done():
            # The run was cancelled meanwhile.
            return
        try:
            settle(reply, self._reader.attachment(session, name))
        except BaseException as error:  # noqa: BLE001  # whoever waits gets it
            fail(reply, error if isinstance(error, Exception) else StoreUnavailable(str(error)))
