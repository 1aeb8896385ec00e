"""The handle of a session: the interface to it. It stays valid when the session's actor is restarted."""

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
from actors.events import EventKind
from actors.kernel.future import ReplyFuture
from actors.kernel.waker import Waker
from actors.messages import Route
from actors.model import Message, Policy, Receipt, RunInfo, SessionStatus
from actors.ports import KeptStop
from actors.requests import (
    Accepted,
    Answer,
    Answered,
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
LOOK_AGAIN_S: Final = 1.0
"""How often it is looked whether a receipt that is waited for can still come: that takes several reads."""
CHATTER: Final = frozenset(
    {
        EventKind.TEXT,
        EventKind.TOOL_OUTPUT,
        EventKind.TOOL_STARTED,
        EventKind.TOOL_REQUESTED,
        EventKind.PROCESS_STARTED,
    }
)
"""Kinds of events with which no receipt is filed."""


class SessionHandle:
    """One session, by name. Every method may be called from any thread that is not an actor's.

    Args:
        session: its name.
        router: the supervisor's actor.
        store: for reads; it has what is durable.
        hub: for events.
        policies: for messages without a policy, by their origin; otherwise a person interrupts and others wait.
        state_dir: the directory with the ledgers of its process trees.
        kept: returns the Stops of a session that are in the stop journal.
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
    def ask(self, request: Answer, *, timeout: float | None = ASK_S) -> Answered: ...

    def ask(self, request: OutsideRequest, *, timeout: float | None = ASK_S) -> Reply:
        """Send a request and wait for its answer, which comes when its effect is durable.

        A Stop is answered within a bound; see `Stopped`.

        If the session's actor fails meanwhile, the same request goes to the next one; it has one effect.

        Args:
            request: one object has one effect; sending it again gets the same answer.
            timeout: seconds to wait; None waits for ever.

        Raises:
            CountermandError: it was refused; see its `remedy`.
            Invalid: it is not a request, or `timeout` is not a number of seconds.
            pykka.Timeout: no answer came in time; send the same object again to get it.
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
        """Send a request without waiting for its answer; its effect is in the events."""
        self._router.tell(Route(self.session, self._prepared(request)))

    def status(self, *, timeout: float | None = 30.0) -> SessionStatus:
        """Return what the session is doing now."""
        status: SessionStatus = self._answer(Inspect(), timeout)
        return status

    def receipt(self, identity: str | None, *, timeout: float | None = 0.0) -> Receipt:
        """Return the receipt of a run, waiting for it at most `timeout` seconds.

        Args:
            identity: the id of a run or of a receipt, or of the Stop whose receipt it is.
            timeout: 0 looks once; None waits until it is filed.

        Raises:
            ReceiptPending: it is not filed yet.
            NotFound: there is no such run or receipt in this session.
            Invalid: `identity` is not a text, or `timeout` is not a number of seconds.
        """
        check_timeout(timeout)
        receipt, looked = self._known_receipt(identity), time.monotonic()

        def look() -> Receipt | None:
            nonlocal looked
            found = self._filed_receipt(identity)
            # It does not come any more once its session is deleted, also where that has begun anew.
            if found is None and (self._is_deleted() or time.monotonic() > looked + LOOK_AGAIN_S):
                found, looked = self._known_receipt(identity), time.monotonic()
            return found

        if receipt is None:
            receipt = self._hub.wait(self.session, look, timeout)
        if receipt is None:
            raise _receipt_pending(identity)
        return receipt

    def _is_deleted(self) -> bool:
        row = self._store.session(self.session)
        return row is None or row.deleted

    def _known_receipt(self, identity: str | None) -> Receipt | None:
        """Return a receipt, or None if it will come. Raises NotFound if it will not."""
        if identity is None or identity == "":
            raise _no_receipt(self.session, identity)
        # Checked first: a receipt stops being pending at the moment in which it is filed.
        pending = any(kept.stop.id == identity for kept in self._kept(self.session))
        pending = pending or self._store.is_pending(self.session, identity)
        receipt = self._filed_receipt(identity)
        answered = self._store.answered_receipt(self.session, identity) if receipt is None else None
        if answered is not None:
            return self._known_receipt(answered)
        if receipt is None and not pending:
            run = self._store.run(self.session, identity)
            if run is None and all(info.receipt_id != identity for info in self._store.runs(self.session)):
                raise _no_receipt(self.session, identity)
        return receipt

    def _filed_receipt(self, identity: str | None) -> Receipt | None:
        assert identity is not None, "a receipt without an id is refused before"
        return self._store.receipt(self.session, identity)

    def subscribe(self, from_seq: int = 0, *, ephemeral: bool = False, timeout: float | None = None) -> Subscription:
        """Return the session's events after `from_seq`, stored ones first, then live; see `EventHub.subscribe`."""
        return self._hub.subscribe(self.session, from_seq, ephemeral=ephemeral, timeout=timeout)

    def check_position(self, seq: int) -> None:
        """Raise AheadOfLog if the session has no event with this seq; see `EventHub.check_position`."""
        self._hub.check_position(self.session, seq)

    def thread(self) -> list[Message]:
        """Return the messages of the session as the next model call would see them, and the retracted ones."""
        return self._store.thread(self.session)

    def attachment(self, name: str) -> bytes:
        """Return the bytes of an attachment by its name in a message of the thread. Raises NotFound."""
        return self._store.attachment(self.session, name)

    def runs(self) -> list[RunInfo]:
        """Return the runs of the session, the oldest first."""
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
        """Return the live processes of the session; see `Supervisor.processes`."""
        return live_processes(self._state_dir, self._store, self.session)

    @property
    def ref(self) -> ActorRef[Any] | None:
        """The session's actor, for inspection; None while it has none."""
        actor = self._router._actor_weakref()
        return actor.children.get(self.session) if actor is not None else None

    @property
    def aio(self) -> AsyncSessionHandle:
        """The same interface with awaitable methods."""
        return AsyncSessionHandle(self)

    def _prepared(self, request: OutsideRequest) -> OutsideRequest:
        """Check that it is a request, and give a message without a policy the policy of its origin."""
        if type(request) not in get_args(OutsideRequest):
            # Actors trust internal messages, because only actors can send them.
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
    """A `SessionHandle` for async code: methods that wait are awaited, and do not block the loop."""

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
    async def ask(self, request: Answer, *, timeout: float | None = ASK_S) -> Answered: ...

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
        """Return what the session is doing now."""
        status: SessionStatus = await self._answer(Inspect(), timeout)
        return status

    async def attachment(self, name: str) -> bytes:
        """Return the bytes of an attachment; see `SessionHandle.attachment`."""
        return await asyncio.to_thread(self._handle.attachment, name)

    async def receipt(self, identity: str | None, *, timeout: float | None = 0.0) -> Receipt:
        """Return a receipt; see `SessionHandle.receipt`. The wait holds no thread, and can be cancelled."""
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
        # From the end of the present log. The receipt is looked up again below, so one filed in between is found.
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
        """Return the messages of the session."""
        return await asyncio.to_thread(self._handle.thread)

    async def runs(self) -> list[RunInfo]:
        """Return the runs of the session, the oldest first."""
        return await asyncio.to_thread(self._handle.runs)

    async def run(self, run_id: str) -> RunInfo:
        """Return one run."""
        return await asyncio.to_thread(self._handle.run, run_id)

    async def processes(self) -> list[LiveProcess]:
        """Return the live processes of the session."""
        return await asyncio.to_thread(self._handle.processes)

    @property
    def ref(self) -> ActorRef[Any] | None:
        """The session's actor, for inspection; None while it has none."""
        return self._handle.ref


async def _awaited(future: ReplyFuture[Any]) -> Any:
    waker = Waker()
    future.add_done_callback(lambda _: waker.wake())
    await waker.woken
    return future.get(timeout=0)


async def _news(events: Subscription) -> None:
    """Return after an event with which a receipt may be filed, or when the subscription is over."""
    async for event in events:
        if event.kind not in CHATTER:
            return


def _checked_policies(policies: Mapping[str, Policy | str] | None) -> dict[str, Policy]:
    try:
        checked = {str(origin): Policy(policy) for origin, policy in (policies or {}).items()}
    except Exception as error:  # an enum calls the `__repr__` of a foreign value, which may raise anything
        raise Invalid(
            "invalid policies of a session",
            expected=f"a mapping of origins to {' | '.join(Policy)}",
            got=shown(policies),
            remedy="give, for example, policies={'user': 'enqueue'}, or leave it out",
        ) from error
    return checked


def _receipt_pending(identity: str | None) -> ReceiptPending:
    return ReceiptPending(
        f"the receipt of {identity} is not filed yet",
        expected="a run whose parts have all ended, or whose kill deadline has passed",
        got="a run that still runs or ends",
        remedy="wait for it: receipt(…, timeout=seconds), or for the event run.ended",
    )


def _no_receipt(session: str, identity: str | None) -> NotFound:
    return NotFound(
        f"there is no run or receipt {identity} in session {session}",
        expected="the id of a run or of a receipt of this session",
        got=repr(identity),
        remedy="list the runs: runs()",
    )
