"""Codex, by its app server: the preset `codex`. It speaks requests and answers in JSON over stdio.

It reports a command as begun also while it waits for permission; before that it says of its thread that it waits. Such
a command is not recorded as begun: it is once it is allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from ..errors import CountermandError
from ..plain import dumped
from ..turn import AsyncTurn
from .calls import ToolCalls
from .program import Program, ProgramEnded
from .rpc import Rpc, RpcError
from .servers import by_name, show
from .session import SessionGone, check, command, converse

APPROVALS = frozenset({"item/commandExecution/requestApproval", "item/fileChange/requestApproval"})
ARGUMENTS = {
    "commandExecution": ("command", "cwd"),
    "fileChange": ("changes",),
    "mcpToolCall": ("server", "tool", "arguments"),
    "dynamicToolCall": ("tool", "arguments"),
    "webSearch": ("query",),
}
"""The items that are calls of a tool, and what of each is its arguments."""
FAILED = frozenset({"failed", "declined"})
WAITING = "waitingOnApproval"


def prepare() -> None:
    """Check that the program is there, before the host is ready."""
    check()


async def answer(turn: AsyncTurn) -> Any:
    """Answer a turn: the agent of the preset."""
    name = os.path.basename(command()[0])
    return await converse(turn, name, lambda: Codex(Program(name, command())))


class Codex:
    """Codex; see `Talker`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._rpc = Rpc(program, {})
        self._thread = ""
        self._starting = 0
        self._turn = ""
        self._waits = False
        self._waiting: dict[Any, Mapping[str, Any]] = {}
        """Its requests for permission that have no answer yet, by id."""
        self._asking: set[asyncio.Task[None]] = set()
        self._items: dict[str, Mapping[str, Any]] = {}
        self._used: dict[str, int] = {}
        self._total: Any = None

    async def open(self, session: str | None) -> str:
        """See `Talker.open`."""
        await self.program.start()
        self.program.listen()
        client = {"name": "countermand", "title": "Countermand", "version": "1"}
        await self._rpc.ask("initialize", {"clientInfo": client, "capabilities": None})
        await self._rpc.note("initialized", {})
        place: dict[str, Any] = {"cwd": os.getcwd()}
        if servers := by_name("http_headers"):
            # One key each: those of its own configuration stay.
            place["config"] = {f"mcp_servers.{name}": one for name, one in servers.items()}
        if session is None:
            made = await self._rpc.ask("thread/start", place)
        else:
            try:
                made = await self._rpc.ask("thread/resume", {**place, "threadId": session, "excludeTurns": True})
            except RpcError as error:
                if not error.gone:
                    raise
                raise SessionGone(str(error)) from error
        show()
        self._thread = str(made["thread"]["id"])
        return self._thread

    async def ask(self, turn: AsyncTurn, calls: ToolCalls, text: str) -> Any:
        """See `Talker.ask`."""

        async def quiet(seconds: float) -> None:
            await turn.progress(program=self.program.name, quiet_s=seconds)

        self._items.clear()
        self._used, self._turn, self._waits = {}, "", False
        content = [{"type": "text", "text": text, "text_elements": []}]
        self._starting = await self._rpc.send("turn/start", {"threadId": self._thread, "input": content})
        while True:
            message = await self.program.next(quiet)
            params = message.get("params") or {}
            if "method" not in message:
                self._started(message)
            elif "id" in message:
                await self._requested(turn, calls, message, params)
            elif params.get("threadId") == self._thread:
                if message["method"] == "turn/completed":
                    self._starting, self._turn = 0, ""
                    return await self._ended(turn, params.get("turn") or {})
                await self._heard(turn, calls, message["method"], params)

    async def cancel(self) -> None:
        """See `Talker.cancel`."""
        if not self._starting:
            return
        for message in list(self._waiting.values()):
            await self._decide(message, "cancel")
        asked = False
        while True:
            if self._turn and not asked:
                await self._rpc.send("turn/interrupt", {"threadId": self._thread, "turnId": self._turn})
                asked = True
            message = await self.program.next()
            params = message.get("params") or {}
            if "method" not in message:
                self._started(message)
            elif message["method"] in APPROVALS:
                await self._rpc.answer(message, {"decision": "cancel"})
            elif "id" in message:
                await self._rpc.refuse(message)
            elif message["method"] == "turn/completed" and params.get("threadId") == self._thread:
                return

    def _started(self, message: Mapping[str, Any]) -> None:
        """Take the answer to the start of a turn; answers to other requests say nothing that is needed."""
        if message.get("id") != self._starting:
            return
        if "error" in message:
            self._starting = 0
            raise RpcError(self.program.name, "turn/start", message["error"] or {})
        self._turn = str(message["result"]["turn"]["id"])

    # ── What it says ──

    async def _heard(self, turn: AsyncTurn, calls: ToolCalls, method: str, params: Mapping[str, Any]) -> None:
        item = params.get("item") or {}
        if method == "item/agentMessage/delta":
            if params.get("delta"):
                await turn.emit(params["delta"])
        elif method == "item/reasoning/summaryTextDelta":
            await turn.progress(program=self.program.name, thought=params.get("delta"))
        elif method == "thread/status/changed":
            self._waits = WAITING in ((params.get("status") or {}).get("activeFlags") or ())
        elif method == "thread/tokenUsage/updated":
            self._count(params.get("tokenUsage") or {})
        elif method == "error":
            await turn.progress(program=self.program.name, error=params.get("error"))
        elif item.get("type") in ARGUMENTS:
            self._items[item["id"]] = item
            if method == "item/started" and not self._waits:
                await calls.begun(item["id"], item["type"], _arguments(item))
            elif method == "item/completed":
                await calls.begun(item["id"], item["type"], _arguments(item))
                await calls.ended(item["id"], _result(item), is_error=item.get("status") in FAILED)

    def _count(self, usage: Mapping[str, Any]) -> None:
        if usage.get("total") != self._total:
            self._total, last = usage.get("total"), usage.get("last") or {}
            kinds = {"input": "input", "output": "output", "cached": "cachedInput", "reasoning": "reasoningOutput"}
            for kind, theirs in kinds.items():
                self._used[kind] = self._used.get(kind, 0) + int(last.get(f"{theirs}Tokens") or 0)

    async def _ended(self, turn: AsyncTurn, ended: Mapping[str, Any]) -> Any:
        if self._used:
            # An answer without parts is no message of the thread; it has what the turn has used.
            async with turn.answer(provider="codex") as answer:
                answer.usage(**self._used)
        if ended.get("status") != "completed":
            why = (ended.get("error") or {}).get("message") or f"its turn is {ended.get('status')}"
            raise CountermandError(f"{self.program.name} could not end the turn: {why}", code="program_failed")
        return {"stop": "completed"}

    # ── What it asks ──

    async def _requested(
        self, turn: AsyncTurn, calls: ToolCalls, message: dict[str, Any], params: Mapping[str, Any]
    ) -> None:
        if message["method"] not in APPROVALS:
            await self._rpc.refuse(message)
            return
        self._waiting[message["id"]] = message
        task = asyncio.ensure_future(self._permission(turn, calls, message, params))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _permission(
        self, turn: AsyncTurn, calls: ToolCalls, message: Mapping[str, Any], params: Mapping[str, Any]
    ) -> None:
        key = str(params.get("itemId"))
        item = self._items.get(key) or {"type": message["method"].split("/")[1], **params}
        arguments = {**_arguments(item), **({"reason": params["reason"]} if params.get("reason") else {})}
        why = await calls.gated(key, str(item["type"]), arguments, ask=True)
        if not turn.cancel_token.cancelled:
            # Else nobody has declined it: it is cancelled with the turn.
            await self._decide(message, "accept" if why is None else "decline")

    async def _decide(self, message: Mapping[str, Any], decision: str) -> None:
        if self._waiting.pop(message["id"], None) is not None:
            # If it has ended, whoever takes its messages hears of it.
            with contextlib.suppress(ProgramEnded):
                await self._rpc.answer(message, {"decision": decision})


def _arguments(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item[key] for key in ARGUMENTS.get(str(item.get("type")), ()) if item.get(key) is not None}


def _result(item: Mapping[str, Any]) -> str:
    if item.get("type") == "commandExecution":
        code = item.get("exitCode")
        return (
            f"{item.get('aggregatedOutput') or ''}\n[exit status {code}]".lstrip() if code is not None else _state(item)
        )
    result = item.get("result") or item.get("error") or item.get("contentItems")
    return dumped(result) if result is not None else _state(item)


def _state(item: Mapping[str, Any]) -> str:
    return str(item.get("aggregatedOutput") or item.get("status") or "")
