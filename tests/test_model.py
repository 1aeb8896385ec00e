"""The words of the core: a set that is stored within documents can be read when a later version has extended it."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.decoding import convert, decoder
from actors.events import EventKind, RunEndedData, SessionMessageReturnedData, decoded
from actors.model import Extensible, How, PartKind, Receipt, ReturnReason, Row
from actors.run_status import RunStatus
from supervisor.console.render.receipts import how_ended

SETS = tuple(Extensible.__subclasses__())
COMMAND = Row(PartKind.PROCESS, "sleep 60", 1.0, 2.0, How.SIGKILL, -9, pid=7)
LATER = Row(PartKind.REMOTE, "a later part", 1.0, 2.0, How.GONE, rows=(COMMAND,))
RECEIPT = Receipt("x", "r", 1, None, 1.0, 2.0, complete=True, rows=(LATER, COMMAND), reaped=1)


def of_a_later_version(receipt: Receipt) -> bytes:
    """Return the JSON of a receipt with a kind of part, and a way to end, that this version does not know."""
    doc = msgspec.json.encode(receipt)
    changed = doc.replace(b'"kind":"remote"', b'"kind":"satellite"').replace(b'"how":"gone"', b'"how":"deorbited"')
    assert changed.count(b"satellite") == changed.count(b"deorbited") == 1
    return changed


@pytest.mark.parametrize("words", SETS)
def test_each_known_word_is_itself_and_one_that_is_not_known_is_read_as_other(words: type[Extensible]) -> None:
    for member in words:
        assert decoder(words)(msgspec.json.encode(member)) is member
    other = words.__members__["OTHER"]
    assert other == "other"
    assert decoder(words)(b'"of a later version"') is other
    assert convert("of a later version", words) is other


@pytest.mark.parametrize("words", SETS)
@pytest.mark.parametrize("damaged", [b"7", b"null", b"[]", b"{}", b"true"])
def test_what_is_no_word_is_no_member(words: type[Extensible], damaged: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder(words)(damaged)
    with pytest.raises(ValueError, match="is not a valid"):
        words(json.loads(damaged))


def test_a_receipt_of_a_later_version_keeps_all_that_is_known_of_it() -> None:
    found = decoder(Receipt)(of_a_later_version(RECEIPT))
    (later, command) = found.rows
    assert (later.kind, later.how) == (PartKind.OTHER, How.OTHER)
    assert msgspec.structs.replace(later, kind=LATER.kind, how=LATER.how) == LATER
    assert msgspec.structs.replace(found, rows=RECEIPT.rows) == RECEIPT
    assert command == COMMAND
    assert how_ended(later) == "ended in a way that this version does not know"
    assert decoder(Receipt)(msgspec.json.encode(found)) == found


def test_events_of_a_later_version_are_read_with_the_words_in_them() -> None:
    data = b'{"status":"cancelled","receipt":' + of_a_later_version(RECEIPT) + b"}"
    ended = decoded(EventKind.RUN_ENDED, data)
    assert isinstance(ended, RunEndedData)
    assert (ended.status, ended.receipt.rows[0].kind) == (RunStatus.CANCELLED, PartKind.OTHER)
    returned = decoded(EventKind.SESSION_MESSAGE_RETURNED, b'{"message_id":"m","reason":"expired"}')
    assert isinstance(returned, SessionMessageReturnedData)
    assert (returned.message_id, returned.reason) == ("m", ReturnReason.OTHER)
