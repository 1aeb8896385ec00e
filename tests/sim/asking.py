"""Questions in the simulator: what the scripted agent asks a person, and what a log with answers has to satisfy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from actors.errors import Refused
from actors.model import Event
from actors.plugin.turn import AsyncTurn
from actors.requests import Answered

if TYPE_CHECKING:
    from tests.sim.watch import Watch

ALLOWED: Final = "allowed"
"""The tool that may not be called before a person has allowed it."""
DECLINED: Final = "Not started: the user declined"


async def asked(turn: AsyncTurn, watch: Watch, limit_s: float | None) -> None:
    """Ask a person, for so long; what is answered is durable by then (law L12)."""
    run = turn.address.run
    with suppress(Refused, TimeoutError):
        async with asyncio.timeout(limit_s):
            said = await turn.ask(f"Shall {run} go on?", options=["yes", "no"])
        told = [one for one in watch.disk.events(turn.address.session) if one.kind == "call.answered"]
        if not any(one.run_id == run and one.data["content"] == said for one in told):
            watch.break_(f"{run} is told {said!r} before that is durable (L12)")


class AskingLaws:
    """What a log has to satisfy about calls that wait for a person."""

    def __init__(self) -> None:
        # By call: its tool; what waits; how it was answered.
        self._tools: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._answers: dict[str, Event] = {}

    def take(self, event: Event) -> None:
        """Take in the next event."""
        call: Any = event.data.get("call_id")
        match event.kind:
            case "tool.requested":
                self._tools[call] = event.data["tool"]
            case "call.waiting":
                assert call in self._tools, f"{call} waits, and was never asked for (L6)"
                assert call not in self._waiting | self._answers.keys(), f"{call} asks twice (L6)"
                self._waiting.add(call)
            case "call.answered":
                assert call in self._waiting, f"{call} is answered, and does not wait (L10)"
                self._waiting.remove(call)
                self._answers[call] = event
            case "tool.started":
                self._started(call)
            case "tool.ended":
                self._ended(call, event)
            case _:
                pass

    def _started(self, call: str) -> None:
        assert call not in self._waiting, f"{call} starts, and waits for a person (L2)"
        answer = self._answers.get(call)
        if self._tools[call] == ALLOWED:
            assert answer is not None, f"{call} starts, and nobody was asked (L2)"
            assert answer.data["allow"] is True, f"{call} starts, and was declined (L2)"
            assert answer.data["by"] == "user", f"{call} starts, and {answer.data['by']} has allowed it (L2)"

    def _ended(self, call: str, event: Event) -> None:
        outcome, content, answer = event.data["outcome"], event.data["content"], self._answers.get(call)
        declined = answer is not None and answer.data["allow"] is False
        assert declined == content.startswith(DECLINED), f"{call} is said to be declined, or not: {content!r} (L5)"
        if call in self._waiting or declined:
            assert outcome == "not_started", f"{call} is {outcome}, and was not allowed (L6)"
        elif self._tools[call] == "ask" and answer is not None:
            told = answer.data["content"]
            assert (outcome, content) == ("finished", told), f"{call} was answered {told!r}, and ends {content!r} (L6)"
        self._waiting.discard(call)

    def check_answers(self, answers: Iterable[object]) -> None:
        """Each answer that was taken is in the log, and was the only one of its call (law L10)."""
        taken = [answer.call_id for answer in answers if isinstance(answer, Answered)]
        assert len(taken) == len(set(taken)), f"two answers to one call were taken: {sorted(taken)} (L10)"
        for call in taken:
            assert call in self._answers, f"{call} is said to be answered, and was not (L12)"
