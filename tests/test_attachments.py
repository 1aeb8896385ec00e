"""Bytes that came where text was expected: shown as text as far as they are, kept whole, offered by name."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from actors import NewMessage, Stop, Turn
from actors.attachments import Attachment
from actors.decoding import decoder
from actors.errors import Invalid, NotFound
from actors.requests import digest
from actors.text import not_utf8
from supervisor import Config, Supervisor
from tests.kit import WAIT_S, until

LATIN = b"caf\xe9 \xff\x00 \xf0\x9f\x98\x80"


def agent(turn: Turn) -> None:
    if turn.inputs and turn.inputs[-1].content == "hold":
        turn.cancel_token.wait()


def config(state_dir: Path) -> Config:
    return Config(state_dir=str(state_dir), agents={"test": agent}, agent="test", grace_s=0.3, drain_s=0.0)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("plain", None),
        ("später 😀", None),
        (os.fsdecode(LATIN), LATIN),
        (b"\xf0".decode(errors="surrogateescape"), b"\xf0"),
        ("half \ud83d", b"half \xed\xa0\xbd"),
    ],
)
def test_the_bytes_of_a_text_come_out_as_they_went_in(text: str, data: bytes | None) -> None:
    assert not_utf8(text) == data


def test_a_message_that_is_not_utf8_shows_what_it_can_and_carries_the_rest() -> None:
    message = NewMessage(id="m", content=os.fsdecode(LATIN))
    assert message.content == "caf\ufffd \ufffd\x00 😀"
    (attachment,) = message.attachments
    assert attachment.data == LATIN
    assert NewMessage(content="plain").attachments == ()
    # What is stored is the same message, and so is a retry of it; other bytes are another message.
    again = decoder(NewMessage)(msgspec.json.encode(message))
    assert again == message
    assert digest(NewMessage(id="m", content=os.fsdecode(LATIN))) == digest(message)
    assert digest(NewMessage(id="m", content=os.fsdecode(LATIN.replace(b"\xe9", b"\xe8")))) != digest(message)


def test_a_client_cannot_name_an_attachment() -> None:
    for attachments in ("x", (b"x",), (Attachment("att_mine", b"x"),)):
        with pytest.raises(Invalid):
            NewMessage(content="x", attachments=attachments)  # type: ignore[arg-type]


def test_an_attachment_is_there_for_an_input_and_for_what_waits_and_after_a_restart(tmp_path: Path) -> None:
    other = b"\x80 waits"
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        session.ask(NewMessage(content="hold"), timeout=WAIT_S)
        waits = NewMessage(content=os.fsdecode(other), policy="enqueue")
        assert session.ask(waits, timeout=WAIT_S).queued
        (name,) = (attachment.name for attachment in waits.attachments)
        assert session.attachment(name) == other
        session.ask(Stop(source="user.test", reason="go on", waiting="park"), timeout=WAIT_S)
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        accepted = session.ask(NewMessage(content=os.fsdecode(LATIN)), timeout=WAIT_S)
        assert [message.attachments for message in accepted.with_messages] == [(name,)]
        until(lambda: len([one for one in session.thread() if one.role == "user"]) == 3, "all are inputs")
        messages = [one for one in session.thread() if one.role == "user"]
        assert [one.content for one in messages] == ["hold", "\ufffd waits", "caf\ufffd \ufffd\x00 😀"]
        assert [[session.attachment(name) for name in one.attachments] for one in messages] == [[], [other], [LATIN]]
        for session_name, attachment in (("s", "att_0"), ("t", name)):
            with pytest.raises(NotFound):
                supervisor.session(session_name).attachment(attachment)


def test_l14_the_size_of_a_message_is_that_of_what_was_sent(tmp_path: Path) -> None:
    """What is shown of bytes that are not UTF-8 takes up to three times their place, and does not count."""
    with Supervisor.start(Config(tmp_path, agents={"test": agent}, agent="test", message_max_bytes=1000)) as supervisor:
        session = supervisor.session("s")
        accepted = session.ask(NewMessage(content=os.fsdecode(b"\xff" * 1000)), timeout=WAIT_S)
        session.receipt(accepted.run_id, timeout=WAIT_S)
        with pytest.raises(Invalid, match="too large") as refused:
            session.ask(NewMessage(content=os.fsdecode(b"\xff" * 1001)), timeout=WAIT_S)
        assert refused.value.got == "1001 bytes"
