"""The handle of a session: the way in. It stays valid however often the session's actor is started anew."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args, overload

import msgspec
from pykka import ActorDeadError, ActorRef, Timeout
from pykka._envelope import Envelope

from actors.errors import Invalid, NotFound, ReceiptPending
from actors.kernel.future import ReplyFuture
from actors.kernel.waker import Waker
from actors.messages import Route
from actors.model import Message, Policy, Receipt, RunInfo, SessionStatus
from actors.ports import KeptStop
from actors.requests import (
    Accepted,
    Answer,
    Delete,
    Deleted,
    Inspect,
    NewMessage,
    OutsideRequest,
    Reply,
    Resume,
    Resumed,
    Stop,
    Stopped,
    Withdraw,
    Withdrawn,
)
from actors.text import shown, storable
from supervisor.live_processes import LiveProcess, live_processes
from supervisor.publisher import EventHub, Subscription, check_timeout
from supervisor.router import SupervisorActor
from supervisor.store.reader import SqliteReader

TRIES_MAX: Final = 8
TRY_AGAIN_S: Final = 0.02
ASK_S: Final = 30.0
CHATTER: Final = frozenset({"text", "tool.output", "tool.started", "tool.requested", "process.started"})
"""Events with which no receipt comes."""


class SessionHandle:
    """One session, by name. Every method may be called from any thread that is not an actor's.

    Args:
        session: its name.
        router: the supervisor's actor.
        store: where what is durable is read.
        hub: where events come from.
        policies: for messages that name no policy, by their origin; else a person interrupts, others wait.
        state_dir: where the ledgers of its process trees are.
        kept: gives the Stops of a session that are in the stop journal.
    """

    def __init__(
        self,
        session: str,
        router: ActorRef[SupervisorActor],
        store: SqliteReader,
        hub: EventHub,
        policies: Mapping[str, Policy | str] | None = None,
        state_dir: Path = Path(),
        kept: Callable[[str], Iterable[KeptStop]] = lambda _session: (),
    ) -> None:
        self.session = storable(session)
        self._router = router
        self._store = store
        self._hub = hub
        self._policies = _checked_policies(policies)
        self._state_dir = state_dir
        self._kept = kept

    @overload
    def ask(self, request: NewMessage, *, timeout: float | None = ASK_S) -> Accepted: ...
    @overload
    def ask(self, request: Stop, *, timeout: float | None = ASK_S) -> Stopped: ...
    @overload
    def ask(self, request: Resume, *, timeout: float | None = ASK_S) -> Resumed: ...
    @overload
    def ask(self, request: Withdraw, *, timeout: float | None = ASK_S) -> Withdrawn: ...
    @overload
    def ask(self, request: Delete, *, timeout: float | None = ASK_S) -> Deleted: ...
    @overload
    def ask(self, request: Answer, *, timeout: float | None = ASK_S) -> Reply: ...

    def ask(self, request: OutsideRequest, *, timeout: float | None = ASK_S) -> Reply:
        """Send a request and wait for its answer, which is given when it is durable.

        Where the session's actor fails meanwhile, the same request goes to the next one: it has one effect.

        Args:
            request: one object for one effect; sent again it brings the same answer.
            timeout: seconds to wait; None: until there is an answer.

        Raises:
            CountermandError: it was refused; see its `remedy`. Invalid: it is no request, or `timeout` no time.
            pykka.Timeout: no answer came in time; send the same object again to learn it.
            pykka.ActorDeadError: the supervisor has ended.
        """
        answer: Reply = self._answer(self._prepared(request), timeout)
        return answer

    def _answer(self, message: OutsideRequest | Inspect, timeout: float | None) -> Any:
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        for last in (*[False] * (TRIES_MAX - 1), True):
            future = self._send(message)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return future.get(timeout=left)
            except ActorDeadError:
                if last or not self._router.is_alive():
                    raise
                time.sleep(TRY_AGAIN_S)
        raise AssertionError("the last try returns or raises")

    def tell(self, request: OutsideRequest) -> None:
        """Send a request without waiting for its answer; the events tell what came of it."""
        self._router.tell(Route(self.session, self._prepared(request)))

    def status(self, *, timeout: float | None = 30.0) -> SessionStatus:
        """What the session is doing now."""
        status: SessionStatus = self._answer(Inspect(), timeout)
        return status

    def receipt(self, identity: str | None, *, timeout: float | None = 0.0) -> Receipt:
        """Return the receipt of a run, waiting for it at most `timeout` seconds.

        Args:
            identity: a run's or a receipt's id, or that of a Stop whose receipt it is.
            timeout: 0 looks once; None waits until it is filed.

        Raises:
            ReceiptPending: it is not filed yet.
            NotFound: there is no such run or receipt in this session.
            Invalid: `identity` is no text, or `timeout` no time.
        """
        check_timeout(timeout)
        receipt = self._known_receipt(identity)
        if receipt is None:
            receipt = self._hub.wait(self.session, lambda: self._filed_receipt(identity), timeout)
        if receipt is None:
            raise _receipt_pending(identity)
        return receipt

    def _known_receipt(self, identity: str | None) -> Receipt | None:
        """Return a receipt, None while it is to come. Raises NotFound where none will."""
        if identity is None or identity == "":
            raise _no_receipt(self.session, identity)
        # Asked first: it stops being pending in the moment in which it is filed.
        pending = any(kept.stop.id == identity for kept in self._kept(self.session))
        pending = pending or self._store.is_pending(self.session, identity)
        receipt = self._filed_receipt(identity)
        told = self._store.told_receipt(self.session, identity) if receipt is None else None
        if told is not None:
            return self._known_receipt(told)
        if receipt is None and not pending:
            run = self._store.run(self.session, identity)
            if run is None and all(info.receipt_id != identity for info in self._store.runs(self.session)):
                raise _no_receipt(self.session, identity)
        return receipt

    def _filed_receipt(self, identity: str | None) -> Receipt | None:
        assert identity is not None, "one without an id is not to come"
        return self._store.receipt(self.session, identity)

    def subscribe(self, from_seq: int = 0, *, ephemeral: bool = False, timeout: float | None = None) -> Subscription:
        """Return the session's events behind `from_seq`: what is stored first, then live; see `EventHub.subscribe`."""
        return self._hub.subscribe(self.session, from_seq, ephemeral=ephemeral, timeout=timeout)

    def check_position(self, seq: int) -> None:
        """Raise AheadOfLog if the session has no event of this seq; see `EventHub.check_position`."""
        self._hub.check_position(self.session, seq)

    def thread(self) -> list[Message]:
        """The messages of the session, as the next model call would see them, and those retracted."""
        return self._store.thread(self.session)

    def attachment(self, name: str) -> bytes:
        """Return the bytes of an attachment, whose name a message in the thread has. Raises NotFound."""
        return self._store.attachment(self.session, name)

    def runs(self) -> list[RunInfo]:
        """The runs of the session, the oldest first."""
        return self._store.runs(self.session)

    def run(self, run_id: str) -> RunInfo:
        """Return one run.

        Raises:
            NotFound: there is no such run in this session.
        """
        info = self._store.run(self.session, run_id)
        if info is None:
            raise NotFound(
                f"there is no run {run_id} in session {self.session}",
                expected="the id of a run of this session",
                got=run_id,
                remedy="list them: runs()",
            )
        return info

    def processes(self) -> list[LiveProcess]:
        """The processes of the session that run now; see `Supervisor.processes`."""
        return live_processes(self._state_dir, self._store, self.session)

    @property
    def ref(self) -> ActorRef[Any] | None:
        """The live actor of the session, for inspection; None while there is none."""
        actor = self._router._actor_weakref()
        return actor.children.get(self.session) if actor is not None else None

    @property
    def aio(self) -> AsyncSessionHandle:
        """The same, awaitable."""
        return AsyncSessionHandle(self)

    def _prepared(self, request: OutsideRequest) -> OutsideRequest:
        """Check that it is a request, and give a message without a policy that of its origin."""
        if type(request) not in get_args(OutsideRequest):
            # The messages of the protocol's inside are true because only its actors can send them.
            raise Invalid(
                "this cannot be sent to a session",
                expected=" | ".join(kind.__name__ for kind in get_args(OutsideRequest)),
                got=shown(request),
                remedy="send a message with NewMessage(content=…), end a run with Stop(source=…, reason=…)",
            )
        if isinstance(request, NewMessage) and request.policy is None and request.origin in self._policies:
            return msgspec.structs.replace(request, policy=self._policies[request.origin])
        return request

    def _send(self, message: OutsideRequest | Inspect) -> ReplyFuture[Any]:
        future: ReplyFuture[Any] = ReplyFuture()
        if not self._router.is_alive():
            future.try_set_exception(ActorDeadError("the supervisor has ended"))
        else:
            self._router.actor_inbox.put(Envelope(Route(self.session, message), future))
        return future


class AsyncSessionHandle:
    """A `SessionHandle` for async code: what waits is awaited, and blocks no loop."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    @overload
    async def ask(self, request: NewMessage, *, timeout: float | None = ASK_S) -> Accepted: ...
    @overload
    async def ask(self, request: Stop, *, timeout: float | None = ASK_S) -> Stopped: ...
    @overload
    async def ask(self, request: Resume, *, timeout: float | None = ASK_S) -> Resumed: ...
    @overload
    async def ask(self, request: Withdraw, *, timeout: float | None = ASK_S) -> Withdrawn: ...
    @overload
    async def ask(self, request: Delete, *, timeout: float | None = ASK_S) -> Deleted: ...
    @overload
    async def ask(self, request: Answer, *, timeout: float | None = ASK_S) -> Reply: ...

    async def ask(self, request: OutsideRequest, *, timeout: float | None = ASK_S) -> Reply:
        """Send a request and wait for its answer; see `SessionHandle.ask`."""
        answer: Reply = await self._answer(self._handle._prepared(request), timeout)
        return answer

    async def _answer(self, message: OutsideRequest | Inspect, timeout: float | None) -> Any:
        handle = self._handle
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                for last in (*[False] * (TRIES_MAX - 1), True):
                    try:
                        return await _awaited(handle._send(message))
                    except ActorDeadError:
                        if last or not handle._router.is_alive():
                            raise
                        await asyncio.sleep(TRY_AGAIN_S)
        except TimeoutError:
            raise Timeout(f"no answer within {timeout} seconds") from None
        raise AssertionError("the last try returns or raises")

    def tell(self, request: OutsideRequest) -> None:
        """Send a request without waiting for its answer."""
        self._handle.tell(request)

    async def status(self, *, timeout: float | None = 30.0) -> SessionStatus:
        """What the session is doing now."""
        status: SessionStatus = await self._answer(Inspect(), timeout)
        return status

    async def attachment(self, name: str) -> bytes:
        """Return the bytes of an attachment; see `SessionHandle.attachment`."""
        return await asyncio.to_thread(self._handle.attachment, name)

    async def receipt(self, identity: str | None, *, timeout: float | None = 0.0) -> Receipt:
        """Return a receipt; see `SessionHandle.receipt`. The wait holds no thread, and ends when it is cancelled."""
        check_timeout(timeout)
        receipt = await asyncio.to_thread(self._handle._known_receipt, identity)
        if receipt is None and (timeout is None or timeout > 0):
            receipt = await self._receipt_to_come(identity, timeout)
        if receipt is None:
            raise _receipt_pending(identity)
        return receipt

    async def _receipt_to_come(self, identity: str | None, timeout: float | None) -> Receipt | None:
        handle = self._handle
        deadline = None if timeout is None else time.monotonic() + timeout
        # From what the store holds now, so that an end between the first look and this one is seen.
        last_seq = await asyncio.to_thread(handle._store.last_seq, handle.session)
        with handle.subscribe(last_seq) as events:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                over = events.over or (left is not None and left <= 0)
                receipt = await asyncio.to_thread(handle._known_receipt, identity)
                if receipt is not None or over:
                    return receipt
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await _news(events)

    def subscribe(self, from_seq: int = 0, *, ephemeral: bool = False, timeout: float | None = None) -> Subscription:
        """Return the session's events; iterate with `async for`."""
        return self._handle.subscribe(from_seq, ephemeral=ephemeral, timeout=timeout)

    async def thread(self) -> list[Message]:
        """The messages of the session."""
        return await asyncio.to_thread(self._handle.thread)

    async def runs(self) -> list[RunInfo]:
        """The runs of the session, the oldest first."""
        return await asyncio.to_thread(self._handle.runs)

    async def run(self, run_id: str) -> RunInfo:
        """Return one run."""
        return await asyncio.to_thread(self._handle.run, run_id)

    async def processes(self) -> list[LiveProcess]:
        """The processes of the session that run now."""
        return await asyncio.to_thread(self._handle.processes)

    @property
    def ref(self) -> ActorRef[Any] | None:
        """The live actor of the session."""
        return self._handle.ref


async def _awaited(future: ReplyFuture[Any]) -> Any:
    waker = Waker()
    future.add_done_callback(lambda _: waker.wake())
    await waker.woken
    return future.get(timeout=0)


async def _news(events: Subscription) -> None:
    """Return after an event with which a receipt may come, or when there will be none."""
    async for event in events:
        if event.kind not in CHATTER:
            return


def _checked_policies(policies: Mapping[str, Policy | str] | None) -> dict[str, Policy]:
    try:
        checked = {str(origin): Policy(policy) for origin, policy in (policies or {}).items()}
    except Exception as error:  # an enum asks what is not its own to show itself, which may raise anything
        raise Invalid(
            "the policies of a session have a value that cannot be right",
            expected=f"a mapping of origins to {' | '.join(Policy)}",
            got=shown(policies),
            remedy="give it such as policies={'user': 'enqueue'}, or leave it out",
        ) from error
    return checked


def _receipt_pending(identity: str | None) -> ReceiptPending:
    return ReceiptPending(
        f"the receipt of {identity} is not filed yet",
        expected="a run whose parts have all ended, or whose kill deadline has passed",
        got="a run that is still going on or ending",
        remedy="wait for it: receipt(…, timeout=seconds), or for the event run.ended",
    )


def _no_receipt(session: str, identity: str | None) -> NotFound:
    return NotFound(
        f"there is no run or receipt {identity} in session {session}",
        expected="the id of a run or of a receipt of this session",
        got=repr(identity),
        remedy="list the runs: runs()",
    )
