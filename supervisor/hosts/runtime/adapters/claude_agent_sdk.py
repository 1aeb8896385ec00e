"""The Claude Agent SDK: ``await run(turn, options)`` has its CLI answer a turn, in a session of the CLI's own."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    StreamEvent,
    get_session_info,
)

from ..programs.calls import ALLOW, DENY, allows, question
from ..programs.prompts import prompt
from .gate import asked, begun

NAME = "claude-agent-sdk"
HOOK_S = 7 * 86_400.0
"""How long a call may wait for its gate."""


async def run(turn: Any, options: Any = None) -> Any:
    """Have the CLI answer a turn, and return its `ResultMessage`; `options` are `ClaudeAgentOptions`."""
    options, calls = options or ClaudeAgentOptions(), dict[str, asyncio.Future[Any]]()

    async def before(given: Any, key: Any, _: Any) -> Any:
        calls[key] = asyncio.get_running_loop().create_future()
        why = await begun(turn, given["tool_name"], given["tool_input"], calls[key], provider_id=key)
        decided = {"hookEventName": "PreToolUse", "permissionDecision": DENY, "permissionDecisionReason": why}
        return {} if why is None else {"hookSpecificOutput": decided}

    async def after(given: Any, key: Any, _: Any) -> Any:
        if key in calls:
            calls.pop(key).set_result(_text(given.get("tool_response", given.get("error"))))
        return {}

    async def permit(name: str, given: Any, _: Any) -> Any:
        answer = await asked(turn, question(name, given), [ALLOW, DENY])
        return PermissionResultAllow() if allows(answer) else PermissionResultDeny(message=answer)

    hooks = dict(options.hooks or {})
    for event, hook in (("PreToolUse", before), ("PostToolUse", after), ("PostToolUseFailure", after)):
        hooks[event] = [*hooks.get(event, ()), HookMatcher(hooks=[hook], timeout=HOOK_S)]
    known = turn.state.get("session")
    kept = known is not None and get_session_info(known) is not None
    session = known if kept else str(uuid.uuid4())
    text = prompt(turn.messages, turn.inputs, turn.state["run"] if kept else None, gone=known is not None and not kept)
    await turn.save(session=session, run=turn.address.run)
    own = {"resume": session} if kept else {"session_id": session}
    options = replace(options, hooks=hooks, include_partial_messages=True, **own)
    async with ClaudeSDKClient(replace(options, can_use_tool=options.can_use_tool or permit)) as client:
        await client.query(text)
        async for message in client.receive_response():
            if isinstance(message, StreamEvent) and message.parent_tool_use_id is None:
                said = message.event.get("delta", {}).get("text")
                await turn.emit(said or "")
            elif isinstance(message, ResultMessage):
                used = message.usage or {}
                cached = used.get("cache_read_input_tokens", 0)
                read = used.get("input_tokens", 0) + cached + used.get("cache_creation_input_tokens", 0)
                async with turn.answer(provider=NAME) as answer:
                    answer.usage(input=read, output=used.get("output_tokens", 0), cached=cached)
                for left in calls.values():
                    left.set_result("the turn ended without a result of this call")
                if message.is_error:
                    raise RuntimeError(message.result or "; ".join(message.errors or ()) or message.subtype)
                return message
    raise RuntimeError("the CLI ended without a result")


def _text(given: Any) -> Any:
    """Return the text of a tool's result, as far as it is blocks of text; else it itself."""
    blocks = given if isinstance(given, list) else ()
    return "\n".join(str(one["text"]) for one in blocks if one.get("type") == "text") or given
