"""Where the API listens: what is made, replaced, refused, and taken over from systemd."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from actors import StoreUnavailable
from supervisor.daemon.sockets import Sockets, passed
from tests.daemon_kit import PROJECT


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


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


def test_before_it_is_private_nobody_can_connect(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert told.startswith("Invalid systemd passed a socket that the API cannot be served on")
    assert "ListenStream=" in told


def test_what_was_passed_to_another_process_is_not_ours() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "3"}
    assert passed(environment) == []
    assert environment == {}
    assert passed({}) == []
