"""The `shell` agent: a message is a shell script. It needs no model and no network."""

from __future__ import annotations

from typing import Any, Final

from actors.messages import ToolResult
from actors.model import Message, Outcome, Role
from actors.parts import MediaPart
from actors.plugin.turn import AsyncTurn
from actors.text import one_line
from supervisor.tools.shell import describe_exit

PROBLEM_MAX_CHARS: Final = 500


async def shell(turn: AsyncTurn) -> dict[str, Any]:
    """Run each input as a script, in order, and emit its exit code and duration.

    Resumed without inputs, it says what was interrupted and completes. Returns the ``exit_code`` of the last script
    that did not exit with 0, else 0. If that script did not exit by itself, it also returns ``outcome`` (``killed |
    timed_out | interrupted | not_started | failed``) and ``problem``, a sentence; ``exit_code`` is then the negative
    signal, or None. A script that is not UTF-8 is not started. Files of a message are named, and not given to it.
    """
    if not turn.inputs:
        await turn.emit(_interrupted(turn.messages))
        return {"exit_code": 0}
    returned: dict[str, Any] = {"exit_code": 0}
    for message in turn.inputs:
        files = {part.attachment: part for part in message.parts if isinstance(part, MediaPart)}
        if files:
            named = ", ".join(part.name or part.attachment for part in files.values())
            await turn.emit(f"[a script is not given its attachments: {one_line(named)}]\n")
        raw = [name for name in message.attachments if name not in files]
        if raw:
            # The text that can be shown is not the script that was sent.
            kept = ", ".join(raw)
            problem = f"not run: the script is not UTF-8; send it as UTF-8, its bytes are kept as {kept}"
            returned = _without_exit("not_started", problem)
            await turn.emit(f"[{problem}]\n")
            continue
        result = await turn.call("shell", script=message.content)
        data = result.data or {}
        status = data.get("exit_code")
        if result.outcome is not Outcome.FINISHED or status is None:
            returned = _without_exit(_outcome(result), result.content)
            await turn.emit(f"[{result.content}]\n")
            continue
        if status < 0:
            returned = {"exit_code": status, "outcome": "killed", "problem": describe_exit(status)}
        elif status:
            returned = {"exit_code": status}
        held = ", a process in the background still holds the output" if data.get("held") else ""
        await turn.emit(f"[{describe_exit(status)}, {data['duration_s']:.2f} s{held}]\n")
    return returned


def _without_exit(outcome: str, problem: str) -> dict[str, Any]:
    return {"exit_code": None, "outcome": outcome, "problem": problem.partition("\n")[0][:PROBLEM_MAX_CHARS]}


def _outcome(result: ToolResult) -> str:
    """Return the outcome of a script without an exit status."""
    if result.outcome is Outcome.FINISHED:
        return "failed"
    if result.provenance is not None and result.provenance.source == "tool.deadline":
        return "timed_out"
    return str(result.outcome)


def _interrupted(messages: list[Message]) -> str:
    """Return what the thread says about the last interrupted run."""
    note = next((message for message in reversed(messages) if message.role == Role.NOTE), None)
    if note is None:
        return "Nothing was interrupted; there is no message to run.\n"
    calls = [
        f"\n- {message.content}"
        for message in messages
        if message.run_id == note.run_id and message.role == Role.TOOL and message.outcome != Outcome.FINISHED
    ]
    return f"{note.content}{''.join(calls)}\nNothing was run again.\n"
