"""The structs of the API's JSON that are not the core's own nouns. The server and the client share them.

Requests refuse unknown fields. A request without an id gets a new one, so sending it again is a second request; with an
id, repeating the same body has one effect and gives the same answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from actors.attachments import FILE_NAME_MAX_CHARS, MEDIA_TYPE_MAX_CHARS, File
from actors.decoding import learn
from actors.ids import ID_MAX_CHARS
from actors.model import Event, Message, Mode, Policy, Receipt, RunInfo, Scope, ServicePhase, StopOutcome, Waiting
from actors.parts import GivenPart, MediaPart
from actors.ports import WaitingRow
from actors.requests import Answer, NewMessage, Stop, Stopped
from supervisor.states import AgentPlace, AgentState, StoreState

MEDIA_TYPE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*$"
SOURCE_PATTERN: Final = r"^(user|client)(\.[A-Za-z0-9_-]+)+$"

Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_MAX_CHARS,
        pattern=r"^(?!run_|rcpt_|call_|proc_|inc_)[!-~]+$",
        description="Repeating the same body under one id has one effect and gives the same answer. Default: a new id.",
    ),
]
Words = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=r"\S")]
Base64 = Annotated[bytes, Meta(description="Bytes, in base64 (RFC 4648).")]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]
Source = Annotated[
    str, Meta(max_length=100, pattern=SOURCE_PATTERN, description="`user.<interface>` or `client.<name>`.")
]
Instant = Annotated[float, Meta(description="Seconds since the epoch, UTC.")]
WaitS = Annotated[float, Meta(ge=0, le=86_400, description="Seconds to wait for the receipt; bounded by the daemon.")]


B = TypeVar("B", bound=Struct)


class FileBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image or another file. `media_type` says what it is, without parameters; `name` is for people and models."""

    data_base64: Base64
    media_type: Annotated[str, Meta(max_length=MEDIA_TYPE_MAX_CHARS, pattern=MEDIA_TYPE_PATTERN)]
    name: Annotated[str, Meta(min_length=1, max_length=FILE_NAME_MAX_CHARS, pattern=r"\S")] | None = None

    def file(self) -> File:
        """Return it as a library gives it. Raises Invalid if a field is not valid."""
        return File(self.data_base64, self.media_type, self.name)


def _of(kind: type[B], request: Struct, **others: Any) -> B:
    """Return a body with the fields that it shares with a request, and others."""
    shared = {name: getattr(request, name) for name in kind.__struct_fields__ if name in request.__struct_fields__}
    return kind(**{**shared, **others})


class MessageBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for the session's agent; the first one creates the session.

    Without a `policy` a person's message (`origin` user) interrupts an active run, and all others wait. `merge` false
    gives a waiting message a turn of its own. A message with a `sent_at` before that of the last stop is returned.
    `agent` is the agent of its run, and if a person sent it the session's from then on; without it the session's own.

    Give either `content`, or `content_base64`: bytes that need not be UTF-8. If they are not, the message shows the
    part that is, and has the bytes as an attachment.

    `attachments` are images and other files, which stand before the content. Or give `parts` instead of both: texts and
    files, in an order of their own.
    """

    content: str | UnsetType = UNSET
    content_base64: Base64 | UnsetType = UNSET
    id: Id | None = None
    policy: Policy | None = None
    origin: Name = "user"
    merge: bool = True
    sent_at: Instant | None = None
    agent: Name | None = None
    attachments: list[FileBody] = []
    parts: list[str | FileBody] = []

    @classmethod
    def of(cls, message: NewMessage) -> Self:
        """Return the body that sends `message`."""
        data = {one.name: one.data for one in message.attachments}
        parts: list[str | FileBody] = [
            FileBody(data_base64=data[one.attachment], media_type=one.media_type, name=one.name)
            if isinstance(one, MediaPart)
            else one.text
            for one in message.parts
        ]
        files = [one for one in parts if isinstance(one, FileBody)]
        if message.raw is not None:
            # The content shows only the part that is UTF-8.
            return _of(cls, message, content=UNSET, content_base64=message.raw, attachments=files, parts=[])
        content = UNSET if parts else message.content
        return _of(cls, message, content=content, content_base64=UNSET, attachments=[], parts=parts)


class StopBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End the current run, or the run `run_id`, and everything that it started.

    With `sent_at` it also applies to a session that was never used: a message that it overtakes is returned.
    """

    source: Source = "user.http"
    reason: Words = "stopped over the API"
    id: Id | None = None
    run_id: Name | None = None
    scope: Scope = Scope.RUN
    mode: Mode = Mode.GRACEFUL
    waiting: Waiting | None = None
    origin: Name = "user"
    sent_at: Instant | None = None
    wait_s: WaitS = 0.0

    @classmethod
    def of(cls, stop: Stop) -> Self:
        """Return the body that asks for `stop` in a session."""
        return _of(cls, stop)


class StopAllBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End what runs in every session. The `id` counts for each session separately."""

    source: Source = "user.http"
    reason: Words = "everything was stopped over the API"
    id: Id | None = None
    scope: Scope = Scope.RUN
    mode: Mode = Mode.GRACEFUL
    waiting: Waiting | None = None

    @classmethod
    def of(cls, stop: Stop) -> Self:
        """Return the body that asks for `stop` in every session."""
        return _of(cls, stop)


class KillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End one run, in whichever session it is, without a grace."""

    source: Source = "user.http"
    reason: Words = "killed over the API"
    id: Id | None = None
    wait_s: WaitS = 0.0

    @classmethod
    def of(cls, stop: Stop) -> Self:
        """Return the body that asks for `stop` of one run, whose id is in the path."""
        return _of(cls, stop)


class DeleteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete a session: end its runs, wait for the proofs, then delete all its stored data."""

    source: Source = "user.http"
    reason: Words = "deleted over the API"
    id: Id | None = None


class ResumeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a run on the present thread, with the parked messages as its inputs."""

    id: Id | None = None
    origin: Name = "user"


class WithdrawBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Withdraw a waiting message."""

    message_id: Name
    id: Id | None = None


class AnswerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer a call that waits for a person: `asking` in the session's status lists them.

    A call that asks whether it may start needs `allow`. A question takes `content`; `allow` false declines to answer.
    """

    call_id: Name
    content: str = ""
    allow: bool | None = None
    id: Id | None = None
    origin: Name = "user"

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Return the body that sends `answer`."""
        return _of(cls, answer)


class ReloadBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Load an agent anew; without its name all that run in hosts."""

    agent: Name | None = None


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A refusal and its reason.

    `code` is a stable word for programs; the texts are for people. `run_id` is the active run because of which a
    message was refused. `superseded_run_id` is a run that was stopped although the message could not be stored.
    """

    code: str
    message: str
    expected: str = ""
    got: str = ""
    remedy: str = ""
    run_id: str | None = None
    superseded_run_id: str | None = None


class Refused(Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: Refusal


class StopAnswer(Struct, frozen=True, kw_only=True):
    """A stop was handled: the fence is closed.

    `receipt` is set if it was waited for and was filed in time. A stop that is not `durable` yet but `journalled`
    is in the stop journal, and survives a crash.
    """

    session: str
    outcome: StopOutcome
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool
    journalled: bool
    withdrawn: tuple[Message, ...]
    joined: tuple[str, ...]
    receipt: Receipt | None = None

    @classmethod
    def of(cls, session: str, stopped: Stopped, receipt: Receipt | None) -> Self:
        """Return the answer of `session`, with the receipt where there is one."""
        return cls(session=session, receipt=receipt, **structs.asdict(stopped))


class NotStopped(Struct, frozen=True):
    """A session that a stop of all sessions could not reach."""

    session: str
    error: Refusal


class AllStopped(Struct, frozen=True):
    """The result of a stop of all sessions; sessions in which nothing ran are left out."""

    stopped: list[StopAnswer]
    failed: list[NotStopped]


class SessionEntry(Struct, frozen=True):
    """A stored session. `resident`: it is in memory now."""

    session: str
    generation: int
    last_seq: int
    parked: bool
    quarantined: bool
    resident: bool


class SessionPage(Struct, frozen=True):
    """Sessions by name; continue with `after` set to `next`, until that is null."""

    sessions: list[SessionEntry]
    next: str | None


class ThreadPage(Struct, frozen=True):
    """Messages of a thread; `offset` is the index of the first. Continue with `offset` set to `next`."""

    messages: list[Message]
    offset: int
    total: int
    next: int | None


class ThreadEnd(Struct, frozen=True):
    """The newest messages of a thread, in order. `more`: there are older ones."""

    messages: list[Message]
    more: bool


class RunPage(Struct, frozen=True):
    """The newest runs of a session, the oldest of them first. `more`: there are older ones, before the run `next`."""

    runs: list[RunInfo]
    more: bool
    next: str | None = None


class LogPage(Struct, frozen=True):
    """Events in order; continue with `from_seq` set to `next`, which is null at the present end of the log."""

    events: list[Event]
    next: int | None


class Health(Struct, frozen=True):
    """The server answers."""

    status: str


class Readiness(Struct, frozen=True):
    """Whether requests are accepted.

    `phase` None: the supervisor does not answer. `store`: its thread answers. If it is not ready, `reason` says why and
    `remedy` what helps. `agents` has the state of each. `journal`: the stop journal could keep a stop that the store
    does not take; false alone does not make it unready, since the store may work.
    """

    ready: bool
    phase: ServicePhase | None
    supervisor: bool
    store: bool
    sessions: int
    store_state: StoreState = StoreState.OK
    journal: bool = True
    reason: str = ""
    remedy: str = ""
    agents: dict[str, AgentState] = {}


class Info(Struct, frozen=True):
    """The daemon that answers. `uptime_s` in seconds, `started_at` in seconds since the epoch, UTC."""

    version: str
    pid: int
    uptime_s: float
    started_at: float
    state_dir: str
    agent: str


class McpState(Struct, frozen=True):
    """An MCP server of a host. `tools`: how many it offers; `why`: why it has ended.

    `state`: starting, running or ended; handed over: the program that the agent is starts it.
    """

    name: str
    state: str
    tools: int | None = None
    why: str = ""


class AgentHost(Struct, frozen=True):
    """A host of an agent: a process in which it runs.

    `state`: starting, spare, reserved, running, kept or ending; `since`: when it entered that state. `session`: the one
    that has a run in it, or keeps it. `runtime`: the name it gives its runtime; empty until its hello. `refused`:
    frames that came for a run that was over; `ignored`: notifications that the daemon does not know. `mcp`: the MCP
    servers that it has begun to use.
    """

    process_id: str
    state: str
    session: str | None
    runtime: str
    started_at: Instant
    since: Instant
    refused: int = 0
    ignored: int = 0
    mcp: list[McpState] = []


class AgentEntry(Struct, frozen=True):
    """An agent. `default`: it runs messages. `runs`: a function, or a command.

    `failure` is the last one, even if it is mended since; `output` is the tail of that host's output, while the agent
    is broken. `retry_in_s`: seconds until the next host is tried. `mcp`: its MCP servers, each by its name with its
    command or its address.
    """

    name: str
    default: bool
    where: AgentPlace
    runs: str
    state: AgentState
    spares: int = 0
    keep: str = "run"
    hosts: list[AgentHost] = []
    failure: str = ""
    failed_at: Instant | None = None
    output: str = ""
    retry_in_s: float | None = None
    mcp: dict[str, str] = {}


class AgentPage(Struct, frozen=True):
    """Agents, by name."""

    agents: list[AgentEntry]


class Finding(Struct, frozen=True):
    """The result of one check. `remedy` says what helps; if the result is `ok`, what would be better."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


class Diagnosis(Struct, frozen=True):
    """The daemon's checks of itself."""

    ok: bool
    findings: list[Finding]


class Letter(Struct, frozen=True):
    """A report that came too late; `at` is seconds since the epoch, UTC, and `shown` the beginning of its content."""

    kind: str
    why: str
    at: float
    shown: str
    session: str | None = None
    generation: int | None = None
    run_id: str | None = None
    call_id: str | None = None


class Letters(Struct, frozen=True):
    """The last reports that came too late, the oldest first, and how many there were by kind."""

    letters: list[Letter]
    counts: dict[str, int]


class WaitingMessage(Struct, frozen=True):
    """A waiting message. It will start the run `run_id`; or, if `steering`, that run may take it."""

    id: str
    run_id: str
    content: str
    origin: str
    accepted_at: float
    steering: bool
    parts: tuple[GivenPart, ...] = ()

    @classmethod
    def of(cls, row: WaitingRow) -> Self:
        """Return the message of a waiting row of the store."""
        return cls(
            id=row.message.id,
            run_id=row.run_id,
            content=row.message.content,
            origin=row.message.origin,
            accepted_at=row.accepted_at,
            steering=row.steering,
            parts=row.message.parts,
        )


class WaitingPage(Struct, frozen=True):
    """The waiting messages, in order. `parked`: they wait for the next message, or for a Resume."""

    messages: list[WaitingMessage]
    parked: bool
    more: bool


# Litestar decodes them, and makes schemas of them, by itself: on the thread of each service, and others.
for _kind in [one for one in globals().values() if isinstance(one, type) and issubclass(one, Struct)]:
    learn(_kind)
