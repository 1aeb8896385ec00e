"""The answer of a model, as an agent puts it on record while the model says it: for async and for plain agents.

Theory of operation. An answer begins with an event and ends with one. Between them its texts, blocks and calls are
recorded one by one, in the order in which the agent hands them in, so at each moment the log holds what the model has
said so far. A block is handed in when it is whole. The session decides on the calls at the end of the answer, in their
order: they are one batch, and no block of the answer can be missing when one of them starts.

If the run ends in the middle, what is recorded stands as a partial answer; its calls are ended as not started. The same
holds if the agent leaves the answer by an exception and goes on. There is no third way out: an end that could not be
sent, since the wait for credit was cancelled, counts as left.

`call` of an async answer does not wait, so it may not take credit, for which one waits. Its request is sent by the next
method that is awaited, at the latest by the end of the answer: before anything that comes after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors.attachments import Attachment, File, made_files
from actors.errors import Invalid, QueueFull
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, Emitted, TextData
from actors.messages import ToolResult
from actors.model import JsonObject
from actors.parts import MediaPart
from actors.plugin.pieces import pieces
from actors.text import shown, storable, storable_json

if TYPE_CHECKING:
    from actors.gate.token import CancelBoundary
    from actors.plugin.registration import Tool
    from actors.plugin.turn_core import PreparedCall, TurnCore

BLOCK_MAX_BYTES: Final = 1_048_576
NAME_MAX_CHARS: Final = 256
ANSWERS_OPEN_MAX: Final = 64
CALLS_UNSENT_MAX: Final = 256
USAGE_KINDS_MAX: Final = 64


class _Call:
    """A call of an answer: what was asked for, and once it was sent its id and the future of its result."""

    def __init__(self, answer: AnswerBase, prepared: PreparedCall) -> None:
        self._answer = answer
        self._prepared = prepared
        self._sent: tuple[str, Future[ToolResult]] | None = None

    @property
    def id(self) -> str | None:
        """Its id in the log and the thread; None: it was not asked for yet."""
        return self._sent[0] if self._sent else None

    @property
    def size(self) -> int:
        """In bytes, for credit."""
        return self._prepared.size

    def send(self) -> None:
        """Ask for it; its credit was taken before."""
        self._sent = self._answer.core.request_call(self._prepared)

    def _asked(self) -> tuple[str, Future[ToolResult]]:
        self._answer.core.token.raise_if_cancelled()
        if self._answer.open:
            raise Invalid(
                "this call starts when its answer has ended",
                expected="a wait for its result behind the answer",
                got="a wait inside of it",
                remedy="leave the block of turn.answer(…) first",
            )
        if self._sent is None:
            raise Invalid(
                "this call was never asked for",
                expected="a call of an answer that came to its end",
                got="an answer that was left before",
                remedy="wait for calls only where the block of turn.answer(…) ended without an exception",
            )
        return self._sent


class AnswerBase:
    """The common part of all kinds of answers: what is said with its end, and the checks.

    Attributes:
        stop_reason: why the model ended the answer, in its provider's words; set it before the end.
        provider_id: the provider's own id of the answer; set it before the end.
    """

    def __init__(self, core: TurnCore, provider: str | None, model: str | None) -> None:
        for name, value in (("provider", provider), ("model", model)):
            check_name(name, value)
        self.core = core
        self.id = core.new_answer_id()
        self.open = False
        self.stop_reason: str | None = None
        self.provider_id: str | None = None
        self._provider = provider
        self._model = model
        self._begun = False
        self._usage: dict[str, int] = {}

    def usage(self, /, **counts: int) -> None:
        """Note what the answer cost, in tokens: ``input=…, output=…, cached=…``. It is said with the answer's end.

        Also where the answer is left by an exception; not where the run is ended in the middle of it.
        A later number of the same kind replaces an earlier one. Raises Invalid if one is no whole number, or if there
        are more than `USAGE_KINDS_MAX` kinds.
        """
        for kind, count in counts.items():
            if not _is_count(count):
                raise Invalid(
                    "usage is counted in tokens",
                    expected="whole numbers, 0 or more",
                    got=f"{kind}={shown(count)}",
                    remedy="answer.usage(input=…, output=…)",
                )
        usage = self._usage | {storable(kind)[:NAME_MAX_CHARS]: count for kind, count in counts.items()}
        if len(usage) > USAGE_KINDS_MAX:
            raise Invalid(
                "there are too many kinds of usage",
                expected=f"at most {USAGE_KINDS_MAX} for one answer",
                got=f"{len(usage)}",
                remedy="note the sums that matter",
            )
        self._usage = usage

    def _begin(self) -> tuple[Emitted, int]:
        if self._begun:
            raise Invalid(
                "an answer begins once",
                expected="a new one for each answer of the model",
                got="one that has begun",
                remedy="with turn.answer(…) as answer",
            )
        self._begun = True
        data = AnswerBegunData(answer=self.id, provider=self._provider, model=self._model)
        return data, len(msgspec.json.encode(data))

    def _end(self) -> tuple[Emitted, int]:
        for name, value in (("stop_reason", self.stop_reason), ("provider_id", self.provider_id)):
            check_name(name, value)
        data = AnswerEndedData(answer=self.id, usage=self._usage, stop=self.stop_reason, provider_id=self.provider_id)
        return data, len(msgspec.json.encode(data))

    def _closed(self) -> None:
        if self.open:
            self.open = False
            self.core.answer_over()

    def _leave(self) -> None:
        """It was left before its end. Never waits, never raises."""
        if self.open:
            self.core.say_answer_left(self.id, dict(self._usage))
        self._closed()

    def _part(self, data: Emitted, size: int) -> None:
        """Send a part whose credit was taken."""
        self._check_still_open(size)
        self.core.said(data, size)

    def _check_still_open(self, size: int) -> None:
        """As `_check_open`, behind a wait for credit: another task or thread may have ended the answer meanwhile."""
        try:
            self._check_open()
        except Invalid:
            self.core.credit.give(size)
            raise

    def _text(self, piece: str) -> tuple[Emitted, int]:
        return TextData(text=piece, answer=self.id), len(piece.encode())

    def _block(self, data: Mapping[str, Any], provider: str | None) -> tuple[Emitted, int]:
        """Check a block. It has to be JSON already: what would be changed on the way is not given back as it came."""
        check_name("provider", provider)
        if provider is None and self._provider is None:
            raise Invalid(
                "a block belongs to a provider",
                expected="turn.answer(provider=…), or answer.block(…, provider=…)",
                got="a block of no provider",
                remedy="name the provider as it is named where the thread is rendered for it",
            )
        try:
            given = dict(data)
            kept: JsonObject = storable_json(given)
            size, same = len(msgspec.json.encode(kept)), kept == given
        except (TypeError, ValueError, RecursionError):
            size, kept, same = 0, {}, False
        if not same or size > BLOCK_MAX_BYTES:
            raise Invalid(
                "this block cannot be kept as it is",
                expected=f"an object of plain JSON, at most {BLOCK_MAX_BYTES} bytes",
                got=shown(data) if not same else f"{size} bytes",
                remedy="hand in what the provider sent, decoded from JSON (of an SDK's object: to_dict())",
            )
        own = provider if provider != self._provider else None
        return BlockData(answer=self.id, provider=own, data=kept), size

    def _media(self, data: bytes, media_type: str, name: str | None) -> tuple[Attachment, MediaPart]:
        """Return a file as it is kept. Raises Invalid if it is none, and TooLarge."""
        (attachment,), (part,) = made_files([File(data, media_type, name)])
        return attachment, part

    def _prepared(self, tool: str | Tool, arguments: Mapping[str, Any], provider_id: str | None) -> PreparedCall:
        self._check_open()
        check_name("provider_id", provider_id)
        return self.core.prepare_call(tool, dict(arguments))._replace(answer=self.id, provider_id=provider_id)

    def _check_open(self) -> None:
        self.core.token.raise_if_cancelled()
        if not self.open:
            raise Invalid(
                "this answer is not open",
                expected="a use inside of its block",
                got="one outside of it",
                remedy="with turn.answer(…) as answer: … (async with, in an async agent)",
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def check_name(name: str, value: object) -> None:
    """Raise Invalid if a name of the provider's cannot be kept as it is."""
    if value is not None and (not isinstance(value, str) or len(value) > NAME_MAX_CHARS or storable(value) != value):
        raise Invalid(
            f"this {name} cannot be kept",
            expected=f"a str of at most {NAME_MAX_CHARS} characters, or None",
            got=shown(value),
            remedy="hand it in as the provider sent it",
        )


class ModelCall(_Call):
    """A call of an answer of a plain agent; `result` gives its result, once the answer has ended."""

    def result(self) -> ToolResult:
        """Wait for the result. Raises Invalid inside of the answer: the call starts when that has ended."""
        core = self._answer.core
        call_id, reply = self._asked()
        return core.called(call_id, core.pending.wait(reply, None))


class ModelAnswer(AnswerBase):
    """An answer of a model, in a plain agent: ``with turn.answer(provider="anthropic") as answer``.

    As `AsyncModelAnswer`; each method blocks its thread, and raises RunCancelled after a cancel.
    """

    def __init__(
        self,
        core: TurnCore,
        provider: str | None,
        model: str | None,
        spend: Callable[[int], None],
    ) -> None:
        super().__init__(core, provider, model)
        self._spend = spend

    def __enter__(self) -> ModelAnswer:
        """Begin it."""
        self.core.answer_opens()
        try:
            data, size = self._begin()
            self._spend(size)
            self.core.said(data, size)
        except BaseException:
            self.core.answer_over()
            raise
        self.open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End it, or leave it by an exception."""
        try:
            if kind is None:
                self._check_open()
                self._say(*self._end())
                self._closed()
        finally:
            self._leave()

    def text(self, text: str) -> None:
        """Say a piece of text; as `turn.emit`."""
        self._check_open()
        for piece in pieces(text):
            self._say(*self._text(piece))

    def block(self, data: Mapping[str, Any], *, provider: str | None = None) -> None:
        """Keep a block; as in `AsyncModelAnswer`."""
        self._check_open()
        self._say(*self._block(data, provider))

    def media(self, data: bytes, media_type: str, *, name: str | None = None) -> MediaPart:
        """Keep a file that the model made, at this place; as in `AsyncModelAnswer`."""
        self._check_open()
        attachment, part = self._media(data, media_type, name)
        self._spend(part.size)
        self._check_still_open(part.size)
        core = self.core
        core.pending.wait(core.request_media(self.id, part, attachment, part.size), None)
        return part

    def _say(self, data: Emitted, size: int) -> None:
        self._spend(size)
        self._part(data, size)

    def call(self, tool: str | Tool, arguments: Mapping[str, Any], *, provider_id: str | None = None) -> ModelCall:
        """Ask for a call; as in `AsyncModelAnswer`, and `ModelCall.result` waits for its result."""
        call = ModelCall(self, self._prepared(tool, arguments, provider_id))
        self._spend(call.size)
        self._check_still_open(call.size)
        call.send()
        return call


class AsyncModelCall(_Call, Awaitable[ToolResult]):
    """A call of an answer; awaiting it, once the answer has ended, gives its result.

    Cancelling that await ends the call, as with `turn.call`; `asyncio.shield` it to wait no more and let it go on.
    """

    def __await__(self) -> Generator[Any, None, ToolResult]:
        """Wait for the result. Raises Invalid inside of the answer: the call starts when that has ended."""
        return self._result().__await__()

    async def _result(self) -> ToolResult:
        answer = self._answer
        assert isinstance(answer, AsyncModelAnswer), "it makes these calls"
        async with answer.boundary:
            return await answer.wait(*self._asked())


class AsyncModelAnswer(AnswerBase):
    """An answer of a model: ``async with turn.answer(provider="anthropic", model="…") as answer``.

    What is said in it is one message of the thread, in the order in which it is said. Its calls are one batch: they
    start when the block has ended, in their order, and their results stand together behind the message, also where one
    is refused. An answer that is left by an exception, or cut off by the end of the run, is partial, and none of its
    calls starts.
    """

    def __init__(
        self,
        core: TurnCore,
        provider: str | None,
        model: str | None,
        boundary: CancelBoundary,
        spend: Callable[[int], Awaitable[None]],
        result: Callable[[str, Future[ToolResult]], Awaitable[ToolResult]],
    ) -> None:
        super().__init__(core, provider, model)
        self.boundary = boundary
        self.wait = result
        self._spend = spend
        self._unsent: list[AsyncModelCall] = []

    async def __aenter__(self) -> AsyncModelAnswer:
        """Begin it."""
        async with self.boundary:
            self.core.answer_opens()
            try:
                data, size = self._begin()
                await self._spend(size)
                self.core.said(data, size)
            except BaseException:
                self.core.answer_over()
                raise
            self.open = True
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it, or leave it by an exception."""
        try:
            if kind is None:
                async with self.boundary:
                    await self._send()
                    await self._say(*self._end())
                    self._closed()
        finally:
            self._leave()

    async def text(self, text: str) -> None:
        """Say a piece of text; as `turn.emit`."""
        async with self.boundary:
            await self._send()
            for piece in pieces(text):
                await self._say(*self._text(piece))

    async def block(self, data: Mapping[str, Any], *, provider: str | None = None) -> None:
        """Keep a block that only its provider understands, at this place, as it came.

        Thinking with its signature, a reasoning item: hand it in when it is whole. It is given back to its provider to
        the byte, and to no other; people do not see it. `provider`: whose it is, if not the answer's. Raises Invalid if
        it is no plain JSON object, or has more than `BLOCK_MAX_BYTES`.
        """
        async with self.boundary:
            await self._send()
            await self._say(*self._block(data, provider))

    async def media(self, data: bytes, media_type: str, *, name: str | None = None) -> MediaPart:
        """Keep a file that the model made, such as an image, at this place of the answer. Returns when it is durable.

        No provider takes it back: where the thread is rendered, a text names it. Its bytes are an attachment. Raises
        Invalid if it is no file, and TooLarge if it has more than `MADE_MAX_BYTES`, or the session has no room for it.
        """
        core = self.core
        async with self.boundary:
            await self._send()
            attachment, part = self._media(data, media_type, name)
            await self._spend(part.size)
            self._check_still_open(part.size)
            await core.pending.wait_async(core.request_media(self.id, part, attachment, part.size))
            return part

    def call(self, tool: str | Tool, arguments: Mapping[str, Any], *, provider_id: str | None = None) -> AsyncModelCall:
        """Ask for a call of a tool. It starts when the answer has ended; await what is returned then.

        `tool` is as of `turn.call`. `provider_id` is what the model called the call. Its request is sent with the next
        method that is awaited, at the latest with the end of the answer. Raises QueueFull if more than
        `CALLS_UNSENT_MAX` are not sent yet.
        """
        if len(self._unsent) >= CALLS_UNSENT_MAX:
            raise QueueFull(
                "too many calls of one answer are not asked for yet",
                expected=f"at most {CALLS_UNSENT_MAX}",
                got=f"{len(self._unsent)}",
                remedy="await answer.text(…) or answer.block(…) in between: it asks for them",
            )
        with self.boundary:
            call = AsyncModelCall(self, self._prepared(tool, arguments, provider_id))
        self._unsent.append(call)
        return call

    def _leave(self) -> None:
        super()._leave()
        self._unsent.clear()

    async def _say(self, data: Emitted, size: int) -> None:
        await self._spend(size)
        self._part(data, size)

    async def _send(self) -> None:
        """Ask for the calls that were not sent yet."""
        self._check_open()
        while self._unsent:
            call = self._unsent[0]
            await self._spend(call.size)
            if self._unsent and self._unsent[0] is call:
                del self._unsent[0]
                call.send()
            else:
                # Another task has sent it meanwhile, or the answer was left.
                self.core.credit.give(call.size)
