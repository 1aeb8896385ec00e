"""The configuration of a supervisor, checked when it is constructed."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from actors.errors import Invalid
from actors.model import Barrier
from actors.plugin.registration import Tool, Unloaded, duration
from actors.ports import Settings
from actors.text import shown, storable

if TYPE_CHECKING:
    from supervisor.agent import Agent
    from supervisor.mcp_server import McpServer

AgentFunction = Callable[..., Any]
"""An agent that runs in the supervisor's own process: a plain or an async function of a turn."""

LAYERS = frozenset({"cgroup", "subreaper", "zygote", "marker"})
"""The default layers of containment. Each can be switched off, to test the others alone."""
OPTIONAL_LAYERS = frozenset({"namespace"})
"""Layers that are off by default. If one is configured and not available, the supervisor does not start."""
LIMITS = frozenset({"nofile", "nproc", "as_bytes", "cpu_s", "core_bytes", "fsize_bytes"})
"""The limits for each process that a run starts, as in setrlimit."""
_MAY_BE_ZERO: Final = ("grace_s", "kill_s", "drain_s", "spool_keep_s")
_MAY_BE_NEVER: Final = ("passivate_s", "retention_s", "run_deadline_s", "call_deadline_s")
_NUMBERS: Final = (
    "queue_max",
    "message_max_bytes",
    "attachments_max",
    "attachments_max_bytes",
    "attachments_kept_bytes",
    "children_max",
    "children_depth_max",
    "spool_max_bytes",
    "spool_total_bytes",
)
_MAY_BE_ANY: Final = ("sessions_max", "max_tokens", "max_calls")


def default_state_dir() -> Path:
    """Return ``COUNTERMAND_STATE_DIR``, else ``countermand`` in the XDG state directory."""
    chosen = os.environ.get("COUNTERMAND_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "countermand"


def expanded(path: Path, what: str = "a path") -> Path:
    """Return the path with its `~` resolved; `what` names it in an error.

    Raises:
        Invalid: it begins with the home directory of a user who does not exist.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise Invalid(
            f"{what} begins with the home of an unknown user",
            expected="~, or ~ and the name of a user",
            got=str(path),
            remedy="write the full path",
        ) from error


def absolute(path: Path) -> Path:
    """Return the absolute path, which stays valid if the working directory changes.

    Raises:
        Invalid: the path is relative, and the working directory was removed; or it begins with the home directory of a
            user who does not exist.
    """
    try:
        return expanded(path).absolute()
    except FileNotFoundError as error:
        raise Invalid(
            f"the path {path} cannot be resolved",
            expected="an absolute path, or an existing working directory",
            got="a relative path, in a working directory that was removed",
            remedy="change to another directory, or use an absolute path",
        ) from error


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a supervisor. Times in seconds (ten years at most), sizes in bytes.

    Args:
        state_dir: the directory of the store, the lock and the ledgers; one supervisor at a time.
        agent: the name of the agent that runs messages.
        agents: more agents, by name: an `Agent`, which runs in processes of its own; or a plain or an async function of
            a turn, which runs in this process.
        tools: more tools: functions marked by `actors.tool`, or `actors.Tool`s.
        mcp: MCP servers, by names that agents use (`Agent.mcp`).
        files_root: the directory that the tools `read`, `write`, `edit`, `list` and `grep` may not leave; None: there
            are no such tools.
        http_hosts: the hosts that the tool `http_get` may ask, such as ``example.org`` or ``*.example.org``; ``*`` is
            every host. Empty: there is no such tool.
        grace_s: time between asking a process to end and killing it.
        kill_s: time after the grace until survivors are named abandoned.
        drain_s: time that runs get to end by themselves when the supervisor is closed.
        passivate_s: a session that was unused for this long (at most twice as long) leaves memory until it is used
            again, which clients do not notice; None: never.
        retention_s: a session in which nothing has happened for this long is deleted, unless something waits or runs
            in it; None: never.
        sessions_max: number of sessions to keep. Beyond it the longest unused are deleted, unless something waits or
            runs in them; None: all.
        run_deadline_s: time after which a run expires; None: never.
        call_deadline_s: time after which a call is closed; None: never.
        max_tokens: tokens of input and output that a run may use, as its agent counts them; one that uses more expires.
            None: any number.
        max_calls: calls that a run may start; one that asks for more expires. None: any number.
        children_max: limit on the open child runs of a run: those of other agents, to which its agent has delegated.
        children_depth_max: how deep child runs may stand below one another. 0: no agent may delegate.
        queue_max: limit on the waiting messages of a session.
        message_max_bytes: limit on the size of a message, in UTF-8, without its attachments.
        attachments_max: limit on the attachments of one message.
        attachments_max_bytes: limit on the size of these together.
        attachments_kept_bytes: limit on the size of all attachments of a session.
        spool_max_bytes: limit on the file with a process's output, which is kept if the result has no room for all of
            it or it is not text. 0: no files.
        spool_total_bytes: limit on all these files together; the oldest are deleted first.
        spool_keep_s: time after its last byte for which such a file is kept.
        barrier: what happens to permits if a part of an earlier run could not be ended: ``forced`` lets them go on,
            with an event; ``strict`` refuses them.
        subreaper: makes orphans below this process its children, for the rest of its life, so that the ends of
            processes that agents and tools started by themselves are seen. It affects the whole program. Without it a
            receipt of a run whose own code started a process is not complete. `countermand serve` sets it.
        limits: soft and hard limit for each process that a run starts: ``nofile`` (descriptors), ``nproc`` (processes
            of this user), ``as_bytes`` (address space), ``cpu_s`` (seconds of processor time), ``core_bytes`` and
            ``fsize_bytes`` (size of a core dump and of a file). Others are inherited.
        layers: the layers of containment in use. ``namespace``, a PID namespace for each process tree, is off by
            default. The others are switched off only in tests.

    Raises:
        Invalid: a key is unknown, or a value is invalid; the error names the key and what is allowed.
    """

    state_dir: str | Path = field(default_factory=default_state_dir, kw_only=False)
    agent: str = "shell"
    agents: Mapping[str, AgentFunction | Agent | Unloaded] = field(default_factory=dict)
    tools: Sequence[Tool | AgentFunction | Unloaded] = ()
    mcp: Mapping[str, McpServer] = field(default_factory=dict)
    files_root: str | Path | None = None
    http_hosts: Sequence[str] = ()
    grace_s: float = 2.0
    kill_s: float = 5.0
    drain_s: float = 10.0
    passivate_s: float | None = 600.0
    retention_s: float | None = None
    sessions_max: int | None = None
    run_deadline_s: float | None = None
    call_deadline_s: float | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    children_max: int = 8
    children_depth_max: int = 3
    queue_max: int = 1000
    message_max_bytes: int = 1_048_576
    attachments_max: int = 20
    attachments_max_bytes: int = 16_777_216
    attachments_kept_bytes: int = 1_073_741_824
    spool_max_bytes: int = 67_108_864
    spool_total_bytes: int = 1_073_741_824
    spool_keep_s: float = 604_800.0
    barrier: Barrier = Barrier.FORCED
    subreaper: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    layers: Collection[str] = LAYERS

    def __new__(cls, *_: Any, **options: Any) -> Config:
        """Refuse unknown keys, with an error that lists the known ones."""
        known = [one.name for one in fields(cls)]
        for key in options:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise Invalid(
                    f"there is no configuration key {key!r}",
                    expected=" | ".join(known),
                    got=key,
                    remedy=f"did you mean {near[0]!r}?" if near else "remove it",
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, Callable[[object], bool], str], ...] = (
            ("state_dir", _is_path, "a path, as a str or a Path"),
            ("agent", _is_text, "the name of an agent"),
            ("agents", _is_by_name, "a mapping of names to Agents and functions"),
            ("mcp", _is_by_name, "a mapping of names to McpServers"),
            ("limits", is_limits, f"a mapping of {' | '.join(sorted(LIMITS))} to whole numbers, at least 0"),
            ("layers", _is_layers, f"a set of {' | '.join(sorted(LAYERS | OPTIONAL_LAYERS))}"),
            ("subreaper", lambda value: isinstance(value, bool), "true or false"),
            ("tools", _is_list, "a list of functions marked by actors.tool, or of actors.Tools"),
            ("files_root", lambda value: value is None or _is_path(value), "the path of a directory, or None"),
            ("http_hosts", _is_texts, "a list of names of hosts, such as example.org or *.example.org"),
        )
        for key, fits, expected in checks:
            if not fits(getattr(self, key)):
                raise _invalid(key, expected, getattr(self, key))
        for host in self.http_hosts:
            _check_host(host)
        object.__setattr__(self, "agent", storable(self.agent))
        for key in (*_MAY_BE_ZERO, *_MAY_BE_NEVER):
            least = 0.001 if key in _MAY_BE_NEVER else 0.0
            value = getattr(self, key)
            if value is not None or least == 0.0:
                seconds = duration(f"the configuration key {key!r}", value, least=least)
                object.__setattr__(self, key, seconds)
        for key in (*_NUMBERS, *_MAY_BE_ANY):
            value = getattr(self, key)
            if key in _MAY_BE_ANY and value is None:
                continue
            smallest = 0 if key.startswith("spool_") or key == "children_depth_max" else 1
            if not is_number(value, smallest):
                raise _invalid(key, f"a whole number, at least {smallest}", value)
        if self.barrier not in tuple(Barrier):
            raise _invalid("barrier", "'forced' or 'strict'", self.barrier)
        # Its word is accepted too.
        object.__setattr__(self, "barrier", Barrier(self.barrier))

    @property
    def settings(self) -> Settings:
        """The part of the configuration that the actors use."""
        return Settings(
            agent=self.agent,
            grace_s=self.grace_s,
            kill_s=self.kill_s,
            passivate_s=self.passivate_s,
            run_deadline_s=self.run_deadline_s,
            call_deadline_s=self.call_deadline_s,
            max_tokens=self.max_tokens,
            max_calls=self.max_calls,
            children_max=self.children_max,
            children_depth_max=self.children_depth_max,
            queue_max=self.queue_max,
            message_max_bytes=self.message_max_bytes,
            attachments_max=self.attachments_max,
            attachments_max_bytes=self.attachments_max_bytes,
            attachments_kept_bytes=self.attachments_kept_bytes,
            barrier=self.barrier,
        )


def _check_host(host: str) -> None:
    if _is_host(host):
        return
    alone = None
    with contextlib.suppress(ValueError):
        alone = urlsplit(host.strip() if "//" in host else f"//{host.strip()}").hostname
    raise Invalid(
        "the configuration key 'http_hosts' has an entry that is no host",
        expected="a name or an address alone, such as example.org, *.example.org or ::1",
        got=shown(host),
        remedy=f"write {alone}; each of its ports may be asked" if alone and _is_host(alone) else "correct it",
    )


def _is_host(text: str) -> bool:
    if ":" in text:
        if any(one in "*?" for one in text):
            # Two colons at least: one stands before a port.
            return text.count(":") > 1 and all(one in "0123456789abcdefABCDEF:.*?" for one in text)
        with contextlib.suppress(ValueError):
            return bool(ipaddress.IPv6Address(text))
        return False
    return not any(one in "/@" or one.isspace() for one in text)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_path(value: object) -> bool:
    return isinstance(value, Path) or _is_text(value)


def _is_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(name) for name in value)


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_text(one) for one in value)


def is_number(value: object, least: int) -> bool:
    """Return True if `value` is a whole number from `least` on that the store can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def is_limits(value: object) -> bool:
    """Return True if `value` has limits of processes by name."""
    return isinstance(value, Mapping) and all(
        name in LIMITS and isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit < 2**63
        for name, limit in value.items()
    )


def _is_layers(value: object) -> bool:
    return (
        isinstance(value, Collection)
        and not isinstance(value, str | bytes)
        and all(isinstance(one, str) and one in LAYERS | OPTIONAL_LAYERS for one in value)
    )


def _invalid(key: str, expected: str, got: object) -> Invalid:
    return Invalid(
        f"the configuration key {key!r} has an invalid value",
        expected=expected,
        got=shown(got),
        remedy=f"change {key}, or leave it out for its default",
    )
