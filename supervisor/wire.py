"""The API's JSON, where it is not one of the core's own nouns: the server and the client use the same structs.

Requests refuse fields that they do not know. A request without an id makes its own, so that sending it again is a
second request; with an id, the same body sent again has one effect and the same answer.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from actors.ids import ID_MAX_CHARS
from actors.model import Event, Message, Mode, Policy, Receipt, RunInfo, Scope, Waiting
from actors.ports import WaitingRow
from actors.requests import NewMessage, Stop

SOURCE_PATTERN: Final = r"^(user|client)(\.[A-Za-z0-9_-]+)+$"

Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_MAX_CHARS,
        pattern=r"^(?!run_|rcpt_|call_|proc_|inc_)[!-~]+$",
        description="The same body sent again under it has one effect and the same answer. Left out, it is fresh.",
    ),
]
Words = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=r"\S")]
Base64 = Annotated[bytes, Meta(description="Bytes, in base64 as RFC 4648 has it.")]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]
Source = Annotated[
    str, Meta(max_length=100, pattern=SOURCE_PATTERN, description="The door: `user.<door>` or `client.<name>`.")
]
Instant = Annotated[float, Meta(description="Seconds since the epoch, UTC.")]
WaitS = Annotated[float, Meta(ge=0, le=86_400, description="Seconds to wait for the receipt; bounded by the daemon.")]


class MessageBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for the session's agent; the session comes into being with its first one.

    Without a `policy` a person (`origin` user) interrupts an active run and all others wait. `merge` false gives a
    waiting message a turn of its own. One with a `sent_at` before that of the last stop is returned.

    Either `content` is given, or `content_base64`: bytes that need not be UTF-8. Where they are not, the message shows
    what can be shown, and has them as an attachment.
    """

    content: str | UnsetType = UNSET
    content_base64: Base64 | UnsetType = UNSET
    id: Id | None = None
    policy: Policy | None = None
    origin: Name = "user"
    merge: bool = True
    sent_at: Instant | None = None

    @classmethod
    def of(cls, message: NewMessage) -> Self:
        """Return the body that sends `message`."""
        # The content shows what of it is UTF-8; the attachment has the bytes.
        data = message.attachments[0].data if message.attachments else UNSET
        return cls(
            content=message.content if data is UNSET else UNSET,
            content_base64=data,
            id=message.id,
            policy=message.policy,
            origin=message.origin,
            merge=message.merge,
            sent_at=message.sent_at,
        )


class StopBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End the current run, or the run named, and everything that it started.

    With `sent_at` it holds for a session that nobody has used too: a message that it overtakes is returned.
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
        return cls(
            source=stop.source,
            reason=stop.reason,
            id=stop.id,
            run_id=stop.run_id,
            scope=stop.scope,
            mode=stop.mode,
            waiting=stop.waiting,
            origin=stop.origin,
            sent_at=stop.sent_at,
        )


class StopAllBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End what runs in every session. The `id` counts for each session by itself."""

    source: Source = "user.http"
    reason: Words = "everything was stopped over the API"
    id: Id | None = None
    scope: Scope = Scope.RUN
    mode: Mode = Mode.GRACEFUL
    waiting: Waiting | None = None

    @classmethod
    def of(cls, stop: Stop) -> Self:
        """Return the body that asks for `stop` in every session."""
        return cls(
            source=stop.source,
            reason=stop.reason,
            id=stop.id,
            scope=stop.scope,
            mode=stop.mode,
            waiting=stop.waiting,
        )


class KillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End one run, wherever it is, without a grace."""

    source: Source = "user.http"
    reason: Words = "killed over the API"
    id: Id | None = None
    wait_s: WaitS = 0.0


class DeleteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete a session: end what runs, wait for the proofs, then remove all that is stored of it."""

    source: Source = "user.http"
    reason: Words = "deleted over the API"
    id: Id | None = None


class ResumeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a run that sees the thread as it is, with the messages that were parked as its inputs."""

    id: Id | None = None
    origin: Name = "user"


class WithdrawBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take a waiting message back."""

    message_id: Name
    id: Id | None = None


class Refusal(Struct, frozen=True, omit_defaults=True):
    """What was refused and why.

    `code` is a stable word for programs, the rest is for people; `run_id` is the active run that a message was
    refused for, `superseded_run_id` one that was stopped although the message could not be stored.
    """

    code: str
    message: str
    expected: str = ""
    got: str = ""
    remedy: str = ""
    run_id: str | None = None
    superseded_run_id: str | None = None


class Refused(Struct, frozen=True):
    """The body of every answer that is no success."""

    error: Refusal


class StopAnswer(Struct, frozen=True, kw_only=True):
    """A stop was handled: the fence is shut.

    `outcome` is one of stopped, stopping (it joined one), nothing_running, already_over; or unknown, where the session
    could not be read yet: the stop is decided when it can be. `receipt` is there if it was waited for and was filed in
    time. One that is not `durable` yet is, with `journalled`, in the stop journal: a crash
    does not forget it.
    """

    session: str
    outcome: str
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool
    journalled: bool
    withdrawn: tuple[Message, ...]
    joined: tuple[str, ...]
    receipt: Receipt | None = None


class NotStopped(Struct, frozen=True):
    """A session that a stop of all could not be said to."""

    session: str
    error: Refusal


class AllStopped(Struct, frozen=True):
    """What a stop of all sessions did; sessions in which nothing ran are not in it."""

    stopped: list[StopAnswer]
    failed: list[NotStopped]


class SessionEntry(Struct, frozen=True):
    """A session of the store. `resident`: it has an actor now."""

    session: str
    generation: int
    last_seq: int
    parked: bool
    quarantined: bool
    resident: bool


class SessionPage(Struct, frozen=True):
    """Sessions by name; go on with `after` set to `next`, until that is null."""

    sessions: list[SessionEntry]
    next: str | None


class ThreadPage(Struct, frozen=True):
    """Messages of a thread; `offset` is the place of the first. Go on with `offset` set to `next`."""

    messages: list[Message]
    offset: int
    total: int
    next: int | None


class RunPage(Struct, frozen=True):
    """The newest runs of a session, the oldest of them first. `more`: there are older ones."""

    runs: list[RunInfo]
    more: bool


class LogPage(Struct, frozen=True):
    """Events in order; go on with `from_seq` set to `next`. It is null where the log ends, for now."""

    events: list[Event]
    next: int | None


class Health(Struct, frozen=True):
    """The server answers."""

    status: str


class Readiness(Struct, frozen=True):
    """Whether requests are taken. `phase` is serving, draining or interrupting; None: the supervisor is silent.

    `store`: its thread answers. `store_state` is ok, slow, failing, damaged or closed. Where it is not ready, `reason`
    says why and `remedy` what helps. `journal`: a stop that the store does not take would be kept in the stop journal;
    false does not keep it from being ready, since the store may take what comes.
    """

    ready: bool
    phase: str | None
    supervisor: bool
    store: bool
    sessions: int
    store_state: str = "ok"
    journal: bool = True
    reason: str = ""
    remedy: str = ""


class Info(Struct, frozen=True):
    """What serves here. `uptime_s` in seconds, `started_at` in seconds since the epoch, UTC."""

    version: str
    pid: int
    uptime_s: float
    started_at: float
    state_dir: str
    agent: str


class Finding(Struct, frozen=True):
    """One thing that was looked at. Where it is `ok`, a `remedy` says what would be better; else what helps."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


class Diagnosis(Struct, frozen=True):
    """What the daemon finds when it looks at itself."""

    ok: bool
    findings: list[Finding]


class Letter(Struct, frozen=True):
    """A reply that came too late; `at` is seconds since the epoch, UTC, and `shown` the head of what it said."""

    kind: str
    why: str
    at: float
    shown: str
    session: str | None = None
    generation: int | None = None
    run_id: str | None = None
    call_id: str | None = None


class Letters(Struct, frozen=True):
    """The last replies that came too late, the oldest first, and how many there were by kind."""

    letters: list[Letter]
    counts: dict[str, int]


class WaitingMessage(Struct, frozen=True):
    """A message that waits for its turn, the run `run_id`; or, steering, for a run that takes it in."""

    id: str
    run_id: str
    content: str
    origin: str
    accepted_at: float
    steering: bool

    @classmethod
    def of(cls, row: WaitingRow) -> Self:
        """Return a message that the store says waits."""
        return cls(
            id=row.message.id,
            run_id=row.run_id,
            content=row.message.content,
            origin=row.message.origin,
            accepted_at=row.accepted_at,
            steering=row.steering,
        )


class WaitingPage(Struct, frozen=True):
    """The messages that wait, in their order. `parked`: they wait for the next message, or for a Resume."""

    messages: list[WaitingMessage]
    parked: bool
    more: bool
