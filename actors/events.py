"""The schema of the log: one enum of kinds, and for each kind one struct with the fields of its data.

An `Event` carries its data as a plain dict, as it is stored and sent: readers of any version can pass it on. This is
the one place where it is encoded and decoded:

- `as_data(data)` returns the dict of a struct. A field that has its default is left out; a field without a default, or
  with the default `always(...)`, is always there.
- `data_of(event)` returns the struct of an event; `decoded(kind, data)` the same from the JSON of a row. They never
  raise, and ignore keys that they do not know. What they cannot decode (a kind of a newer version, a damaged row) is
  an `UnreadableData`, which readers skip.

To add a kind: a member of `EventKind`, a struct whose name is made of the kind's words, and its place in `EventData`.
A key may be added to a struct if it has a default. A key is never renamed or removed, and a kind never changes its
string: stores hold both. `docs/events.md` and the API's OpenAPI document are made from this file.

The file is long and stays whole: it is one table, and each struct is a row of it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct, field

from actors.decoding import convert, decoder
from actors.errors import CountermandError
from actors.model import (
    Effect,
    Event,
    How,
    Json,
    JsonObject,
    Outcome,
    Owner,
    PartKind,
    Policy,
    Provenance,
    Receipt,
    ReturnReason,
    RunParent,
    StopOutcome,
    Where,
)
from actors.parts import GivenPart, MediaPart
from actors.run_status import RunStatus
from actors.text import storable_json


class EventKind(StrEnum):
    """The kind of an event. The list is closed; the strings are in stores and never change."""

    MESSAGE = "message"
    MESSAGE_RETRACTED = "message.retracted"
    ANSWER_BEGUN = "answer.begun"
    ANSWER_ENDED = "answer.ended"
    ANSWER_LEFT = "answer.left"
    TEXT = "text"
    BLOCK = "block"
    MEDIA = "media"
    TOOL_REQUESTED = "tool.requested"
    CALL_WAITING = "call.waiting"
    CALL_ANSWERED = "call.answered"
    TOOL_STARTED = "tool.started"
    TOOL_OUTPUT = "tool.output"
    TOOL_ENDED = "tool.ended"
    PROCESS_STARTED = "process.started"
    PROCESS_ENDED = "process.ended"
    PROCESS_HANDED_OVER = "process.handed_over"
    PROCESS_TAKEN_BACK = "process.taken_back"
    RUN_STARTED = "run.started"
    RUN_OUTPUT = "run.output"
    RUN_STATUS = "run.status"
    RUN_CHILD = "run.child"
    RUN_CHILD_ENDED = "run.child_ended"
    RUN_ENDED = "run.ended"
    RECEIPT_FILED = "receipt.filed"
    RECEIPT_AMENDED = "receipt.amended"
    SESSION_FENCED = "session.fenced"
    SESSION_MESSAGE_WAITING = "session.message_waiting"
    SESSION_MESSAGE_RETURNED = "session.message_returned"
    SESSION_RESUMED = "session.resumed"
    SESSION_STATE = "session.state"
    SESSION_AGENT = "session.agent"
    SESSION_BARRIER_FORCED = "session.barrier_forced"
    SESSION_STOP_DURABLE = "session.stop_durable"
    SESSION_QUARANTINED = "session.quarantined"
    SESSION_DELETED = "session.deleted"
    TYPING = "typing"
    PROGRESS = "progress"
    UNREADABLE = "unreadable"


EPHEMERAL: Final = frozenset({EventKind.TYPING, EventKind.PROGRESS})
"""Kinds that are shown to those who ask for them, and are not stored."""


def always(default: Any) -> Any:
    """Return a default for decoding alone: a field with it is in the dict whatever its value is."""
    return field(default_factory=lambda: default)


MessageId = Annotated[str, Meta(description="The message's id.")]
CallId = Annotated[str, Meta(description="The call's id.")]
ProcessId = Annotated[str, Meta(description="The id of the process tree.")]
Pid = Annotated[int | None, Meta(description="The operating system's id of the tree's command; null: not known yet.")]
Name = Annotated[str, Meta(description="The command, shortened for people.")]
AnswerId = Annotated[str, Meta(description="The answer's id.")]
OfAnswer = Annotated[str | None, Meta(description="The answer that it is a part of. Left out: none.")]
ToolName = Annotated[str, Meta(description="The tool's name.")]
Content = Annotated[str, Meta(description="The message's text.")]
Origin = Annotated[str | None, Meta(description="Who sent the message: `user`, or the name of a client.")]
GivenParts = Annotated[
    tuple[GivenPart, ...],
    Meta(description="Its texts and its files, in their order; of a file the name of its attachment. Left out: none."),
]
Note = Annotated[str, Meta(description="What else is known, for people.")]
TreeOwner = Annotated[Owner, Meta(description="Who owns the tree. Left out: the run.")]
Kind = Annotated[PartKind, Meta(description="What it is. Left out: a tree that a tool spawned.")]
Cause = Annotated[Provenance, Meta(description="Who ended it, and why.")]
OptionalCause = Annotated[
    Provenance | None, Meta(description="Who ended it, and why. Left out: it came to an end of its own.")
]


class Data(Struct, frozen=True, omit_defaults=True):
    """The data of an event; `event_kind` is the kind that it belongs to."""

    event_kind: ClassVar[EventKind]


class MessageData(Data, frozen=True, kw_only=True):
    """A message became an input of a run: from here on it is in the thread."""

    event_kind: ClassVar[EventKind] = EventKind.MESSAGE

    id: MessageId
    content: Content
    origin: Origin = always(None)
    policy: Annotated[
        Policy | None, Meta(description="The policy that it was accepted under: what it does to an active run.")
    ] = always(None)
    sent_at: Annotated[
        float | None, Meta(description="When its sender sent it, as the sender says. Seconds since the epoch, UTC.")
    ] = None
    attachments: Annotated[
        tuple[str, ...], Meta(description="Names of its attachments: of its files, and of bytes that are not UTF-8.")
    ] = ()
    traceparent: Annotated[
        str | None, Meta(description="The sender's span, as of W3C Trace Context. Left out: none was given.")
    ] = None
    agent: Annotated[str | None, Meta(description="The agent that it names. Left out: none.")] = None
    parts: GivenParts = ()


class MessageRetractedData(Data, frozen=True, kw_only=True):
    """A rollback took messages of a run, and the run's output, out of what later runs are given."""

    event_kind: ClassVar[EventKind] = EventKind.MESSAGE_RETRACTED

    run_id: Annotated[str, Meta(description="The run whose output is retracted.")]
    ids: Annotated[tuple[str, ...], Meta(description="Ids of the messages that are retracted.")]


class AnswerBegunData(Data, frozen=True, kw_only=True):
    """A model began to answer. What is said in its answer is one message of the thread, in the order of the log."""

    event_kind: ClassVar[EventKind] = EventKind.ANSWER_BEGUN

    answer: AnswerId
    provider: Annotated[str | None, Meta(description="The model's provider, as the agent names it.")] = None
    model: Annotated[str | None, Meta(description="The model.")] = None


class AnswerEndedData(Data, frozen=True, kw_only=True):
    """An answer is complete. Its calls start after this. An answer without this event is partial."""

    event_kind: ClassVar[EventKind] = EventKind.ANSWER_ENDED

    answer: AnswerId
    usage: Annotated[dict[str, int], Meta(description="What it cost: numbers of tokens, by kind.")] = field(
        default_factory=dict
    )
    stop: Annotated[str | None, Meta(description="Why the model ended it, in the provider's words.")] = None
    provider_id: Annotated[str | None, Meta(description="The provider's own id of the answer.")] = None


class AnswerLeftData(Data, frozen=True, kw_only=True):
    """The agent left an answer before its end, and goes on. It stays partial, and none of its calls starts."""

    event_kind: ClassVar[EventKind] = EventKind.ANSWER_LEFT

    answer: AnswerId
    usage: Annotated[dict[str, int], Meta(description="What it cost so far: numbers of tokens, by kind.")] = field(
        default_factory=dict
    )


class TextData(Data, frozen=True, kw_only=True):
    """The agent, or a tool that it has called, emitted a piece of text."""

    event_kind: ClassVar[EventKind] = EventKind.TEXT

    text: Annotated[str, Meta(description="The text; it goes on where the piece before it ended.")]
    answer: OfAnswer = None
    call: Annotated[str | None, Meta(description="The call whose tool said it. Left out: the agent itself did.")] = None


class BlockData(Data, frozen=True, kw_only=True):
    """A block of an answer that only its provider understands, as it came. It is not for people."""

    event_kind: ClassVar[EventKind] = EventKind.BLOCK

    answer: AnswerId
    provider: Annotated[
        str | None, Meta(description="The provider that understands it. Left out: that of the answer.")
    ] = None
    data: Annotated[JsonObject, Meta(description="The block.")]


class MediaData(Data, frozen=True, kw_only=True):
    """A file of an answer, such as an image that the model has made."""

    event_kind: ClassVar[EventKind] = EventKind.MEDIA

    answer: AnswerId
    part: Annotated[MediaPart, Meta(description="The file; its bytes are an attachment.")]


class ToolRequestedData(Data, frozen=True, kw_only=True):
    """The agent asked for a call. It starts when the parts of earlier runs, and its answer, have ended."""

    event_kind: ClassVar[EventKind] = EventKind.TOOL_REQUESTED

    call_id: CallId
    tool: ToolName
    arguments: Annotated[JsonObject, Meta(description="The arguments by name, without secret ones.")]
    provider_id: Annotated[
        str | None,
        Meta(description="What the model calls the call; at most 256 characters are kept. Left out: not known."),
    ] = None
    where: Annotated[Where, Meta(description="Which side executes it. Left out: the supervisor.")] = Where.DAEMON
    answer: OfAnswer = None
    begun: Annotated[
        bool,
        Meta(
            description="True: it had begun elsewhere before it was asked for, as with an agent that is a program of "
            "its own. It is never said to be not started. Left out: it begins here."
        ),
    ] = False


class CallWaitingData(Data, frozen=True, kw_only=True):
    """A call waits for a person's answer. Deadlines stand still meanwhile."""

    event_kind: ClassVar[EventKind] = EventKind.CALL_WAITING

    call_id: CallId
    question: Annotated[str, Meta(description="What it asks.")]
    options: Annotated[
        tuple[str, ...], Meta(description="Answers to choose from; others are taken too. Left out: none.")
    ] = ()
    approval: Annotated[
        bool, Meta(description="True: it asks whether it may start. Left out: the answer is its result.")
    ] = False


class CallAnsweredData(Data, frozen=True, kw_only=True):
    """A person answered what a call waited for."""

    event_kind: ClassVar[EventKind] = EventKind.CALL_ANSWERED

    call_id: CallId
    content: Annotated[str, Meta(description="The answer.")] = always("")
    allow: Annotated[
        bool | None, Meta(description="Whether the call may go on; null, to a question: it is answered.")
    ] = always(None)
    by: Annotated[str, Meta(description="Who answered: `user`, or the name of a client.")] = always("")


class ToolStartedData(Data, frozen=True, kw_only=True):
    """A call passed its gate: from here on it may have effects."""

    event_kind: ClassVar[EventKind] = EventKind.TOOL_STARTED

    call_id: CallId


class ToolOutputData(Data, frozen=True, kw_only=True):
    """A process of a call printed something."""

    event_kind: ClassVar[EventKind] = EventKind.TOOL_OUTPUT

    call_id: Annotated[str | None, Meta(description="The call's id.")]
    process_id: Annotated[str, Meta(description="The id of the process tree.")] = always("")
    stream: Annotated[str, Meta(description="`stdout` or `stderr`.")] = always("")
    text: Annotated[str, Meta(description="What was printed.")] = always("")
    marker: Annotated[
        bool, Meta(description="True: the text is the supervisor's own; no more output of this call is logged.")
    ] = False


class ToolEndedData(Data, frozen=True, kw_only=True):
    """A call has its one result. What executes it may end later: see the receipt."""

    event_kind: ClassVar[EventKind] = EventKind.TOOL_ENDED

    call_id: CallId
    tool: ToolName = always("")
    outcome: Annotated[Outcome, Meta(description="Whether the call finished, was interrupted, or never started.")]
    content: Annotated[str, Meta(description="The result as the model reads it.")]
    is_error: Annotated[bool, Meta(description="True: the result tells of an error.")] = always(False)
    data: Annotated[Json, Meta(description="The result for programs, as the tool returned it. Left out: none.")] = None
    provenance: Annotated[
        Provenance | None, Meta(description="Who closed the call, and why, where it was closed on its own.")
    ] = None
    effects: Annotated[
        tuple[Effect, ...], Meta(description="What it had begun behind guards by then. Left out: nothing.")
    ] = ()
    parts: Annotated[
        tuple[MediaPart, ...],
        Meta(description="Files of the result; their bytes are attachments. Left out: none."),
    ] = ()


class ProcessStartedData(Data, frozen=True, kw_only=True):
    """A process tree runs: one that a tool spawned, or a process that code of the run started by itself."""

    event_kind: ClassVar[EventKind] = EventKind.PROCESS_STARTED

    call_id: Annotated[str | None, Meta(description="The call's id. Left out: the agent's own code started it.")] = None
    process_id: ProcessId
    kind: Kind = PartKind.PROCESS
    pid: Pid = always(None)
    name: Name = always("")
    owner: TreeOwner = Owner.RUN


class ProcessEndedData(Data, frozen=True, kw_only=True):
    """A process tree ended, or it is no longer known whether it has."""

    event_kind: ClassVar[EventKind] = EventKind.PROCESS_ENDED

    run_id: Annotated[
        str | None, Meta(description="The run that started it, where the tree is the session's. Left out: the event's.")
    ] = None
    call_id: Annotated[str | None, Meta(description="The call's id. Left out: the agent's own code started it.")] = None
    process_id: ProcessId
    kind: Kind = PartKind.PROCESS
    how: Annotated[How | None, Meta(description="How it ended; null: that is not known.")] = always(None)
    status: Annotated[
        int | None, Meta(description="Its exit status; negative: the signal that ended it; null: not known.")
    ] = always(None)
    reaped: Annotated[int, Meta(description="Number of processes of the tree that are proven dead.")] = always(0)
    proven: Annotated[bool, Meta(description="True: all of the tree is proven dead.")] = always(False)
    owner: TreeOwner = Owner.RUN
    note: Note = ""
    provenance: OptionalCause = None


class ProcessHandedOverData(Data, frozen=True, kw_only=True):
    """A process tree became the session's: it lives on when its run ends."""

    event_kind: ClassVar[EventKind] = EventKind.PROCESS_HANDED_OVER

    call_id: Annotated[str, Meta(description="The call's id; empty: it is the agent's host, or was its own.")] = always(
        ""
    )
    process_id: ProcessId
    pid: Pid = always(None)
    name: Name = always("")


class ProcessTakenBackData(Data, frozen=True, kw_only=True):
    """The host that the session kept became the run's: it ends with the run, or is handed over again."""

    event_kind: ClassVar[EventKind] = EventKind.PROCESS_TAKEN_BACK

    process_id: ProcessId
    pid: Pid = always(None)
    name: Name = always("")


class RunStartedData(Data, frozen=True, kw_only=True):
    """A run began, in the event's generation."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_STARTED

    agent: Annotated[str, Meta(description="The agent's name.")]
    inputs: Annotated[tuple[str, ...], Meta(description="Ids of the messages that it is given.")] = always(())
    resumed: Annotated[bool, Meta(description="True: a Resume started it.")] = False
    retry_of: Annotated[str | None, Meta(description="The run that it tries again. Left out: none.")] = None
    code_changed_at: Annotated[
        float | None,
        Meta(
            description="When the file of the agent's code was last changed, before its host loaded it: seconds since "
            "1970. Left out: the host had not loaded it when the run began, or does not say; or there is no host."
        ),
    ] = None
    parent: Annotated[RunParent | None, Meta(description="Whose child run it is. Left out: nobody's.")] = None


class RunChildData(Data, frozen=True, kw_only=True):
    """A child run began, in a session of its own, as a part of this run. Its own events are in that session."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_CHILD

    call_id: CallId
    run_id: Annotated[str, Meta(description="The id of the child run.")]
    session: Annotated[str, Meta(description="The session in which it runs.")]
    agent: Annotated[str, Meta(description="Its agent's name.")]


class RunChildEndedData(Data, frozen=True, kw_only=True):
    """The receipt of a child run is filed, so this run's need not wait for it any more; or it never began."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_CHILD_ENDED

    call_id: CallId
    run_id: Annotated[str, Meta(description="The id of the child run.")]
    session: Annotated[str, Meta(description="The session in which it ran.")]
    status: Annotated[RunStatus | None, Meta(description="Its last status; null: it never began.")] = always(None)
    receipt_id: Annotated[str | None, Meta(description="The id of its receipt. Left out: it has none.")] = None
    how: Annotated[How, Meta(description="How it ended, as the receipt of this run has it.")] = always(How.OTHER)
    reaped: Annotated[int, Meta(description="Number of its processes that are proven dead.")] = always(0)
    proven: Annotated[bool, Meta(description="True: all of it is proven to have ended.")] = always(False)
    note: Note = ""
    provenance: OptionalCause = None


class RunOutputData(Data, frozen=True, kw_only=True):
    """The host of the agent printed something, or a process did that the agent's own code started in it."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_OUTPUT

    process_id: ProcessId
    stream: Annotated[str, Meta(description="`stdout` or `stderr`.")] = always("")
    text: Annotated[str, Meta(description="What was printed.")] = always("")
    marker: Annotated[
        bool, Meta(description="True: the text is the supervisor's own; no more output of this host is logged.")
    ] = False


class RunStatusData(Data, frozen=True, kw_only=True):
    """The status of a run changed to another than `in_progress`, which `run.started` says."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_STATUS

    status: Annotated[RunStatus, Meta(description="The new status.")]
    provenance: OptionalCause = None
    error: Annotated[str | None, Meta(description="What the agent raised. Left out: nothing.")] = None
    result: Annotated[Json, Meta(description="What the agent returned. Left out: nothing.")] = None
    note: Annotated[
        str | None, Meta(description="What the thread says to the model about this end. Left out: nothing.")
    ] = None


class RunEndedData(Data, frozen=True, kw_only=True):
    """A run has settled: it has its last status, and its receipt is filed."""

    event_kind: ClassVar[EventKind] = EventKind.RUN_ENDED

    status: Annotated[RunStatus, Meta(description="The last status.")]
    receipt: Annotated[Receipt, Meta(description="What was running when the run ended, and how each part ended.")]


class ReceiptFiledData(Data, frozen=True, kw_only=True):
    """The receipt of a Stop that found no run, and ended process trees of the session."""

    event_kind: ClassVar[EventKind] = EventKind.RECEIPT_FILED

    receipt: Annotated[Receipt, Meta(description="How each of the trees ended.")]


class ReceiptAmendedData(Data, frozen=True, kw_only=True):
    """A receipt was filed again: a part that it named as abandoned has ended, or a further part was found."""

    event_kind: ClassVar[EventKind] = EventKind.RECEIPT_AMENDED

    receipt: Annotated[Receipt, Meta(description="The whole receipt, as it is now.")]


class SessionFencedData(Data, frozen=True, kw_only=True):
    """The generation was raised to the event's: nothing of an earlier one is accepted any more."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_FENCED

    run_id: Annotated[str | None, Meta(description="The run that this closes; null: none was open.")] = always(None)
    provenance: Cause


class SessionMessageWaitingData(Data, frozen=True, kw_only=True):
    """A message was accepted, and waits. It is in the thread when it becomes an input: see `message`."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_MESSAGE_WAITING

    message_id: MessageId
    run_id: Annotated[str, Meta(description="The run that it waits for.")]
    steering: Annotated[bool, Meta(description="True: for a run that is active, which may ask for it.")] = always(False)
    content: Content = always("")
    origin: Origin = always(None)
    agent: Annotated[str | None, Meta(description="The agent that it names. Left out: none.")] = None
    parts: GivenParts = ()


class SessionMessageReturnedData(Data, frozen=True, kw_only=True):
    """A message was returned to its sender: it never became an input."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_MESSAGE_RETURNED

    message_id: MessageId
    reason: Annotated[
        ReturnReason,
        Meta(description="`withdrawn`; or `stopped_before_arrival`: a Stop of its sender was sent after it."),
    ] = always(ReturnReason.OTHER)
    content: Content = always("")
    origin: Origin = always(None)
    parts: GivenParts = ()


class SessionResumedData(Data, frozen=True, kw_only=True):
    """A Resume started a run."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_RESUMED

    run_id: Annotated[str, Meta(description="The run.")] = always("")


class SessionStateData(Data, frozen=True, kw_only=True):
    """The agent saved something for its later runs in this session. A rollback of its run undoes that."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_STATE

    agent: Annotated[str, Meta(description="The agent's name: each has a state of its own.")]
    changes: Annotated[JsonObject, Meta(description="The new values by key; null removes a key.")]


class SessionAgentData(Data, frozen=True, kw_only=True):
    """The session has another agent: it answers later messages that name none."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_AGENT

    agent: Annotated[str | None, Meta(description="The agent's name; null: the configured one again.")]
    by: Annotated[
        str, Meta(description="The origin of the message that named it, or took a hand-off back; or who handed off.")
    ]
    message_id: Annotated[str | None, Meta(description="That message. Left out: an agent handed the session over.")] = (
        None
    )


class SessionBarrierForcedData(Data, frozen=True, kw_only=True):
    """Calls no longer wait for parts that could not be ended in time."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_BARRIER_FORCED

    run_id: Annotated[
        str | None, Meta(description="The run that the parts belong to; null: the session owns them.")
    ] = always(None)
    abandoned: Annotated[tuple[str, ...], Meta(description="Kind and name of each part.")] = always(())


class SessionStopDurableData(Data, frozen=True, kw_only=True):
    """A Stop that was answered before the store had it is stored now."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_STOP_DURABLE

    request_id: Annotated[str, Meta(description="The id of the Stop.")]
    outcome: Annotated[StopOutcome, Meta(description="What it was answered.")]
    receipt_id: Annotated[str, Meta(description="The id of the receipt that its answer named.")] = always("")


class SessionQuarantinedData(Data, frozen=True, kw_only=True):
    """The session failed too often: until the supervisor is restarted it accepts Stop and nothing else."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_QUARANTINED


class SessionDeletedData(Data, frozen=True, kw_only=True):
    """The session was deleted, with all its earlier events. This one keeps its place."""

    event_kind: ClassVar[EventKind] = EventKind.SESSION_DELETED

    provenance: Annotated[Provenance, Meta(description="Who deleted it, and why.")]


class TypingData(Data, frozen=True, kw_only=True):
    """The agent is at work."""

    event_kind: ClassVar[EventKind] = EventKind.TYPING


class ProgressData(Data, frozen=True, kw_only=True):
    """The agent shows how far it is. Its data has the keys that the agent chose."""

    event_kind: ClassVar[EventKind] = EventKind.PROGRESS

    # All of the data: in the dict it is no key.
    shown: JsonObject


class UnreadableData(Data, frozen=True, kw_only=True):
    """The data of an event that could not be decoded. The log keeps its place, and nothing acts on it."""

    event_kind: ClassVar[EventKind] = EventKind.UNREADABLE

    kind: Annotated[str, Meta(description="The kind that the event was stored with.")] = always("")
    error: Annotated[str, Meta(description="Why it could not be decoded.")] = always("")


EventData: TypeAlias = (
    MessageData
    | MessageRetractedData
    | AnswerBegunData
    | AnswerEndedData
    | AnswerLeftData
    | TextData
    | BlockData
    | MediaData
    | ToolRequestedData
    | CallWaitingData
    | CallAnsweredData
    | ToolStartedData
    | ToolOutputData
    | ToolEndedData
    | ProcessStartedData
    | ProcessEndedData
    | ProcessHandedOverData
    | ProcessTakenBackData
    | RunStartedData
    | RunChildData
    | RunChildEndedData
    | RunOutputData
    | RunStatusData
    | RunEndedData
    | ReceiptFiledData
    | ReceiptAmendedData
    | SessionFencedData
    | SessionMessageWaitingData
    | SessionMessageReturnedData
    | SessionResumedData
    | SessionStateData
    | SessionAgentData
    | SessionBarrierForcedData
    | SessionStopDurableData
    | SessionQuarantinedData
    | SessionDeletedData
    | TypingData
    | ProgressData
    | UnreadableData
)

DATA: Final[dict[str, type[EventData]]] = {kind.event_kind: kind for kind in get_args(EventData)}
"""The struct of each kind."""
assert len(DATA) == len(EventKind), "each kind has one struct"

Emitted: TypeAlias = AnswerBegunData | AnswerEndedData | BlockData | TextData | TypingData | ProgressData
"""What an agent emits."""


def data_of(event: Event) -> EventData:
    """Return the data of an event as the struct of its kind. Never raises: see `UnreadableData`."""
    kind = DATA.get(event.kind)
    if kind is None:
        return UnreadableData(kind=event.kind, error="this version does not know this kind of event")
    if kind is ProgressData:
        return ProgressData(shown=event.data)
    try:
        return convert(event.data, kind)
    except (msgspec.MsgspecError, CountermandError) as error:
        # Some nouns check their own values, as a Provenance does, and refuse them with an error of this package.
        return UnreadableData(kind=event.kind, error=str(error))


def decoded(kind: str, data: bytes) -> EventData:
    """Return the data of an event, from its JSON, as the struct of its kind. Never raises: see `UnreadableData`."""
    decode = _DECODERS.get(kind)
    try:
        if decode is not None:
            return decode(data)
        return data_of(Event(0, "", 0, None, kind, decoder(dict[str, Any])(data), 0.0))
    except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError, TypeError) as error:
        return UnreadableData(kind=kind, error=str(error))


_DECODERS: Final[dict[str, Callable[[bytes], EventData]]] = {
    kind: decoder(struct) for kind, struct in DATA.items() if struct is not ProgressData
}


def named_run(data: EventData) -> str | None:
    """Return the run that the data names, which need not be that of its event; None: it names none."""
    match data:
        case (
            MessageRetractedData()
            | ProcessEndedData()
            | SessionBarrierForcedData()
            | SessionFencedData()
            | SessionMessageWaitingData()
            | SessionResumedData()
        ):
            return data.run_id
        case _:
            return None


def named_messages(data: EventData) -> tuple[str, ...]:
    """Return the ids of the messages that the data is about."""
    match data:
        case MessageData():
            return (data.id,)
        case MessageRetractedData():
            return data.ids
        case SessionMessageWaitingData() | SessionMessageReturnedData():
            return (data.message_id,)
        case _:
            return ()


def as_data(data: EventData) -> JsonObject:
    """Return the dict of a struct, as an `Event` carries it: built-in types alone, lists for tuples. Never raises.

    A foreign object in it is shown as text.
    """
    match data:
        case TextData() | ToolOutputData():
            # Most of a log. Nothing in them is nested, and their texts are not copied.
            plain: JsonObject = msgspec.to_builtins(data)
            return plain
        case ProgressData():
            return data.shown
        case _:
            made: JsonObject = storable_json(msgspec.to_builtins(data, enc_hook=repr))
            return made
