"""The thread of a run: the messages that it came with, and what the agent has said and called since."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .values import AnswerInfo, BlockPart, CallPart, MediaPart, Message, Part, TextPart, ToolCall, ToolResult

if TYPE_CHECKING:
    from .call import Call


class Segment:
    """What the agent said and asked for in one message of the thread.

    `answer`: it is the answer of a model. Then it is complete once `ended`, and its parts are shown in their order.
    """

    def __init__(self, number: int, answer: AnswerInfo | None = None) -> None:
        self.number = number
        self.answer = answer
        self.ended = False
        self.parts: list[str | BlockPart | MediaPart | Call] = []
        self.calls: list[Call] = []

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part for part in self.parts if isinstance(part, str))

    def shown_parts(self) -> tuple[Part, ...]:
        """Return the parts of an answer: pieces of text that follow one another together, calls that have results."""
        if self.answer is None:
            return ()
        shown: list[Part] = []
        pieces: list[str] = []
        for part in (*self.parts, None):
            if isinstance(part, str):
                pieces.append(part)
                continue
            if pieces:
                shown.append(TextPart("".join(pieces)))
                pieces.clear()
            if isinstance(part, (BlockPart, MediaPart)):
                shown.append(part)
            elif part is not None and part.result is not None:
                shown.append(CallPart(part.id, part.tool, part.arguments, part.frame.get("provider_id")))
        return tuple(shown)


class Thread:
    """The thread of a run: what came with it, and what the agent has said and called since. Any thread.

    Text and calls are collected in one message. While one of its calls is open, all output joins it; once all have
    ended, the next text or call opens another. A call is shown only together with its result. The answer of a model is
    a message of its own, whatever the agent says besides.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()
        self._run, self._generation = params["run"], params["generation"]
        # Made where they are asked for: a thread may be long, and the agent's first line waits for this. The next run
        # in this host has them too, so they are not changed.
        self._given: Sequence[Mapping[str, Any]] = params["thread"]
        self._made: dict[int, Message] = {}
        self.inputs = set(params["inputs"])
        self._items: list[Message | Segment] = []
        self._numbers = itertools.count(1)
        # Of what is said in no answer; None: the next of that opens another.
        self._current: Segment | None = None

    def text(self, text: str, answer: Segment | None = None) -> None:
        """Add what the agent said: in an answer, or in none."""
        with self._lock:
            (answer or self._segment()).parts.append(text)

    def requested(self, call: Call) -> None:
        """Add a call that the agent asks for."""
        with self._lock:
            segment = call.part_of or self._segment()
            segment.parts.append(call)
            segment.calls.append(call)

    def begin_answer(self, answer: AnswerInfo) -> Segment:
        """Open the message of an answer; what is said besides it from here on is behind it."""
        with self._lock:
            self._current = None
            return self._open(answer)

    def keep_block(self, block: BlockPart | MediaPart, answer: Segment) -> None:
        """Add a block, or a file, to an answer."""
        with self._lock:
            answer.parts.append(block)

    def end_answer(self, info: AnswerInfo, answer: Segment) -> None:
        """Complete an answer: with all that is known of it."""
        with self._lock:
            answer.answer, answer.ended = info, True

    def steered(self, messages: Sequence[Message]) -> None:
        """Add messages that steer the run."""
        with self._lock:
            for message in messages:
                if message.id not in self.inputs:
                    self.inputs.add(message.id)
                    self._items.append(message)
                    self._current = None

    def messages(self) -> list[Message]:
        """Return all messages, in a new list."""
        with self._lock:
            found = [self._message(place) for place in range(len(self._given))]
            for item in self._items:
                found.extend([item] if isinstance(item, Message) else self._built(item))
            return found

    def own_inputs(self) -> list[Message]:
        """Return the messages that this run is to answer, with those that have steered it."""
        with self._lock:
            given = [place for place, one in enumerate(self._given) if one["id"] in self.inputs]
            found = [self._message(place) for place in given]
            found += [item for item in self._items if isinstance(item, Message)]
            return [message for message in found if message.role == "user"]

    def _message(self, place: int) -> Message:
        if place not in self._made:
            self._made[place] = Message.of(self._given[place])
        return self._made[place]

    def _segment(self) -> Segment:
        last = self._current
        if last is None or (last.calls and all(call.over for call in last.calls)):
            last = self._current = self._open()
        return last

    def _open(self, answer: AnswerInfo | None = None) -> Segment:
        made = Segment(next(self._numbers), answer)
        self._items.append(made)
        return made

    def _built(self, segment: Segment) -> list[Message]:
        ended = [(call, call.result) for call in segment.calls if call.result is not None]
        text, parts = segment.text, segment.shown_parts()
        if not text and not ended and not parts:
            return []
        common: dict[str, Any] = {"generation": self._generation, "run_id": self._run}
        calls = tuple(ToolCall(call.id, call.tool, call.arguments) for call, _ in ended)
        status = "complete" if segment.answer is None or segment.ended else "partial"
        said = Message(
            f"{self._run}.{segment.number}",
            "assistant",
            text,
            status=status,
            tool_calls=calls,
            parts=parts,
            answer=segment.answer,
            **common,
        )
        results = [
            Message(
                call.id,
                "tool",
                result.content,
                tool_call_id=call.id,
                outcome=result.outcome,
                is_error=result.is_error,
                attachments=tuple(dict.fromkeys(part.attachment for part in media_of(result))),
                parts=media_of(result),
                **common,
            )
            for call, result in ended
        ]
        return [said, *results]


def media_of(result: ToolResult) -> tuple[MediaPart, ...]:
    """Return the files of a result that the daemon has given."""
    return tuple(part for part in result.parts if isinstance(part, MediaPart))
