"""Messages over a Unix socket: what was sent before the other end was closed is received, read or unread there."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.containment.guard import procfs
from supervisor.containment.guard.ledger import encode
from supervisor.containment.guard.packets import receive
from supervisor.containment.guard.preforked import Preforked
from supervisor.containment.guard.ready import Ready
from supervisor.containment.guard.unix import FAILED, readable
from tests.process_kit import until


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
def test_a_preforked_child_that_ends_without_having_read_that_it_should_go_says_why(gone: bool) -> None:
    preforked = Preforked(None, None)
    closed, unreadable = os.pipe()
    os.close(closed)
    try:
        # Its command is in what it cannot read from.
        preforked.prepare([1, 2, unreadable])
        if gone:
            os.waitid(os.P_PID, preforked.pid, os.WEXITED | os.WNOWAIT)
        preforked.go()
        assert preforked.outcome() == "cannot prepare a process: Illegal seek"
    finally:
        os.close(unreadable)
        end_memory_holder(preforked)


def test_a_preforked_child_that_was_killed_before_it_has_read_that_it_should_go_is_missed() -> None:
    preforked = Preforked(None, None)
    os.kill(preforked.pid, signal.SIGKILL)
    os.waitid(os.P_PID, preforked.pid, os.WEXITED | os.WNOWAIT)
    preforked.go()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        preforked.outcome()
    preforked.dismiss()


def test_a_preforked_child_that_was_killed_while_it_made_its_memory_holder_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In the fork too: from here to there the memory holder has its end of the socket, in a message that nobody reads.
    monkeypatch.setattr(
        "supervisor.containment.guard.memory_holder.receive", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    )
    preforked = Preforked(None, None)
    with command("true") as fd:
        preforked.prepare([1, 2, fd])
        preforked.go()
        with pytest.raises(ConnectionResetError):
            preforked.outcome()
    preforked.dismiss()


@contextmanager
def command(*argv: str) -> Iterator[int]:
    fd = os.memfd_create("command", os.MFD_CLOEXEC)
    try:
        os.write(fd, encode({"word": "command", "argv": argv, "cwd": "/", "env": {"PATH": "/bin:/usr/bin"}}))
        yield fd
    finally:
        os.close(fd)


def end_memory_holder(preforked: Preforked) -> None:
    if (holder := preforked.release_holder()) != 0:
        os.waitpid(holder, 0)


def test_a_reason_that_is_cut_off_within_a_character_is_a_reason() -> None:
    preforked = Preforked(None, None)
    with command("/" + "\u4e2d" * 1700) as fd:
        preforked.prepare([1, 2, fd])
        preforked.go()
        assert preforked.outcome().startswith("cannot execute '/\u4e2d\u4e2d")
    end_memory_holder(preforked)


def test_l3_a_preforked_child_does_not_become_the_command_of_a_warden_that_is_dead() -> None:
    preforked = Preforked(None, None)
    until(lambda: readable(preforked._sock.fileno()), "it has said who its memory holder is")
    with command("true") as fd:
        os.kill(preforked.pid, signal.SIGSTOP)
        until(lambda: (seen := procfs.stat(preforked.pid)) is not None and seen.state == "T", "it is stopped")
        preforked.prepare([1, 2, fd])
        preforked.go()
        # As with the warden: what the child has said is not read.
        preforked._sock.close()
        os.kill(preforked.pid, signal.SIGCONT)
        _, status = os.waitpid(preforked.pid, 0)
    assert os.waitstatus_to_exitcode(status) == FAILED
    os.close(preforked._hold)
    for pid in procfs.own_children():
        if (seen := procfs.stat(pid)) is not None and seen.name == "cm-prefork":
            os.waitpid(pid, 0)


def test_a_preforked_child_that_could_not_be_prepared_before_a_request_is_replaced() -> None:
    ready = Ready.__new__(Ready)
    ready.preforked = preforked = Preforked(None, None)
    ready.namespace = None
    os.kill(preforked.pid, signal.SIGKILL)
    os.waitid(os.P_PID, preforked.pid, os.WEXITED | os.WNOWAIT)
    with command("true") as fd:
        ready.prepare([1, 2, fd])
    assert ready.preforked is None
    assert procfs.stat(preforked.pid) is None


def test_why_a_preforked_child_could_not_begin_is_said_also_where_its_command_did_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room() -> None:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    # In the fork too: what it does first needs descriptors.
    monkeypatch.setattr("supervisor.containment.guard.preforked.warm_up", no_room)
    preforked = Preforked(None, None)
    os.waitid(os.P_PID, preforked.pid, os.WEXITED | os.WNOWAIT)
    with command("true") as fd, pytest.raises(ConnectionError):
        preforked.prepare([1, 2, fd])
    preforked.go()
    assert preforked.outcome() == "cannot prepare a process: Too many open files in system"
    end_memory_holder(preforked)
