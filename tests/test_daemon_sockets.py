"""Where the API listens: what is made, replaced, refused, and taken over from systemd."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from actors import Invalid, StoreUnavailable
from supervisor.daemon.sockets import Sockets, passed
from tests.daemon_kit import PROJECT
from tests.process_kit import until


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged, from warnings on."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="WARNING")
    yield lines
    logger.remove(sink)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def test_the_socket_is_private_listens_and_is_taken_away(state: Path) -> None:
    path = state / "countermand.sock"
    sockets = Sockets(state, [], path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(path.lstat().st_mode), "no link to itself"
    assert connects(path)
    assert str(sockets) == str(path)
    assert not any(one.get_inheritable() for one in sockets.all)
    sockets.close()
    sockets.close()
    assert list(state.iterdir()) == []


def test_before_the_socket_is_private_no_client_can_connect(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, could = state / "countermand.sock", list[bool]()
    chmod = Path.chmod

    def watched(self: Path, mode: int) -> None:
        could.append(connects(path))
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", watched)
    Sockets(state, [], path).close()
    assert could == [False]


def test_wherever_it_is_the_state_directory_leads_to_it(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "other.sock"
    (state / "countermand.sock").symlink_to(tmp_path / "of an earlier one")
    sockets = Sockets(state, [], path)
    assert connects(state / "countermand.sock")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    sockets.close()
    assert list(state.iterdir()) == []
    assert not path.exists()


@pytest.mark.parametrize("where", ["socket", "link"])
def test_what_is_no_socket_stays_and_what_was_made_is_taken_back(state: Path, tmp_path: Path, where: str) -> None:
    path = tmp_path / "run.sock"
    taken = path if where == "socket" else state / "countermand.sock"
    taken.write_text("somebody's")
    with pytest.raises(StoreUnavailable) as caught:
        Sockets(state, [], path)
    assert str(taken) in caught.value.message
    assert taken.read_text() == "somebody's"
    assert [one for one in (path, state / "countermand.sock") if one.exists()] == [taken]


def test_tcp_is_served_too_and_a_port_that_is_taken_is_refused(state: Path) -> None:
    path = state / "countermand.sock"
    sockets = Sockets(state, [], path, ("127.0.0.1", 0))
    port = sockets.all[1].getsockname()[1]
    with socket.socket() as client:
        client.connect(("127.0.0.1", port))
    assert str(sockets) == f"{path} and 127.0.0.1:{port}"
    with pytest.raises(StoreUnavailable) as caught:
        Sockets(state, [], state / "other.sock", ("127.0.0.1", port))
    assert "http.listen" in caught.value.remedy
    assert not (state / "other.sock").exists()
    sockets.close()


def test_a_socket_of_systemds_stands_in_and_its_link_stays(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "given.sock"
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(path))
        given.listen()
        sockets = Sockets(state, [given], state / "not this")
        assert sockets.all == [given]
        sockets.close()
    assert path.exists(), "it is systemd's to remove"
    assert os.readlink(state / "countermand.sock") == str(path)


# ── What others do to them meanwhile ──────────────────────────────────────────────────────────────


def listener(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(path))
    one.listen()
    return one


def test_a_socket_that_another_process_listens_on_is_refused_and_that_process_is_named(
    state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "shared.sock"
    with listener(path):
        with pytest.raises(Invalid) as caught:
            Sockets(state, [], path)
        assert f"process {os.getpid()}" in caught.value.message
        assert connects(path)
        assert list(state.iterdir()) == []
    # It has ended without taking it away.
    sockets = Sockets(state, [], path)
    assert connects(path)
    sockets.close()


def test_one_that_cannot_be_asked_is_not_taken_away(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "datagrams"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(path))
        with pytest.raises(Invalid):
            Sockets(state, [], path)
        assert path.is_socket()


def test_one_that_is_removed_is_made_again_where_it_was_and_private(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    sockets = Sockets(state, [], path)
    assert sockets.restore() is None
    shutil.rmtree(path.parent)
    (state / "countermand.sock").unlink()
    moved = sockets.restore()
    assert moved is not None
    old, new = moved
    assert sockets.all == [new]
    assert connects(state / "countermand.sock")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert sockets.restore() is None
    old.close()
    sockets.close()
    assert list(path.parent.iterdir()) == list(state.iterdir()) == []


def test_a_socket_whose_mode_was_changed_is_the_same(state: Path) -> None:
    sockets = Sockets(state, [], state / "countermand.sock")
    (state / "countermand.sock").chmod(0o660)
    assert sockets.restore() is None
    sockets.close()


def test_a_link_that_leads_elsewhere_is_put_right(state: Path, tmp_path: Path) -> None:
    sockets = Sockets(state, [], tmp_path / "s.sock")
    (state / "countermand.sock").unlink()
    (state / "countermand.sock").symlink_to(tmp_path / "other")
    assert sockets.restore() is None
    assert connects(state / "countermand.sock")
    sockets.close()
    assert list(state.iterdir()) == []


def test_what_another_daemon_has_put_in_its_place_stays_also_at_the_end(
    state: Path, tmp_path: Path, said: list[str]
) -> None:
    path = tmp_path / "shared.sock"
    sockets = Sockets(state, [], path)
    path.unlink()
    with listener(path):
        assert sockets.restore() is None
        assert sockets.restore() is None
        assert [line for line in said if str(path) in line] == said, "it is said"
        assert len(said) == 1, "and once"
        sockets.close()
        assert connects(path)


def test_when_another_daemon_that_took_its_place_has_gone_it_comes_back(
    state: Path, tmp_path: Path, said: list[str]
) -> None:
    path = tmp_path / "shared.sock"
    sockets = Sockets(state, [], path)
    path.unlink()
    with listener(path):
        assert sockets.restore() is None
    moved = sockets.restore()
    assert moved is not None
    assert connects(path)
    moved[0].close()
    sockets.close()
    assert "is made again" in said[-1]


def test_a_state_directory_that_was_replaced_is_not_touched(state: Path, tmp_path: Path, said: list[str]) -> None:
    sockets = Sockets(state, [], state / "countermand.sock")
    state.rename(tmp_path / "moved")
    state.mkdir()
    assert sockets.restore() is None
    assert list(state.iterdir()) == []
    assert "removed or replaced" in said[-1]
    sockets.close()


def test_after_the_end_nothing_is_made_again(state: Path) -> None:
    sockets = Sockets(state, [], state / "countermand.sock")
    sockets.close()
    assert sockets.restore() is None
    assert list(state.iterdir()) == []


def test_a_daemon_that_is_just_making_its_socket_there_is_waited_for(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between its bind and its listen a socket looks as if its daemon were dead.
    path, other, started = tmp_path / "shared.sock", tmp_path / "other", list[threading.Thread]()
    other.mkdir()
    second: list[object] = []

    def start() -> None:
        try:
            second.append(Sockets(other, [], path))
        except Invalid as error:
            second.append(error)

    chmod = Path.chmod

    def meanwhile(self: Path, mode: int) -> None:
        chmod(self, mode)
        if not started:
            started.append(threading.Thread(target=start))
            started[0].start()
            # It has come as far as it can: it is looking at the lock of the directory.
            until(blocked.is_set, "the other waits")

    blocked, flock = threading.Event(), fcntl.flock

    def watched(fd: int, kind: int) -> None:
        try:
            flock(fd, kind)
        except BlockingIOError:
            blocked.set()
            raise

    monkeypatch.setattr(Path, "chmod", meanwhile)
    monkeypatch.setattr(fcntl, "flock", watched)
    sockets = Sockets(state, [], path)
    started[0].join()
    assert isinstance(second[0], Invalid)
    assert connects(path)
    sockets.close()


PASSED = """
import os, socket, sys
from supervisor.daemon.sockets import passed
environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": sys.argv[1], "LISTEN_FDNAMES": "x", "HOME": "/"}
try:
    taken = passed(environment)
except Exception as error:
    print(type(error).__name__, error)
else:
    print([one.family.name for one in taken], [one.get_inheritable() for one in taken], environment)
"""


def pass_on(*sockets: socket.socket, count: int | None = None) -> str:
    """What a process makes of sockets that it is started with."""
    script = f"{{ {sys.executable} -c '{PASSED}' {len(sockets) if count is None else count}; }}"
    for place, one in enumerate(sockets):
        script += f" {3 + place}<&{one.fileno()}"
    done = subprocess.run(
        ["bash", "-c", script],
        pass_fds=[one.fileno() for one in sockets],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    return done.stdout + done.stderr


def high(one: socket.socket) -> socket.socket:
    """The same socket, out of the way of the descriptors that it is to be passed as."""
    import fcntl

    fd = fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 50)
    one.close()
    return socket.socket(fileno=fd)


def test_what_systemd_passes_is_taken_and_goes_to_no_child(tmp_path: Path) -> None:
    with high(socket.socket(socket.AF_UNIX)) as unix, high(socket.socket()) as tcp:
        unix.bind(str(tmp_path / "s"))
        tcp.bind(("127.0.0.1", 0))
        for one in (unix, tcp):
            one.listen()
        assert pass_on(unix, tcp) == "['AF_UNIX', 'AF_INET'] [False, False] {'HOME': '/'}\n"


@pytest.mark.parametrize("kind", ["open to all", "deaf", "datagram", "no socket"])
def test_what_the_api_cannot_be_served_on_is_refused(tmp_path: Path, kind: str) -> None:
    family = socket.AF_INET if kind == "open to all" else socket.AF_UNIX
    with high(socket.socket(family, socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)) as one:
        one.bind(("0.0.0.0", 0) if kind == "open to all" else str(tmp_path / "s"))
        if kind == "open to all":
            one.listen()
        told = pass_on(*([] if kind == "no socket" else [one]), count=1)
    assert told.startswith("Invalid systemd passed a socket on which the API cannot be served")
    assert "ListenStream=" in told


def test_what_was_passed_to_another_process_is_not_ours() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "3"}
    assert passed(environment) == []
    assert environment == {}
    assert passed({}) == []
