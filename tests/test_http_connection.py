"""What no good client sends, and what clients do that never end: bounds on bodies, headers, time and connections."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from actors import NewMessage, TooLarge
from supervisor.http.connection import Connection
from supervisor.http.limits import Limits
from tests.http_kit import TOKEN, Api, api, code, everything, get_raw, level, rss_bytes, threads
from tests.kit import WAIT_S, kit, until
from tests.test_http_events import silent
from tests.test_http_sessions import answers, get, running, say, stop, waits

__all__ = ["api", "kit"]

MESSAGES = "/v1/sessions/s1/messages"


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """Let this process have as many descriptors as it may; both ends of a connection are in it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 65_536
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(most, 8_192)), hard))
    yield min(most, 8_192)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def post_raw(body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A message as bytes, with a body as it is."""
    said = [f"POST {MESSAGES} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any("Transfer-Encoding" in one for one in headers):
        said.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*said, "", ""]).encode() + body


def exchange(api: Api, data: bytes) -> bytes:
    """Send bytes, and read what comes to the end of the connection."""
    sock = api.raw()
    # It may be refused before it was sent whole; the answer is there all the same.
    with contextlib.suppress(OSError):
        sock.sendall(data)
    return everything(sock)


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"content": 1}',
        b'{"content": null}',
        b'{"content": "x", "content2": "y"}',
        b'{"content": "x", "merge": 0}',
        b'{"content": "x", "merge": "true"}',
        b'{"content": "x", "policy": "maybe"}',
        b'{"content": "x", "sent_at": "yesterday"}',
        b'{"content": "x", "sent_at": 1e999}',
        b'{"content": "x", "sent_at": NaN}',
        b'{"content": "x", "origin": " "}',
        b'{"content": "x", "id": ""}',
        b'{"content": "x", "id": "run_1"}',
        b'{"content": "x", "id": "' + b"y" * 129 + b'"}',
        b'{"content": "\xff"}',
        b'{"content": "\\ud800"}',
        b'{"content": "x"} trailing',
        b'\xef\xbb\xbf{"content": "x"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"content=x",
        b"1" * 10_000,
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_a_body_that_cannot_be_right_is_refused_and_makes_nothing(api: Api, body: bytes) -> None:
    client = api.start(answers)
    response = client.post(MESSAGES, content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, code(response)) == (400, "invalid")
    assert get(client, "/v1/sessions")["sessions"] == []


@pytest.mark.parametrize(
    "declared",
    [
        (),
        ("text/plain",),
        ("application/x-www-form-urlencoded",),
        ("application/json; charset=utf-16",),
        ("application/jsonp",),
        ("application/json", "text/plain"),
    ],
)
def test_a_body_that_is_not_declared_as_json_is_refused(api: Api, declared: tuple[str, ...]) -> None:
    client = api.start(answers)
    body = b'{"content": "x"}'
    headers = [("Content-Type", kind) for kind in declared]
    for content in (body, iter([body])):
        response = client.post(MESSAGES, content=content, headers=headers)
        assert (response.status_code, code(response)) == (415, "unsupported_media_type")
    assert get(client, "/v1/sessions")["sessions"] == []


@pytest.mark.parametrize(
    "declared", ["application/json", "Application/JSON; Charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_a_body_that_is_declared_as_json_is_taken(api: Api, declared: str) -> None:
    client = api.start(answers)
    assert client.post(MESSAGES, content=b'{"content": "x"}', headers={"Content-Type": declared}).status_code == 202
    assert client.post("/v1/sessions/s1/stop").status_code == 200, "where there is no body nothing has to be declared"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, b'{"content": "x", "content": "y"}'),
        (MESSAGES, b'{"content": "x", "sent_at": 1, "cont\\u0065nt": "x"}'),
        ("/v1/stop", b'{"reason": "x", "reason": "x"}'),
        ("/v1/runs/run_x/kill", b'{"wait_s": 1, "wait_s": ' + b"1" * 5_000 + b"}"),
    ],
)
def test_a_field_that_is_named_twice_is_refused(api: Api, path: str, body: bytes) -> None:
    client = api.start(answers)
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, code(response)) == (400, "invalid")
    assert get(client, "/v1/sessions")["sessions"] == []


def test_a_parameter_that_is_named_twice_is_refused(api: Api) -> None:
    client = api.start(answers)
    for query in ("limit=1&limit=2", "limit=1&lim%69t=1", "x&x"):
        response = client.get(f"/v1/sessions?{query}")
        assert (response.status_code, code(response)) == (400, "invalid")


@pytest.mark.parametrize("size", [1_001, 300_000, 9_000_000])
def test_what_is_too_large_has_one_code_and_says_the_limit(api: Api, size: int) -> None:
    client = api.start(answers, message_max_bytes=1_000, attachments_max_bytes=1_000)
    assert say(client, "x" * 1_000)["run_id"]
    response = client.post(MESSAGES, json={"content": "x" * size})
    assert (response.status_code, code(response)) == (413, "too_large")
    assert ("8388608" if size > 8_388_608 else "1000") in response.json()["error"]["expected"]
    with pytest.raises(TooLarge):
        api.session().ask(NewMessage(content="x" * size), timeout=WAIT_S)


def test_a_message_that_is_not_too_large_fits_into_a_body_however_it_is_written(api: Api) -> None:
    client = api.start(answers, message_max_bytes=2_000_000)
    assert say(client, "\x01" * 2_000_000)["run_id"]
    response = client.post(MESSAGES, json={"content": "x" * 2_000_001})
    assert (response.status_code, code(response)) == (413, "too_large")


def test_a_body_over_the_limit_is_refused_and_costs_no_memory(api: Api) -> None:
    client = api.start(answers, limits=Limits(body_max=100_000))
    assert client.post(MESSAGES, json={"content": "x" * 90_000}).status_code == 202
    response = client.post(MESSAGES, json={"content": "x" * 100_001})
    assert (response.status_code, code(response)) == (413, "too_large")

    def chunks() -> Iterator[bytes]:
        yield b'{"content": "'
        for _ in range(20):
            yield b"x" * 6_000

    response = client.post(MESSAGES, content=chunks(), headers={"Content-Type": "application/json"})
    assert (response.status_code, code(response)) == (413, "too_large")
    assert client.get("/v1/health").status_code == 200


def test_a_body_without_an_end_is_cut_off(api: Api) -> None:
    api.start(answers, limits=Limits(body_max=100_000))
    before = rss_bytes()
    for head in (
        post_raw(b"", "Transfer-Encoding: chunked"),
        post_raw(b"", length=10**15),
        # Refused by its path; the rest is dropped, and not for ever.
        post_raw(b"", length=10**15).replace(b"/messages", b"/none"),
    ):
        sock = api.raw()
        sent = 0
        try:
            sock.sendall(head)
            while sent < 500_000_000:
                piece = b"x" * 65_536
                sock.sendall(b"10000\r\n" + piece + b"\r\n" if b"chunked" in head else piece)
                sent += len(piece)
        except OSError:
            pass
        assert sent < 50_000_000
    assert rss_bytes() - before < 50_000_000
    assert api.client().get("/v1/health").status_code == 200


# ── What is no HTTP ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\nx: \x00\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(5_000)) + b"\r\n",
        b"POST /v1/stop HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/stop HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(11),
)
def test_what_is_no_request_is_refused_and_disturbs_no_other_connection(api: Api, data: bytes) -> None:
    client = api.start(waits, limits=Limits(request_s=1.0))
    tell(api)
    answer = exchange(api, data)
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
    assert b'{"error":{"code":"invalid"' in answer
    assert get(client, "/v1/sessions/s1")["state"] == "running"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 20_000,
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\n" + b"\r\n".join(b"x-%d: y" % number for number in range(3_000)),
        b"GET /v1/health?x=" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: a",
        b"GET /v1/sessions/" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: a",
    ],
    ids=["one", "many", "query", "path"],
)
@pytest.mark.parametrize("piece", [1_000, 10**6])
def test_headers_over_the_limit_are_refused_at_once_or_in_pieces(api: Api, head: bytes, piece: int) -> None:
    api.start(answers)
    sock = api.raw()
    data = head + b"\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        for start in range(0, len(data), piece):
            sock.sendall(data[start : start + piece])
    assert everything(sock)[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")


def test_a_stop_counts_although_its_sender_is_gone_before_the_answer(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    sock = api.raw()
    sock.sendall(b"POST /v1/sessions/s1/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    sock.close()
    until(lambda: get(client, "/v1/sessions/s1")["state"] == "idle", "the stop")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sessions/../../etc/passwd", 404),
        ("/v1/sessions/..", 404),
        ("/v1/../v1/health", 404),
        ("/v1/sessions/%2e%2e/thread", 404),
        ("/v1/sessions/%2e%2e%2f%2e%2e%2fetc%2fpasswd/thread", 404),
        ("/v1/sessions/s1/runs/..%2f..%2fstore.sqlite3", 404),
        ("/v1/sessions/s1/receipts/%2Fetc%2Fpasswd", 404),
        ("/v1/runs/..%2F..%2Flock", 404),
        ("/v1/sessions//thread", 400),
        ("//v1/health", 400),
        ("/v1/sessions/%00/thread", 400),
        ("/v1/sessions/a%0d%0ab/thread", 400),
        ("/v1/sessions/%ff/thread", 400),
        ("/v1/sessions/" + "x" * 129 + "/thread", 400),
        ("/v1/sessions/%20/thread", 400),
        ("/v1/%68ealth", 404),
        ("/v1/sessions/s1/thread/../log", 404),
        ("/v1/sessions/s1%3Fx/thread", 404),
        ("http://evil.example/v1/health", 400),
        ("*", 404),
    ],
)
def test_no_path_leads_anywhere_but_where_it_says(api: Api, path: str, status: int) -> None:
    client = api.start(answers)
    say(client)
    answer = exchange(api, get_raw(path, "Connection: close"))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]
    assert b"root:" not in answer
    assert b"SQLite" not in answer
    assert [one["session"] for one in get(client, "/v1/sessions")["sessions"]] == ["s1"]


def test_requests_behind_one_another_on_one_connection_are_answered_in_order(api: Api) -> None:
    api.start(answers)
    sock = api.raw()
    sock.sendall(get_raw("/v1/health") * 50 + get_raw("/v1/info", "Connection: close"))
    answer = everything(sock)
    assert answer.count(b"HTTP/1.1 200 ") == 51
    assert answer.rstrip().endswith(b"}")
    assert answer.rindex(b'"pid"') > answer.rindex(b'"status"')


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("what", ["waits", "streams"])
def test_l14_a_client_that_goes_away_with_bytes_behind_keeps_no_place(api: Api, what: str, tcp: bool) -> None:
    # Over TCP its end is stuck behind what it sent.
    client = api.start(waits, tcp=True, limits=Limits(stalled_s=0.5 if tcp else 600.0))
    run_id = say(client)["run_id"]
    path = {"waits": f"/v1/sessions/s1/receipts/{run_id}?wait_s=600", "streams": "/v1/sessions/s1/events"}[what]
    sock = api.raw_tcp() if tcp else api.raw()
    head = get_raw(path, f"Authorization: Bearer {TOKEN}")
    sock.sendall(head.replace(b"Host: localhost", b"Host: localhost:%d" % api.port) if tcp else head)
    until(lambda: level(client, what) == 1, "its place")
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            # More than is read ahead: the rest lies in the kernel.
            sock.sendall(get_raw("/v1/health") * 100)
    sock.close()
    until(lambda: level(client, what) == 0, "that its place is free")
    assert get(client, "/v1/sessions/s1")["state"] == "running", "who goes away ends nothing"


def test_a_client_that_stays_with_bytes_behind_is_answered(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    sock = api.raw()
    sock.sendall(get_raw(f"/v1/sessions/s1/receipts/{run_id}?wait_s=600"))
    until(lambda: level(client, "waits") == 1, "its place")
    sock.sendall(get_raw("/v1/info", "Connection: close"))
    until(lambda: any(one.flow.read_paused for one in connections(api)), "that nothing more is read")
    assert not any(one.gone or one._overrun() for one in connections(api))
    assert stop(client)["outcome"] == "stopped"
    answer = everything(sock)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b'"receipt_id"' in answer


# ── Slow clients, and many ────────────────────────────────────────────────────────────────────────


def test_a_client_that_sends_its_request_too_slowly_gets_an_error(api: Api) -> None:
    client = api.start(answers, limits=Limits(request_s=0.5))
    halves = (b"GET /v1/health HT", b"GET /v1/health HTTP/1.1\r\nHost: a\r\n", post_raw(b'{"content"', length=1000))
    for half in halves:
        sock = api.raw()
        sock.sendall(half)
        answer = everything(sock)
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b'"request_timeout"' in answer
    assert get(client, "/v1/sessions")["sessions"] == []


def test_a_byte_now_and_then_buys_no_time(api: Api) -> None:
    api.start(answers, limits=Limits(request_s=0.5))
    sock = api.raw()
    over = threading.Event()

    def trickle() -> None:
        try:
            sock.sendall(b"GET /v1/health HTTP/1.1\r\n")
            for number in range(10_000):
                sock.sendall(b"x-%d: y\r\n" % number)
                if over.wait(0.05):
                    return
        except OSError:
            return

    trickler = threading.Thread(target=trickle)
    trickler.start()
    try:
        assert b" 408 " in everything(sock)
    finally:
        over.set()
        trickler.join(WAIT_S)


def test_a_connection_that_says_nothing_is_closed_and_one_that_is_served_is_not(api: Api) -> None:
    client = api.start(waits, limits=Limits(idle_s=0.5, heartbeat_s=0.2))
    say(client)
    served, used = silent(api), api.raw()
    # At once: what is silent for long is closed.
    used.sendall(get_raw("/v1/health"))
    fresh = api.raw()
    assert everything(fresh) == b""
    assert everything(used).startswith(b"HTTP/1.1 200 ")
    served.setblocking(True)
    heard = b""
    while heard.count(b"still here") < 5:
        heard += served.recv(65_536)


def test_a_request_that_is_being_answered_takes_as_long_as_it_takes(api: Api) -> None:
    client = api.start(waits, limits=Limits(idle_s=1.0, request_s=1.0, stalled_s=1.0))
    run_id = tell(api)
    response = client.get(f"/v1/sessions/s1/receipts/{run_id}", params={"wait_s": 3})
    assert code(response) == "receipt_pending"


def test_a_thousand_idle_connections_cost_no_thread_and_keep_no_client_out(api: Api, many_descriptors: int) -> None:
    if many_descriptors < 3_000:
        pytest.skip(f"this process may have {many_descriptors} descriptors only")
    client = api.start(waits, limits=Limits(clients_max=2_000))
    say(client)
    before = len(threading.enumerate())
    idle = [api.raw() for _ in range(1_000)]
    # Each is accepted: it is served once, and then kept.
    for one in idle[::100]:
        one.sendall(get_raw("/v1/health"))
        assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert stop(client, wait_s=WAIT_S)["receipt"]["complete"]
    assert get(api.client(), "/v1/health") == {"status": "ok"}
    assert len(threading.enumerate()) - before < 30
    assert [one for one in idle if not _open(one)] == []


def test_beyond_the_bound_the_longest_idle_goes_and_a_stop_gets_in(api: Api, many_descriptors: int) -> None:
    if many_descriptors < 3_000:
        pytest.skip(f"this process may have {many_descriptors} descriptors only")
    client = api.start(waits, limits=Limits(clients_max=20, streams_max=10))
    say(client)
    streams = [silent(api) for _ in range(10)]
    # Half of them are silent, the others have begun a request and will never end it.
    idle = []
    for number in range(1_000):
        sock = api.raw()
        if number % 2:
            sock.sendall(b"GET /v1/")
        idle.append(sock)
    fresh = api.client()
    assert stop(fresh, wait_s=WAIT_S)["outcome"] == "stopped"
    until(lambda: sum(_open(one) for one in idle) < 20, "the oldest are gone")
    assert all(_open(one) for one in streams), "nobody who is served is put out"


def test_where_every_connection_is_served_one_more_is_refused_for_now(api: Api) -> None:
    client = api.start(waits, limits=Limits(clients_max=4, streams_max=4))
    say(client)
    client.close()
    held = [silent(api) for _ in range(4)]
    sock = api.raw()
    answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"busy"' in answer
    held[0].close()
    until(lambda: _served(api), "a place")


@pytest.mark.parametrize("then", [b"", b"GET /v1/inf", b"GET\r\n\r\n", get_raw("/v1/health", "Connection: close")])
def test_l14_a_connection_that_is_closed_and_whose_client_reads_nothing_ends(api: Api, then: bytes) -> None:
    api.start(waits, limits=Limits(idle_s=3.0, request_s=0.3, stalled_s=0.5))
    tell(api, "x" * 20_000)
    sock, connection = owed(api)
    # It is closed for its idleness, its slowness, its mistake, or because it asks for that.
    sock.sendall(then)
    until(lambda: connection.leaving, "a close")
    until(lambda: let_go(sock), "its end")
    until(lambda: connection not in connections(api), "that it is forgotten")


def test_l14_connections_that_are_closed_and_not_ended_keep_no_stop_out(api: Api) -> None:
    client = api.start(waits, limits=Limits(clients_max=3, idle_s=3.0))
    say(client, "x" * 20_000)
    client.close()
    until(lambda: not connections(api), "that nobody is there")
    closed = [owed(api) for _ in range(3)]
    until(lambda: all(connection.leaving for _, connection in closed), "their closes")
    assert stop(api.client())["outcome"] == "stopped"
    until(lambda: sum(let_go(sock) for sock, _ in closed) == 1, "the end of the first")


def test_l14_connections_that_are_ended_and_take_nothing_are_still_bounded(api: Api) -> None:
    api.start(waits, limits=Limits(clients_max=3, request_s=0.3))
    tell(api, "x" * 20_000)
    slow = [told(api) for _ in range(9)]
    until(lambda: sum(let_go(sock) for sock in slow) >= 6, "the end of those beyond the bound")
    # In one piece, as it has no body.
    assert api.client().post("/v1/sessions/s1/stop").json()["outcome"] == "stopped"


def test_a_server_that_ends_takes_its_connections_and_threads_with_it(api: Api) -> None:
    api.start(answers)
    socks = [api.raw() for _ in range(10)]
    for one in socks[:5]:
        one.sendall(get_raw("/v1/health"))
        assert one.recv(65_536)
    for one in socks[5:]:
        one.sendall(b"GET /v1/heal")
    server = api.server
    assert server is not None
    assert server.close()
    assert server.close(), "again is harmless"
    assert threads() == []
    for one in socks:
        everything(one)
    with pytest.raises(ConnectionError):
        api.raw()


def tell(api: Api, content: str = "go") -> str:
    """Send a message past the API, whose limits are short here: a client sends its head and its body one by one."""
    run_id = api.session().ask(NewMessage(content=content), timeout=WAIT_S).run_id
    assert run_id is not None
    return run_id


def connections(api: Api) -> set[Connection]:
    """What the server knows of."""
    assert api.server is not None
    assert api.server._serving is not None
    return cast("set[Connection]", set(api.server._serving._server.server_state.connections))


def owed(api: Api) -> tuple[socket.socket, Connection]:
    """Ask for a thread, and read nothing, until a part of an answer is left, but too little to pause its writer."""
    before = connections(api)
    sock = api.raw()
    until(lambda: connections(api) - before, "the connection")
    (connection,) = connections(api) - before
    while not connection.owing:
        answer(sock, connection)
    assert not connection.flow.write_paused
    return sock, connection


def answer(sock: socket.socket, connection: Connection) -> None:
    """Have a request answered, and read nothing."""
    before = connection.server_state.total_requests
    sock.sendall(get_raw("/v1/sessions/s1/thread"))
    until(lambda: connection.server_state.total_requests > before, "an answer")


def told(api: Api) -> socket.socket:
    """Be told that a request takes too long, and read nothing."""
    sock, connection = owed(api)
    sock.sendall(b"GET /v1/inf")
    until(lambda: connection.leaving, "the limit")
    return sock


def let_go(sock: socket.socket) -> bool:
    """True once the other end was closed, whatever is left to be read."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _served(api: Api) -> bool:
    sock = api.raw()
    sock.sendall(get_raw("/v1/health", "Connection: close"))
    return everything(sock).startswith(b"HTTP/1.1 200 ")


def _open(sock: socket.socket) -> bool:
    """True unless the other end has closed."""
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
