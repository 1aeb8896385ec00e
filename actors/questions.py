"""Questions: what calls ask a person, and wait for."""

from __future__ import annotations

from msgspec import Struct


class Question(Struct, frozen=True):
    """What a call asks before it goes on.

    options: answers to choose from; another answer is taken too.
    approval: it asks whether a tool may be called, and is answered with `allow`. Else the answer is the call's result.
    """

    text: str
    options: tuple[str, ...] = ()
    approval: bool = False


class Asking(Struct, frozen=True):
    """A call that waits for a person; an `Answer` names its `call_id`. The other fields are as in `Question`."""

    call_id: str
    tool: str
    question: str
    options: tuple[str, ...] = ()
    approval: bool = False
