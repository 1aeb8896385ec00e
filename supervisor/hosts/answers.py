"""HostAnswers: the answers of models in a run of a host, and which of them are open.

Theory of operation. The host numbers its answers, so a part can name its answer before the daemon has made an id.
The daemon makes the id that is in the log. Frames are handled in their order, so it is known here which answers are
open, without asking the session. A part of another one can come only from a host that does not keep to the protocol;
then its run fails, and the session does not get the part.

The checks are those of an agent in this process (`actors.plugin.answers`). Here they guard against a host in another
language, or one that lies: the Python runtime has made them before. Thread of all channels only.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from actors.attachments import File, made_files
from actors.errors import Invalid
from actors.events import Emitted, TextData
from actors.parts import MediaPart
from actors.plugin.answers import AnswerBase, check_name
from supervisor.hosts import frames

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore


class _HostAnswer(AnswerBase):
    """One answer. Its parts are returned, since their credit is taken elsewhere."""

    def begins(self) -> Emitted:
        self.core.answer_opens()
        self.open = True
        return self._begin()[0]

    def block(self, params: frames.KeepBlock) -> Emitted:
        return self._block(params.data, params.provider)[0]

    def media(self, file: File) -> tuple[MediaPart, Future[None]]:
        (attachment,), (part,) = made_files([file])
        return part, self.core.request_media(self.id, part, attachment, None)

    def ends(self, params: frames.EndAnswer) -> Emitted:
        self.usage(**params.usage)
        self.stop_reason, self.provider_id = params.stop, params.provider_id
        data, _ = self._end()
        self._closed()
        return data

    def left(self, params: frames.LeaveAnswer) -> None:
        self.usage(**params.usage)
        self._leave()


class HostAnswers:
    """The open answers of one run. Each method raises CountermandError for what breaks the protocol."""

    def __init__(self, turn: TurnCore) -> None:
        self._turn = turn
        self._open: dict[int, _HostAnswer] = {}

    def part(self, params: frames.BeginAnswer | frames.KeepBlock | frames.EndAnswer, *, mended: bool) -> Emitted:
        """Return the event of a part. `mended`: something in its line was replaced, so it is not as it came."""
        if isinstance(params, frames.BeginAnswer):
            return self._begin(params)
        if isinstance(params, frames.KeepBlock):
            return self._block(params, mended=mended)
        ended = self._of(params.answer).ends(params)
        del self._open[params.answer]
        return ended

    def _begin(self, params: frames.BeginAnswer) -> Emitted:
        if params.answer in self._open:
            raise Invalid("an answer begins once", expected="a number that is not open", got=f"{params.answer}")
        answer = _HostAnswer(self._turn, params.provider, params.model)
        begun = answer.begins()
        self._open[params.answer] = answer
        return begun

    def text(self, number: int | None, text: str) -> TextData:
        """Return the event of a text: a part of an answer, or of none."""
        return TextData(text=text, answer=None if number is None else self._of(number).id)

    def _block(self, params: frames.KeepBlock, *, mended: bool) -> Emitted:
        answer = self._of(params.answer)
        if mended:
            raise Invalid("this block cannot be kept as it is", expected="JSON of UTF-8", got="half a surrogate pair")
        return answer.block(params)

    def media(self, params: frames.KeepMedia) -> tuple[MediaPart, Future[None]]:
        """Ask for a file to be kept. Returns its part, and the future that is resolved when it is durable.

        Raises RunCancelled behind a fence.
        """
        return self._of(params.answer).media(params.file.file())

    def leave(self, params: frames.LeaveAnswer) -> None:
        """Report that an answer was left."""
        self._of(params.answer).left(params)
        del self._open[params.answer]

    def of_call(self, call: frames.Call) -> str | None:
        """Return the id of the answer that a call is a part of; None: of none."""
        if call.answer is None:
            return None
        check_name("provider_id", call.provider_id)
        return self._of(call.answer).id

    def _of(self, number: int) -> _HostAnswer:
        answer = self._open.get(number)
        if answer is None:
            raise Invalid("a part of no open answer", expected=_named(self._open), got=f"one of answer {number}")
        return answer


def _named(numbers: dict[int, _HostAnswer]) -> str:
    return f"one of {', '.join(map(str, numbers))}" if numbers else "none, since no answer is open"
