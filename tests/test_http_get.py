"""The `http_get` tool: which hosts it asks, what it returns, and a Stop while it waits for one."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors import AsyncTurn, Invalid, ToolResult
from supervisor import Config
from supervisor.tools.http_get import GET_MAX_BYTES, REDIRECTS_MAX, HttpGet, _unpacking
from tests.kit import WAIT_S, Kit, check_rest, kit, log, say, stop

__all__ = ["kit"]


def packed(body: bytes, times: int) -> bytes:
    for _ in range(times):
        body = gzip.compress(body)
    return body


class Server(ThreadingHTTPServer):
    """Answers by path, and notes what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held, self.go_on = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked.append(self.path)
        what, _, rest = self.path[1:].partition("/")
        location, body, coding = "", b"hello", ""
        charset = rest if what == "charset" else "utf-8"
        if what == "again":
            location = f"/again/{int(rest) - 1}" if rest != "0" else "/"
        elif what == "elsewhere":
            location = server.url.replace("127.0.0.1", "localhost") + "/"
        elif what == "large":
            body = b"x" * int(rest)
        elif what == "packed":
            times, _, size = rest.partition("/")
            body, coding = packed(b"x" * int(size), int(times)), ", ".join(["gzip"] * int(times))
        elif what == "broken":
            coding = rest
        elif what == "charset":
            body = "grüße".encode("latin-1" if rest == "latin-1" else "utf-8")
        elif what == "held":
            server.held.set()
            server.go_on.wait(WAIT_S)
        self.send_response(302 if location else 404 if what == "none" else 200)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", f"text/plain; charset={charset}")
        if coding:
            self.send_header("Content-Encoding", coding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            # The client has gone, as one that is stopped does.
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.go_on.set()
        made.shutdown()
        thread.join()
        made.server_close()


def got(kit: Kit, *urls: str) -> list[ToolResult]:
    results = list[ToolResult]()

    async def agent(turn: AsyncTurn) -> None:
        for url in urls:
            results.append(await turn.call("http_get", url=url))

    session = kit.session(agent, http_hosts=["127.0.0.1"])
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).error is None
    check_rest(session)
    return results


def test_it_gets_what_a_named_host_has_and_asks_no_other(kit: Kit, server: Server) -> None:
    results = got(
        kit,
        f"{server.url}/",
        f"{server.url}/none",
        f"{server.url}/again/1",
        f"{server.url}/elsewhere",
        server.url.replace("127.0.0.1", "localhost"),
        "file:///etc/passwd",
        server.url.replace("127", "me:secret@127"),
        "http://127.0.0.1:1/",
    )
    assert [result.content for result in results[:3]] == [
        "200 OK, text/plain; charset=utf-8\n\nhello",
        "404 Not Found, text/plain; charset=utf-8\n\nhello",
        "200 OK, text/plain; charset=utf-8\n\nhello",
    ]
    assert [result.is_error for result in results] == [False] * 3 + [True] * 5
    for result in results[3:5]:
        assert "this host may not be asked; expected 127.0.0.1; got localhost" in result.content
    for result in results[5:7]:
        assert "such a URL cannot be got" in result.content
    assert "ConnectError" in results[7].content
    assert server.asked == ["/", "/none", "/again/1", "/again/0", "/", "/elsewhere"]


def test_l14_it_follows_redirects_and_returns_text_up_to_its_limits(kit: Kit, server: Server) -> None:
    full, over, enough, one_more = got(
        kit,
        f"{server.url}/large/{GET_MAX_BYTES}",
        f"{server.url}/large/{GET_MAX_BYTES + 1}",
        f"{server.url}/again/{REDIRECTS_MAX - 1}",
        f"{server.url}/again/{REDIRECTS_MAX}",
    )
    assert full.content.endswith("\n\n" + "x" * GET_MAX_BYTES)
    assert over.content.endswith("x" * 80 + f"\n[the first {GET_MAX_BYTES} bytes; there are more]")
    assert enough.content.endswith("hello")
    assert one_more.is_error
    assert f"too many redirects; expected at most {REDIRECTS_MAX}" in one_more.content


def test_l14_what_is_packed_is_unpacked_up_to_the_limit_and_no_further(kit: Kit, server: Server) -> None:
    large = 50 * GET_MAX_BYTES
    paths = ("packed/1/10", f"packed/1/{large}", f"packed/2/{large}", "broken/gzip", "broken/br")
    whole, over, twice, broken, unknown = got(kit, *(f"{server.url}/{path}" for path in paths))
    assert whole.content.endswith("\n\n" + "x" * 10)
    assert over.content.endswith("x" * 80 + f"\n[the first {GET_MAX_BYTES} bytes; there are more]")
    for result, why in ((twice, "got gzip, gzip"), (broken, "incorrect header check"), (unknown, "got br")):
        assert result.is_error
        assert why in result.content
    unpack = _unpacking(httpx.Response(200, headers={"Content-Encoding": "gzip"}))
    assert unpack(packed(b"x" * large, 1), 100) == b"x" * 100


@pytest.mark.parametrize(
    ("charset", "shown"),
    [
        ("latin-1", "grüße"),
        ("no-such", "grüße"),
        # They would block the daemon's tasks for long, or cannot be used for texts.
        ("punycode", "grüße"),
        ("idna", "grüße"),
        ("hex", "grüße"),
    ],
)
def test_the_text_has_the_encoding_that_it_names_if_that_is_one_of_texts(
    kit: Kit, server: Server, charset: str, shown: str
) -> None:
    (result,) = got(kit, f"{server.url}/charset/{charset}")
    assert result.content.endswith(f"\n\n{shown}")


def test_l1_a_stop_while_it_waits_ends_it_and_the_result_names_the_request(kit: Kit, server: Server) -> None:
    async def agent(turn: AsyncTurn) -> None:
        await turn.call("http_get", url=f"{server.url}/held/secret")

    session = kit.session(agent, http_hosts=["*"])
    run_id = say(session)
    assert server.held.wait(WAIT_S)
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    (ended,) = [event for event in check_rest(session) if event.kind == "tool.ended"]
    assert "It had begun: GET 127.0.0.1 (not known to be done)" in ended.data["content"]
    # A Stop that a busy store is slow to take is reported once it is stored, behind all else.
    assert [event.kind for event in log(session) if event.kind != "session.stop_durable"][-1] == "run.ended"
    assert server.asked == ["/held/secret"]


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("localhost:8080", "write localhost;"),
        ("http://example.org/", "write example.org;"),
        ("[::1]", "write ::1;"),
        ("example.org ", "write example.org;"),
        ("user@*.example.org", "write *.example.org;"),
        ("a b", "correct it"),
    ],
)
def test_an_entry_that_no_host_has_is_refused_with_the_right_one(tmp_path: Path, host: str, right: str) -> None:
    with pytest.raises(Invalid, match="an entry that is no host") as refused:
        Config(state_dir=tmp_path, http_hosts=[host])
    assert refused.value.remedy.startswith(right)


@pytest.mark.parametrize("host", ["bücher.example", "xn--bcher-kva.example", "*.example", "BÜCHER.example"])
@pytest.mark.parametrize("url", ["http://bücher.example/", "http://xn--bcher-kva.example:81/"])
def test_an_international_name_is_the_same_in_both_forms(tmp_path: Path, host: str, url: str) -> None:
    Config(state_dir=tmp_path, http_hosts=[host, "::1"])
    get = HttpGet([host, "::1"])
    assert get._checked(url).raw_host == b"xn--bcher-kva.example"
    assert get._checked("http://[::1]:81/").host == "::1"
    with pytest.raises(Invalid, match="may not be asked"):
        get._checked("http://bucher.test/")


def test_a_pattern_of_addresses_is_taken(tmp_path: Path) -> None:
    Config(state_dir=tmp_path, http_hosts=["2001:db8::*"])
    with pytest.raises(Invalid, match="an entry that is no host"):
        Config(state_dir=tmp_path, http_hosts=["*:8080"])
    assert HttpGet(["2001:db8::*"])._checked("http://[2001:db8::7]:81/").host == "2001:db8::7"
    with pytest.raises(Invalid, match="international name"):
        HttpGet(["?\u00fccher.example"])


def test_an_international_name_that_is_none_is_refused_wherever_it_is(kit: Kit) -> None:
    with pytest.raises(Invalid, match="international name"):
        HttpGet(["exa\u00admple.org"])

    async def agent(turn: AsyncTurn) -> list[Any]:
        result = await turn.call("http_get", url="http://xn--0/")
        return [result.is_error, result.content]

    session = kit.session(agent, http_hosts=["*"])
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    is_error, content = session.run(run_id).result
    assert is_error
    assert "nothing could be got" in content
    assert "check the URL" in content


def test_hosts_are_names(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"'http_hosts' has an invalid value"):
        Config(state_dir=tmp_path, http_hosts="example.org")
