"""Channel and Peer: lines arrive as they were written, everything is bounded, and a Stop waits behind nothing."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from supervisor.containment.reactor import Alarm
from supervisor.hosts import channel as channel_module
from supervisor.hosts.channel import MUCH_BYTES, PIECE_BYTES, REST_S, UNSENT_MAX_BYTES, Channel
from supervisor.hosts.frames import Empty, Ping
from supervisor.hosts.lines import LINE_MAX_BYTES, Code, Notification, Request
from supervisor.hosts.peer import Peer
from tests.channel_kit import Loop, OtherEnd, looping


class Lines:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ends = 0
        self.too_long_beginnings: list[bytes] = []
        # How many lines there were each time that no other followed.
        self.pieces: list[int] = []
        self.channel: Channel
        self.handle: Callable[[bytes], None] = lambda _: None

    def line(self, line: bytes) -> None:
        self.lines.append(line)
        self.handle(line)

    def too_long(self, beginning: bytes) -> None:
        self.too_long_beginnings.append(beginning)
        self.channel.close()

    def handed_over(self) -> None:
        self.pieces.append(len(self.lines))

    def at_end(self) -> None:
        self.ends += 1


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with looping() as made:
        yield made


class Answering:
    """An owner of a peer that keeps what comes, and answers what it is told to."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.notifications: list[Notification] = []
        self.broken: list[str] = []
        self.ends = 0
        self.firsts = 0

    def first(self) -> None:
        self.firsts += 1

    def requested(self, request: Request) -> None:
        self.requests.append(request)

    def notified(self, notification: Notification) -> None:
        self.notifications.append(notification)

    def pass_on(self) -> None:
        """The owner of a peer here passes nothing on."""

    def broke_protocol(self, what: str) -> None:
        self.broken.append(what)

    def at_end(self) -> None:
        self.ends += 1


class Pairs:
    """Opens channels, and closes both ends of each at the end."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._closes: list[Callable[[], object]] = []

    def open(self, *, small_buffers: bool = False) -> tuple[Lines, OtherEnd]:
        ours, theirs = sockets(small=small_buffers)
        lines = Lines()
        lines.channel = Channel(self._loop.reactor, ours, lines)
        self._loop.call(lines.channel.open)
        self._closes += [theirs.close, lambda: self._loop.call(lines.channel.close)]
        return lines, OtherEnd(theirs)

    def open_peer(self, *, small_buffers: bool = False) -> tuple[Answering, Peer, OtherEnd]:
        ours, theirs = sockets(small=small_buffers)
        owner = Answering()
        peer = Peer(self._loop.reactor, ours, owner)
        self._loop.call(peer.channel.open)
        self._closes += [theirs.close, lambda: self._loop.call(peer.close)]
        return owner, peer, OtherEnd(theirs)

    def close(self) -> None:
        while self._closes:
            self._closes.pop()()


def sockets(*, small: bool) -> tuple[socket.socket, socket.socket]:
    """A socket pair; `small`: its buffers take only a few kilobytes."""
    ours, theirs = socket.socketpair()
    if small:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return ours, theirs


@pytest.fixture
def pairs(loop: Loop) -> Iterator[Pairs]:
    made = Pairs(loop)
    yield made
    made.close()


@pytest.fixture
def pair(pairs: Pairs) -> tuple[Lines, OtherEnd]:
    return pairs.open()


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────

TEXT = 'one\n\ntwo: "ä€𝄞"\n\x00\xff\nthree\n'.encode()


@pytest.mark.parametrize("place", range(1, len(TEXT)))
def test_lines_that_are_split_at_any_byte_arrive_whole(loop: Loop, pair: tuple[Lines, OtherEnd], place: int) -> None:
    lines, other = pair
    other.write(TEXT[:place])
    loop.until(lambda: len(lines.lines) == TEXT[:place].count(b"\n"), "the first lines")
    other.write(TEXT[place:])
    loop.until(lambda: len(lines.lines) == TEXT.count(b"\n"), "all lines")
    assert lines.lines == TEXT.split(b"\n")[:-1]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    st.lists(st.integers(0, 200), max_size=6).map(sorted),
)
def test_lines_in_any_pieces_arrive_in_order(loop: Loop, sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in sent)
    with contextlib.closing(Pairs(loop)) as pairs:
        lines, other = pairs.open()
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            other.write(stream[start:end])
        other.sock.close()
        loop.until(lambda: lines.ends, "the end")
        assert lines.lines == sent


def test_a_line_as_long_as_the_limit_is_a_line(loop: Loop, pair: tuple[Lines, OtherEnd]) -> None:
    lines, other = pair
    other.write(b"x" * LINE_MAX_BYTES + b"\n")
    loop.until(lambda: lines.lines, "the line")
    assert len(lines.lines[0]) == LINE_MAX_BYTES
    assert not lines.too_long_beginnings


@pytest.mark.parametrize("newline", [b"\n", b""], ids=["whole", "unfinished"])
def test_a_longer_line_is_refused_before_its_end_comes(
    loop: Loop, pair: tuple[Lines, OtherEnd], monkeypatch: pytest.MonkeyPatch, newline: bytes
) -> None:
    monkeypatch.setattr(channel_module, "LINE_MAX_BYTES", 100)
    lines, other = pair
    other.write(b"first\n" + b"y" * 101 + newline)
    loop.until(lambda: lines.too_long_beginnings, "the refusal")
    assert lines.lines == [b"first"]
    assert lines.too_long_beginnings == [b"y" * 101]
    assert other.closed()


def test_a_line_without_its_end_was_never_said(loop: Loop, pair: tuple[Lines, OtherEnd]) -> None:
    lines, other = pair
    other.write(b"whole\nhalf")
    other.sock.close()
    loop.until(lambda: lines.ends, "the end")
    assert lines.lines == [b"whole"]
    assert lines.ends == 1


def test_a_pause_in_the_middle_of_a_piece_holds_the_lines_behind_it(loop: Loop, pair: tuple[Lines, OtherEnd]) -> None:
    lines, other = pair

    def pause_at_two(line: bytes) -> None:
        if line == b"2":
            lines.channel.pause()

    lines.handle = pause_at_two
    other.write(b"1\n2\n3\n4\n")
    other.sock.close()
    loop.until(lambda: b"2" in lines.lines, "the second line")
    assert loop.call(lambda: list(lines.lines)) == [b"1", b"2"]
    assert not lines.ends
    loop.call(lines.channel.resume)
    loop.until(lambda: lines.ends, "the end")
    assert lines.lines == [b"1", b"2", b"3", b"4"]


def test_a_pause_that_is_over_before_its_line_is_handled_holds_nothing(
    loop: Loop, pair: tuple[Lines, OtherEnd]
) -> None:
    lines, other = pair

    def pause_and_resume(_: bytes) -> None:
        lines.channel.pause()
        lines.channel.resume()

    lines.handle = pause_and_resume
    other.write(b"1\n2\n3\n")
    loop.until(lambda: len(lines.lines) == 3, "all lines")
    assert lines.lines == [b"1", b"2", b"3"]


def test_of_a_paused_host_no_more_is_held_than_was_read(loop: Loop, pairs: Pairs) -> None:
    lines, other = pairs.open(small_buffers=True)
    lines.handle = lambda _: lines.channel.pause()
    flood = b"".join(b"%d\n" % number for number in range(500_000))
    written = other.write_what_fits(flood)
    assert written < 2 * PIECE_BYTES, "the host waits in its own write"
    assert loop.call(lambda: len(lines.channel._unread)) <= PIECE_BYTES
    assert lines.lines == [b"0"]
    lines.handle = lambda _: None
    loop.call(lines.channel.resume)
    other.write(flood[written:])
    other.sock.close()
    loop.until(lambda: lines.ends, "the end")
    assert lines.lines == flood.split(b"\n")[:-1]


def test_a_flood_of_one_host_leaves_the_others_their_turn(loop: Loop, pairs: Pairs) -> None:
    quiet, other = pairs.open()
    flooding, flooder = pairs.open()
    seen_at: list[int] = []
    quiet.handle = lambda _: seen_at.append(len(flooding.lines))
    # All of it is there to be read before the reactor's next turn.
    flood = b"x\n" * (PIECE_BYTES * 4)

    def both() -> None:
        flooder.write_what_fits(flood)
        other.write(b"one line\n")

    loop.call(both)
    loop.until(lambda: seen_at, "the line of the quiet host")
    assert seen_at[0] <= PIECE_BYTES, "it waited for one piece at the most"


class HandReactor:
    """A reactor whose time, and whose turns, a test makes."""

    def __init__(self) -> None:
        self.time = 100.0
        self.watched: dict[int, Callable[[], None]] = {}
        self.alarms: list[tuple[float, Alarm]] = []

    def now(self) -> float:
        return self.time

    def watch(self, fd: int, call: Callable[[], None], *, writable: bool = False) -> None:
        assert not writable
        self.watched[fd] = call

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]

    def later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(call)
        self.alarms.append((self.time + delay_s, alarm))
        return alarm

    def elapse(self, seconds: float) -> None:
        self.time += seconds
        due = [alarm for at, alarm in self.alarms if at <= self.time]
        self.alarms = [(at, alarm) for at, alarm in self.alarms if at > self.time]
        for alarm in due:
            if alarm.call is not None:
                alarm.call()

    def turn(self) -> int:
        """Call for everything that is readable; returns how many there were."""
        ready = [self.watched[fd] for fd in select.select(list(self.watched), [], [], 0)[0]]
        for call in ready:
            call()
        return len(ready)


@pytest.fixture
def by_hand() -> Iterator[tuple[HandReactor, Lines, OtherEnd]]:
    reactor, lines = HandReactor(), Lines()
    ours, theirs = sockets(small=False)
    lines.channel = Channel(reactor, ours, lines)  # type: ignore[arg-type]  # it has what a channel uses
    lines.channel.open()
    yield reactor, lines, OtherEnd(theirs)
    lines.channel.close()
    theirs.close()


def test_a_frame_of_a_host_that_writes_seldom_is_read_at_once(by_hand: tuple[HandReactor, Lines, OtherEnd]) -> None:
    reactor, lines, other = by_hand
    for count in range(1, 6):
        other.write(b"a token\n")
        assert reactor.turn() == 1
        assert len(lines.lines) == count
        reactor.elapse(REST_S * 2)


def test_many_small_frames_of_a_host_are_read_together_after_a_rest(
    by_hand: tuple[HandReactor, Lines, OtherEnd],
) -> None:
    reactor, lines, other = by_hand
    for _ in range(2):
        other.write(b"a token\n")
        assert reactor.turn() == 1
    for _ in range(40):
        other.write(b"a token\n")
        assert reactor.turn() == 0, "it is not looked at"
    assert len(lines.lines) == 2
    reactor.elapse(REST_S)
    assert reactor.turn() == 1
    assert len(lines.lines) == 42


def test_a_host_that_writes_much_at_a_time_is_read_without_a_rest(by_hand: tuple[HandReactor, Lines, OtherEnd]) -> None:
    reactor, lines, other = by_hand
    for count in range(1, 6):
        other.write(b"x" * MUCH_BYTES + b"\n")
        while reactor.turn():
            reactor.elapse(0.0)
        if len(lines.lines) < count:
            reactor.elapse(REST_S)
            reactor.turn()
        assert len(lines.lines) == count


def test_who_receives_lines_is_told_when_no_other_follows_for_now(
    by_hand: tuple[HandReactor, Lines, OtherEnd],
) -> None:
    reactor, lines, other = by_hand
    other.write(b"one\ntwo\nhalf of thr")
    reactor.turn()
    assert lines.pieces == [2]
    lines.handle = lambda line: lines.channel.pause() if line == b"four" else None
    reactor.elapse(REST_S * 2)
    other.write(b"ee\nfour\nfive\n")
    reactor.turn()
    assert lines.pieces == [2, 4], "what is behind may have to wait for long"
    lines.channel.resume()
    assert lines.pieces == [2, 4, 5]


def test_a_rest_does_not_end_a_pause_and_is_over_with_the_channel(
    by_hand: tuple[HandReactor, Lines, OtherEnd],
) -> None:
    reactor, lines, other = by_hand
    for _ in range(2):
        other.write(b"a token\n")
        reactor.turn()
    lines.channel.pause()
    reactor.elapse(REST_S)
    assert not reactor.watched
    lines.channel.resume()
    other.write(b"a token\n")
    reactor.turn()
    reactor.turn()
    lines.channel.close()
    reactor.elapse(REST_S)
    assert not reactor.watched


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


def test_what_a_slow_host_has_not_read_is_written_in_order(loop: Loop, pairs: Pairs) -> None:
    lines, other = pairs.open(small_buffers=True)
    sent = [b"%d " % number * 300 + b"\n" for number in range(300)]

    def send() -> None:
        for line in sent:
            lines.channel.send(line)

    loop.call(send)
    assert loop.call(lambda: lines.channel.unsent_bytes) > 0
    assert b"".join(b"%s\n" % other.line() for _ in sent) == b"".join(sent)
    loop.until(lambda: lines.channel.unsent_bytes == 0, "everything to be written")
    assert lines.channel._writer is None, "nothing waits for the socket any more"


def test_a_frame_for_the_front_is_behind_the_one_that_was_begun_and_the_one_that_it_is_about(
    loop: Loop, pairs: Pairs
) -> None:
    lines, other = pairs.open(small_buffers=True)
    channel = lines.channel

    def send() -> None:
        channel.send(b"b" * 100_000 + b"\n")
        assert channel._begun, "a part of it is written"
        channel.send(b"before\n")
        run = channel.send(b"run\n")
        channel.send(b"after\n")
        first = channel.send_first(b"cancel of run\n", (run, None))
        channel.send_first(b"cancel of execute\n", (first,))
        channel.send_first(b"front\n", (None,))

    loop.call(send)
    assert [other.line() for _ in range(7)] == [
        b"b" * 100_000,
        b"front",
        b"before",
        b"run",
        b"cancel of run",
        b"cancel of execute",
        b"after",
    ]


def test_a_frame_can_be_taken_back_until_its_first_byte_is_written(loop: Loop, pairs: Pairs) -> None:
    lines, other = pairs.open(small_buffers=True)
    channel = lines.channel

    def send() -> list[bool]:
        written = channel.send(b"short\n")
        begun = channel.send(b"b" * 100_000 + b"\n")
        unsent = channel.send(b"unsent\n")
        channel.send(b"last\n")
        return [channel.take_back(written), channel.take_back(begun), channel.take_back(unsent)]

    assert loop.call(send) == [False, False, True]
    assert [other.line() for _ in range(3)] == [b"short", b"b" * 100_000, b"last"]


def test_a_host_that_reads_no_answers_is_not_read_either(loop: Loop, pairs: Pairs) -> None:
    lines, other = pairs.open(small_buffers=True)
    question, answer, count = b"question\n", b"a" * 999 + b"\n", 30_000
    lines.handle = lambda _: (lines.channel.send(answer, is_answer=True), None)[1]
    asking = threading.Thread(target=other.write, args=(question * count,))
    asking.start()
    # Not for a moment only, as after a small piece.
    loop.until(lambda: not lines.channel._watched and lines.channel._rest is None, "its reading to end")
    # It is read in pieces, and all that was read is answered.
    most = UNSENT_MAX_BYTES + PIECE_BYTES // len(question) * len(answer)
    assert UNSENT_MAX_BYTES < loop.call(lambda: lines.channel.unsent_bytes) <= most
    assert loop.call(lambda: len(lines.lines)) < count
    assert {other.line() for _ in range(count)} == {answer[:-1]}
    asking.join()
    loop.until(lambda: lines.channel._watched, "its reading to begin again")


def test_what_was_not_asked_for_does_not_stop_the_reading(loop: Loop, pairs: Pairs) -> None:
    lines, other = pairs.open(small_buffers=True)
    loop.call(lambda: lines.channel.send(b"r" * (UNSENT_MAX_BYTES * 2) + b"\n"))
    other.write(b"I have not read it\n")
    loop.until(lambda: lines.lines, "the line")


def test_sending_to_a_host_that_has_closed_ends_in_its_end(loop: Loop, pair: tuple[Lines, OtherEnd]) -> None:
    lines, other = pair
    other.sock.close()
    loop.call(lambda: [lines.channel.send(b"x" * 100_000 + b"\n") for _ in range(10)])
    loop.until(lambda: lines.ends, "the end")
    assert loop.call(lambda: lines.channel.unsent_bytes) == 0


def test_a_closed_channel_takes_nothing_and_hands_nothing_over(loop: Loop, pair: tuple[Lines, OtherEnd]) -> None:
    lines, other = pair
    lines.handle = lambda _: lines.channel.close()
    other.write(b"1\n2\n3\n")
    assert other.closed()
    loop.call(lambda: lines.channel.send(b"x\n"))
    loop.call(lines.channel.resume)
    loop.call(lines.channel.close)
    assert lines.lines == [b"1"]
    assert not lines.ends


# ── Requests and answers ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def peers(pairs: Pairs) -> tuple[Answering, Peer, OtherEnd]:
    return pairs.open_peer()


def test_each_request_is_answered_once(loop: Loop, peers: tuple[Answering, Peer, OtherEnd]) -> None:
    owner, peer, other = peers
    number = other.request("call", fence="s")
    loop.until(lambda: owner.requests, "the request")
    assert owner.requests[0].id == number

    def answer() -> None:
        peer.answer(number, Empty())
        peer.refuse(number, Code.STALE, "again")

    loop.call(answer)
    assert other.next() == {"jsonrpc": "2.0", "id": number, "result": {}}
    assert other.nothing()
    # Its id is free again.
    other.send(id=number, method="call", params={})
    loop.until(lambda: len(owner.requests) == 2, "the next request")


def test_an_answer_goes_to_the_request_with_its_id(loop: Loop, peers: tuple[Answering, Peer, OtherEnd]) -> None:
    owner, peer, other = peers
    answers: list[object] = []
    loop.call(lambda: peer.request("ping", Ping(), answers.append))
    loop.call(lambda: peer.request("run", Raw(b'{"fence":"s"}'), answers.append))
    ping, run = other.next(), other.next()
    assert run == {"jsonrpc": "2.0", "id": ping["id"] + 1, "method": "run", "params": {"fence": "s"}}
    other.refuse(run, -32000, "no")
    other.answer(ping)
    loop.until(lambda: len(answers) == 2, "both answers")
    assert not owner.broken


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([b"hello"], "no frame"),
        ([b'{"jsonrpc":"2.0","id":1,"result":{}}'], "answered 1"),
        ([b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}'], "answers no request"),
        ([b'{"jsonrpc":"2.0","id":5,"method":"a"}', b'{"jsonrpc":"2.0","id":5,"method":"b"}'], "the id 5"),
    ],
    ids=["no frame", "an answer to nothing", "an answer without an id", "an id twice"],
)
def test_a_peer_that_breaks_the_protocol_is_heard_no_more(
    loop: Loop, peers: tuple[Answering, Peer, OtherEnd], lines: list[bytes], what: str
) -> None:
    owner, _, other = peers
    other.write(b"\n".join([*lines, b'{"jsonrpc":"2.0","method":"emit"}', b""]))
    loop.until(lambda: owner.broken, "the breach")
    assert what in owner.broken[0]
    assert other.closed()
    assert not owner.notifications
    assert len(owner.broken) == 1
    assert not owner.ends


def test_a_second_answer_breaks_the_protocol(loop: Loop, peers: tuple[Answering, Peer, OtherEnd]) -> None:
    owner, peer, other = peers
    answers: list[object] = []
    loop.call(lambda: peer.request("ping", Ping(), answers.append))
    frame = other.next()
    other.answer(frame)
    other.answer(frame)
    loop.until(lambda: owner.broken, "the breach")
    assert len(answers) == 1


def test_something_stands_before_everything_that_is_written(
    loop: Loop, peers: tuple[Answering, Peer, OtherEnd]
) -> None:
    owner, peer, other = peers
    number = other.request("call", fence="s")
    loop.until(lambda: owner.requests, "the request")
    for write in (
        lambda: peer.answer(number, Empty()),
        lambda: peer.notify("credit", Ping()),
        lambda: peer.request("ping", Ping(), lambda _: None),
    ):
        before = owner.firsts
        loop.call(write)
        assert owner.firsts == before + 1
        other.next()


def test_a_request_that_was_taken_back_is_not_open(loop: Loop, pairs: Pairs) -> None:
    owner, peer, other = pairs.open_peer(small_buffers=True)

    def send() -> tuple[bool, bool]:
        peer.notify("credit", Raw(b'"' + b"x" * 200_000 + b'"'))  # type: ignore[arg-type]  # to fill the socket
        number, frame = peer.request("execute", Ping(), lambda _: None)
        return peer.take_back(number, frame), peer.take_back(number, frame)

    assert loop.call(send) == (True, False)
    other.next()
    assert other.nothing()
    other.send(id=1, result={})
    loop.until(lambda: owner.broken, "the breach")
