"""`mcp`: an MCP server on stdin and stdout, with which an agent sends messages to sessions, and stops what they run.

It has no session and no run of its own: each call is a request to the daemon, as the other commands make it. So the
client may cancel a call, or end this command, at any moment: only a wait ends, and what was asked for stays in effect.
A call that may have been carried out is repeated with the same `id`, and has one effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from actors import decoding
from actors.errors import CountermandError, Invalid, NotFound, ReceiptPending
from actors.events import EventKind
from actors.ids import new_request_id
from actors.model import Policy, Receipt, RunInfo, SessionStatus, StopOutcome
from actors.requests import Accepted, NewMessage, Stop
from actors.text import tail
from supervisor.console.client.api import Api, need_api, segment
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.exits import ExitCode
from supervisor.wire import MessageBody, StopAnswer, StopBody

SOURCE: Final = "client.mcp"
ORIGIN: Final = "mcp"
WAIT_MAX_S: Final = 600.0
"""How long a call may wait."""
LOOK_S: Final = 1.0
"""How long one request of a wait takes: so long after its cancel a thread may still wait."""
TEXT_MAX_CHARS: Final = 30_000
"""How much of what a run has said is returned: its end."""
RUNS_MAX: Final = 5
SESSIONS_MAX: Final = 200
CALLS_MAX: Final = 32
"""How many calls of one tool may be sent, and how many may wait, at a time; more are sent, and wait, after them."""
EVENTS_MAX: Final = 20_000
"""How many events of a run are read for its text."""

Wait = Callable[[Api, Callable[[], bool]], Any]
"""Waits for the rest of a result, and returns it. The second argument returns True if nobody waits for it any more."""

_Session = Annotated[str, Meta(description="The name of the session.")]
_Id = Annotated[
    str | None,
    Meta(description="An id of your own for this request. Sent again with the same id it has one effect."),
]
_WaitS = Annotated[float, Meta(ge=0.0, le=WAIT_MAX_S, description="How many seconds to wait at most.")]


class Send(Struct, forbid_unknown_fields=True, kw_only=True):
    """Send a message to the agent of a session; the first one creates the session.

    With `wait_s` it waits until the run of the message has ended, and returns what it has said. Cancelling this call
    ends only the wait. Without a `policy` the message waits while a run is active; `interrupt` takes over from it.
    """

    session: _Session
    content: str
    policy: Policy | None = None
    agent: Annotated[str | None, Meta(description="Which agent runs it; by default that of the session.")] = None
    wait_s: _WaitS = 0.0
    id: _Id = None


class StopSession(Struct, forbid_unknown_fields=True, kw_only=True):
    """Stop what runs in a session, with everything that it has started, and return the receipt, which proves it.

    Nothing of the run takes effect after the answer. If the receipt is not filed within `wait_s`, ask `receipt` for it.
    """

    session: _Session
    reason: Annotated[str, Meta(min_length=1, description="Why, for people.")]
    run_id: Annotated[str | None, Meta(description="Stop only this run; if it is over, nothing happens.")] = None
    wait_s: _WaitS = 30.0
    id: _Id = None


class Status(Struct, forbid_unknown_fields=True, kw_only=True):
    """Return the state of a session: what runs, what waits, what is asked, and its last runs with their results."""

    session: _Session


class Sessions(Struct, forbid_unknown_fields=True):
    """List the sessions, each with its state."""


class ReceiptOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """Return the receipt of a run: what was running, how and when each part ended, and whether all of it is proven."""

    session: _Session
    run_id: Annotated[str, Meta(description="The id of the run, or of its receipt.")]
    wait_s: _WaitS = 0.0


class Control:
    """The tools, as calls of a daemon. Each blocks, on a thread of its own call.

    Args:
        endpoint: where the daemon is.
        only: the one session that may be controlled; None: all.
    """

    def __init__(self, endpoint: Endpoint, only: str | None) -> None:
        self._endpoint = endpoint
        self._only = only
        tools: dict[str, tuple[type[Struct], Callable[[Any, Api], Any]]] = {
            "send": (Send, self._send),
            "stop": (StopSession, self._stop),
            "status": (Status, self._status),
            "receipt": (ReceiptOf, self._receipt),
        }
        if only is None:
            tools["sessions"] = (Sessions, self._sessions)
        self.tools = tools

    def schema(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of a tool's arguments."""
        kind = self.tools[name][0]
        schema = decoding.schema(kind)
        definitions = schema.pop("$defs")
        own: dict[str, Any] = definitions.pop(kind.__name__)
        if self._only is not None:
            own["properties"].pop("session", None)
            own["required"] = [one for one in own["required"] if one != "session"]
        return {**own, "$defs": definitions} if definitions else own

    def description(self, name: str) -> str:
        """Return what a tool does."""
        return (self.tools[name][0].__doc__ or "").strip()

    def send(self, name: str, arguments: dict[str, Any]) -> Any:
        """Send what a tool asks for. Returns its result as plain JSON, or a `Wait` for it.

        Args:
            name: of the tool.
            arguments: as the client says them.

        Raises:
            CountermandError: it was refused.
        """
        if name not in self.tools:
            raise NotFound("there is no such tool", expected=" | ".join(self.tools), got=name, remedy="choose one")
        kind, do = self.tools[name]
        if self._only is not None:
            arguments = {**arguments, "session": self._only}
        try:
            asked = decoding.convert(arguments, kind)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"the arguments of {name} do not fit", expected="those of its schema", got=str(error), remedy="fix them"
            ) from error
        return self._asked(lambda api: do(asked, api))

    def wait(self, wait: Wait, given_up: Callable[[], bool]) -> Any:
        """Wait for the rest of a result, until `given_up` returns True. Raises CountermandError."""
        return self._asked(lambda api: wait(api, given_up))

    def _asked(self, ask: Callable[[Api], Any]) -> Any:
        # A daemon may be restarted between two calls.
        api = need_api(self._endpoint)
        # Nobody reads remarks.
        api.on_wait = lambda _: None
        try:
            found = ask(api)
            return found if callable(found) else msgspec.to_builtins(found)
        finally:
            api.close()

    def _send(self, asked: Send, api: Api) -> dict[str, Any] | Wait:
        message = NewMessage(
            content=asked.content,
            policy=asked.policy,
            origin=ORIGIN,
            agent=asked.agent,
            id=asked.id or new_request_id(),
        )
        url = f"/v1/sessions/{segment(asked.session)}/messages"
        accepted = api.post(url, Accepted, MessageBody.of(message))
        answer: dict[str, Any] = {"accepted": accepted}
        if not asked.wait_s or accepted.run_id is None or accepted.returned is not None:
            return answer
        run_id = accepted.run_id

        def wait(api: Api, given_up: Callable[[], bool]) -> dict[str, Any]:
            receipt = _waited(api, asked.session, run_id, asked.wait_s, given_up)
            return answer | _run(api, asked.session, run_id) | {"ended": receipt is not None}

        return wait

    def _stop(self, asked: StopSession, api: Api) -> StopAnswer | Wait:
        stop = Stop(
            source=SOURCE, reason=asked.reason, run_id=asked.run_id, origin=ORIGIN, id=asked.id or new_request_id()
        )
        answer = api.post(f"/v1/sessions/{segment(asked.session)}/stop", StopAnswer, StopBody.of(stop))
        if answer.outcome in {StopOutcome.NOTHING_RUNNING, StopOutcome.ALREADY_OVER}:
            return answer

        def wait(api: Api, given_up: Callable[[], bool]) -> StopAnswer:
            receipt = _waited(api, asked.session, answer.receipt_id, asked.wait_s, given_up)
            return msgspec.structs.replace(answer, receipt=receipt)

        return wait

    def _status(self, asked: Status, api: Api) -> dict[str, Any]:
        status = api.get(f"/v1/sessions/{segment(asked.session)}", SessionStatus)
        last = RemoteRecords(api).runs(asked.session, RUNS_MAX)
        return {"status": status, "runs": last, "text": _text(api, asked.session, last[-1].run_id) if last else ""}

    def _receipt(self, asked: ReceiptOf, _: Api) -> Wait:
        def wait(api: Api, given_up: Callable[[], bool]) -> Receipt:
            receipt = _waited(api, asked.session, asked.run_id, asked.wait_s, given_up)
            if receipt is None:
                raise ReceiptPending(
                    "the receipt is not filed yet",
                    expected="a run whose parts have all ended",
                    got="one that still runs, or ends",
                    remedy="ask again, or with a longer wait_s",
                )
            return receipt

        return wait

    def _sessions(self, _: Sessions, api: Api) -> dict[str, Any]:
        found = RemoteRecords(api).sessions()
        return {"sessions": found[:SESSIONS_MAX], "more": len(found) > SESSIONS_MAX}


class Calls:
    """Calls of tools that are under way, each tool's on threads of its own: no wait holds up a stop."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.sending = {name: ThreadPoolExecutor(CALLS_MAX) for name in control.tools}
        self._waiting = {name: ThreadPoolExecutor(CALLS_MAX) for name in control.tools}

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Do what a tool does, and return its result as plain JSON. A cancel ends only the wait for it.

        Raises:
            CountermandError: it was refused.
        """
        loop, over = asyncio.get_running_loop(), False
        try:
            # Without the shield a cancel would drop what no thread has begun to send.
            sent = loop.run_in_executor(self.sending.get(name), self._control.send, name, arguments)
            found = await asyncio.shield(sent)
            if not callable(found):
                return found
            return await loop.run_in_executor(self._waiting[name], self._control.wait, found, lambda: over)
        finally:
            over = True


def _waited(api: Api, session: str, identity: str, wait_s: float, given_up: Callable[[], bool]) -> Receipt | None:
    """Wait for a receipt, in short requests. None: it does not come in time, or nobody waits any more."""
    deadline = time.monotonic() + wait_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            return api.receipt(session, identity, min(LOOK_S, left_s))
        except ReceiptPending:
            if not left_s or given_up():
                return None


def _run(api: Api, session: str, run_id: str) -> dict[str, Any]:
    """Return a run with what it has said so far."""
    run: RunInfo | None = None
    with contextlib.suppress(NotFound):
        run = api.get(f"/v1/sessions/{segment(session)}/runs/{segment(run_id)}", RunInfo)
    return {"run": run, "text": _text(api, session, run_id)}


def _text(api: Api, session: str, run_id: str) -> str:
    """Return the end of what a run has said."""
    records, texts, after, read = RemoteRecords(api), list[str](), 0, 0
    while read < EVENTS_MAX and (events := records.events(session, after, run_id)):
        texts += [str(event.data.get("text", "")) for event in events if event.kind == EventKind.TEXT]
        after, read = events[-1].seq, read + len(events)
    return tail("".join(texts), TEXT_MAX_CHARS)


def serve_mcp(endpoint: Endpoint, only: str | None) -> ExitCode:
    """Serve until stdin ends.

    Args:
        endpoint: where the daemon is. It need not run before the first call.
        only: the one session that may be controlled; None: all.

    Raises:
        Invalid: the SDK is not installed.
    """
    try:
        import mcp_types as types
        from mcp.server.lowlevel import Server
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise Invalid(
            "the MCP SDK is not installed where this command is",
            expected="the packages of the extra countermand[mcp]",
            got=str(error),
            remedy=f"install countermand[mcp]: {sys.executable} -m pip install '/path/to/countermand[mcp]'",
        ) from error
    control = Control(endpoint, only)
    calls = Calls(control)

    async def list_tools(_: Any, __: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=control.description(name), input_schema=control.schema(name))
                for name in control.tools
            ]
        )

    async def call_tool(_: Any, params: Any) -> Any:
        try:
            told, is_error = await calls.call(params.name, dict(params.arguments or {})), False
        except CountermandError as refused:
            told, is_error = {"error": refused.as_json()}, True
        text = types.TextContent(type="text", text=msgspec.json.encode(told).decode())
        return types.CallToolResult(content=[text], is_error=is_error)

    async def serve() -> None:
        server = Server("countermand", on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(serve())
    return ExitCode.OK
