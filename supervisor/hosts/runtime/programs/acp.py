"""Programs that speak the Agent Client Protocol over stdio, version 1: the preset `acp`, and those that are made of it.

What a program may ask of a client (files, terminals) is not offered: it has its own. Its thoughts and plans are shown
as progress. Each request for permission waits for a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CountermandError
from ..plain import dumped
from ..turn import AsyncTurn
from .calls import ToolCalls
from .program import Program, ProgramEnded
from .rpc import Rpc, RpcError
from .servers import listed, show
from .session import SessionGone, check, command, converse

VERSION = 1
AUTHENTICATE = -32000
"""The code of the error that asks for a login."""
BEGUN = frozenset({"in_progress", "completed", "failed"})
OVER = frozenset({"completed", "failed"})
SHOWN = {"agent_thought_chunk": "thought", "plan": "plan", "usage_update": "usage"}
"""Updates that are shown as progress, and under which name."""


def prepare() -> None:
    """Check that the program is there, before the host is ready."""
    check()


async def answer(turn: AsyncTurn) -> Any:
    """Answer a turn: the agent of the presets that speak ACP."""
    name = os.path.basename(command()[0])
    return await converse(turn, name, lambda: Acp(Program(name, command())))


class Acp:
    """A program that speaks ACP; see `Talker`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._rpc = Rpc(program, {"jsonrpc": "2.0"})
        self._session = ""
        self._prompt = 0
        self._waiting: dict[Any, Mapping[str, Any]] = {}
        """Requests for permission that have no answer yet, by id."""
        self._asking: set[asyncio.Task[None]] = set()
        self._tools: dict[str, dict[str, Any]] = {}

    async def open(self, session: str | None) -> str:
        """See `Talker.open`."""
        await self.program.start()
        self.program.listen()
        try:
            opened = await self._open(session)
        except RpcError as error:
            if error.number == AUTHENTICATE:
                raise CountermandError(
                    str(error), code="program_refused", remedy="log in with the program itself, as the agent's user"
                ) from error
            raise
        show()
        return opened

    async def _open(self, session: str | None) -> str:
        # Of what a client can offer, nothing.
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        asked = {
            "protocolVersion": VERSION,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "countermand", "version": "1"},
        }
        agreed = await self._rpc.ask("initialize", asked)
        if agreed.get("protocolVersion") != VERSION:
            raise CountermandError(
                f"{self.program.name} speaks another version of ACP",
                expected=str(VERSION),
                got=str(agreed.get("protocolVersion")),
                remedy="install one that speaks it",
            )
        can = agreed.get("agentCapabilities") or {}
        handed = listed(self.program.name, can.get("mcpCapabilities") or {})
        place: dict[str, Any] = {"cwd": os.getcwd(), "mcpServers": handed}
        if session is None:
            made = await self._rpc.ask("session/new", place)
            self._session = str(made["sessionId"])
            return self._session
        resumes = (can.get("sessionCapabilities") or {}).get("resume") is not None
        if not resumes and not can.get("loadSession"):
            raise SessionGone(f"{self.program.name} cannot resume a session")
        try:
            # To load one repeats all that was said in it, which is dropped.
            await self._rpc.ask("session/resume" if resumes else "session/load", {**place, "sessionId": session})
        except RpcError as error:
            if error.number == AUTHENTICATE or not error.gone:
                raise
            raise SessionGone(str(error)) from error
        self._session = session
        return session

    async def ask(self, turn: AsyncTurn, calls: ToolCalls, text: str) -> Any:
        """See `Talker.ask`."""
        self._tools.clear()

        async def handle(message: dict[str, Any]) -> None:
            params = message.get("params") or {}
            if message["method"] == "session/update":
                if params.get("sessionId") == self._session:
                    await self._updated(turn, calls, params.get("update") or {})
            elif message["method"] == "session/request_permission":
                self._waiting[message["id"]] = message
                task = asyncio.ensure_future(self._permission(turn, calls, message, params))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            else:
                await self._rpc.refuse(message)

        async def quiet(seconds: float) -> None:
            await turn.progress(program=self.program.name, quiet_s=seconds)

        content = [{"type": "text", "text": text}]
        self._prompt = await self._rpc.send("session/prompt", {"sessionId": self._session, "prompt": content})
        result = await self._rpc.answer_to(self._prompt, "session/prompt", handle, quiet) or {}
        self._prompt = 0
        if result.get("stopReason") == "cancelled":
            raise CountermandError(f"{self.program.name} cancelled its turn by itself", code="program_cancelled")
        return {"stop": result.get("stopReason")}

    async def cancel(self) -> None:
        """See `Talker.cancel`. The end of the prompt counts, whatever reason it gives."""
        if not self._prompt:
            return
        await self._rpc.note("session/cancel", {"sessionId": self._session})
        for message in list(self._waiting.values()):
            await self._decide(message, {"outcome": "cancelled"})

        async def handle(message: dict[str, Any]) -> None:
            if message["method"] == "session/request_permission":
                await self._rpc.answer(message, {"outcome": {"outcome": "cancelled"}})
            else:
                await self._rpc.refuse(message)

        await self._rpc.answer_to(self._prompt, "session/prompt", handle)

    # ── What it says ──

    async def _updated(self, turn: AsyncTurn, calls: ToolCalls, update: Mapping[str, Any]) -> None:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            text = _text(update.get("content"))
            if text:
                await turn.emit(text)
        elif kind in ("tool_call", "tool_call_update"):
            await self._tool(calls, update)
        elif kind in SHOWN:
            rest = {key: value for key, value in update.items() if key not in ("sessionUpdate", "_meta")}
            await turn.progress(program=self.program.name, **{SHOWN[kind]: rest})

    def _known(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of a call, with what an update says."""
        tool = self._tools.setdefault(str(update.get("toolCallId")), {})
        tool.update({key: value for key, value in update.items() if value is not None})
        return tool

    async def _tool(self, calls: ToolCalls, update: Mapping[str, Any]) -> None:
        key, tool = str(update.get("toolCallId")), self._known(update)
        if tool.get("status") in BEGUN:
            await calls.begun(key, _name(tool), _arguments(tool))
        if tool.get("status") in OVER:
            await calls.ended(key, _result(tool), is_error=tool["status"] == "failed")

    # ── What it asks ──

    async def _permission(
        self, turn: AsyncTurn, calls: ToolCalls, message: Mapping[str, Any], params: Mapping[str, Any]
    ) -> None:
        update = params.get("toolCall") or {}
        key, tool = str(update.get("toolCallId")), self._known(update)
        why = await calls.gated(key, _name(tool), _arguments(tool), ask=True)
        if turn.cancel_token.cancelled:
            # Nobody has rejected it: it is cancelled with the turn.
            return
        option = _option(params.get("options") or (), "reject" if why is not None else "allow")
        await self._decide(message, {"outcome": "cancelled"} if option is None else option)
        if why is None and option is None:
            await calls.ended(key, "the program offers no way to allow it", is_error=True)

    async def _decide(self, message: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        if self._waiting.pop(message["id"], None) is not None:
            # If it has ended, whoever takes its messages hears of it.
            with contextlib.suppress(ProgramEnded):
                await self._rpc.answer(message, {"outcome": outcome})


def _option(options: Sequence[Mapping[str, Any]], verb: str) -> dict[str, Any] | None:
    """Return the choice of an option: this once, if there is such a one."""
    for kind in (f"{verb}_once", f"{verb}_always"):
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option.get("optionId")}
    return None


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("kind") or "tool")


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = {"title": tool.get("title"), "input": tool.get("rawInput")}
    return {key: value for key, value in given.items() if value not in (None, {})}


def _result(tool: Mapping[str, Any]) -> str:
    texts = [_text(one.get("content")) or dumped(one) for one in tool.get("content") or ()]
    if not texts and tool.get("rawOutput") is not None:
        return dumped(tool["rawOutput"])
    return "\n".join(texts)


def _text(content: Any) -> str:
    return str(content.get("text") or "") if isinstance(content, Mapping) else ""
