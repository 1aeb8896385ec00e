"""Mutants of the answers of models: what is decided about their calls, and what is rendered of a thread with them."""

from __future__ import annotations

from typing import Final

from actors.plugin import rendering
from actors.plugin.turn_core import TurnCore
from actors.protocol.calls import Calls
from actors.protocol.turns import Turns
from supervisor.hosts.answers import HostAnswers
from tests.sim.mutants.mutant import mutant

MODEL_ANSWERS: Final = (
    mutant("a call starts before its answer ends", "L2", Calls, "requested", "elif answer is None:", "else:"),
    mutant(
        "the barrier lets a call of an open answer go",
        "L2",
        Calls,
        "grant_waiting",
        "if call.waits_for_barrier:",
        "if call.waits:",
    ),
    mutant(
        "calls of an answer that was left start",
        "L2",
        Calls,
        "answer_left",
        "self._not_started(record, call, notes.ANSWER_LEFT, at)",
        "self._decide(record, call, at)",
    ),
    mutant(
        "a steer message comes between the parts of an answer",
        "L6",
        Turns,
        "steering_requested",
        "record.open_calls() or record.answers or",
        "record.open_calls() or",
    ),
    mutant(
        "a block of another provider is rendered",
        "L6",
        rendering,
        "_parts",
        "provider is not None and part.provider == provider",
        "True",
    ),
    mutant(
        "results out of the order of their calls",
        "L6",
        rendering._AssistantMessage,
        "calls",
        "if isinstance(part, _Called)]",
        "if isinstance(part, _Called)][::-1]",
    ),
    mutant(
        "thinking that nothing follows is rendered",
        "L6",
        rendering,
        "_without_last_thinking",
        "while kept and _is_thinking(kept[-1]):",
        "while False:",
    ),
    mutant(
        "the agent sees its batch outside of its answer",
        "L6",
        TurnCore,
        "said",
        "if not isinstance(data, (TypingData, ProgressData)):",
        "if hasattr(data, 'text'):",
    ),
    # ── From hosts ──
    mutant(
        "the answer of a host stays open behind its end",
        "L6",
        HostAnswers,
        "part",
        "    del self._open[params.answer]\n",
        "",
    ),
    mutant(
        "a call from a host is no part of its answer",
        "L6",
        HostAnswers,
        "of_call",
        "return self._of(call.answer).id",
        "return None",
    ),
    mutant(
        "a text from a host is no part of its answer",
        "L6",
        HostAnswers,
        "text",
        "None if number is None else self._of(number).id",
        "None",
    ),
    mutant(
        "the session does not hear that a host left an answer",
        "L2",
        HostAnswers,
        "leave",
        "self._of(params.answer).left(params)",
        "self._of(params.answer)",
    ),
)
