"""The `shell` agent: a message is a shell script. It needs no model and no network."""

from __future__ import annotations

from typing import Any

from actors.agent import AsyncTurn
from actors.model import Message, Outcome
from supervisor.tools.shell import describe_exit


async def shell(turn: AsyncTurn) -> dict[str, Any]:
    """Run each input as a script, in order, and tell its exit code and duration.

    Resumed without inputs, it says what was interrupted and completes. Returns the exit code of the last
    script that did not exit with 0, else 0; one that is not UTF-8 is not run, and counts as 1.
    """
    if not turn.inputs:
        await turn.emit(_interrupted(turn.messages))
        return {"exit_code": 0}
    exit_code = 0
    for message in turn.inputs:
        if message.attachments:
            # What is shown of it is another script than the one that was sent.
            exit_code = 1
            kept = ", ".join(message.attachments)
            await turn.emit(f"[not run: the script is not UTF-8; send it as UTF-8, its bytes are kept as {kept}]\n")
            continue
        result = await turn.call("shell", script=message.content)
        data = result.data or {}
        status = data.get("exit_code")
        if result.outcome is not Outcome.FINISHED or status is None:
            exit_code = 1
            await turn.emit(f"[{result.content}]\n")
            continue
        exit_code = status or exit_code
        held = ", a process in the background still holds the output" if data.get("held") else ""
        await turn.emit(f"[{describe_exit(status)}, {data['duration_s']:.2f} s{held}]\n")
    return {"exit_code": exit_code}


def _interrupted(messages: list[Message]) -> str:
    """Say what the thread says of what was cut off last."""
    note = next((message for message in reversed(messages) if message.role == "note"), None)
    if note is None:
        return "Nothing was interrupted; there is no message to run.\n"
    calls = [
        f"\n- {message.content}"
        for message in messages
        if message.run_id == note.run_id and message.role == "tool" and message.outcome != Outcome.FINISHED
    ]
    return f"{note.content}{''.join(calls)}\nNothing was run again.\n"
