"""Requests: what is accepted where it is made can be stored, and read again."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors import Answer, Invalid, NewMessage, Resume, Stop, Withdraw
from actors.decoding import decoder
from actors.ids import OWN_PREFIXES
from actors.model import Mode, Policy, Scope, Waiting
from actors.ports import WaitingRow
from actors.requests import OutsideRequest, Request, digest, traceparent_of
from tests.test_text import Colour, Count, Number, Unshowable, Words

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text(min_size=1).map(Words),
    st.floats().map(Number),
    st.integers().map(Count),
    st.sampled_from(
        [*Policy, *Scope, *Mode, *Waiting, "interrupt", "run", "user.test", Words("user.test"), Words("enqueue")]
    ),
    st.sampled_from([b"x", [], {}, (), object(), Colour.RED, "a\ud800", 10**400, 1 << 70]),
    st.builds(Unshowable),
    st.builds(lambda: 10**5000),
)
# None of them can be given a field that it has not; each field is given anything, or what fits it.
fitting: dict[str, st.SearchStrategy[Any]] = {
    "id": st.just("x") | st.just(Words("x")),
    "source": st.sampled_from(["user.test", Words("client.test")]),
    "scope": st.sampled_from(Scope),
    "mode": st.sampled_from(Mode),
    "merge": st.booleans(),
    "sent_at": st.none() | st.floats(0, 1e12) | st.integers(0, 1 << 70),
    "policy": st.none() | st.sampled_from(Policy),
    "attachments": st.just(()),
    "traceparent": st.none() | st.just(SPAN) | st.just(Words(SPAN)),
    "waiting": st.none() | st.sampled_from(Waiting),
}


def of(kind: type[Request]) -> st.SearchStrategy[tuple[type[Request], dict[str, Any]]]:
    words = st.text(min_size=1) | st.text(min_size=1).map(Words)
    fields = {name: fitting.get(name, words) for name in kind.__struct_fields__}
    odd = st.dictionaries(st.sampled_from(kind.__struct_fields__), anything, max_size=2)
    return st.tuples(st.just(kind), st.builds(lambda good, bad: {**good, **bad}, st.fixed_dictionaries(fields), odd))


@given(st.one_of(*[of(kind) for kind in (NewMessage, Stop, Resume, Withdraw, Answer)]))
@example((NewMessage, {"content": Words("go"), "id": Words("m"), "sent_at": Number(1.5), "policy": Words("enqueue")}))
@example((NewMessage, {"content": "go", "id": "m", "policy": Unshowable()}))
@example((Stop, {"source": "user.test", "reason": "enough", "id": "m", "mode": Unshowable()}))
def test_every_request_that_can_be_made_can_be_stored_and_read_again(made: tuple[Any, dict[str, Any]]) -> None:
    kind, fields = made
    try:
        request = kind(**fields)
    except Invalid:
        return
    read: Any = decoder(OutsideRequest)(msgspec.json.encode(request))
    assert read == request
    if isinstance(request, NewMessage):
        row = WaitingRow("s", request, 1, "run_1", False, 1.0)
        assert decoder(WaitingRow)(msgspec.json.encode(row)) == row


@pytest.mark.parametrize(
    "fields",
    [
        {"merge": "yes"},
        {"merge": 1},
        {"merge": None},
        {"sent_at": 10**400},
        {"sent_at": 10**5000},
        {"sent_at": "now"},
        {"sent_at": True},
        {"sent_at": float("nan")},
        {"origin": 5},
        {"policy": []},
        {"content": b"x"},
    ],
)
def test_a_field_of_another_type_is_refused_where_the_message_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        NewMessage(**{"content": "go", **fields})
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy


@pytest.mark.parametrize("prefix", OWN_PREFIXES)
def test_a_request_cannot_take_an_id_that_the_supervisor_could_have_made(prefix: str) -> None:
    with pytest.raises(Invalid):
        Stop(source="user.test", reason="mine", id=prefix + "1")


def test_the_fields_of_a_request_are_of_built_in_types() -> None:
    message = NewMessage(content=Words("go"), id=Words("m"), origin=Words("bot"), sent_at=Number(3))
    assert [type(one) for one in (message.content, message.id, message.origin, message.sent_at)] == [
        str,
        str,
        str,
        float,
    ]


# ── The sender's span ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "",
        SPAN.upper(),
        SPAN + "-00",
        SPAN + "\n",
        "ff" + SPAN[2:],
        SPAN.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        SPAN.replace("b7ad6b7169203331", "0" * 16),
        "\ud800",
        b"x",
        7,
    ],
)
def test_a_traceparent_is_that_of_a_span(text: Any) -> None:
    assert traceparent_of(text) is None
    with pytest.raises(Invalid, match="traceparent"):
        NewMessage(content="go", traceparent=text)


def test_a_traceparent_of_a_later_version_is_taken() -> None:
    assert traceparent_of("01" + SPAN[2:]) == "01" + SPAN[2:]


def test_l10_a_message_is_the_same_whatever_span_sends_it_again() -> None:
    other = SPAN.replace("b7ad6b7169203331", "00f067aa0ba902b7")
    message = NewMessage(id="m1", content="go")
    as_before = (
        b'{"type":"NewMessage","id":"m1","content":"go","policy":null,"origin":"user","merge":true,"sent_at":null,'
        b'"attachments":[]}'
    )
    # It is what is stored of messages that were sent before there were spans.
    assert digest(message) == hashlib.blake2b(as_before, digest_size=16).digest()
    assert digest(NewMessage(id="m1", content="go", traceparent=SPAN)) == digest(message)
    assert digest(NewMessage(id="m1", content="go", traceparent=other)) == digest(message)
    assert digest(NewMessage(id="m1", content="no", traceparent=SPAN)) != digest(message)
