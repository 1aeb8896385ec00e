"""The clients: each lives on a thread of its own until it is told to end, and tells what it was given."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from actors.errors import CountermandError
from actors.events import EPHEMERAL
from supervisor.console.client.api import Api, segment
from supervisor.console.client.follower import Follower
from tests.crash_kit import Told, fingerprint
from tests.load import Client
from tests.soak.remote import GIVE_UP_S, RemoteSession, connect
from tests.soak.stand import Stand

SESSION_S: Final = 20.0
"""How long a client stays with one session; then that one rests, and leaves the daemon's memory."""
SLOW_S: Final = 0.2


class Clients:
    """All clients of a soak.

    Args:
        stand: the daemon.
        told: takes what they are given.
        seed: of what they send.
        senders: how many send at once, half of them to agents in hosts.
    """

    def __init__(self, stand: Stand, told: Told, seed: str, senders: int) -> None:
        self._stand = stand
        self._told = told
        self._seed = seed
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.failures: list[BaseException] = []
        self.sessions: list[str] = []
        lives = [self._living(self._send, number) for number in range(senders)]
        self._threads = [*lives, self._living(self._read_slowly, 0)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what a client has failed with."""
        for failure in self.failures:
            raise failure

    def end(self) -> None:
        """Have them end, and wait for that."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def tell(self, **line: Any) -> None:
        """Take what a client was given. Any thread."""
        with self._lock:
            self._told.take(line)

    # ── Inside ──

    def _living(self, do: Callable[[int], None], number: int) -> threading.Thread:
        def live() -> None:
            try:
                do(number)
            except BaseException as failure:  # the main thread raises it
                self.failures.append(failure)

        return threading.Thread(target=live, name=f"soak {do.__name__} {number}", daemon=True)

    def _send(self, number: int) -> None:
        agent = "hosted" if number % 2 else "inside"
        for turn in itertools.count():
            name = f"{agent}-{number}-{turn}"
            self.sessions.append(name)
            session = RemoteSession(self._stand.endpoint, name)
            client = Client(session, self._stand.scripts, f"{self._seed}-{turn}", self.tell, agent=agent, place=number)
            over = time.monotonic() + SESSION_S
            following = _Following(self._stand, name, self.tell)
            try:
                client.load(lambda over=over: self._ending.is_set() or time.monotonic() > over)  # type: ignore[misc]
                if not self._ending.is_set():
                    # What is left to itself would need memory until the end, and the load is what should not grow.
                    client.leave()
            finally:
                following.end()
                session.close()
            if following.failure is not None:
                raise following.failure
            if self._ending.is_set():
                return

    def _read_slowly(self, _: int) -> None:
        """Open streams and read a little of each, as a browser tab that sleeps."""
        chance = random.Random(self._seed)
        while not self._ending.wait(SLOW_S):
            if not self.sessions:
                continue
            url = f"/v1/sessions/{segment(chance.choice(self.sessions[-8:]))}/events"
            with contextlib.suppress(CountermandError, httpx.HTTPError):
                api = connect(self._stand.endpoint)
                try:
                    with api.client.stream("GET", url, timeout=5.0) as answer:
                        for _line in itertools.islice(answer.iter_lines(), 40):
                            if self._ending.wait(SLOW_S):
                                break
                finally:
                    api.close()


class _Following:
    """Follows a session from its beginning, whatever happens to the daemon."""

    def __init__(self, stand: Stand, session: str, tell: Callable[..., object]) -> None:
        self._stand = stand
        self._session = session
        self._tell = tell
        self._ended = threading.Event()
        self._follower: Follower | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"soak follow {session}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End it, and wait for that."""
        self._ended.set()
        if self._follower is not None:
            self._follower.close()
        self._thread.join()

    def _run(self) -> None:
        api: Api | None = None
        try:
            api = connect(self._stand.endpoint)
            self._follower = Follower(api, self._session, give_up_s=GIVE_UP_S)
            if self._ended.is_set():
                return
            for event in self._follower:
                if event.kind not in EPHEMERAL:
                    self._tell(told="event", session=self._session, event=fingerprint(event))
        except BaseException as failure:  # whoever ends it raises it
            if not self._ended.is_set():
                self.failure = failure
        finally:
            if api is not None:
                api.close()
