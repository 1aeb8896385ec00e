"""Mutants of files: whether the bytes of what an event names are stored, and when an agent knows of it."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.run import RunActor
from actors.protocol.calls import Calls
from actors.protocol.intake import Intake
from actors.protocol.runs import Runs
from tests.sim.mutants.mutant import mutant

MEDIA: Final = (
    mutant(
        "the bytes of a message's files are not stored",
        "L12",
        Intake,
        "new_message",
        "state.keep(message.attachments, message.media, at)",
        "pass",
    ),
    mutant(
        "the bytes of a result's files are not stored",
        "L12",
        Calls,
        "end",
        "self._state.keep(result.attachments, result.media, at)",
        "pass",
    ),
    mutant(
        "the bytes of an answer's file are not stored",
        "L12",
        Runs,
        "media_given",
        "state.keep((given.attachment,), (part,), state.clock.wall())",
        "pass",
    ),
    mutant(
        "an agent is given a result before its files are stored",
        "L12",
        RunActor,
        "_report_end",
        "if ended.result is not None and not ended.result.parts:",
        "if ended.result is not None:",
    ),
)
