"""The mailbox of an actor: two lanes, an entry in the run queue, and a closed state.

Theory of operation. A mailbox is in exactly one of five states, and changes state under one small lock:

    running ──> idle ──> ready ──> running        ready: it has an entry in the slow run queue
       │          └────> urgent ─> running        urgent: it has one in the fast run queue
       │                   ^
       │    ready ─────────┘ promotion
       └──> closed

Only the thread that moved it to *running* may take messages from it or close it. An actor's handlers therefore
never overlap, although any thread of the pool may run them. A new mailbox is running: its actor's constructor has
the first turn.

*Promotion.* An urgent message for a *ready* mailbox puts a second entry into the fast queue. The entry in the slow
queue cannot be removed from the middle of a queue, so it becomes stale instead: every entry carries a ticket, and
only the ticket that the mailbox expects gives a turn. If a stale entry is still queued when the mailbox becomes
ready again, the mailbox expects that entry's ticket again and adds no other. A mailbox thus has at most one entry in
each queue, however often it is promoted, and the run queues hold at most two entries per actor.

Races, and why each is closed:

- *put against the end of a turn*: both hold the lock. If the put comes first, the end of the turn sees the message
  and queues the mailbox. If the turn ends first, the put finds the mailbox idle and queues it. No message waits in
  an idle mailbox.
- *put against close*: either the message is in a lane when the lane is drained, or the put sees *closed* and
  answers by itself. No ask is lost in between.
- *put inside of another method, on one thread*: the garbage collector may run code between any two lines, also under
  the lock, and that code may send something. If this thread holds the lock already, another one puts the message.
- *an entry is submitted after the lock is released*. That is necessary: a closed dispatcher answers by running code
  of the actor, which must not happen under the lock. Another thread may promote the mailbox, run it and make it idle
  before the first entry is in its queue; the ticket makes that entry stale like any other.
- *a stale entry is popped, and expected again before the thread checks it*: it is then the entry of a ready mailbox,
  and that thread runs the turn. An entry is forgotten and expected under the same lock.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Protocol

from loguru import logger
from pykka import ActorDeadError
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.errors import QueueFull
from actors.kernel.future import answer, refuse
from actors.kernel.thread_role import HANDLING

REQUESTS_MAX: Final = 4096

Undelivered = Callable[[Envelope[Any]], None]


class MailboxState(IntEnum):
    """The state of a mailbox. `MOVES` has the allowed transitions."""

    IDLE = 0
    READY = 1
    URGENT = 2
    RUNNING = 3
    CLOSED = 4


MOVES: Final[dict[MailboxState, frozenset[MailboxState]]] = {
    MailboxState.IDLE: frozenset({MailboxState.READY, MailboxState.URGENT}),
    MailboxState.READY: frozenset({MailboxState.URGENT, MailboxState.RUNNING}),
    MailboxState.URGENT: frozenset({MailboxState.RUNNING}),
    MailboxState.RUNNING: frozenset({MailboxState.IDLE, MailboxState.READY, MailboxState.URGENT, MailboxState.CLOSED}),
    MailboxState.CLOSED: frozenset(),
}
QUEUED: Final = frozenset({MailboxState.READY, MailboxState.URGENT})

# By class of message: is it urgent, and is it bounded. It grows with the number of message classes.
_KINDS: Final[dict[type, tuple[bool, bool]]] = {_ActorStop: (True, False)}


def _kind(cls: type) -> tuple[bool, bool]:
    # `is True`: a Struct with a *field* of that name has a descriptor there, which is truthy.
    kind = getattr(cls, "urgent", False) is True, getattr(cls, "bounded", False) is True
    _KINDS[cls] = kind
    return kind


class RunQueue(Protocol):
    """What a mailbox needs of a dispatcher: a queue to wait in for its turn."""

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        """Call `mailbox.run(ticket, …)` soon, on another stack."""

    def hand_in(self, mailbox: Mailbox, envelope: Envelope[Any]) -> bool:
        """If this thread may be interrupted, call `mailbox.put(envelope)` soon on another one; else return False."""


class MailboxOwner(Protocol):
    """What a mailbox needs of its actor. Both methods are called in a turn, and let no exception out."""

    def run_turn(self, batch: int) -> None:
        """Handle up to `batch` messages."""

    def abandon(self) -> None:
        """End without handling anything more: the dispatcher is closed."""


class Mailbox:
    """The inbox of one actor, with the methods that Pykka's refs call (`put`, `get`, `empty`).

    Args:
        owner: the actor; the reference is dropped when the mailbox is closed.
        run_queue: the dispatcher.
        requests_max: limit on waiting `bounded` messages; one more is refused with QueueFull.
        on_undelivered: called for a told message that came after the close or was refused. It runs on the sender's
            thread or one of the dispatcher's, and its exceptions are logged. None drops the message.
    """

    __slots__ = (
        "_bounded",
        "_expected",
        "_held",
        "_issued",
        "_lock",
        "_on_undelivered",
        "_ordinary",
        "_owner",
        "_requests_max",
        "_run_queue",
        "_slow",
        "_state",
        "_urgent",
    )

    def __init__(
        self,
        owner: MailboxOwner,
        run_queue: RunQueue,
        requests_max: int = REQUESTS_MAX,
        on_undelivered: Undelivered | None = None,
    ) -> None:
        # Reentrant, since only such a lock says whether this thread holds it.
        self._lock = threading.RLock()
        self._owner: MailboxOwner | None = owner
        self._run_queue = run_queue
        self._requests_max = requests_max
        self._on_undelivered = on_undelivered
        self._state = MailboxState.RUNNING
        self._bounded = 0
        self._held = False
        # Created at the first message: most actors of a large system are idle, and an empty deque takes 600 bytes.
        self._urgent: deque[Envelope[Any]] | None = None
        self._ordinary: deque[Envelope[Any]] | None = None
        # Tickets count from 1; 0 is none. `_expected` gives a turn. `_slow` is that of the entry in the slow queue,
        # stale or not.
        self._issued = 0
        self._expected = 0
        self._slow = 0

    def __len__(self) -> int:
        """Return how many messages wait at this moment. Any thread."""
        return len(self._urgent or ()) + len(self._ordinary or ())

    @property
    def state(self) -> MailboxState:
        """The state at this moment. Any thread."""
        return self._state

    @property
    def closed(self) -> bool:
        """True once it is closed, for good. Any thread."""
        return self._state is MailboxState.CLOSED

    # ── Senders: any thread ──────────────────────────────────────────────────────────────────────

    def put(self, envelope: Envelope[Any], /) -> None:
        """Accept a message, or answer why not. Never blocks and never raises.

        A full mailbox refuses an ask with QueueFull, a closed one with ActorDeadError. A told message that is refused
        goes to `on_undelivered`.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]  # only this says whether the lock is this thread's
            _thread.start_new_thread(self.put, (envelope,))
            return
        cls = type(envelope.message)
        urgent, bounded = _KINDS.get(cls) or _kind(cls)
        if urgent and self._run_queue.hand_in(self, envelope):
            return
        lane = self._urgent if urgent else self._ordinary
        if lane is None:
            lane = deque()
        ticket = 0
        with self._lock:
            state = self._state
            closed = state is MailboxState.CLOSED
            if not closed and not (bounded and self._bounded >= self._requests_max):
                self._bounded += bounded
                if urgent:
                    if self._urgent is None:
                        self._urgent = lane
                    self._urgent.append(envelope)
                else:
                    if self._ordinary is None:
                        self._ordinary = lane
                    self._ordinary.append(envelope)
                wakes = urgent or not self._held
                if (state is MailboxState.IDLE and wakes) or (urgent and state is MailboxState.READY):
                    ticket = self._queue(urgent)
                if not ticket:
                    return
        if ticket:
            self._run_queue.submit(self, ticket, urgent)
        elif closed:
            self._refuse_closed(envelope)
        else:
            self._refuse_full(envelope)

    # ── The turn: the thread that `run` was called on ────────────────────────────────────────────

    def start(self) -> None:
        """End the constructor's turn. The owner gets its first turn even if no message waits."""
        self._end_turn(always=True)

    def run(self, ticket: int, batch: int) -> bool:
        """Give the owner a turn of up to `batch` messages. Returns False, without a turn, if the entry was stale."""
        return self._turn(ticket, batch)

    def abandon(self, ticket: int) -> bool:
        """End the owner, because its dispatcher is closed. Returns False, without effect, if the entry was stale."""
        return self._turn(ticket, 0)

    def expects(self, ticket: int) -> bool:
        """Return True if an entry with this ticket would give a turn now. Any thread."""
        with self._lock:
            return self._state in QUEUED and ticket == self._expected

    def take(self) -> Envelope[Any] | None:
        """Return the next message, the urgent lane first, or None. Only in a turn."""
        with self._lock:
            if self._urgent:
                envelope = self._urgent.popleft()
            elif self._ordinary and not self._held:
                envelope = self._ordinary.popleft()
            else:
                return None
            if self._bounded and _KINDS[type(envelope.message)][1]:
                self._bounded -= 1
            return envelope

    def hold(self) -> None:
        """Pause the ordinary lane until `release`; the urgent one goes on. Only in a turn; idempotent.

        Used while an answer is on its way: a thread that works off a backlog would slow the threads that bring the
        answer.
        """
        with self._lock:
            self._held = True

    def release(self) -> None:
        """Resume the ordinary lane; the end of the turn checks what waits there. Only in a turn; idempotent."""
        with self._lock:
            self._held = False

    def get(self) -> Envelope[Any]:
        """Return the next message as `take` does. Only in a turn.

        Raises:
            IndexError: there is none. Pykka's own inboxes block here; a turn may not.
        """
        envelope = self.take()
        if envelope is None:
            raise IndexError("get from an empty mailbox")
        return envelope

    def empty(self) -> bool:
        """Return True if no message waits. Any thread."""
        return not (self._urgent or self._ordinary)

    def close(self) -> None:
        """Refuse every further message and drop the owner. Only in a turn; idempotent.

        Waiting messages stay until `drain`.
        """
        with self._lock:
            if self._state is not MailboxState.CLOSED:
                self._move(MailboxState.CLOSED)
                self._owner = None

    def drain(self) -> list[Envelope[Any]]:
        """Remove and return the messages left in the closed mailbox, the urgent lane first."""
        with self._lock:
            assert self._state is MailboxState.CLOSED, "only a closed mailbox can be drained: puts would race it"
            urgent, ordinary = self._urgent, self._ordinary
            self._urgent = self._ordinary = None
            self._bounded = 0
        return [*(urgent or ()), *(ordinary or ())]

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────

    def _turn(self, ticket: int, batch: int) -> bool:
        owner = self._begin_turn(ticket)
        if owner is None:
            return False
        handled_before = HANDLING.active
        HANDLING.active = True
        try:
            if batch:
                owner.run_turn(batch)
            else:
                owner.abandon()
        except BaseException:  # noqa: BLE001  # a dispatcher's thread serves others too
            self._break()
        finally:
            HANDLING.active = handled_before
        self._end_turn()
        return True

    def _move(self, new: MailboxState) -> None:
        assert new in MOVES[self._state], f"a mailbox cannot go from {self._state.name} to {new.name}"
        self._state = new

    def _queue(self, urgent: bool) -> int:
        """Move to urgent or ready, under the lock. Returns the ticket to submit, or 0 if the entry exists already."""
        if urgent:
            self._move(MailboxState.URGENT)
        else:
            self._move(MailboxState.READY)
            if self._slow:
                self._expected = self._slow
                return 0
        self._issued += 1
        self._expected = self._issued
        if not urgent:
            self._slow = self._issued
        return self._issued

    def _begin_turn(self, ticket: int) -> MailboxOwner | None:
        with self._lock:
            if ticket == self._slow:
                self._slow = 0
            if ticket != self._expected or self._state not in QUEUED:
                return None
            self._move(MailboxState.RUNNING)
            self._expected = 0
            return self._owner

    def _end_turn(self, *, always: bool = False) -> None:
        with self._lock:
            if self._state is MailboxState.CLOSED:
                return
            urgent = bool(self._urgent)
            if not (urgent or always or (self._ordinary and not self._held)):
                self._move(MailboxState.IDLE)
                return
            ticket = self._queue(urgent)
        if ticket:
            self._run_queue.submit(self, ticket, urgent)

    def _break(self) -> None:
        """Close a mailbox whose owner raised out of its turn, so that no ask waits on it. An owner must not do that."""
        logger.opt(exception=True).critical("the owner of a mailbox raised out of its turn; it is closed")
        self.close()
        for envelope in self.drain():
            self._refuse_closed(envelope)

    def _refuse_closed(self, envelope: Envelope[Any]) -> None:
        stop = isinstance(envelope.message, _ActorStop)
        if envelope.reply_to is None:
            if not stop:
                self._undelivered(envelope)
        elif stop:
            # Like Pykka, answer a stop that came too late to be handled: the actor was stopping already.
            answer(envelope.reply_to, None)
        else:
            refuse(envelope.reply_to, ActorDeadError("the actor stopped before handling the message"))

    def _refuse_full(self, envelope: Envelope[Any]) -> None:
        if envelope.reply_to is None:
            self._undelivered(envelope)
            return
        refuse(
            envelope.reply_to,
            QueueFull(
                "the mailbox holds too many requests",
                expected=f"at most {self._requests_max} waiting",
                got="one more",
                remedy="send it again later; nothing that was accepted is lost, and a Stop is always taken",
            ),
        )

    def _undelivered(self, envelope: Envelope[Any]) -> None:
        if self._on_undelivered is None:
            return
        try:
            self._on_undelivered(envelope)
        except Exception:  # noqa: BLE001  # the sender has nothing to do with it
            logger.opt(exception=True).error("on_undelivered raised")
