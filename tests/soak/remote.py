"""A session of the daemon, for a client that wants its answers whatever happens to the daemon."""

from __future__ import annotations

import time
from typing import Any, Final

from actors import NewMessage, Resume, Stop, Withdraw
from actors.requests import Accepted, OutsideRequest, Reply, Resumed, Stopped, Withdrawn
from supervisor.console.client.api import Api, NoDaemon, segment
from supervisor.console.client.endpoint import Endpoint
from supervisor.wire import MessageBody, ResumeBody, StopAnswer, StopBody, WithdrawBody

GIVE_UP_S: Final = 180.0
"""For a daemon that is down or paused, also on a busy machine."""
AGAIN_S: Final = 0.1


def connect(endpoint: Endpoint, until_s: float = GIVE_UP_S) -> Api:
    """Return a client of the daemon, as soon as there is one."""
    deadline = time.monotonic() + until_s
    while True:
        try:
            return Api(endpoint, on_wait=lambda _: None)
        except NoDaemon:
            if time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)


class RemoteSession:
    """A session over HTTP. A request whose answer did not come is sent again, with its id, until it is answered."""

    def __init__(self, endpoint: Endpoint, session: str) -> None:
        self.session = session
        self._endpoint = endpoint
        self._url = f"/v1/sessions/{segment(session)}"
        self._api: Api | None = None

    def ask(self, request: OutsideRequest, *, timeout: float) -> Reply:
        """Send a request; returns its answer. Raises CountermandError where it is refused."""
        del timeout  # It is the daemon's affair how long that takes: this one is killed and paused.
        answer: Reply = self._insist(lambda api: self._send(api, request))
        return answer

    def receipt(self, receipt_id: str, *, timeout: float) -> object:
        """Wait for a receipt."""
        return self._insist(lambda api: api.receipt(self.session, receipt_id, timeout))

    def close(self) -> None:
        """Close the connection."""
        if self._api is not None:
            self._api.close()

    def _send(self, api: Api, request: OutsideRequest) -> Reply:
        match request:
            case NewMessage():
                return api.post(f"{self._url}/messages", Accepted, MessageBody.of(request))
            case Stop():
                answer = api.post(f"{self._url}/stop", StopAnswer, StopBody.of(request))
                return Stopped(**{name: getattr(answer, name) for name in Stopped.__struct_fields__})
            case Resume():
                return api.post(f"{self._url}/resume", Resumed, ResumeBody(id=request.id, origin=request.origin))
            case Withdraw():
                body = WithdrawBody(id=request.id, message_id=request.message_id)
                return api.post(f"{self._url}/withdraw", Withdrawn, body)
            case _:
                raise TypeError(f"the load sends no {type(request).__name__}")

    def _insist(self, do: Any) -> Any:
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                if self._api is None:
                    self._api = connect(self._endpoint, deadline - time.monotonic())
                return do(self._api)
            except NoDaemon:
                self.close()
                self._api = None
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)
