"""McpServer: the settings of an MCP server, whose tools agents get by its name.

In a library it is a value of `Config(mcp={name: McpServer(…)})`, in the daemon's settings the table ``[mcp.NAME]`` with
the same keys. An agent that names it (`Agent(mcp=[name])`) uses it in its host, which is where the client is, and where
a server on stdio runs: so the host contains it, and a session that keeps the host keeps the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from actors.errors import Invalid
from actors.plugin.registration import duration
from actors.text import shown
from supervisor.config import absolute
from supervisor.variables import is_environment, is_text, is_texts, is_url, names_of, read_variables, shown_url

SETTINGS: Final = "COUNTERMAND_MCP"
"""The variable of a host with its servers, as an object in JSON: the keys of each, by its name."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
"""The name of a server begins those of its tools, of which providers take 64 such characters."""
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_COMMAND: Final = ("args", "env", "cwd")
"""The keys of a server on stdio alone."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """An MCP server: a program on stdio, or a URL (streamable HTTP).

    Args:
        command: the program. Relative paths are meant from the directory in which the supervisor was started.
        args: its arguments.
        env: its variables, besides HOME, LOGNAME, PATH, SHELL, TERM and USER of the host.
        cwd: its working directory; None: that of the host.
        url: the address of the server, instead of `command`.
        headers: sent with each request to it. ``${NAME}`` in one stands for a variable of `env_files`.
        env_files: files of lines ``NAME=value``, read whenever an agent with this server is loaded: for secrets. They
            are variables of the program, or for `headers`. `env` overrides them.
        allow: its tools that are offered, by the server's names; None: all.
        deny: those that are not.
        ask: those that need a person's approval, each time.
        grace_s: how long it has to answer something after a call was given up, in seconds; else it is ended. After a
            Stop it has half of that to end by itself, before SIGTERM; the grace of the run ends it in any case.
        name: its key in `Config.mcp`, for errors.

    Raises:
        Invalid: a value is invalid, or two conflict; the error names the key and the allowed values.
    """

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_files: Sequence[str] = ()
    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    grace_s: float = 2.0
    name: str = ""

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, Callable[[object], bool], str], ...] = (
            ("command", lambda value: value is None or is_text(value), "the name or the path of a program"),
            ("args", _is_arguments, "a list of texts"),
            ("env", is_environment, "names of variables, each with its text"),
            ("cwd", lambda value: value is None or is_text(value), "the path of a directory"),
            ("url", lambda value: value is None or is_url(value), "http:// or https://, without a user or a key"),
            ("headers", _is_headers, "names of headers, each with its text"),
            ("env_files", is_texts, "a list of paths"),
            ("allow", lambda value: value is None or is_texts(value), "a list of names of its tools"),
            ("deny", is_texts, "a list of names of its tools"),
            ("ask", is_texts, "a list of names of its tools"),
        )
        for key, fits, expected in checks:
            if not fits(getattr(self, key)):
                raise self._invalid(key, expected, getattr(self, key))
        object.__setattr__(self, "grace_s", duration(f"the key {self._key('grace_s')!r}", self.grace_s, least=0.0))
        self._check_together()
        fixed = {
            "command": self.command if self.command is None or "/" not in self.command else _absolute(self.command),
            "args": tuple(self.args),
            "env": dict(self.env),
            "cwd": None if self.cwd is None else _absolute(self.cwd),
            "headers": dict(self.headers),
            "env_files": tuple(map(_absolute, self.env_files)),
            "allow": None if self.allow is None else tuple(self.allow),
            "deny": tuple(self.deny),
            "ask": tuple(self.ask),
        }
        for key, value in fixed.items():
            object.__setattr__(self, key, value)

    def _check_together(self) -> None:
        if (self.command is None) == (self.url is None):
            raise Invalid(
                f"it is not clear what {f'the MCP server {self.name!r}' if self.name else 'an MCP server'} is",
                expected="one of 'command' (a program on stdio) and 'url' (streamable HTTP)",
                got="neither" if self.url is None else "both",
                remedy="give one of the two",
            )
        for key in _OF_COMMAND if self.url is not None else ("headers",):
            if getattr(self, key):
                raise self._invalid(
                    key,
                    f"no such key beside {'url' if self.url is not None else 'command'}",
                    getattr(self, key),
                )
        if self.name and NAME.fullmatch(self.name) is None:
            raise Invalid(
                "invalid name of an MCP server",
                expected="1 to 32 of the characters a-z A-Z 0-9 _ -, since it begins the names of its tools",
                got=shown(self.name),
                remedy="rename the table: [mcp.NAME]",
            )

    @property
    def rules(self) -> list[str]:
        """The keys that it has of those with rules for its tools."""
        given = {"allow": self.allow is not None, "deny": bool(self.deny), "ask": bool(self.ask)}
        return [key for key, is_given in given.items() if is_given]

    @property
    def spelled(self) -> str:
        """Its program and arguments, or its address, in one line for people. It has no variable and no header."""
        return self.url if self.url is not None else " ".join((str(self.command), *self.args))

    def settings(self) -> dict[str, Any]:
        """Return what a host has to know of it, as JSON. It reads files: for a thread that may block.

        Raises:
            Invalid: one of `env_files` cannot be read, or has an invalid line, or a header names a variable that is in
                none of them. The error shows no content of a file.
        """
        read: dict[str, str] = {}
        for file in self.env_files:
            read.update(read_variables(file, self._key("env_files"), frozenset()))
        known: dict[str, Any]
        if self.url is not None:
            headers = {name: self._filled(text, read) for name, text in self.headers.items()}
            known = {"url": self.url, "headers": headers}
        else:
            known = {"command": self.command, "args": self.args, "env": {**read, **self.env}, "cwd": self.cwd}
        rules = {"allow": self.allow, "deny": self.deny, "ask": self.ask, "grace_s": self.grace_s}
        return {**known, **rules}

    def _filled(self, text: str, variables: Mapping[str, str]) -> str:
        missing = [name for name in _VARIABLE.findall(text) if name not in variables]
        if missing:
            raise Invalid(
                f"the key {self._key('headers')!r} names a variable that is not there",
                expected="variables of the files of env_files",
                got=missing[0],
                remedy="add it to one of them, then: countermand agents reload",
            )
        return _VARIABLE.sub(lambda found: variables[found[1]], text)

    def _invalid(self, key: str, expected: str, got: object) -> Invalid:
        return Invalid(
            f"the key {self._key(key)!r} has an invalid value",
            expected=expected,
            got={"env": names_of, "headers": names_of, "url": shown_url}.get(key, shown)(got),
            remedy=f"change {key}, or leave it out",
        )

    def _key(self, key: str) -> str:
        return f"mcp.{self.name}.{key}" if self.name else key


def _absolute(path: str) -> str:
    return str(absolute(Path(path)))


def _is_arguments(value: object) -> bool:
    """Return True if `value` can be the arguments of a program: one may be empty."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(one, str) and "\0" not in one for one in value)
    )


def _is_headers(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _HEADER.fullmatch(name) and isinstance(text, str) and text.isprintable()
        for name, text in value.items()
    )
