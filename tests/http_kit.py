"""What tests of the API share: a real server on real sockets, and the clients that talk to it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.plugin.registration import Unloaded
from supervisor import SessionHandle, Supervisor
from supervisor.http.access import Access
from supervisor.http.limits import Limits
from supervisor.http.server import HttpServer
from tests.kit import WAIT_S, Kit

TOKEN = "a-token-that-nobody-guesses"
TOKENS = {"tests": TOKEN}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Sse:
    """An event stream that is read: each event as (id, kind, event), with what was said in comments."""

    def __init__(self, response: httpx.Response) -> None:
        self.comments: list[str] = []
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                place = int(fields["id"]) if "id" in fields else None
                yield place, fields["event"], json.loads(fields["data"])
                fields = {}

    def until(self, kind: str) -> list[dict[str, Any]]:
        """Read on to the first event of a kind; return all that came, that one too."""
        came = []
        for _, name, event in self:
            came.append(event)
            if name == kind:
                return came
        raise AssertionError(f"the stream ended without {kind}")


class Api:
    """A supervisor with its server, in a directory that is removed whatever happens."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        # Short: the path of a Unix socket has 107 bytes.
        self._dir = Path(tempfile.mkdtemp(prefix="cm"))
        self.path = self._dir / "s"
        self.port = 0
        self.server: HttpServer | None = None
        self._open: list[Any] = []

    def start(
        self,
        agent: Callable[..., Any] | Unloaded | None = None,
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        tcp: bool = False,
        **options: Any,
    ) -> httpx.Client:
        """Start both, and return a client over the Unix socket."""
        supervisor = self.kit.start(agent, **options)
        self.serve(supervisor, limits=limits, access=access, tcp=tcp)
        return self.client()

    def serve(self, supervisor: Supervisor, *, tcp: bool = False, **options: Any) -> HttpServer:
        """Serve a supervisor."""
        self.path.unlink(missing_ok=True)
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
        sockets[0].bind(str(self.path))
        self.path.chmod(0o600)
        if tcp:
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sockets[1].bind(("127.0.0.1", 0))
            self.port = sockets[1].getsockname()[1]
        for one in sockets:
            one.listen(512)
        try:
            self.server = HttpServer(supervisor, sockets, tokens=TOKENS, **options)
        except BaseException:
            for one in sockets:
                one.close()
            raise
        self.server.start()
        return self.server

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor that is served."""
        assert self.kit.supervisor is not None
        return self.kit.supervisor

    def session(self, name: str = "s1") -> SessionHandle:
        """The handle of a session, past the API."""
        return self.supervisor.session(name)

    def client(self, **options: Any) -> httpx.Client:
        """A client over the Unix socket."""
        transport = httpx.HTTPTransport(uds=str(self.path))
        made = httpx.Client(transport=transport, base_url="http://localhost", timeout=WAIT_S, **options)
        self._open.append(made)
        return made

    def over_tcp(self, **options: Any) -> httpx.Client:
        """A client over loopback; it has no token but what `options` gives it."""
        made = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WAIT_S, trust_env=False, **options)
        self._open.append(made)
        return made

    def raw(self) -> socket.socket:
        """A connected Unix socket, for what no client would send."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._open.append(made)
        made.settimeout(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                made.connect(str(self.path))
            except BlockingIOError:
                # Too many wait to be accepted.
                assert time.monotonic() < deadline
                time.sleep(0.005)
            else:
                return made

    def raw_tcp(self) -> socket.socket:
        """A connected socket over loopback, as `raw`."""
        made = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        self._open.append(made)
        return made

    def close_server(self) -> bool:
        """End the server alone."""
        server, self.server = self.server, None
        return server is None or server.close()

    def clean(self) -> None:
        """End everything."""
        for one in self._open:
            one.close()
        try:
            self.close_server()
        finally:
            shutil.rmtree(self._dir, ignore_errors=True)


@pytest.fixture
def api(kit: Kit) -> Iterator[Api]:
    """An Api that is cleaned before the supervisor is."""
    made = Api(kit)
    try:
        yield made
    finally:
        made.clean()


def level(client: httpx.Client, name: str) -> int:
    """A level of the API itself, such as ``waits``, as the metrics say it."""
    text = client.get("/metrics").text
    return int(float(text.partition(f"\ncountermand_http_{name} ")[2].split()[0]))


def code(response: httpx.Response) -> str:
    """The code of a refusal, whose form is checked."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert response.headers["content-type"] == "application/json"
    found: str = body["error"]["code"]
    return found


def everything(sock: socket.socket) -> bytes:
    """Read a socket to its end."""
    parts = []
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def get_raw(path: str, *headers: str) -> bytes:
    """A request as bytes, its path as it is."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def threads() -> list[str]:
    """Names of the server's threads."""
    return [one.name for one in threading.enumerate() if one.name.startswith("countermand-http")]


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
