"""The thread of a session: the fold of its log into messages for a model (law L6).

Theory of operation. Events are applied in the order of the log. Messages are kept in *groups*, one for each run, in the
order in which the runs first had something to show. So a late report of a run (the end of a call of a run that was
closed long ago) is placed among that run's messages and never splits those of another run.

Within a group the assistant's output is divided into *turns*. A turn collects text and calls. While one of its calls is
open, all output joins it; once all have ended, the next text or call opens a new turn. A call is shown only together
with its result: the call in its assistant message, the results directly behind that message, in the order of the
requests. An empty turn is not shown. These rules keep the invariant: after every event the thread is valid input for a
model, because there is never a call without its result or a result without its call. However a run ends, nothing has to
be repaired.

The answer of a model is a turn that the log delimits: `answer.begun` opens it, and what is a part of it names it. So
its parts stay together and in their order, whatever the agent emits besides. It is partial until `answer.ended`.

Cost: an event takes constant time. Text is collected in a list and joined on demand; only groups that changed are built
again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from actors.events import (
    AnswerBegunData,
    AnswerEndedData,
    AnswerLeftData,
    BlockData,
    EventData,
    EventKind,
    MediaData,
    MessageData,
    MessageRetractedData,
    RunStatusData,
    TextData,
    ToolEndedData,
    ToolRequestedData,
    data_of,
)
from actors.model import Event, Message, MessageStatus, Role, ToolCall
from actors.parts import AnswerInfo, BlockPart, CallPart, MediaPart, Part, TextPart
from actors.run_status import RunStatus

KINDS: Final = frozenset(
    {
        EventKind.ANSWER_BEGUN,
        EventKind.ANSWER_ENDED,
        EventKind.ANSWER_LEFT,
        EventKind.BLOCK,
        EventKind.MEDIA,
        EventKind.MESSAGE,
        EventKind.MESSAGE_RETRACTED,
        EventKind.RUN_STATUS,
        EventKind.TEXT,
        EventKind.TOOL_ENDED,
        EventKind.TOOL_REQUESTED,
    }
)
"""The kinds of events that concern messages: a fold of the log may skip all others."""

_CLOSED_EARLY: Final = frozenset({RunStatus.CANCELLING, RunStatus.CANCELLED, RunStatus.FAILED, RunStatus.EXPIRED})


class _Call:
    """A call of a turn; it is shown once it has a result, which is a complete tool message."""

    __slots__ = ("call", "provider_id", "result")

    def __init__(self, call: ToolCall, result: Message | None = None, provider_id: str | None = None) -> None:
        self.call = call
        self.result = result
        self.provider_id = provider_id

    def part(self) -> CallPart:
        return CallPart(self.call.id, self.call.name, self.call.arguments, self.provider_id)


class _TurnMessages:
    """The content of one assistant message and of the tool messages behind it.

    `parts` are its texts; those of an answer are its texts, blocks, files and calls, in their order. `ended`: an
    answer is complete.
    """

    __slots__ = ("answer", "at", "calls", "ended", "generation", "number", "open", "parts")

    def __init__(self, number: int, generation: int, at: float, answer: AnswerInfo | None = None) -> None:
        self.number = number
        self.generation = generation
        self.at = at
        self.answer = answer
        self.ended = False
        self.parts: list[str | BlockPart | MediaPart | _Call] = []
        self.calls: list[_Call] = []
        self.open = 0

    @property
    def over(self) -> bool:
        """True once all its calls have ended: later output belongs to another turn."""
        return bool(self.calls) and self.open == 0

    def add(self, call: _Call) -> None:
        """Add a call, which is open."""
        self.calls.append(call)
        self.open += 1
        if self.answer is not None:
            self.parts.append(call)

    def text(self) -> str:
        """Return all its text; pieces that follow one another are joined for good."""
        if self.answer is None or len(self.parts) < 2:
            whole = "".join(part for part in self.parts if isinstance(part, str))
            self.parts = [whole] if whole else self.parts
            return whole
        joined: list[str | BlockPart | MediaPart | _Call] = []
        pieces: list[str] = []
        for part in (*self.parts, None):
            if isinstance(part, str):
                pieces.append(part)
                continue
            if pieces:
                joined.append("".join(pieces))
                pieces.clear()
            if part is not None:
                joined.append(part)
        self.parts = joined
        return "".join(part for part in joined if isinstance(part, str))

    def shown_parts(self) -> tuple[Part, ...]:
        """Return the parts of an answer; a call is one once it has its result. After `text`."""
        if self.answer is None:
            return ()
        shown: list[Part] = []
        for part in self.parts:
            if isinstance(part, str):
                shown.append(TextPart(part))
            elif isinstance(part, BlockPart | MediaPart):
                shown.append(part)
            elif part.result is not None:
                shown.append(part.part())
        return tuple(shown)

    def copy(self) -> _TurnMessages:
        other = _TurnMessages(self.number, self.generation, self.at, self.answer)
        twins = {call: _Call(call.call, call.result, call.provider_id) for call in self.calls}
        other.parts = [twins[part] if isinstance(part, _Call) else part for part in self.parts]
        other.calls = list(twins.values())
        other.open = self.open
        other.ended = self.ended
        return other


class _Group:
    """The messages of one run: inputs and turns in their order, then its note.

    `current` is the turn of what is said in no answer; `answers` are the open ones, by their ids.
    """

    __slots__ = (
        "answers",
        "built",
        "closed_early",
        "current",
        "items",
        "note",
        "output_retracted",
        "run_id",
        "turns",
    )

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.items: list[Message | _TurnMessages] = []
        self.turns = 0
        self.current: _TurnMessages | None = None
        self.answers: dict[str, _TurnMessages] = {}
        self.note: Message | None = None
        self.closed_early = False
        self.output_retracted = False
        self.built: list[Message] | None = None

    def turn_for(self, event: Event, answer: str | None) -> _TurnMessages:
        """Return the turn to which output belongs: that of its answer, or the one of this moment."""
        turn = self.answers.get(answer) if answer is not None else None
        if turn is not None:
            return turn
        if self.current is None or self.current.over:
            self.current = self._open(event)
        return self.current

    def begin_answer(self, event: Event, answer: str, info: AnswerInfo) -> None:
        """Open the turn of an answer; what is said besides it from here on is behind it."""
        if answer not in self.answers:
            self.current = None
            self.answers[answer] = self._open(event, info)

    def _open(self, event: Event, info: AnswerInfo | None = None) -> _TurnMessages:
        self.turns += 1
        turn = _TurnMessages(self.turns, event.generation, event.at, info)
        self.items.append(turn)
        return turn

    def messages(self, retracted: set[str]) -> list[Message]:
        if self.built is None:
            self.built = self._build(retracted)
        return self.built

    def _build(self, retracted: set[str]) -> list[Message]:
        built: list[Message] = []
        unfinished: int | None = None
        for item in self.items:
            if isinstance(item, Message):
                built.append(replace(item, status=MessageStatus.RETRACTED) if item.id in retracted else item)
                continue
            shown = [call for call in item.calls if call.result is not None]
            text = item.text()
            parts = item.shown_parts()
            if not text and not shown and not parts:
                continue
            unfinished = None if item.ended else len(built)
            status = MessageStatus.RETRACTED if self.output_retracted else MessageStatus.COMPLETE
            partial = item.answer is not None and not item.ended and not self.output_retracted
            built.append(
                Message(
                    id=f"{self.run_id}.{item.number}",
                    role=Role.ASSISTANT,
                    content=text,
                    generation=item.generation,
                    run_id=self.run_id,
                    status=MessageStatus.PARTIAL if partial else status,
                    tool_calls=tuple(call.call for call in shown),
                    at=item.at,
                    parts=parts,
                    answer=item.answer,
                )
            )
            built.extend(replace(call.result, status=status) for call in shown if call.result is not None)
        if unfinished is not None and self.closed_early and not self.output_retracted:
            # The log marks the end of an answer, and of no other text: so the last text of an interrupted run counts as
            # unfinished.
            built[unfinished] = replace(built[unfinished], status=MessageStatus.PARTIAL)
        if self.note is not None:
            built.append(self.note)
        return built

    def copy(self) -> _Group:
        other = _Group(self.run_id)
        twins: dict[_TurnMessages, _TurnMessages] = {}
        for item in self.items:
            if isinstance(item, Message):
                other.items.append(item)
                continue
            twin = twins[item] = item.copy()
            other.items.append(twin)
        other.current = twins[self.current] if self.current is not None else None
        other.answers = {answer: twins[turn] for answer, turn in self.answers.items()}
        other.turns = self.turns
        other.note = self.note
        other.closed_early = self.closed_early
        other.output_retracted = self.output_retracted
        other.built = self.built
        return other


class Thread:
    """The messages of a session, kept up to date event by event.

    Not safe to share between threads: it belongs to the actor, or to the reader, that folds the log. Events have to be
    applied in the order of their `seq`. Kinds that do not concern messages are ignored.
    """

    __slots__ = ("_built", "_calls", "_groups", "_input_groups", "_owned", "_retracted", "_spans")

    def __init__(self) -> None:
        self._groups: dict[str | None, _Group] = {}
        self._calls: dict[str, tuple[_Group, _TurnMessages, _Call]] = {}
        self._input_groups: dict[str, _Group] = {}
        self._retracted: set[str] = set()
        # The `traceparent` of each message that has one, in order.
        self._spans: dict[str, str] = {}
        # Runs whose group no copy of this thread shares: only those groups may be changed in place.
        self._owned: set[str | None] = set()
        self._built: list[Message] | None = None

    def apply(self, event: Event) -> None:
        """Apply one event of the log."""
        if event.kind in KINDS:
            self.add(event, data_of(event))

    def add(self, event: Event, data: EventData) -> None:
        """Apply one event by its decoded data alone: its dict is not read. `UnreadableData` changes nothing."""
        match data:
            case TextData():
                self._text(event, data)
            case ToolRequestedData():
                self._tool_requested(event, data)
            case ToolEndedData():
                self._tool_ended(event, data)
            case MessageData():
                self._message(event, data)
            case RunStatusData():
                self._run_status(event, data)
            case AnswerBegunData():
                self._answer_begun(event, data)
            case AnswerEndedData():
                self._answer_ended(event, data)
            case AnswerLeftData():
                self._answer_left(event, data)
            case BlockData():
                self._block(event, data)
            case MediaData():
                self._media(event, data)
            case MessageRetractedData():
                self._message_retracted(data)
            case _:
                return

    def messages(self) -> list[Message]:
        """Return all messages, including retracted ones, in a new list."""
        if self._built is None:
            self._built = [message for group in self._groups.values() for message in group.messages(self._retracted)]
        return list(self._built)

    def traceparent(self, messages: Collection[str]) -> str | None:
        """Return the `traceparent` of the last of these messages that has one; else None."""
        return next((span for key, span in reversed(self._spans.items()) if key in messages), None)

    def copy(self) -> Thread:
        """Return an independent copy.

        Every run starts with one, so it costs only a few copies of dicts: the copies share the groups of all runs, and
        each copies a group before it changes it.
        """
        other = Thread()
        other._retracted = set(self._retracted)
        other._built = self._built
        other._groups = dict(self._groups)
        other._calls = dict(self._calls)
        other._input_groups = dict(self._input_groups)
        other._spans = dict(self._spans)
        self._owned = set()
        return other

    def _group(self, event: Event) -> _Group:
        """Return the group of an event's run, to be changed; create it if there is none."""
        group = self._own(event.run_id)
        if group is None:
            group = self._groups[event.run_id] = _Group(event.run_id)
            self._owned.add(event.run_id)
        return group

    def _own(self, run_id: str | None) -> _Group | None:
        """Return the group of a run, to be changed: it is copied first if another thread shares it."""
        group = self._groups.get(run_id)
        if group is None or run_id in self._owned:
            return group
        group = self._groups[run_id] = group.copy()
        self._owned.add(run_id)
        for item in group.items:
            if isinstance(item, Message):
                self._input_groups[item.id] = group
            else:
                for call in item.calls:
                    self._calls[call.call.id] = (group, item, call)
        return group

    def _changed(self, group: _Group) -> None:
        group.built = None
        self._built = None

    def _message(self, event: Event, data: MessageData) -> None:
        if data.id in self._input_groups:
            # An input belongs to one run. An input of a half-finished run stays there when another run retries it.
            return
        if data.traceparent is not None:
            self._spans[data.id] = data.traceparent
        group = self._group(event)
        group.items.append(
            Message(
                id=data.id,
                role=Role.USER,
                content=data.content,
                generation=event.generation,
                run_id=event.run_id,
                origin=data.origin,
                sent_at=data.sent_at,
                at=event.at,
                attachments=data.attachments,
                parts=data.parts,
            )
        )
        # A message that steers the run separates the output before it from the output after it.
        group.current = None
        self._input_groups[data.id] = group
        self._changed(group)

    def _text(self, event: Event, data: TextData) -> None:
        if not data.text:
            return
        run_id = event.run_id
        group = self._groups[run_id] if run_id in self._owned else self._group(event)
        turn = group.current
        if data.answer is not None or turn is None or turn.over:
            turn = group.turn_for(event, data.answer)
        turn.parts.append(data.text)
        group.built = self._built = None

    def _answer_begun(self, event: Event, data: AnswerBegunData) -> None:
        self._group(event).begin_answer(event, data.answer, AnswerInfo(data.provider, data.model))

    def _block(self, event: Event, data: BlockData) -> None:
        group = self._own(event.run_id)
        turn = group.answers.get(data.answer) if group is not None else None
        if group is None or turn is None or turn.answer is None:
            # Its answer cannot be read, so its place is not known.
            return
        turn.parts.append(BlockPart(data.provider or turn.answer.provider, data.data))
        self._changed(group)

    def _media(self, event: Event, data: MediaData) -> None:
        group = self._group(event)
        group.turn_for(event, data.answer).parts.append(data.part)
        self._changed(group)

    def _answer_ended(self, event: Event, data: AnswerEndedData) -> None:
        group = self._own(event.run_id)
        turn = group.answers.pop(data.answer, None) if group is not None else None
        if group is None or turn is None or turn.answer is None:
            return
        turn.answer = replace(turn.answer, usage=data.usage, stop=data.stop, provider_id=data.provider_id)
        turn.ended = True
        self._changed(group)

    def _answer_left(self, event: Event, data: AnswerLeftData) -> None:
        group = self._own(event.run_id)
        turn = group.answers.get(data.answer) if group is not None else None
        if group is None or turn is None or turn.answer is None:
            return
        turn.answer = replace(turn.answer, usage=data.usage)
        self._changed(group)

    def _tool_requested(self, event: Event, data: ToolRequestedData) -> None:
        call_id = data.call_id
        if call_id in self._calls:
            return
        group = self._group(event)
        turn = group.turn_for(event, data.answer)
        call = _Call(ToolCall(call_id, data.tool, data.arguments), provider_id=data.provider_id)
        turn.add(call)
        self._calls[call_id] = (group, turn, call)
        self._changed(group)

    def _tool_ended(self, event: Event, data: ToolEndedData) -> None:
        known = self._calls.get(data.call_id)
        if known is None:
            # A result without a request cannot be shown to a model, and no session writes one.
            return
        self._own(known[0].run_id)
        group, turn, call = self._calls[data.call_id]
        if call.result is not None:
            return
        call.result = Message(
            id=call.call.id,
            role=Role.TOOL,
            content=data.content,
            generation=event.generation,
            run_id=group.run_id,
            tool_call_id=call.call.id,
            outcome=data.outcome,
            is_error=data.is_error,
            at=event.at,
            attachments=tuple(dict.fromkeys(part.attachment for part in data.parts)),
            parts=data.parts,
        )
        turn.open -= 1
        self._changed(group)

    def _run_status(self, event: Event, data: RunStatusData) -> None:
        note = data.note
        group = self._group(event) if note else self._own(event.run_id)
        if group is None:
            return
        if data.status in _CLOSED_EARLY:
            group.closed_early = True
        if note and group.note is None:
            group.note = Message(
                id=f"{event.run_id}.note",
                role=Role.NOTE,
                content=note,
                generation=event.generation,
                run_id=event.run_id,
                at=event.at,
            )
        self._changed(group)

    def _message_retracted(self, data: MessageRetractedData) -> None:
        for message_id in data.ids:
            self._retracted.add(message_id)
            group = self._input_groups.get(message_id)
            owned = self._own(group.run_id) if group is not None else None
            if owned is not None:
                self._changed(owned)
        run = self._own(data.run_id)
        if run is not None:
            run.output_retracted = True
            self._changed(run)
