"""The log: its lines, its bound, and what it tells of runs."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest
from loguru import logger

from actors.model import Event
from supervisor.daemon import run_log
from supervisor.daemon.logs import LINES_MAX, LineWriter, add_context, as_json, as_text, leads_to_journal
from tests.kit import Kit, poison, say, until

WAIT_S = 30.0


def record(text: str = "hello", level: str = "INFO", error: BaseException | None = None, **extra: Any) -> Any:
    """The record of one line."""
    seen: list[Any] = []
    sink = logger.add(lambda message: seen.append(message.record), level=0, format="", catch=False)
    try:
        logger.bind(**extra).opt(exception=error).log(level, "{}", text)
    finally:
        logger.remove(sink)
    return seen[0]


def raised() -> BaseException:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        return error


def test_a_line_of_json_names_what_it_is_about() -> None:
    line = json.loads(as_json(record(session="s", run="r", generation=3, colour="red")))
    assert (line["session"], line["run"], line["generation"]) == ("s", "r", 3)
    assert (line["level"], line["message"], line["extra"]) == ("info", "hello", {"colour": "red"})
    assert line["at"].endswith("Z")


def test_a_line_of_json_is_one_line_whatever_is_in_it() -> None:
    line = as_json(record("a\nb\x1b\0", error=raised(), odd=object()))
    assert "\n" not in line
    read = json.loads(line)
    assert read["message"] == "a\nb\x1b\0"
    assert "ValueError: no\nway" in read["exception"]


def test_a_line_for_people_cannot_steer_a_terminal_and_has_its_traceback_below() -> None:
    text = as_text(record("a\x1b[2Jb", level="ERROR", error=raised(), session="s\x1b"), colours=False)
    assert "\x1b" not in text
    assert "a\\x1b[2Jb" in text
    assert "[session=s\\x1b]" in text
    assert text.splitlines()[-2:] == ["    ValueError: no", "    way"]
    assert as_text(record(level="ERROR"), colours=True).startswith("\x1b[31m")


FORGED = "\n12:00:00.000 ERROR   run completed\u2028\r\x85"


@pytest.mark.parametrize("forged", FORGED)
def test_no_name_or_reason_makes_a_second_line_of_the_log(forged: str) -> None:
    one = record(f"fenced by {forged}: x", session=f"s{forged}", call=f"c{forged}", more=f"m{forged}")
    assert len(as_text(one, colours=False).splitlines()) == 1
    assert len(as_json(one).splitlines()) == 1
    assert json.loads(as_json(one))["session"] == f"s{forged}"


def test_no_message_of_an_error_can_be_taken_for_a_line_of_the_log() -> None:
    _, *below = as_text(record(error=ValueError(f"x{FORGED}")), colours=False).splitlines()
    assert below
    assert all(line.startswith("    ") for line in below)


def test_what_a_line_was_bound_to_is_not_overwritten() -> None:
    one = record(session="bound")
    add_context(one)
    assert one["extra"] == {"session": "bound"}


def test_what_an_actor_says_in_its_turn_names_what_it_is_about(kit: Kit) -> None:
    seen: list[Any] = []

    def keep(message: Any) -> None:
        # On the thread that has said it, as the patcher is.
        add_context(message.record)
        seen.append(message.record)

    session = kit.session()
    run_id = say(session, "sleep 1000")
    sink = logger.add(keep, level="ERROR", format="", catch=False)
    try:
        assert session.ref is not None
        poison(session.ref)
        until(lambda: any("failed" in one["message"] for one in seen), "the session's failure")
    finally:
        logger.remove(sink)
    failed = next(one for one in seen if "failed" in one["message"])
    assert failed["extra"] == {"session": "s1", "generation": 1, "run": run_id}


def test_the_journal_is_known_by_what_systemd_says_of_it() -> None:
    ours, theirs = os.pipe()
    try:
        seen = os.fstat(theirs)
        assert leads_to_journal(theirs, {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"})
        assert not leads_to_journal(theirs, {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino + 1}"})
        assert not leads_to_journal(theirs, {})
    finally:
        os.close(ours)
        os.close(theirs)


# ── The bound ─────────────────────────────────────────────────────────────────────────────────────


def test_unread_lines_are_dropped_at_the_bound_and_counted() -> None:
    ours, theirs = os.pipe()
    writer = LineWriter(theirs, lambda count: f"dropped {count}\n")
    long = "x" * 100_000 + "\n"  # more than a pipe holds: the thread is in the middle of it from here on
    writer.put(long)
    until(lambda: not writer._lines, "the first line under way")
    for number in range(LINES_MAX + 7):
        writer.put(f"{number}\n")
    assert not writer.flush(0.01)
    heard: list[bytes] = []

    def hear() -> None:
        while data := os.read(ours, 65536):
            heard.append(data)

    thread = threading.Thread(target=hear)
    thread.start()
    try:
        assert writer.flush(WAIT_S)
        writer.put("after\n")
        writer.close(WAIT_S)
    finally:
        os.close(theirs)
        thread.join(WAIT_S)
        os.close(ours)
    lines = b"".join(heard).decode().splitlines()
    assert lines == [long.strip(), *map(str, range(LINES_MAX)), "dropped 7", "after"]


def test_a_log_that_cannot_be_written_ends_no_process() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    writer = LineWriter(theirs, str)
    writer.put("into the void\n")
    assert writer.flush(WAIT_S)
    writer.close(WAIT_S)
    os.close(theirs)


# ── What it tells of runs ─────────────────────────────────────────────────────────────────────────


RECEIPT = {
    "receipt_id": "rcpt_1",
    "run_id": "r",
    "generation": 2,
    "provenance": None,
    "fenced_at": 1.0,
    "ended_at": 2.0,
    "complete": True,
}
CAUSE = {"source": "user.x", "reason": "why"}


def told(kind: str, data: dict[str, Any], run_id: str | None = "r") -> list[Any]:
    seen: list[Any] = []
    sink = logger.add(lambda message: seen.append(message.record), level=0, format="", catch=False)
    try:
        run_log.log_events("s", [Event(1, "s", 2, run_id, kind, data, 0.0)])
    finally:
        logger.remove(sink)
    return seen


@pytest.mark.parametrize(
    ("kind", "data", "level", "words"),
    [
        ("run.started", {"agent": "shell", "inputs": ["req_1"]}, "INFO", "run started"),
        (
            "run.ended",
            {"status": "cancelled", "receipt": RECEIPT | {"provenance": CAUSE}},
            "INFO",
            "run cancelled by user.x: why",
        ),
        ("run.ended", {"status": "completed", "receipt": RECEIPT}, "INFO", "run completed"),
        (
            "run.ended",
            {"status": "cancelled", "receipt": RECEIPT | {"complete": False}},
            "WARNING",
            "not all of it is proven",
        ),
        ("run.ended", {"status": "completed"}, "WARNING", "run.ended, whose data cannot be read"),
        (
            "session.fenced",
            {"run_id": "r", "provenance": {"source": "user.x", "reason": "y"}},
            "INFO",
            "fenced by user.x",
        ),
        ("session.barrier_forced", {"run_id": "r", "abandoned": ["make"]}, "WARNING", "make"),
        ("session.quarantined", {}, "ERROR", "quarantined"),
    ],
)
def test_what_an_operator_wants_to_see_is_logged(kind: str, data: dict[str, Any], level: str, words: str) -> None:
    (line,) = told(kind, data, None if "run_id" in data else "r")
    assert words in line["message"]
    assert line["level"].name == level
    assert line["extra"] == {"session": "s", "generation": 2, "run": "r"}


def test_text_and_output_are_not_logged() -> None:
    assert told("text", {"text": "secret"}) == []
    assert told("tool.output", {"text": "secret"}) == []
