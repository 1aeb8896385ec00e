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

Cost: an event takes constant time. Text is collected in a list and joined on demand; only groups that changed are built
again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from actors.events import (
    EventData,
    EventKind,
    MessageData,
    MessageRetractedData,
    RunStatusData,
    TextData,
    ToolEndedData,
    ToolRequestedData,
    data_of,
)
from actors.model import Event, Message, MessageStatus, Role, RunStatus, ToolCall

KINDS: Final = frozenset(
    {
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

    __slots__ = ("call", "result")

    def __init__(self, call: ToolCall, result: Message | None = None) -> None:
        self.call = call
        self.result = result


class _TurnMessages:
    """The content of one assistant message and of the tool messages behind it."""

    __slots__ = ("at", "calls", "generation", "number", "open", "parts")

    def __init__(self, number: int, generation: int, at: float) -> None:
        self.number = number
        self.generation = generation
        self.at = at
        self.parts: list[str] = []
        self.calls: list[_Call] = []
        self.open = 0

    @property
    def over(self) -> bool:
        """True once all its calls have ended: later output belongs to another turn."""
        return bool(self.calls) and self.open == 0

    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def copy(self) -> _TurnMessages:
        other = _TurnMessages(self.number, self.generation, self.at)
        other.parts = list(self.parts)
        other.calls = [_Call(call.call, call.result) for call in self.calls]
        other.open = self.open
        return other


class _Group:
    """The messages of one run: inputs and turns in their order, then its note."""

    __slots__ = ("built", "closed_early", "current", "items", "note", "output_retracted", "run_id", "turns")

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.items: list[Message | _TurnMessages] = []
        self.turns = 0
        self.current: _TurnMessages | None = None
        self.note: Message | None = None
        self.closed_early = False
        self.output_retracted = False
        self.built: list[Message] | None = None

    def turn_for(self, event: Event) -> _TurnMessages:
        """Return the turn to which output belongs at this moment."""
        self.built = None
        if self.current is None or self.current.over:
            self.turns += 1
            self.current = _TurnMessages(self.turns, event.generation, event.at)
            self.items.append(self.current)
        return self.current

    def messages(self, retracted: set[str]) -> list[Message]:
        if self.built is None:
            self.built = self._build(retracted)
        return self.built

    def _build(self, retracted: set[str]) -> list[Message]:
        built: list[Message] = []
        last_assistant: int | None = None
        for item in self.items:
            if isinstance(item, Message):
                built.append(replace(item, status=MessageStatus.RETRACTED) if item.id in retracted else item)
                continue
            shown = [call for call in item.calls if call.result is not None]
            text = item.text()
            if not text and not shown:
                continue
            last_assistant = len(built)
            status = MessageStatus.RETRACTED if self.output_retracted else MessageStatus.COMPLETE
            built.append(
                Message(
                    id=f"{self.run_id}.{item.number}",
                    role=Role.ASSISTANT,
                    content=text,
                    generation=item.generation,
                    run_id=self.run_id,
                    status=status,
                    tool_calls=tuple(call.call for call in shown),
                    at=item.at,
                )
            )
            built.extend(replace(call.result, status=status) for call in shown if call.result is not None)
        if last_assistant is not None and self.closed_early and not self.output_retracted:
            # The log does not mark the end of a text, so the last text of an interrupted run counts as unfinished.
            built[last_assistant] = replace(built[last_assistant], status=MessageStatus.PARTIAL)
        if self.note is not None:
            built.append(self.note)
        return built

    def copy(self) -> _Group:
        other = _Group(self.run_id)
        for item in self.items:
            twin = item if isinstance(item, Message) else item.copy()
            other.items.append(twin)
            if item is self.current and isinstance(twin, _TurnMessages):
                other.current = twin
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
            )
        )
        # A message that steers the run separates the output before it from the output after it.
        group.current = None
        self._input_groups[data.id] = group
        self._changed(group)

    def _text(self, event: Event, data: TextData) -> None:
        if not data.text:
            return
        group = self._group(event)
        group.turn_for(event).parts.append(data.text)
        self._changed(group)

    def _tool_requested(self, event: Event, data: ToolRequestedData) -> None:
        call_id = data.call_id
        if call_id in self._calls:
            return
        group = self._group(event)
        turn = group.turn_for(event)
        call = _Call(ToolCall(call_id, data.tool, data.arguments))
        turn.calls.append(call)
        turn.open += 1
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
