"""The turn: the argument of an agent's function, for plain and for async code.

Everything here runs on the executor's threads, never in a mailbox. It sends messages to the run's actor, and waits on
replies that the run's cancel fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from actors.errors import Invalid
from actors.events import Emitted, TextData, TypingData
from actors.gate.token import AsyncCancelToken, CancelBoundary, CancelToken
from actors.messages import ToolResult
from actors.model import Address, Json, JsonObject, Message, Provenance
from actors.parts import MediaPart
from actors.plugin.answers import AsyncModelAnswer, ModelAnswer
from actors.plugin.asking import answer_of
from actors.plugin.delegation import Delegated
from actors.plugin.foreign import GatedTask, GatedThread, Show
from actors.plugin.pieces import pieces
from actors.plugin.registration import Tool, duration, is_async
from actors.plugin.rendering import newest_media
from actors.plugin.spawning import AsyncSpawn, Spawn
from actors.plugin.turn_core import PreparedCall, TurnCore, hand_off_to
from actors.text import shown

T = TypeVar("T")

FILES_MAX_BYTES: Final = 33_554_432
"""How many bytes of a thread's files are read for a rendering, unless it is said otherwise."""


def _deadline_s(seconds: float | None) -> float | None:
    return None if seconds is None else duration("the deadline_s of a gated function", seconds, least=0.001)


def _not_gated(function: object, expected: str, remedy: str) -> Invalid:
    return Invalid("this function cannot be gated here", expected=expected, got=shown(function), remedy=remedy)


class _TurnBase:
    """The common part of the turns of plain and of async agents: what can be read without waiting."""

    def __init__(self, core: TurnCore) -> None:
        self._core = core

    @property
    def messages(self) -> list[Message]:
        """The thread: everything before this run, its inputs, and its output and calls so far."""
        return self._core.messages()

    @property
    def inputs(self) -> list[Message]:
        """This run's own messages, in order of acceptance; empty in a run that was resumed without any."""
        return self._core.inputs()

    @property
    def traceparent(self) -> str | None:
        """The span of the sender of this run's message, as W3C Trace Context writes it: the parent of your own spans.

        None: the sender gave none. Of several messages it is that of the last one which has it.
        """
        return self._core.traceparent()

    @property
    def address(self) -> Address:
        """Session, generation and run."""
        return self._core.address

    @property
    def tools(self) -> list[JsonObject]:
        """The registered tools that `call` takes: each with `name`, `description`, and the JSON schema `parameters`.

        `offer_anthropic`, `offer_openai` and `offer_responses` make of them what a provider takes.
        """
        return self._core.tools()

    @property
    def state(self) -> JsonObject:
        """What runs of this agent have saved in this session, as it stood at the run's start, with own changes.

        A copy: to change it, `save`. An own change is there once it is durable.
        """
        return self._core.saved()

    @property
    def cancelled_by(self) -> Provenance | None:
        """Who ended this run and why; None while it goes on. It distinguishes a Stop from your own time limit."""
        return self._core.token.provenance


class Turn(_TurnBase):
    """One turn of a plain agent: every method blocks its thread, and raises RunCancelled after a cancel."""

    @property
    def cancel_token(self) -> CancelToken:
        """The run's token."""
        return self._core.token

    def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        self._core.token.raise_if_cancelled()
        for piece in pieces(text):
            self._say(TextData(text=piece), len(piece.encode()))

    def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        self._say(*self._core.shown(data))

    def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        self._say(TypingData(), 0)

    def call(self, tool: str | Tool, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result; see `AsyncTurn.call`. From several threads, several may be open."""
        core = self._core
        call = core.prepare_call(tool, arguments)
        self._spend(call.size)
        call_id, reply = core.request_call(call)
        return core.called(call_id, core.pending.wait(reply, None))

    def ask(self, question: str, options: Sequence[str] = ()) -> str:
        """Ask a person, and wait for the answer; see `AsyncTurn.ask`."""
        core = self._core
        call = core.prepare_question(question, options)
        self._spend(call.size)
        call_id, reply = core.request_call(call)
        return answer_of(core.called(call_id, core.pending.wait(reply, None)))

    def attachment(self, wanted: MediaPart | str) -> bytes:
        """Read the bytes of an attachment of the session; see `AsyncTurn.attachment`."""
        core = self._core
        return core.pending.wait(core.request_attachment(wanted), None)

    def files(self, max_bytes: int = FILES_MAX_BYTES) -> dict[str, bytes]:
        """Read the bytes of the thread's newest files, for a rendering; see `AsyncTurn.files`."""
        return {part.attachment: self.attachment(part) for part in newest_media(self.messages, max_bytes)}

    def delegate(self, agent: str, message: str, *, session: str | None = None) -> Delegated:
        """Have another agent answer a message, as a part of this run; see `AsyncTurn.delegate`."""
        core = self._core
        delegation, call = core.prepare_delegation(agent, message, session)
        self._spend(call.size)
        call_id, reply = core.request_call(call)
        return delegation.outcome(core.called(call_id, core.pending.wait(reply, None)))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> ModelAnswer:
        """Begin the answer of a model: ``with turn.answer(provider="…") as answer``; see `AsyncTurn.answer`."""
        return ModelAnswer(self._core, provider, model, self._spend)

    def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], T],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Show[T] | None = None,
        deadline_s: float | None = None,
        ask: bool = False,
        begun: bool = False,
    ) -> T:
        """Call a plain function of yours as a tool is called, on this thread; see `AsyncTurn.gate`.

        After a cancel it is not interrupted: it has to check `cancel_token`.
        """
        core = self._core
        if is_async(function):
            raise _not_gated(function, "a plain function", "await it in an async agent: await turn.gate(…)")
        gated = GatedThread(name, function, show, _deadline_s(deadline_s), core.pending)
        call = core.prepare_named(
            name, dict(arguments), gated.foreign, provider_id, ask=ask, begun=begun, schema=schema
        )
        self._spend(call.size)
        call_id, reply = core.request_call(call)
        gated.run(reply)
        return gated.outcome(core.called(call_id, core.pending.wait(reply, None)))

    @property
    def spawn(self) -> Spawn:
        """``turn.spawn(argv, …)`` runs a command in a process tree of this run, in no call; see `AsyncTurn.spawn`."""
        return self._core.spawn

    def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        core = self._core
        return core.steered(core.pending.wait(core.request_steering(), None))

    def save(self, /, **changes: Json) -> None:
        """Save something for later runs of this agent in this session; see `AsyncTurn.save`."""
        core = self._core
        made, size = core.prepare_save(changes)
        self._spend(size)
        core.pending.wait(core.request_save(made, size), None)

    def hand_off(self, agent: str) -> None:
        """Have another agent answer the session's later messages; see `AsyncTurn.hand_off`."""
        name, size = hand_off_to(agent)
        self._spend(size)
        self._core.pending.wait(self._core.request_hand_off(name, size), None)

    def _say(self, data: Emitted, size: int) -> None:
        self._spend(size)
        self._core.said(data, size)

    def _spend(self, size: int) -> None:
        """Take credit for an event of `size` bytes; wait if there is none."""
        core = self._core
        core.token.raise_if_cancelled()
        credit = core.credit.take(size)
        if credit is not None:
            core.pending.watch(credit)
            try:
                core.pending.wait(credit, None)
            except BaseException:
                core.credit.give_up(size, credit)
                raise


class AsyncTurn(_TurnBase):
    """One turn of an async agent: the methods of `Turn`, awaited.

    After a cancel every method raises `asyncio.CancelledError` itself, with `provenance` as an attribute.
    """

    def __init__(self, core: TurnCore) -> None:
        super().__init__(core)
        self._boundary = CancelBoundary(core.token)
        self._spawn = AsyncSpawn(core.spawn)

    @property
    def cancel_token(self) -> AsyncCancelToken:
        """The run's token."""
        return self._core.token.aio

    async def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        async with self._boundary:
            self._core.token.raise_if_cancelled()
            for piece in pieces(text):
                await self._say(TextData(text=piece), len(piece.encode()))

    async def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        async with self._boundary:
            await self._say(*self._core.shown(data))

    async def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        async with self._boundary:
            await self._say(TypingData(), 0)

    async def call(self, tool: str | Tool, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once (`asyncio.gather`).

        `tool` is the name of a registered one, or a `Tool` that is made on the spot. If the arguments do not fit it,
        the call does not start, and the result says what is wrong.

        If this await is cancelled (`asyncio.timeout`, a framework's limit), the call is ended with the source
        ``call.given_up``, and its result is added to the thread. Only then does your code get the CancelledError.
        """
        async with self._boundary:
            return await self._called(self._core.prepare_call(tool, arguments))

    async def ask(self, question: str, options: Sequence[str] = ()) -> str:
        """Ask a person, and wait for the answer: ``await turn.ask("Deploy it?", options=["yes", "no"])``.

        It is a call named ``ask`` in the thread, and waits until somebody sends an `Answer` with its id; deadlines
        stand still meanwhile. A Stop, a new message that takes over, or a restart ends it as not started, with that
        cause. To wait no longer than you want, cancel the await (`asyncio.timeout`).

        Args:
            question: for the person.
            options: answers to choose from. They are offered, not enforced: the answer may be another one.

        Returns:
            The answer; it is durable.

        Raises:
            Refused: the person declined to answer. Its `result` is what the thread has.
            Invalid: the question is not a text, or is larger than a call may be.
        """
        async with self._boundary:
            return answer_of(await self._called(self._core.prepare_question(question, options)))

    async def attachment(self, wanted: MediaPart | str) -> bytes:
        """Read the bytes of an attachment of the session: ``await turn.attachment(turn.inputs[-1].parts[0])``.

        Args:
            wanted: a `MediaPart` of a message, or the attachment's name.

        Raises:
            NotFound: the session has no such attachment.
            StoreUnavailable: it cannot be read.
        """
        core = self._core
        async with self._boundary:
            return await core.pending.wait_async(core.request_attachment(wanted))

    async def files(self, max_bytes: int = FILES_MAX_BYTES) -> dict[str, bytes]:
        """Read the bytes of the thread's files: ``render_openai(turn.messages, files=await turn.files())``.

        Those of the user and of results, by the names of their attachments: the newest first, as far as they have
        `max_bytes` together. A rendering names the others.
        """
        return {part.attachment: await self.attachment(part) for part in newest_media(self.messages, max_bytes)}

    async def delegate(self, agent: str, message: str, *, session: str | None = None) -> Delegated:
        """Have another agent answer a message, as a part of this run: ``await turn.delegate("researcher", "Find …")``.

        It is a call named ``delegate`` in the thread. The other agent runs in a session of its own, which can be
        followed, stopped and talked to like any; its run is a *child run* of this one. Whatever ends this run ends the
        child run, in the same instant and for the same cause, and the receipt of this run waits for its. It ends with
        this run at the latest; cancelling this await ends it too. What ends the child run alone gives an `interrupted`
        result.

        Args:
            agent: its name.
            message: its input.
            session: where it runs: a session in which nothing runs or waits, new or not. None: a new one, whose name
                begins with this session's.

        Returns:
            What came of it. An agent that failed, a refusal (no such agent, too deep, too many at once, a session that
            is in use) and an interruption are results too, with `is_error`.

        Raises:
            Invalid: an argument is not usable.
        """
        async with self._boundary:
            delegation, call = self._core.prepare_delegation(agent, message, session)
            return delegation.outcome(await self._called(call))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> AsyncModelAnswer:
        """Begin the answer of a model: ``async with turn.answer(provider="anthropic", model="…") as answer``.

        What is said in it is one message of the thread: texts, blocks of the provider, and calls, in their order. Its
        calls are one batch, which starts when the block has ended. See `AsyncModelAnswer`. `emit` and `call` are no
        part of it: they work inside of it as outside.

        Args:
            provider: whose model it is. The renderings give an answer back as it came where they get the same name.
            model: its name, for people.
        """
        return AsyncModelAnswer(self._core, provider, model, self._boundary, self._spend, self._result)

    async def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], Awaitable[T]],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Show[T] | None = None,
        deadline_s: float | None = None,
        ask: bool = False,
        begun: bool = False,
    ) -> T:
        """Call an async function of yours as a tool is called: for the tools of a framework.

        The call is logged, waits until the parts of earlier runs have ended, does not begin after a Stop, and has its
        one result in the thread. The function runs in a task of its own, with the context variables of the caller (so
        tracing spans keep their parent). The task is cancelled once: by the end of the run, at the call's deadline, or
        when this await is cancelled, which ends the call as in `call`.

        Args:
            name: of the tool, in the log.
            arguments: of the call, in the log: plain JSON. The function has its own.
            function: called without arguments, once, and awaited.
            schema: the JSON schema of the arguments; None: they are not checked. It is not stored.
            provider_id: what the model calls the call: its text, in the log, where it is cut to 256 characters.
            show: makes the text for the thread from what the function returned; by default as for a tool.
            deadline_s: seconds after which the call is closed; None for the configured deadline.
            ask: True: a person is asked whether it may be called, as for a tool with ``approve=True``.
            begun: True: `function` only waits for something that has begun elsewhere, in a program that did not ask.
                Then a result that it has not itself says that it may have had effects, and never that it was not
                started.

        Returns:
            What the function returned, the object itself.

        Raises:
            Refused: the function did not take place (its arguments did not fit the schema, or that is not valid; a
                person declined; the gate was shut), or its call was closed before it ended. Its `result` is what the
                thread has.
            Whatever the function raised, the exception itself.
        """
        async with self._boundary:
            gated = GatedTask(name, function, show, _deadline_s(deadline_s))
            call = self._core.prepare_named(
                name, dict(arguments), gated, provider_id, ask=ask, begun=begun, schema=schema
            )
            result = await self._called(call)
            return gated.outcome(result)

    async def _called(self, call: PreparedCall) -> ToolResult:
        await self._spend(call.size)
        return await self._result(*self._core.request_call(call))

    async def _result(self, call_id: str, reply: Future[ToolResult]) -> ToolResult:
        """Wait for the result of a call; if this is cancelled, the call is given up."""
        core = self._core
        try:
            result = await core.pending.wait_async(reply)
        except GeneratorExit:
            # The coroutine is being closed, and may not await.
            core.say_given_up(call_id)
            raise
        except asyncio.CancelledError:
            if not core.token.cancelled:
                await core.give_up(call_id, reply)
            raise
        return core.called(call_id, result)

    @property
    def spawn(self) -> AsyncSpawn:
        """``await turn.spawn(argv, …)`` runs a command in a process tree of this run, in no call.

        It is as `spawn` of a tool, and is on record and contained likewise: it begins when the parts of earlier runs
        have ended, not after a Stop, and ends with the run; see `actors.plugin.spawning.Spawn`. The thread has nothing
        of it. Behind a strict barrier that does not open it raises Refused.
        """
        return self._spawn

    async def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        core = self._core
        async with self._boundary:
            return core.steered(await core.pending.wait_async(core.request_steering()))

    async def save(self, /, **changes: Json) -> None:
        """Save something for later runs of this agent in this session: they have it as `turn.state`.

        A key is set to its value, as JSON; None removes it. Returns when that is durable. It is fenced as all that an
        agent says: after a Stop nothing more of the run is saved. What the run had saved before stays, unless the run
        is rolled back.

        Raises:
            TooLarge: the whole state would have more than 64 KiB as JSON. Nothing of these changes is saved.
        """
        core = self._core
        async with self._boundary:
            made, size = core.prepare_save(changes)
            await self._spend(size)
            await core.pending.wait_async(core.request_save(made, size))

    async def hand_off(self, agent: str) -> None:
        """Have another agent answer the session's later messages, as far as they name none.

        This run goes on, to its own end. Returns when that is durable. A rollback of this run takes it back.

        Raises:
            NotFound: there is no such agent.
            AgentUnavailable: it could not be loaded.
            Invalid: `agent` is no name.
        """
        async with self._boundary:
            name, size = hand_off_to(agent)
            await self._spend(size)
            await self._core.pending.wait_async(self._core.request_hand_off(name, size))

    async def _say(self, data: Emitted, size: int) -> None:
        await self._spend(size)
        self._core.said(data, size)

    async def _spend(self, size: int) -> None:
        """Take credit for an event of `size` bytes; wait if there is none."""
        core = self._core
        core.token.raise_if_cancelled()
        credit = core.credit.take(size)
        if credit is not None:
            core.pending.watch(credit)
            try:
                await core.pending.wait_async(credit)
            except BaseException:
                core.credit.give_up(size, credit)
                raise
