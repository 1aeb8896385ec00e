"""HttpServer: the API on sockets that are ready, by uvicorn in a thread of its own.

The supervisor needs nothing of it: it may come after the supervisor, and go before it. Nothing on its loop blocks;
reads of the store go to a pool of threads that only they use.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from loguru import logger

from actors.errors import StoreUnavailable
from supervisor.embed import Supervisor
from supervisor.http.access import Access, Door
from supervisor.http.app import make_app
from supervisor.http.desk import Desk
from supervisor.http.limits import Limits
from supervisor.http.wire import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

READERS: Final = 16
"""Threads for reads of the store."""
BACKLOG: Final = 512
START_S: Final = 30.0
CLOSE_SLACK_S: Final = 5.0
TICKS_A_SWEEP: Final = 10
"""uvicorn ticks ten times a second."""


class HttpServer:
    """The API of a supervisor.

    Args:
        supervisor: whom it is about; it is not ended with the server.
        sockets: listening ones, Unix or loopback; the server closes them.
        tokens: bearer tokens, by the names that provenances say, for those on loopback; see `read_tokens`.
        access: who may come in, in place of `tokens` and of the default: the daemon's own uid, and root.
        limits: what a client may take.

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
        self._limits = limits or Limits()
        self._sockets = list(sockets)
        self._desk = Desk(supervisor, self._limits)
        access = access or Access(tokens)
        self._server = _Server(
            uvicorn.Config(
                Door(make_app(self._desk), access),
                # The class is made with arguments that uvicorn does not know of.
                http=_protocol(access, self._limits),
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                # Whoever sends X-Forwarded-For is not believed.
                proxy_headers=False,
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(self._limits.idle_s) + 1,
                timeout_graceful_shutdown=max(1, int(self._limits.close_s)),
                h11_max_incomplete_event_size=self._limits.header_max,
            )
        )
        self._up = threading.Event()
        self._server.on_up = self._up.set
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="countermand-http", daemon=True)

    def start(self) -> None:
        """Serve; returns as soon as requests are answered.

        Raises:
            StoreUnavailable: the sockets cannot be served on.
        """
        self._thread.start()
        if not self._up.wait(START_S) or self._failure is not None:
            self._server.should_exit = True
            raise StoreUnavailable(
                "the API cannot be served",
                expected="sockets that listen",
                got=str(self._failure or f"no sign of life within {START_S:g} s"),
                remedy="look at the log; close what else uses the sockets",
            ) from self._failure

    def close(self) -> bool:
        """End the streams, let requests that are being answered end, and close the sockets. Again is harmless.

        Returns:
            True if the server's thread has ended.
        """
        self._server.should_exit = True
        self._desk.close()
        if self._thread.ident is None:
            for one in self._sockets:
                one.close()
            return True
        if threading.current_thread() is self._thread:
            return False
        self._thread.join(self._limits.close_s + CLOSE_SLACK_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # whatever it was, `start` or the log has to say it
            self._failure = error
            logger.opt(exception=True).error("the API's server failed")
        finally:
            self._up.set()

    async def _serve(self) -> None:
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="countermand-http-read")
        asyncio.get_running_loop().set_default_executor(pool)
        await self._server.serve(sockets=self._sockets)


class _Server(uvicorn.Server):
    """uvicorn's, which says when it is up, and sweeps."""

    on_up: Callable[[], object] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.on_up()

    async def on_tick(self, counter: int) -> bool:
        """Once a second, close the connections that have used up their time."""
        if counter % TICKS_A_SWEEP == 0:
            for one in list(self.server_state.connections):
                if isinstance(one, Connection):
                    one.sweep()
        return await super().on_tick(counter)


def _protocol(access: Access, limits: Limits) -> Any:
    return functools.partial(Connection, access=access, limits=limits)
