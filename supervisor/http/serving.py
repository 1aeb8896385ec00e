"""Serving: one server on its loop. This module imports the server's libraries, which takes time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import uvicorn

from supervisor.http.access import Access
from supervisor.http.app import make_app
from supervisor.http.connection import Connection
from supervisor.http.limits import Limits
from supervisor.http.middleware import AdmissionMiddleware
from supervisor.http.service import ApiService
from supervisor.supervisor import Supervisor

READERS: Final = 16
"""Threads for reads of the store."""
BACKLOG: Final = 512
TICKS_A_SWEEP: Final = 10
"""uvicorn ticks ten times a second."""


class Serving:
    """A server that is ready to run.

    Args:
        supervisor: the supervisor to serve.
        sockets: listening sockets.
        access: decides who is admitted.
        limits: the limits on clients.
        on_up: called as soon as requests are answered.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        sockets: Sequence[socket.socket],
        access: Access,
        limits: Limits,
        on_up: Callable[[], object],
    ) -> None:
        self._sockets = list(sockets)
        self._service = ApiService(supervisor, limits)
        config = uvicorn.Config(
            AdmissionMiddleware(make_app(self._service), access, limits.header_max),
            # uvicorn does not know the further arguments of the class.
            http=_protocol(access, limits),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            # X-Forwarded-For is not trusted.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(limits.idle_s) + 1,
            timeout_graceful_shutdown=max(1, int(limits.close_s)),
            h11_max_incomplete_event_size=limits.header_max,
        )
        self._server = _Server(config)
        self._server.on_up = on_up

    def run(self) -> None:
        """Serve until `end`; blocks the calling thread."""
        asyncio.run(self._serve())

    def move(self, old: socket.socket, new: socket.socket) -> None:
        """Listen on a new socket instead of an old one, which is closed. Any thread, once it is up."""
        # The server closes the sockets of this list at its end.
        self._sockets[self._sockets.index(old)] = new
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(self._server.move(old, new), self._loop)

    def end(self) -> None:
        """End the streams, and the server when its requests are answered. Any thread; idempotent."""
        self._server.should_exit = True
        self._service.close()

    async def _serve(self) -> None:
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="countermand-http-read")
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(pool)
        await self._server.serve(sockets=self._sockets)


class _Server(uvicorn.Server):
    """uvicorn's server, with a callback when it is up, and the sweeps over its connections."""

    on_up: Callable[[], object] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call `on_up`."""
        await super().startup(sockets)
        self.on_up()

    async def move(self, old: socket.socket, new: socket.socket) -> None:
        """Listen on a new socket instead of an old one; the connections of the old one stay open."""
        others = [one for one in self.servers if all(have.fileno() != old.fileno() for have in one.sockets)]
        for one in self.servers:
            if one not in others:
                one.close()
        await super().startup([new])
        self.servers = [*others, *self.servers]

    async def on_tick(self, counter: int) -> bool:
        """Once a second, close the connections whose time is over."""
        if counter % TICKS_A_SWEEP == 0:
            for one in list(self.server_state.connections):
                if isinstance(one, Connection):
                    one.sweep()
        return await super().on_tick(counter)


def _protocol(access: Access, limits: Limits) -> Any:
    return functools.partial(Connection, access=access, limits=limits)
