"""The API's JSON: what the client asks for arrives as it was asked for."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Struct, structs

from actors.decoding import decoder
from actors.model import Message, Role, StopOutcome
from actors.requests import NewMessage, Stop, Stopped
from supervisor.wire import KillBody, MessageBody, StopAllBody, StopAnswer, StopBody

STOP = Stop(
    source="user.test",
    reason="the test says so",
    id="stop-1",
    run_id="run_1",
    scope="session",
    mode="immediate",
    waiting="park",
    origin="client",
    sent_at=12.5,
)


@pytest.mark.parametrize("kind", [StopBody, StopAllBody, KillBody])
def test_a_stop_arrives_as_it_was_asked_for(kind: type[StopBody | StopAllBody | KillBody]) -> None:
    body = decoder(kind)(msgspec.json.encode(kind.of(STOP)))
    sent = structs.asdict(body)
    # The time that the API waits for the receipt is no part of a Stop.
    assert sent.pop("wait_s", 0.0) == 0.0
    assert sent == {name: getattr(STOP, name) for name in sent}
    assert {"source", "reason", "id"} <= {*sent}


def test_a_stop_of_a_session_is_sent_whole_but_for_its_requester_which_the_server_knows() -> None:
    sent = structs.asdict(StopBody.of(STOP))
    sent.pop("wait_s")
    assert Stop(**sent) == STOP
    assert {*structs.asdict(STOP)} - {*sent} == {"requested_by"}


def test_a_message_arrives_as_it_was_sent() -> None:
    message = NewMessage(content="hello", id="m1", policy="enqueue", origin="client", merge=False, sent_at=12.5)
    body = decoder(MessageBody)(msgspec.json.encode(MessageBody.of(message)))
    sent = structs.asdict(body)
    assert sent.pop("content_base64") is UNSET
    assert NewMessage(**sent) == message


def test_a_message_that_is_not_utf8_arrives_to_the_byte() -> None:
    message = NewMessage(content=b"\xff\xfe".decode(errors="surrogateescape"), id="m1")
    body = decoder(MessageBody)(msgspec.json.encode(MessageBody.of(message)))
    assert (body.content, body.content_base64) == (UNSET, b"\xff\xfe")


def test_an_answer_to_a_stop_has_every_field_that_the_session_answered() -> None:
    withdrawn = (Message("m1", Role.USER, "hello", None, "run_1"),)
    stopped = Stopped(
        StopOutcome.STOPPED,
        "run_1",
        "rcpt_1",
        7,
        durable=False,
        journalled=True,
        withdrawn=withdrawn,
        joined=("run_0",),
    )
    answer = decoder(StopAnswer)(msgspec.json.encode(StopAnswer.of("s1", stopped, None)))
    assert (answer.session, answer.receipt) == ("s1", None)
    assert {name: getattr(answer, name) for name in stopped.__struct_fields__} == structs.asdict(stopped)


@pytest.mark.parametrize("kind", [StopBody, StopAllBody, KillBody, MessageBody])
def test_a_body_with_a_field_that_is_not_known_is_refused(kind: type[Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decoder(kind)(b'{"sesion": "s1"}')
