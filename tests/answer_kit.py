"""What tests of answers share: what an agent's turn tells, in the supervisor's process and in a host, read alike."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from actors import errors as inside_errors
from actors.decoding import convert
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, TextData
from actors.gate.credit import Credit
from actors.gate.pending import settle
from actors.gate.token import CancelToken
from actors.messages import AnswerLeft, CallRequested, Said, ToolResult
from actors.model import Address, Outcome, Provenance
from actors.plugin.turn import AsyncTurn, Turn
from actors.plugin.turn_core import TurnCore
from actors.thread import Thread
from supervisor.hosts import runtime
from supervisor.hosts.runtime.main_thread import MainThread
from supervisor.hosts.runtime.run import Run
from supervisor.hosts.runtime.wire import Wire

CREDIT_BYTES: Final = 1_000_000
STOPPED: Final = {"source": "user.test", "reason": "enough", "initiated_at": 1.0}
METHODS: Final[dict[type, str]] = {
    AnswerBegunData: "answer.begin",
    AnswerEndedData: "answer.end",
    AnswerLeft: "answer.leave",
    BlockData: "block",
    CallRequested: "call",
    TextData: "emit",
}
Told = tuple[str, dict[str, Any]]


class Inside:
    """What a run's actor is to a turn: it keeps what it is told."""

    errors: Any = inside_errors

    def __init__(self, events: int = 1000) -> None:
        self._told: list[Any] = []
        self._token = CancelToken(lambda callback: callback())
        self._credit = Credit(events, CREDIT_BYTES)
        self._core = TurnCore(
            self._told.append,
            Address("s", 1, "r"),
            self._token,
            self._credit,
            Thread(),
            (),
            lambda: f"call_{len(self._told)}",
            lambda name, arguments: "no such tool" if name == "none" else None,
            1000,
            wall=lambda: 1.0,
        )

    def turn(self) -> Any:
        """A plain agent's turn."""
        return Turn(self._core)

    def aio(self) -> Any:
        """An async agent's turn."""
        return AsyncTurn(self._core)

    def told(self) -> list[Told]:
        """What it was told: as methods of the protocol of hosts, with their parameters."""
        return [self._as_frame(one.data if isinstance(one, Said) else one) for one in self._told]

    @staticmethod
    def _as_frame(one: Any) -> Told:
        names = ("tool", "arguments", "provider_id", "answer")
        of_call = {name: getattr(one, name) for name in names} if isinstance(one, CallRequested) else {}
        left = {"answer": one.answer, "usage": one.usage} if isinstance(one, AnswerLeft) else {}
        return METHODS[type(one)], of_call or left or msgspec.to_builtins(one)

    def settle(self) -> None:
        """Give each call its result, as its session does when the answer has ended."""
        for request in self._told:
            if isinstance(request, CallRequested) and request.reply is not None:
                settle(request.reply, ToolResult(Outcome.FINISHED, f"of {request.tool}"))

    def give(self, events: int) -> None:
        """Give credit back."""
        for _ in range(events):
            self._credit.give(10)

    def waits_for_credit(self) -> bool:
        """True while something waits for credit."""
        return bool(self._credit._waiters)

    def cancel(self) -> None:
        """End the run."""
        self._token.cancel(convert(STOPPED, Provenance))

    def open_answers(self) -> int:
        """How many answers count as open."""
        return self._core._answers_open


class InHost:
    """What a daemon is to the Python runtime in a host: it keeps the frames. No process is started."""

    errors: Any = runtime

    def __init__(self, events: int = 1000) -> None:
        self._sock, theirs = socket.socketpair()
        for end in (self._sock, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_194_304)
        self._wire = Wire(theirs)
        self._unread, self._frames = b"", list[dict[str, Any]]()
        host: Any = SimpleNamespace(
            wire=self._wire, tools={}, main=MainThread(), loop=None, executing={}, tell=lambda run: None
        )
        params = {
            "fence": "s:1:",
            "session": "s",
            "generation": 1,
            "run": "r",
            "thread": [],
            "inputs": [],
            "tools": [],
            "credit": {"events": events, "bytes": CREDIT_BYTES},
        }
        self._run = Run(host, 1, params)

    def turn(self) -> Any:
        """A plain agent's turn."""
        return runtime.Turn(self._run)

    def aio(self) -> Any:
        """An async agent's turn."""
        return runtime.AsyncTurn(self._run)

    def frames(self) -> list[dict[str, Any]]:
        """The frames that were written."""
        self._sock.setblocking(False)
        while True:
            try:
                self._unread += self._sock.recv(1_048_576)
            except BlockingIOError:
                break
        *lines, self._unread = self._unread.split(b"\n")
        self._frames += [json.loads(line) for line in lines]
        return self._frames

    def told(self) -> list[Told]:
        """The methods of the frames, with their parameters."""
        return [(frame["method"], frame["params"]) for frame in self.frames()]

    def settle(self) -> None:
        """Answer each call, as the daemon does when the answer has ended."""
        for frame in self.frames():
            if frame["method"] == "call" and frame["id"] in self._wire._pending:
                tool = frame["params"]["tool"]
                result = {"call": f"call_{frame['id']}", "outcome": "finished", "content": f"of {tool}"}
                self._wire._take(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": result}).encode())

    def give(self, events: int) -> None:
        """Give credit back."""
        self._run.credit.give(events, 0)

    def waits_for_credit(self) -> bool:
        """True while something waits for credit."""
        return bool(self._run.credit._waiters)

    def cancel(self) -> None:
        """End the run."""
        self._run.token._cancel(runtime.Provenance(**STOPPED))  # type: ignore[arg-type]  # they are its fields

    def open_answers(self) -> int:
        """How many answers count as open."""
        return self._run._answers_open

    def __del__(self) -> None:
        self._sock.close()
        self._wire._sock.close()
