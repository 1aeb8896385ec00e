"""ApiService: the service behind the routes. Its methods are awaited on the server's loop and never block it.

Reads of the store run on the pool's threads. A request to a session is a message whose answer comes by a future. A wait
for a receipt follows the session's events, and holds no thread meanwhile. So a store that hangs blocks only the
readers. A Stop does not wait for it: a session in memory is found without a read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from pykka import ActorDeadError, Timeout

from actors.decoding import decoder
from actors.errors import CountermandError, Invalid, NotFound, ReceiptPending, StoreUnavailable
from actors.ids import new_request_id
from actors.kernel.waker import Waker
from actors.model import Receipt, RunInfo, Scope, SessionActivity
from actors.requests import Stop, Stopped
from supervisor.http.limits import Limits
from supervisor.http.refusals import Busy, failure
from supervisor.publisher import Subscription
from supervisor.session_handle import AsyncSessionHandle, SessionHandle
from supervisor.supervisor import Supervisor
from supervisor.wire import AllStopped, NotStopped, Refused, StopAllBody, StopAnswer

if TYPE_CHECKING:
    from actors.requests import OutsideRequest, Reply

T = TypeVar("T")

KNOWN_S: Final = 1.0
"""How long a Stop waits for a read of the store before it goes on without it."""
STOPS_AT_ONCE: Final = 64


class ApiService:
    """The state that the routes share: the supervisor, the limits, and the open streams and waits.

    Args:
        supervisor: the supervisor to ask.
        limits: the limits on clients.
    """

    def __init__(self, supervisor: Supervisor, limits: Limits) -> None:
        self.supervisor = supervisor
        self.limits = limits
        self.started_at = time.time()  # noqa: TID251  # for people: the API has no clock of its own
        self._since = time.monotonic()
        self.streams = 0
        self.on_stop: Callable[[float], object] = lambda _: None
        self._open: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._waits: set[Waker] = set()
        self._closed = False

    @property
    def uptime_s(self) -> float:
        """The seconds since the start, by the monotonic clock."""
        return time.monotonic() - self._since

    @property
    def waits(self) -> int:
        """The number of requests that wait for a receipt."""
        return len(self._waits)

    # ── Sessions ──────────────────────────────────────────────────────────────────────────────────

    def handle(self, segment: str) -> SessionHandle:
        """Return the handle of the session that a path segment names. Raises Invalid if the name is invalid."""
        return self.supervisor.session(decoded(segment))

    async def known(self, segment: str, *, deleted_too: bool = False) -> SessionHandle:
        """Return the handle of a session that exists. A request to one that does not exist would create it.

        Raises:
            NotFound: it was deleted (unless `deleted_too`), or the store has no such session and it has no actor.
            Invalid: the name is invalid.
            StoreUnavailable: the store cannot be read.
        """
        session = self.handle(segment)
        row = await self.read(self.supervisor.store.session, session.session)
        if (row is None and session.ref is None) or (row is not None and row.deleted and not deleted_too):
            raise _unknown(session.session)
        return session

    async def stoppable(self, segment: str) -> SessionHandle:
        """Do what `known` does, for a Stop, which does not wait for the store.

        A session counts as existing if it has an actor, or if the store does not answer.
        """
        session = self.handle(segment)
        if session.ref is not None:
            return session
        try:
            return await soon(self.known(segment))
        except NotFound:
            raise
        except CountermandError:
            return session

    async def ask(self, session: AsyncSessionHandle, request: OutsideRequest) -> Reply:
        """Send a request and return its answer."""
        answer: Reply = await session.ask(request, timeout=self.limits.ask_s)
        return answer

    async def stop(self, session: SessionHandle, request: Stop, wait_s: float, receive: Any = None) -> StopAnswer:
        """Stop, and wait at most `wait_s` seconds for the receipt; see `receipt`."""
        since = time.monotonic()
        stopped = await self.ask(session.aio, request)
        self.on_stop(time.monotonic() - since)
        assert isinstance(stopped, Stopped)
        receipt = None
        if wait_s > 0:
            # The fence is closed, even if the store fails or does not answer now: that is the answer.
            with contextlib.suppress(CountermandError, TimeoutError):
                async with asyncio.timeout(min(wait_s, self.limits.wait_max_s) + KNOWN_S):
                    receipt = await self.receipt(session, stopped.receipt_id, wait_s, receive)
        return StopAnswer.of(session.session, stopped, receipt)

    async def stop_all(self, body: StopAllBody, requested_by: str) -> AllStopped:
        """Stop every session in which something runs, ends or waits; with scope session also those that own a tree.

        Sessions that have answered a stop with the same id before repeat their answers.
        """
        gate = asyncio.Semaphore(STOPS_AT_ONCE)

        async def stop_one(name: str, *, again: bool = False) -> StopAnswer | NotStopped | None:
            async with gate:
                try:
                    session = self.supervisor.session(name)
                    if not again and not await self._has_work(session, body.scope):
                        return None
                    request = Stop(
                        source=body.source,
                        reason=body.reason,
                        scope=body.scope,
                        mode=body.mode,
                        waiting=body.waiting,
                        requested_by=requested_by,
                        id=body.id or new_request_id(),
                    )
                    return await self.stop(session, request, 0.0)
                except (CountermandError, Timeout, ActorDeadError) as error:
                    refused = decoder(Refused)(failure(error).body)
                    return NotStopped(name, refused.error)

        names = await self._busy_sessions()
        answers = dict(zip(names, await asyncio.gather(*(stop_one(name) for name in names)), strict=True))
        if body.id is not None:
            # If the store fails, what runs was stopped: a repeat then lacks the answers of sessions that rest.
            with contextlib.suppress(CountermandError):
                known = await soon(self.read(self.supervisor.store.answering, body.id))
                again = [name for name in known if answers.get(name) is None]
                repeated = await asyncio.gather(*(stop_one(name, again=True) for name in again))
                answers |= dict(zip(again, repeated, strict=True))
        return AllStopped(
            [one for one in answers.values() if isinstance(one, StopAnswer)],
            [one for one in answers.values() if isinstance(one, NotStopped)],
        )

    async def _has_work(self, session: SessionHandle, scope: Scope) -> bool:
        status = await session.aio.status(timeout=self.limits.ask_s)
        # Trees that the session owns outlive its runs; only a Stop with that scope ends them.
        owns = scope == Scope.SESSION and bool(status.owned)
        waits = status.waiting > 0 and not status.parked
        return status.state is not SessionActivity.IDLE or waits or owns

    async def _busy_sessions(self) -> list[str]:
        """Return the sessions in memory, and the stored ones that have something to finish."""
        names = dict.fromkeys(self.supervisor.resident())
        # If the store fails, the sessions in memory are enough: no other one runs anything.
        with contextlib.suppress(CountermandError):
            names.update(dict.fromkeys(await soon(self.read(self.supervisor.store.unfinished))))
        return list(names)

    # ── Runs and receipts ─────────────────────────────────────────────────────────────────────────

    async def run(self, segment: str) -> RunInfo:
        """Return a run of any session. Raises NotFound, Invalid, or StoreUnavailable."""
        run_id = decoded(segment)
        info = await self.read(self.supervisor.store.find_run, run_id)
        if info is None:
            raise NotFound(
                f"there is no run {run_id}",
                expected="the id of a run",
                got=f"{run_id!r:.80}",
                remedy="list the runs of a session: GET /v1/sessions/{session}/runs",
            )
        return info

    async def session_of(self, segment: str) -> SessionHandle:
        """Return the session of a run that is to be stopped. A Stop does not wait for the store: see `stoppable`.

        Raises:
            NotFound: the store has no such run.
            Invalid: the id is invalid.
            StoreUnavailable: the store cannot be read, and no session in memory has the run.
        """
        try:
            return self.supervisor.session((await soon(self.run(segment))).session)
        except NotFound:
            raise
        except CountermandError:
            session = await self._running(decoded(segment))
            if session is None:
                raise
            return session

    async def _running(self, run_id: str) -> SessionHandle | None:
        """Return the session in memory in which a run is active or ending, by asking the sessions."""
        gate = asyncio.Semaphore(STOPS_AT_ONCE)

        async def has_it(session: SessionHandle) -> SessionHandle | None:
            async with gate:
                try:
                    status = await session.aio.status(timeout=self.limits.ask_s)
                except (CountermandError, Timeout, ActorDeadError):
                    return None
            return session if run_id == status.run_id or run_id in status.ending else None

        asked = [asyncio.create_task(has_it(self.supervisor.session(name))) for name in self.supervisor.resident()]
        try:
            # In the order of the answers, so that a session that does not answer delays nothing.
            for coming in asyncio.as_completed(asked):
                found = await coming
                if found is not None:
                    return found
            return None
        finally:
            await cancelled(*asked)

    async def receipt(self, session: SessionHandle, identity: str, wait_s: float = 0.0, receive: Any = None) -> Receipt:
        """Return a receipt; wait for it at most `wait_s` seconds, without using a thread.

        Args:
            session: the session of the receipt.
            identity: its own id, or its run's.
            wait_s: how long to wait; at most `wait_max_s`.
            receive: the request's; if its client disconnects, only the wait ends.

        Raises:
            ReceiptPending: it is not filed yet, or too many requests wait already.
            NotFound: there is no receipt with that id, and there will be none.
            StoreUnavailable: the store cannot be read.
        """
        try:
            return await session.aio.receipt(identity)
        except ReceiptPending:
            if wait_s <= 0 or self.waits >= self.limits.waits_max:
                raise
        closing = Waker()
        self._waits.add(closing)
        if self._closed:
            closing.wake()
        coming = asyncio.create_task(session.aio.receipt(identity, timeout=min(wait_s, self.limits.wait_max_s)))
        leaving = asyncio.create_task(gone(receive))
        first: set[asyncio.Future[Any]] = {coming, leaving, closing.woken}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits.discard(closing)
            await cancelled(leaving)
            if not coming.done():
                await cancelled(coming)
        return coming.result() if not coming.cancelled() else await session.aio.receipt(identity)

    # ── Streams and reads ─────────────────────────────────────────────────────────────────────────

    def subscribe(self, session: SessionHandle, from_seq: int, *, ephemeral: bool = False) -> Subscription:
        """Subscribe to a session's events. It ends with the server, and pauses after `heartbeat_s` without an event."""
        subscription = session.subscribe(from_seq, ephemeral=ephemeral, timeout=self.limits.heartbeat_s)
        self._open.add(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def enter_stream(self) -> None:
        """Count a stream. Raises Busy at the limit."""
        if self.streams >= self.limits.streams_max:
            raise Busy(
                "too many clients read events",
                expected=f"at most {self.limits.streams_max} streams",
                got=f"{self.streams}",
                remedy="close streams that are not read, or read the log by pages",
            )
        self.streams += 1

    def leave_stream(self) -> None:
        """Stop counting a stream."""
        self.streams -= 1

    async def read(self, query: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking function, such as a read of the store, on a thread of the pool."""
        return await asyncio.to_thread(query, *arguments)

    def close(self) -> None:
        """End every stream, and every wait for a receipt. Any thread."""
        self._closed = True
        for subscription in list(self._open):
            subscription.close()
        for waker in list(self._waits):
            waker.wake()


async def soon(read: Coroutine[Any, Any, T]) -> T:
    """Return the result of a read of the store, or raise its error; StoreUnavailable after `KNOWN_S` seconds."""
    try:
        async with asyncio.timeout(KNOWN_S):
            return await read
    except TimeoutError:
        raise StoreUnavailable(
            "the store does not answer",
            expected=f"an answer within {KNOWN_S:g} s",
            got="none",
            remedy="check the disk of the state directory: GET /v1/doctor",
        ) from None


async def gone(receive: Any) -> None:
    """Return when the client of a request disconnects, after its body was read; never if `receive` is None."""
    if receive is None:
        await asyncio.get_running_loop().create_future()
    while (await receive())["type"] != "http.disconnect":
        continue


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for them. An exception of one of them is raised."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def decoded(segment: str) -> str:
    """Return a path segment decoded once. Raises Invalid if it is not UTF-8."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Invalid(
            "this path has a name that is not UTF-8",
            expected="a name, percent-encoded as UTF-8",
            got=f"{segment!r:.80}",
            remedy="encode the name as UTF-8 first",
        ) from None


def within(items: Iterable[T], count: int, size: int) -> list[T]:
    """Return up to `count` first items that fit into `size` bytes as JSON, but at least the first one."""
    kept: list[T] = []
    for item in items:
        if len(kept) >= count:
            break
        size -= len(msgspec.json.encode(item))
        if size < 0 and kept:
            break
        kept.append(item)
    return kept


def newest_within(items: Sequence[T], count: int, size: int) -> list[T]:
    """Return the last items that fit, in their order."""
    return within(reversed(items), count, size)[::-1]


def _unknown(session: str) -> NotFound:
    return NotFound(
        f"there is no session {session}",
        expected="a session that has had a message",
        got=f"{session!r:.80}",
        remedy="list them (GET /v1/sessions, countermand sessions); the first message creates a session",
    )
