"""Messages over a Unix socket: what was sent before the other end was closed is received, read or unread there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from supervisor.containment.packets import receive
from supervisor.containment.seed import Seed


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def test_what_was_said_before_an_end_that_left_a_request_unread_is_received(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.send(b"exited")
    theirs.send(b"empty")
    ours.send(b"kill")
    theirs.close()
    assert [receive(ours, 100) for _ in range(4)] == [(b"exited", []), (b"empty", []), (b"", []), (b"", [])]


def test_descriptors_that_come_with_a_message_are_close_on_exec(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    socket.send_fds(theirs, [b"two"], [0, 1])
    data, fds = receive(ours, 100)
    try:
        assert data == b"two"
        assert [os.get_inheritable(fd) for fd in fds] == [False, False]
    finally:
        for fd in fds:
            os.close(fd)
    with pytest.raises(BlockingIOError):
        receive(ours, 100)


@pytest.mark.parametrize("gone", [False, True])
def test_a_seed_that_ends_without_having_read_that_it_should_go_says_why(gone: bool) -> None:
    seed = Seed(None, None)
    closed, unreadable = os.pipe()
    os.close(closed)
    try:
        # Its command is in what it cannot read from.
        seed.prepare([1, 2, unreadable])
        if gone:
            os.waitid(os.P_PID, seed.pid, os.WEXITED | os.WNOWAIT)
        seed.go()
        assert seed.outcome() == "cannot prepare a process: Illegal seek"
    finally:
        os.close(unreadable)
        if (anchor := seed.weigh_anchor()) != 0:
            os.waitpid(anchor, 0)


def test_a_seed_that_was_killed_before_it_has_read_that_it_should_go_is_missed() -> None:
    seed = Seed(None, None)
    os.kill(seed.pid, 9)
    os.waitid(os.P_PID, seed.pid, os.WEXITED | os.WNOWAIT)
    seed.go()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        seed.outcome()
    seed.dismiss()
