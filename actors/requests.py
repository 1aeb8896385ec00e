"""Requests from outside, and their answers. A request checks its fields when it is constructed.

All requests take the urgent lane, in the order in which a client sends them. A full mailbox refuses `bounded` requests;
it never refuses a Stop.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from actors.attachments import Attachment, File, attachment_name, check_number, without_repeats
from actors.errors import Invalid
from actors.model import (
    OUTSIDE_SOURCES,
    Fate,
    Message,
    Mode,
    Policy,
    Provenance,
    ReturnReason,
    Scope,
    StopOutcome,
    Waiting,
    WithdrawOutcome,
)
from actors.parts import GivenPart, MediaPart, TextPart
from actors.text import not_utf8, shown, storable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

from actors.ids import ID_MAX_CHARS, OWN_PREFIXES, new_request_id

USER: Final = "user"
"""The origin of what a person sends."""

SESSION_NAME_MAX_CHARS: Final = 128
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def _text(message: Struct, name: str, *, empty: bool = False) -> str:
    value = getattr(message, name)
    if isinstance(value, str):
        value = storable(value)
        force_setattr(message, name, value)
    if not isinstance(value, str) or (not empty and not value.strip()):
        raise Invalid(
            f"invalid {name}",
            expected="a text" if empty else "a non-empty text",
            got=shown(value),
            remedy=f"give {name} as {'a text' if empty else 'a text that is not empty'}",
        )
    return value


def _enum(message: Struct, name: str, kind: type[StrEnum]) -> None:
    value = getattr(message, name)
    try:
        # A value that is not a text is foreign: an enum would call its `__repr__`.
        force_setattr(message, name, kind(storable(value) if isinstance(value, str) else ""))
    except ValueError:
        raise Invalid(
            f"unknown {name}",
            expected=" | ".join(kind),
            got=shown(value),
            remedy=f"give {name} as one of: {', '.join(kind)}",
        ) from None


def _check_id(message: Struct) -> None:
    identity = _text(message, "id")
    if len(identity) > ID_MAX_CHARS:
        raise Invalid(
            "a request id is too long",
            expected=f"at most {ID_MAX_CHARS} characters",
            got=f"{len(identity)} characters",
            remedy="leave the id out: the request makes its own",
        )
    if identity.startswith(OWN_PREFIXES):
        raise Invalid(
            "a request id has a prefix that is reserved for the supervisor's own ids",
            expected=f"an id that begins with none of {', '.join(OWN_PREFIXES)}",
            got=repr(identity),
            remedy="leave the id out: the request makes its own",
        )


def _check_seconds(message: Struct, name: str) -> None:
    value = getattr(message, name)
    if value is None:
        return
    try:
        seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise Invalid(
            f"{type(message).__name__}.{name} is not a time",
            expected="seconds since the epoch, UTC, or None",
            got=shown(value),
            remedy="use time.time()",
        )
    force_setattr(message, name, seconds)


def _check_outside(message: Struct, source: str) -> None:
    if not source.startswith(OUTSIDE_SOURCES):
        raise Invalid(
            f"a {type(message).__name__} from outside cannot claim an inside source",
            expected="'user.<interface>' or 'client.<name>'",
            got=repr(source),
            remedy="name the interface through which it came, such as 'user.console'",
        )


def _check_bool(message: Struct, name: str) -> None:
    value = getattr(message, name)
    if not isinstance(value, bool):
        raise Invalid(
            f"{type(message).__name__}.{name} is not a bool",
            expected="True or False",
            got=shown(value),
            remedy=f"give {name} as a bool",
        )


def checked_session(name: object) -> str:
    """Return the name of a session. Raises Invalid if none can have it."""
    if not isinstance(name, str) or not name.strip() or len(name) > SESSION_NAME_MAX_CHARS or not name.isprintable():
        raise Invalid(
            "a session cannot have this name",
            expected=f"1 to {SESSION_NAME_MAX_CHARS} printable characters",
            got=shown(name),
            remedy="choose another name, such as 's1'",
        )
    return name


# ── Requests from outside (all on the urgent lane, which keeps a client's order) ──────────────────


class Request(Struct, frozen=True, kw_only=True, tag=True):
    """The base of all requests. The id makes repeated sends of one request have one effect (law L10)."""

    urgent: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        _check_id(self)


def _check_parts(message: NewMessage) -> None:
    """Bring what was given into the form that is kept: parts without bytes, and attachments with them.

    The content's bytes are attached too, if its text does not preserve them.
    """
    content: object = message.content
    attachments, parts = _items(message, "attachments"), _items(message, "parts")
    raw = not_utf8(content) if isinstance(content, str) else None
    kept = [] if raw is None else [Attachment(attachment_name(raw), raw)]
    made: list[GivenPart] = []
    if any(isinstance(one, File) for one in attachments) and not parts and isinstance(content, str):
        # Models take a question best behind what it is about.
        parts = [*attachments, storable(content)] if content.strip() else attachments
    elif any(isinstance(one, str | File) for one in parts) or any(isinstance(one, File) for one in attachments):
        if content != "" or attachments:
            raise Invalid(
                "a message is given as its parts, or as its content and its attachments",
                expected="either parts, or content and attachments",
                got="both",
                remedy="make the content a part: parts=['…', File(…)]",
            )
        kept.clear()
    elif raw is None:
        kept = [one for one in attachments if isinstance(one, Attachment)]
    for part in parts:
        if isinstance(part, File):
            attachment, shown_part = part.kept()
            kept.append(attachment)
            made.append(shown_part)
        elif isinstance(part, TextPart | MediaPart):
            made.append(part)
        elif isinstance(part, str) and part.strip():
            made.append(TextPart(_whole(part)))
        elif not isinstance(part, str):
            raise _not_parts("parts", "texts and Files", part)
    check_number(len(made))
    if content == "":
        force_setattr(message, "content", "\n\n".join(part.text for part in made if isinstance(part, TextPart)))
    force_setattr(message, "parts", tuple(made))
    force_setattr(message, "attachments", without_repeats(kept))
    sizes = {part.attachment: part.size for part in made if isinstance(part, MediaPart)}
    foreign = [one for one in attachments if not isinstance(one, Attachment | File)]
    for one in (*foreign, *message.attachments):
        if (
            not isinstance(one, Attachment)
            or type(one.data) is not bytes
            or one.name != attachment_name(one.data)
            or sizes.get(one.name, len(one.data)) != len(one.data)
        ):
            raise _not_parts("attachments", "a list of Files", one)


def _items(message: NewMessage, name: str) -> list[object]:
    value: object = getattr(message, name)
    if not isinstance(value, list | tuple):
        raise _not_parts(name, "a list", value)
    return list(value)


def _whole(text: str) -> str:
    """Return the text of a part. Raises Invalid if it is not UTF-8: only `content` is kept as it came then."""
    if not_utf8(text) is not None:
        raise _not_parts("parts", "texts that are UTF-8", text)
    return storable(text)


def _not_parts(name: str, expected: str, got: object) -> Invalid:
    return Invalid(
        f"NewMessage.{name} is not valid",
        expected=expected,
        got=shown(got),
        remedy="NewMessage(content='…', attachments=[File(data, 'image/png', 'a.png')])",
    )


def traceparent_of(text: object) -> str | None:
    """Return `text` if it is a `traceparent` of W3C Trace Context; else None."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) is not None else None


def _check_traceparent(message: NewMessage) -> None:
    given: object = message.traceparent
    if given is None:
        return
    span = traceparent_of(storable(given) if isinstance(given, str) else given)
    if span is None:
        raise Invalid(
            "NewMessage.traceparent is not that of a span",
            expected="version-trace-span-flags in hexadecimal digits, as W3C Trace Context has it, or None",
            got=shown(given),
            remedy="give what the tracing library writes into the header traceparent",
        )
    force_setattr(message, "traceparent", span)


class NewMessage(Request, frozen=True, kw_only=True, tag=True):
    """A message for the session's agent.

    Content that is not UTF-8 is shown with U+FFFD in place of the invalid bytes; an attachment has the exact bytes.

    attachments: images and other files, which stand before the content: ``attachments=[File(data, "image/png")]``.
    parts: texts and Files in an order of their own, instead of `content` and `attachments`. As attributes, `parts` has
        the texts and, for each File, a `MediaPart`, and `attachments` the bytes.
    policy: what happens to an active run. None is the default of the origin: a person (``user``) interrupts, all
        others enqueue.
    merge: False gives a waiting message a turn of its own.
    sent_at: when the message left its sender, in epoch seconds, UTC. One that was sent before the last Stop is
        returned.
    traceparent: the sender's span, as W3C Trace Context writes it; the agent has it as `turn.traceparent`. A repeat of
        the message may have another: the first one counts.
    agent: the name of the agent of its run. None: the agent that the session has, else the configured one. A person
        chooses it for the session too: it also answers later messages that name none.
    """

    content: str = ""
    policy: Policy | None = None
    origin: str = "user"
    merge: bool = True
    sent_at: float | None = None
    attachments: tuple[Attachment, ...] = ()
    traceparent: str | None = None
    agent: str | None = None
    parts: tuple[GivenPart, ...] = ()

    if TYPE_CHECKING:
        # The value of an enum member is accepted too: `__post_init__` converts it.
        def __init__(
            self,
            *,
            content: str = "",
            policy: Policy | str | None = None,
            origin: str = "user",
            merge: bool = True,
            sent_at: float | None = None,
            traceparent: str | None = None,
            agent: str | None = None,
            attachments: Sequence[File] = (),
            parts: Sequence[str | File] = (),
            id: str = "",  # noqa: A002  # it is the field's name
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_id(self)
        _check_parts(self)
        _check_traceparent(self)
        _text(self, "content", empty=True)
        _text(self, "origin")
        if self.agent is not None:
            _text(self, "agent")
        _check_seconds(self, "sent_at")
        _check_bool(self, "merge")
        if self.policy is not None:
            _enum(self, "policy", Policy)

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The parts that are files."""
        return tuple(part for part in self.parts if isinstance(part, MediaPart))

    @property
    def attachment_names(self) -> tuple[str, ...]:
        """The names of all its attachments, also of those whose bytes are in the store alone."""
        return tuple(dict.fromkeys([*(one.name for one in self.attachments), *(one.attachment for one in self.media)]))

    @property
    def raw(self) -> bytes | None:
        """The exact bytes of a content that is not UTF-8."""
        named = {one.attachment for one in self.media}
        return next((one.data for one in self.attachments if one.name not in named), None)

    def without_files(self) -> NewMessage:
        """Return the message without the bytes of its files, which the store has."""
        named = {one.attachment for one in self.media}
        rest = tuple(one for one in self.attachments if one.name not in named)
        return self if len(rest) == len(self.attachments) else msgspec.structs.replace(self, attachments=rest)

    @property
    def resolved_policy(self) -> Policy:
        """The policy that applies: the given one, else the default of the origin."""
        if self.policy is not None:
            return self.policy
        return Policy.INTERRUPT if self.origin == USER else Policy.ENQUEUE


class Stop(Request, frozen=True, kw_only=True, tag=True):
    """End the current run, or the run `run_id`, and everything that it started.

    `waiting` says what happens to waiting messages. None is ``withdraw``; for a Stop aimed at a run it is ``keep``,
    since such a Stop affects only that run (law L9).
    """

    bounded: ClassVar[bool] = False

    source: str
    reason: str
    run_id: str | None = None
    scope: Scope = Scope.RUN
    mode: Mode = Mode.GRACEFUL
    waiting: Waiting | None = None
    origin: str = "user"
    sent_at: float | None = None
    requested_by: str | None = None

    if TYPE_CHECKING:
        # The values of enum members are accepted too: `__post_init__` converts them.
        def __init__(
            self,
            *,
            source: str,
            reason: str,
            run_id: str | None = None,
            scope: Scope | str = Scope.RUN,
            mode: Mode | str = Mode.GRACEFUL,
            waiting: Waiting | str | None = None,
            origin: str = "user",
            sent_at: float | None = None,
            requested_by: str | None = None,
            id: str = "",  # noqa: A002  # it is the field's name
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "source")
        _text(self, "reason")
        _text(self, "origin")
        for name in ("run_id", "requested_by"):
            if getattr(self, name) is not None:
                _text(self, name)
        _check_seconds(self, "sent_at")
        _enum(self, "scope", Scope)
        _enum(self, "mode", Mode)
        if self.waiting is not None:
            _enum(self, "waiting", Waiting)
        _check_outside(self, self.source)
        Provenance(source=self.source, reason=self.reason)

    @property
    def resolved_waiting(self) -> Waiting:
        """What happens to waiting messages: as given, else the default."""
        if self.waiting is not None:
            return self.waiting
        return Waiting.WITHDRAW if self.run_id is None else Waiting.KEEP


class Resume(Request, frozen=True, kw_only=True, tag=True):
    """Start a run on the present thread, with the parked messages as its inputs."""

    origin: str = "user"

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "origin")


class Withdraw(Request, frozen=True, kw_only=True, tag=True):
    """Withdraw one waiting message."""

    message_id: str

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "message_id")


class Answer(Request, frozen=True, kw_only=True, tag=True):
    """A person's answer to a call that waits for one. If no such call waits, it is refused, and a dead letter.

    It is no message: it interrupts nothing, whatever the policies of messages are. The first answer stands.

    content: the answer to a question; or why a call is not allowed.
    allow: True or False to a call that asks whether it may start. False to a question: it is not answered. None
        answers a question.
    origin: who answers. Whether a call may start only a person says (``user``).
    """

    call_id: str
    content: str = ""
    allow: bool | None = None
    origin: str = "user"

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "call_id")
        _text(self, "content", empty=True)
        if self.allow is not None:
            _check_bool(self, "allow")
        _text(self, "origin")


class Delete(Request, frozen=True, kw_only=True, tag=True):
    """Delete the session: end what runs, wait for the proofs, then delete all that is stored of it.

    A tombstone without content remains. If the name is used again, generation and seq continue from it, and requests
    from before the deletion are too old. The answer is given when the rows are gone.
    """

    source: str
    reason: str
    requested_by: str | None = None

    def __post_init__(self) -> None:
        _check_id(self)
        for name in ("source", "reason"):
            _text(self, name)
        if self.requested_by is not None:
            _text(self, "requested_by")
        _check_outside(self, self.source)
        Provenance(source=self.source, reason=self.reason)


class Inspect(Struct, frozen=True):
    """Ask a session for its `SessionStatus`; changes nothing."""

    urgent: ClassVar[bool] = True
    bounded: ClassVar[bool] = False


Decided: TypeAlias = NewMessage | Stop | Resume | Withdraw | Answer
"""Requests that are answered as soon as the decision is durable."""

OutsideRequest: TypeAlias = Decided | Delete


# ── Answers (stored with the request's id, and sent only after the commit) ────────────────────────


class Accepted(Struct, frozen=True, tag=True):
    """A message was accepted. `generation` is None while it waits; `returned` says why it was returned.

    `fate` is set in the answer to a repeat of a `queued` message, once the message no longer waits. All other fields
    are as in the first answer.
    """

    message_id: str
    run_id: str | None
    generation: int | None
    policy: Policy
    queued: bool = False
    superseded_run_id: str | None = None
    with_messages: tuple[Message, ...] = ()
    returned: ReturnReason | None = None
    fate: Fate | None = None


UNKNOWN: Final = StopOutcome.UNKNOWN
"""The outcome of a Stop that the session could not decide yet."""


class Stopped(Struct, frozen=True, tag=True):
    """A Stop was handled; the fence is closed. The receipt follows when all parts have ended.

    outcome: it is final, like `run_id` and `receipt_id`: a repeat of the Stop gets the same. Not ``unknown``, which is
        also the outcome of a Stop that was answered before the session was deleted, if the deletion may not be stored.
        Such a Stop is kept, and decided as soon as possible; its receipt then has this `receipt_id`.
    fence_seq, withdrawn, joined: may still grow while the answer is not `durable`. A message that is not on
        record is not in `withdrawn` before that: its sender has no answer yet, and may send it again.
    journalled: of an answer that is not `durable`: whether the Stop is in the stop journal, and so survives a crash.
    """

    outcome: StopOutcome
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool = True
    journalled: bool = False
    withdrawn: tuple[Message, ...] = ()
    joined: tuple[str, ...] = ()


class Resumed(Struct, frozen=True, tag=True):
    """A run was started on the present thread."""

    run_id: str
    generation: int
    with_messages: tuple[Message, ...] = ()


class Withdrawn(Struct, frozen=True, tag=True):
    """A Withdraw was handled."""

    message_id: str
    outcome: WithdrawOutcome


class Answered(Struct, frozen=True, tag=True):
    """A call of the run `run_id` had waited for this Answer, and goes on, or ends, as it says."""

    call_id: str
    run_id: str


class Deleted(Struct, frozen=True, tag=True):
    """The session was deleted; `seq` is that of the event that records it, the only one that remains."""

    session: str
    seq: int


Reply: TypeAlias = Accepted | Stopped | Resumed | Withdrawn | Answered | Deleted


def digest(request: OutsideRequest) -> bytes:
    """Return a digest of a request, which identifies its content. Each attempt to send it may be a span of its own."""
    import hashlib

    if isinstance(request, NewMessage) and request.parts:
        # The names of the attachments, which are among the parts, stand for their bytes.
        request = request.without_files()
    content = msgspec.to_builtins(request)
    content.pop("traceparent", None)
    for later in ("agent", "parts"):
        if not content.get(later):
            # As of a message of a version that had no such field.
            content.pop(later, None)
    return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).digest()
