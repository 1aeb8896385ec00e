"""Answers of models in the simulator: what the scripted agent says in one, and what a log with them has to satisfy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.model import Event, Message, Role
from actors.plugin.rendering import render_anthropic, render_responses
from actors.plugin.turn import AsyncTurn
from tests.provider_checker import THINKING, check_anthropic, check_responses

if TYPE_CHECKING:
    from tests.sim.watch import Watch

PROVIDER: Final = "sim"
BETWEEN_S: Final = 0.2
"""Between the parts of an answer, in virtual seconds: an end may come there."""

Say = Callable[[Callable[[str], Awaitable[None]]], Awaitable[None]]


class ModelBroke(Exception):
    """The model's connection was lost, as it was told."""


async def answered(turn: AsyncTurn, watch: Watch, say: Say, seconds: float, *, left: bool) -> None:
    """Answer as a model does: thinking, texts, and a batch of calls, of which one is refused.

    `left`: the answer is left at its end by an exception, and the agent goes on.
    """
    run = turn.address.run
    calls = []
    try:
        async with turn.answer(provider=PROVIDER, model="scripted") as answer:
            await answer.block({"type": "thinking", "thinking": f"of {run}", "signature": f"{run}=="})
            await say(answer.text)
            await asyncio.sleep(BETWEEN_S)
            if await turn.steering():
                watch.break_(f"a message comes between the parts of an answer of {run} (L6)")
            for number, tool in enumerate(("write", "no_such_tool", "write")):
                arguments = {"seconds": seconds / (number + 1), "of": run}
                calls.append(answer.call(tool, arguments, provider_id=f"toolu_{number}"))
                # With it the call is asked for.
                await say(answer.text)
                await asyncio.sleep(BETWEEN_S)
            answer.usage(input=1, output=2, reasoning=1)
            answer.stop_reason = "tool_use"
            if left:
                raise ModelBroke
    except ModelBroke:
        for call in calls:
            result = await call
            if result.outcome != "not_started":
                watch.break_(f"{run} left an answer, and its call {call.id} is {result.outcome} (L2)")
        return
    await asyncio.gather(*calls)
    _check_batch(watch, run, [call.id or "" for call in calls], turn.messages)


def _check_batch(watch: Watch, run: str, asked: list[str], messages: Sequence[Message]) -> None:
    """The agent sees its batch as one message, with the results behind it in the order of the calls."""
    for place, message in enumerate(messages):
        if [call.id for call in message.tool_calls] == asked:
            behind = messages[place + 1 : place + 1 + len(asked)]
            told = [one.tool_call_id for one in behind if one.role == Role.TOOL] == asked
            if told and message.parts and message.status == "complete":
                return
    watch.break_(f"{run} does not see the calls {asked} as one message with their results (L6)")


class ModelAnswerLaws:
    """What a log has to satisfy about answers.

    Args:
        repeats: reports may come twice. A begin may then be repeated when its answer is over, since no session keeps
            the ids of answers that are over.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self._repeats = repeats
        self._begun: set[str] = set()
        # The run of each answer that is open.
        self._open: dict[str, str | None] = {}
        self._left: set[str | None] = set()
        self._of_call: dict[str, str] = {}

    def take(self, event: Event) -> None:
        """Take in the next event."""
        answer: Any = event.data.get("answer")
        match event.kind:
            case "answer.begun":
                assert self._repeats or answer not in self._begun, f"{answer} begins twice (L6)"
                self._begun.add(answer)
                self._left.discard(answer)
                self._open[answer] = event.run_id
            case "answer.ended":
                assert self._open.pop(answer, None) == event.run_id, f"{answer} ends, and is not open (L6)"
                # Its calls may start from here on, whatever is begun under its id again.
                self._of_call = {call: of for call, of in self._of_call.items() if of != answer}
            case "answer.left":
                assert self._open.pop(answer, None) == event.run_id, f"{answer} is left, and is not open (L6)"
                self._left.add(answer)
            case "text" | "block" | "media" | "tool.requested" if answer is not None:
                assert self._open.get(answer) == event.run_id, f"{event.kind} of {answer}, which is not open (L6)"
                if event.kind == "tool.requested":
                    self._of_call[event.data["call_id"]] = answer
            case "tool.started":
                of = self._of_call.get(event.data["call_id"])
                assert of not in self._left, f"{event.data['call_id']} starts, and {of} was left (L2)"
                assert of is None or of not in self._open, f"{event.data['call_id']} starts before {of} ends (L2)"
            case "run.status" if event.data["status"] != "in_progress":
                self._open = {one: run for one, run in self._open.items() if run != event.run_id}
            case _:
                pass

    def check_thread(self, messages: Sequence[Message]) -> None:
        """Check what the provider of the answers, and others, would be given of a thread (law L6)."""
        own = render_anthropic(messages, provider=PROVIDER, thinking=True)
        if own:
            check_anthropic(own, thinking=True, as_said=True)
        other = render_anthropic(messages, provider="other")
        assert not any(block["type"] in THINKING for message in other for block in message["content"])
        items = render_responses(messages, provider="other")
        if items:
            check_responses(items)
