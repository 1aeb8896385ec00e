"""The turn: the argument of an agent's function, for plain and for async code.

What a method does is written once, as steps that yield what has to be waited for. `Turn` waits, `AsyncTurn` awaits.
The file has over 600 lines, and is whole: each method is there twice, with one set of words.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from .answers import AsyncModelAnswer, ModelAnswer
from .attachments import FILES_MAX_BYTES, read, read_files
from .call import Call, Steps
from .credit import settle
from .errors import Invalid, Refused, RunCancelled
from .guard import Gate
from .main_thread import UNSET, PlainDoor
from .plain import as_json, pieces, progress, storable
from .run import Run
from .schema import seconds
from .spawning import AsyncSpawn, Spawn
from .token import AsyncCancelToken, AsyncDoor, CancelToken, tell
from .tools import Tool
from .values import Address, Delegated, MediaPart, Message, Provenance, ToolResult
from .wire import line

T = TypeVar("T")


class TurnBase:
    """The common part of both kinds of turn."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run.token._gate = Gate(run, run.token, run.fence)

    @property
    def messages(self) -> list[Message]:
        """The thread: everything before this run, its inputs, and its output and calls so far."""
        return self._run.thread.messages()

    @property
    def inputs(self) -> list[Message]:
        """This run's own messages, in order of acceptance; empty in a run that was resumed without any."""
        return self._run.thread.own_inputs()

    @property
    def traceparent(self) -> str | None:
        """The span of the sender of this run's message, as W3C Trace Context writes it: the parent of your own spans.

        None: the sender gave none. Of several messages it is that of the last one which has it.
        """
        return self._run.traceparent

    @property
    def address(self) -> Address:
        """Session, generation and run, and the fence that frames carry."""
        return self._run.address

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that `call` takes by name: each with `name`, `description`, and the JSON schema `parameters`.

        `offer_anthropic`, `offer_openai` and `offer_responses` make of them what a provider takes.
        """
        return [dict(tool) for tool in self._run.tools]

    @property
    def state(self) -> dict[str, Any]:
        """What runs of this agent have saved in this session, as it stood at the run's start, with own changes.

        A copy: to change it, `save`. An own change is there once it is durable.
        """
        return copy.deepcopy(self._run.saved)

    @property
    def cancelled_by(self) -> Provenance | None:
        """Who ended this run and why; None while it goes on. It distinguishes a Stop from your own time limit."""
        return self._run.token.provenance

    # ── The steps of the doors ──

    def _emit(self, text: object) -> Steps[None]:
        for piece in pieces(text):
            yield from self._say("emit", text=piece)
            self._run.thread.text(piece)

    def _progress(self, data: Mapping[str, Any]) -> Steps[None]:
        yield from self._say("progress", data=progress(data))

    def _say(self, method: str, **params: Any) -> Steps[None]:
        run = self._run
        frame = line(method=method, params={"fence": run.fence, **params})
        yield from self._spend(len(frame) - 1)
        run.token.raise_if_cancelled()
        run.host.wire.write(frame)

    def _spend(self, size: int) -> Steps[None]:
        """Take the credit that a frame of `size` bytes costs; wait if there is not enough."""
        run = self._run
        run.token.raise_if_cancelled()
        waiter = run.credit.take(size)
        if waiter is not None:
            run.watch(waiter)
            try:
                yield waiter
            except BaseException:
                run.credit.give_up(size, waiter)
                raise

    def _steering(self) -> Steps[tuple[Message, ...]]:
        reply = self._run.request("steering")
        yield reply
        messages = tuple(Message.of(message) for message in reply.result()["messages"])
        self._run.thread.steered(messages)
        return messages

    def _save(self, changes: Mapping[str, Any]) -> Steps[None]:
        run, made = self._run, as_json(changes)
        reply = run.request("state", changes=made)

        def saved(done: Future[Any]) -> None:
            if done.exception() is None:
                kept = {**run.saved, **made}
                run.saved = {key: value for key, value in kept.items() if value is not None}

        reply.add_done_callback(saved)
        yield reply
        reply.result()

    def _hand_off(self, agent: object) -> Steps[None]:
        if not isinstance(agent, str):
            expected, got = "the name of an agent", type(agent).__name__
            raise Invalid("an agent is named by a text", expected=expected, got=got, remedy='turn.hand_off("name")')
        reply = self._run.request("hand_off", agent=storable(agent))
        yield reply
        reply.result()

    def _call(self, tool: object, arguments: Mapping[str, Any]) -> Steps[ToolResult]:
        """Call a tool: of the daemon's, or of the user's, which is executed here."""
        own = self._own(tool)
        if own is None:
            return (yield from self._ask(self._asked(tool, arguments)))
        given, call = self._of_own(own, arguments)
        return (yield from self._gated(call, lambda: own.execute(given, call), in_thread=not own.is_async))

    def _of_answer(self, tool: object, arguments: Mapping[str, Any]) -> Call:
        """Return a call of a model's answer, which is asked for later. It is executed apart from whoever waits."""
        own = self._own(tool)
        if own is None:
            return self._asked(tool, arguments)
        given, call = self._of_own(own, arguments)
        self._begin_apart(call, lambda: own.execute(given, call), in_thread=not own.is_async)
        return call

    def _own(self, tool: object) -> Tool | None:
        """Return the tool that is executed here: it itself, or one of this host by its name."""
        return self._run.host.tools.get(tool) if isinstance(tool, str) else tool if isinstance(tool, Tool) else None

    def _of_own(self, own: Tool, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Call]:
        """Return the arguments of a call that is executed here, and the call, whose frame has the secrets too."""
        given = as_json(arguments)
        call = self._asked(own.name, own.shown(given))
        call.hide = functools.partial(own.without, given)
        call.frame.update(own.frame, arguments=given)
        return given, call

    def _gate(
        self, name: object, arguments: Mapping[str, Any], function: Callable[[], Any], show: Any, **frame: Any
    ) -> Steps[Call]:
        """Call a function that is here; returns the call, which has its value or its error."""
        call = self._asked(name, arguments)
        call.show = show
        call.frame.update({key: value for key, value in frame.items() if value is not None})
        yield from self._gated(call, function, in_thread=False)
        return call

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        raise NotImplementedError

    def _begin_apart(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> None:
        """Have a call's function begin, once it may, in a task or on a thread of its own."""
        del in_thread
        call.begin = functools.partial(_in_thread, call, contextvars.copy_context(), function)

    def _question(self, question: object, options: Any) -> Steps[str]:
        """Ask a person; returns the answer."""
        if not isinstance(question, str) or not question.strip():
            raise Invalid("this is not a question", expected="a text", got=type(question).__name__)
        listed = isinstance(options, Sequence) and not isinstance(options, (str, bytes))
        if not listed or not all(isinstance(one, str) for one in options):
            raise Invalid(
                "these are not options of a question",
                expected="a list of texts",
                got=type(options).__name__,
                remedy="turn.ask('Deploy it?', options=['yes', 'no'])",
            )
        arguments: dict[str, Any] = {"question": storable(question)}
        if options:
            arguments["options"] = [storable(one) for one in options]
        call = self._asked("ask", arguments)
        call.method = "ask"
        result = yield from self._ask(call)
        if result.outcome != "finished":
            raise Refused(result)
        return result.content

    def _delegate(self, agent: object, message: object, session: object) -> Steps[Delegated]:
        """Have another agent answer a message; returns what came of it. The daemon checks what it is given."""
        given = {"agent": agent, "message": message, **({} if session is None else {"session": session})}
        for name, value in given.items():
            if not isinstance(value, str):
                raise Invalid(f"the {name} of a delegation is a text", expected="a text", got=type(value).__name__)
        call = self._asked("delegate", given)
        call.method = "delegate"
        result = yield from self._ask(call)
        came = call.answer
        return Delegated(
            came.get("session", ""),
            came.get("run", ""),
            came.get("status"),
            result.outcome,
            result.content,
            result.is_error,
            result.data,
        )

    def _asked(self, tool: object, arguments: Mapping[str, Any]) -> Call:
        """Return a call that is not yet asked for."""
        if not isinstance(tool, str):
            raise Invalid(
                "a tool is called by its name",
                expected="a str",
                got=type(tool).__name__,
                remedy="turn.call('name', argument=value)",
            )
        if not isinstance(arguments, Mapping):
            raise Invalid("the arguments of a call have names", expected="a mapping", got=type(arguments).__name__)
        self._run.token.raise_if_cancelled()
        return Call(self._run, storable(tool), as_json(arguments))

    def _ask(self, call: Call) -> Steps[ToolResult]:
        """Ask for a call, and wait for its result.

        If that wait is cancelled and the run is not, the call is ended. Its result is waited for, so that the agent's
        next output comes after it; further cancels are ignored in this one round trip.
        """
        try:
            yield from self._spend(call.prepare())
            call.ask()
        except BaseException:
            call.drop()
            raise
        return (yield from self._result(call))

    def _result(self, call: Call) -> Steps[ToolResult]:
        """Wait for the result of a call that was asked for; see `_ask`."""
        run = self._run
        try:
            if call.here is not None:
                yield from call.here
            yield call.reply
        except GeneratorExit:
            # The coroutine that waited is being closed, and may not wait.
            call.give_up()
            raise
        except asyncio.CancelledError:
            call.give_up()
            while not call.reply.done() and not run.token.cancelled:
                with contextlib.suppress(asyncio.CancelledError):
                    yield call.reply
            raise
        return call.reply.result()


def _more(
    schema: Mapping[str, Any] | None, provider_id: str | None, deadline_s: float | None, ask: bool, begun: bool
) -> dict[str, Any]:
    """Return further fields of a `call`, as the daemon expects them."""
    return {
        "schema": None if schema is None else as_json(dict(schema)),
        "provider_id": None if provider_id is None else storable(str(provider_id)),
        "deadline_s": seconds(deadline_s),
        "ask": True if ask else None,
        "begun": True if begun else None,
    }


class AsyncTurn(TurnBase):
    """One turn of an async agent.

    After a cancel every method raises `asyncio.CancelledError` itself, with `provenance` as an attribute.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._spawn = AsyncSpawn(run, run.token, run.fence)

    @property
    def cancel_token(self) -> AsyncCancelToken:
        """The run's token."""
        return self._run.token.aio

    async def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        await self._through(self._emit(text))

    async def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        await self._through(self._progress(data))

    async def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        await self._through(self._say("typing"))

    async def call(self, tool: str | Tool, /, **arguments: Any) -> ToolResult:
        """Call a tool, by its name or one made on the spot, and wait for its result. Several may be open at once.

        If this await is cancelled (`asyncio.timeout`, a framework's limit), the call is ended, and its result is added
        to the thread. Only then does your code get the CancelledError.
        """
        return await self._through(self._call(tool, arguments))

    async def ask(self, question: str, options: Sequence[str] = ()) -> str:
        """Ask a person, and wait for the answer: ``await turn.ask("Deploy it?", options=["yes", "no"])``.

        It is a call named ``ask`` in the thread. The run's deadline stands still meanwhile; for a time limit of your
        own, cancel the await (`asyncio.timeout`). The options are offered, not enforced.

        Raises:
            Refused: the person declined to answer, or the question was closed. Its `result` is what the thread has.
        """
        return await self._through(self._question(question, options))

    async def delegate(self, agent: str, message: str, *, session: str | None = None) -> Delegated:
        """Have another agent answer a message, as a part of this run: ``await turn.delegate("researcher", "Find …")``.

        It is a call named ``delegate`` in the thread. The other agent runs in a session of its own: a new one, or one
        in which nothing runs or waits. It ends with this run at the latest; cancelling this await ends it too. Its
        failure, a refusal and an interruption are results too, with `is_error`.
        """
        return await self._through(self._delegate(agent, message, session))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> AsyncModelAnswer:
        """Begin the answer of a model: ``async with turn.answer(provider="anthropic", model="…") as answer``.

        What is said in it is one message of the thread: texts, blocks of the provider, and calls, in their order. Its
        calls are one batch, which starts when the block has ended. See `AsyncModelAnswer`. `emit` and `call` are no
        part of it: they work inside of it as outside.

        Args:
            provider: whose model it is. The renderings give an answer back as it came where they get the same name.
            model: its name, for people.
        """
        return AsyncModelAnswer(self, provider, model)

    async def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], Awaitable[T]],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Callable[[T], str | ToolResult] | None = None,
        deadline_s: float | None = None,
        ask: bool = False,
        begun: bool = False,
    ) -> T:
        """One call of a function that is here, gated: for tools of a framework.

        It is recorded and permitted like any call, then executed here in a task of its own, in the context of the
        caller. Returns what it returned, raises what it raised.

        Args:
            name: the tool's name.
            arguments: shown and recorded; `function` has its own.
            function: what to execute.
            schema: the JSON schema of the arguments; None: they are not checked. It is not stored.
            provider_id: what the model calls the call: its text, in the log, where it is cut to 256 characters.
            show: makes the text for the thread; by default the value itself, as JSON if it is no text.
            deadline_s: seconds after which the call is closed.
            ask: True: it waits until a person has allowed it.
            begun: True: `function` only waits for something that has begun elsewhere, in a program that did not ask.
                Then a result that it has not itself says that it may have had effects, and never that it was not
                started.

        Raises:
            Refused: it did not take place, also where its arguments did not fit the schema, or not to its end;
                `result` is what the thread has.
        """
        more = _more(schema, provider_id, deadline_s, ask, begun)
        call = await self._through(self._gate(name, arguments, function, show, **more))
        return typing.cast("T", call.outcome())

    @property
    def spawn(self) -> AsyncSpawn:
        """``await turn.spawn(argv, …)`` runs a command in a process tree of the run, in no call; see `Spawn`.

        It is on record and begins when the parts of earlier runs have ended, as a call does. The thread has nothing of
        it. What you start with `subprocess` is contained too, in the tree of this host.
        """
        return self._spawn

    async def save(self, /, **changes: Any) -> None:
        """Save something for later runs of this agent in this session: they have it as `turn.state`.

        A key is set to its value, as JSON; None removes it. Returns when that is durable. Fenced as all that an agent
        says: after a Stop nothing more of the run is saved, and a rollback of the run undoes what it had saved.

        Raises:
            CountermandError: `code` is ``too_large``: the whole would have more than 64 KiB as JSON. Nothing of these
                changes is saved.
        """
        await self._through(self._save(changes))

    async def hand_off(self, agent: str) -> None:
        """Have another agent answer the session's later messages, as far as they name none.

        This run goes on, to its own end. Returns when that is durable. A rollback of this run takes it back.

        Raises:
            CountermandError: `code` is ``not_found``: there is no such agent; ``agent_unavailable``: it could not be
                loaded; ``invalid``: `agent` is no name.
        """
        await self._through(self._hand_off(agent))

    async def attachment(self, wanted: MediaPart | str) -> bytes:
        """Read the bytes of an attachment of the session, by a `MediaPart` of a message or by its name.

        Raises CountermandError: `code` is ``not_found``: there is no such attachment; or ``store_unavailable``.
        """
        return await self._through(read(self._run, wanted))

    async def files(self, max_bytes: int = FILES_MAX_BYTES) -> dict[str, bytes]:
        """Read the bytes of the thread's newest files, `max_bytes` of them, for a rendering: its ``files=``."""
        return await self._through(read_files(self._run, max_bytes))

    async def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        return await self._through(self._steering())

    async def _through(self, steps: Steps[T]) -> T:
        """Go through a door: take its steps, and await what they wait for."""
        run = self._run
        with AsyncDoor(run.token):
            try:
                run.token.raise_if_cancelled()
                future = next(steps)
                while True:
                    try:
                        await run.wait_async(future)
                    except BaseException as error:  # noqa: BLE001  # the steps decide
                        future = steps.throw(error)
                    else:
                        future = next(steps)
            except StopIteration as end:
                return typing.cast("T", end.value)
            except RunCancelled:
                await run.tell_last()
                raise

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        self._begin_apart(call, function, in_thread=in_thread)
        return self._ask(call)

    def _begin_apart(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> None:
        if in_thread:
            super()._begin_apart(call, function, in_thread=in_thread)
        else:
            context, loop = contextvars.copy_context(), asyncio.get_running_loop()
            call.begin = functools.partial(loop.call_soon_threadsafe, _in_task, call, context, function)


def _in_task(call: Call, context: contextvars.Context, function: Callable[[], Any]) -> None:
    """Execute a call's function in a task of its own. On the loop."""
    if call.token.cancelled:
        call.declined()
        return

    async def execute() -> None:
        try:
            value = await function()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the call has an end
            call.ended(UNSET, error)
        else:
            call.ended(value, None)

    loop = asyncio.get_running_loop()
    task = context.run(loop.create_task, execute())
    call.token._add_waker(functools.partial(loop.call_soon_threadsafe, tell, task, call.token._told))
    # A task that is cancelled before its first line has not executed anything.
    task.add_done_callback(lambda _: call.declined())


def _in_thread(call: Call, context: contextvars.Context, function: Callable[[], Any]) -> None:
    """Execute a call's plain function on a thread of its own. It looks at its token by itself."""

    def execute() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the call has an end
            call.ended(UNSET, error)
        else:
            call.ended(value, None)

    threading.Thread(target=execute, name=f"countermand-{call.tool}", daemon=True).start()


class Turn(TurnBase):
    """One turn of a plain agent: every method blocks its thread, and raises RunCancelled after a cancel."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._spawn = Spawn(run, run.token, run.fence)

    @property
    def cancel_token(self) -> CancelToken:
        """The run's token."""
        return self._run.token

    def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        self._through(self._emit(text))

    def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        self._through(self._progress(data))

    def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        self._through(self._say("typing"))

    def call(self, tool: str | Tool, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once, from several threads."""
        return self._through(self._call(tool, arguments))

    def ask(self, question: str, options: Sequence[str] = ()) -> str:
        """Ask a person, and wait for the answer; see `AsyncTurn.ask`."""
        return self._through(self._question(question, options))

    def delegate(self, agent: str, message: str, *, session: str | None = None) -> Delegated:
        """Have another agent answer a message, as a part of this run; see `AsyncTurn.delegate`."""
        return self._through(self._delegate(agent, message, session))

    def answer(self, *, provider: str | None = None, model: str | None = None) -> ModelAnswer:
        """Begin the answer of a model: ``with turn.answer(provider="…") as answer``; see `AsyncTurn.answer`."""
        return ModelAnswer(self, provider, model)

    def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], T],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Callable[[T], str | ToolResult] | None = None,
        deadline_s: float | None = None,
        ask: bool = False,
        begun: bool = False,
    ) -> T:
        """See `AsyncTurn.gate`: the function is a plain one, and is called on the calling thread."""
        more = _more(schema, provider_id, deadline_s, ask, begun)
        call = self._through(self._gate(name, arguments, function, show, **more))
        return typing.cast("T", call.outcome())

    @property
    def spawn(self) -> Spawn:
        """``turn.spawn(argv, …)`` runs a command in a process tree of the run, in no call; see `AsyncTurn.spawn`."""
        return self._spawn

    def save(self, /, **changes: Any) -> None:
        """Save something for later runs of this agent in this session; see `AsyncTurn.save`."""
        self._through(self._save(changes))

    def hand_off(self, agent: str) -> None:
        """Have another agent answer the session's later messages; see `AsyncTurn.hand_off`."""
        self._through(self._hand_off(agent))

    def attachment(self, wanted: MediaPart | str) -> bytes:
        """Read the bytes of an attachment of the session; see `AsyncTurn.attachment`."""
        return self._through(read(self._run, wanted))

    def files(self, max_bytes: int = FILES_MAX_BYTES) -> dict[str, bytes]:
        """Read the bytes of the thread's newest files, for a rendering; see `AsyncTurn.files`."""
        return self._through(read_files(self._run, max_bytes))

    def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        return self._through(self._steering())

    def _through(self, steps: Steps[T]) -> T:
        """Go through a door: take its steps, and wait for what they wait for."""
        run = self._run
        with PlainDoor(run.host.main, run.token):
            run.token.raise_if_cancelled()
            try:
                future = next(steps)
                while True:
                    try:
                        run.wait(future)
                    except BaseException as error:  # noqa: BLE001  # the steps decide
                        future = steps.throw(error)
                    else:
                        future = next(steps)
            except StopIteration as end:
                return typing.cast("T", end.value)

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        del in_thread
        begun = self._run.future()
        call.begin = functools.partial(settle, begun, None)
        # A call that is refused is not executed.
        call.reply.add_done_callback(lambda _: settle(begun, None))
        call.here = self._execute(call, begun, function)
        return self._ask(call)

    def _execute(self, call: Call, begun: Future[None], function: Callable[[], Any]) -> Steps[None]:
        """Execute a call's function on this thread, once the daemon says so."""
        try:
            yield begun
            if call.execute_id is not None:
                main = self._run.host.main
                forget = call.token._add_waker(main.urge)
                call.ended(*main.attempt(call.token, function))
                forget()
        finally:
            # It does nothing if the call was answered.
            call.declined()
