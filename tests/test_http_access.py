"""Who may come in: by uid over the Unix socket, by a token and a Host header of ours over loopback, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import CountermandError, Invalid, StoreUnavailable
from supervisor.http.access import PEER, WHO, Access, Misdirected, Peer, peer_of, read_tokens
from supervisor.http.middleware import AdmissionMiddleware
from tests.http_kit import BEARER, TOKEN, Api, api, code, everything, get_raw
from tests.kit import WAIT_S, kit
from tests.test_http_sessions import answers, get, say, stop, waits

__all__ = ["api", "kit"]

KNOCK = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect(sys.argv[1])
sock.sendall(b"POST /v1/stop HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
data = b""
while part := sock.recv(65536):
    data += part
sys.stdout.write(data.decode())
"""


def as_user(uid: int, path: Path) -> subprocess.CompletedProcess[str]:
    """Knock at a socket as another user."""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", KNOCK, str(path), str(uid)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


# ── The Unix socket ───────────────────────────────────────────────────────────────────────────────


@needs_root
def test_another_user_is_refused_although_the_socket_lets_it_connect(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    api.path.parent.chmod(0o755)
    api.path.chmod(0o666)
    answer = as_user(65_534, api.path)
    assert answer.stdout.startswith("HTTP/1.1 403 "), answer
    assert '"code":"forbidden"' in answer.stdout
    assert "uid 65534" in answer.stdout
    assert get(client, f"/v1/runs/{run_id}")["status"] == "in_progress"


@needs_root
def test_another_user_cannot_even_connect_to_a_socket_of_mode_0600(api: Api) -> None:
    api.start(answers)
    api.path.parent.chmod(0o755)
    assert stat.S_IMODE(api.path.stat().st_mode) == 0o600
    answer = as_user(65_534, api.path)
    assert answer.returncode != 0
    assert "PermissionError" in answer.stderr


@needs_root
def test_the_user_that_is_named_is_let_in_and_the_provenance_names_him(api: Api) -> None:
    client = api.start(waits, access=Access(uids={0, 65_534}))
    run_id = say(client)["run_id"]
    api.path.parent.chmod(0o755)
    api.path.chmod(0o666)
    answer = as_user(65_534, api.path)
    assert answer.stdout.startswith("HTTP/1.1 200 "), answer
    receipt = get(client, f"/v1/sessions/s1/receipts/{run_id}", wait_s=WAIT_S)
    assert receipt["provenance"]["requested_by"] == "uid:65534"


def test_a_uid_that_is_not_let_in_is_refused_before_anything_is_read(api: Api) -> None:
    api.start(answers, access=Access(uids={os.geteuid() + 1}))
    sock = api.raw()
    # Nothing was sent: the refusal waits for nothing.
    assert sock.recv(5, socket.MSG_PEEK) == b"HTTP/"
    # And whoever sends its request then reads why, in place of a broken pipe.
    sock.sendall(get_raw("/v1/health"))
    assert everything(sock).startswith(b"HTTP/1.1 403 ")


def test_a_peer_without_a_known_user_is_let_in_nowhere() -> None:
    async def inside(*_: Any) -> None:
        raise AssertionError("it was let in")

    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
    for state in ({}, {PEER: None}, {PEER: Peer(os.geteuid() + 1)}, {WHO: "uid:0"}):
        scope = {"type": "http", "state": state, "headers": headers, "raw_path": b"/v1/health", "path": "/v1/health"}
        asyncio.run(AdmissionMiddleware(inside, Access({"a": TOKEN}))(scope, None, send))
    assert [one["status"] for one in said[::2]] == [403] * 4


# ── Loopback ──────────────────────────────────────────────────────────────────────────────────────

PATHS = ("/v1/health", "/v1/sessions", "/metrics", "/v1/openapi.json", "/v1/none", "/v1/sessions/s1/events")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_without_the_token_nothing_is_said_over_loopback(api: Api, headers: dict[str, str]) -> None:
    api.start(answers, tcp=True)
    client = api.over_tcp(headers=headers)
    for path in PATHS:
        response = client.get(path, params={"token": TOKEN})
        assert (response.status_code, code(response)) == (401, "unauthorized"), path
        assert response.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in response.text
    assert client.post("/v1/stop").status_code == 401
    assert api.supervisor.resident() == []


def test_two_tokens_at_once_are_none(api: Api) -> None:
    api.start(answers, tcp=True)
    client = api.over_tcp()
    response = client.get("/v1/health", headers=[("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")])
    assert code(response) == "unauthorized"


def test_with_the_token_everything_works_over_loopback_and_its_name_is_said(api: Api) -> None:
    api.start(waits, tcp=True)
    client = api.over_tcp(headers=BEARER)
    say(client)
    stopped = stop(client, wait_s=WAIT_S)
    assert stopped["receipt"]["provenance"]["requested_by"] == "token:tests"


def test_the_unix_socket_takes_no_token_for_a_uid(api: Api) -> None:
    api.start(answers, access=Access({"tests": TOKEN}, uids={os.geteuid() + 1}))
    sock = api.raw()
    with contextlib.suppress(BrokenPipeError):
        sock.sendall(get_raw("/v1/health", f"Authorization: Bearer {TOKEN}"))
    assert everything(sock).startswith(b"HTTP/1.1 403 ")


def test_loopback_without_any_token_refuses_every_client(api: Api) -> None:
    api.start(answers, tcp=True, access=Access())
    for headers in ({}, BEARER, {"Authorization": "Bearer"}):
        assert api.over_tcp(headers=headers).get("/v1/health").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "localhost",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "evil.example#127.0.0.1:{port}",
        "0.0.0.0:{port}",
        "127.1:{port}",
        "",
    ],
)
def test_a_name_that_was_bound_to_loopback_anew_reaches_nothing(api: Api, host: str) -> None:
    api.start(waits, tcp=True)
    client = api.over_tcp(headers={**BEARER, "Host": host.format(port=api.port)})
    response = client.get("/v1/sessions")
    assert (response.status_code, code(response)) == (421, "misdirected")


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_the_names_of_loopback_are_ours(api: Api, host: str) -> None:
    api.start(answers, tcp=True)
    client = api.over_tcp(headers={**BEARER, "Host": host.format(port=api.port)})
    assert client.get("/v1/health").status_code == 200


def test_an_address_of_loopback_that_a_connection_has_reached_is_ours_too() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server, socket.create_connection(server.getsockname()):
        reached, _ = server.accept()
        with reached:
            peer = peer_of(reached)
    assert peer is not None
    access = Access({"tests": TOKEN})
    token = (b"authorization", f"Bearer {TOKEN}".encode())
    assert access.admit(peer, [(b"host", f"127.0.0.2:{peer.port}".encode()), token]) == "token:tests"
    for other in ("127.0.0.3", "evil.example"):
        with pytest.raises(Misdirected, match=rf"127\.0\.0\.2:{peer.port}"):
            access.admit(peer, [(b"host", f"{other}:{peer.port}".encode()), token])


def test_no_answer_invites_another_origin(api: Api) -> None:
    api.start(answers, tcp=True)
    client = api.over_tcp(headers={**BEARER, "Origin": "https://evil.example"})
    for method in ("GET", "OPTIONS"):
        response = client.request(method, "/v1/sessions", headers={"Access-Control-Request-Method": "POST"})
        assert not [name for name in response.headers if name.startswith("access-control-")]


# ── The token file ────────────────────────────────────────────────────────────────────────────────


def test_a_token_file_is_made_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    old = os.umask(0)
    try:
        made = read_tokens(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(made) == ["local"]
    assert len(made["local"]) >= 32
    assert read_tokens(path) == made
    assert path.read_text().strip() == made["local"]
    assert read_tokens(tmp_path / "other") != made


def test_tokens_have_names(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"# who may come in\nci {TOKEN}\n\n{TOKEN}2\n")
    path.chmod(0o600)
    assert read_tokens(path) == {"ci": TOKEN, "local": f"{TOKEN}2"}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622])
def test_a_token_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    read_tokens(path)
    path.chmod(mode)
    with pytest.raises(Invalid) as caught:
        read_tokens(path)
    assert f"{mode:04o}" in caught.value.got


@needs_root
def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    read_tokens(path)
    os.chown(path, 65_534, 65_534)
    with pytest.raises(Invalid):
        read_tokens(path)


def test_a_token_file_that_is_a_link_or_a_directory_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    read_tokens(real)
    link = tmp_path / "link"
    link.symlink_to(real)
    for path in (link, tmp_path, tmp_path / "none" / "token"):
        with pytest.raises(CountermandError) as caught:
            read_tokens(path)
        assert isinstance(caught.value, StoreUnavailable | Invalid)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "short\n", f"a {TOKEN}\na {TOKEN}\n", f"{TOKEN}\n{TOKEN}\n"])
def test_a_token_file_without_a_token_that_can_be_used_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Invalid) as caught:
        read_tokens(path)
    assert TOKEN not in str(caught.value)
