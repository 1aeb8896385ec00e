"""Mutants of questions and approvals: what calls wait for a person, and what becomes of them."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.batches import Batches
from actors.protocol import calls
from actors.protocol.calls import Calls
from tests.sim.mutants.mutant import at_once, mutant

ASKING: Final = (
    mutant(
        "a tool is called before it is allowed",
        "L2",
        Calls,
        "_begin",
        "if question is None:",
        "if question is None or question.approval:",
    ),
    mutant("a tool is called that was declined", "L2", Calls, "answered", "if answer.allow is False:", "if False:"),
    mutant(
        "a call that has begun elsewhere is reported as not started",
        "L6",
        Calls,
        "end",
        "if call.row.begun and result.outcome == Outcome.NOT_STARTED:",
        "if False:",
    ),
    mutant(
        "a call is answered that does not wait any more",
        "L10",
        Calls,
        "answered",
        "or not call.waits_for_person:",
        "or not call.open:",
    ),
    mutant(
        "a call that a Stop ends is reported as declined",
        "L5",
        Calls,
        "close_all",
        "self.end(record, call, _closed(record, call, state, finished, cause), at)",
        "self.end(record, call, ToolResult(Outcome.NOT_STARTED, notes.declined('')) if call.waits_for_person "
        "else _closed(record, call, state, finished, cause), at)",
    ),
    mutant(
        "a bot allows a call that needs approval",
        "L2",
        calls,
        "_check_answer",
        "if approval and answer.origin != USER:",
        "if False:",
    ),
    mutant("an agent has an answer before it is durable", "L12", Batches, "send_step", *at_once("GiveAnswer")),
)
