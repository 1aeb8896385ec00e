"""Dispatchers run the actors: a small pool of threads, or for tests one thread in a seeded order.

Theory of operation of the pool. There are two run queues, and one queue of tokens with one token for each entry. A
worker takes a token, then one entry, from the fast queue first. The entry gives its mailbox a turn of a few messages;
if more messages wait, the mailbox queues itself again at the end. So a busy actor cannot keep a worker, and a mailbox
that an urgent message has promoted waits at most for the turns that are running.

- *A worker has a token and finds both queues empty*: while it looked into the slow queue, other workers took the
  entries there, and its own entry was added to the fast queue after it had looked. Entries are appended before their
  tokens, so there is an entry for it: it looks again.
- *Urgent work without end* would starve the slow queue. After `FAST_TURNS_MAX` turns in a row from the fast queue a
  worker looks into the slow one first, once.
- *close against submit*: submit appends, then reads `_closed`; close sets it, then empties the queues. Either submit
  sees it, or close finds the entry. Both end the actors that they find, and a ticket works only once.

*The main thread* alone may be interrupted between any two lines (Ctrl-C raises KeyboardInterrupt there). A mailbox that
was moved to *urgent* and not queued would never run again; if that were the router's, no session could be reached. So
an urgent message of the main thread, and all messages of a client are urgent, is handed in by one call into C. A worker
puts it into its mailbox; the workers do that under a lock, which keeps the order. Ordinary messages of the main thread
are put directly: there may be very many, and a Stop behind them would wait until they are moved.

A closed dispatcher runs no actor, so an actor with something to do is ended: its asks are answered with ActorDeadError,
and its parent gets Down. That happens on the thread that closes or that sends.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from loguru import logger
from pykka._envelope import Envelope

from actors.kernel.mailbox import Mailbox
from actors.kernel.thread_role import HANDLING, serve_all

BATCH: Final = 16
FAST_TURNS_MAX: Final = 64
STEPS_MAX: Final = 1_000_000

# A computing thread makes each other thread wait for Python's switch interval, 5 ms by default, each time that one
# wants to run. With the default a Stop beside a computing agent, or an actor with a backlog, took tens of milliseconds.
# It is set for the whole process and not restored: another dispatcher may outlive the one that set it.
SWITCH_INTERVAL_S: Final = 0.0005

_Entry = tuple[Mailbox, int]
_Letter = tuple[Mailbox, Envelope[Any]]
_MAIN: Final = threading.main_thread().ident


class _CallerTurns(threading.local):
    """The turns that this thread runs itself inside `caller_runs`; None outside of it."""

    entries: list[_Entry] | None = None


_CALLER_TURNS: Final = _CallerTurns()


class Dispatcher(Protocol):
    """Runs actors: it gives each submitted mailbox a turn, never two at a time."""

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        """Queue one entry: `mailbox.run(ticket, …)` follows, on another stack. Any thread.

        A closed dispatcher ends the mailbox's actor instead, on this thread.
        """

    def hand_in(self, mailbox: Mailbox, envelope: Envelope[Any]) -> bool:
        """Take over a message from a thread that may be interrupted. False: the caller has to put it."""

    def close(self, timeout: float | None = 5.0) -> bool:
        """Stop running actors; idempotent. `timeout` is in seconds. Returns True if all threads have ended."""


class PooledDispatcher:
    """A few daemon threads that run any number of actors.

    Args:
        size: number of threads, at least 1. Handlers never block, so more threads than cores gain nothing.
        batch: limit on the messages of one turn. A larger one costs fairness and gains no throughput.
        name: prefix of the threads' names.
    """

    def __init__(self, size: int = 2, batch: int = BATCH, name: str = "dispatcher") -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        if size < 1 or batch < 1:
            raise ValueError(f"expected a size and a batch of at least 1, got {size} and {batch}")
        self._batch = batch
        self._fast: deque[_Entry] = deque()
        self._slow: deque[_Entry] = deque()
        # One token for each entry and for each message that was handed in.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._handed_in: queue.SimpleQueue[_Letter] = queue.SimpleQueue()
        self._moving = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()
        self._working = size
        self._over = threading.Event()
        self._threads = tuple(
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(size)
        )
        for thread in self._threads:
            thread.start()

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        """See `Dispatcher.submit`."""
        here = _CALLER_TURNS.entries
        if here is not None and urgent and not self._closed:
            here.append((mailbox, ticket))
            return
        (self._fast if urgent else self._slow).append((mailbox, ticket))
        if self._closed:
            self._abandon_left()
        else:
            self._tokens.put(None)

    @property
    def queued(self) -> int:
        """The number of mailboxes that wait for a thread."""
        return len(self._fast) + len(self._slow)

    def hand_in(self, mailbox: Mailbox, envelope: Envelope[Any]) -> bool:
        """Let a worker put an urgent message of the main thread into its mailbox; False for any other thread."""
        if threading.get_ident() != _MAIN or HANDLING.active or self._is_closed():
            return False
        try:
            self._handed_in.put((mailbox, envelope))
        finally:
            # In `finally`, so that the message has its token even if an interrupt comes here.
            self._tokens.put(None)
        if self._is_closed():
            self._move_all()
        return True

    def _is_closed(self) -> bool:
        return self._closed

    @contextmanager
    def caller_runs(self) -> Iterator[None]:
        """Run the urgent turns that the calling thread causes inside the `with` on that thread, at the end of it.

        For a port's thread that has nothing else to do: waking a worker costs more than a short turn. Not for foreign
        threads: an interrupt of one would fail an actor.
        """
        entries: list[_Entry] = []
        _CALLER_TURNS.entries = entries
        try:
            yield
        finally:
            _CALLER_TURNS.entries = None
            for mailbox, ticket in entries:
                self._give_turn(mailbox, ticket)

    def close(self, timeout: float | None = 5.0) -> bool:
        """End each thread after its current turn, then end every actor that waits for a turn.

        Stop the actors first: an actor that is ended here runs only the hook `hand_back`.

        Args:
            timeout: seconds to wait for the threads; None waits for ever. A thread that is stuck in a handler is left
                running; it is a daemon thread. Called from a handler, `close` does not wait.

        Returns:
            True if all threads have ended.
        """
        self._closed = True
        for _ in self._threads:
            self._tokens.put(None)
        gone = False
        if threading.current_thread() not in self._threads:
            gone = self._over.wait(timeout)
        if gone:
            for thread in self._threads:
                thread.join()
        self._move_all()
        self._abandon_left()
        return gone

    def pending(self) -> int:
        """Return how many entries wait in the run queues, including stale ones. Any thread."""
        return len(self._fast) + len(self._slow)

    def _work(self) -> None:
        serve_all()
        fast_turns = 0
        while True:
            self._tokens.get()
            slow_first = fast_turns >= FAST_TURNS_MAX
            was_fast = self._do_one(slow_first)
            if was_fast is None:
                break
            fast_turns = fast_turns + 1 if was_fast and not slow_first else 0
        with self._lock:
            self._working -= 1
            last = self._working == 0
        if last:
            self._over.set()

    def _do_one(self, slow_first: bool) -> bool | None:
        """Do the work of one token. Returns True if that was a fast turn, None if the dispatcher is closed."""
        while not self._closed:
            if self._move_one():
                return False
            if slow_first and self._turn_from(self._slow):
                return False
            if self._turn_from(self._fast):
                return True
            if self._turn_from(self._slow):
                return False
        return None

    def _move_one(self) -> bool:
        """Put one handed-in message into its mailbox. Returns False if there is none."""
        if self._handed_in.empty():
            return False
        with self._moving:
            try:
                mailbox, envelope = self._handed_in.get_nowait()
            except queue.Empty:
                return False
            mailbox.put(envelope)
        return True

    def _turn_from(self, entries: deque[_Entry]) -> bool:
        """Run the turn of the first entry. Returns False if there is none."""
        try:
            mailbox, ticket = entries.popleft()
        except IndexError:
            return False
        self._give_turn(mailbox, ticket)
        return True

    def _give_turn(self, mailbox: Mailbox, ticket: int) -> None:
        try:
            mailbox.run(ticket, self._batch)
        except BaseException:  # noqa: BLE001  # see the next line
            # Only a dispatcher's own `submit` can raise here. The thread goes on serving the other actors.
            logger.opt(exception=True).critical("a turn raised into the dispatcher")

    def _move_all(self) -> None:
        while self._move_one():
            pass

    def _abandon_left(self) -> None:
        for entries in (self._fast, self._slow):
            while True:
                try:
                    mailbox, ticket = entries.popleft()
                except IndexError:
                    break
                mailbox.abandon(ticket)


class StepDispatcher:
    """Runs actors on the caller's thread, in an order that the seed determines. For tests.

    Each step runs one message of one ready actor, chosen at random; the start of an actor is a step of its own.
    Handlers may start actors and send messages. Messages from other threads are accepted too, but then the order no
    longer depends on the seed alone.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311  # an order, not a secret
        self._ready: list[_Entry] = []
        self._closed = False
        self._stepping = False

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:  # noqa: ARG002  # see below
        """See `Dispatcher.submit`. Urgent entries have no priority, so that a test meets the unlikely orders too."""
        self._ready.append((mailbox, ticket))
        if self._closed:
            self._abandon_left()

    def hand_in(self, mailbox: Mailbox, envelope: Envelope[Any]) -> bool:
        """Return False: there is only one thread, and an interrupt ends the test."""
        del mailbox, envelope
        return False

    def step(self) -> bool:
        """Run one message of one ready actor. Returns False if no actor is ready.

        Raises:
            RuntimeError: called from a handler, where a step would run an actor inside another one's turn.
        """
        if self._stepping:
            raise RuntimeError("a handler cannot step the dispatcher that runs it")
        ready = self._ready
        self._stepping = True
        try:
            while ready:
                index = int(self._random() * len(ready))
                mailbox, ticket = ready[index]
                last = ready.pop()
                if index < len(ready):
                    ready[index] = last
                if mailbox.run(ticket, 1):
                    return True
            return False
        finally:
            self._stepping = False

    def run_until_idle(self, max_steps: int = STEPS_MAX) -> int:
        """Step until no actor is ready. Returns the number of steps.

        Raises:
            RuntimeError: an actor is still ready after `max_steps`: the actors keep each other busy.
        """
        for steps in range(max_steps):
            if not self.step():
                return steps
        if self.pending():
            raise RuntimeError(f"still busy after {max_steps} steps")
        return max_steps

    def waits(self) -> bool:
        """Return True if there are entries, including stale ones. Cheaper than `pending`."""
        return bool(self._ready)

    def pending(self) -> int:
        """Return how many actors are ready."""
        return sum(mailbox.expects(ticket) for mailbox, ticket in self._ready)

    def close(self, timeout: float | None = 5.0) -> bool:  # noqa: ARG002  # the protocol's signature
        """See `Dispatcher.close`; there is no thread to wait for."""
        self._closed = True
        self._abandon_left()
        return True

    def _abandon_left(self) -> None:
        while self._ready:
            mailbox, ticket = self._ready.pop()
            mailbox.abandon(ticket)
