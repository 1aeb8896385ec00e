"""The user's tools that are executed here, each call gated by the daemon."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

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
MARK = "[secret]"
SECRET_MIN_CHARS = 4


def tool(
    *, isolation: str | None = None, name: str | None = None, deadline_s: float | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Mark a function as a tool, as in the daemon's process; here its isolation is what it is.

    Args:
        isolation: ``task`` or ``thread``; not needed.
        name: the tool's name; the function's own by default.
        deadline_s: seconds after which a call is closed and its token cancelled; None for the configured deadline.
    """

    def mark(function: Callable[..., T]) -> Callable[..., T]:
        marked: Any = function
        marked.isolation, marked.tool_name, marked.deadline_s = isolation, name, deadline_s
        return function

    return mark


class HostTool:
    """A tool of the user's that is executed here, gated by the daemon.

    Args:
        function: a plain or an async function with a typed signature.

    Raises:
        Invalid: a parameter has no type, or one that a schema cannot describe.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_async = is_async(function)
        self.name = str(getattr(function, "tool_name", None) or getattr(function, "__name__", ""))
        self._hints: dict[str, Any] = {}
        self._given: dict[str, str] = {}
        self._secret: set[str] = set()
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
            kind = getattr(bare(hint), "__name__", "")
            if kind in ("CancelToken", "AsyncCancelToken", "Spawn", "AsyncSpawn"):
                self._given[name] = kind
                continue
            if name == "fence":
                self._given[name] = name
                continue
            if hint is None:
                raise self._invalid("a parameter without a type", name)
            if is_secret(hint):
                self._secret.add(name)
            self._hints[name] = hint
            properties[name] = self._schema(name, hint)
            if parameter.default is parameter.empty:
                required.append(name)
            elif name not in self._secret:
                properties[name]["default"] = as_json(parameter.default)
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        description = inspect.getdoc(function) or ""
        self.offer = {"name": self.name, "description": description, "parameters": schema}
        # Fields of the frame of a call.
        self.frame: dict[str, Any] = {"description": description, "schema": schema}
        limit = seconds(getattr(function, "deadline_s", None))
        if limit is not None:
            self.frame["deadline_s"] = limit

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to record: a mark in place of each secret."""
        return {name: MARK if name in self._secret else value for name, value in arguments.items()}

    def without(self, arguments: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """Return a result with each of the call's secrets replaced by the mark."""
        secrets = sorted({text for name in self._secret for text in _texts(arguments.get(name))}, key=len, reverse=True)
        return dataclasses.replace(result, content=_hidden(result.content, secrets), data=_hidden(result.data, secrets))

    def execute(self, arguments: Mapping[str, Any], call: Call) -> Any:
        """Execute a call; an async tool of a plain agent has a loop of its own."""
        call.token._gate = Gate(call.run, call.token, call.fence)
        given: dict[str, Any] = {
            "fence": call.fence,
            "CancelToken": call.token,
            "AsyncCancelToken": call.token.aio,
            "Spawn": Spawn(call.run, call.token, call.fence),
            "AsyncSpawn": AsyncSpawn(call.run, call.token, call.fence),
        }
        extra = {name: given[kind] for name, kind in self._given.items()}
        value = self.function(**self._converted(arguments), **extra)
        return _completed(value, call.token) if self.is_async and call.run.host.loop is None else value

    def _converted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        schema = typing.cast("Any", self.offer["parameters"])
        missing = [name for name in schema["required"] if name not in arguments]
        unknown = [name for name in arguments if name not in self._hints]
        if missing or unknown:
            what = f"it lacks {', '.join(missing)}" if missing else f"it has no {', '.join(unknown)}"
            raise Invalid(f"the arguments of {self.name} do not fit: {what}", expected=", ".join(self._hints))
        made = {}
        for name, value in arguments.items():
            try:
                made[name] = converted(self._hints[name], value)
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


def _hidden(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return functools.reduce(lambda text, secret: text.replace(secret, MARK), secrets, value)
    if isinstance(value, list):
        return [_hidden(one, secrets) for one in value]
    if isinstance(value, dict):
        return {_hidden(key, secrets): _hidden(one, secrets) for key, one in value.items()}
    return MARK if value is not None and str(value) in secrets else value
