"""The server's coming and going: in any order with the supervisor's, twice, and where it cannot be."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actors import StoreUnavailable
from supervisor.http.server import HttpServer
from tests.http_kit import Api, api, threads
from tests.kit import WAIT_S, kit
from tests.test_http_sessions import answers, get, say, waits

__all__ = ["api", "kit"]


def test_a_server_that_is_not_waited_for_answers_clients_that_came_meanwhile(api: Api) -> None:
    supervisor = api.kit.start(answers)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(api.path))
    sock.listen(16)
    api.server = HttpServer(supervisor, [sock])
    api.server.start(wait=False)
    assert get(api.client(), "/v1/health") == {"status": "ok"}
    assert api.server.serving(WAIT_S)


def test_a_server_is_closed_whenever_it_is_closed(api: Api) -> None:
    supervisor = api.kit.start(answers)
    for wait in (None, False, True):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        api.path.unlink(missing_ok=True)
        sock.bind(str(api.path))
        sock.listen(16)
        server = HttpServer(supervisor, [sock])
        if wait is not None:
            server.start(wait=wait)
        assert server.close()
        assert sock.fileno() == -1
        assert not server.serving()
        assert server.close()
    assert threads() == []


def test_a_socket_that_cannot_be_served_on_is_said(api: Api) -> None:
    supervisor = api.kit.start(answers)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server = HttpServer(supervisor, [sock])
    with pytest.raises(StoreUnavailable) as caught:
        server.start()
    assert caught.value.got
    assert sock.fileno() == -1
    assert threads() == []


def test_a_second_server_of_the_same_supervisor_takes_over(api: Api) -> None:
    client = api.start(waits)
    say(client)
    assert api.close_server()
    api.serve(api.supervisor)
    assert get(api.client(), "/v1/sessions/s1")["state"] == "running"


def test_what_a_daemon_imports_before_it_is_ready_is_light() -> None:
    program = "import sys, supervisor.http.server, supervisor.http.access; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"litestar", "uvicorn", "prometheus_client"} & set(ended.stdout.split())


def test_the_servers_threads_are_named_and_are_no_more_than_they_have_to_be(api: Api) -> None:
    client = api.start(answers)
    for _ in range(50):
        get(client, "/v1/sessions")
    assert "countermand-http" in [one.name for one in threading.enumerate()]
    assert len(threads()) <= 17


def test_the_api_loads_nothing_for_models_that_it_does_not_have() -> None:
    script = "import sys; from supervisor.http.app import _App; _App([]); sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent, timeout=WAIT_S)
