"""Agent: the settings of an agent that runs in processes of its own.

In a library it is a value of `Config(agents={name: Agent(run=…)})`, in the daemon's settings the table
``[agents.NAME]`` with the same keys.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from actors.errors import Invalid
from actors.plugin.registration import duration
from actors.text import shown
from actors.usage import Budget
from supervisor.config import LIMITS, absolute, is_limits, is_number
from supervisor.mcp_server import SETTINGS as MCP
from supervisor.mcp_server import McpServer
from supervisor.presets import COMMAND, MODEL, PRESETS, Preset
from supervisor.variables import is_environment, is_text, is_texts, is_url, names_of, read_variables, shown_url

RUNTIME: Final = Path(__file__).parent / "hosts" / "countermand_host.py"
"""The host of a Python agent: run by the agent's own interpreter."""

SPARES_MAX: Final = 64
TIMES: Final = {"keep_idle_s": 0.0, "start_s": 0.001, "grace_s": 0.0, "run_deadline_s": 0.001}
"""The keys that are seconds, and the least of each."""

RESERVED: Final = {
    "COUNTERMAND_CHANNEL": "it is the number of the host's socket",
    "COUNTERMAND_FENCE": "it marks the processes of a run",
    "COUNTERMAND_PATH": "it has the directories of the key 'path'",
    COMMAND: "it has the program of the key 'preset'",
    MODEL: "it has the keys of a model",
    MCP: "it has the servers of the key 'mcp'",
}
"""Variables of a host that the daemon sets."""

MODEL_KEYS: Final = ("model", "base_url", "key_file", "instructions", "options")
"""The keys of a preset that is a model."""
OPTIONS_OWN: Final = frozenset({"input", "messages", "model", "stream", "tools"})
"""Parameters of a request that the agent itself sets."""
OPTIONS_MAX_BYTES: Final = 65_536
VARIABLE_MAX_BYTES: Final = 131_071
"""How long a variable may be with its name, for Linux."""

_SPELLED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent that runs in *hosts*: processes of its own, which end with their run. Times in seconds.

    One of `run`, `command` and `preset` is given, or `preset` with a `command` of its own. Paths may begin with ``~``;
    a relative one is meant from the directory in which the supervisor was started.

    Args:
        run: a Python function of a turn, ``module:function``.
        command: a program in any language, as for exec, which speaks the protocol of hosts (docs/host-protocol.md).
            With `preset`: the program that is meant, with its arguments.
        preset: a program of other people's, by name: ``claude-code``, ``codex``, ``gemini``, ``opencode``, or ``acp``:
            any that speaks the Agent Client Protocol, which `command` names. Or a model: ``openai``,
            ``openai-responses`` or ``anthropic``, which is asked through the vendor's SDK, which `python` has to have.
        model: the name of the model, as its provider has it.
        base_url: where it is; None: where the SDK says, or the variable of that SDK (``OPENAI_BASE_URL``).
        key_file: a file with the key and nothing else, which the host reads: so it has to be readable by `user`. None:
            the variable of the SDK (``OPENAI_API_KEY``) in `env_files`. With `base_url` there need be none.
        instructions: what the model is told before the thread.
        options: further parameters of each request, under the names of the SDK.
        python: the interpreter of `run`, such as that of a virtual environment (3.9 or later); None: the supervisor's.
        path: directories where Python finds the modules of `run` first.
        cwd: the working directory; None: that in which the supervisor was started.
        user: the name or uid of the user it runs as, which needs a supervisor that may change users; None: the
            supervisor's.
        env: added to its environment, which has only PATH, HOME and the like of the supervisor's.
        env_files: files of lines ``NAME=value``, read whenever the agent is loaded: for secrets. `env` overrides them.
        tools: the tools it may call: names of the supervisor's tools, and ``module:function`` for functions of the
            agent's own, which run in its host. None: all of the supervisor's.
        ask: the tools that need a person's approval, by name: the supervisor's, the agent's own, and what it gates.
        mcp: the MCP servers that it uses, by their names in `Config.mcp`. A preset that is a model gets their tools;
            other code asks for them with ``countermand.adapters.mcp``. `python` has to have the SDK ``mcp``. A preset
            that is a program is handed the servers, and starts them itself: they have no `allow`, `deny` or `ask`.
        spares: how many hosts are kept ready. 0: every run starts one, and waits for it.
        keep: ``session``: after a run that has ended by itself the host stays, for the session's next run. None:
            ``session`` with a program's preset or with `mcp`, else ``run``. It is one of the two afterwards.
        keep_idle_s: after so long without a run such a host is ended.
        overlap: False: a run begins only when all earlier runs of its session are proven to have ended. None: False
            with a program's preset, since its runs share a session of the program's, and with `mcp`, since a server
            would start beside itself, else True. It is one of the two afterwards.
        grace_s: how long a host has to end by itself after a cancel; None: as configured for all.
        start_s: how long a host has to become ready for its first run.
        run_deadline_s, max_tokens, max_calls: the budget of each of its runs, as in `Config`; None: as configured for
            all.
        limits: as in `Config`; they override those configured for all.
        name: its key in `Config.agents`, set by the supervisor.
        servers: those of `mcp`, set by the supervisor.

    Raises:
        Invalid: a value is invalid, or two conflict; the error names the key and the allowed values.
    """

    run: str | None = None
    command: Sequence[str] | None = None
    preset: str | None = None
    model: str | None = None
    base_url: str | None = None
    key_file: str | None = None
    instructions: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    path: Sequence[str] = ()
    cwd: str | None = None
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_files: Sequence[str] = ()
    tools: Sequence[str] | None = None
    ask: Sequence[str] = ()
    mcp: Sequence[str] = ()
    spares: int = 1
    keep: Literal["run", "session"] | None = None
    keep_idle_s: float = 600.0
    overlap: bool | None = None
    grace_s: float | None = None
    start_s: float = 60.0
    run_deadline_s: float | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    servers: Mapping[str, McpServer] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, Callable[[object], bool], str], ...] = (
            (
                "run",
                lambda value: value is None or is_spelled(value),
                "module:function, a function that can be imported",
            ),
            (
                "command",
                lambda value: value is None or (is_texts(value) and bool(value)),
                "a program and its arguments",
            ),
            ("preset", lambda value: value is None or value in PRESETS, " | ".join(sorted(PRESETS))),
            ("model", _is_text_or_none, "the name of a model, as its provider has it"),
            ("base_url", _is_url_or_none, "the address of a provider, http:// or https://, without a user or a key"),
            ("key_file", _is_text_or_none, "the path of a file"),
            ("instructions", _is_text_or_none, "a text"),
            (
                "options",
                _is_options,
                f"parameters of a request, as JSON of at most {OPTIONS_MAX_BYTES} bytes, without "
                + ", ".join(sorted(OPTIONS_OWN)),
            ),
            ("python", _is_text_or_none, "the path of an interpreter"),
            ("path", lambda value: is_texts(value) and not _has_separator(value), "a list of directories"),
            ("cwd", _is_text_or_none, "the path of a directory"),
            ("user", _is_text_or_none, "the name or the uid of a user"),
            ("env", is_environment, "names of variables, each with its text"),
            ("env_files", is_texts, "a list of paths"),
            (
                "tools",
                lambda value: value is None or _is_tools(value),
                "a list of names of tools, or of module:function",
            ),
            ("ask", is_texts, "a list of names of tools"),
            ("mcp", is_texts, "a list of names of MCP servers"),
            ("spares", _is_spares, f"a whole number from 0 to {SPARES_MAX}"),
            ("keep", lambda value: value in (None, "run", "session"), "'run' or 'session'"),
            ("overlap", lambda value: value is None or isinstance(value, bool), "true or false"),
            ("max_tokens", lambda value: value is None or is_number(value, 1), "a whole number, at least 1"),
            ("max_calls", lambda value: value is None or is_number(value, 1), "a whole number, at least 1"),
            ("limits", is_limits, f"a mapping of {' | '.join(sorted(LIMITS))} to whole numbers, at least 0"),
        )
        for key, fits, expected in checks:
            if not fits(getattr(self, key)):
                raise self._invalid(key, expected, getattr(self, key))
        for key, least in TIMES.items():
            if getattr(self, key) is not None:
                seconds = duration(f"the key {self._key(key)!r}", getattr(self, key), least=least)
                object.__setattr__(self, key, seconds)
        self._check_together()
        self._settle()

    def _check_together(self) -> None:
        if not self._is_model:
            self._check_unused("a preset that is a model", {key: getattr(self, key) for key in MODEL_KEYS})
        if self._is_model:
            self._check_model()
        elif self.preset is not None:
            self._check_program(self.preset)
        elif (self.run is None) == (self.command is None):
            raise Invalid(
                f"it is not clear what {self._called()} runs",
                expected="one of 'run' (module:function), 'command' (a program and its arguments) and 'preset' "
                f"({' | '.join(sorted(PRESETS))})",
                got="none of them" if self.run is None else "both 'run' and 'command'",
                remedy="give one of them",
            )
        for name in self.env:
            if name in RESERVED:
                raise self._invalid("env", f"variables other than {name}: {RESERVED[name]}", name)
        if self.run is None and not self._is_model:
            own = [one for one in self.tools or () if ":" in one]
            unused = {"python": self.python, "path": self.path, "tools": own}
            self._check_unused("an agent in Python", unused if self.is_program else {**unused, "mcp": self.mcp})

    def _check_model(self) -> None:
        self._check_unused("an agent without such a preset", {"run": self.run, "command": self.command})
        if self.model is None:
            raise Invalid(
                f"it is not clear what model {self._called()} is",
                expected="'model' beside the preset",
                got=f"preset = {self.preset!r} alone",
                remedy='give it: model = "…", as its provider has it',
            )

    def _check_program(self, preset: str) -> None:
        self._check_unused("an agent without a preset", {"run": self.run, "tools": self.tools, "ask": self.ask})
        if not PRESETS[preset].command and self.command is None:
            raise Invalid(
                f"it is not clear what program {self._called()} is",
                expected="'command' (a program and its arguments) beside the preset",
                got=f"preset = {preset!r} alone",
                remedy='give it: command = ["my-agent", "--acp"]',
            )

    def _check_unused(self, whose: str, values: Mapping[str, object]) -> None:
        for key, value in values.items():
            if key in MODEL_KEYS:
                expected = f"one of the presets {', '.join(sorted(n for n, one in PRESETS.items() if one.is_model))}"
            elif self._is_model:
                expected = "no such key: the preset has the code"
            elif self.preset is not None:
                expected = "no such key: the program has tools, and rules for them, of its own"
            else:
                expected = "'run' instead of 'command', or no such key"
            if value:
                raise Invalid(
                    f"the key {self._key(key)!r} is for {whose}",
                    expected=expected + (", or names of tools without a ':'" if key == "tools" else ""),
                    got=names_of(value) if key == "options" else shown(value),
                    remedy=f"leave {key} out"
                    if key in MODEL_KEYS or self._is_model
                    else f"say it in the command, and leave {key} out",
                )

    def _settle(self) -> None:
        """Copy mutable values, and make the paths absolute."""
        fixed = {
            "command": None if self.command is None else tuple(self.command),
            "keep": self.keep or ("session" if self.is_program or self.mcp else "run"),
            "overlap": not (self.is_program or self.mcp) if self.overlap is None else self.overlap,
            "key_file": None if self.key_file is None else str(absolute(Path(self.key_file))),
            "options": copy.deepcopy(dict(self.options)),
            "python": None if self.python is None else _program(self.python),
            "path": tuple(str(absolute(Path(one))) for one in self.path),
            "cwd": None if self.cwd is None else str(absolute(Path(self.cwd))),
            "env": dict(self.env),
            "env_files": tuple(str(absolute(Path(one))) for one in self.env_files),
            "tools": None if self.tools is None else tuple(self.tools),
            "ask": tuple(self.ask),
            "mcp": tuple(self.mcp),
            "limits": dict(self.limits),
        }
        for key, value in fixed.items():
            object.__setattr__(self, key, value)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command of its hosts, as for exec."""
        preset = self._preset
        if self.run is None and preset is None:
            return tuple(self.command or ())
        run = self.run if preset is None else preset.run
        own = [word for tool in self.tools or () if ":" in tool for word in ("--tool", tool)]
        return (self.python or sys.executable, str(RUNTIME), str(run), *own)

    @property
    def spelled(self) -> str:
        """Its function, command, program or model, in one line for people."""
        if self._is_model:
            return f"{self.preset}: {self.model}" + (f" at {self.base_url}" if self.base_url else "")
        if self.preset is not None:
            return f"{self.preset}: {' '.join(self._program)}"
        return self.run if self.run is not None else " ".join(self.command or ())

    @property
    def _preset(self) -> Preset | None:
        return None if self.preset is None else PRESETS[self.preset]

    @property
    def _is_model(self) -> bool:
        return self._preset is not None and self._preset.is_model

    @property
    def is_program(self) -> bool:
        """True if it is a program of other people's."""
        return self._preset is not None and not self._preset.is_model

    @property
    def _program(self) -> tuple[str, ...]:
        preset = self._preset
        return tuple(self.command or ()) or (() if preset is None else preset.command or ())

    @property
    def granted(self) -> tuple[str, ...] | None:
        """The names of the supervisor's tools that it may call; None: all of them."""
        return None if self.tools is None else tuple(one for one in self.tools if ":" not in one)

    @property
    def budget(self) -> Budget:
        """How much a run of it may use; what is None is as configured for all."""
        return Budget(self.max_tokens, self.max_calls, self.run_deadline_s)

    def environment(self) -> dict[str, str]:
        """Return the variables added to the environment of its hosts. It reads files: for a thread that may block.

        Raises:
            Invalid: one of `env_files`, its own or those of its servers, cannot be read, or has an invalid line; or a
                variable is too long for a process. The error shows no content of it.
        """
        found: dict[str, str] = {}
        inherited = os.environ.get("PYTHONPATH")
        if (self.run is not None or self._is_model) and self.python is None and inherited:
            # The same interpreter finds the same modules.
            found["PYTHONPATH"] = inherited
        for file in self.env_files:
            found.update(read_variables(file, self._key("env_files"), RESERVED))
        found.update(self.env)
        if self._is_model:
            given = {key: getattr(self, key) for key in MODEL_KEYS}
            found[MODEL] = json.dumps({key: value for key, value in given.items() if value})
        elif self.preset is not None:
            found[COMMAND] = json.dumps(self._program)
        if self.servers:
            found[MCP] = json.dumps({name: server.settings() for name, server in self.servers.items()})
        if self.path:
            found["COUNTERMAND_PATH"] = os.pathsep.join(self.path)
        self._check_fits(found)
        return found

    def _check_fits(self, environment: Mapping[str, str]) -> None:
        for name, value in environment.items():
            size = len(f"{name}={value}".encode(errors="replace"))
            if size > VARIABLE_MAX_BYTES:
                kept = RESERVED.get(name, "it is one of env, or of a file of env_files")
                raise Invalid(
                    f"the variable {name} of {self._called()} is too long for a process ({kept})",
                    expected=f"at most {VARIABLE_MAX_BYTES} bytes with its name",
                    got=f"{size} bytes",
                    remedy="make it shorter, then: countermand agents reload",
                )

    def _invalid(self, key: str, expected: str, got: object) -> Invalid:
        return Invalid(
            f"the key {self._key(key)!r} has an invalid value",
            expected=expected,
            got={"env": names_of, "options": names_of, "base_url": shown_url}.get(key, shown)(got),
            remedy=f"change {key}, or leave it out for its default",
        )

    def _key(self, key: str) -> str:
        return f"agents.{self.name}.{key}" if self.name else key

    def _called(self) -> str:
        return f"the agent {self.name!r}" if self.name else "an agent"


def is_spelled(value: object) -> bool:
    """Return True if `value` can be the spelling of a function, ``module:function``."""
    return isinstance(value, str) and _SPELLED.fullmatch(value) is not None


def _program(command: str) -> str:
    """Make a path absolute; a name without a slash is looked up in PATH when it is started."""
    return str(absolute(Path(command))) if "/" in command else command


def _is_text_or_none(value: object) -> bool:
    return value is None or is_text(value)


def _has_separator(value: object) -> bool:
    return isinstance(value, Sequence) and any(os.pathsep in one for one in value)


def _is_url_or_none(value: object) -> bool:
    return value is None or is_url(value)


def _is_options(value: object) -> bool:
    if not isinstance(value, Mapping) or OPTIONS_OWN & value.keys():
        return False
    try:
        return len(json.dumps(dict(value), allow_nan=False)) <= OPTIONS_MAX_BYTES
    except (TypeError, ValueError, RecursionError):
        return False


def _is_tools(value: object) -> bool:
    return isinstance(value, Sequence) and is_texts(value) and all(":" not in one or is_spelled(one) for one in value)


def _is_spares(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SPARES_MAX
