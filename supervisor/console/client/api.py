"""Api: a daemon's HTTP API, over its Unix socket.

What the daemon refuses is raised as the same error that the library raises for it, so no command can tell the one
from the other. Where there is no daemon, or it goes away while it is asked, that is a `NoDaemon`, which says what to
do about it.
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

from actors.errors import CountermandError, Invalid, ReceiptPending, error_from_json
from actors.model import Receipt
from supervisor.console.client.endpoint import CONNECT_S, Place
from supervisor.console.render.output import note
from supervisor.wire import Info

T = TypeVar("T")

ANSWER_S: Final = 35.0
"""A little longer than a session may take to answer: the daemon's own word about that is the better one."""
INFO_S: Final = 10.0
"""How long `GET /v1/info` may take. It needs no session: a daemon that takes longer hangs, or is gone."""
SILENT_S: Final = 1.5
"""After so many seconds without an answer the command says what it waits for."""
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
        place: where its socket is.
        answer_s: how long it may take for an answer, in seconds.
        on_wait: called once, on another thread, with a word when an answer takes long; by default it is printed.

    Raises (the constructor and each request): NoDaemon; else what the daemon refuses, as the library does.
    """

    def __init__(
        self, place: Place, *, answer_s: float = ANSWER_S, on_wait: Callable[[str], object] | None = None
    ) -> None:
        self.place = place
        self._answer_s = answer_s
        self.on_wait = note if on_wait is None else on_wait
        self.client = httpx.Client(
            # There is no TLS on it: to load certificates would take longer than to ask.
            transport=httpx.HTTPTransport(uds=place.resolved, verify=False),
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
        """Ask for something. `patience_s`: seconds that the daemon may take beyond its own limit for an answer."""
        return self._decoded(self._send("GET", path, None, params, patience_s), into)

    def read(self, path: str) -> bytes:
        """Ask for something that is no JSON."""
        return self._send("GET", path, None, {}, 0.0).content

    def post(self, path: str, into: type[T], body: object, *, patience_s: float = 0.0) -> T:
        """Have something done, and return the answer."""
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
            session: whose it is.
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
            # Where too many wait the daemon answers at once.
            time.sleep(max(0.0, began + RETRY_S - time.monotonic()))

    def close(self) -> None:
        """Let go of the connections."""
        self.client.close()

    def _send(self, method: str, path: str, body: object, params: dict[str, Any], patience_s: float) -> httpx.Response:
        limit_s = self._answer_s + patience_s
        # Who asked for patience knows what is waited for.
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
            raise no_daemon(self.place, str(error)) from None
        except httpx.TransportError as error:
            raise gone(self.place, error) from None
        finally:
            if saying is not None:
                saying.cancel()
        if answer.status_code >= 400:
            raise refused(answer.content, answer.status_code)
        return answer

    def _say_waiting(self, limit_s: float) -> None:
        say, self.on_wait = self.on_wait, _say_nothing
        say(f"the daemon on {self.place.socket} has not answered yet; waiting, for {limit_s:g} s at most…")

    def _decoded(self, answer: httpx.Response, into: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.content, type=into)
        except msgspec.MsgspecError as error:
            raise CountermandError(
                "the daemon gave an answer that this command does not understand",
                expected=into.__name__,
                got=str(error),
                remedy="use the command of the daemon's own version",
            ) from error


def _say_nothing(_: str) -> None:
    """Say it no second time."""


def find_api(place: Place) -> Api | None:
    """Return the daemon at a place, or None if nobody listens there.

    Raises:
        NoDaemon: the socket was named, and nobody listens; or somebody does and gives no answer.
        CountermandError: a daemon is there and lets nobody in.
    """
    if place.is_listening():
        return Api(place)
    if place.named is not None:
        raise _nobody(place)
    return None


def need_api(place: Place, agent: str | None = None) -> Api:
    """Return the daemon at a place; whose agent is this one, where one is named.

    Raises:
        NoDaemon: there is none; the error says how to start one.
        Invalid: its agent is another.
    """
    api = find_api(place)
    if api is None:
        raise _nobody(place)
    if agent is not None and agent != api.info.agent:
        api.close()
        raise Invalid(
            "the daemon that runs has another agent",
            expected=f"--agent {api.info.agent}, or none named",
            got=f"--agent {agent}",
            remedy="leave --agent out; or use another --state-dir, where no daemon runs",
        )
    return api


def _nobody(place: Place) -> NoDaemon:
    return no_daemon(place, "nobody listens there" if is_socket(place) else "no such socket")


def is_socket(place: Place) -> bool:
    """True if there is a socket at a place, whether or not anybody listens."""
    try:
        return stat.S_ISSOCK(place.socket.stat().st_mode)
    except OSError:
        return False


def no_daemon(place: Place, got: str) -> NoDaemon:
    """Return the refusal of a command that needs a daemon where there is none."""
    start = "countermand serve" if place.named else f"countermand --state-dir {quote_shell(place.state_dir)} serve"
    return NoDaemon(
        "no daemon answers",
        expected=f"one on {place.socket}",
        got=got,
        remedy=f"start one ({start}; or systemctl start countermand), name its --socket, or ask: countermand doctor",
    )


def gone(place: Place, error: Exception) -> NoDaemon:
    """Return the refusal for a daemon that went away, or fell silent, while it was asked."""
    return NoDaemon(
        "the daemon gave no answer; what was asked for may have been done",
        expected=f"an answer on {place.socket}",
        got=f"{type(error).__name__}: {error}".rstrip(": "),
        remedy="countermand doctor names its process; countermand logs has its log; sent again under the same --id a "
        "request has one effect",
    )


def refused(content: bytes, status: int) -> CountermandError:
    """Return the error that an answer tells of."""
    try:
        error = msgspec.json.decode(content, type=_OpenRefused).error
    except msgspec.MsgspecError:
        return CountermandError(f"the daemon answered {status}", got=content[:200].decode(errors="replace"))
    return error_from_json(error)


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises Invalid where there is none."""
    if not name:
        raise Invalid("a name is empty", expected="1 to 128 printable characters", got="''", remedy="name a session")
    return quote(name, safe="")


def quote_shell(value: object) -> str:
    """Return a value as a shell takes it for one word."""
    import shlex

    return shlex.quote(str(value))
