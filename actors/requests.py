"""Requests from outside and their answers, checked where they are made.

All of them take the urgent lane, in the order in which a client sends them. `bounded` requests are refused by a
mailbox that holds too many; a Stop never is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from actors.errors import Invalid
from actors.model import (
    OUTSIDE_SOURCES,
    Message,
    Mode,
    Policy,
    Provenance,
    Scope,
    Waiting,
)
from actors.text import not_utf8, shown, storable

if TYPE_CHECKING:
    from enum import StrEnum

from actors.ids import ID_MAX_CHARS, OWN_PREFIXES, new_request_id


def _text(message: Struct, name: str, *, empty: bool = False) -> str:
    value = getattr(message, name)
    if isinstance(value, str):
        value = storable(value)
        force_setattr(message, name, value)
    if not isinstance(value, str) or (not empty and not value.strip()):
        raise Invalid(
            f"this {name} is not usable",
            expected="a text" if empty else "a non-empty text",
            got=shown(value),
            remedy=f"give {name} as {'a text' if empty else 'a text that is not empty'}",
        )
    return value


def _enum(message: Struct, name: str, kind: type[StrEnum]) -> None:
    value = getattr(message, name)
    try:
        # What is no text at all is not asked to show itself, as an enum would ask it.
        force_setattr(message, name, kind(storable(value) if isinstance(value, str) else ""))
    except ValueError:
        raise Invalid(
            f"this {name} is not known",
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
            "a request cannot have an id that the supervisor could have made for something else",
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
            expected="'user.<door>' or 'client.<name>'",
            got=repr(source),
            remedy="name the door it came through, such as 'user.console'",
        )


def _check_bool(message: Struct, name: str) -> None:
    value = getattr(message, name)
    if not isinstance(value, bool):
        raise Invalid(
            f"{type(message).__name__}.{name} is neither yes nor no",
            expected="True or False",
            got=shown(value),
            remedy=f"give {name} as a bool",
        )


# ── Requests from outside (urgent, one lane: a client's own order holds) ──────────────────────────


class Request(Struct, frozen=True, kw_only=True, tag=True):
    """What all requests share: an id that makes the same object sent again have one effect (law L10)."""

    urgent: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        _check_id(self)


class Attachment(Struct, frozen=True):
    """Bytes that are kept beside a message. The name is a digest of them."""

    name: str
    data: bytes


def _attachment_name(data: bytes) -> str:
    import hashlib

    return f"att_{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _check_attachments(message: NewMessage) -> None:
    """Attach the content's bytes where its text does not keep them; nothing else is attached."""
    content: object = message.content
    data = not_utf8(content) if isinstance(content, str) else None
    if data is not None:
        force_setattr(message, "attachments", (Attachment(_attachment_name(data), data),))
    attachments: object = message.attachments
    if not isinstance(attachments, tuple) or not all(
        isinstance(one, Attachment) and type(one.data) is bytes and one.name == _attachment_name(one.data)
        for one in attachments
    ):
        raise Invalid(
            "NewMessage.attachments is made by the message itself",
            expected="a content whose bytes are not UTF-8, and nothing here",
            got=shown(attachments),
            remedy="leave the attachments out",
        )


class NewMessage(Request, frozen=True, kw_only=True, tag=True):
    """A message for the session's agent.

    Content that has no UTF-8 form is shown with U+FFFD where it cannot be, and its bytes are kept as the attachment.

    `policy` says what happens to an active run; None is the default of the origin: a person (``user``)
    interrupts, all others enqueue. `merge=False` gives a waiting message a turn of its own. `sent_at`
    (epoch seconds, UTC) is when it left its sender: one sent before the last Stop is returned.
    """

    content: str
    policy: Policy | None = None
    origin: str = "user"
    merge: bool = True
    sent_at: float | None = None
    attachments: tuple[Attachment, ...] = ()

    if TYPE_CHECKING:
        # The words of an enum are accepted too: `__post_init__` makes them members.
        def __init__(
            self,
            *,
            content: str,
            policy: Policy | str | None = None,
            origin: str = "user",
            merge: bool = True,
            sent_at: float | None = None,
            id: str = "",  # noqa: A002  # it is the field's name
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_id(self)
        _check_attachments(self)
        _text(self, "content", empty=True)
        _text(self, "origin")
        _check_seconds(self, "sent_at")
        _check_bool(self, "merge")
        if self.policy is not None:
            _enum(self, "policy", Policy)

    @property
    def resolved_policy(self) -> Policy:
        """The policy that applies: the one given, else that of the origin."""
        if self.policy is not None:
            return self.policy
        return Policy.INTERRUPT if self.origin == "user" else Policy.ENQUEUE


class Stop(Request, frozen=True, kw_only=True, tag=True):
    """End the current run, or the run named, and everything it started.

    `waiting` says what becomes of messages that wait. None is ``withdraw``, or ``keep`` for a Stop
    aimed at a run, which touches that run and nothing else (law L9).
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
        # The words of the enums are accepted too: `__post_init__` makes them members.
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
        """What happens to waiting messages when the caller did not say."""
        if self.waiting is not None:
            return self.waiting
        return Waiting.WITHDRAW if self.run_id is None else Waiting.KEEP


class Resume(Request, frozen=True, kw_only=True, tag=True):
    """Start a run that sees the thread as it is, with the messages that were parked as its inputs."""

    origin: str = "user"

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "origin")


class Withdraw(Request, frozen=True, kw_only=True, tag=True):
    """Take one waiting message back."""

    message_id: str

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "message_id")


class Answer(Request, frozen=True, kw_only=True, tag=True):
    """A person's answer to a call that waits for one. Where no such call waits it is a dead letter."""

    call_id: str
    content: str

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "call_id")
        _text(self, "content", empty=True)


class Delete(Request, frozen=True, kw_only=True, tag=True):
    """Delete the session: end what runs, wait for the proofs, then remove all that is stored of it.

    What is left is a tombstone, without content: the generation and the seq go on from it where the name is used again,
    and requests from before are too old. The answer is given when the rows are gone.
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
"""Requests that are answered as soon as what was decided is durable."""

OutsideRequest: TypeAlias = Decided | Delete


# ── Answers (stored with the request's id, and given only after the commit) ───────────────────────


class Accepted(Struct, frozen=True, tag=True):
    """A message was accepted. `generation` is None while it waits; `returned` says why it came back.

    `fate` is in the answer to a repeat, of a message that was `queued`: what it became, ``input`` or ``returned``.
    It is None in the first answer, and for as long as the message waits; all else is as it was in the first answer.
    """

    message_id: str
    run_id: str | None
    generation: int | None
    policy: Policy
    queued: bool = False
    superseded_run_id: str | None = None
    with_messages: tuple[Message, ...] = ()
    returned: str | None = None
    fate: str | None = None


UNKNOWN = "unknown"
"""The outcome of a Stop of which the session cannot say yet what it comes to."""


class Stopped(Struct, frozen=True, tag=True):
    """A Stop was handled; the fence is shut. The receipt follows when all parts have ended.

    outcome: ``stopped | stopping | nothing_running | already_over``. It stands, with `run_id` and `receipt_id`: the
    same Stop is answered so whenever it is sent again. `fence_seq`, `withdrawn` and `joined` may be added to while it
    is not `durable`. ``unknown``: the session could not be read, so nothing is known yet; or the Stop had an
    answer before the session was deleted, which may not be stored. The Stop is kept and decided when it can be, and
    `receipt_id` finds its receipt then. Where it is not `durable` yet, `journalled` says whether it is in the stop
    journal, so that a crash does not forget it.
    """

    outcome: str
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool = True
    journalled: bool = False
    withdrawn: tuple[Message, ...] = ()
    joined: tuple[str, ...] = ()


class Resumed(Struct, frozen=True, tag=True):
    """A run was started from the thread as it stood."""

    run_id: str
    generation: int
    with_messages: tuple[Message, ...] = ()


class Withdrawn(Struct, frozen=True, tag=True):
    """What became of a Withdraw: ``withdrawn | already_input | already_returned``."""

    message_id: str
    outcome: str


class Deleted(Struct, frozen=True, tag=True):
    """The session was deleted; `seq` is that of the event which says so, the only one that is left."""

    session: str
    seq: int


Reply: TypeAlias = Accepted | Stopped | Resumed | Withdrawn | Deleted


def digest(request: OutsideRequest) -> bytes:
    """Return what identifies a request's content apart from its id."""
    import hashlib

    return hashlib.blake2b(msgspec.json.encode(request), digest_size=16).digest()
