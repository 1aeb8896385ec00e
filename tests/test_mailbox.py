"""The mailbox by itself: lanes, promotion, the closed state, the bound. No actor is behind it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from pykka import ActorDeadError
from pykka._envelope import Envelope
from pykka.messages import ProxyCall, _ActorStop

from actors.errors import QueueFull
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture
from actors.kernel.mailbox import MOVES, QUEUED, Mailbox, MailboxState
from actors.requests import NewMessage, Stop
from tests.process_kit import until


class Urgent(Struct, frozen=True):
    urgent: ClassVar[bool] = True
    number: int = 0


class Ordinary(Struct, frozen=True):
    number: int = 0


class FieldNamedUrgent(Struct, frozen=True):
    urgent: bool


class Queue:
    """A run queue that only remembers: the test is the dispatcher."""

    def __init__(self) -> None:
        self.fast: list[int] = []
        self.slow: list[int] = []

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        (self.fast if urgent else self.slow).append(ticket)

    def hand_in(self, mailbox: Mailbox, envelope: Envelope[Any]) -> bool:
        return False


class Taker:
    """An owner that takes what a turn allows and ends when it is told to."""

    def __init__(self, queue: Queue | None = None, **options: Any) -> None:
        self.queue = queue or Queue()
        self.undelivered: list[Any] = []
        self.taken: list[Any] = []
        self.abandoned = False
        self.mailbox = Mailbox(
            self,
            self.queue,
            on_undelivered=lambda envelope: self.undelivered.append(envelope.message),
            **options,
        )

    def run_turn(self, batch: int) -> None:
        for _ in range(batch):
            envelope = self.mailbox.take()
            if envelope is None:
                return
            self.taken.append(envelope.message)
            if envelope.reply_to is not None:
                envelope.reply_to.set("handled")
            if isinstance(envelope.message, _ActorStop):
                self.mailbox.close()
                return

    def abandon(self) -> None:
        self.abandoned = True
        self.mailbox.close()

    def idle(self) -> Taker:
        """End the constructor's turn and the first one, so that the mailbox waits for messages."""
        self.mailbox.start()
        assert self.mailbox.run(self.queue.slow.pop(), 1)
        assert self.mailbox.state is MailboxState.IDLE
        return self

    def tell(self, message: Any) -> None:
        self.mailbox.put(Envelope(message))

    def ask(self, message: Any) -> ReplyFuture[Any]:
        reply: ReplyFuture[Any] = ReplyFuture()
        self.mailbox.put(Envelope(message, reply))
        return reply


def closed() -> Taker:
    taker = Taker().idle()
    taker.tell(_ActorStop())
    assert taker.mailbox.run(taker.queue.fast.pop(), 1)
    assert taker.mailbox.closed
    return taker


def test_urgent_messages_are_taken_before_ordinary_ones_and_each_lane_keeps_its_order() -> None:
    taker = Taker().idle()
    sent = [Ordinary(1), Urgent(1), Ordinary(2), Urgent(2)]
    for message in sent:
        taker.tell(message)
    taker.mailbox.run(taker.queue.fast.pop(), 16)
    assert taker.taken == [Urgent(1), Urgent(2), Ordinary(1), Ordinary(2)]


def test_the_lane_is_what_the_class_says_and_unknown_classes_are_ordinary() -> None:
    stop = Stop(source="user.test", reason="enough")
    down = Down(None, "k", None)  # type: ignore[arg-type]  # only its lane is looked at
    call = ProxyCall(("x",), (), {})
    taker = Taker().idle()
    for message in (down, call, "text", FieldNamedUrgent(True), stop, _ActorStop()):
        taker.tell(message)
    taker.mailbox.run(taker.queue.fast.pop(), 2)
    assert taker.taken == [stop, _ActorStop()]
    assert [envelope.message for envelope in taker.mailbox.drain()] == [
        down,
        call,
        "text",
        FieldNamedUrgent(True),
    ]


def test_an_urgent_message_overtakes_a_hundred_thousand_ordinary_ones() -> None:
    taker = Taker().idle()
    for number in range(100_000):
        taker.tell(Ordinary(number))
    taker.tell(Urgent(7))
    assert taker.mailbox.run(taker.queue.fast.pop(), 1)
    assert taker.taken == [Urgent(7)]
    assert len(taker.mailbox) == 100_000


def test_an_idle_mailbox_queues_once_however_many_messages_come() -> None:
    taker = Taker().idle()
    for number in range(10):
        taker.tell(Ordinary(number))
    assert (len(taker.queue.slow), len(taker.queue.fast)) == (1, 0)
    assert taker.mailbox.state is MailboxState.READY


def test_promotion_moves_a_ready_mailbox_to_the_fast_queue_and_the_old_entry_gives_no_turn() -> None:
    taker = Taker().idle()
    taker.tell(Ordinary(1))
    taker.tell(Urgent(1))
    taker.tell(Urgent(2))
    assert taker.mailbox.state is MailboxState.URGENT
    stale, fast = taker.queue.slow.pop(), taker.queue.fast.pop()
    assert not taker.queue.fast, "one promotion, one entry"
    assert not taker.mailbox.run(stale, 16)
    assert taker.taken == []
    assert taker.mailbox.run(fast, 16)
    assert taker.taken == [Urgent(1), Urgent(2), Ordinary(1)]
    assert not taker.mailbox.run(fast, 16), "a ticket gives one turn"


def test_a_stale_entry_that_is_still_queued_is_used_again_so_promotions_do_not_pile_up_entries() -> None:
    taker = Taker().idle()
    taker.tell(Ordinary(0))
    for number in range(1000):
        taker.tell(Ordinary(number + 1))
        taker.tell(Urgent(number))
        assert taker.mailbox.run(taker.queue.fast.pop(), 1)
        assert taker.mailbox.state is MailboxState.READY
    assert len(taker.queue.slow) == 1
    assert taker.mailbox.run(taker.queue.slow.pop(), 2000)
    assert taker.taken[-1] == Ordinary(1000)
    assert taker.mailbox.state is MailboxState.IDLE
    taker.tell(Ordinary(-1))
    assert len(taker.queue.slow) == 1, "with its entry used up it queues anew"


def test_a_turn_takes_no_more_than_its_batch_and_queues_again_by_what_is_left() -> None:
    taker = Taker().idle()
    for message in (Urgent(1), Urgent(2), Ordinary(1)):
        taker.tell(message)
    states = []
    for entries in (taker.queue.fast, taker.queue.fast, taker.queue.slow):
        taker.mailbox.run(entries.pop(), 1)
        states.append(taker.mailbox.state)
    assert states == [MailboxState.URGENT, MailboxState.READY, MailboxState.IDLE]
    assert taker.taken == [Urgent(1), Urgent(2), Ordinary(1)]


def test_before_its_start_a_mailbox_takes_messages_in_and_gives_no_turn() -> None:
    taker = Taker()
    taker.tell(Urgent(1))
    assert (taker.queue.fast, taker.queue.slow) == ([], [])
    taker.mailbox.start()
    assert len(taker.queue.fast) == 1


def test_a_closed_mailbox_answers_asks_with_actor_dead_and_hands_tells_back() -> None:
    taker = closed()
    with pytest.raises(ActorDeadError):
        taker.ask(Ordinary(1)).get(timeout=0)
    taker.tell(Ordinary(2))
    assert taker.undelivered == [Ordinary(2)]


def test_a_closed_mailbox_answers_a_stop_as_pykka_does_and_drops_a_told_one() -> None:
    taker = closed()
    assert taker.ask(_ActorStop()).get(timeout=0) is None
    taker.tell(_ActorStop())
    assert taker.undelivered == []


def test_drain_gives_what_is_left_urgent_first_and_nothing_the_second_time() -> None:
    taker = Taker().idle()
    for message in (_ActorStop(), Ordinary(1), Urgent(1), Ordinary(2), Urgent(2)):
        taker.tell(message)
    taker.mailbox.run(taker.queue.fast.pop(), 1)
    assert [e.message for e in taker.mailbox.drain()] == [Urgent(1), Urgent(2), Ordinary(1), Ordinary(2)]
    assert taker.mailbox.drain() == []
    assert taker.mailbox.empty()


def test_an_open_mailbox_cannot_be_drained() -> None:
    with pytest.raises(AssertionError):
        Taker().idle().mailbox.drain()


def test_l14_bounded_requests_beyond_the_bound_are_refused_and_a_stop_is_taken() -> None:
    taker = Taker(requests_max=3).idle()
    requests = [NewMessage(content=str(number)) for number in range(4)]
    for request in requests[:3]:
        taker.tell(request)
    with pytest.raises(QueueFull):
        taker.ask(requests[3]).get(timeout=0)
    taker.tell(requests[3])
    assert taker.undelivered == [requests[3]]
    stop = Stop(source="user.test", reason="enough")
    taker.tell(stop)
    taker.tell(Ordinary(1))
    taker.mailbox.run(taker.queue.fast.pop(), 16)
    assert taker.taken == [*requests[:3], stop, Ordinary(1)]


def test_l14_a_request_that_was_taken_makes_room_for_another() -> None:
    taker = Taker(requests_max=1).idle()
    first, second = NewMessage(content="a"), NewMessage(content="b")
    taker.tell(first)
    taker.mailbox.run(taker.queue.fast.pop(), 1)
    taker.tell(second)
    taker.mailbox.run(taker.queue.fast.pop(), 1)
    assert taker.taken == [first, second]
    assert taker.undelivered == []


def test_an_error_of_on_undelivered_does_not_reach_the_sender() -> None:
    def fail(envelope: Envelope[Any]) -> None:
        raise RuntimeError("broken hook")

    taker = Taker()
    mailbox = Mailbox(taker, taker.queue, on_undelivered=fail)
    mailbox.close()
    mailbox.put(Envelope("late"))


def test_an_owner_that_raises_out_of_its_turn_is_closed_and_its_asks_are_answered() -> None:
    class Broken(Taker):
        def run_turn(self, batch: int) -> None:
            raise SystemExit("out of the turn")

    taker = Broken()
    reply = taker.ask(Ordinary(1))
    taker.mailbox.start()
    assert taker.mailbox.run(taker.queue.slow.pop(), 1)
    assert taker.mailbox.closed
    with pytest.raises(ActorDeadError):
        reply.get(timeout=0)


def test_get_and_empty_are_pykkas_inbox_but_get_never_blocks() -> None:
    taker = Taker()
    assert taker.mailbox.empty()
    taker.tell("x")
    assert not taker.mailbox.empty()
    assert taker.mailbox.get().message == "x"
    with pytest.raises(IndexError):
        taker.mailbox.get()


def test_every_state_has_its_ways_and_only_closed_has_none() -> None:
    assert set(MOVES) == set(MailboxState)
    assert [state for state, ways in MOVES.items() if not ways] == [MailboxState.CLOSED]
    assert all(MailboxState.RUNNING in MOVES[state] for state in QUEUED)


OPERATIONS = st.lists(st.sampled_from(["urgent", "ordinary", "fast", "slow", "slow_popped"]), max_size=60)


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_in_any_order_of_puts_and_pops_no_message_is_lost_doubled_or_left_in_an_idle_mailbox(
    operations: list[str],
) -> None:
    taker = Taker().idle()
    queue, held = taker.queue, []
    sent: list[Any] = []
    for number, operation in enumerate(operations):
        if operation in ("urgent", "ordinary"):
            sent.append(Urgent(number) if operation == "urgent" else Ordinary(number))
            taker.tell(sent[-1])
        elif operation == "fast" and queue.fast:
            taker.mailbox.run(queue.fast.pop(0), 1)
        elif operation == "slow" and queue.slow:
            taker.mailbox.run(queue.slow.pop(0), 1)
        elif operation == "slow_popped" and queue.slow:
            held.append(queue.slow.pop(0))  # A worker took the entry and was preempted before it looked at it.
        assert len(queue.fast) <= 1
        assert len(queue.slow) + len(held) <= 1
        assert taker.mailbox.empty() == (taker.mailbox.state is MailboxState.IDLE)
    while queue.fast or queue.slow or held:
        ticket = held.pop(0) if held else (queue.fast or queue.slow).pop(0)
        taker.mailbox.run(ticket, 16)
    assert taker.mailbox.state is MailboxState.IDLE
    assert sorted(taker.taken, key=sent.index) == sent
    for lane in (Urgent, Ordinary):
        numbers = [message.number for message in taker.taken if isinstance(message, lane)]
        assert numbers == sorted(numbers)


def test_a_put_that_races_a_close_is_drained_or_answered_and_never_lost() -> None:
    for _ in range(200):
        taker = Taker()
        go = threading.Barrier(3)
        replies: list[list[ReplyFuture[Any]]] = [[], []]

        def send(mine: list[ReplyFuture[Any]], taker: Taker = taker, go: threading.Barrier = go) -> None:
            go.wait()
            mine.extend(taker.ask(Ordinary(number)) for number in range(20))

        senders = [threading.Thread(target=send, args=(mine,)) for mine in replies]
        for sender in senders:
            sender.start()
        go.wait()
        taker.mailbox.close()
        drained = taker.mailbox.drain()
        for sender in senders:
            sender.join()
        left = {id(envelope.reply_to) for envelope in drained}
        for reply in (*replies[0], *replies[1]):
            assert reply.done() != (id(reply) in left), "answered by the mailbox, or handed to the owner"
        assert taker.mailbox.drain() == []


def test_a_held_mailbox_gives_the_urgent_lane_only_and_the_rest_when_it_is_released() -> None:
    taker = Taker().idle()
    box, queue = taker.mailbox, taker.queue
    box.put(Envelope(Urgent(1)))
    box.run(queue.fast.pop(), 1)
    box.hold()
    box.put(Envelope(Ordinary(1)))
    assert (box.state, queue.slow) == (MailboxState.IDLE, []), "a held lane queues nobody"
    box.put(Envelope(Urgent(2)))
    box.run(queue.fast.pop(), 16)
    assert taker.taken == [Urgent(1), Urgent(2)]
    assert (box.state, queue.fast, queue.slow) == (MailboxState.IDLE, [], [])
    box.release()
    box.put(Envelope(Urgent(3)))
    box.run(queue.fast.pop(), 16)
    assert taker.taken == [Urgent(1), Urgent(2), Urgent(3), Ordinary(1)]


class Interrupted(int):
    """A limit; while it is compared, other code runs. So the collector may bring some at any place under the lock."""

    code: Any = None

    def __le__(self, other: object) -> bool:
        code, self.code = self.code, None
        if code is not None:
            code()
        return int(self) <= cast("int", other)


def test_l13_a_message_that_comes_in_the_middle_of_another_one_on_the_same_thread_is_taken() -> None:
    limit = Interrupted(4096)
    taker = Taker(requests_max=limit)
    taker.mailbox.start()
    taker.queue.slow.clear()

    def bring() -> None:
        for message in (NewMessage(content="1"), Urgent(2)):
            taker.mailbox.put(Envelope(message))

    limit.code = bring
    thread = threading.Thread(target=lambda: taker.mailbox.put(Envelope(NewMessage(content="0"))), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for itself"
    until(lambda: len(taker.mailbox) == 3, "all are taken")
    assert taker.mailbox.state is MailboxState.URGENT


def test_l13_a_message_that_the_garbage_collector_brings_while_another_one_comes_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may close a generator where a lane is made, and that may send to the same actor."""
    taker = Taker()
    taker.mailbox.start()
    brought = [Ordinary(1), Urgent(2)]

    def made(*items: Any) -> deque[Any]:
        while brought:
            taker.mailbox.put(Envelope(brought.pop()))
        return deque(*items)

    monkeypatch.setattr("actors.kernel.mailbox.deque", made)
    thread = threading.Thread(target=lambda: taker.mailbox.put(Envelope(Ordinary(0))), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for itself"
    assert len(taker.mailbox) == 3
