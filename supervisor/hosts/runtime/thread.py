"""The thread of a run: the messages that it came with, and what the agent has said and called since."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .values import Message, ToolCall

if TYPE_CHECKING:
    from .call import Call


class Segment:
    """What the agent said and asked for in one message of the thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.texts: list[str] = []
        self.calls: list[Call] = []


class Thread:
    """The thread of a run: what came with it, and what the agent has said and called since. Any thread.

    Text and calls are collected in one message. While one of its calls is open, all output joins it; once all have
    ended, the next text or call opens another. A call is shown only together with its result.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()
        self._run, self._generation = params["run"], params["generation"]
        self._before = [Message.of(message) for message in params["thread"]]
        self.inputs = set(params["inputs"])
        self._items: list[Message | Segment] = []
        self._numbers = itertools.count(1)

    def text(self, text: str) -> None:
        """Add what the agent said."""
        with self._lock:
            self._segment().texts.append(text)

    def requested(self, call: Call) -> None:
        """Add a call that the agent asks for."""
        with self._lock:
            self._segment().calls.append(call)

    def steered(self, messages: Sequence[Message]) -> None:
        """Add messages that steer the run."""
        with self._lock:
            for message in messages:
                if message.id not in self.inputs:
                    self.inputs.add(message.id)
                    self._items.append(message)

    def messages(self) -> list[Message]:
        """Return all messages, in a new list."""
        with self._lock:
            found = list(self._before)
            for item in self._items:
                found.extend([item] if isinstance(item, Message) else self._built(item))
            return found

    def _segment(self) -> Segment:
        last = self._items[-1] if self._items else None
        if isinstance(last, Segment) and (not last.calls or not all(call.over for call in last.calls)):
            return last
        made = Segment(next(self._numbers))
        self._items.append(made)
        return made

    def _built(self, segment: Segment) -> list[Message]:
        ended = [(call, call.result) for call in segment.calls if call.result is not None]
        text = "".join(segment.texts)
        if not text and not ended:
            return []
        common: dict[str, Any] = {"generation": self._generation, "run_id": self._run}
        calls = tuple(ToolCall(call.id, call.tool, call.arguments) for call, _ in ended)
        said = Message(f"{self._run}.{segment.number}", "assistant", text, tool_calls=calls, **common)
        results = [
            Message(
                call.id,
                "tool",
                result.content,
                tool_call_id=call.id,
                outcome=result.outcome,
                is_error=result.is_error,
                **common,
            )
            for call, result in ended
        ]
        return [said, *results]
