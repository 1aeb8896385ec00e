"""Claude Code, which speaks lines of JSON in both directions: the preset `claude-code`.

A hook of the program's asks here before each tool call, and the program holds the call until the answer. So each call
is recorded before it begins, and begins only if the run may still act. If the program's own rules want a permission,
it asks for that afterwards: then the call is on record as begun, and the permission is a question of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import uuid
from collections.abc import Mapping
from typing import Any

from ..errors import CountermandError
from ..plain import dumped
from ..turn import AsyncTurn
from .calls import ToolCalls
from .program import Program, ProgramEnded
from .servers import by_name, show
from .session import SessionGone, check, command, converse

FLAGS = (
    "--print",
    *("--input-format", "stream-json"),
    *("--output-format", "stream-json"),
    "--verbose",
    "--include-partial-messages",
    *("--permission-prompt-tool", "stdio"),
)
HOOK = "gate"
NO_SESSION = "No conversation found"
CANCELLED = "the turn was stopped"


def prepare() -> None:
    """Check that the program is there, before the host is ready."""
    check()


async def answer(turn: AsyncTurn) -> Any:
    """Answer a turn: the agent of the preset."""
    name = os.path.basename(command()[0])
    return await converse(turn, name, lambda: ClaudeCode(Program(name, [*command(), *FLAGS])))


class ClaudeCode:
    """Claude Code; see `Talker`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._numbers = itertools.count(1)
        self._prompted = False
        self._waiting: dict[str, Mapping[str, Any]] = {}
        """Its requests that have no answer yet, by id."""
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def open(self, session: str | None) -> str:
        """See `Talker.open`."""
        made = session or str(uuid.uuid4())
        self.program.argv += (f"--session-id={made}" if session is None else f"--resume={made}",)
        await self.program.start()
        self.program.listen()
        hooks = {"PreToolUse": [{"matcher": None, "hookCallbackIds": [HOOK]}]}
        await self._agreed(session, await self._request("initialize", hooks=hooks))
        servers = {
            name: {"type": "http" if "url" in one else "stdio", **one} for name, one in by_name("headers").items()
        }
        if servers:
            handed = await self._agreed(session, await self._request("mcp_set_servers", servers=servers))
            show(handed.get("errors"))
        return made

    async def _agreed(self, session: str | None, number: str) -> Mapping[str, Any]:
        """Return its answer to a request of the start."""
        while True:
            message = await self.program.next()
            response = message.get("response") or {}
            if message.get("type") == "control_response" and response.get("request_id") == number:
                if response.get("subtype") != "success":
                    raise self._refused("its start", str(response.get("error")))
                return response.get("response") or {}
            if message.get("type") == "result" and message.get("is_error"):
                why = _why(message)
                if session is not None and NO_SESSION in why:
                    raise SessionGone(why)
                raise self._refused("its start", why)

    async def ask(self, turn: AsyncTurn, calls: ToolCalls, text: str) -> Any:
        """See `Talker.ask`."""

        async def quiet(seconds: float) -> None:
            await turn.progress(program=self.program.name, quiet_s=seconds)

        said = {"role": "user", "content": text}
        await self.program.write({"type": "user", "message": said, "parent_tool_use_id": None, "session_id": ""})
        self._prompted = True
        while True:
            message = await self.program.next(quiet)
            kind = message.get("type")
            if kind == "stream_event":
                await self._streamed(turn, message)
            elif kind == "user":
                for block in _blocks(message):
                    if block.get("type") == "tool_result":
                        content, failed = _text(block.get("content")), bool(block.get("is_error"))
                        await calls.ended(str(block.get("tool_use_id")), content, is_error=failed)
            elif kind == "control_request":
                self._asked(turn, calls, message)
            elif kind == "control_cancel_request":
                self._withdrawn(str(message.get("request_id")))
            elif kind == "result":
                self._prompted = False
                return await self._ended(turn, message)

    async def cancel(self) -> None:
        """See `Talker.cancel`."""
        if not self._prompted:
            return
        await self._request("interrupt")
        for message in list(self._waiting.values()):
            await self._decide(message, CANCELLED)
        while True:
            message = await self.program.next()
            if message.get("type") == "control_request":
                self._waiting[message["request_id"]] = message
                await self._decide(message, CANCELLED)
            elif message.get("type") == "result":
                return

    # ── What it says ──

    async def _streamed(self, turn: AsyncTurn, message: Mapping[str, Any]) -> None:
        delta = (message.get("event") or {}).get("delta") or {}
        if message.get("parent_tool_use_id") is not None:
            # Of an agent below it, which answers to it alone.
            return
        if delta.get("type") == "text_delta" and delta.get("text"):
            await turn.emit(delta["text"])
        elif delta.get("type") == "thinking_delta" and delta.get("thinking"):
            await turn.progress(program=self.program.name, thought=delta["thinking"])

    async def _ended(self, turn: AsyncTurn, message: Mapping[str, Any]) -> Any:
        used = message.get("usage") or {}
        cached = used.get("cache_read_input_tokens") or 0
        read = (used.get("input_tokens") or 0) + cached + (used.get("cache_creation_input_tokens") or 0)
        # An answer without parts is no message of the thread; it has what the turn has used.
        async with turn.answer(provider="claude-code") as answer:
            answer.usage(input=read, output=used.get("output_tokens") or 0, cached=cached)
        if message.get("is_error"):
            raise self._refused("the turn", _why(message))
        return {"stop": message.get("stop_reason") or message.get("subtype")}

    def _refused(self, what: str, why: str) -> CountermandError:
        return CountermandError(f"{self.program.name} could not end {what}: {why}", code="program_failed")

    # ── What it asks ──

    def _asked(self, turn: AsyncTurn, calls: ToolCalls, message: dict[str, Any]) -> None:
        number = str(message["request_id"])
        self._waiting[number] = message
        task = self._asking[number] = asyncio.ensure_future(self._answer(turn, calls, message))
        task.add_done_callback(lambda _: self._asking.pop(number, None))

    async def _answer(self, turn: AsyncTurn, calls: ToolCalls, message: Mapping[str, Any]) -> None:
        request = message.get("request") or {}
        if request.get("subtype") == "hook_callback":
            hook = request.get("input") or {}
            key, name, arguments = request.get("tool_use_id"), hook.get("tool_name"), hook.get("tool_input")
            why = await calls.gated(str(key or hook.get("tool_use_id")), str(name), arguments, ask=False)
        elif request.get("subtype") == "can_use_tool":
            key, name = str(request.get("tool_use_id")), str(request.get("tool_name"))
            why = await calls.gated(key, name, request.get("input"), ask=True)
        else:
            why = "it is not offered here"
        if not turn.cancel_token.cancelled:
            # Else nobody has declined it: it is cancelled with the turn.
            await self._decide(message, why)

    def _withdrawn(self, number: str) -> None:
        self._waiting.pop(number, None)
        task = self._asking.pop(number, None)
        if task is not None:
            task.cancel()

    async def _decide(self, message: Mapping[str, Any], why: str | None) -> None:
        """Answer a request of its: allowed, or why not."""
        number, request = message["request_id"], message.get("request") or {}
        if self._waiting.pop(number, None) is None:
            return
        response: dict[str, Any] = {"subtype": "success", "request_id": number}
        if request.get("subtype") == "hook_callback":
            decided = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": why}
            response["response"] = {} if why is None else {"hookSpecificOutput": decided}
        elif request.get("subtype") != "can_use_tool":
            response = {"subtype": "error", "request_id": number, "error": why}
        elif why is None:
            response["response"] = {"behavior": "allow", "updatedInput": request.get("input") or {}}
        else:
            response["response"] = {"behavior": "deny", "message": why, "interrupt": why == CANCELLED}
        # If it has ended, whoever takes its messages hears of it.
        with contextlib.suppress(ProgramEnded):
            await self.program.write({"type": "control_response", "response": response})

    async def _request(self, subtype: str, **more: Any) -> str:
        number = f"countermand-{next(self._numbers)}"
        request = {"subtype": subtype, **more}
        await self.program.write({"type": "control_request", "request_id": number, "request": request})
        return number


def _why(result: Mapping[str, Any]) -> str:
    """Return why a turn has ended with an error, as its last message says."""
    errors = "; ".join(map(str, result.get("errors") or ()))
    return errors or str(result.get("result") or result.get("subtype") or "it does not say why")


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = (message.get("message") or {}).get("content")
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    """Return the content of a tool's result as text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(one["text"]) if one.get("type") == "text" else dumped(one) for one in parts)
