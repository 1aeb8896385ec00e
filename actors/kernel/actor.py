"""The base class of all actors: Pykka's actor on a shared dispatcher. When it ends, every ask gets an answer.

Theory of operation. An actor has no thread of its own. A dispatcher gives its mailbox a turn, the mailbox calls
`run_turn`, and that handles a few messages. All code of an actor therefore runs in a turn, one turn at a time,
on any thread. To other code it is a Pykka actor: refs, `tell`, `ask`, proxies, the registry and the hooks are
Pykka's.

*The way out.* Every end goes through `_leave`: a stop, an exception in a handler or a hook, a BaseException, a
closed dispatcher. It takes these steps in this order, and logs and contains whatever a hook raises:

1. Close the mailbox, which answers all later senders. Then unregister the actor; `is_alive()` turns False.
2. Call `on_stop` or `on_failure`. The hook may still send messages to the children, or hand them over.
3. Tell the remaining children to stop, without waiting for them.
4. Pass the messages left in the mailbox to `hand_back`.
5. Fail the replies that a handler took and did not give, with ActorDeadError. So no ask hangs: it is in the
   mailbox (4), or taken (5), or it belongs to the message being handled (7).
6. Send `Down` to the parent. It is the actor's last message, behind everything that it sent before, because a
   lane keeps the order of one sender.
7. Answer those who asked it to stop, and the asker of a handler that failed. When a stop is answered, the steps
   above are done.

*Two kinds of messages.* Messages of the protocol are msgspec Structs. If a handler of one raises, its state may
be half changed, so the actor fails, even if it was asked; it is restarted from the log. A CountermandError is a
refusal, raised before anything was changed: the asker gets it and the actor lives. Two of these errors are
defects of the handler instead (`DEFECTS`). All other messages follow Pykka's rule: an exception goes to the
asker, and after a tell it ends the actor.

An actor never ends another one: Pykka answers a SystemExit in a handler by stopping all actors, here only that
actor fails (law L13).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from loguru import logger
from msgspec import Struct
from pykka import Actor as PykkaActor
from pykka import ActorDeadError, ActorRef, ActorRegistry, Future
from pykka._actor import ActorInbox
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.errors import BlockingAskError, CountermandError, InvalidTransition, ShuttingDown, described
from actors.kernel import registry
from actors.kernel.dispatcher import Dispatcher
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture, answer, refuse
from actors.kernel.log_context import about
from actors.kernel.mailbox import REQUESTS_MAX, Mailbox

registry.install()

A = TypeVar("A", bound="Actor")

# Not refusals: the handler itself is wrong, and may have changed anything.
DEFECTS: Final = (BlockingAskError, InvalidTransition)

URN: Final = "urn:actor:"
_numbers = itertools.count(1)
# Reentrant: a signal handler or a finalizer may wait on a thread that holds it.
_waiting = threading.RLock()


class _Here(threading.local):
    actor: Actor | None = None


_here = _Here()


def log_context() -> Mapping[str, object]:
    """Return the context for log lines: of the actor with a turn on this thread, else of the agent or tool here."""
    actor = _here.actor
    return about() if actor is None else actor.log_context()


class StopFlag:
    """Set when an actor is dead. It has what Pykka needs of a `threading.Event`, at a tenth of the size.

    Any thread may call any method. It cannot be cleared, since no actor comes back.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # None at first; the Event of the waiting threads, if there are any; then True.
        self._state: threading.Event | bool | None = None

    def is_set(self) -> bool:
        """Return True once it is set."""
        return self._state is True

    def set(self) -> None:
        """Set it, and wake the waiting threads."""
        with _waiting:
            state, self._state = self._state, True
        if isinstance(state, threading.Event):
            state.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set or `timeout` seconds have passed. Return True if it is set."""
        event = threading.Event()
        with _waiting:
            if self._state is True:
                return True
            if isinstance(self._state, threading.Event):
                event = self._state
            else:
                self._state = event
        return event.wait(timeout)


class Actor(PykkaActor):
    """An actor that shares threads with others, watches its children, and is watched by its parent.

    Args:
        dispatcher: runs this actor and its children.
        parent: the actor that receives Down when this one ends.
        key: the parent's name for this actor.
        requests_max: limit on the `bounded` messages that wait in its mailbox.

    The hooks are Pykka's (`on_start`, `on_receive`, `on_stop`, `on_failure`) and three more. All but
    `on_undelivered` run in a turn, one at a time. `stop()` overtakes the ordinary messages that wait; they go to
    `hand_back`.

    A ref keeps the actor in memory while it lives, and after its end only if `on_undelivered` is overridden.
    """

    failed_at: object = None
    """The message whose handling has failed, for `on_failure`; None: it was something else that failed."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        parent: ActorRef[Any] | None = None,
        key: str = "",
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        # Pykka's own __init__ is not called: its random urn and its Event cost more than the rest of the actor.
        self.actor_urn = f"{URN}{next(_numbers)}"
        own_hook = type(self).on_undelivered is not Actor.on_undelivered
        undelivered = self.on_undelivered if own_hook else _log_undelivered
        self._mailbox = Mailbox(self, dispatcher, requests_max, undelivered)
        self.actor_inbox = self._mailbox
        # Pykka uses only methods that the flag has.
        self.actor_stopped = cast("threading.Event", StopFlag())
        self._actor_ref = ActorRef(self)
        self.dispatcher = dispatcher
        self.parent = parent
        self.key = key
        self._children: dict[str, ActorRef[Any]] | None = None
        # A dict and not a set: the order of a set depends on addresses, and a seed has to replay.
        self._taken: dict[ReplyFuture[Any], None] | None = None
        self._reply: Future[Any] | None = None
        self._started = False

    # ── For subclasses ───────────────────────────────────────────────────────────────────────────

    @property
    def children(self) -> dict[str, ActorRef[Any]]:
        """The children whose Down has not been handled yet, by key. They are stopped when this actor ends."""
        if self._children is None:
            self._children = {}
        return self._children

    def start_child(self, cls: type[A], *args: Any, key: str, **kwargs: Any) -> ActorRef[A]:
        """Start an actor as a child of this one, on the same dispatcher. Only in a turn.

        However the child ends, even if its `on_start` raises, this actor receives Down on the ordinary lane, after
        everything else that the child sent. The child leaves `children` just before the handler of Down runs.

        Args:
            cls: its class.
            *args: for its constructor.
            key: this actor's name for the child, unique among the children.
            **kwargs: for its constructor; `dispatcher`, `parent` and `key` are added.

        Raises:
            ValueError: there is a child with this key.
            Exception: whatever the constructor raises. Then there is no actor, and no Down.
        """
        if key in self.children:
            raise ValueError(f"{self} has a child {key!r} already: wait for its Down, or use another key")
        ref = cls.start(*args, dispatcher=self.dispatcher, parent=self.actor_ref, key=key, **kwargs)
        self.children[key] = ref
        return ref

    def take_reply(self) -> ReplyFuture[Any] | None:
        """Take over the answer to the message being handled: the handler's return value is no longer the answer.

        Resolve it later by `try_set` or `try_set_exception`, from any thread. If this actor ends first, the reply
        fails with ActorDeadError. Returns None if the message was a tell, or if the reply was taken already.
        """
        reply = self._reply
        if reply is None:
            return None
        assert isinstance(reply, ReplyFuture), f"only a ReplyFuture can be taken, not {reply!r}"
        self._reply = None
        if self._taken is None:
            self._taken = {}
        taken = self._taken
        taken[reply] = None
        # The reply holds the dict, and not the actor.
        reply.add_done_callback(lambda one: taken.pop(one, None))
        return reply

    def tell_parent(self, message: object) -> None:
        """Tell the parent. If it is gone, the message is dropped: its successor asks the ports instead."""
        assert self.parent is not None, f"{self} was started without a parent"
        tell(self.parent, message)

    def on_turn_end(self) -> None:
        """Hook: run after the messages of a turn, if the actor still lives. Flush here what the turn gathered.

        It does not run after a turn that ended in a stop; `on_stop` does. An exception fails the actor.
        """

    def log_context(self) -> Mapping[str, object]:
        """Return what log lines of this actor's turn should name: session, run, generation. Only in a turn."""
        return {}

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """Hook: a told message was not accepted, because the mailbox was closed or full of bounded requests.

        Runs on the sender's thread (on a dispatcher's for the main thread), even during a turn or after the end. An
        exception is logged. A sender that comes after `is_alive()` has turned False gets ActorDeadError instead.
        """
        _log_undelivered(envelope)

    def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
        """Hook: handle the messages that were left when the mailbox was closed, urgent ones first; never empty.

        By default an ask fails with ActorDeadError and a told message goes to `on_undelivered`. An override may put
        them into another mailbox, which then owes the replies.
        """
        for envelope in envelopes:
            if envelope.reply_to is None:
                self.on_undelivered(envelope)
            else:
                refuse(envelope.reply_to, self._dead())

    # ── For the mailbox ──────────────────────────────────────────────────────────────────────────

    def run_turn(self, batch: int) -> None:
        """Handle up to `batch` messages; the start counts as one. Called by the mailbox."""
        inbox = self._mailbox
        # A turn may begin inside another one: see `PooledDispatcher.caller_runs`.
        outer, _here.actor = _here.actor, self
        try:
            if not self._started:
                self._started = True
                batch -= 1
                try:
                    self.on_start()
                except BaseException as error:  # noqa: BLE001  # a SystemExit ends this actor alone
                    # As in Pykka, on_failure is not called: there is nothing to clean up yet.
                    self._leave(error, hook=None)
                    return
            while batch > 0:
                envelope = inbox.take()
                if envelope is None:
                    break
                batch -= 1
                self._receive(envelope)
                if inbox.closed:
                    return
            self.on_turn_end()
        except BaseException as error:  # noqa: BLE001  # a SystemExit ends this actor alone
            self._fail(error)
        finally:
            _here.actor = outer

    def abandon(self) -> None:
        """End because the dispatcher was closed; `hand_back` is the only hook. Called by the mailbox."""
        self._leave(ShuttingDown("the dispatcher was closed"), hook=None)

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────

    def _receive(self, envelope: Envelope[Any]) -> None:
        message = envelope.message
        reply = envelope.reply_to
        self._reply = reply
        try:
            if isinstance(message, Struct):
                if type(message) is Down:
                    self._forget(message)
                response = self.on_receive(message)
            elif isinstance(message, _ActorStop):
                self._reply = None
                self._leave(None, hook=self.on_stop, last=reply)
                return
            else:
                response = self._handle_receive(message)
        except BaseException as error:  # noqa: BLE001  # a SystemExit ends this actor alone
            self._reply = None
            self._failed_handling(message, reply, error)
            return
        # None if the handler took it.
        pending, self._reply = self._reply, None
        if pending is not None:
            answer(pending, response)

    def _failed_handling(self, message: object, reply: Future[Any] | None, error: BaseException) -> None:
        protocol = isinstance(message, Struct)
        if protocol and isinstance(error, CountermandError) and not isinstance(error, DEFECTS):
            if reply is None:
                logger.debug("{} refused {}, which was not an ask: {}", self, type(message).__name__, error)
            else:
                refuse(reply, error)
        elif not protocol and reply is not None and isinstance(error, Exception):
            logger.opt(exception=error).info("{} answers an ask with an exception", self)
            refuse(reply, error)
        else:
            self.failed_at = message
            self._fail(error, last=reply)

    def _fail(self, error: BaseException, last: Future[Any] | None = None) -> None:
        def hook() -> None:
            self.on_failure(type(error), error, error.__traceback__)

        self._leave(error, hook=hook, last=last)

    def _leave(
        self, error: BaseException | None, *, hook: Callable[[], None] | None, last: Future[Any] | None = None
    ) -> None:
        """End the actor; see the head of this file. `last` is answered after everything else is done."""
        inbox = self._mailbox
        if inbox.closed:
            return
        if error is not None:
            # Closing the dispatcher means that nothing more is to be handled: that is no failure.
            level = "DEBUG" if isinstance(error, ShuttingDown) else "ERROR"
            logger.opt(exception=error).log(level, "{} failed", self)
        inbox.close()
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()

        # Down names the first cause; later errors are in the log.
        causes = [error]
        if hook is not None:
            causes.append(self._contained(hook))
        for child in list((self._children or {}).values()):
            tell(child, _ActorStop())
        left = inbox.drain()
        stops = [envelope.reply_to for envelope in left if isinstance(envelope.message, _ActorStop)]
        rest = [envelope for envelope in left if not isinstance(envelope.message, _ActorStop)]
        causes.append(self._hand_back(rest))
        self._abandon_taken(last)
        if self.parent is not None:
            failure = next((described(cause) for cause in causes if cause is not None), None)
            tell(self.parent, Down(self.actor_ref, self.key, failure))
        for reply in stops:
            if reply is not None:
                answer(reply, None)
        if last is not None:
            if error is None:
                answer(last, None)
            elif isinstance(error, Exception):
                refuse(last, error)
            else:
                # A SystemExit would end the asker too if its `get` raised it.
                dead = self._dead(f"failed by {described(error)}")
                dead.__cause__ = error
                refuse(last, dead)

    def _hand_back(self, envelopes: list[Envelope[Any]]) -> BaseException | None:
        if not envelopes:
            return None
        error = self._contained(lambda: self.hand_back(envelopes))
        if error is not None:
            for envelope in envelopes:
                if envelope.reply_to is not None:
                    refuse(envelope.reply_to, self._dead())
        return error

    def _abandon_taken(self, last: Future[Any] | None) -> None:
        taken = self._taken
        while taken:
            # Another thread may resolve one at any moment, which removes it.
            try:
                reply, _ = taken.popitem()
            except KeyError:
                break
            if reply is not last:
                reply.abandon(self._dead())

    def _contained(self, hook: Callable[[], None]) -> BaseException | None:
        try:
            hook()
        except BaseException as error:  # noqa: BLE001  # the steps after this one must be taken
            logger.opt(exception=error).error("a hook of {} raised while it ended", self)
            return error
        return None

    def _forget(self, down: Down) -> None:
        children = self._children
        if children is not None and children.get(down.key) is down.child:
            del children[down.key]

    def _dead(self, what: str = "stopped") -> ActorDeadError:
        return ActorDeadError(f"{self.actor_ref} {what} before it answered")

    # ── Pykka's private hooks (see tests/test_pykka_pin.py) ──────────────────────────────────────

    @staticmethod
    def _create_actor_inbox() -> ActorInbox:
        raise NotImplementedError("the mailbox is made by __init__, which knows the dispatcher")

    @staticmethod
    def _create_future() -> Future[Any]:
        return ReplyFuture()

    def _start_actor_loop(self) -> None:
        self._mailbox.start()

    def _stop(self) -> None:
        """Stop now, without handling what waits. Only in a turn."""
        self._leave(None, hook=self.on_stop)

    def _handle_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,  # noqa: ARG002  # Pykka's signature
    ) -> None:
        """End as failed. Only in a turn."""
        self._fail(exception_value or RuntimeError(f"{exception_type} with no value"))


def made_before(one: ActorRef[Any], other: ActorRef[Any]) -> bool:
    """Return True if an actor was made before another one, in this process. Only for refs of this kernel's actors."""
    return _number(one) < _number(other)


def _number(ref: ActorRef[Any]) -> int:
    number = ref.actor_urn.removeprefix(URN)
    return int(number) if number.isdigit() else 0


def tell(ref: ActorRef[Any], message: object) -> None:
    """Tell an actor. If it is gone, the message is dropped. Any thread."""
    try:
        ref.tell(message)
    except ActorDeadError:
        logger.trace("{} for {}, which is gone", type(message).__name__, ref)


def tell_contained(ref: ActorRef[Any], message: object) -> None:
    """Tell an actor, from a thread that serves all actors: an exception of the mailbox is logged and ends there."""
    try:
        ref.tell(message)
    except ActorDeadError:
        logger.trace("{} for {}, which is gone", type(message).__name__, ref)
    except Exception:  # noqa: BLE001  # the thread has to go on
        logger.opt(exception=True).error("{} could not be sent to {}", type(message).__name__, ref)


def _log_undelivered(envelope: Envelope[Any]) -> None:
    logger.trace("undelivered: {}", type(envelope.message).__name__)
