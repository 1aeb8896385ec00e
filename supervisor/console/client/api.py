"""Api: a daemon's HTTP API, over its Unix socket.

A refusal of the daemon is raised as the same error that the library raises, so a command handles both alike. If there
is no daemon, or it goes away during a request, `NoDaemon` is raised, which says what to do about it.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from actors.decoding import decoder
from actors.errors import CountermandError, Invalid, ReceiptPending, error_from_json
from actors.model import Receipt
from supervisor.console.client.endpoint import CONNECT_S, Endpoint
from supervisor.console.render.output import note
from supervisor.wire import Info

T = TypeVar("T")

ANSWER_S: Final = 35.0
"""A little longer than a session may take to answer: the daemon's own error for that is better than ours."""
INFO_S: Final = 10.0
"""How long `GET /v1/info` may take. It needs no session: a daemon that takes longer hangs, or is gone."""
SILENT_S: Final = 1.5
"""After so many seconds without an answer the command prints what it waits for."""
RECEIPT_LOOK_S: Final = 20.0
"""How long one request waits for a receipt; then it is asked again."""
RETRY_S: Final = 0.2
BASE: Final = "http://countermand"


class NoDaemon(CountermandError):
    """No daemon answers on the socket, or the one that did went away."""

    code = "no_daemon"


class _OpenRefused(Struct, frozen=True):
    """`wire.Refused`, but open: a field that a later release adds to a refusal is kept."""

    error: dict[str, Any]


class Api:
    """A client of one daemon. Every method may be called from any thread, and blocks until there is an answer.

    Args:
        endpoint: where its socket is.
        answer_s: how long it may take to answer, in seconds.
        on_wait: called once, on another thread, with a text when an answer takes long; by default it is printed.

    Raises (the constructor and each request): NoDaemon; or the daemon's refusal, as the library does.
    """

    def __init__(
        self, endpoint: Endpoint, *, answer_s: float = ANSWER_S, on_wait: Callable[[str], object] | None = None
    ) -> None:
        self.endpoint = endpoint
        self._answer_s = answer_s
        self.on_wait = note if on_wait is None else on_wait
        self.client = httpx.Client(
            # A Unix socket has no TLS, and loading certificates would take longer than the request.
            transport=httpx.HTTPTransport(uds=endpoint.resolved, verify=False),
            base_url=BASE,
            timeout=httpx.Timeout(answer_s, connect=CONNECT_S),
            trust_env=False,
        )
        try:
            self.info = self.get("/v1/info", Info, patience_s=min(0.0, INFO_S - answer_s))
        except BaseException:
            self.close()
            raise

    def get(self, path: str, into: type[T], *, patience_s: float = 0.0, **params: Any) -> T:
        """Send a GET, and decode the answer. `patience_s`: seconds beyond `answer_s` that the answer may take."""
        return self._decoded(self._send("GET", path, None, params, patience_s), into)

    def read(self, path: str) -> bytes:
        """Send a GET, and return the body, which is not JSON."""
        return self._send("GET", path, None, {}, 0.0).content

    def post(self, path: str, into: type[T], body: object, *, patience_s: float = 0.0) -> T:
        """Send a POST, and decode the answer."""
        return self._decoded(self._send("POST", path, body, {}, patience_s), into)

    def receipt(
        self,
        session: str,
        identity: str,
        timeout: float | None,
        *,
        look_s: float = RECEIPT_LOOK_S,
        on_pending: Callable[[], object] = lambda: None,
    ) -> Receipt:
        """Return a receipt, waiting for it at most `timeout` seconds; None: until it is filed.

        Args:
            session: the session of the receipt.
            identity: the id of the receipt, or of its run.
            timeout: in seconds; 0 looks once.
            look_s: how long one request waits for it; then it is asked again.
            on_pending: called each time before it is asked again.

        Raises:
            ReceiptPending: it is not filed yet.
            NotFound: there is none of that id.
        """
        url = f"/v1/sessions/{segment(session)}/receipts/{segment(identity)}"
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            began = time.monotonic()
            wait_s = look_s if deadline is None else min(look_s, max(0.0, deadline - began))
            try:
                return self.get(url, Receipt, patience_s=wait_s, wait_s=round(wait_s, 3))
            except ReceiptPending:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            on_pending()
            # If too many requests wait, the daemon answers at once.
            time.sleep(max(0.0, began + RETRY_S - time.monotonic()))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _send(self, method: str, path: str, body: object, params: dict[str, Any], patience_s: float) -> httpx.Response:
        limit_s = self._answer_s + patience_s
        # A caller that gave `patience_s` reports the wait itself.
        saying = threading.Timer(SILENT_S, self._say_waiting, (limit_s,)) if patience_s <= 0 else None
        if saying is not None:
            saying.daemon = True
            saying.start()
        try:
            answer = self.client.request(
                method,
                path,
                content=None if body is None else msgspec.json.encode(body),
                headers={"content-type": "application/json"} if body is not None else None,
                params=params,
                timeout=httpx.Timeout(limit_s, connect=min(CONNECT_S, limit_s)),
            )
        except httpx.ConnectError as error:
            raise no_daemon(self.endpoint, str(error)) from None
        except httpx.TransportError as error:
            raise gone(self.endpoint, error) from None
        finally:
            if saying is not None:
                saying.cancel()
        if answer.status_code >= 400:
            raise refused(answer.content, answer.status_code)
        return answer

    def _say_waiting(self, limit_s: float) -> None:
        say, self.on_wait = self.on_wait, _say_nothing
        say(f"the daemon on {self.endpoint.socket} has not answered yet; waiting, for {limit_s:g} s at most…")

    def _decoded(self, answer: httpx.Response, into: type[T]) -> T:
        try:
            return decoder(into)(answer.content)
        except msgspec.MsgspecError as error:
            raise CountermandError(
                "the daemon gave an answer that this command does not understand",
                expected=into.__name__,
                got=str(error),
                remedy="use the command of the daemon's own version",
            ) from error


def _say_nothing(_: str) -> None:
    """Print nothing: the wait was reported already."""


def find_api(endpoint: Endpoint) -> Api | None:
    """Return the daemon at an endpoint, or None if no process listens there.

    Raises:
        NoDaemon: the socket was named, and no process listens; or one does and does not answer.
        CountermandError: the daemon refuses us.
    """
    if endpoint.is_listening():
        return Api(endpoint)
    if endpoint.named is not None:
        raise _not_listening(endpoint)
    return None


def need_api(endpoint: Endpoint) -> Api:
    """Return the daemon at an endpoint.

    Raises:
        NoDaemon: there is none; the error says how to start one.
    """
    api = find_api(endpoint)
    if api is None:
        raise _not_listening(endpoint)
    return api


def _not_listening(endpoint: Endpoint) -> NoDaemon:
    return no_daemon(endpoint, "no process listens there" if is_socket(endpoint) else "no such socket")


def is_socket(endpoint: Endpoint) -> bool:
    """True if there is a socket at an endpoint, whether or not a process listens."""
    try:
        return stat.S_ISSOCK(endpoint.socket.stat().st_mode)
    except OSError:
        return False


def no_daemon(endpoint: Endpoint, got: str) -> NoDaemon:
    """Return the error of a command that needs a daemon and finds none."""
    start = (
        "countermand serve" if endpoint.named else f"countermand --state-dir {quote_shell(endpoint.state_dir)} serve"
    )
    return NoDaemon(
        "no daemon answers",
        expected=f"one on {endpoint.socket}",
        got=got,
        remedy=f"start one ({start}; or systemctl start countermand), name its --socket, or ask: countermand doctor",
    )


def gone(endpoint: Endpoint, error: Exception) -> NoDaemon:
    """Return the error for a daemon that went away, or fell silent, during a request."""
    return NoDaemon(
        "the daemon gave no answer; the request may have been carried out",
        expected=f"an answer on {endpoint.socket}",
        got=f"{type(error).__name__}: {error}".rstrip(": "),
        remedy="countermand doctor names its process; countermand logs has its log; sent again under the same --id a "
        "request has one effect",
    )


def refused(content: bytes, status: int) -> CountermandError:
    """Return the error in an answer."""
    try:
        error = decoder(_OpenRefused)(content).error
    except msgspec.MsgspecError:
        return CountermandError(f"the daemon answered {status}", got=content[:200].decode(errors="replace"))
    return error_from_json(error)


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises Invalid if it is empty."""
    if not name:
        raise Invalid("a name is empty", expected="1 to 128 printable characters", got="''", remedy="name a session")
    return quote(name, safe="")


def quote_shell(value: object) -> str:
    """Return a value as a shell takes it for one word."""
    import shlex

    return shlex.quote(str(value))
