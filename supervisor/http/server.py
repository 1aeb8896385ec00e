"""HttpServer: serves the API on listening sockets, with uvicorn in a thread of its own.

The supervisor does not depend on it: the server may start after the supervisor and end before it. No code on its loop
blocks; reads of the store run on a separate pool of threads.

This module imports little. The server's thread imports the rest, so that the daemon need not wait for it; clients that
connect meanwhile wait in the sockets' backlog.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from loguru import logger

from actors.errors import StoreUnavailable
from supervisor.http.access import Access
from supervisor.http.limits import Limits
from supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from supervisor.http.serving import Serving

START_S: Final = 30.0
CLOSE_SLACK_S: Final = 5.0


class HttpServer:
    """The API of a supervisor.

    Args:
        supervisor: the supervisor to serve; it does not end with the server.
        sockets: listening sockets, Unix or loopback; the server closes them.
        tokens: bearer tokens for loopback, by their names in provenances; see `read_tokens`.
        access: access control, instead of `tokens` and the default (the daemon's own uid, and root).
        limits: the limits on clients; by default, those under which the largest message fits into a body.

    `start` and `close` may be called from any thread but the server's own.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        sockets: Sequence[socket.socket],
        *,
        tokens: Mapping[str, str] | None = None,
        access: Access | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._sockets = list(sockets)
        self._access = access or Access(tokens)
        self._limits = limits or Limits.for_messages(
            supervisor.config.message_max_bytes, supervisor.config.attachments_max_bytes
        )
        self._up = threading.Event()
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="countermand-http", daemon=True)

    def start(self, *, wait: bool = True) -> None:
        """Serve.

        Args:
            wait: return when requests are answered. False: return at once; `serving` says whether they are.

        Raises:
            StoreUnavailable: the sockets cannot be served on.
        """
        self._thread.start()
        if wait and not self.serving(START_S):
            self.close()
            raise StoreUnavailable(
                "the API cannot be served",
                expected="sockets that listen",
                got=str(self._failure or f"no sign of life within {START_S:g} s"),
                remedy="look at the log; close what else uses the sockets",
            ) from self._failure

    def serving(self, timeout: float = 0.0) -> bool:
        """Return True if requests are answered; wait for that for at most `timeout` seconds."""
        return self._up.wait(timeout) and self._failure is None and self._thread.is_alive()

    def move(self, old: socket.socket, new: socket.socket) -> None:
        """Serve on a new socket instead of an old one, which is closed; connections stay open. Does not wait."""
        with self._lock:
            self._sockets[self._sockets.index(old)] = new
            if self._serving is not None and not self._closing:
                self._serving.move(old, new)

    def close(self) -> bool:
        """End the streams, finish the requests that are being answered, and close the sockets. Idempotent.

        Returns:
            True if the server's thread has ended.
        """
        with self._lock:
            self._closing = True
            if self._serving is not None:
                self._serving.end()
        if threading.current_thread() is self._thread:
            return False
        if self._thread.ident is not None:
            self._thread.join(self._limits.close_s + CLOSE_SLACK_S)
        if not self._thread.is_alive():
            # Sockets that were never served are still open.
            for one in self._sockets:
                one.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            from supervisor.http.serving import Serving

            serving = Serving(self._supervisor, self._sockets, self._access, self._limits, self._up.set)
            with self._lock:
                if self._closing:
                    return
                self._serving = serving
            serving.run()
        except BaseException as error:  # noqa: BLE001  # `start` or the log has to report it
            self._failure = error
            logger.opt(exception=True).error("the API's server failed")
        finally:
            self._up.set()
