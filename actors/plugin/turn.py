"""The turn: the argument of an agent's function, for plain and for async code.

Everything here runs on the executor's threads, never in a mailbox. It sends messages to the run's actor, and waits on
replies that the run's cancel fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from copy import deepcopy
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from pykka import ActorDeadError

from actors.errors import Invalid, QueueFull, RunCancelled
from actors.events import (
    Emitted,
    EventData,
    MessageData,
    ProgressData,
    TextData,
    ToolEndedData,
    ToolRequestedData,
    TypingData,
)
from actors.gate.credit import Credit
from actors.gate.pending import Pending
from actors.gate.token import AsyncCancelToken, CancelBoundary, CancelToken
from actors.messages import (
    AnswerLeft,
    CallGivenUp,
    CallRequested,
    LateRefused,
    Said,
    SaveRequested,
    SteeringRequested,
    ToolResult,
)
from actors.model import Address, Event, Json, JsonObject, Message, Provenance, Role, Where
from actors.plugin.answers import ANSWERS_OPEN_MAX, AsyncModelAnswer, ModelAnswer
from actors.plugin.foreign import GatedTask, GatedThread, Made, Show
from actors.plugin.pieces import pieces
from actors.plugin.registration import duration, is_async
from actors.plugin.spawning import AsyncSpawn, Spawn
from actors.saved import changed
from actors.secrets import NOTHING, Withheld
from actors.text import shown, storable, storable_json
from actors.thread import Thread

T = TypeVar("T")
TOOL_NAME_MAX_CHARS: Final = 1_024
PROVIDER_ID_MAX_CHARS: Final = 256

Tell = Callable[[object], None]
_encode: Final = msgspec.json.Encoder().encode


class PreparedCall(NamedTuple):
    """A call that an agent asks for: its size in bytes, and its `problem` if it is invalid.

    `arguments` are the arguments to show; `secrets` are the secret ones. `made` is the tool that the call brings along.
    `provider_id` is what the model calls the call; `where` is which side executes it. `answer` is the answer of the
    model that it is a part of.
    """

    tool: str
    arguments: JsonObject
    size: int
    problem: str | None
    secrets: Withheld = NOTHING
    made: Made | None = None
    provider_id: str | None = None
    where: Where = Where.DAEMON
    answer: str | None = None


class TurnCore:
    """The common part of both kinds of turn: addresses, credit, pending replies, and the thread for the agent.

    Args:
        tell: sends a message to the run's actor.
        address: of the run.
        token: of the run.
        credit: of the run.
        thread: the thread at the run's start, with the run's inputs; what the agent does is added to it.
        inputs: ids of this run's own messages.
        new_call_id: makes an id for a call.
        check: returns why a call of a tool with these arguments is invalid, or None; it may run foreign code.
        size_max: limit on the JSON, in bytes, of the arguments of one call, and of one `progress`.
        withhold: separates the secret arguments of a call; see `actors.secrets`.
        spawn: makes what spawns processes for the agent itself.
        wall: returns seconds since the epoch, UTC.
        saved: what runs of this agent had saved in the session when this run started.
    """

    def __init__(
        self,
        tell: Tell,
        address: Address,
        token: CancelToken,
        credit: Credit,
        thread: Thread,
        inputs: tuple[str, ...],
        new_call_id: Callable[[], str],
        check: Callable[[str, JsonObject], str | None],
        size_max: int,
        withhold: Callable[[str, JsonObject], tuple[JsonObject, Withheld]] = lambda _, arguments: (arguments, NOTHING),
        spawn: Callable[[Pending], Spawn] = lambda pending: Spawn(_nobody_spawns, pending, lambda _, __: None),
        *,
        wall: Callable[[], float],
        saved: JsonObject | None = None,
    ) -> None:
        self._tell = tell
        self.address = address
        self.token = token
        self.credit = credit
        self.pending = Pending(token)
        self.spawn = spawn(self.pending)
        # Reentrant: see pending.py.
        self._lock = threading.RLock()
        self._thread = thread
        self._inputs = set(inputs)
        self._unanswered: set[str] = set()
        self._new_call_id = new_call_id
        self._check = check
        self._size_max = size_max
        self._withhold = withhold
        self._wall = wall
        self._saved: JsonObject = saved or {}
        self._numbers = itertools.count(1)
        self._answer_numbers = itertools.count(1)
        self._answers_open = 0

    def messages(self) -> list[Message]:
        """Return the thread, with this run's output and calls so far."""
        with self._lock:
            return list(self._thread.messages())

    def inputs(self) -> list[Message]:
        """Return this run's own messages."""
        return [message for message in self.messages() if message.id in self._inputs and message.role == Role.USER]

    def traceparent(self) -> str | None:
        """Return the span that the last of this run's own messages came with, where one has it."""
        with self._lock:
            return self._thread.traceparent(self._inputs)

    def tell(self, message: object) -> None:
        """Send to the run's actor. If it is gone, the run is being closed, and this raises RunCancelled."""
        self.token.raise_if_cancelled()
        try:
            self._tell(message)
        except ActorDeadError:
            # The session closes the run of a dead actor, which cancels the token; it may not have done so yet.
            reason = "the run's actor is gone"
            cause = Provenance(source="actor.failure", reason=reason, initiated_at=self._wall())
            raise RunCancelled(cause) from None

    def said(self, data: Emitted, size: int) -> None:
        """Send what the agent emits; its credit was taken before."""
        self.tell(Said(self.address, data, size))
        if not isinstance(data, TypingData | ProgressData):
            with self._lock:
                self._apply(data)

    def new_answer_id(self) -> str:
        """Return the id of the next answer of a model. No other answer of the session has it."""
        return f"{self.address.run}.answer{next(self._answer_numbers)}"

    def answer_opens(self) -> None:
        """Count an answer that is about to begin.

        Raises:
            QueueFull: `ANSWERS_OPEN_MAX` of this run are open.
        """
        with self._lock:
            if self._answers_open >= ANSWERS_OPEN_MAX:
                raise QueueFull(
                    "too many answers of models are open",
                    expected=f"at most {ANSWERS_OPEN_MAX} at once",
                    got=f"{self._answers_open}",
                    remedy="leave the block of an answer before the next one begins",
                )
            self._answers_open += 1

    def answer_over(self) -> None:
        """An answer has ended, was left, or did not begin."""
        with self._lock:
            self._answers_open -= 1

    def say_answer_left(self, answer: str) -> None:
        """Report that an answer was left before its end, unless the run has ended."""
        with contextlib.suppress(RunCancelled):
            self.tell(AnswerLeft(self.address, answer))

    def say_refused(self, counts: dict[str, int]) -> None:
        """Report what came from a host after the end of this run, and was refused there: counts, by kind."""
        with contextlib.suppress(ActorDeadError):
            self._tell(LateRefused(self.address, counts))

    def shown(self, data: JsonObject) -> tuple[ProgressData, int]:
        """Return the data of a `progress` as plain JSON, and its size. Raises Invalid if it is too large."""
        data, size = self._bounded(data, "this progress is too large", "show less of it, or emit it as text")
        return ProgressData(shown=data), size

    def saved(self) -> JsonObject:
        """Return a copy of what runs of this agent have saved in this session; of this run, what is durable."""
        with self._lock:
            return deepcopy(self._saved)

    def prepare_save(self, changes: JsonObject) -> tuple[JsonObject, int]:
        """Return changes as plain JSON, and their size. Raises Invalid if they are too large for a message."""
        return self._bounded(changes, "this is too large to be saved", "write it to a file, and save the file's name")

    def _bounded(self, data: JsonObject, problem: str, remedy: str) -> tuple[JsonObject, int]:
        self.token.raise_if_cancelled()
        data = storable_json(data)
        size = len(_encode(data))
        if size > self._size_max:
            expected = f"at most {self._size_max} bytes as JSON"
            raise Invalid(problem, expected=expected, got=f"{size} bytes", remedy=remedy)
        return data, size

    def request_save(self, changes: JsonObject, size: int | None) -> Future[None]:
        """Ask for changes to be saved; credit was taken before, unless the size is None.

        The future is resolved when they are durable.
        """
        reply = self.pending.future()
        reply.add_done_callback(_brought(lambda _: self._take_saved(changes)))
        self.tell(SaveRequested(self.address, changes, size, reply))
        return reply

    def _take_saved(self, changes: JsonObject) -> None:
        with self._lock:
            self._saved = changed(self._saved, changes)

    def prepare_call(self, tool: str, arguments: JsonObject, made: Made | None = None) -> PreparedCall:
        """Convert the arguments of a call to JSON, and check the call. Requesting a call takes credit.

        `made`: the tool, if the call brings its own. Whether the arguments fit is not checked then.
        """
        if not isinstance(tool, str):
            raise Invalid(
                "a tool is called by its name",
                expected="a str",
                got=type(tool).__name__,
                remedy="turn.call('name', argument=value)",
            )
        self.token.raise_if_cancelled()
        tool = storable(tool)[:TOOL_NAME_MAX_CHARS]
        arguments = storable_json(arguments)
        size = len(_encode(arguments))
        if size <= self._size_max and made is not None:
            return PreparedCall(tool, arguments, size, None, made=made)
        if size <= self._size_max:
            problem = self._check(tool, arguments)
            shown, secrets = self._withhold(tool, arguments)
            return PreparedCall(tool, shown, size, problem, secrets)
        # The model can read the problem; the session does not store the arguments.
        problem = f"the arguments of {tool} are {size} bytes as JSON, the limit is {self._size_max}; none are kept"
        return PreparedCall(tool, {}, 0, problem)

    def prepare_named(
        self,
        tool: str,
        arguments: JsonObject,
        made: Made | None,
        provider_id: object,
        where: Where = Where.DAEMON,
    ) -> PreparedCall:
        """Prepare a call that a model may have named, or that the agent's host executes; see `prepare_call`."""
        named = None if provider_id is None else storable(str(provider_id))[:PROVIDER_ID_MAX_CHARS]
        return self.prepare_call(tool, arguments, made)._replace(provider_id=named, where=where)

    def request_call(self, call: PreparedCall) -> tuple[str, Future[ToolResult]]:
        """Ask for a call; its credit was taken before. Returns its id, and the future of its result."""
        call_id = self._new_call_id()
        reply = self.pending.future()
        with self._lock:
            self._unanswered.add(call_id)
            self._apply(
                ToolRequestedData(
                    call_id=call_id,
                    tool=call.tool,
                    arguments=call.arguments,
                    answer=call.answer,
                    provider_id=call.provider_id,
                )
            )
        reply.add_done_callback(_brought(lambda result: self.called(call_id, result)))
        address, context = self.address.of_call(call_id), contextvars.copy_context()
        self.tell(
            CallRequested(
                address,
                call.tool,
                call.arguments,
                reply,
                call.problem,
                call.size,
                context,
                call.secrets,
                call.made,
                call.provider_id,
                call.where,
                call.answer,
            )
        )
        return call_id, reply

    async def give_up(self, call_id: str, reply: Future[ToolResult]) -> None:
        """End a call whose await was cancelled, and wait until its result is in the thread.

        Further cancels are ignored during this one round trip to the session, so that the agent's next output comes
        after the result. The end of the run ends the wait at once.
        """
        self.say_given_up(call_id)
        while not reply.done():
            try:
                await self.pending.wait_async(reply)
            except RunCancelled:
                # The run has ended, and with it the call.
                return
            except asyncio.CancelledError:
                continue

    def say_given_up(self, call_id: str) -> None:
        """Report that the agent no longer waits for a call, unless the run has ended."""
        with contextlib.suppress(RunCancelled):
            self.tell(CallGivenUp(self.address.of_call(call_id)))

    def called(self, call_id: str, result: ToolResult) -> ToolResult:
        """Add a result to the thread for the agent; the second time this does nothing.

        It is called when the reply comes, whether its `call` still waits or not, and again before a `call` returns.
        """
        with self._lock:
            if call_id in self._unanswered:
                self._unanswered.discard(call_id)
                outcome, content = result.outcome, result.content
                self._apply(ToolEndedData(call_id=call_id, outcome=outcome, content=content, is_error=result.is_error))
        return result

    def request_steering(self) -> Future[tuple[Message, ...]]:
        """Ask for the waiting messages that steer this run."""
        reply = self.pending.future()
        reply.add_done_callback(_brought(self.steered))
        self.tell(SteeringRequested(self.address, next(self._numbers), reply))
        return reply

    def steered(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Add messages to the thread for the agent; see `called`."""
        with self._lock:
            for message in messages:
                if message.id not in self._inputs:
                    self._inputs.add(message.id)
                    self._apply(MessageData(id=message.id, content=message.content, origin=message.origin))
        return messages

    def _apply(self, data: EventData) -> None:
        """Add an event to the thread. Under the lock."""
        address = self.address
        event = Event(0, address.session, address.generation, address.run, data.event_kind, {}, 0.0)
        self._thread.add(event, data)


def _nobody_spawns(*_: object) -> None:
    raise Invalid("this turn cannot start processes", expected="the turn of a run", got="one without a run")


def _brought(take: Callable[[Any], object]) -> Callable[[Future[Any]], None]:
    """Return a callback that calls `take` with a reply's result, on the thread that resolves the reply: it is quick."""

    def done(reply: Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            take(reply.result())

    return done


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
        """The span of whoever sent this run's message, as W3C Trace Context writes it: the parent of your own spans.

        None: the sender gave none. Of several messages it is that of the last one which has it.
        """
        return self._core.traceparent()

    @property
    def address(self) -> Address:
        """Session, generation and run."""
        return self._core.address

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

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once, from several threads."""
        core = self._core
        call = core.prepare_call(tool, arguments)
        self._spend(call.size)
        call_id, reply = core.request_call(call)
        return core.called(call_id, core.pending.wait(reply, None))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> ModelAnswer:
        """Begin the answer of a model: ``with turn.answer(provider="…") as answer``; see `AsyncTurn.answer`."""
        return ModelAnswer(self._core, provider, model, self._say, self._spend)

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
    ) -> T:
        """Call a plain function of yours as a tool is called, on this thread; see `AsyncTurn.gate`.

        After a cancel it is not interrupted: it has to check `cancel_token`.
        """
        del schema
        core = self._core
        if is_async(function):
            raise _not_gated(function, "a plain function", "await it in an async agent: await turn.gate(…)")
        gated = GatedThread(name, function, show, _deadline_s(deadline_s), core.pending)
        call = core.prepare_named(name, dict(arguments), gated.foreign, provider_id)
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

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once (`asyncio.gather`).

        If this await is cancelled (`asyncio.timeout`, a framework's limit), the call is ended with the source
        ``call.given_up``, and its result is added to the thread. Only then does your code get the CancelledError.
        """
        async with self._boundary:
            return await self._called(self._core.prepare_call(tool, arguments))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> AsyncModelAnswer:
        """Begin the answer of a model: ``async with turn.answer(provider="anthropic", model="…") as answer``.

        What is said in it is one message of the thread: texts, blocks of the provider, and calls, in their order. Its
        calls are one batch, which starts when the block has ended. See `AsyncModelAnswer`. `emit` and `call` are no
        part of it: they work inside of it as outside.

        Args:
            provider: whose model it is. The renderings give an answer back as it came where they get the same name.
            model: its name, for people.
        """
        return AsyncModelAnswer(self._core, provider, model, self._boundary, self._say, self._spend, self._result)

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
            schema: the JSON schema of the arguments, for whoever approves calls. It is not enforced, since the
                framework has checked them. Nothing asks for an approval so far, so it is not stored either.
            provider_id: what the model calls the call: its text, in the log, where it is cut to 256 characters.
            show: makes the text for the thread from what the function returned; by default as for a tool.
            deadline_s: seconds after which the call is closed; None for the configured deadline.

        Returns:
            What the function returned, the object itself.

        Raises:
            Refused: the function did not take place, or its call was closed before it ended. Its `result` is what the
                thread has.
            Whatever the function raised, the exception itself.
        """
        del schema
        async with self._boundary:
            gated = GatedTask(name, function, show, _deadline_s(deadline_s))
            call = self._core.prepare_named(name, dict(arguments), gated, provider_id)
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
