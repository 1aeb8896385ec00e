"""The answer of a model, as an agent puts it on record while the model says it: for async and for plain agents.

The same names, checks and errors as in the daemon's process. Each part is a frame. A part is written under the lock of
its answer, and only while that is open: so the daemon never gets a part behind the end, whatever threads and tasks of
the agent do at the same time.

An answer that is left by an exception, or whose end could not be sent, is said to be left: its calls do not start. The
request of a call of an async answer is sent by the next method that is awaited, at the latest by the end of the answer:
`call` itself does not wait, so it may not take credit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .call import Call, Steps
from .errors import Invalid, QueueFull
from .files import as_frame, checked
from .main_thread import PlainDoor
from .plain import as_json, dumped, pieces, storable
from .thread import Segment
from .token import AsyncDoor
from .values import AnswerInfo, BlockPart, File, MediaPart, ToolResult, made
from .wire import line

if TYPE_CHECKING:
    from .tools import Tool
    from .turn import AsyncTurn, Turn, TurnBase

BLOCK_MAX_BYTES = 1_048_576
NAME_MAX_CHARS = 256
CALLS_UNSENT_MAX = 256
USAGE_KINDS_MAX = 64


class AnswerBase:
    """The common part of both kinds of answers: the steps of their doors, and the checks.

    Attributes:
        stop_reason: why the model ended the answer, in its provider's words; set it before the end.
        provider_id: the provider's own id of the answer; set it before the end.
    """

    def __init__(self, turn: TurnBase, provider: str | None, model: str | None) -> None:
        for name, value in (("provider", provider), ("model", model)):
            _check_name(name, value)
        self.stop_reason: str | None = None
        self.provider_id: str | None = None
        self._base = turn
        self._run = turn._run
        self._provider = provider
        self._model = model
        # Reentrant: see `Wire`.
        self._lock = threading.RLock()
        self._begun = False
        self._open = False
        self._number = 0
        self._segment: Segment | None = None
        self._usage: dict[str, int] = {}
        self._unsent: list[_AnswerCall] = []

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
                    got=f"{kind}={_shown(count)}",
                    remedy="answer.usage(input=…, output=…)",
                )
        usage = {**self._usage, **{storable(kind)[:NAME_MAX_CHARS]: int(count) for kind, count in counts.items()}}
        if len(usage) > USAGE_KINDS_MAX:
            raise Invalid(
                "there are too many kinds of usage",
                expected=f"at most {USAGE_KINDS_MAX} for one answer",
                got=f"{len(usage)}",
                remedy="note the sums that matter",
            )
        self._usage = usage

    # ── The steps of the doors ──

    def _begins(self) -> Steps[None]:
        if self._begun:
            raise Invalid(
                "an answer begins once",
                expected="a new one for each answer of the model",
                got="one that has begun",
                remedy="with turn.answer(…) as answer",
            )
        self._begun = True
        self._number = self._run.answer_opens()
        names = {"provider": self._provider, "model": self._model}
        frame = self._frame("answer.begin", {name: value for name, value in names.items() if value is not None})
        try:
            yield from self._base._spend(len(frame) - 1)
            self._run.token.raise_if_cancelled()
            self._run.host.wire.write(frame)
        except BaseException:
            self._run.answer_over()
            raise
        self._segment = self._run.thread.begin_answer(AnswerInfo(self._provider, self._model))
        self._open = True

    def _says(self, text: object) -> Steps[None]:
        yield from self._sends()
        for piece in pieces(text):
            yield from self._part("emit", {"text": piece}, functools.partial(self._run.thread.text, piece))

    def _keeps(self, data: Mapping[str, Any], provider: str | None) -> Steps[None]:
        yield from self._sends()
        block = self._checked_block(data, provider)
        params = {"data": block.data} if provider is None else {"data": block.data, "provider": provider}
        yield from self._part("block", params, functools.partial(self._run.thread.keep_block, block))

    def _media(self, data: bytes, media_type: str, name: str | None) -> Steps[MediaPart]:
        yield from self._sends()
        (file,) = checked([File(data, media_type, name)])
        with self._lock:
            segment = self._opened()
            reply = self._run.request("media", answer=self._number, file=as_frame(file))
        yield reply
        part = made(MediaPart, reply.result()["part"])
        self._run.thread.keep_block(part, segment)
        return part

    def _ends(self) -> Steps[None]:
        yield from self._sends()
        for name, value in (("stop_reason", self.stop_reason), ("provider_id", self.provider_id)):
            _check_name(name, value)
        info = AnswerInfo(self._provider, self._model, dict(self._usage), self.stop_reason, self.provider_id)
        given = {"usage": info.usage, "stop": info.stop, "provider_id": info.provider_id}

        def ended(segment: Segment) -> None:
            self._run.thread.end_answer(info, segment)
            self._close()

        yield from self._part("answer.end", given, ended)

    def _part(self, method: str, params: Mapping[str, Any], written: Callable[[Segment], object]) -> Steps[None]:
        """Send a part, unless another thread or task has ended the answer while this one waited for credit."""
        frame, run = self._frame(method, params), self._run
        yield from self._base._spend(len(frame) - 1)
        with self._lock:
            try:
                segment = self._opened()
            except Invalid:
                run.credit.give(1, len(frame) - 1)
                raise
            run.host.wire.write(frame)
            written(segment)

    def _sends(self) -> Steps[None]:
        """Ask for the calls that were not asked for yet."""
        self._opened()
        while self._unsent:
            one = self._unsent[0]
            yield from self._base._spend(one.size)
            with self._lock:
                if self._open and self._unsent and self._unsent[0] is one:
                    del self._unsent[0]
                    one.send()
                else:
                    # Another task has sent it meanwhile, or the answer was left.
                    self._run.credit.give(1, one.size)

    def _frame(self, method: str, params: Mapping[str, Any]) -> bytes:
        return line(method=method, params={"fence": self._run.fence, "answer": self._number, **params})

    def _leave(self) -> None:
        """It was left before its end, unless it has ended. Calls that were not asked for never are."""
        with self._lock:
            if self._open:
                if not self._run.token.cancelled:
                    self._run.host.wire.write(
                        self._frame("answer.leave", {"usage": self._usage} if self._usage else {})
                    )
                self._close()
            unsent, self._unsent = self._unsent, []
        for one in unsent:
            one.call.drop()

    def _close(self) -> None:
        self._open = False
        self._run.answer_over()

    # ── Checks ──

    def _opened(self) -> Segment:
        """Return the answer's message in the thread. Raises Invalid if the answer is not open."""
        self._run.token.raise_if_cancelled()
        if not self._open or self._segment is None:
            raise Invalid(
                "this answer is not open",
                expected="a use inside of its block",
                got="one outside of it",
                remedy="with turn.answer(…) as answer: … (async with, in an async agent)",
            )
        return self._segment

    def _checked_block(self, data: Mapping[str, Any], provider: str | None) -> BlockPart:
        """Check a block. It has to be JSON already: what would be changed on the way is not given back as it came."""
        _check_name("provider", provider)
        owner = self._provider if provider is None else provider
        if owner is None:
            raise Invalid(
                "a block belongs to a provider",
                expected="turn.answer(provider=…), or answer.block(…, provider=…)",
                got="a block of no provider",
                remedy="name the provider as it is named where the thread is rendered for it",
            )
        try:
            given = dict(data)
            kept = as_json(given)
            size, same = len(dumped(kept).encode()), kept == given
        except (TypeError, ValueError, RecursionError):
            kept, size, same = {}, 0, False
        if not same or size > BLOCK_MAX_BYTES:
            raise Invalid(
                "this block cannot be kept as it is",
                expected=f"an object of plain JSON, at most {BLOCK_MAX_BYTES} bytes",
                got=_shown(data) if not same else f"{size} bytes",
                remedy="hand in what the provider sent, decoded from JSON (of an SDK's object: to_dict())",
            )
        return BlockPart(owner, kept)

    def _prepared(self, tool: str | Tool, arguments: Mapping[str, Any], provider_id: str | None) -> Call:
        """Return a call that is not asked for yet, with its frame."""
        segment = self._opened()
        _check_name("provider_id", provider_id)
        call = self._base._of_answer(tool, arguments)
        call.part_of = segment
        call.frame["answer"] = self._number
        if provider_id is not None:
            call.frame["provider_id"] = provider_id
        return call


class _AnswerCall:
    """A call of an answer: what was asked for, and whether it was."""

    def __init__(self, answer: AnswerBase, call: Call) -> None:
        self._answer = answer
        self.call = call
        self._sent = False
        try:
            self.size = call.prepare()
        except BaseException:
            call.drop()
            raise

    @property
    def id(self) -> str | None:
        """Its id in the log and the thread; None: it is not known here yet."""
        return self.call.id or None

    def send(self) -> None:
        """Ask for it; its credit was taken before."""
        self._sent = True
        self.call.ask()

    def _waits(self) -> Steps[ToolResult]:
        """Wait for its result, behind the answer."""
        if self._answer._open:
            raise Invalid(
                "this call starts when its answer has ended",
                expected="a wait for its result behind the answer",
                got="a wait inside of it",
                remedy="leave the block of turn.answer(…) first",
            )
        if not self._sent:
            raise Invalid(
                "this call was never asked for",
                expected="a call of an answer that came to its end",
                got="an answer that was left before",
                remedy="wait for calls only where the block of turn.answer(…) ended without an exception",
            )
        return (yield from self._answer._base._result(self.call))


class ModelCall(_AnswerCall):
    """A call of an answer of a plain agent; `result` gives its result, once the answer has ended."""

    def __init__(self, answer: ModelAnswer, call: Call) -> None:
        super().__init__(answer, call)
        self._through = answer.through

    def result(self) -> ToolResult:
        """Wait for the result. Raises Invalid inside of the answer: the call starts when that has ended."""
        return self._through(self._waits())


class ModelAnswer(AnswerBase):
    """An answer of a model, in a plain agent: ``with turn.answer(provider="anthropic") as answer``.

    As `AsyncModelAnswer`; each method blocks its thread, and raises RunCancelled after a cancel. A tool of your own is
    executed on a thread of its own.
    """

    def __init__(self, turn: Turn, provider: str | None, model: str | None) -> None:
        super().__init__(turn, provider, model)
        self.through = turn._through

    def __enter__(self) -> ModelAnswer:
        """Begin it."""
        self.through(self._begins())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End it, or leave it by an exception."""
        try:
            if kind is None:
                self.through(self._ends())
        finally:
            # A signal must not interrupt a frame.
            with PlainDoor(self._run.host.main, self._run.token):
                self._leave()

    def text(self, text: str) -> None:
        """Say a piece of text; as `turn.emit`."""
        self.through(self._says(text))

    def block(self, data: Mapping[str, Any], *, provider: str | None = None) -> None:
        """Keep a block; as in `AsyncModelAnswer`."""
        self.through(self._keeps(data, provider))

    def media(self, data: bytes, media_type: str, *, name: str | None = None) -> MediaPart:
        """Keep a file that the model made; as in `AsyncModelAnswer`."""
        return self.through(self._media(data, media_type, name))

    def call(self, tool: str | Tool, arguments: Mapping[str, Any], *, provider_id: str | None = None) -> ModelCall:
        """Ask for a call; as in `AsyncModelAnswer`, and `ModelCall.result` waits for its result."""
        return self.through(self._asks(tool, arguments, provider_id))

    def _asks(self, tool: str | Tool, arguments: Mapping[str, Any], provider_id: str | None) -> Steps[ModelCall]:
        one = ModelCall(self, self._prepared(tool, arguments, provider_id))
        try:
            yield from self._base._spend(one.size)
            with self._lock:
                try:
                    self._opened()
                except Invalid:
                    self._run.credit.give(1, one.size)
                    raise
                one.send()
        except BaseException:
            one.call.drop()
            raise
        return one


class AsyncModelCall(_AnswerCall, Awaitable[ToolResult]):
    """A call of an answer; awaiting it, once the answer has ended, gives its result.

    Cancelling that await ends the call, as with `turn.call`; `asyncio.shield` it to wait no more and let it go on.
    """

    def __init__(self, answer: AsyncModelAnswer, call: Call) -> None:
        super().__init__(answer, call)
        self._through = answer.through

    def __await__(self) -> Generator[Any, None, ToolResult]:
        """Wait for the result. Raises Invalid inside of the answer: the call starts when that has ended."""
        return self._through(self._waits()).__await__()


class AsyncModelAnswer(AnswerBase):
    """An answer of a model: ``async with turn.answer(provider="anthropic", model="…") as answer``.

    What is said in it is one message of the thread, in the order in which it is said. Its calls are one batch: they
    start when the block has ended, in their order, and their results stand together behind the message, also where one
    is refused. An answer that is left by an exception, or cut off by the end of the run, is partial, and none of its
    calls starts.
    """

    def __init__(self, turn: AsyncTurn, provider: str | None, model: str | None) -> None:
        super().__init__(turn, provider, model)
        self.through = turn._through

    async def __aenter__(self) -> AsyncModelAnswer:
        """Begin it."""
        await self.through(self._begins())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it, or leave it by an exception."""
        try:
            if kind is None:
                await self.through(self._ends())
        finally:
            self._leave()

    async def text(self, text: str) -> None:
        """Say a piece of text; as `turn.emit`."""
        await self.through(self._says(text))

    async def block(self, data: Mapping[str, Any], *, provider: str | None = None) -> None:
        """Keep a block that only its provider understands, at this place, as it came.

        Thinking with its signature, a reasoning item: hand it in when it is whole. It is given back to its provider to
        the byte, and to no other; people do not see it. `provider`: whose it is, if not the answer's. Raises Invalid if
        it is no plain JSON object, or has more than `BLOCK_MAX_BYTES`.
        """
        await self.through(self._keeps(data, provider))

    async def media(self, data: bytes, media_type: str, *, name: str | None = None) -> MediaPart:
        """Keep a file that the model made, such as an image, at this place of the answer. Returns when it is durable.

        No provider takes it back: where the thread is rendered, a text names it. Raises Invalid if it is no file, or
        has more than `MADE_MAX_BYTES`; CountermandError with the `code` ``too_large`` if the session has no room.
        """
        return await self.through(self._media(data, media_type, name))

    def call(self, tool: str | Tool, arguments: Mapping[str, Any], *, provider_id: str | None = None) -> AsyncModelCall:
        """Ask for a call of a tool. It starts when the answer has ended; await what is returned then.

        `provider_id` is what the model called the call. Its request is sent with the next method that is awaited, at
        the latest with the end of the answer. Raises QueueFull if more than `CALLS_UNSENT_MAX` are not sent yet.
        """
        if len(self._unsent) >= CALLS_UNSENT_MAX:
            raise QueueFull(
                "too many calls of one answer are not asked for yet",
                expected=f"at most {CALLS_UNSENT_MAX}",
                got=f"{len(self._unsent)}",
                remedy="await answer.text(…) or answer.block(…) in between: it asks for them",
            )
        with AsyncDoor(self._run.token):
            one = AsyncModelCall(self, self._prepared(tool, arguments, provider_id))
        self._unsent.append(one)
        return one


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _shown(value: object) -> str:
    """Return the type of `value` and the beginning of its text."""
    try:
        return storable(f"{type(value).__name__} {value!r:.80}")
    except Exception:  # noqa: BLE001  # it is a foreign object
        return type(value).__name__


def _check_name(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or len(value) > NAME_MAX_CHARS or storable(value) != value):
        raise Invalid(
            f"this {name} cannot be kept",
            expected=f"a str of at most {NAME_MAX_CHARS} characters, or None",
            got=_shown(value),
            remedy="hand it in as the provider sent it",
        )
