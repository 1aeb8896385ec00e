"""The base of all actors: Pykka's actor on a shared dispatcher, with a way out that answers everybody.

Theory of operation. An actor has no thread. A dispatcher gives its mailbox a turn, the mailbox calls
`run_turn`, and that handles a few messages; so all that is below runs in a turn, one at a time, on whatever
thread it is. To everybody else it is a Pykka actor: refs, `tell`, `ask`, proxies, the registry and the hooks
are Pykka's.

*Ways out.* There is one, `_leave`, whatever ended the actor: a stop, an exception in a handler or in a hook,
a BaseException, a dispatcher that was closed. It goes through these steps, in this order, and each contains
what its hook raises:

1. The mailbox is closed: from here on senders are answered by it. Then the registry forgets the actor and
   `is_alive()` turns False.
2. `on_stop`, or `on_failure`. It may still tell the children something and it may hand them over.
3. The children that are left are told to stop, without waiting for them.
4. What is left in the mailbox goes to `hand_back`.
5. Replies that a handler took and did not give are failed with ActorDeadError. So no ask hangs: it is in the
   mailbox (4), or taken (5), or it is that of the message being handled (7).
6. The parent is told `Down`. It is the last message of this actor, after everything that it sent before,
   because a lane keeps the order of one sender.
7. Those who asked it to stop, and the asker of a handler that failed, get their answer. Whoever waits for a
   stop therefore finds everything else done.

*Two kinds of messages.* Those of the protocol are msgspec Structs. A handler of one that raises may have
changed half of its state, so the actor fails, also when it was asked; it is restarted from the log. A
CountermandError is a refusal, made before anything was changed: the asker gets it and the actor lives. Two of
them are defects of the handler and not refusals (`DEFECTS`). All other messages keep Pykka's rule: what an
ask raises is the asker's, what a tell raises ends the actor.

Nothing here ends another actor: where Pykka answers a SystemExit in one handler by stopping them all, this
one fails alone (law L13).
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

from actors.errors import BlockingAskError, CountermandError, InvalidTransition, ShuttingDown
from actors.kernel import registry
from actors.kernel.dispatcher import Dispatcher
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture, answer, refuse
from actors.kernel.log_context import about
from actors.kernel.mailbox import REQUESTS_MAX, Mailbox

registry.install()

A = TypeVar("A", bound="Actor")

# Not refusals: the handler itself is wrong, and nobody knows what it had changed.
DEFECTS: Final = (BlockingAskError, InvalidTransition)

_numbers = itertools.count(1)
# It may be taken again: a signal handler, or what the garbage collector closes, may ask on a thread that has it.
_waiting = threading.RLock()


class _Here(threading.local):
    actor: Actor | None = None


_here = _Here()


def log_context() -> Mapping[str, object]:
    """What a line of the log is about: the actor that has its turn on this thread, else the agent or tool here."""
    actor = _here.actor
    return about() if actor is None else actor.log_context()


class StopFlag:
    """Says that an actor is dead. What Pykka needs of a `threading.Event`, at a tenth of its size.

    Every method may be called from any thread. It cannot be cleared: no actor comes back.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # None while it is not set, then True; in between the Event of those who wait, if any do.
        self._state: threading.Event | bool | None = None

    def is_set(self) -> bool:
        """True once it was set."""
        return self._state is True

    def set(self) -> None:
        """Set it, and wake those who wait."""
        with _waiting:
            state, self._state = self._state, True
        if isinstance(state, threading.Event):
            state.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set or `timeout` seconds passed; True if it is set."""
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
        dispatcher: who runs it; its children too.
        parent: the actor that is told Down at its end.
        key: what the parent calls it.
        requests_max: how many `bounded` messages may wait in its mailbox.

    The hooks are Pykka's (`on_start`, `on_receive`, `on_stop`, `on_failure`) and three more. All but
    `on_undelivered` run in a turn, one at a time. `stop()` overtakes ordinary messages that wait: they go to
    `hand_back`.

    A ref keeps the actor in memory while it lives; after that only where `on_undelivered` is overridden.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        parent: ActorRef[Any] | None = None,
        key: str = "",
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        # Pykka's own __init__ is not called: it sets these four fields, to a random urn and an Event, which
        # cost more than all the rest of the actor.
        self.actor_urn = f"urn:actor:{next(_numbers)}"
        own_hook = type(self).on_undelivered is not Actor.on_undelivered
        undelivered = self.on_undelivered if own_hook else _log_undelivered
        self._mailbox = Mailbox(self, dispatcher, requests_max, undelivered)
        self.actor_inbox = self._mailbox
        # Pykka asks no more of it than the flag can do.
        self.actor_stopped = cast("threading.Event", StopFlag())
        self._actor_ref = ActorRef(self)
        self.dispatcher = dispatcher
        self.parent = parent
        self.key = key
        self._children: dict[str, ActorRef[Any]] | None = None
        self._taken: set[ReplyFuture[Any]] | None = None
        self._reply: Future[Any] | None = None
        self._started = False

    # ── For subclasses ───────────────────────────────────────────────────────────────────────────

    @property
    def children(self) -> dict[str, ActorRef[Any]]:
        """The children whose Down was not handled yet, by key. Those in it are stopped with this one."""
        if self._children is None:
            self._children = {}
        return self._children

    def start_child(self, cls: type[A], *args: Any, key: str, **kwargs: Any) -> ActorRef[A]:
        """Start an actor as a child of this one, on the same dispatcher. Only in a turn.

        Every end of it, a failing `on_start` too, is told to this actor as Down, ordinary lane, after
        everything else the child sent. It is taken out of `children` just before the handler of Down runs.

        Args:
            cls: its class.
            *args: for its constructor.
            key: what this actor calls it, unique among the children.
            **kwargs: for its constructor; `dispatcher`, `parent` and `key` are added.

        Raises:
            ValueError: a child with this key is there.
            Exception: whatever the constructor raises. There is no actor then, and no Down.
        """
        if key in self.children:
            raise ValueError(f"{self} has a child {key!r} already: wait for its Down, or use another key")
        ref = cls.start(*args, dispatcher=self.dispatcher, parent=self.actor_ref, key=key, **kwargs)
        self.children[key] = ref
        return ref

    def take_reply(self) -> ReplyFuture[Any] | None:
        """Take over the answer to the message being handled: what the handler returns is not it any more.

        Give it later by `try_set` or `try_set_exception`, from any thread. If this actor ends first it is
        failed with ActorDeadError. None if the message was told, or if the reply was taken already.
        """
        reply = self._reply
        if reply is None:
            return None
        assert isinstance(reply, ReplyFuture), f"only a ReplyFuture can be taken, not {reply!r}"
        self._reply = None
        if self._taken is None:
            self._taken = set()
        self._taken.add(reply)
        reply.add_done_callback(self._taken.discard)
        return reply

    def tell_parent(self, message: object) -> None:
        """Tell the parent; one that is gone has an heir, which asks the ports for what it has to know."""
        assert self.parent is not None, f"{self} was started without a parent"
        tell(self.parent, message)

    def on_turn_end(self) -> None:
        """Run after the messages of a turn, if the actor still lives: the place to flush what they gathered.

        A turn that ends in a stop does not come here: `on_stop` does. What it raises fails the actor.
        """

    def log_context(self) -> Mapping[str, object]:
        """What lines of the log are to name while this actor has its turn: session, run, generation. Only in a turn."""
        return {}

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """A message was told to this actor and not taken: it was closed, or full of bounded requests.

        Runs on the sender's thread (on a dispatcher's for the main thread), also while a turn runs, also after the
        end. What it raises is logged. A sender that comes after `is_alive()` has turned False is told by
        ActorDeadError instead.
        """
        _log_undelivered(envelope)

    def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
        """The messages that were left when the mailbox was closed, the urgent first; never empty.

        By default an ask is failed with ActorDeadError and the rest goes to `on_undelivered`. An override
        that puts them into another mailbox leaves their replies to that one.
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
        # A turn may begin inside of another one, where a sender lends its thread.
        outer, _here.actor = _here.actor, self
        try:
            if not self._started:
                self._started = True
                batch -= 1
                try:
                    self.on_start()
                except BaseException as error:  # noqa: BLE001  # a SystemExit ends this actor alone
                    # As Pykka has it, on_failure is not called: nothing was set up that it could clean.
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
        """End without a hook but `hand_back`: the dispatcher was closed. Called by the mailbox."""
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
        # Not there if the handler took it.
        pending, self._reply = self._reply, None
        if pending is not None:
            answer(pending, response)

    def _failed_handling(self, message: object, reply: Future[Any] | None, error: BaseException) -> None:
        protocol = isinstance(message, Struct)
        if protocol and isinstance(error, CountermandError) and not isinstance(error, DEFECTS):
            if reply is None:
                logger.debug("{} refused {}, which nobody asked about: {}", self, type(message).__name__, error)
            else:
                refuse(reply, error)
        elif not protocol and reply is not None and isinstance(error, Exception):
            logger.opt(exception=error).info("{} answers an ask with an exception", self)
            refuse(reply, error)
        else:
            self._fail(error, last=reply)

    def _fail(self, error: BaseException, last: Future[Any] | None = None) -> None:
        def hook() -> None:
            self.on_failure(type(error), error, error.__traceback__)

        self._leave(error, hook=hook, last=last)

    def _leave(
        self, error: BaseException | None, *, hook: Callable[[], None] | None, last: Future[Any] | None = None
    ) -> None:
        """The one way out; see the head of this file. `last` is answered when all else is done."""
        inbox = self._mailbox
        if inbox.closed:
            return
        if error is not None:
            # Who closes the dispatcher has decided that nothing more is handled: that is no failure.
            level = "DEBUG" if isinstance(error, ShuttingDown) else "ERROR"
            logger.opt(exception=error).log(level, "{} failed", self)
        inbox.close()
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()

        # The first cause stands; what went wrong while it ended is in the log.
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
            failure = next((_describe(cause) for cause in causes if cause is not None), None)
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
                # A SystemExit is this actor's: raised in the asker by `get` it would end that one too.
                dead = self._dead(f"failed by {_describe(error)}")
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
            # Another thread may resolve one, which takes it out, at any moment.
            try:
                reply = taken.pop()
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


def tell(ref: ActorRef[Any], message: object) -> None:
    """Tell an actor that may be gone: then nobody needs the message. Any thread."""
    try:
        ref.tell(message)
    except ActorDeadError:
        logger.trace("{} for {}, which is gone", type(message).__name__, ref)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an exception class may do anything in its __str__
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}"


def _log_undelivered(envelope: Envelope[Any]) -> None:
    logger.trace("undelivered: {}", type(envelope.message).__name__)
