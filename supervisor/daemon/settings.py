"""The daemon's settings, from a TOML file, the environment and the command line; each overrides the ones before.

The keys are those of `supervisor.Config` that can be written as text, and those of the tables ``[http]`` and ``[log]``.
An agent is a table ``[agents.NAME]`` (see `agent_tables`), an MCP server a table ``[mcp.NAME]`` (see
`mcp_tables`), a tool is written as ``module:name``. A key has a dotted
name (``http.listen``), which is ``COUNTERMAND_HTTP_LISTEN`` in the environment and ``--set http.listen=…`` on the
command line. There a key of one agent can be set too: ``--set agents.mine.spares=0``.

All mistakes are found at once; each is reported with its source, the key, and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from actors.decoding import convert
from actors.errors import CountermandError, Invalid
from actors.plugin.registration import Unloaded
from actors.text import one_line, shown
from supervisor.agent import Agent
from supervisor.config import Config, default_state_dir, expanded
from supervisor.daemon.agent_tables import AGENT_KEYS, AgentTables
from supervisor.daemon.mcp_tables import McpTables
from supervisor.daemon.plug_ins import plug_in_tool
from supervisor.mcp_server import McpServer
from supervisor.supervisor import plugins_of
from supervisor.variables import names_of

PREFIX: Final = "COUNTERMAND_"
# Variables with our prefix that are not settings.
NOT_KEYS: Final = frozenset({"COUNTERMAND_CONFIG", "COUNTERMAND_FENCE"})
COMMAND_LINE: Final = "the command line"
FILE_MAX_BYTES: Final = 1_048_576
SOCKET_PATH_MAX: Final = 107
"""The kernel's limit on the path of a Unix socket, in bytes."""

RELOADED: Final = ("drain_s", "log.level", "log.format")
"""The keys that a reload changes in a running daemon. None of them touches a run."""


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The local API.

    Args:
        socket: path of the Unix socket; empty: ``countermand.sock`` in the runtime or the state directory.
        listen: a loopback address and port to serve on as well, such as ``127.0.0.1:8123``; empty: none.
        token_file: the file with the bearer token for callers over `listen` (mode 0600); empty: ``token`` in the state
            directory, created if it is missing.
    """

    socket: str = ""
    listen: str = ""
    token_file: str = ""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`; None if it is empty. Raises Invalid if it is not a loopback address."""
        if not self.listen:
            return None
        host, _, port = self.listen.rpartition(":")
        host = host.strip("[]")
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
            number = int(port)
        except ValueError:
            loopback, number = False, -1
        if not loopback or not 0 <= number <= 65_535:
            raise Invalid(
                "the API is not served on such an address",
                expected="a loopback address and a port, such as 127.0.0.1:8123",
                got=shown(self.listen),
                remedy="for callers on other machines, use a proxy that authenticates them",
            )
        return host, number


class LogLevel(StrEnum):
    """A level of the log, the lowest first."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log is written."""

    AUTO = "auto"
    """For people on a terminal, as JSON elsewhere."""
    PEOPLE = "people"
    """For people."""
    JSON = "json"
    """As one object of JSON."""


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The log.

    Args:
        level: the lowest level that is written.
        format: how a line is written.
    """

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


class Found(Struct, frozen=True):
    """A value and its source: a file's path, a variable's name, ``the command line``, or ``default``."""

    value: Any
    source: str


class DaemonSettings(Struct, frozen=True):
    """Complete, valid settings.

    `found` has every key with its value and its source; `file` is the file that was read, if there was one.
    """

    config: Config
    http: HttpSettings
    log: LogSettings
    found: dict[str, Found]
    file: Path | None

    @property
    def state_dir(self) -> Path:
        """The state directory."""
        return Path(self.config.state_dir)

    @property
    def socket(self) -> Path:
        """The path of the Unix socket."""
        if self.http.socket:
            return expanded(Path(self.http.socket), "the path of http.socket")
        # systemd creates and names this directory.
        runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        return (Path(runtime) if runtime else self.state_dir) / "countermand.sock"

    @property
    def token_file(self) -> Path:
        """The file with the token for callers over TCP."""
        if self.http.token_file:
            return expanded(Path(self.http.token_file), "the path of http.token_file")
        return self.state_dir / "token"

    @property
    def unloaded(self) -> list[Unloaded]:
        """The agents and tools that could not be loaded; the daemon serves without them."""
        return [one for one in (*self.config.agents.values(), *self.config.tools) if isinstance(one, Unloaded)]

    @property
    def tools(self) -> dict[str, Any]:
        """The tools, by spelling."""
        return dict(zip(self.found["tools"].value, self.config.tools, strict=True))

    def changes(self, other: DaemonSettings) -> list[str]:
        """Return the keys in which other settings differ."""
        return [key for key in self.found if not _same(self.found[key].value, other.found[key].value)]


def _same(ours: Any, theirs: Any) -> bool:
    """Return True if two values are equal; a file has a list where the default is a set."""
    if isinstance(ours, frozenset) or isinstance(theirs, frozenset):
        return set(ours) == set(theirs)
    return bool(ours == theirs)


class WrongSettings(Invalid):
    """Invalid settings; `problems` has one refusal for each mistake."""

    def __init__(self, problems: Sequence[CountermandError]) -> None:
        first = problems[0]
        if len(problems) == 1:
            super().__init__(first.message, expected=first.expected, got=first.got, remedy=first.remedy)
        else:
            every = " | ".join(str(problem) for problem in problems)
            super().__init__(f"the configuration has {len(problems)} mistakes: {every}")
        self.problems = tuple(problems)


class Source(Struct, frozen=True):
    """The sources of the settings; kept, so that a reload reads them again.

    Args:
        file: a TOML file, which has to exist; None: `default_file`, if it exists.
        environment: variables; None: those of this process.
        assignments: ``key=value`` of the command line; they override everything else.
    """

    file: Path | None = None
    environment: Mapping[str, str] | None = None
    assignments: tuple[str, ...] = ()

    def load(self, *, serves: bool = True) -> DaemonSettings:
        """Read, check and return the settings. Without `serves` there is no API, and its paths are not checked.

        Raises:
            WrongSettings: a source cannot be read, a key is unknown, or a value is invalid. It has every mistake found.
        """
        return _Loading(self).settings(serves=serves)


def default_file(environment: Mapping[str, str]) -> Path:
    """Return ``countermand/countermand.toml`` in the XDG configuration directory."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "countermand" / "countermand.toml"


Agents = dict[str, str | dict[str, Any]]
"""Agents as they are written, by name: ``module:function``, or a table of keys; see `agent_tables`."""

Servers = dict[str, dict[str, Any]]
"""MCP servers as they are written, by name: a table of keys each; see `mcp_tables`."""


def _key_types() -> dict[str, Any]:
    """Return every key by its dotted name, with its type; functions in Config are named by texts here."""
    # `config` imports the class for type checking only, since it must not depend on it.
    hints = typing.get_type_hints(Config, localns={"Agent": Agent, "McpServer": McpServer})
    types = {field.name: hints[field.name] for field in dataclasses.fields(Config)}
    types.update(state_dir=str, agents=Agents, mcp=Servers, tools=list[str], files_root=str | None)
    types.update(http_hosts=list[str])
    for table, kind in TABLES.items():
        types.update({f"{table}.{name}": hint for name, hint in typing.get_type_hints(kind).items()})
    return types


TABLES: Final[dict[str, type[Struct]]] = {"http": HttpSettings, "log": LogSettings}
KEYS: Final = _key_types()
VARIABLES: Final = {PREFIX + key.upper().replace(".", "_"): key for key in KEYS}


class _Loading:
    """One reading of all sources, with the values found and the mistakes."""

    def __init__(self, source: Source) -> None:
        self._environment = os.environ if source.environment is None else source.environment
        self._assignments = source.assignments
        self._file = source.file
        self._values: dict[str, Found] = {}
        self._problems: list[CountermandError] = []

    def settings(self, *, serves: bool) -> DaemonSettings:
        file = self._read_file()
        self._read_environment()
        self._read_assignments()
        config = self._config()
        tables = {table: self._table(table, kind) for table, kind in TABLES.items()}
        if self._problems or config is None:
            raise WrongSettings(self._problems)
        http, log = tables["http"], tables["log"]
        assert isinstance(http, HttpSettings)
        assert isinstance(log, LogSettings)
        values = {**_defaults(config, http, log), **self._values}
        settings = DaemonSettings(config, http, log, values, file)
        if serves:
            self._check_paths(settings)
        if self._problems:
            raise WrongSettings(self._problems)
        return settings

    # ── Sources ───────────────────────────────────────────────────────────────────────────────────

    def _read_file(self) -> Path | None:
        named = self._environment.get(PREFIX + "CONFIG")
        path = self._file or (Path(named) if named else None)
        by_default = path is None
        if path is None:
            path = default_file(self._environment)
        try:
            path = expanded(path, "the path of --config")
            with path.open("rb") as file:
                text = file.read(FILE_MAX_BYTES + 1)
            if len(text) > FILE_MAX_BYTES:
                raise ValueError(f"it is larger than {FILE_MAX_BYTES} bytes")
            content = tomllib.loads(text.decode())
        except CountermandError as error:
            self._problems.append(error)
            return path
        except (OSError, ValueError, RecursionError) as error:
            # Errors of tomllib and of the decoder are ValueErrors; too deep a nesting is a RecursionError.
            if by_default and isinstance(error, FileNotFoundError | NotADirectoryError):
                return None
            self._problems.append(
                Invalid(
                    f"the configuration file {path} cannot be read",
                    expected="a TOML file",
                    got=error.strerror or str(error) if isinstance(error, OSError) else str(error),
                    remedy="correct it, or name another with --config or COUNTERMAND_CONFIG",
                )
            )
            return path
        for key, value in _flat(content):
            self._store(key, value, str(path))
        return path

    def _read_environment(self) -> None:
        for name, text in self._environment.items():
            if not name.startswith(PREFIX) or name in NOT_KEYS or not text:
                continue
            key = VARIABLES.get(name)
            if key is not None:
                self._store(key, _from_text(text, KEYS[key]), name)
            elif near := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85):
                # Other programs' variables may have our prefix; one that is nearly a key is a typing mistake.
                self._problems.append(
                    Invalid(
                        f"the environment sets {name}, which is not a configuration key",
                        expected=" | ".join(sorted(VARIABLES)),
                        got=name,
                        remedy=f"did you mean {near[0]}?",
                    )
                )

    def _read_assignments(self) -> None:
        for assignment in self._assignments:
            key, equals, text = assignment.partition("=")
            key = key.strip()
            if not equals:
                self._problems.append(
                    Invalid(
                        "an assignment has no value",
                        expected="KEY=VALUE, such as http.listen=127.0.0.1:8123",
                        got=shown(assignment),
                        remedy="write --set KEY=VALUE",
                    )
                )
                continue
            self._store(key, _from_text(text.strip(), KEYS.get(key)), COMMAND_LINE)

    def _store(self, key: str, value: object, source: str) -> None:
        """Store a value under its key, if the key exists and the value has its type."""
        if key in TABLES:
            self._wrong(key, source, "a table of keys", value)
        elif key.startswith("agents."):
            self._store_of_agent(key, value, source)
        elif key not in KEYS:
            self._problems.append(_unknown(key, source))
        else:
            try:
                # 5 is accepted for 5.0, but a text is not accepted for a number.
                self._values[key] = Found(convert(value, KEYS[key]), source)
            except msgspec.ValidationError:
                self._wrong(key, source, _allowed(KEYS[key]), value)

    def _store_of_agent(self, key: str, value: object, source: str) -> None:
        """Store one agent, or one key of it, over the value of an earlier source."""
        name, _, inner = key.removeprefix("agents.").rpartition(".")
        before = self._values.get("agents", Found({}, source))
        agents: Agents = dict(before.value)
        if name and inner in AGENT_KEYS:
            earlier = agents.get(name, {})
            agents[name] = {**({"run": earlier} if isinstance(earlier, str) else earlier), inner: value}
        elif not isinstance(value, str | dict):
            self._wrong(key, source, "module:function, or a table of keys", value)
            return
        else:
            agents[key.removeprefix("agents.")] = value
        sources = before.source if before.source.endswith(source) else f"{before.source}, {source}"
        self._values["agents"] = Found(agents, sources)

    def _wrong(self, key: str, source: str, expected: str, got: object) -> None:
        self._problems.append(
            Invalid(
                f"{source}: the key {key!r} has an invalid value",
                expected=expected,
                # The table of an agent, or of an MCP server, may hold secrets.
                got=names_of(got) if key.partition(".")[0] in ("agents", "mcp") else shown(got),
                remedy=f"change {key}, or leave it out for its default",
            )
        )

    # ── Checks ────────────────────────────────────────────────────────────────────────────────────

    def _config(self) -> Config | None:
        """Make the Config. Each key is tried alone first, so that every mistake is reported with its source."""
        options: dict[str, Any] = {}
        for key, found in self._values.items():
            if "." in key:
                continue
            if key == "agents":
                tables = AgentTables(found.value, found.source)
                self._problems.extend(tables.problems)
                options[key] = tables.agents
                continue
            if key == "mcp":
                written = McpTables(found.value, found.source)
                self._problems.extend(written.problems)
                options[key] = written.servers
                continue
            with self._noting(found.source):
                value = self._loaded(key, found.value)
                Config(state_dir=".", **({key: value} if key != "state_dir" else {}))
                options[key] = value
        options.setdefault("state_dir", default_state_dir())
        # The daemon is our own program, so it may be a subreaper.
        options.setdefault("subreaper", True)
        try:
            options["state_dir"] = expanded(Path(options["state_dir"]), "the path of state_dir")
            config = Config(**options)
            plugins_of(config)
        except CountermandError as error:
            # An error of the combination; it is reported only if each key alone is valid.
            if not self._problems:
                self._problems.append(error)
            return None
        return config

    def _loaded(self, key: str, value: Any) -> Any:
        return [plug_in_tool(spelled) for spelled in value] if key == "tools" else value

    def _table(self, table: str, kind: type[Struct]) -> Struct:
        prefix = f"{table}."
        values = {
            key.removeprefix(prefix): found.value for key, found in self._values.items() if key.startswith(prefix)
        }
        made = kind(**values)
        if isinstance(made, HttpSettings) and made.listen:
            with self._noting(self._values["http.listen"].source):
                _ = made.address
        return made

    def _check_paths(self, settings: DaemonSettings) -> None:
        try:
            path, _ = settings.socket, settings.token_file
        except CountermandError as error:
            self._problems.append(error)
            return
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            self._problems.append(
                Invalid(
                    f"the path of the socket is too long: {path}",
                    expected=f"at most {SOCKET_PATH_MAX} bytes",
                    got=f"{len(os.fsencode(path))} bytes",
                    remedy="name a shorter one with http.socket",
                )
            )

    @contextmanager
    def _noting(self, source: str) -> Iterator[None]:
        """Record a refusal as a problem of its source, and go on."""
        try:
            yield
        except CountermandError as error:
            text = f"{source}: {error.message}"
            self._problems.append(Invalid(text, expected=error.expected, got=error.got, remedy=error.remedy))


def _defaults(config: Config, http: HttpSettings, log: LogSettings) -> dict[str, Found]:
    values: dict[str, object] = {}
    for key in KEYS:
        table, _, name = key.rpartition(".")
        values[key] = getattr({"": config, "http": http, "log": log}[table], name)
    values.update(
        state_dir=str(config.state_dir), agents={}, mcp={}, tools=[], http_hosts=[], layers=sorted(config.layers)
    )
    return {key: Found(value, "default") for key, value in values.items()}


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys with their dotted names. An unknown table is one value."""
    for key, value in content.items():
        if key in TABLES and isinstance(value, dict):
            for name, inner in value.items():
                yield f"{key}.{name}", inner
        else:
            yield key, value


def _unknown(key: str, source: str) -> Invalid:
    table, _, name = key.rpartition(".")
    siblings = [known for known in KEYS if known.rpartition(".")[0] == table]
    # A key in the wrong table is more likely than a misspelt one.
    near = [known for known in KEYS if known.rpartition(".")[2] == name]
    near = near or difflib.get_close_matches(key, [*KEYS, *TABLES], n=1)
    return Invalid(
        f"{source}: there is no configuration key {key!r}",
        expected=" | ".join(siblings or [*KEYS]),
        got=key,
        remedy=f"did you mean {near[0]!r}?" if near else "remove it",
    )


def _from_text(text: str, kind: Any) -> object:
    """Parse a value of the environment or the command line as TOML; if it is not TOML, return the text."""
    if kind is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _allowed(kind: Any) -> str:
    """Return what a type allows, in words."""
    words = {
        str: "a text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Agents: "a table of names, each module:name or a table of keys",
        Servers: "a table of names, each a table of keys",
        list[str]: "a list of texts",
        type(None): "",
    }
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return " | ".join(f"'{word}'" for word in kind)
    if kind in words:
        return words[kind]
    parts = [words.get(part, str(part)) for part in typing.get_args(kind)]
    return ", or ".join(part for part in parts if part) or str(kind)


def as_toml(found: Mapping[str, Found], keys: Iterable[str] = KEYS) -> str:
    """Return the settings as TOML, each with its source; a key that is not set is a comment."""
    lines: list[str] = []
    table = ""
    for key in keys:
        group, _, name = key.rpartition(".")
        if group != table:
            lines.append(f"\n[{group}]")
            table = group
        value, source = found[key].value, found[key].source
        line = f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"
        lines.append(f"{line}  # {one_line(source)}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(name))} = {_toml(inner)}" for name, inner in value.items()) + "}"
    # The rest are numbers, booleans, texts and lists of texts, which JSON writes as TOML does.
    return msgspec.json.encode(value).decode()


__all__ = [
    "KEYS",
    "RELOADED",
    "DaemonSettings",
    "HttpSettings",
    "LogSettings",
    "Source",
    "WrongSettings",
    "as_toml",
]
