"""Files in messages: kept with the message or not at all, read by its agent, and given to each provider.

The file has over 600 lines, and is whole: a file is followed from its message to each provider.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors import Delete, File, MediaPart, Message, NewMessage, TextPart, ToolResult, Turn, Withdraw, data_of, tool
from actors.attachments import FILE_NAME_MAX_CHARS, MADE_MAX, MADE_MAX_BYTES, PARTS_MAX, attachment_name
from actors.decoding import decoder
from actors.errors import Invalid, NotFound, RequestReused, StoreUnavailable, TooLarge
from actors.model import Outcome, Role, ToolCall
from actors.parts import AnswerInfo, Part
from actors.plugin.rendering import newest_media, render_anthropic, render_openai, render_responses
from actors.ports import Batch, WaitingRow
from actors.requests import digest
from supervisor import SessionHandle
from supervisor.agent import Agent
from supervisor.hosts.frames import PIECE_MAX_BYTES
from supervisor.store.groups import GroupWriter
from tests import reading_agents
from tests.kit import WAIT_S, Kit, StoreFaults, check_rest, log, say, stop, until
from tests.media_kit import FILES, MEDIA, PDF, PNG, TAKEN
from tests.provider_checker import check_anthropic, check_openai, check_responses

CAT = File(PNG, "image/png", "cat.png")
NOTES = File(b"line\n", "text/plain", "notes.txt")
CAT_NAME = attachment_name(PNG)


def hold(turn: Turn) -> None:
    if "hold" in turn.inputs[-1].content:
        turn.cancel_token.wait()


# ── The message ───────────────────────────────────────────────────────────────────────────────────────


def test_a_message_has_its_files_before_its_text_or_in_an_order_of_their_own() -> None:
    message = NewMessage(content="What is it?", attachments=[CAT, NOTES])
    cat = MediaPart(CAT_NAME, "image/png", len(PNG), "cat.png")
    notes = MediaPart(attachment_name(b"line\n"), "text/plain", 5, "notes.txt")
    assert message.parts == (cat, notes, TextPart("What is it?"))
    assert [one.data for one in message.attachments] == [PNG, b"line\n"]
    ordered = NewMessage(parts=["This", CAT, "and again", CAT, "", NOTES])
    assert ordered.parts == (TextPart("This"), cat, TextPart("and again"), cat, notes)
    assert ordered.content == "This\n\nand again"
    assert [one.data for one in ordered.attachments] == [PNG, b"line\n"], "bytes are kept once"
    assert NewMessage(attachments=[CAT]).parts == (cat,)
    assert NewMessage(content="text").parts == ()


def test_a_message_with_files_can_be_stored_and_read_again() -> None:
    for message in (
        NewMessage(content="x", attachments=[CAT]),
        NewMessage(parts=["x", CAT]),
        NewMessage(content=os.fsdecode(b"\xff"), attachments=[CAT]),
    ):
        for one in (message, message.without_files()):
            assert decoder(NewMessage)(msgspec.json.encode(one)) == one
            assert digest(one) == digest(message), "the names of the files stand for their bytes"
            assert one.attachment_names == message.attachment_names
        row = WaitingRow("s", message.without_files(), 1, "run_1", False, 1.0)
        assert decoder(WaitingRow)(msgspec.json.encode(row)) == row
        assert PNG not in msgspec.msgpack.encode(row)


def test_l10_other_files_make_another_message() -> None:
    def made(**fields: Any) -> bytes:
        return digest(NewMessage(id="m", content="x", **fields))

    same = made(attachments=[CAT])
    assert same == made(
        attachments=[
            File(
                bytearray(PNG),  # type: ignore[arg-type]  # taken too
                "IMAGE/PNG",
                "cat.png",
            )
        ]
    )
    others: tuple[list[File], ...] = (
        [],
        [NOTES],
        [CAT, CAT],
        [File(PNG, "image/gif", "cat.png")],
        [File(PNG, "image/png")],
    )
    assert len({same, *(made(attachments=files) for files in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x", "parts": ["y"]},
        {"attachments": [CAT], "parts": ["y"]},
        {"attachments": [CAT], "parts": (TextPart("y"),)},
        {"attachments": [PNG]},
        {"attachments": CAT},
        {"attachments": "cat"},
        {"parts": "cat"},
        {"parts": [CAT, PNG]},
        {"parts": [CAT, 7]},
        {"parts": ["\ud800"]},
        {"parts": ["x"] * (PARTS_MAX + 1)},
        {"content": b"x", "attachments": [CAT]},
    ],
)
def test_what_is_no_part_is_refused_where_the_message_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        NewMessage(**fields)
    assert refused.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"data": "text"},
        {"media_type": "png"},
        {"media_type": "image/png; charset=x"},
        {"media_type": "image/png\r\nX: y"},
        {"media_type": "a/" + "b" * 200},
        {"media_type": None},
        {"name": ""},
        {"name": 7},
        {"name": "n" * (FILE_NAME_MAX_CHARS + 1)},
    ],
)
def test_a_file_says_what_it_is(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        File(**{"data": PNG, "media_type": "image/png", **fields})


# ── In a session ──────────────────────────────────────────────────────────────────────────────────────


def given(session: SessionHandle) -> list[Message]:
    return [one for one in session.thread() if one.role == "user"]


@pytest.fixture(params=["inside", "host"])
def hosted(request: pytest.FixtureRequest) -> bool:
    """Whether the agent of a session runs in a host."""
    return bool(request.param == "host")


def session_of(kit: Kit, name: str, *, hosted: bool, **options: Any) -> SessionHandle:
    """A session with an agent of `reading_agents`."""
    spec = Agent(run=f"reading_agents:{name}", path=[str(Path(__file__).parent)], env={kit.mark: "1"}, spares=0)
    return kit.start(spec if hosted else getattr(reading_agents, name), **options).session("s1")


def result_of(session: SessionHandle, run: str | None) -> Any:
    session.receipt(run, timeout=WAIT_S)
    assert run is not None
    info = session.run(run)
    assert (info.status, info.error) == ("completed", None)
    return info.result


def seen(data: bytes) -> list[Any]:
    return [len(data), hashlib.sha256(data).hexdigest()]


@pytest.mark.parametrize("name", ["agent", "plain"])
def test_an_agent_reads_the_files_of_its_input(kit: Kit, name: str, hosted: bool) -> None:
    """Also one of several frames, and one that ends with a frame."""
    large = File(os.urandom(3 * PIECE_MAX_BYTES + 7), "application/zip", "large.zip")
    even = File(os.urandom(PIECE_MAX_BYTES), "application/zip")
    empty = File(b"", "text/plain")
    session = session_of(kit, name, hosted=hosted)
    found = result_of(session, say(session, "What is it?", attachments=[CAT, NOTES, large, even, empty]))
    files = (CAT, NOTES, large, even, empty)
    assert found["parts"] == [
        *(["media", file.media_type, len(file.data), file.name] for file in files),
        ["text", "What is it?"],
    ]
    assert found["read"] == [seen(file.data) for file in files]
    assert found["same"] is True
    assert found["files"] == {attachment_name(file.data): seen(file.data) for file in files}
    assert found["few"] == 2, "the newest that fit: the empty one and the notes"
    assert found["refused"] == ["not_found", "invalid"]


@pytest.mark.parametrize("name", ["agent", "plain"])
def test_an_agent_that_takes_a_steering_message_has_its_files(kit: Kit, name: str, hosted: bool) -> None:
    session = session_of(kit, name, hosted=hosted)
    run = say(session, "steer")
    session.ask(NewMessage(content="look", policy="steer", attachments=[CAT]), timeout=WAIT_S)
    found = result_of(session, run)
    assert found["read"] == [seen(PNG)]
    assert found["files"] == {CAT_NAME: seen(PNG)}


@pytest.mark.parametrize("name", ["stopped", "stopped_plain"])
def test_l8_a_stop_ends_an_agent_that_reads_a_file(kit: Kit, name: str, hosted: bool) -> None:
    session = session_of(kit, name, hosted=hosted)
    run = say(session, attachments=[File(os.urandom(2 * PIECE_MAX_BYTES), "a/b")])
    until(lambda: any(one.kind == "text" for one in log(session)), "it reads")
    stop(session)
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).status == "cancelled"
    check_rest(session)


def test_events_name_the_files_and_never_have_their_bytes(kit: Kit) -> None:
    session = kit.session(hold)
    say(session, "hold", attachments=[CAT])
    waits = NewMessage(content="waits", policy="enqueue", attachments=[NOTES])
    assert session.ask(waits, timeout=WAIT_S).queued
    session.ask(Withdraw(message_id=waits.id), timeout=WAIT_S)
    events = log(session)
    for kind, file in (
        ("message", CAT),
        ("session.message_waiting", NOTES),
        ("session.message_returned", NOTES),
    ):
        (event,) = (one for one in events if one.kind == kind)
        data: Any = data_of(event)
        _, part = file.kept()
        assert data.parts[0] == part
    text = msgspec.json.encode(events)
    for file in (CAT, NOTES):
        assert base64.b64encode(file.data) not in text
        assert file.data not in text


def test_files_are_there_for_what_waits_steers_and_after_a_restart(kit: Kit) -> None:
    session = kit.session(hold)
    say(session, "hold", attachments=[CAT])
    waits = NewMessage(content="hold too", policy="enqueue", attachments=[NOTES, CAT])
    assert session.ask(waits, timeout=WAIT_S).queued
    assert stop(session, waiting="park").withdrawn == ()
    kit.close(0.0)
    read: dict[str, bytes] = {}

    def reads(turn: Turn) -> None:
        read.update(turn.files())

    session = kit.session(reads)
    accepted = session.ask(NewMessage(content="go", attachments=[File(PDF, "application/pdf")]), timeout=WAIT_S)
    assert [one.parts for one in accepted.with_messages] == [waits.parts]
    session.receipt(accepted.run_id, timeout=WAIT_S)
    assert [one.parts for one in given(session)][1] == waits.parts
    assert sorted(read.values()) == sorted([PNG, b"line\n", PDF])
    assert session.attachment(CAT_NAME) == PNG


def test_l10_a_repeat_has_one_effect_and_other_files_under_its_id_are_refused(kit: Kit) -> None:
    session = kit.session(hold)
    message = NewMessage(content="go", attachments=[CAT])
    first = session.ask(message, timeout=WAIT_S)
    assert session.ask(message, timeout=WAIT_S) == first
    assert session.ask(NewMessage(id=message.id, content="go", attachments=[CAT]), timeout=WAIT_S) == first
    with pytest.raises(RequestReused):
        session.ask(NewMessage(id=message.id, content="go", attachments=[NOTES]), timeout=WAIT_S)
    session.receipt(first.run_id, timeout=WAIT_S)
    assert len(given(session)) == 1
    assert session.status().attachments_bytes == len(PNG)


def rows(kit: Kit) -> list[tuple[str, str | None]]:
    with closing(sqlite3.connect(Path(kit.state_dir) / "store.sqlite3")) as store:
        return store.execute("SELECT session, media_type FROM attachments ORDER BY name").fetchall()


def named_in_events(kit: Kit) -> int:
    """How many events on disk name the image."""
    with closing(sqlite3.connect(Path(kit.state_dir) / "store.sqlite3")) as store:
        sql = "SELECT COUNT(*) FROM events WHERE instr(CAST(data AS TEXT), ?)"
        (found,) = store.execute(sql, (CAT_NAME,)).fetchone()
    return int(found)


def test_l12_a_message_that_cannot_be_stored_leaves_no_file_behind(kit: Kit, faults: StoreFaults) -> None:
    session = kit.session(hold)
    session.receipt(say(session), timeout=WAIT_S)
    faults.failing = True
    with pytest.raises(StoreUnavailable):
        session.ask(NewMessage(content="go", attachments=[CAT]), timeout=WAIT_S)
    faults.failing = False
    message = NewMessage(content="go again", attachments=[NOTES])

    def taken() -> bool:
        try:
            return bool(session.ask(message, timeout=WAIT_S))
        except StoreUnavailable:
            return False

    until(taken, "the store takes messages again")
    assert rows(kit) == [("s1", "text/plain")]
    with pytest.raises(NotFound):
        session.attachment(CAT_NAME)


def test_l12_on_a_full_disk_neither_a_file_nor_what_names_it_is_stored(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full behind the bytes, and before their transaction ends."""
    session = kit.session(hold)
    session.receipt(say(session), timeout=WAIT_S)
    write, full = GroupWriter._write_batch, [True]

    def fails_behind(groups: GroupWriter, connection: sqlite3.Connection, batch: Batch, *rest: Any) -> None:
        write(groups, connection, batch, *rest)
        if batch.attachments and full[0]:
            (written,) = connection.execute("SELECT COUNT(*) FROM attachments").fetchone()
            assert written == 1, "it fails behind the bytes"
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(GroupWriter, "_write_batch", fails_behind)
    message = NewMessage(content="go", attachments=[CAT])
    with pytest.raises(StoreUnavailable):
        session.ask(message, timeout=WAIT_S)
    assert rows(kit) == []
    assert named_in_events(kit) == 0
    full[0] = False

    def taken() -> bool:
        try:
            return bool(session.ask(message, timeout=WAIT_S))
        except StoreUnavailable:
            return False

    until(taken, "the store takes it")
    assert named_in_events(kit) == 1
    assert session.attachment(CAT_NAME) == PNG
    assert [one.parts for one in given(session)][-1] == message.parts


def test_the_files_of_a_session_go_with_it_and_those_of_another_stay(kit: Kit) -> None:
    session = kit.session(hold)
    assert kit.supervisor is not None
    other = kit.supervisor.session("s2")
    for one in (session, other):
        one.receipt(say(one, attachments=[CAT]), timeout=WAIT_S)
    session.ask(Delete(source="user.test", reason="no more"), timeout=WAIT_S)
    assert rows(kit) == [("s2", "image/png")]
    with pytest.raises(NotFound):
        session.attachment(CAT_NAME)
    assert other.attachment(CAT_NAME) == PNG
    session.receipt(say(session), timeout=WAIT_S)
    assert session.status().attachments_bytes == 0


def test_l14_the_files_of_a_message_and_of_a_session_have_limits(kit: Kit) -> None:
    limits: dict[str, Any] = {"attachments_max": 3, "attachments_max_bytes": 30, "attachments_kept_bytes": 70}
    session = kit.session(hold, **limits)

    def sized(*sizes: int) -> NewMessage:
        files = [File(bytes([number]) * size, "a/b") for number, size in enumerate(sizes)]
        return NewMessage(content="go", attachments=files)

    def sent(message: NewMessage) -> None:
        session.receipt(session.ask(message, timeout=WAIT_S).run_id, timeout=WAIT_S)

    sent(sized(10, 10, 10))
    for message, words in ((sized(1, 1, 1, 1), "too many attachments"), (sized(10, 10, 11), "too many bytes of")):
        with pytest.raises(TooLarge, match=words):
            session.ask(message, timeout=WAIT_S)
    sent(sized(20, 10))
    with pytest.raises(TooLarge, match="in the session"):
        session.ask(sized(11), timeout=WAIT_S)
    assert session.status().attachments_bytes == 60
    kit.close(0.0)
    session = kit.session(hold, **limits)
    with pytest.raises(TooLarge, match="in the session"):
        session.ask(sized(11), timeout=WAIT_S)
    sent(sized(10))
    session.receipt(say(session), timeout=WAIT_S)


def test_the_size_of_a_message_is_that_of_its_text(kit: Kit) -> None:
    session = kit.session(hold, message_max_bytes=10)
    session.receipt(say(session, "0123456789", attachments=[CAT]), timeout=WAIT_S)
    with pytest.raises(Invalid, match="too large"):
        session.ask(NewMessage(content="0123456789a", attachments=[CAT]), timeout=WAIT_S)


def test_a_message_that_lacks_the_bytes_of_a_file_is_refused(kit: Kit) -> None:
    """They could be those of another message's file, which may be in the store or not."""
    session = kit.session(hold)
    with pytest.raises(Invalid, match="lacks the bytes"):
        session.ask(NewMessage(content="go", attachments=[CAT]).without_files(), timeout=WAIT_S)


# ── Files that tools and models make ──────────────────────────────────────────────────────────────────


@tool(isolation="thread")
def draw(how: str) -> Any:
    """Return files in one of the ways."""
    ways: dict[str, Any] = {
        "file": CAT,
        "list": ["a", CAT, {"b": 1}, NOTES],
        "result": ToolResult(Outcome.FINISHED, "drawn", parts=[CAT]),
        "error": ToolResult(Outcome.FINISHED, "half", is_error=True, parts=[CAT]),
        "many": [File(bytes([n]), "a/b") for n in range(MADE_MAX + 1)],
        "most": [File(bytes([n]), "a/b") for n in range(MADE_MAX)],
        "large": File(bytes(MADE_MAX_BYTES + 1), "a/b"),
        "largest": File(bytes(MADE_MAX_BYTES), "a/b"),
        "wrong": ToolResult(Outcome.FINISHED, "x", parts=["no file"]),  # type: ignore[list-item]
    }
    return ways[how]


def test_an_agent_reads_what_a_tool_returned_at_once(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "draws", hosted=hosted, tools=[draw])
    found = result_of(session, say(session, "file list result error"))
    assert found == [
        ["finished", "", False, [seen(PNG)], True],
        ["finished", 'a\n{"b":1}', False, [seen(PNG), seen(b"line\n")], True],
        ["finished", "drawn", False, [seen(PNG)], True],
        ["finished", "half", True, [seen(PNG)], True],
    ]
    results = [one for one in session.thread() if one.role == "tool"]
    assert [len(one.parts) for one in results] == [1, 2, 1, 1]
    assert results[0].attachments == (CAT_NAME,)
    assert base64.b64encode(PNG) not in msgspec.json.encode(log(session))
    for part in results[1].parts:
        assert isinstance(part, MediaPart)
        assert len(session.attachment(part.attachment)) == part.size
    check_rest(session)


def test_l14_the_files_of_a_result_have_limits(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "draws", hosted=hosted, tools=[draw])
    many, most, large, largest, wrong = result_of(session, say(session, "many most large largest wrong"))
    assert (many[2], many[3]) == (True, [])
    assert "too many" in many[1]
    assert (most[2], len(most[3])) == (False, MADE_MAX)
    assert (large[2], large[3]) == (True, [])
    assert "too large" in large[1]
    assert (largest[2], largest[3]) == (False, [seen(bytes(MADE_MAX_BYTES))])
    assert (wrong[2], wrong[3]) == (True, [])


def test_l14_a_result_whose_files_have_no_room_in_the_session_says_so(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "draws", hosted=hosted, tools=[draw], attachments_kept_bytes=len(PNG))
    first, second = result_of(session, say(session, "result list"))
    assert first[1] == "drawn"
    assert (second[0], second[2], second[3], second[4]) == ("finished", False, [], True)
    assert second[1].startswith('a\n{"b":1}\n[its files are not kept: ')
    assert [one.content for one in session.thread() if one.role == "tool"] == [first[1], second[1]]


def test_a_function_that_an_agent_gates_may_return_files(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "draws_itself", hosted=hosted)
    content, parts, read = result_of(session, say(session))
    assert content == "two"
    assert parts == [["media", "image/png", 3, "1.png"], ["media", "a/b", 3, None]]
    assert read == [seen(b"one"), seen(b"two")]


@pytest.mark.parametrize("name", ["paints", "paints_plain"])
def test_a_file_that_a_model_made_is_a_part_of_its_answer(kit: Kit, name: str, hosted: bool) -> None:
    session = session_of(kit, name, hosted=hosted)
    found, parts, content = result_of(session, say(session, "100"))
    assert found == [["media", "image/png", 100, "x.png"], seen(b"x" * 100)]
    assert parts == [["text", "before "], found[0], ["text", "behind"]]
    assert content == "before behind"
    (said,) = (one for one in session.thread() if one.answer is not None)
    assert said.parts[1] == MediaPart(attachment_name(b"x" * 100), "image/png", 100, "x.png")
    assert session.attachment(attachment_name(b"x" * 100)) == b"x" * 100
    (event,) = (one for one in log(session) if one.kind == "media")
    assert b"x" * 100 not in msgspec.json.encode(event)
    check_rest(session)


@pytest.mark.parametrize("name", ["paints", "paints_plain"])
def test_l14_a_file_of_an_answer_has_limits(kit: Kit, name: str, hosted: bool) -> None:
    session = session_of(kit, name, hosted=hosted, attachments_kept_bytes=MADE_MAX_BYTES)
    for size, refused in ((MADE_MAX_BYTES + 1, True), (MADE_MAX_BYTES, False), (1, True)):
        found, parts, _ = result_of(session, say(session, str(size)))
        assert len(parts) == (1 if refused else 3)
        assert (found[0] in ("too_large", "invalid")) is refused
    check_rest(session)


def test_l6_a_stop_behind_a_file_of_an_answer_leaves_it_partial_with_the_file(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "paints_and_waits", hosted=hosted)
    run = say(session)
    until(lambda: any(one.kind == "media" for one in log(session)), "the file is on record")
    stop(session)
    session.receipt(run, timeout=WAIT_S)
    (said,) = (one for one in session.thread() if one.answer is not None)
    assert (said.status, [part.type for part in said.parts]) == ("partial", ["media"])
    rendered = render_openai(session.thread(), provider="p")
    check_openai(rendered)
    assert "The assistant made a file" in rendered[1]["content"]


# ── What each provider is given ───────────────────────────────────────────────────────────────────────


def asked(*names: str) -> list[Message]:
    parts: tuple[Part, ...] = (*(MEDIA[name] for name in names), TextPart("What is it?"))
    return [Message("m1", Role.USER, "What is it?", 1, "r", parts=parts)]


B64 = base64.b64encode(PNG).decode()
PDF64 = base64.b64encode(PDF).decode()
QUESTION = "What is it?"


def test_anthropic_is_given_images_and_documents() -> None:
    rendered = render_anthropic(asked("att_png", "att_pdf", "att_text"), files=FILES)
    check_anthropic(rendered)
    assert rendered[0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF64},
            "title": "two lines.pdf",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "line\n"},
            "title": "notes.txt",
        },
        {"type": "text", "text": QUESTION},
    ]


def test_chat_completions_are_given_images_files_and_texts() -> None:
    rendered = render_openai(asked("att_png", "att_pdf2", "att_text"), files=FILES)
    check_openai(rendered)
    assert rendered == [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}"}},
                {
                    "type": "file",
                    "file": {"filename": "file.pdf", "file_data": f"data:application/pdf;base64,{PDF64}"},
                },
                {"type": "text", "text": "[A file: notes.txt, text/plain, 5 bytes]\nline\n"},
                {"type": "text", "text": QUESTION},
            ],
        }
    ]


def test_responses_are_given_images_files_and_texts() -> None:
    rendered = render_responses(asked("att_png", "att_pdf", "att_json"), files=FILES)
    check_responses(rendered)
    assert rendered[0]["content"] == [
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{B64}"},
        {
            "type": "input_file",
            "filename": "two lines.pdf",
            "file_data": f"data:application/pdf;base64,{PDF64}",
        },
        {"type": "input_text", "text": "[A file: application/json, 2 bytes]\n{}"},
        {"type": "input_text", "text": QUESTION},
    ]


@pytest.mark.parametrize("name", sorted(MEDIA))
def test_a_file_that_cannot_be_given_is_named(name: str) -> None:
    for files in (FILES, {}, None):
        for rendered in (
            render_anthropic(asked(name), files=files),
            render_openai(asked(name), files=files),
            render_responses(asked(name), files=files),
        ):
            text = msgspec.json.encode(rendered).decode()
            assert ("This file is not shown" in text) is not (name in TAKEN and files is FILES)
            assert QUESTION in text


def test_the_newest_files_are_read_as_far_as_they_fit() -> None:
    def sized(name: str, size: int) -> MediaPart:
        return MediaPart(name, "image/png", size)

    def one(number: int, *parts: MediaPart, **more: Any) -> Message:
        return Message(f"m{number}", Role.USER, "", 1, "r", parts=parts, **more)

    thread = [
        one(1, sized("a", 10), sized("b", 3)),
        one(2, sized("c", 1), status="retracted"),
        Message("r.1", Role.ASSISTANT, "", 1, "r", parts=(sized("f", 1),)),
        one(3, sized("d", 5), sized("b", 3)),
        one(4, sized("e", 2)),
    ]
    for size, names in ((100, "ebda"), (20, "ebda"), (19, "ebd"), (9, "eb"), (0, "")):
        assert "".join(part.attachment for part in newest_media(thread, size)) == names


def resulted(*names: str, content: str = "drawn", is_error: bool = False) -> list[Message]:
    """Two calls; the first has files."""
    calls = (ToolCall("c1", "draw", {}), ToolCall("c2", "look", {}))
    parts: tuple[Part, ...] = tuple(MEDIA[name] for name in names)
    first = Message("c1", Role.TOOL, content, 1, "r", tool_call_id="c1", outcome=Outcome.FINISHED, parts=parts)
    second = Message("c2", Role.TOOL, "seen", 1, "r", tool_call_id="c2", outcome=Outcome.FINISHED)
    return [
        Message("m1", Role.USER, "go", 1, "r"),
        Message("r.1", Role.ASSISTANT, "", 1, "r", tool_calls=calls),
        msgspec.structs.replace(first, is_error=is_error),
        second,
        Message("m2", Role.USER, "and?", 1, "r2"),
    ]


IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}}
CHAT_IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}"}}


def test_anthropic_is_given_the_files_of_a_result_in_it() -> None:
    rendered = render_anthropic(resulted("att_png", "att_zip"), thinking=False, files=FILES)
    check_anthropic(rendered)
    first, second, text = rendered[2]["content"]
    assert first["content"] == [
        {"type": "text", "text": "drawn"},
        IMAGE,
        {"type": "text", "text": "[This file is not shown: all.zip, application/zip, 2 bytes]"},
    ]
    assert second["content"] == "seen"
    assert text == {"type": "text", "text": "and?"}
    rendered = render_anthropic(resulted("att_png", content=""), thinking=False, files=FILES)
    assert rendered[2]["content"][0]["content"] == [IMAGE]


def test_anthropic_is_given_the_files_of_a_result_that_is_an_error_behind_the_results() -> None:
    """The content of an error is only text."""
    rendered = render_anthropic(resulted("att_png", is_error=True), thinking=False, files=FILES)
    check_anthropic(rendered)
    first, second, image, text = rendered[2]["content"]
    assert (first["content"], first["is_error"]) == ([{"type": "text", "text": "drawn"}], True)
    assert (second["content"], image, text["text"]) == ("seen", IMAGE, "and?")


def test_with_thinking_on_calls_that_are_told_as_text_keep_their_files() -> None:
    rendered = render_anthropic(resulted("att_png")[:-1], files=FILES, thinking=True)
    check_anthropic(rendered, thinking=True)
    assert [block["type"] for block in rendered[-1]["content"]] == ["text", "text", "image", "text"]


def test_chat_completions_are_given_the_files_of_results_in_the_message_behind_them() -> None:
    rendered = render_openai(resulted("att_png", "att_zip"), files=FILES)
    check_openai(rendered)
    assert [one["role"] for one in rendered] == ["user", "assistant", "tool", "tool", "user"]
    assert rendered[2]["content"] == (
        "drawn\n[This file follows: cat.png, image/png, 70 bytes]\n"
        "[This file is not shown: all.zip, application/zip, 2 bytes]"
    ).replace("70", str(len(PNG)))
    assert rendered[3]["content"] == "seen"
    assert rendered[4]["content"] == [
        {"type": "text", "text": "From the result of draw, c1:"},
        CHAT_IMAGE,
        {"type": "text", "text": "and?"},
    ]
    assert render_openai(resulted("att_png")[:-1], files=FILES)[-1]["content"][1] == CHAT_IMAGE


def test_responses_are_given_the_files_of_a_result_in_it() -> None:
    rendered = render_responses(resulted("att_png"), files=FILES)
    check_responses(rendered)
    assert rendered[3] == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [
            {"type": "input_text", "text": "drawn"},
            {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{B64}"},
        ],
    }
    assert rendered[4]["output"] == "seen"


def test_no_provider_is_given_a_file_of_an_assistant_and_each_is_told_of_it() -> None:
    parts: tuple[Part, ...] = (TextPart("Here:"), MEDIA["att_png"])
    said = Message("r.1", Role.ASSISTANT, "Here:", 1, "r", parts=parts, answer=AnswerInfo("p"))
    thread = [Message("m1", Role.USER, "draw", 1, "r"), said, Message("m2", Role.USER, "more", 1, "r2")]
    note = f"[The assistant made a file that is not shown: cat.png, image/png, {len(PNG)} bytes]"
    for provider in ("p", None):
        for rendered, check in (
            (render_anthropic(thread, files=FILES, provider=provider), check_anthropic),
            (render_openai(thread, files=FILES, provider=provider), check_openai),
            (render_responses(thread, files=FILES, provider=provider), check_responses),
        ):
            check(rendered)
            text = msgspec.json.encode(rendered).decode()
            assert note in text
            assert B64 not in text
