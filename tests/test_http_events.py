"""Events as a stream: no gap and no double, whoever reads slowly, goes away, comes back, or never reads at all."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from actors import AheadOfLog, AsyncTurn, NewMessage, StoreUnavailable
from supervisor.console.client.store_records import StoreRecords
from supervisor.http.limits import Limits
from supervisor.http.streams import MEDIA_TYPE
from tests.http_kit import Api, Sse, api, code, everything, get_raw, level, rss_bytes, threads
from tests.kit import WAIT_S, check_rest, kit, log, say, stop, until
from tests.test_http_sessions import answers, get, waits

__all__ = ["api", "kit"]

URL = "/v1/sessions/s1/events"
PIECE = "x" * 1_000
PIECES = 4_000


async def floods(turn: AsyncTurn) -> None:
    for _ in range(PIECES):
        await turn.emit(PIECE)


async def counts(turn: AsyncTurn) -> None:
    for number in range(50):
        await turn.emit(f"{number} ")


def read(api: Api, last: int, **options: Any) -> list[dict[str, Any]]:
    """Read a stream up to a seq."""
    came = []
    with api.client().stream("GET", URL, **options) as response:
        for place, kind, event in Sse(response):
            assert (place, kind) == (event["seq"], event["kind"])
            came.append(event)
            if event["seq"] >= last:
                return came
    raise AssertionError("the stream ended")


def silent(api: Api, path: str = URL) -> socket.socket:
    """Ask for a stream, take its head, and never read again."""
    sock = api.raw()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(get_raw(path))
    assert sock.recv(16).startswith(b"HTTP/1.1 200")
    return sock


def streams(client: httpx.Client) -> int:
    return level(client, "streams")


def test_a_stream_gives_what_is_stored_and_then_what_comes(api: Api) -> None:
    client = api.start(answers)
    session = api.session()
    say(session, "before")
    check_rest(session)
    with client.stream("GET", URL) as response:
        assert response.headers["content-type"] == MEDIA_TYPE
        stream = Sse(response)
        came = stream.until("run.ended")
        say(session, "after")
        came += stream.until("run.ended")
    assert [one["seq"] for one in came] == list(range(1, len(came) + 1))
    assert [one["data"]["content"] for one in came if one["kind"] == "message"] == ["before", "after"]
    stored = {one.seq: one for one in log(session)}
    assert all(one["data"] == stored[one["seq"]].data for one in came)


def test_a_client_that_comes_back_again_and_again_misses_nothing_and_gets_nothing_twice(api: Api) -> None:
    api.start(counts)
    session = api.session()
    over = threading.Event()

    def writes() -> None:
        for number in range(20):
            session.ask(NewMessage(content=f"{number}", policy="enqueue", merge=False), timeout=WAIT_S)
        over.set()

    writer = threading.Thread(target=writes)
    writer.start()
    came: list[int] = []
    deadline = time.monotonic() + 3 * WAIT_S
    try:
        while time.monotonic() < deadline:
            headers = {"Last-Event-ID": str(came[-1])} if came else {}
            with api.client().stream("GET", URL, headers=headers) as response:
                for count, (place, _, _) in enumerate(Sse(response)):
                    assert place is not None
                    came.append(place)
                    # Each time from somewhere else: out of the ring, and out of the store.
                    if count >= 7 + len(came) % 90 or (over.is_set() and place >= session.status().last_seq):
                        break
            if over.is_set() and session.status().state == "idle" and came[-1] == session.status().last_seq:
                break
    finally:
        writer.join(WAIT_S)
    assert came == list(range(1, session.status().last_seq + 1))
    assert len(came) > 1_000


def test_many_clients_at_once_all_get_the_same(api: Api) -> None:
    api.start(counts, limits=Limits(streams_max=50))
    session = api.session()
    more = [NewMessage(content=f"{number}", policy="enqueue", merge=False) for number in range(3)]
    with ThreadPoolExecutor(30) as pool:
        for one in more[:2]:
            session.ask(one, timeout=WAIT_S)
        until(lambda: api.supervisor.store.last_seq("s1") >= 90, "positions that are there")
        reads = [pool.submit(read, api, 150, params={"from_seq": number}) for number in range(0, 90, 3)]
        session.ask(more[2], timeout=WAIT_S)
        for number, came in zip(range(0, 90, 3), reads, strict=True):
            seqs = [event["seq"] for event in came.result(3 * WAIT_S)]
            assert seqs == list(range(number + 1, seqs[-1] + 1))


def test_the_last_event_id_goes_before_from_seq(api: Api) -> None:
    api.start(answers)
    say(api.session())
    last = check_rest(api.session())[-1].seq
    came = read(api, last, params={"from_seq": 0}, headers={"Last-Event-ID": "3"})
    assert came[0]["seq"] == 4


@pytest.mark.parametrize("session", ["s1", "nobody"])
def test_a_position_behind_the_end_of_the_log_is_refused(api: Api, session: str) -> None:
    client = api.start(answers)
    say(api.session())
    last = check_rest(api.session())[-1].seq
    url = f"/v1/sessions/{session}/events"
    for asked in ({"params": {"from_seq": last + 1}}, {"headers": {"Last-Event-ID": "9007199254740991"}}):
        response = client.get(url, **asked)
        assert (response.status_code, code(response)) == (409, "ahead_of_log")
        assert (f"at most {last}" if session == "s1" else "0: ") in response.json()["error"]["expected"]
    assert streams(client) == 0
    response = client.get("/v1/sessions/s1/log", params={"from_seq": last + 1})
    assert (response.status_code, code(response)) == (409, "ahead_of_log")
    with StoreRecords(api.supervisor.state_dir) as records, pytest.raises(AheadOfLog):
        records.events("s1", last + 1)


def test_a_position_at_the_end_of_the_log_is_followed(api: Api) -> None:
    client = api.start(answers)
    say(api.session())
    last = check_rest(api.session())[-1].seq
    assert get(client, "/v1/sessions/s1/log", from_seq=last) == {"events": [], "next": None}
    page = get(client, "/v1/sessions/s1/log", limit=last)
    assert (page["events"][-1]["seq"], page["next"]) == (last, None), "the page is full, and the log ends with it"
    with client.stream("GET", URL, headers={"Last-Event-ID": str(last)}) as stream:
        until(lambda: streams(api.client()) == 1, "the stream")
        say(api.session())
        place, _, _ = next(iter(Sse(stream)))
    assert place == last + 1


@pytest.mark.parametrize("given", ["-1", "x", "1.5", "9" * 17, "9" * 30, "١", ""])
def test_a_last_event_id_that_is_none_is_refused(api: Api, given: str) -> None:
    response = api.start(answers).get(URL, headers={b"Last-Event-ID": given.encode()})
    assert (response.status_code, code(response)) == (400, "invalid")


def test_ephemeral_events_come_to_clients_that_ask_and_move_no_position(api: Api) -> None:
    go_on = api.kit.gate()

    async def types(turn: AsyncTurn) -> None:
        await turn.typing()
        await turn.emit("x")
        await turn.progress(done=1)
        # Shown as they come: whoever reads the store meanwhile may be past them.
        await asyncio.to_thread(go_on.wait)

    client = api.start(types)
    with client.stream("GET", URL, params={"ephemeral": "true"}) as asked, api.client().stream("GET", URL) as other:
        until(lambda: streams(api.client()) == 2, "both streams")
        say(api.session())
        seen = _to_the_end(asked, go_on)
        plain = _to_the_end(other)
    assert {kind for place, kind in seen if place is None} == {"typing", "progress"}
    assert [one for one in seen if one[0] is not None] == plain
    assert [place for place, _ in plain] == list(range(1, len(plain) + 1))


def _to_the_end(response: httpx.Response, go_on: threading.Event | None = None) -> list[tuple[int | None, str]]:
    """Read a stream to the end of a run. `go_on`: set when what is not stored has come."""
    seen = []
    for place, kind, _ in Sse(response):
        seen.append((place, kind))
        if go_on is not None and {"typing", "progress"} <= {kind for _, kind in seen}:
            go_on.set()
        if kind == "run.ended":
            break
    return seen


def test_a_stream_of_a_session_that_does_not_exist_yet_waits_for_it(api: Api) -> None:
    client = api.start(answers)
    with client.stream("GET", URL) as response:
        until(lambda: streams(api.client()) == 1, "the stream")
        assert api.supervisor.resident() == []
        say(api.session())
        assert Sse(response).until("message")[0]["seq"] == 1


def test_a_silent_stream_says_that_it_is_there(api: Api) -> None:
    client = api.start(answers, limits=Limits(heartbeat_s=0.05))
    with client.stream("GET", URL) as response:
        lines = response.iter_lines()
        beats = 0
        for line in lines:
            beats += line == ": still here"
            if beats == 3:
                break


def test_a_client_that_goes_away_stops_nothing_and_leaves_nothing(api: Api) -> None:
    client = api.start(waits)
    session = api.session()
    say(session)
    for _ in range(5):
        with api.client().stream("GET", URL) as response:
            Sse(response).until("text")
    until(lambda: streams(client) == 0, "no stream is left")
    assert session.status().state == "running"
    stop(session)


def test_a_client_that_never_reads_costs_bounded_memory_and_delays_no_other(api: Api) -> None:
    client = api.start(floods)
    session = api.session()
    quiet = [silent(api) for _ in range(20)]
    say(session)
    check_rest(session)
    last = session.status().last_seq
    # All of it once, so that what this costs is not counted: the same for those who read.
    assert len(read(api, last)) == last
    before = rss_bytes()
    say(session)
    check_rest(session)
    quiet += [silent(api) for _ in range(80)]
    last = session.status().last_seq
    assert len(read(api, last)) == last
    stored = 2 * PIECES * len(PIECE)
    assert rss_bytes() - before < len(quiet) * stored / 10, "each holds a small part of what there is to read"
    assert streams(client) == 100
    assert get(client, "/v1/sessions/s1")["state"] == "idle"
    for one in quiet:
        one.close()
    until(lambda: streams(client) == 0, "no stream is left")


def test_large_events_do_not_add_up_in_a_client_that_never_reads(api: Api) -> None:
    piece, number = "x" * 200_000, 60

    async def speaks(turn: AsyncTurn) -> None:
        for _ in range(number):
            await turn.emit(piece)

    client = api.start(speaks)
    session = api.session()
    say(session)
    check_rest(session)
    last = session.status().last_seq
    assert len(read(api, last)) == last
    before = rss_bytes()
    quiet = [silent(api) for _ in range(50)]
    until(lambda: streams(client) == len(quiet), "all of them")
    assert len(read(api, last)) == last
    assert rss_bytes() - before < len(quiet) * number * len(piece) / 4


def test_a_client_that_takes_nothing_is_let_go(api: Api) -> None:
    client = api.start(floods, limits=Limits(stalled_s=0.5))
    session = api.session()
    say(session)
    check_rest(session)
    sock = silent(api)
    until(lambda: streams(client) == 0, "the stream is given up")
    everything(sock)
    assert session.status().state == "idle"


def test_more_streams_than_the_bound_are_refused_and_a_stop_still_gets_in(api: Api) -> None:
    client = api.start(waits, limits=Limits(streams_max=3))
    session = api.session()
    say(session)
    held = [silent(api) for _ in range(3)]
    until(lambda: streams(client) == 3, "three streams")
    refused = client.get(URL)
    assert (refused.status_code, code(refused)) == (503, "busy")
    assert client.post("/v1/sessions/s1/stop").json()["outcome"] == "stopped"
    held[0].close()
    until(lambda: streams(client) == 2, "a place")
    assert read(api, 1)


def test_a_stream_outlives_a_store_that_cannot_be_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client = api.start(answers)
    session = api.session()
    say(session)
    last = check_rest(session)[-1].seq
    store = api.supervisor.store
    original = store.events
    down = threading.Event()
    down.set()

    def events(*arguments: Any) -> Any:
        if down.is_set():
            raise StoreUnavailable("the test says so")
        return original(*arguments)

    monkeypatch.setattr(store, "events", events)
    # The ring does not reach back to the first event of a session that is larger than it.
    session._hub._channels.clear()
    with client.stream("GET", URL) as response:
        lines = response.iter_lines()
        for line in lines:
            if line.startswith(": the store cannot be read"):
                break
        down.clear()
        seqs = []
        for line in lines:
            if line.startswith("id: "):
                seqs.append(int(line[4:]))
                if seqs[-1] == last:
                    break
    assert seqs == list(range(1, last + 1))


def test_the_end_of_the_server_ends_the_streams_and_no_run(api: Api) -> None:
    client = api.start(waits)
    session = api.session()
    say(session)
    ended = []
    opened = threading.Barrier(6)

    def follow() -> None:
        with api.client().stream("GET", URL) as response:
            stream = Sse(response)
            stream.until("text")
            opened.wait(WAIT_S)
            ended.append([kind for _, kind, _ in stream])

    pool = [threading.Thread(target=follow) for _ in range(5)]
    for one in pool:
        one.start()
    opened.wait(WAIT_S)
    assert client.get("/v1/health").status_code == 200
    assert api.close_server()
    for one in pool:
        one.join(WAIT_S)
    assert ended == [[]] * 5
    assert threads() == []
    assert session.status().state == "running"


def test_a_stream_that_begins_as_the_server_ends_is_ended_too(api: Api) -> None:
    api.start(waits)
    say(api.session())
    assert api.server is not None
    assert api.server._serving is not None
    # As `end` does before it waits for the requests that are under way.
    api.server._serving._service.close()
    ended = threading.Event()

    def follow() -> None:
        with api.client().stream("GET", URL) as response:
            kinds = [kind for _, kind, _ in Sse(response)]
        if "run.ended" not in kinds:
            ended.set()

    threading.Thread(target=follow, daemon=True).start()
    assert ended.wait(WAIT_S)
    assert api.session().status().state == "running"


def test_the_end_of_the_supervisor_ends_the_streams_after_all_that_they_had_to_give(api: Api) -> None:
    client = api.start(waits)
    say(api.session())
    with client.stream("GET", URL) as response:
        stream = Sse(response)
        stream.until("text")
        closing = threading.Thread(target=api.supervisor.close)
        closing.start()
        kinds = [kind for _, kind, _ in stream]
        closing.join(WAIT_S)
    assert kinds[-1] == "run.ended"
