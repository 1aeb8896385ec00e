"""The load of the tests that kill: a client that sends whatever its seed says."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from actors import CountermandError, NewMessage, Resume, Stop, Withdraw
from actors.model import Policy, Waiting
from actors.requests import Accepted, OutsideRequest, Reply, Stopped
from tests.crash_kit import OWN, SESSIONS, Scripts, pack

ASK_S: Final = 30.0


class Asked(Protocol):
    """A session that requests are sent to: a handle of a supervisor in this process, or of a daemon."""

    session: str

    def ask(self, request: Any, *, timeout: float) -> Any:
        """Send a request; returns its answer, or raises CountermandError."""

    def receipt(self, receipt_id: str, *, timeout: float) -> object:
        """Wait for a receipt."""


class Client:
    """One client of one session: it sends again what was sent before, then whatever its seed says.

    Args:
        session: the session.
        scripts: what its messages run.
        seed: of what it sends.
        tell: is told of each request before it is sent, and of its answer.
        answered: called with each answer before `tell` is.
        place: tells clients of one session apart.
        agent: who is to answer its messages, if not the session's own; one in a host also starts processes by itself.
    """

    def __init__(
        self,
        session: Asked,
        scripts: Scripts,
        seed: str,
        tell: Callable[..., object],
        *,
        answered: Callable[[Reply], object] = lambda _: None,
        place: int = 0,
        agent: str | None = None,
    ) -> None:
        self._session = session
        self._tell = tell
        self._answered = answered
        self._agent = agent
        self._scripts = scripts
        self._random = random.Random(f"{seed} {session.session} {place}")
        name = f"{seed}.{session.session}.{place}".replace(" ", "_")
        self._words = (f"{name}.{number}" for number in itertools.count())
        self._runs: list[str] = []
        self._messages: list[str] = []

    def ask(self, request: OutsideRequest) -> Reply | None:
        """Send a request, telling it before and its answer after; None where it was refused."""
        if isinstance(request, NewMessage) and self._agent is not None:
            request = msgspec.structs.replace(request, agent=self._agent)
        self._tell(told="sent", session=self._session.session, request=pack(request))
        try:
            answer: Reply = self._session.ask(request, timeout=ASK_S)
        except CountermandError as refusal:
            self._tell(told="refused", id=request.id, code=refusal.code)
            return None
        self._answered(answer)
        self._tell(told="answer", id=request.id, answer=pack(answer))
        if isinstance(answer, Accepted):
            self._messages.append(answer.message_id)
            if answer.run_id is not None:
                self._runs.append(answer.run_id)
        return answer

    def again(self, requests: list[OutsideRequest]) -> None:
        """Send requests of an earlier life again; what parked messages is looked at before anything changes it."""
        for request in requests:
            self.ask(request)

    def load(self, until: Callable[[], bool] = lambda: False) -> None:
        """Send requests until it is told to end. The first session begins with one of each kind."""
        for kind in self._overture():
            self._act(kind)
        while not until():
            kinds = ("message",) * 8 + ("stop",) * 3 + ("park", "resume", "withdraw", "aimed")
            self._act(self._random.choice(kinds))
            time.sleep(self._random.choice((0.0, 0.0, 0.005, 0.02, 0.06)))

    def leave(self) -> None:
        """Stop what runs and what waits, until nothing does; a refusal leaves it to its grace."""
        word = next(self._words)
        self.ask(Stop(source="user.test", reason=f"stop {word}", waiting=Waiting.WITHDRAW))

    def _overture(self) -> list[str]:
        every = ["tree", "waiting", "settled", "quick", "park", "resume", "settled", "text", "stop", "message"]
        return every if self._session.session == SESSIONS[0] else []

    def _act(self, kind: str) -> None:
        word = next(self._words)
        match kind:
            case "tree":
                self.ask(NewMessage(content=f"sh:{self._scripts.tree(word)}", policy=Policy.INTERRUPT))
                deadline = time.monotonic() + ASK_S
                while not self._scripts.runs_of(word) and time.monotonic() < deadline:
                    time.sleep(0.005)
            case "waiting":
                self.ask(NewMessage(content="text:3", policy=Policy.ENQUEUE))
            case "quick":
                self.ask(NewMessage(content=f"sh:{self._scripts.background(word)}", policy=Policy.INTERRUPT))
                self.ask(NewMessage(content="text:2", policy=Policy.ENQUEUE))
            case "text":
                self.ask(NewMessage(content="text:30", policy=Policy.INTERRUPT))
            case "settled":
                answer = self.ask(Stop(source="user.test", reason=f"stop {word}", waiting=Waiting.KEEP))
                assert isinstance(answer, Stopped)
                self._session.receipt(answer.receipt_id, timeout=ASK_S)
            case "message":
                self.ask(self._message(word))
            case "stop":
                waiting = self._random.choice(list(Waiting))
                self.ask(Stop(source="user.test", reason=f"stop {word}", waiting=waiting))
            case "aimed":
                if self._runs:
                    run_id = self._random.choice(self._runs[-4:])
                    self.ask(Stop(source="client.test", reason=f"stop {word}", run_id=run_id))
            case "park":
                self.ask(Stop(source="user.test", reason=f"stop {word}", waiting=Waiting.PARK))
            case "resume":
                self.ask(Resume())
            case "withdraw":
                if self._messages:
                    self.ask(Withdraw(message_id=self._random.choice(self._messages[-4:])))
            case _:
                raise ValueError(f"the load has no {kind!r}")

    def _message(self, word: str) -> NewMessage:
        scripts, chance = self._scripts, self._random.random()
        if chance < 0.3:
            content = f"sh:{scripts.tree(word)}"
        elif chance < 0.45:
            content = f"two:{scripts.background(word)}"
        elif chance < 0.6:
            content = f"steer:{scripts.quick(word)}"
        elif chance < 0.7 and self._agent == "hosted":
            # Its script is no call: a run that has nothing on record is tried again, and runs it again.
            content = f"own:{scripts.tree(f'{OWN}{word}')}"
        elif chance < 0.75:
            content = f"text:{self._random.randrange(1, 40)}#{word}"
        else:
            content = f"sh:{scripts.quick(word)}"
        weights = {Policy.INTERRUPT: 6, Policy.ENQUEUE: 3, Policy.STEER: 3, Policy.REJECT: 1, Policy.ROLLBACK: 1}
        (policy,) = self._random.choices(list(weights), list(weights.values()))
        origin = self._random.choice(("user", "user", "job.test"))
        return NewMessage(content=content, policy=policy, origin=origin, merge=self._random.random() < 0.7)
