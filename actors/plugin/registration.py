"""Plug-ins: agents and tools as functions, and the schemas of their signatures.

A tool's schema comes from its typed signature. ``Annotated[str, msgspec.Meta(description=…, min_length=1)]`` describes
and constrains a parameter; a call that does not fit is refused. The schema leaves out the parameters that the
supervisor fills in: those annotated as `CancelToken`, `Spawn` or `Emit`, in an async tool `AsyncCancelToken`,
`AsyncSpawn` or `AsyncEmit`, and one named ``fence`` (the fencing token, ``session:generation:call``). Only the tool
sees the values of parameters annotated with `Secret`.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from actors import decoding
from actors.errors import AgentUnavailable, CountermandError, Invalid, NotFound, described
from actors.gate.token import AsyncCancelToken, CancelToken
from actors.hosts import HostedAgent
from actors.model import JsonObject
from actors.plugin.argument_schema import ArgumentSchema
from actors.plugin.emitting import AsyncEmit, Emit
from actors.plugin.spawning import AsyncSpawn, Spawn
from actors.ports import Isolation
from actors.secrets import Withheld, is_secret, withheld
from actors.text import shown, storable

F = TypeVar("F", bound=Callable[..., Any])
Agent: TypeAlias = Callable[..., Any] | HostedAgent
"""An agent: a function of a Turn, or the name of what runs in hosts."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
DURATION_MAX_S: Final = 10 * 365.25 * 86_400.0
"""Ten years. A longer duration is a mistake of units, and more than the platform's waits accept."""
_GIVEN: Final[dict[object, str]] = {
    CancelToken: "token",
    AsyncCancelToken: "token",
    Spawn: "spawn",
    AsyncSpawn: "spawn",
    Emit: "emit",
    AsyncEmit: "emit",
}


def tool(
    *, isolation: str, name: str | None = None, deadline_s: float | None = None, approve: bool = False
) -> Callable[[F], F]:
    """Mark a function as a tool. The function itself is unchanged.

    Args:
        isolation: where it runs; required. ``task``: an async function, on the executor's loop. ``thread``: a plain
            function, on a thread of its own; it has to check its token. ``process``: either kind, in a process of its
            own, which imports the function by its module and name, and which is killed when its call is stopped.
        name: the tool's name for agents; the function's own name by default.
        deadline_s: seconds, at most ten years, after which a call is closed and its token cancelled; None for the
            configured deadline.
        approve: True: each call waits until a person has allowed it, with an `Answer`.
    """

    def mark(function: F) -> F:
        marked: Any = function
        marked.isolation, marked.tool_name, marked.deadline_s = isolation, name, deadline_s
        marked.approve = approve
        return function

    return mark


class Tool:
    """A tool: a registered one, or one that is made on the spot and passed to `turn.call`.

    Args:
        function: a plain or an async function with a typed signature, marked by `tool`, or with `isolation` here. With
            a `schema` it may be anything that can be called with the arguments by their names: a closure, a bound
            method, an object of a framework.
        isolation: see `tool`; with a `schema` it may be left out: ``task`` or ``thread``, as the function is.
        name: see `tool`.
        description: what it does, for a model; by default the docstring of its function.
        schema: the JSON schema of its arguments, where no signature says it. A call is held to it before it starts.
        secret: names of arguments that only the tool may see, with a `schema`. In a signature that is `Secret`.
        deadline_s: see `tool`.
        approve: see `tool`; None: as the function is marked.

    Raises:
        Invalid: the isolation is missing, unknown or does not fit the function; a parameter has no type, or a type
            that a schema cannot describe; the schema is not valid (see `ArgumentSchema`); or the deadline is not a
            number of seconds.
    """

    child: ClassVar[None] = None
    """It asks for no child run: see `Foreign`."""

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
        self.function = function
        self.name = storable(str(name or getattr(function, "tool_name", None) or getattr(function, "__name__", "")))
        if not _NAME.fullmatch(self.name):
            raise Invalid(
                "invalid name of a tool",
                expected="1 to 64 of the characters a-z A-Z 0-9 _ -, which model providers accept",
                got=repr(self.name),
                remedy="name it: tool(name=…, isolation=…)",
            )
        chosen = isolation or getattr(function, "isolation", None)
        if schema is not None and chosen is None:
            chosen = Isolation.TASK if is_async(function) else Isolation.THREAD
        self.isolation: Isolation = _check_isolation(self.name, chosen, is_async(function))
        self._description = description
        self.spelled = _spelling(self.name, function) if self.isolation is Isolation.PROCESS else ""
        seconds = getattr(function, "deadline_s", None) if deadline_s is None else deadline_s
        self.deadline_s: float | None = (
            None if seconds is None else duration(f"the deadline_s of the tool {self.name!r}", seconds, least=0.001)
        )
        self.approve = bool(getattr(function, "approve", False) if approve is None else approve)
        self.given: dict[str, str] = {}
        self._arguments: ArgumentSchema | _Signature
        if schema is None:
            self.given, self._arguments = _signature(self.name, function)
        elif self.isolation is Isolation.PROCESS:
            raise Invalid(
                f"the tool {self.name!r} cannot run in a process of its own",
                expected="a function with a typed signature, which another process can import by its name",
                got="one with a schema of its own",
                remedy="choose 'task' for an async function, 'thread' for a plain one",
            )
        else:
            self._arguments = ArgumentSchema(self.name, schema, secret)
            self.given = _given_beside(self.name, function, self._arguments.names)

    @property
    def schema(self) -> JsonObject:
        """The JSON schema of its arguments, for a model provider. The same object each time: change a copy of it."""
        return self._arguments.schema

    @property
    def description(self) -> str:
        """What the tool does: the docstring of its function, unless it was said."""
        return (inspect.getdoc(self.function) or "") if self._description is None else self._description

    @property
    def offer(self) -> JsonObject:
        """What a model is told of it: its `name`, `description`, and the JSON schema of its `parameters`."""
        return {"name": self.name, "description": self.description, "parameters": self.schema}

    def check(self, arguments: Mapping[str, object]) -> str | None:
        """Return what is wrong with arguments, or None."""
        filled_in = sorted(self.given.keys() & arguments.keys())
        if filled_in:
            return f"the arguments of {self.name} do not fit: the supervisor fills in {', '.join(filled_in)}"
        return self._arguments.check(arguments)

    def withheld(self, arguments: JsonObject) -> tuple[JsonObject, Withheld]:
        """Return the arguments to show, and the secret ones; see `actors.secrets`."""
        return self._arguments.withheld(arguments)

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """Return arguments converted to the types of the function's parameters.

        Raises:
            msgspec.ValidationError: they do not fit the signature.
        """
        return self._arguments.convert(arguments)


class _Signature:
    """The typed signature of a tool's function: what `ArgumentSchema` is where a schema is given."""

    def __init__(self, name: str, arguments: type[Struct], secret: frozenset[str]) -> None:
        self._name = name
        self._arguments = arguments
        self._secret = secret

    @functools.cached_property
    def schema(self) -> JsonObject:
        # Made once: an agent in a host is offered its tools anew in each run.
        schema = decoding.schema(self._arguments)
        definitions = schema.get("$defs", {})
        own: JsonObject = definitions.pop(self._arguments.__name__, schema)
        for name in self._secret:
            own["properties"][name].pop("default", None)
        return {**own, "$defs": definitions} if definitions else own

    def check(self, arguments: Mapping[str, object]) -> str | None:
        try:
            self.convert(arguments)
        except msgspec.ValidationError as error:
            return f"the arguments of {self._name} do not fit: {error}"
        return None

    def withheld(self, arguments: JsonObject) -> tuple[JsonObject, Withheld]:
        return withheld(arguments, self._secret, frozenset(self._arguments.__struct_fields__))

    def convert(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        converted = decoding.convert(dict(arguments), self._arguments)
        return {field: getattr(converted, field) for field in self._arguments.__struct_fields__}


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Stands for an agent or a tool that could not be loaded: its spelling (``module:name``), and the error."""

    spelled: str
    error: CountermandError

    @property
    def why(self) -> str:
        """Why it could not be loaded, in one line."""
        return f"{self.error.message}: {self.error.got}"


class Plugins:
    """The agents and tools of one supervisor, by name.

    Args:
        agents: agents by name: plain or async functions of a Turn, `HostedAgent`, or `Unloaded`.
        tools: `Tool`s, functions marked by `tool`, or `Unloaded`.

    Raises:
        Invalid: something cannot be registered; the error names it and the choices.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent | Unloaded],
        tools: Iterable[Tool | Callable[..., Any] | Unloaded],
    ) -> None:
        self.agents: dict[str, Agent] = {}
        self.unloaded_agents: dict[str, Unloaded] = {}
        for name, agent in agents.items():
            if isinstance(agent, Unloaded):
                self.unloaded_agents[storable(name)] = agent
            elif callable(agent) or isinstance(agent, HostedAgent):
                self.agents[storable(name)] = agent
            else:
                raise Invalid(
                    f"the agent {name!r} is not a function",
                    expected="a plain or an async function of a Turn",
                    got=repr(agent),
                    remedy="register agents={'name': function}",
                )
        self.tools: dict[str, Tool] = {}
        self.unloaded_tools: dict[str, Unloaded] = {}
        for entry in tools:
            if isinstance(entry, Unloaded):
                self.unloaded_tools[entry.spelled] = entry
            else:
                self.add(entry if isinstance(entry, Tool) else Tool(entry))

    def add(self, tool: Tool) -> None:
        """Register one more tool.

        Raises:
            Invalid: its name is taken.
        """
        if tool.name in self.tools:
            raise _taken(tool.name, "rename one of them: tool(name=…, isolation=…)")
        self.tools[tool.name] = tool

    def hosted(self, name: str) -> HostedAgent | None:
        """Return an agent that runs in hosts, by name; None: there is none of that name that does."""
        agent = self.agents.get(name)
        return agent if isinstance(agent, HostedAgent) else None

    def agent(self, name: str) -> Agent:
        """Return an agent by name.

        Raises:
            NotFound: there is none.
            AgentUnavailable: it could not be loaded.
        """
        refusal = self.refusal(name)
        if refusal is not None:
            raise refusal
        return self.agents[name]

    def refusal(self, name: str) -> AgentUnavailable | NotFound | None:
        """Return why no message can be for the agent `name`; None: one can. Any thread."""
        if name in self.agents:
            return None
        return self.unavailable(name) or NotFound(
            "there is no such agent",
            expected=" | ".join(sorted(self.agents)) or "a registered agent",
            got=name,
            remedy="choose one of these, or register it: Config(agents={name: function})",
        )

    def unavailable(self, name: str) -> AgentUnavailable | None:
        """Return the refusal of messages for the agent `name`, if it could not be loaded. Any thread."""
        unloaded = self.unloaded_agents.get(name)
        if unloaded is None:
            return None
        return AgentUnavailable(
            f"the agent {name!r} could not be loaded",
            expected=f"{unloaded.spelled}, a function that can be imported",
            got=unloaded.why,
            remedy="fix it, then restart, or make the daemon reload its configuration (SIGHUP, systemctl reload)",
        )

    def mend(
        self,
        agents: Mapping[str, Agent | Unloaded],
        tools: Mapping[str, Tool | Callable[..., Any] | Unloaded],
        prepare: Callable[[Tool], None] = lambda _: None,
    ) -> list[str]:
        """Add agents and tools that could not be loaded before and are loaded now. Loaded ones stay unchanged.

        A tool with the name of a loaded one, which may be one that ships, stays unloaded: active runs use the other.

        Args:
            agents: by name.
            tools: by spelling, ``module:name``.
            prepare: called with each tool before it can be called.

        Returns:
            The names of the added agents, and the spellings of the added tools.
        """
        mended = []
        for name in list(self.unloaded_agents):
            agent = agents.get(name)
            if agent is not None and not isinstance(agent, Unloaded):
                # In this order, so that the agent exists at each moment.
                self.agents[name] = agent
                del self.unloaded_agents[name]
                mended.append(name)
        for spelled in list(self.unloaded_tools):
            entry = tools.get(spelled)
            if entry is not None and not isinstance(entry, Unloaded):
                one = entry if isinstance(entry, Tool) else Tool(entry)
                if one.name in self.tools:
                    refused = _taken(one.name, "restart to have it in place of one that ships, or rename it")
                    self.unloaded_tools[spelled] = Unloaded(spelled, refused)
                    continue
                prepare(one)
                self.add(one)
                del self.unloaded_tools[spelled]
                mended.append(spelled)
        return mended

    @property
    def isolation(self) -> dict[str, Isolation]:
        """The isolation of each tool, by name."""
        return {name: one.isolation for name, one in self.tools.items()}


def _taken(name: str, remedy: str) -> Invalid:
    return Invalid("two tools have the same name", expected="a different name for each tool", got=name, remedy=remedy)


def duration(what: str, value: object, *, least: float) -> float:
    """Return `value` as seconds.

    Raises:
        Invalid: it is not a number from `least` to ten years; `what` names it in the error.
    """
    try:
        seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.inf
    if not least <= seconds <= DURATION_MAX_S:
        raise Invalid(
            f"{what} has an invalid value",
            expected=f"a number of seconds, at least {least:g} and at most ten years",
            got=shown(value),
            remedy="change it, or leave it out for its default",
        )
    return seconds


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling `function` returns a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may have an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_isolation(name: str, isolation: object, is_coroutine: bool) -> Isolation:
    fitting = Isolation.TASK if is_coroutine else Isolation.THREAD
    if isolation == Isolation.PROCESS:
        return Isolation.PROCESS
    if isolation != fitting:
        kind = "an async" if is_coroutine else "a plain"
        raise Invalid(
            f"the tool {name!r} has no isolation that fits {kind} function",
            expected="'task' for an async function, 'thread' for a plain one, or 'process'",
            got="none named" if isolation is None else repr(isolation),
            remedy=f"mark it: @tool(isolation={fitting.value!r})",
        )
    return fitting


def host_of(tool: str) -> str:
    """Return what the hosts of a tool with the isolation ``process`` are called, among those of agents."""
    return f"tool {tool}"


def _spelling(name: str, function: Callable[..., Any]) -> str:
    """Return the spelling of a function, ``module:function``, by which another process imports it."""
    module, within = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    found: Any = sys.modules.get(module)
    for part in within.split("."):
        found = getattr(found, part, None)
    if found is not function or module == "__main__":
        raise Invalid(
            f"the tool {name!r} cannot run in a process of its own",
            expected="a function of a module, which another process can import by its name",
            got=f"{module}:{within}",
            remedy="define it at the top of a module that is not the program itself",
        )
    return f"{module}:{within}"


def _given_beside(name: str, function: Callable[..., Any], named: frozenset[str]) -> dict[str, str]:
    """Return the parameters that the supervisor fills in, of a function whose arguments a schema names."""
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(called, include_extras=True)
        parameters = inspect.signature(function).parameters
    except Exception:  # noqa: BLE001  # of a foreign object it need not be readable
        return {}
    kinds = {one: _given_kind(hints.get(one)) for one in parameters}
    given = {one: kind for one, kind in kinds.items() if kind is not None}
    if "fence" in parameters and "fence" not in named:
        given["fence"] = "fence"
    both = sorted(given.keys() & named)
    if both:
        raise Invalid(
            f"the tool {name!r} has parameters that both a model and the supervisor fill in",
            expected="other names in its schema",
            got=", ".join(both),
            remedy="rename the parameter of the function",
        )
    return given


def _given_kind(hint: object) -> str | None:
    """Return what the supervisor fills in for a parameter of this type; None: nothing."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    try:
        return _GIVEN.get(plain)
    except TypeError:
        # It has no hash, so it is none of them.
        return None


def _signature(name: str, function: Callable[..., Any]) -> tuple[dict[str, str], _Signature]:
    """Return the parameters that the supervisor fills in, and the signature of the others."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:
        raise Invalid(
            f"the signature of the tool {name!r} cannot be read",
            expected="annotations of names that its module knows",
            got=described(error),
            remedy="import what the annotations name, where the function is defined",
        ) from error
    given: dict[str, str] = {}
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise Invalid(
                f"the tool {name!r} has parameters that a schema cannot name",
                expected="named, typed parameters",
                got=str(parameter),
                remedy="give each argument a name and a type",
            )
        kind = _given_kind(hint)
        if kind is not None:
            given[parameter.name] = kind
        elif parameter.name == "fence":
            given["fence"] = "fence"
        elif hint is None:
            raise Invalid(
                f"the tool {name!r} has a parameter without a type",
                expected="a type for each parameter, from which its schema is made",
                got=parameter.name,
                remedy=f"annotate it: {parameter.name}: str",
            )
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    try:
        arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        decoding.schema(arguments)
        secret = frozenset(field for field in arguments.__struct_fields__ if is_secret(hints[field]))
    except Exception as error:
        raise Invalid(
            f"the tool {name!r} has parameters that a schema cannot describe",
            expected="parameters of JSON's types, and structs, dataclasses and enums of them",
            got=described(error),
            remedy="take a str, a number, a list or a dict, and convert it in the tool",
        ) from error
    return given, _Signature(name, arguments, secret)


def _default(value: object) -> Any:
    """Return a parameter's default for a struct: a mutable one is copied for each call."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=functools.partial(copy.deepcopy, value))
    return value
