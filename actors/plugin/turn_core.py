"""The common part of a plain and an async turn: calls, credit, saved state, and the thread that the agent sees.

Everything here runs on the executor's threads, never in a mailbox. It sends messages to the run's actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from typing import Any, Final, NamedTuple

import msgspec
from pykka import ActorDeadError

from actors.attachments import Attachment
from actors.errors import Invalid, QueueFull, RunCancelled
from actors.events import (
    Emitted,
    EventData,
    MediaData,
    MessageData,
    ProgressData,
    TextData,
    ToolEndedData,
    ToolRequestedData,
    TypingData,
)
from actors.gate.credit import Credit
from actors.gate.pending import Pending
from actors.gate.token import CancelToken
from actors.messages import (
    AnswerLeft,
    CallGivenUp,
    CallRequested,
    HandOffRequested,
    LateRefused,
    MediaGiven,
    Said,
    SaveRequested,
    SteeringRequested,
    ToolResult,
)
from actors.model import Address, Event, Isolation, JsonObject, Message, Provenance, Role, Where
from actors.parts import MediaPart, given_parts
from actors.plugin.answers import ANSWERS_OPEN_MAX
from actors.plugin.argument_schema import checked
from actors.plugin.asking import ASK, approval_of, question_of
from actors.plugin.delegation import DELEGATE, Delegation
from actors.plugin.execution import misfit
from actors.plugin.foreign import Foreign, GatedTask, Made
from actors.plugin.pieces import bounded
from actors.plugin.registration import Tool
from actors.plugin.spawning import Spawn
from actors.questions import Question
from actors.saved import changed
from actors.secrets import NOTHING, Withheld
from actors.text import shown, storable, storable_json
from actors.thread import Thread

TOOL_NAME_MAX_CHARS: Final = 1_024
PROVIDER_ID_MAX_CHARS: Final = 256
AGENT_MAX_CHARS: Final = 200

Tell = Callable[[object], None]
_encode: Final = msgspec.json.Encoder().encode


class PreparedCall(NamedTuple):
    """A call that an agent asks for: its size in bytes, and its `problem` if it is invalid.

    `arguments` are the arguments to show; `secrets` are the secret ones. `made` is the tool that the call brings along.
    `provider_id` is what the model calls the call; `where` is which side executes it. `answer` is the answer of the
    model that it is a part of. `question` is what it asks a person before it goes on. `begun`: see `CallRequested`.
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
    question: Question | None = None
    begun: bool = False


def hand_off_to(agent: object) -> tuple[str, int]:
    """Return the name of an agent to hand a session over to, and its size. Raises Invalid if it is no name."""
    if not isinstance(agent, str) or not agent.strip() or len(agent) > AGENT_MAX_CHARS:
        raise Invalid(
            "an agent is named by a text",
            expected=f"the name of an agent, at most {AGENT_MAX_CHARS} characters",
            got=shown(agent),
            remedy='turn.hand_off("name")',
        )
    name = storable(agent)
    return name, len(name.encode())


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
        asks: returns True if a call of a tool needs a person's approval.
        tools: returns the registered tools that the agent may call, each as what a model is told of it.
        attachment: has a future resolved with the bytes of an attachment of the session, by its name.
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
        asks: Callable[[str], bool] = lambda _: False,
        tools: Callable[[], list[JsonObject]] = list,
        attachment: Callable[[str, Future[bytes]], None] = lambda _, __: None,
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
        self._asks = asks
        self.tools = tools
        self._attachment = attachment
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

    def request_attachment(self, wanted: MediaPart | str) -> Future[bytes]:
        """Ask for the bytes of an attachment."""
        name: object = wanted.attachment if isinstance(wanted, MediaPart) else wanted
        if not isinstance(name, str):
            raise Invalid(
                "an attachment is named by a part of a message, or by its name",
                expected="a MediaPart, or a text such as its `attachment`",
                got=shown(wanted),
                remedy="await turn.attachment(part)",
            )
        reply: Future[bytes] = self.pending.future()
        self._attachment(storable(name), reply)
        return reply

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
        if not isinstance(data, (TypingData, ProgressData)):
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

    def say_answer_left(self, answer: str, usage: dict[str, int] | None = None) -> None:
        """Report that an answer was left before its end, and what it cost so far, unless the run has ended."""
        with contextlib.suppress(RunCancelled):
            self.tell(AnswerLeft(self.address, answer, usage or {}))

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
        return bounded(data, self._size_max, problem, remedy)

    def request_save(self, changes: JsonObject, size: int | None) -> Future[None]:
        """Ask for changes to be saved; credit was taken before, unless the size is None.

        The future is resolved when they are durable.
        """
        reply = self.pending.future()
        reply.add_done_callback(_brought(lambda _: self._take_saved(changes)))
        self.tell(SaveRequested(self.address, changes, size, reply))
        return reply

    def request_media(self, answer: str, part: MediaPart, attachment: Attachment, size: int | None) -> Future[None]:
        """Ask for a file to be added to an answer; as `request_save`. The future is resolved when that is durable."""
        data = MediaData(answer=answer, part=part)
        reply = self.pending.future()
        reply.add_done_callback(_brought(lambda _: self._take_media(data)))
        self.tell(MediaGiven(self.address, data, attachment, size, reply))
        return reply

    def _take_media(self, data: MediaData) -> None:
        with self._lock:
            self._apply(data)

    def request_hand_off(self, agent: str, size: int | None) -> Future[None]:
        """Ask for the session to be handed over; as `request_save`. The future is resolved when that is durable."""
        reply = self.pending.future()
        self.tell(HandOffRequested(self.address, agent, size, reply))
        return reply

    def _take_saved(self, changes: JsonObject) -> None:
        with self._lock:
            self._saved = changed(self._saved, changes)

    def prepare_call(
        self,
        tool: str | Tool,
        arguments: JsonObject,
        made: Foreign | GatedTask[Any] | None = None,
        *,
        ask: bool = False,
        schema: Mapping[str, Any] | None = None,
        secret: Collection[str] = (),
    ) -> PreparedCall:
        """Convert the arguments of a call to JSON, and check the call. Requesting a call takes credit.

        `tool`: its name; or the tool itself, which is not registered. `made`: what the call brings along in its place,
        and then `schema` and `secret` are of its arguments. `ask`: it needs a person's approval in any case.
        """
        own = tool if isinstance(tool, Tool) else None
        name = tool.name if isinstance(tool, Tool) else tool
        if not isinstance(name, str):
            raise Invalid(
                "a tool is called by its name",
                expected="a str, or a Tool that is made on the spot",
                got=type(name).__name__,
                remedy="turn.call('name', argument=value)",
            )
        if own is not None and own.isolation is Isolation.PROCESS:
            raise Invalid(
                f"the tool {name!r} runs in a process of its own, and is not registered",
                expected="a Tool of another isolation, or a name",
                got="a Tool",
                remedy="register it, Config(tools=[…]), and call it by its name",
            )
        self.token.raise_if_cancelled()
        name = storable(name)[:TOOL_NAME_MAX_CHARS]
        arguments = storable_json(arguments)
        size = len(_encode(arguments))
        if size > self._size_max:
            # The model can read the problem; the session does not store the arguments.
            problem = f"the arguments of {name} are {size} bytes as JSON, the limit is {self._size_max}; none are kept"
            return PreparedCall(name, {}, 0, problem)
        found: str | None
        if own is not None:
            found, (shown, secrets) = misfit(own, arguments), own.withheld(arguments)
            ask = ask or own.approve
        elif made is not None:
            found, shown, secrets = checked(name, arguments, schema, secret)
        else:
            found, (shown, secrets) = self._check(name, arguments), self._withhold(name, arguments)
        return self._approved(PreparedCall(name, shown, size, found, secrets, own or made), ask=ask)

    def _approved(self, call: PreparedCall, *, ask: bool) -> PreparedCall:
        """Have a valid call ask whether it may start, if it needs that."""
        if call.problem is not None or not (ask or self._asks(call.tool)):
            return call
        return call._replace(question=approval_of(call.tool, call.arguments))

    def prepare_question(self, question: str, options: Sequence[str]) -> PreparedCall:
        """Prepare a question to a person. Raises Invalid if it is none, or is too large."""
        asked = question_of(question, options)
        arguments: JsonObject = {"question": asked.text}
        if asked.options:
            arguments["options"] = list(asked.options)
        arguments, size = self._bounded(arguments, "this question is too large", "ask less, or emit the rest as text")
        return PreparedCall(ASK, arguments, size, None, question=asked)

    def prepare_named(
        self,
        tool: str,
        arguments: JsonObject,
        made: Foreign | GatedTask[Any] | None,
        provider_id: object,
        where: Where = Where.DAEMON,
        *,
        ask: bool = False,
        begun: bool = False,
        schema: Mapping[str, Any] | None = None,
        secret: Collection[str] = (),
    ) -> PreparedCall:
        """Prepare a call that a model may have named, or that the agent's host executes; see `prepare_call`."""
        if ask and begun:
            raise Invalid(
                f"the call of {tool!r} asks whether it may start, and has begun",
                expected="ask=True, or begun=True",
                got="both",
                remedy="ask about what has begun with turn.ask, or say begun=True alone",
            )
        named = None if provider_id is None else storable(str(provider_id))[:PROVIDER_ID_MAX_CHARS]
        call = self.prepare_call(tool, arguments, made, ask=ask, schema=schema, secret=secret)
        # What has begun is not asked about, whatever the configuration says of its name.
        question = None if begun else call.question
        return call._replace(provider_id=named, where=where, begun=begun, question=question)

    def prepare_delegation(self, agent: str, message: str, session: str | None) -> tuple[Delegation, PreparedCall]:
        """Prepare a call whose work is a child run. Raises Invalid if an argument is not usable."""
        delegation = Delegation(agent, message, session, self.traceparent())
        return delegation, self.prepare_call(DELEGATE, delegation.arguments, delegation.foreign)

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
                    begun=call.begun,
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
                call.question,
                self._heard,
                call.begun,
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
                self._apply(
                    ToolEndedData(
                        call_id=call_id,
                        outcome=result.outcome,
                        content=result.content,
                        is_error=result.is_error,
                        parts=result.media,
                    )
                )
        return result

    def _heard(self, data: TextData) -> None:
        """Add a text that a tool of the agent's has said to the thread for the agent."""
        with self._lock:
            self._apply(data)

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
                    self._apply(
                        MessageData(
                            id=message.id,
                            content=message.content,
                            origin=message.origin,
                            attachments=message.attachments,
                            parts=given_parts(message.parts),
                        )
                    )
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
