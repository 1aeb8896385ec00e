"""The channel of a command: it gets there, nobody else keeps it, and its end is seen on either side."""

from __future__ import annotations

import itertools
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.model import How
from actors.ports import SpawnSpec
from supervisor.containment.guard import procfs
from supervisor.containment.guard.command import prepare
from supervisor.containment.guard.packets import receive
from tests.process_kit import (
    NAMESPACE,
    NO_CGROUP,
    WAIT_S,
    Bench,
    bench,
    held_by,
    needs_namespaces,
    our_children,
    until,
)
from tests.test_zygote import spare_of

ECHO = """
import os, socket, sys
channel = socket.socket(fileno=int(os.environ["COUNTERMAND_CHANNEL"]))
print("here", flush=True)
while data := channel.recv(100):
    channel.sendall(data.upper())
print("the end", flush=True)
"""
"""It says again what it hears, until nobody has the other end."""

LEAKY = """
import os, sys, time
fd = int(os.environ["COUNTERMAND_CHANNEL"])
if os.fork() == 0:
    time.sleep(1000)
os.close(fd)
print("closed", flush=True)
time.sleep(1000)
"""
"""Its child keeps the channel, it itself does not."""


@pytest.fixture(
    params=[
        pytest.param(NO_CGROUP, id="plain"),
        pytest.param(NAMESPACE - {"cgroup"}, id="namespace", marks=needs_namespaces),
    ]
)
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(tmp_path, layers=request.param) as opened:
        yield opened


class Pair:
    """A channel: our end, and the end that a command gets."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(WAIT_S)
        self.name = os.readlink(f"/proc/self/fd/{self.theirs.fileno()}")

    def run(self, b: Bench, script: str, process_id: str = "p", *, close: bool = True, **options: object) -> None:
        """Spawn it with the channel, and close our copy of its end at once."""
        b.run((sys.executable, "-S", "-c", script), process_id, channel=self.theirs.fileno(), **options)  # type: ignore[arg-type]
        if close:
            self.theirs.close()

    def ask(self, text: str) -> str:
        self.ours.sendall(text.encode())
        return self.ours.recv(100).decode()

    @property
    def ended(self) -> bool:
        """True if nobody has the other end. Nothing is read that is not the end."""
        readable, _, _ = select.select([self.ours], [], [], 0)
        return bool(readable) and self.ours.recv(1, socket.MSG_PEEK) == b""

    def wait_end(self) -> None:
        """Until nobody has the other end."""
        assert self.ours.recv(100) == b""

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened = Pair()
    try:
        yield opened
    finally:
        opened.close()


def holders(name: str) -> list[int]:
    """Who, of our descendants, has that socket open."""
    found, queue = [], our_children()
    while queue:
        pid = queue.pop()
        queue += procfs.children(pid)
        try:
            if name in held_by(pid):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "pty"])
def test_a_command_talks_over_its_channel_and_sees_the_end_of_the_other_side(b: Bench, pair: Pair, pty: bool) -> None:
    pair.run(b, ECHO, pty=pty)
    assert [pair.ask("one"), pair.ask("two")] == ["ONE", "TWO"]
    assert not pair.ended
    pair.ours.close()
    assert b.owner.ended().status == 0
    assert b.owner.text(stream="stdout") == "here\nthe end\n"


@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "pty"])
def test_only_the_command_has_its_channel_once_it_has_started(b: Bench, pair: Pair, pty: bool) -> None:
    before = b.descriptors_at_rest()
    pair.run(b, ECHO, pty=pty)
    assert pair.ask("x") == "X"
    pid = b.owner.started().pid
    until(lambda: holders(pair.name) == [pid], "the command alone has it")
    # Our end, its socket to the warden, and what it prints to; no copy of the other end.
    until(lambda: b.descriptors_at_rest() == before - 1 + (2 if pty else 3), "our copy is closed")


def test_a_channel_is_the_only_descriptor_beyond_the_three(b: Bench, pair: Pair) -> None:
    look = (
        "import os\n"
        "print([fd for fd in range(1000) if os.path.exists(f'/proc/self/fd/{fd}')])\n"
        "print(os.environ['COUNTERMAND_CHANNEL'])\n"
    )
    pair.run(b, look)
    assert b.owner.ended().status == 0
    held, number = b.owner.text().splitlines()
    assert held == f"[0, 1, 2, {number}]"


def test_a_command_without_a_channel_finds_none_in_its_environment(b: Bench) -> None:
    b.run((sys.executable, "-S", "-c", "import os; print(os.environ.get('COUNTERMAND_CHANNEL'))"))
    b.owner.ended()
    assert b.owner.text() == "None\n"


def test_each_command_of_a_burst_has_its_own_channel(b: Bench) -> None:
    # The first one goes to a warden that waits, the others by the zygote.
    pairs = [Pair() for _ in range(6)]
    try:
        for number, one in enumerate(pairs):
            one.run(b, ECHO, f"p{number}")
        assert [one.ask(f"n{number}") for number, one in enumerate(pairs)] == [f"N{number}" for number in range(6)]
        for number, one in enumerate(pairs):
            one.ours.close()
            # The others live, and none of them keeps it open.
            assert b.owner.ended(f"p{number}").status == 0
    finally:
        for one in pairs:
            one.close()


def test_the_end_of_a_channel_is_seen_when_the_last_of_the_tree_has_closed_it(b: Bench, pair: Pair) -> None:
    pair.run(b, LEAKY)
    b.owner.wait_text("closed")
    assert not pair.ended
    b.trees.kill("p", 0.0)
    pair.wait_end()
    assert b.owner.ended().proven


def test_the_end_of_a_channel_is_seen_when_the_command_closes_it_and_lives(b: Bench, pair: Pair) -> None:
    pair.run(b, "import os, time; os.close(int(os.environ['COUNTERMAND_CHANNEL'])); print('closed'); time.sleep(1000)")
    pair.wait_end()
    assert "ProcessExited" not in b.owner.kinds()


def test_l3_the_end_of_a_channel_is_seen_when_its_warden_is_killed(b: Bench, pair: Pair) -> None:
    pair.run(b, ECHO)
    assert pair.ask("x") == "X"
    os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
    pair.wait_end()
    assert b.owner.ended().proven
    b.assert_nobody_left()


def test_l3_a_channel_outlives_the_zygote_and_the_next_command_has_one_too(b: Bench, pair: Pair) -> None:
    pair.run(b, ECHO)
    assert pair.ask("x") == "X"
    os.kill(b.zygote_pid(), signal.SIGKILL)
    assert pair.ask("y") == "Y"
    later = Pair()
    try:
        later.run(b, ECHO, "later")
        assert later.ask("z") == "Z"
        pair.ours.close()
        assert b.owner.ended().status == 0
        assert later.ask("z") == "Z"
    finally:
        later.close()


def test_l3_a_channel_in_the_socket_of_a_killed_zygote_is_sent_to_the_next(b: Bench, pair: Pair) -> None:
    zygote = b.zygote_pid()
    with b.stopped(zygote):
        # If there is a spare warden, the first is its.
        b.sh("echo there", "other")
        pair.run(b, ECHO)
        b.settle()
        os.kill(zygote, signal.SIGKILL)
    assert pair.ask("x") == "X"
    pair.ours.close()
    assert b.owner.ended().status == 0
    assert b.owner.ended("other").status == 0


def test_l3_a_channel_in_the_socket_of_a_killed_warden_is_sent_to_the_next(b: Bench, pair: Pair) -> None:
    zygote = b.zygote_pid()
    spare = spare_of(zygote)
    until(b.has_spare, "a warden is ready")
    with b.stopped(spare):
        pair.run(b, ECHO)
        b.settle()
        os.kill(spare, signal.SIGKILL)
    assert pair.ask("x") == "X"
    pair.ours.close()
    assert b.owner.ended().status == 0


# ── Where no command comes of it ──────────────────────────────────────────────────────────────────


def test_a_spawn_that_fails_closes_its_channel(b: Bench, pair: Pair) -> None:
    before = b.descriptors_at_rest()
    name, value = b.mark.split("=")
    spec = SpawnSpec(("no-such-command",), "test", env={name: value}, channel=pair.theirs.fileno())
    b.trees.spawn("p", spec, b.owner)  # type: ignore[arg-type]
    pair.theirs.close()
    assert b.owner.ended().how is How.NOT_STARTED
    pair.wait_end()
    until(lambda: b.descriptors_at_rest() <= before - 1, "nothing is left open")


@pytest.mark.parametrize("why", ["killed", "no words", "closing", "closed", "known"])
def test_a_spawn_that_is_not_made_closes_its_channel(b: Bench, pair: Pair, why: str) -> None:
    if why == "killed":
        with b.unable_to_spawn(b.zygote_pid()):
            pair.run(b, ECHO)
            b.trees.kill("p", 0.0)
            b.settle()
        assert b.owner.ended().how is How.NOT_STARTED
    elif why == "no words":
        b.trees.spawn("p", SpawnSpec((), "test", channel=pair.theirs.fileno()), b.owner)  # type: ignore[arg-type]
        pair.theirs.close()
        assert b.owner.ended().how is How.NOT_STARTED
    elif why == "known":
        b.sh("exec sleep 1000")
        b.owner.started()
        pair.run(b, ECHO)
    else:
        if why == "closing":
            b.trees._reactor.post(b.trees._begin_closing)
        else:
            b.trees.close()
        pair.run(b, ECHO)
        assert b.owner.ended().how is How.NOT_STARTED
    pair.wait_end()


def test_a_channel_that_is_no_descriptor_ends_its_spawn_and_says_so(b: Bench) -> None:
    # Beyond any limit: another thread may open a number that was just closed.
    b.sh("echo no", channel=1 << 30)
    ended = b.owner.ended()
    assert (ended.how, ended.proven, ended.note) == (
        How.NOT_STARTED, True, "cannot pass its channel: Bad file descriptor",
    )  # fmt: skip


def test_l14_where_our_table_of_descriptors_is_full_the_spawn_ends_and_leaves_none(b: Bench, pair: Pair) -> None:
    before = b.descriptors_at_rest()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    # Room for none of what a spawn needs, for some of it, and for all but the last.
    for room in (0, 1, 3, 8):
        fillers = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 60, hard))
        try:
            while True:
                try:
                    fillers.append(os.dup(0))
                except OSError:
                    break
            for _ in range(room):
                os.close(fillers.pop())
            pair.run(b, ECHO, f"p{room}", close=False)
            ended = b.owner.ended(f"p{room}")
        finally:
            for fd in fillers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ended.how is How.NOT_STARTED
        assert "Too many open files" in ended.note
    until(lambda: b.descriptors_at_rest() <= before, "nothing is left open")
    pair.run(b, ECHO)
    assert pair.ask("x") == "X"


@pytest.mark.parametrize("room", [0, 1])
def test_l14_where_the_table_of_a_zygote_is_full_the_spawn_ends_and_says_why(b: Bench, pair: Pair, room: int) -> None:
    zygote = b.zygote_pid()
    until(b.has_spare, "a warden is ready")
    before = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{zygote}/fd")}
    most = next(most for most in itertools.count(3) if len(set(range(most)) - used) == room)
    resource.prlimit(zygote, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        # It goes to the warden that was ready, and no other can be forked.
        b.sh("exec sleep 1000", "first")
        b.owner.started("first")
        pair.run(b, ECHO)
        ended = b.owner.ended()
        assert (ended.how, ended.note) == (How.NOT_STARTED, "cannot start a warden: Too many open files")
        pair.wait_end()
    finally:
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, before)


def test_a_command_that_lost_its_channel_on_the_way_is_not_executed() -> None:
    for what in ("channel", "input"):
        spec = {"word": "command", "argv": ["/bin/true"], "cwd": "/", "env": {}, what: True}
        assert prepare(spec)() == f"cannot pass its {what}: Too many open files"


def test_as_many_descriptors_as_a_spawn_needs_come_with_one_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"five"], [0, 1, 2, 0, 1])
        data, fds = receive(ours, 100)
        assert (data, len(fds)) == (b"five", 5)
        for fd in fds:
            os.close(fd)
