"""A server on a free port of this machine, for as long as a test needs it. Standard library only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """A server whose connections keep no process and no test waiting."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def served(server: Server) -> Iterator[str]:
    """Have it serve; gives its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
