"""The user's tools that are executed here, each call gated by the daemon."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .emitting import AsyncEmit, Emit
from .errors import Invalid
from .guard import Gate
from .loading import is_async
from .plain import as_json, words
from .schema import bare, converted, is_secret, schema_of, seconds
from .spawning import AsyncSpawn, Spawn
from .token import CancelToken, tell
from .values import ToolResult

if TYPE_CHECKING:
    from .call import Call

T = TypeVar("T")

CONVERT = "take a str, a number, a list or a dict, and convert it in the tool"
GIVEN = ("CancelToken", "AsyncCancelToken", "Spawn", "AsyncSpawn", "Emit", "AsyncEmit")
"""Names of the types of parameters that are filled in here."""

MARK = "[secret]"
SECRET_MIN_CHARS = 4
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool(
    *, isolation: str | None = None, name: str | None = None, deadline_s: float | None = None, approve: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Mark a function as a tool, as in the daemon's process; here its isolation is what it is.

    Args:
        isolation: ``task`` or ``thread``; not needed.
        name: the tool's name; the function's own by default.
        deadline_s: seconds after which a call is closed and its token cancelled; None for the configured deadline.
        approve: True: each call waits until a person has allowed it.
    """

    def mark(function: Callable[..., T]) -> Callable[..., T]:
        marked: Any = function
        marked.isolation, marked.tool_name, marked.deadline_s = isolation, name, deadline_s
        marked.approve = approve
        return function

    return mark


class Tool:
    """A tool of the user's that is executed here, gated by the daemon: one of the host, or one made on the spot.

    Args:
        function: a plain or an async function with a typed signature. With a `schema` it may be anything that can be
            called with the arguments by their names: a closure, a bound method, an object of a framework.
        isolation: not needed: it is what the function is.
        name: its name; by default that of the function.
        description: what it does, for a model; by default the docstring of the function.
        schema: the JSON schema of its arguments, where no signature says it. The daemon holds each call to it before
            it starts, and also finds out there whether it is valid.
        secret: names of arguments that only the tool may see, with a `schema`. In a signature that is `Secret`.
        deadline_s: seconds after which a call is closed and its token cancelled; None for the configured deadline.
        approve: True: each call waits until a person has allowed it.

    Raises:
        Invalid: it has no name that model providers take; a parameter has no type, or one that a schema cannot
            describe; or the schema is no JSON object.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        isolation: str | None = None,
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        secret: Collection[str] = (),
        deadline_s: float | None = None,
        approve: bool | None = None,
    ) -> None:
        del isolation
        self.function = function
        self.is_async = is_async(function)
        self.name = str(name or getattr(function, "tool_name", None) or getattr(function, "__name__", ""))
        if _NAME.fullmatch(self.name) is None:
            raise Invalid(
                "invalid name of a tool",
                expected="1 to 64 of the characters a-z A-Z 0-9 _ -, which model providers accept",
                got=repr(self.name),
                remedy="name it: Tool(function, name=…)",
            )
        # The types of its parameters; None: it has a schema instead.
        self._hints: dict[str, Any] | None = None
        self._given: dict[str, str] = {}
        self._secret = set(secret)
        if schema is None:
            schema = self._signature(function)
        else:
            schema = self._own_schema(schema)
            self._given = self._given_beside(function, schema.get("properties"))
        if description is None:
            description = inspect.getdoc(function) or ""
        self.offer = {"name": self.name, "description": description, "parameters": schema}
        # Fields of the frame of a call.
        self.frame: dict[str, Any] = {"description": description, "schema": schema}
        if self._secret:
            self.frame["secret"] = sorted(self._secret)
        limit = seconds(getattr(function, "deadline_s", None) if deadline_s is None else deadline_s)
        if limit is not None:
            self.frame["deadline_s"] = limit
        if getattr(function, "approve", False) if approve is None else approve:
            self.frame["ask"] = True

    def _own_schema(self, schema: object) -> dict[str, Any]:
        made = as_json(schema)
        if not isinstance(made, dict) or made != schema:
            raise Invalid(
                f"the schema of the tool {self.name!r} is not valid",
                expected="an object of plain JSON",
                got=f"{schema!r:.80}",
                remedy="give the schema that a model provider takes: {'type': 'object', 'properties': {…}}",
            )
        return made

    def _given_beside(self, function: Callable[..., Any], properties: Any) -> dict[str, str]:
        """Return the parameters that are filled in here, of a function whose arguments a schema names."""
        named = set(properties) if isinstance(properties, dict) else set()
        called: Any = function if inspect.isroutine(function) else type(function).__call__
        try:
            hints = typing.get_type_hints(called, include_extras=True)
            parameters = inspect.signature(function).parameters
        except Exception:  # noqa: BLE001  # of a foreign object it need not be readable
            return {}
        kinds = {name: _given_kind(hints.get(name)) for name in parameters}
        given = {name: kind for name, kind in kinds.items() if kind is not None}
        if "fence" in parameters and "fence" not in named:
            given["fence"] = "fence"
        if named & given.keys():
            raise Invalid(
                f"the tool {self.name!r} has parameters that both a model and the supervisor fill in",
                expected="other names in its schema",
                got=", ".join(sorted(named & given.keys())),
                remedy="rename the parameter of the function",
            )
        return given

    def _signature(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Read the typed signature of the function; returns its schema."""
        hinted = self._hints = {}
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = list(inspect.signature(function).parameters.values())
        except Exception as error:
            raise self._invalid("a signature that cannot be read", words(error)) from error
        properties, required = {}, []
        for parameter in parameters:
            name, hint = parameter.name, hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise self._invalid("a parameter that a schema cannot name", str(parameter))
            kind = _given_kind(hint)
            if kind is not None:
                self._given[name] = kind
                continue
            if name == "fence":
                self._given[name] = name
                continue
            if hint is None:
                raise self._invalid("a parameter without a type", name)
            if is_secret(hint):
                self._secret.add(name)
            hinted[name] = hint
            properties[name] = self._schema(name, hint)
            if parameter.default is parameter.empty:
                required.append(name)
            elif name not in self._secret:
                properties[name]["default"] = as_json(parameter.default)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to record, as the daemon does: a mark in place of each secret."""
        hidden = self._hidden(arguments)
        return {name: MARK if name in hidden else value for name, value in arguments.items()}

    def _hidden(self, arguments: Mapping[str, Any]) -> set[str]:
        """Return the names of secret arguments. An unknown name counts as secret: it may be misspelt."""
        if not self._secret:
            return set()
        known = typing.cast("Any", self.offer["parameters"]).get("properties")
        return {name for name in arguments if name in self._secret or name not in (known or ())}

    def without(self, arguments: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """Return a result with each of the call's secrets replaced by the mark."""
        hidden = self._hidden(arguments)
        texts = [text for name in hidden for text in _texts(arguments[name])]
        secrets = sorted({spelled for text in texts for spelled in _spelled(text)}, key=len, reverse=True)
        return dataclasses.replace(result, content=_hidden(result.content, secrets), data=_hidden(result.data, secrets))

    def execute(self, arguments: Mapping[str, Any], call: Call) -> Any:
        """Execute a call; an async tool of a plain agent has a loop of its own."""
        call.token._gate = Gate(call.run, call.token, call.fence)
        plain, aio = Spawn(call.run, call.token, call.fence), AsyncSpawn(call.run, call.token, call.fence)
        call.at_end = (plain.over, aio.over)
        given: dict[str, Any] = {
            "fence": call.fence,
            "CancelToken": call.token,
            "AsyncCancelToken": call.token.aio,
            "Spawn": plain,
            "AsyncSpawn": aio,
            "Emit": Emit(call),
            "AsyncEmit": AsyncEmit(call),
        }
        extra = {name: given[kind] for name, kind in self._given.items()}
        value = self.function(**self._converted(arguments), **extra)
        return _completed(value, call.token) if self.is_async and call.run.host.loop is None else value

    def _converted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        hints, schema = self._hints, typing.cast("Any", self.offer["parameters"])
        if hints is None:
            filled_in = sorted(self._given.keys() & arguments.keys())
            if filled_in:
                what = f"the supervisor fills in {', '.join(filled_in)}"
                raise Invalid(f"the arguments of {self.name} do not fit: {what}")
            return copy.deepcopy(dict(arguments))
        missing = [name for name in schema["required"] if name not in arguments]
        unknown = [name for name in arguments if name not in hints]
        if missing or unknown:
            what = f"it lacks {', '.join(missing)}" if missing else f"it has no {', '.join(unknown)}"
            raise Invalid(f"the arguments of {self.name} do not fit: {what}", expected=", ".join(hints))
        made = {}
        for name, value in arguments.items():
            try:
                made[name] = converted(hints[name], value)
            except (TypeError, ValueError) as error:
                raise Invalid(f"the arguments of {self.name} do not fit: {name}: {error}") from None
        return made

    def _schema(self, name: str, hint: Any) -> dict[str, Any]:
        try:
            return schema_of(hint)
        except TypeError as error:
            raise self._invalid("a parameter that a schema cannot describe", f"{name}: {error}") from None

    def _invalid(self, what: str, got: str) -> Invalid:
        return Invalid(
            f"the tool {self.name!r} has {what}",
            expected="named parameters of JSON's types, and of dataclasses and enums of them",
            got=got,
            remedy=CONVERT,
        )


def _given_kind(hint: Any) -> str | None:
    """Return what is filled in here for a parameter of this type; None: nothing."""
    kind = getattr(bare(hint), "__name__", "")
    return kind if kind in GIVEN else None


def _completed(coroutine: Any, token: CancelToken) -> Any:
    """Run a coroutine to its end, on a loop of its own, on this thread. The token's cancel cancels it once."""

    async def main() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "this is a task"
        forget = token._add_waker(functools.partial(loop.call_soon_threadsafe, tell, task, token._told))
        try:
            return await coroutine
        finally:
            forget()

    return asyncio.run(main())


def _texts(value: Any) -> list[str]:
    if isinstance(value, (list, dict)):
        return [text for one in (value.values() if isinstance(value, dict) else value) for text in _texts(one)]
    return [str(value)] if value is not None and len(str(value)) >= SECRET_MIN_CHARS else []


def _spelled(text: str) -> tuple[str, ...]:
    """Return how a text is found in others: as it is, and as the escapes of Python and JSON have it."""
    # In a text with both kinds of quotes, Python escapes one.
    python = (repr(text)[1:-1], repr(f'"{text}')[2:-1])
    return text, *python, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _hidden(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return functools.reduce(lambda text, secret: text.replace(secret, MARK), secrets, value)
    if isinstance(value, list):
        return [_hidden(one, secrets) for one in value]
    if isinstance(value, dict):
        return {_hidden(key, secrets): _hidden(one, secrets) for key, one in value.items()}
    return MARK if value is not None and str(value) in secrets else value
