"""The sentences that tell the model what was interrupted, by whom, and what may have happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from actors.gate.cell import CellState
from actors.messages import ToolResult
from actors.model import OUTSIDE_SOURCES, Effect, How, Outcome, Provenance
from actors.text import one_line

if TYPE_CHECKING:
    from actors.protocol.run_record import Part

GIVEN_UP: Final = "the agent stopped waiting for the call"
ANSWER_LEFT: Final = "Not started: the answer that asked for it was cut off before its end."
ANSWER_OVER: Final = "Not started: the answer that asked for it was over by then."
DECLINED: Final = "Not started: the user declined"

_WHO = {
    "session.new_message": "a new message took over",
    "session.deleted": "the session is being deleted",
    "run.deadline": "the run reached its deadline",
    "run.stalled": "the run stalled",
    "run.budget": "the run has used up its budget",
    "run.ended": "the run that it belongs to has ended",
    "call.given_up": GIVEN_UP,
    "tool.deadline": "the call reached its deadline",
    "tool.kill": "the tool ended what it had started",
    "actor.failure": "a part of the supervisor failed",
    "store.failure": "the store failed",
    "supervisor.shutdown": "the supervisor is shutting down",
    "supervisor.recovery": "the supervisor was restarted",
}


def who(provenance: Provenance) -> str:
    """Return a clause that says who ended something, and why."""
    known = _WHO.get(provenance.source)
    if known is not None:
        return known if provenance.reason == known else f"{known} ({one_line(provenance.reason)})"
    if not provenance.source.startswith(OUTSIDE_SOURCES):
        # A word of a later version.
        return f"it was ended by {provenance.source} ({one_line(provenance.reason)})"
    actor = "the user" if provenance.source.startswith("user.") else "a client"
    # The reason is a clause of a sentence: the model must not read a newline in it as a new line of the note.
    return f"{actor} stopped it ({one_line(provenance.source)}: {one_line(provenance.reason)})"


def run_note(provenance: Provenance, *, calls_started: bool, effects: Sequence[Effect] = ()) -> str:
    """Return the note on a run that was interrupted: by whom, whether calls had started, and the agent's effects."""
    calls = " Calls that had started may have had effects." if calls_started else " No call had started."
    own = _begun("The agent itself", effects)
    return f"The run before this was interrupted: {who(provenance)}.{calls}{own} Do not continue it unless asked."


def _begun(whose: str, effects: Sequence[Effect]) -> str:
    """Return a sentence about effects that had begun, if there are any."""
    return f" {whose} had begun: {', '.join(map(str, effects))}." if effects else ""


def failure_note(error: str, effects: Sequence[Effect] = ()) -> str:
    """Return the note on a run whose agent failed: with what, and the agent's effects."""
    own = _begun("The agent itself", effects)
    return f"The run before this failed: {error}" + (f"\n{own.strip()}" if own else "")


def declined(why: str) -> str:
    """Return the words of a call that a person did not allow, or of a question that he did not answer."""
    return f"{DECLINED}: {one_line(why)}" if why.strip() else f"{DECLINED}."


def behind_barrier(parts: Iterable[Part]) -> str:
    """Return why nothing begins any more behind a strict barrier: these could not be ended."""
    names = ", ".join(f"{part.kind} {part.name}" for part in parts)
    return f"Not started: something of an earlier run could not be ended ({names})."


def lost_result(how: How, note: str, effects: Sequence[Effect] = ()) -> ToolResult:
    """Return the result of a call whose execution ended without one: its actor failed, or it could not start."""
    text = note or "the call ended without a result"
    if how is How.NOT_STARTED:
        return ToolResult(Outcome.NOT_STARTED, f"Not started: {text}.", is_error=True)
    return ToolResult(Outcome.INTERRUPTED, f"Interrupted: {text}.{_begun('It', effects)}", is_error=True)


def had_begun(result: ToolResult) -> ToolResult:
    """Return the result of a call that was not started here, and had begun elsewhere before it was asked for."""
    why = result.content.removeprefix("Not started: ")
    content = f"Interrupted: {why} The call had begun before it was on record, and may have had effects."
    return replace(result, outcome=Outcome.INTERRUPTED, content=content)


def closed_result(
    state: CellState | None,
    finished: ToolResult | None,
    provenance: Provenance,
    output: str,
    spools: Sequence[str] = (),
    effects: Sequence[Effect] = (),
) -> ToolResult:
    """Return the one result of a call that a fence closed.

    Args:
        state: the state of its cell at that moment; None if it had no cell.
        finished: the result in the cell, if there is one.
        provenance: who closed it.
        output: the end of its output.
        spools: the paths of the files for the whole output, if there is more.
        effects: what it had begun behind guards.
    """
    if state is CellState.FINISHED and finished is not None:
        return finished
    if state is CellState.CLOSED:
        text = f"Interrupted: {who(provenance)}. The call had started and may have had effects."
        text += _begun("It", effects)
        if output:
            if spools:
                # A file may be made only when its process is ended.
                where = ", ".join(spools)
                text += f" What it printed, up to the limit of such a file, is in {where}, unless it had just ended."
            text += f" Its output so far ended with:\n{output}"
        return ToolResult(Outcome.INTERRUPTED, text, is_error=True, provenance=provenance)
    return ToolResult(Outcome.NOT_STARTED, f"Not started: {who(provenance)}.", is_error=True, provenance=provenance)
