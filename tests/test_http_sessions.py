"""The API, noun by noun, against a real supervisor: what comes of a message and of a stop, and what is refused.

The file has over 600 lines, and is whole: the routes of one noun, with one client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from actors import AsyncTurn, File, Invalid, NewMessage, Spawn, Turn, tool
from actors.ids import new_request_id
from actors.plugin.registration import Unloaded
from supervisor.console.client.api import Api as Daemon
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.http.limits import Limits
from supervisor.wire import MessageBody
from tests.http_kit import Api, api, code
from tests.kit import WAIT_S, check_rest, kit, log, until
from tests.media_kit import PNG

__all__ = ["api", "kit"]


@pytest.fixture
def hanging(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let reads of the store hang, by their names, until the test is over."""
    over = threading.Event()

    def hang(*names: str) -> None:
        for name in names:
            monkeypatch.setattr(api.supervisor.store, name, lambda *_: over.wait())

    yield hang
    over.set()


async def answers(turn: AsyncTurn) -> None:
    await turn.emit(f"heard {turn.inputs[-1].content}" if turn.inputs else "resumed")


async def waits(turn: AsyncTurn) -> None:
    await turn.emit("working")
    await turn.cancel_token.wait()


def say(client: httpx.Client, content: str = "go", session: str = "s1", **fields: Any) -> dict[str, Any]:
    response = client.post(f"/v1/sessions/{session}/messages", json={"content": content, **fields})
    assert response.status_code == 202, response.text
    accepted: dict[str, Any] = response.json()
    return accepted


def stop(client: httpx.Client, session: str = "s1", **fields: Any) -> dict[str, Any]:
    response = client.post(f"/v1/sessions/{session}/stop", json={"reason": "the test says so", **fields})
    assert response.status_code == 200, response.text
    stopped: dict[str, Any] = response.json()
    return stopped


def get(client: httpx.Client, path: str, **params: Any) -> Any:
    response = client.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


def running(client: httpx.Client, session: str = "s1") -> None:
    until(lambda: get(client, f"/v1/sessions/{session}")["last_seq"] >= 3, "a run that speaks")


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────


def test_a_message_runs_and_can_be_read_in_every_form(api: Api) -> None:
    client = api.start(answers)
    accepted = say(client, "hello", sent_at=2e9)
    assert accepted["policy"] == "interrupt"
    run_id = accepted["run_id"]
    receipt = get(client, f"/v1/sessions/s1/receipts/{run_id}", wait_s=WAIT_S)
    assert receipt["complete"] is True
    thread = get(client, "/v1/sessions/s1/thread")
    assert [one["content"] for one in thread["messages"]] == ["hello", "heard hello"]
    assert (thread["total"], thread["next"]) == (2, None)
    assert get(client, f"/v1/runs/{run_id}") == get(client, f"/v1/sessions/s1/runs/{run_id}")
    assert [one["run_id"] for one in get(client, "/v1/sessions/s1/runs")["runs"]] == [run_id]
    assert get(client, "/v1/sessions/s1")["state"] == "idle"
    events = get(client, "/v1/sessions/s1/log")["events"]
    assert [one["seq"] for one in events] == [one.seq for one in log(api.session())]


def test_a_log_can_be_read_for_one_run_alone(api: Api) -> None:
    client = api.start(answers)
    for content in ("one", "two"):
        get(client, f"/v1/sessions/s1/receipts/{say(client, content)['run_id']}", wait_s=WAIT_S)
    events = get(client, "/v1/sessions/s1/log")["events"]
    _, run_id = [one["run_id"] for one in events if one["kind"] == "run.started"]
    own = get(client, "/v1/sessions/s1/log", run_id=run_id)
    assert own == {"events": [one for one in events if one["run_id"] == run_id], "next": None}
    first = get(client, "/v1/sessions/s1/log", run_id=run_id, limit=1)
    assert first["events"] == own["events"][:1]
    rest = get(client, "/v1/sessions/s1/log", run_id=run_id, from_seq=first["next"])
    assert rest == {"events": own["events"][1:], "next": None}
    assert get(client, "/v1/sessions/s1/log", run_id="run_of_nobody") == {"events": [], "next": None}


def test_a_request_sent_again_has_one_effect_and_the_same_answer(api: Api) -> None:
    client = api.start(answers)
    identity = new_request_id()
    first = say(client, "once", id=identity)
    check_rest(api.session())
    assert say(client, "once", id=identity) == first
    other = client.post("/v1/sessions/s1/messages", json={"content": "twice", "id": identity})
    assert (other.status_code, code(other)) == (409, "request_reused")
    assert [one.content for one in api.session().thread() if one.role == "user"] == ["once"]


def test_a_request_of_long_ago_is_refused(api: Api) -> None:
    client = api.start(answers)
    response = client.post("/v1/sessions/s1/messages", json={"content": "x", "id": "req_" + "0" * 26})
    assert (response.status_code, code(response)) == (409, "request_too_old")


def test_every_policy_does_over_the_api_what_it_does_without(api: Api) -> None:
    client = api.start(waits)
    first = say(client)
    running(client)
    refused = client.post("/v1/sessions/s1/messages", json={"content": "x", "policy": "reject"})
    assert (refused.status_code, code(refused)) == (409, "run_active")
    assert refused.json()["error"]["run_id"] == first["run_id"]
    waiting = say(client, "later", policy="enqueue")
    assert waiting["queued"] is True
    assert waiting["generation"] is None
    taken_back = client.post("/v1/sessions/s1/withdraw", json={"message_id": waiting["message_id"]}).json()
    assert taken_back["outcome"] == "withdrawn"
    over = say(client, "now", policy="interrupt")
    assert over["superseded_run_id"] == first["run_id"]
    rolled = say(client, "again", policy="rollback")
    assert rolled["superseded_run_id"] == over["run_id"]
    assert stop(client)["outcome"] == "stopped"


def test_a_full_queue_is_said_and_says_when_to_try_again(api: Api) -> None:
    client = api.start(waits, queue_max=1)
    say(client)
    say(client, "waits", policy="enqueue")
    full = client.post("/v1/sessions/s1/messages", json={"content": "x", "policy": "enqueue"})
    assert (full.status_code, code(full)) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    assert stop(client)["withdrawn"][0]["content"] == "waits"


def test_a_message_over_the_limit_is_refused_with_the_limit(api: Api) -> None:
    client = api.start(answers, message_max_bytes=1000)
    response = client.post("/v1/sessions/s1/messages", json={"content": "x" * 1001})
    assert (response.status_code, code(response)) == (413, "too_large")
    assert "1000" in response.text


def test_parked_messages_run_when_the_session_is_resumed(api: Api) -> None:
    client = api.start(waits)
    say(client)
    say(client, "parked", policy="enqueue")
    assert stop(client, waiting="park", wait_s=WAIT_S)["receipt"]["complete"]
    assert get(client, "/v1/sessions")["sessions"][0]["parked"] is True
    resumed = client.post("/v1/sessions/s1/resume").json()
    assert [one["content"] for one in resumed["with_messages"]] == ["parked"]


# ── Stops ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_says_who_and_why_and_waits_for_its_receipt(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    running(client)
    identity = new_request_id()
    # Where the disk is slow the first answer is ahead of its record, and says so.
    until(lambda: stop(client, source="user.console", id=identity)["durable"], "a Stop on record")
    stopped = stop(client, source="user.console", id=identity, wait_s=WAIT_S)
    assert (stopped["outcome"], stopped["run_id"], stopped["durable"]) == ("stopped", run_id, True)
    provenance = stopped["receipt"]["provenance"]
    assert (provenance["source"], provenance["reason"]) == ("user.console", "the test says so")
    assert provenance["requested_by"].startswith("uid:")
    assert get(client, f"/v1/sessions/s1/receipts/{stopped['receipt_id']}") == stopped["receipt"]


def test_a_stop_without_a_body_stops(api: Api) -> None:
    client = api.start(waits)
    say(client)
    assert client.post("/v1/sessions/s1/stop").json()["outcome"] == "stopped"


def test_a_stop_that_claims_an_inside_source_is_refused(api: Api) -> None:
    client = api.start(waits)
    say(client)
    response = client.post("/v1/sessions/s1/stop", json={"source": "supervisor.shutdown"})
    assert (response.status_code, code(response)) == (400, "invalid")
    assert get(client, "/v1/sessions/s1")["state"] == "running"


def test_a_stop_of_an_unknown_session_is_refused_and_makes_none(api: Api) -> None:
    client = api.start(answers)
    for method, path in (
        ("POST", "stop"),
        ("POST", "resume"),
        ("GET", ""),
        ("GET", "thread"),
        ("GET", "runs"),
        ("GET", "log"),
        ("GET", "processes"),
        ("GET", "receipts/x"),
        ("GET", "runs/x"),
    ):
        response = client.request(method, f"/v1/sessions/typo/{path}".rstrip("/"))
        assert (response.status_code, code(response)) == (404, "not_found"), path
    assert api.supervisor.resident() == []


def test_l4_a_stop_that_says_when_it_was_sent_holds_for_a_first_message_that_it_overtakes(api: Api) -> None:
    client = api.start(answers)
    before = time.time()  # noqa: TID251  # as a client does
    stopped = stop(client, "new", sent_at=before + 0.001)
    assert stopped["outcome"] == "nothing_running"
    assert say(client, session="new", sent_at=before)["returned"] == "stopped_before_arrival"
    assert say(client, session="new", sent_at=before + 1.0)["returned"] is None
    # Aimed at a run it is about that one, and makes no session.
    aimed = client.post("/v1/sessions/typo/stop", json={"sent_at": before, "run_id": "run_none"})
    assert (aimed.status_code, code(aimed)) == (404, "not_found")
    assert client.get("/v1/sessions/typo").status_code == 404
    assert api.supervisor.resident() == ["new"]
    check_rest(api.session("new"))


def test_a_message_of_bytes_shows_what_it_can_and_hands_out_the_rest(api: Api) -> None:
    client = api.start(answers)
    data = b"caf\xe9 \xff\x00 \xf0\x9f\x98\x80"
    body = {"content_base64": base64.b64encode(data).decode(), "id": "req-bytes"}
    first, again = (client.post("/v1/sessions/s1/messages", json=body).json() for _ in range(2))
    assert first == again
    (message,) = [one for one in get(client, "/v1/sessions/s1/thread")["messages"] if one["role"] == "user"]
    assert message["content"] == "caf\ufffd \ufffd\x00 😀"
    (name,) = message["attachments"]
    answer = client.get(f"/v1/sessions/s1/attachments/{name}")
    assert (answer.content, answer.headers["content-type"]) == (data, "application/octet-stream")
    text = client.post("/v1/sessions/s1/messages", json={"content_base64": base64.b64encode("grün".encode()).decode()})
    assert text.status_code == 202
    assert [one["content"] for one in get(client, "/v1/sessions/s1/thread")["messages"] if one["role"] == "user"][
        -1
    ] == "grün"
    assert code(client.get("/v1/sessions/s1/attachments/att_none")) == "not_found"
    assert code(client.get(f"/v1/sessions/s2/attachments/{name}")) == "not_found"


def file_body(data: bytes, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"data_base64": base64.b64encode(data).decode(), "media_type": media_type, **more}


def raw_with_file() -> NewMessage:
    return NewMessage(content=os.fsdecode(b"\xff"), attachments=[File(PNG, "image/png")])


def test_a_message_with_files_is_taken_once_and_hands_them_out_as_downloads(api: Api) -> None:
    client = api.start(answers)
    files = [file_body(b"<script>", "text/html", name="page.html"), file_body(PNG)]
    body = {"content": "look", "attachments": files, "id": "req-files"}
    first, again = (client.post("/v1/sessions/s1/messages", json=body).json() for _ in range(2))
    assert first == again
    other = client.post("/v1/sessions/s1/messages", json={**body, "attachments": files[:1]})
    assert code(other) == "request_reused"
    (message,) = [one for one in get(client, "/v1/sessions/s1/thread")["messages"] if one["role"] == "user"]
    page, cat = message["attachments"]
    assert message["parts"] == [
        {"type": "media", "attachment": page, "media_type": "text/html", "size": 8, "name": "page.html"},
        {"type": "media", "attachment": cat, "media_type": "image/png", "size": len(PNG), "name": None},
        {"type": "text", "text": "look"},
    ]
    answer = client.get(f"/v1/sessions/s1/attachments/{page}")
    assert answer.content == b"<script>"
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-disposition"] == f'attachment; filename="{page}"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    answer = client.get(f"/v1/sessions/s1/attachments/{cat}")
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    assert code(client.get(f"/v1/sessions/s2/attachments/{cat}")) == "not_found"


def test_the_body_of_a_message_sends_its_files_in_their_order(api: Api) -> None:
    client = api.start(answers)
    for number, sent in enumerate(
        (
            NewMessage(parts=["a", File(PNG, "image/png", "n"), "b"]),
            NewMessage(attachments=[File(PNG, "image/png")]),
            NewMessage(content="a"),
            raw_with_file(),
        )
    ):
        body = msgspec.to_builtins(MessageBody.of(sent))
        assert client.post(f"/v1/sessions/s{number}/messages", json=body).status_code == 202
        (message,) = (one for one in api.session(f"s{number}").thread() if one.role == "user")
        assert (message.id, message.content, message.parts) == (sent.id, sent.content, sent.parts)
        assert message.attachments == sent.attachment_names


@pytest.mark.parametrize(
    "body",
    [
        {"attachments": []},
        {"content": "x", "parts": ["y"]},
        {"attachments": [file_body(PNG)], "parts": ["y"]},
        {"attachments": [file_body(PNG, "png")]},
        {"attachments": [file_body(PNG, "image/png; x=y")]},
        {"attachments": [file_body(PNG, name=" ")]},
        {"attachments": [file_body(PNG, more=1)]},
        {"attachments": [{"data_base64": "no base64!", "media_type": "image/png"}]},
        {"attachments": ["x"]},
        {"parts": [7]},
    ],
)
def test_files_that_are_none_are_refused_with_their_whole_message(api: Api, body: dict[str, Any]) -> None:
    client = api.start(answers)
    answer = client.post("/v1/sessions/s1/messages", json=body)
    assert (answer.status_code, code(answer)) == (400, "invalid")
    assert api.supervisor.resident() == []


def test_l14_files_as_large_as_a_session_takes_fit_into_a_body_and_one_byte_more_is_too_large(api: Api) -> None:
    client = api.start(answers)
    most = api.supervisor.config.attachments_max_bytes
    body = {"content": "go", "attachments": [file_body(bytes(most - 1)), file_body(b"x")]}
    assert client.post("/v1/sessions/s1/messages", json=body).status_code == 202
    body = {"content": "go", "attachments": [file_body(bytes(most)), file_body(b"x")]}
    answer = client.post("/v1/sessions/s1/messages", json=body)
    assert (answer.status_code, code(answer)) == (413, "too_large")


@pytest.mark.parametrize(
    "body", [{}, {"content": "x", "content_base64": "eA=="}, {"content_base64": "not base64!"}, {"content": None}]
)
def test_a_message_has_one_content(api: Api, body: dict[str, Any]) -> None:
    client = api.start(answers)
    answer = client.post("/v1/sessions/s1/messages", json=body)
    assert (answer.status_code, code(answer)) == (400, "invalid")
    assert api.supervisor.resident() == []


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/foo", "/v1/schema", "/v1/foo/bar", "/foo", "/"])
def test_what_is_not_there_is_refused_as_all_else_is(api: Api, path: str) -> None:
    answer = api.start(answers).get(path)
    assert (answer.status_code, code(answer)) == (404, "not_found")


def test_an_aimed_stop_and_a_kill_touch_one_run_and_no_other(api: Api) -> None:
    client = api.start(waits)
    mine, other = say(client, session="s1"), say(client, session="s2")
    running(client, "s2")
    killed = client.post(f"/v1/runs/{mine['run_id']}/kill", json={"wait_s": WAIT_S}).json()
    assert (killed["session"], killed["outcome"]) == ("s1", "stopped")
    assert killed["receipt"]["provenance"]["mode"] == "immediate"
    assert client.post(f"/v1/runs/{mine['run_id']}/kill").json()["outcome"] == "already_over"
    assert get(client, f"/v1/runs/{other['run_id']}")["status"] == "in_progress"
    assert code(client.post("/v1/runs/run_none/kill")) == "not_found"


def test_a_stop_of_all_stops_what_runs_and_leaves_what_rests(api: Api) -> None:
    client = api.start(waits)
    for number in range(5):
        say(client, session=f"s{number}")
    stop(client, "s0", wait_s=WAIT_S)
    fence = get(client, "/v1/sessions/s0")["generation"]
    identity = new_request_id()
    answer = client.post("/v1/stop", json={"reason": "enough", "id": identity}).json()
    assert answer["failed"] == []
    assert {one["session"] for one in answer["stopped"]} == {"s1", "s2", "s3", "s4"}
    assert {one["outcome"] for one in answer["stopped"]} == {"stopped"}
    assert get(client, "/v1/sessions/s0")["generation"] == fence
    for number in range(5):
        check_rest(api.session(f"s{number}"))
    by_name = {one["session"]: one["receipt_id"] for one in answer["stopped"]}
    say(client, session="s5")
    for _ in range(2):
        answer = client.post("/v1/stop", json={"reason": "enough", "id": identity}).json()
        known = {one["session"]: one["receipt_id"] for one in answer["stopped"] if one["session"] != "s5"}
        assert (answer["failed"], known) == ([], by_name), "a repeat gets the first answers"
        assert len(answer["stopped"]) == 5
        check_rest(api.session("s5"))


def test_l12_a_stop_of_all_parks_what_waits_for_an_agent_that_could_not_be_loaded(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    waiting = say(client, "later", policy="enqueue")
    api.close_server()
    api.kit.close()
    client = api.start(Unloaded("my:agent", Invalid("'my:agent' cannot be imported")))
    status = get(client, "/v1/sessions/s1")
    assert (status["state"], status["waiting"], status["parked"]) == ("idle", 1, False)
    answer = client.post("/v1/stop", json={"reason": "enough", "waiting": "park"}).json()
    assert [(one["session"], one["outcome"]) for one in answer["stopped"]] == [("s1", "nothing_running")]
    assert api.supervisor.mend({"test": answers}, {}) == ["test"]
    assert get(client, "/v1/sessions/s1")["parked"]
    client.post("/v1/sessions/s1/resume", json={})
    check_rest(api.session())
    assert get(client, f"/v1/runs/{waiting['run_id']}")["status"] == "completed"


def test_l3_a_stop_of_all_ends_what_idle_sessions_own_where_its_scope_says_so(api: Api) -> None:
    script = api.kit.script("sleep 60")

    @tool(isolation="thread")
    def serve(spawn: Spawn) -> str:
        return spawn(["sh", "-c", script], owner="session").process_id

    async def serves(turn: AsyncTurn) -> None:
        await turn.call("serve")

    client = api.start(serves, tools=[serve])
    say(client)
    check_rest(api.session())
    until(api.kit.alive, "the server")
    assert client.post("/v1/stop").json() == {"stopped": [], "failed": []}
    assert get(client, "/v1/sessions/s1")["owned"]
    answer = client.post("/v1/stop", json={"scope": "session"}).json()
    assert [one["session"] for one in answer["stopped"]] == ["s1"]
    assert answer["failed"] == []
    until(lambda: api.session().status().owned == (), "its end")
    assert api.kit.alive() == []


def test_a_session_is_deleted_with_what_runs_in_it_and_its_name_begins_anew(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    running(client)
    say(client, session="other")
    identity = new_request_id()
    deleted = client.request("DELETE", "/v1/sessions/s1", json={"reason": "done with it", "id": identity})
    assert deleted.status_code == 200, deleted.text
    assert deleted.json()["session"] == "s1"
    for _ in range(2):
        repeated = client.request("DELETE", "/v1/sessions/s1", json={"reason": "done with it", "id": identity})
        assert (repeated.status_code, repeated.json()) == (200, deleted.json()), "a repeat gets the first answer"
    assert [one["session"] for one in get(client, "/v1/sessions")["sessions"]] == ["other"]
    assert client.get(f"/v1/runs/{run_id}").status_code == 404
    say(client, "again")
    running(client)
    contents = [one["content"] for one in get(client, "/v1/sessions/s1/thread")["messages"]]
    assert contents[0] == "again"
    assert get(client, "/v1/sessions/other")["state"] == "running"
    assert code(client.delete("/v1/sessions/none")) == "not_found"
    assert code(client.get("/v1/sessions/none")) == "not_found"
    assert code(client.post("/v1/sessions/none/stop", json={"reason": "x"})) == "not_found"
    assert "none" not in [one["session"] for one in get(client, "/v1/sessions")["sessions"]]


def test_a_deleted_session_is_not_there(api: Api) -> None:
    client = api.start(answers)
    say(client)
    check_rest(api.session())
    assert client.delete("/v1/sessions/s1").status_code == 200
    for path in ("", "/thread", "/log", "/runs", "/processes"):
        assert code(client.get(f"/v1/sessions/s1{path}")) == "not_found"
    assert code(client.post("/v1/sessions/s1/resume")) == "not_found"
    assert code(client.delete("/v1/sessions/s1")) == "not_found"
    assert code(client.post("/v1/sessions/s1/stop", json={})) == "not_found", "it is not begun anew either"
    api.close_server()
    api.kit.close()
    api.serve(api.kit.start(answers))
    assert code(api.client().post("/v1/sessions/s1/stop")) == "not_found"
    assert api.supervisor.resident() == []


def test_a_stop_comes_through_while_the_store_cannot_be_read(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    busy = threading.Event()

    def hang(*_: object) -> None:
        busy.wait(WAIT_S)

    # As on a disk that hangs: each read holds its thread, and there are more of them than threads.
    store = api.supervisor.store
    originals = {name: getattr(store, name) for name in ("session", "thread", "sessions")}
    for name in originals:
        setattr(store, name, hang)
    pool = ThreadPoolExecutor(40)
    try:
        reads = [pool.submit(api.client().get, "/v1/sessions") for _ in range(40)]
        until(lambda: sum("http-read" in one.name for one in threading.enumerate()) >= 16, "busy readers")
        assert stop(client)["outcome"] == "stopped"
        assert client.get("/v1/health").status_code == 200
    finally:
        busy.set()
        for name, original in originals.items():
            setattr(store, name, original)
        pool.shutdown()
    assert all(one.done() for one in reads)


def test_a_stop_of_a_session_that_has_an_actor_reads_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client = api.start(waits)
    say(client)
    asked: list[object] = []
    monkeypatch.setattr(api.supervisor.store, "session", asked.append)
    assert stop(client)["outcome"] == "stopped"
    assert asked == []


def damage(api: Api, run_id: str, doc: bytes) -> None:
    """Put something else where a run is stored."""
    with contextlib.closing(sqlite3.connect(api.supervisor.state_dir / "store.sqlite3")) as other, other:
        other.execute("UPDATE runs SET doc = ? WHERE run_id = ?", (doc, run_id))


@pytest.mark.parametrize("doc", [b'{"session":"s1"', b'{"session":"\xff"}'])
def test_l12_a_kill_reaches_a_run_whose_row_is_damaged(api: Api, doc: bytes) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    say(client, session="other")
    running(client)
    damage(api, run_id, doc)
    killed = client.post(f"/v1/runs/{run_id}/kill").json()
    assert (killed["session"], killed["outcome"], killed["run_id"]) == ("s1", "stopped", run_id)
    check_rest(api.session())
    # It is nobody's any more, and the store cannot say whose it was.
    damage(api, run_id, doc)
    assert code(client.post(f"/v1/runs/{run_id}/kill")) == "store_unavailable"
    assert get(client, "/v1/sessions/other")["state"] == "running"


def test_l12_a_kill_finds_a_run_that_is_ending_while_the_store_hangs(api: Api, hanging: Callable[..., None]) -> None:
    release = api.kit.gate()

    def lingers(turn: Turn) -> None:
        turn.emit("working")
        release.wait()

    client = api.start(lingers)
    run_id = say(client)["run_id"]
    running(client)
    assert stop(client)["run_id"] == run_id
    hanging("find_run")
    killed = client.post(f"/v1/runs/{run_id}/kill").json()
    assert (killed["session"], killed["run_id"]) == ("s1", run_id)


def test_l12_a_kill_does_not_wait_for_a_store_that_hangs(api: Api, hanging: Callable[..., None]) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    running(client)
    hanging("find_run")
    killed = client.post(f"/v1/runs/{run_id}/kill").json()
    assert (killed["session"], killed["outcome"]) == ("s1", "stopped")
    assert code(client.post("/v1/runs/run_none/kill")) == "store_unavailable"


@pytest.mark.parametrize("waits_max", [128, 0])
def test_l12_a_stop_that_waits_for_its_receipt_does_not_wait_for_a_store_that_hangs(
    api: Api, hanging: Callable[..., None], waits_max: int
) -> None:
    client = api.start(waits, limits=Limits(waits_max=waits_max))
    say(client)
    running(client)
    hanging("is_pending", "receipt")
    stopped = stop(client, wait_s=0.2)
    assert (stopped["outcome"], stopped["receipt"]) == ("stopped", None)


def test_a_client_that_goes_away_while_it_waits_stops_nothing(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    for _ in range(3):
        impatient = api.client()
        with pytest.raises(httpx.ReadTimeout):
            impatient.get(f"/v1/sessions/s1/receipts/{run_id}", params={"wait_s": 30}, timeout=0.2)
        impatient.close()
    assert get(client, "/v1/sessions/s1")["state"] == "running"
    until(lambda: "countermand_http_waits 0.0" in client.get("/metrics").text, "no wait is left")


def test_a_receipt_that_is_not_filed_is_pending_and_then_comes(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client)["run_id"]
    url = f"/v1/sessions/s1/receipts/{run_id}"
    pending = client.get(url)
    assert (pending.status_code, code(pending)) == (409, "receipt_pending")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.client().get, url, params={"wait_s": WAIT_S})
        until(lambda: "countermand_http_waits 1.0" in client.get("/metrics").text, "a wait")
        stop(client)
        assert waiting.result(WAIT_S).json()["run_id"] == run_id


def test_waits_beyond_the_bound_are_answered_at_once(api: Api) -> None:
    client = api.start(waits, limits=Limits(waits_max=0))
    run_id = say(client)["run_id"]
    response = client.get(f"/v1/sessions/s1/receipts/{run_id}", params={"wait_s": 86_400})
    assert code(response) == "receipt_pending"


# ── What is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["a/b", "..", "../../etc/passwd", "a%2Fb", "ü ñ", "s?x#y", "a:b:1", "%", "runs"])
def test_a_name_is_a_name_whatever_is_in_it(api: Api, name: str) -> None:
    client = api.start(answers)
    from urllib.parse import quote

    segment = quote(name, safe="").replace(".", "%2E")
    say(client, "hello", session=segment)
    assert [one["session"] for one in get(client, "/v1/sessions")["sessions"]] == [name]
    check_rest(api.session(name))
    assert len(get(client, f"/v1/sessions/{segment}/thread")["messages"]) == 2
    assert get(client, f"/v1/sessions/{segment}")["session"] == name


def test_what_a_path_allows_is_said(api: Api) -> None:
    client = api.start(answers)
    assert set(client.options("/v1/sessions/s1").headers["allow"].split(", ")) == {"GET", "DELETE", "OPTIONS"}
    refused = client.put("/v1/sessions/s1")
    assert (refused.status_code, code(refused)) == (405, "method_not_allowed")
    assert "DELETE" in refused.headers["allow"]


def test_a_page_begins_where_the_last_one_ended(api: Api) -> None:
    client = api.start(answers, limits=Limits(page_bytes=2_000))
    for number in range(12):
        say(client, f"message {number} {'x' * 300}")
        check_rest(api.session())
    for path, key, place in (("log", "events", "from_seq"), ("thread", "messages", "offset")):
        items: list[Any] = []
        position: Any = 0
        pages = 0
        while position is not None:
            page = get(client, f"/v1/sessions/s1/{path}", **{place: position, "limit": 7})
            assert 1 <= len(page[key]) <= 7
            items += page[key]
            position = page["next"]
            pages += 1
        expected = len(log(api.session())) if key == "events" else len(api.session().thread())
        assert len(items) == expected
        assert pages > expected / 7, "a page is bounded by its bytes too"
    runs = get(client, "/v1/sessions/s1/runs", limit=3)
    assert len(runs["runs"]) == 3
    assert runs["more"] is True


def test_a_client_reads_all_runs_and_waiting_messages_of_whatever_size(api: Api) -> None:
    async def waits(turn: AsyncTurn) -> str:
        if turn.inputs[-1].content == "wait":
            await asyncio.Event().wait()
        return "y" * 900

    client = api.start(waits, limits=Limits(page_bytes=2_000))
    session = api.session()
    for _ in range(8):
        session.receipt(str(say(client)["run_id"]), timeout=WAIT_S)
    say(client, "wait")
    for number in range(5):
        say(client, f"{number} {'x' * 900}", policy="enqueue")
    daemon = Daemon(Endpoint(api.path.parent, api.path))
    records = RemoteRecords(daemon)
    assert records.runs("s1") == session.runs()
    assert records.runs("s1", 5) == session.runs()[-5:]
    assert [one.content[0] for one in records.waiting("s1")] == list("01234")
    daemon.close()
    stop(client, waiting="withdraw", wait_s=WAIT_S)
    check_rest(session)


def test_the_newest_messages_are_as_many_as_were_asked_for_of_whatever_size(api: Api) -> None:
    async def says(turn: AsyncTurn) -> None:
        await turn.emit("y" * 700)

    client = api.start(says, limits=Limits(page_bytes=2_000))
    session = api.session()
    for number in range(6):
        session.receipt(str(say(client, f"{number}")["run_id"]), timeout=WAIT_S)
    whole = session.thread()
    assert len(whole) == 12
    page = get(client, "/v1/sessions/s1/thread/end", last=8)
    assert page["more"] is True
    assert [one["content"] for one in page["messages"]] == [one.content for one in whole][-len(page["messages"]) :]
    assert len(page["messages"]) < 8, "a page is bounded by its bytes"
    assert get(client, "/v1/sessions/s1/thread/end", last=2)["messages"][0]["content"] == "5"
    began = get(client, "/v1/sessions/s1/thread/end", last=1, since=whole[-2].run_id)["messages"]
    assert [one["content"] for one in began] == ["5", "y" * 700]
    daemon = Daemon(Endpoint(api.path.parent, api.path))
    records = RemoteRecords(daemon)
    for last in (1, 2, 8, 11, 12, 13, 5_000):
        assert records.thread_end("s1", last) == (whole[-last:], last < 12)
    daemon.close()
    check_rest(session)


def test_sessions_are_listed_a_page_at_a_time(api: Api) -> None:
    client = api.start(answers)
    for number in range(5):
        say(client, session=f"s{number}")
    first = get(client, "/v1/sessions", limit=3)
    rest = get(client, "/v1/sessions", limit=3, after=first["next"])
    assert [one["session"] for one in first["sessions"] + rest["sessions"]] == [f"s{number}" for number in range(5)]
    assert rest["next"] is None


def test_l13_rows_that_are_damaged_hide_no_later_page(api: Api) -> None:
    client = api.start(answers)
    runs = []
    for number in range(5):
        runs.append(say(client, session=f"s{number}")["run_id"])
        check_rest(api.session(f"s{number}"))
    later = []
    for _ in range(3):
        later.append(say(client, session="s4")["run_id"])
        check_rest(api.session("s4"))
    damage(api, runs[4], b"{")
    with contextlib.closing(sqlite3.connect(api.supervisor.state_dir / "store.sqlite3")) as other, other:
        other.execute("UPDATE sessions SET doc = ? WHERE session IN ('s1', 's2', 's3')", (b'{"session":"\xff"}',))
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = get(client, "/v1/sessions", limit=2, after=after)
        found += [one["session"] for one in page["sessions"]]
        after = page["next"]
    assert found == ["s0", "s4"]
    newest = get(client, "/v1/sessions/s4/runs", limit=3)
    assert (len(newest["runs"]), newest["more"]) == (3, True)
    assert get(client, "/v1/sessions/s4/runs", limit=4)["more"] is False
    found_runs = get(client, "/v1/runs", start="run_", limit=4)
    assert ([one["run_id"] for one in found_runs["runs"]], found_runs["more"]) == ([runs[3], *later], True)
    refused = client.get("/v1/sessions/s1")
    assert (refused.status_code, code(refused)) == (503, "store_unavailable")


def test_a_message_that_a_run_has_is_not_withdrawn(api: Api) -> None:
    client = api.start(waits)
    taken, waiting = say(client), say(client, policy="enqueue", id="m2")
    response = client.post("/v1/sessions/s1/withdraw", json={"message_id": taken["message_id"]})
    assert (response.status_code, code(response)) == (409, "already_input")
    for outcome in ("withdrawn", "already_returned"):
        response = client.post("/v1/sessions/s1/withdraw", json={"message_id": waiting["message_id"]})
        assert (response.status_code, response.json()["outcome"]) == (200, outcome)
    assert say(client, policy="enqueue", id="m2") == {**waiting, "fate": "returned"}
    assert waiting["fate"] is None


def test_a_call_that_waits_is_listed_and_answered_once(api: Api) -> None:
    async def agent(turn: AsyncTurn) -> str:
        return await turn.ask("Deploy it?")

    client = api.start(agent)
    run_id = say(client)["run_id"]
    until(lambda: get(client, "/v1/sessions/s1")["asking"])
    (asking,) = get(client, "/v1/sessions/s1")["asking"]
    call_id = asking["call_id"]
    assert (asking["tool"], asking["question"], asking["approval"]) == ("ask", "Deploy it?", False)
    until(lambda: get(client, "/v1/processes")["sessions"][0]["runs"][0]["calls"])
    (listed,) = get(client, "/v1/processes")["sessions"][0]["runs"][0]["calls"]
    assert (listed["call_id"], listed["state"], listed["question"]) == (call_id, "waiting", "Deploy it?")
    body = {"call_id": call_id, "content": "yes", "id": "a1"}
    for _ in range(2):
        response = client.post("/v1/sessions/s1/answer", json=body)
        assert response.status_code == 200
        assert response.json() == {"type": "Answered", "call_id": call_id, "run_id": run_id}
    again = client.post("/v1/sessions/s1/answer", json={**body, "id": "a2"})
    assert (again.status_code, code(again)) == (404, "not_found")
    assert client.post("/v1/sessions/s1/answer", json={**body, "allowed": True}).status_code == 400
    check_rest(api.session())
    assert get(client, f"/v1/runs/{run_id}")["result"] == "yes"


def test_l2_over_the_api_too_only_a_person_allows_a_call(api: Api) -> None:
    @tool(isolation="task", approve=True)
    async def wipe() -> str:
        """Wipe it."""
        return "wiped"

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("wipe")).content

    client = api.start(agent, tools=[wipe])
    run_id = say(client)["run_id"]
    until(lambda: get(client, "/v1/sessions/s1")["asking"])
    body = {"call_id": get(client, "/v1/sessions/s1")["asking"][0]["call_id"], "allow": True}
    refused = client.post("/v1/sessions/s1/answer", json={**body, "origin": "bot"})
    assert (refused.status_code, code(refused)) == (400, "invalid")
    assert "Stop" in refused.json()["error"]["remedy"]
    assert client.post("/v1/sessions/s1/answer", json=body).status_code == 200
    check_rest(api.session())
    assert get(client, f"/v1/runs/{run_id}")["result"] == "wiped"


def test_a_page_of_runs_that_is_full_holds_the_newest(api: Api) -> None:
    client = api.start(answers, limits=Limits(page_bytes=1))
    runs = []
    for _ in range(3):
        runs.append(say(client)["run_id"])
        check_rest(api.session())
    for path, options in (("/v1/runs", {"start": "run_"}), ("/v1/sessions/s1/runs", {})):
        page = get(client, path, **options)
        assert ([run["run_id"] for run in page["runs"]], page["more"]) == (runs[-1:], True)


def test_a_session_in_quarantine_takes_a_stop_and_says_why_it_takes_nothing_else(api: Api) -> None:
    from tests.kit import poison

    client = api.start(answers)
    say(client)
    check_rest(api.session())

    def quarantined() -> bool:
        ref = api.session().ref
        if ref is not None:
            poison(ref)
        return bool(get(client, "/v1/sessions/s1")["state"] == "quarantined")

    until(quarantined, "the quarantine")
    response = client.post("/v1/sessions/s1/messages", json={"content": "x"})
    assert (response.status_code, code(response)) == (423, "quarantined")
    assert stop(client)["outcome"] == "nothing_running"
    doctor = get(client, "/v1/doctor")
    assert doctor["ok"] is False
    assert [one["found"] for one in doctor["findings"] if not one["ok"]] == ["1 sessions that failed too often: s1"]


def test_a_store_that_takes_no_writes_is_reported_and_a_stop_is_still_taken(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    other = sqlite3.connect(api.supervisor.state_dir / "store.sqlite3", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        stopped = stop(client)
        assert stopped["outcome"] == "stopped"
    finally:
        other.execute("ROLLBACK")
        other.close()
    check_rest(api.session())


# ── What lives, and how the daemon is ─────────────────────────────────────────────────────────────


def test_the_live_tree_shows_session_run_call_and_process(api: Api) -> None:
    client = api.start()
    script = api.kit.script("sleep 60 & sleep 61")
    run_id = say(client, script, session="a:b")["run_id"]

    def shown() -> Any:
        found = get(client, "/v1/processes")["sessions"]
        calls = found[0]["runs"][0]["calls"] if found and found[0]["runs"] else []
        return found if calls and len(calls[0]["processes"]) == 3 else None

    until(shown, "three processes")
    (session,) = get(client, "/v1/sessions/a%3Ab/processes")["sessions"]
    (run,) = session["runs"]
    assert (session["session"], run["run_id"], run["status"]) == ("a:b", run_id, "in_progress")
    (call,) = run["calls"]
    assert call["tool"] == "shell"
    leader = call["processes"][0]
    assert leader["leader"] is True
    assert leader["rss_bytes"] > 0
    assert {one["pid"] for one in call["processes"]} == set(api.kit.alive())
    assert "countermand_processes 3.0" in client.get("/metrics").text
    stop(client, "a%3Ab", wait_s=WAIT_S)
    assert get(client, "/v1/processes")["sessions"] == []


def test_the_daemon_says_what_it_is_and_that_it_is_ready(api: Api) -> None:
    import os

    client = api.start(answers)
    assert get(client, "/v1/health") == {"status": "ok"}
    info = get(client, "/v1/info")
    assert (info["pid"], info["state_dir"]) == (os.getpid(), str(api.supervisor.state_dir))
    ready = get(client, "/v1/ready")
    assert (ready["ready"], ready["phase"]) == (True, "serving")
    assert get(client, "/v1/doctor")["ok"] is True


def test_what_is_not_ready_says_so(api: Api) -> None:
    client = api.start(answers)
    say(client)
    api.supervisor.close()
    response = client.get("/v1/ready")
    assert response.status_code == 503
    assert response.json()["supervisor"] is False
    refused = client.post("/v1/sessions/s1/messages", json={"content": "x"})
    assert (refused.status_code, code(refused)) == (503, "shutting_down")
    assert "retry-after" in refused.headers


def test_doctor_names_a_state_directory_that_others_can_read(api: Api) -> None:
    client = api.start(answers)
    api.supervisor.state_dir.chmod(0o755)
    found = get(client, "/v1/doctor")
    assert [one["check"] for one in found["findings"] if not one["ok"]] == ["permissions"]
    assert all(one["remedy"] for one in found["findings"] if not one["ok"])


def test_the_handle_and_the_api_see_the_same_session(api: Api) -> None:
    client = api.start(answers)
    api.session("both").ask(NewMessage(content="from inside"))
    check_rest(api.session("both"))
    say(client, "from outside", session="both")
    check_rest(api.session("both"))
    contents = [one["content"] for one in get(client, "/v1/sessions/both/thread")["messages"] if one["role"] == "user"]
    assert contents == ["from inside", "from outside"]


# ── The sender's span ─────────────────────────────────────────────────────────────────────────────


def test_the_agent_has_the_span_that_sent_its_message_and_an_invalid_one_is_ignored(api: Api) -> None:
    async def agent(turn: AsyncTurn) -> str | None:
        return turn.traceparent

    span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client = api.start(agent)
    for number, (header, expected) in enumerate([(span, span), ("", None), ("of my own", None)]):
        body = {"content": "go", "id": f"m{number}", "policy": "enqueue"}
        sent = client.post("/v1/sessions/s1/messages", json=body, headers={"traceparent": header})
        assert sent.status_code == 202, sent.text
        run_id = sent.json()["run_id"]
        get(client, f"/v1/sessions/s1/receipts/{run_id}", wait_s=WAIT_S)
        assert get(client, f"/v1/runs/{run_id}")["result"] == expected
        # Whatever span sends it again, it is the same message.
        assert say(client, id=f"m{number}", policy="enqueue")["run_id"] == run_id
    check_rest(api.session())
