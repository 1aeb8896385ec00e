"""The configuration: what a supervisor is started with, checked where it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from actors.errors import Invalid
from actors.plugins import Tool
from actors.ports import Settings

Agent = Callable[..., Any]


def default_state_dir() -> Path:
    """``COUNTERMAND_STATE_DIR``, else ``countermand`` in the XDG state directory."""
    chosen = os.environ.get("COUNTERMAND_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "countermand"


class Config(Struct, frozen=True, kw_only=True):
    """How a supervisor works. Times in seconds, sizes in bytes.

    Args:
        state_dir: where the store, the lock and the ledgers are; one supervisor at a time.
        agent: the name of the agent that runs messages.
        agents: more agents, by name: plain or async functions of a turn.
        tools: more tools: functions marked by `actors.tool`, or `actors.Tool`s.
        grace_s: between asking a process to end and killing it.
        kill_s: after the grace, until what is left is named abandoned.
        drain_s: how long the supervisor lets runs end by themselves when it is closed.
        run_deadline_s: after which a run expires; None: never.
        call_deadline_s: after which a call is closed; None: never.
        queue_max: messages that may wait in a session.
        message_max_bytes: the size of a message, in UTF-8.
        barrier: what permits do when something of an earlier run could not be ended: ``forced`` lets them go on,
            with an event; ``strict`` refuses them.

    Raises:
        Invalid: a value cannot be right; the error names the key and what is allowed.
    """

    state_dir: str | Path = field(default_factory=default_state_dir)
    agent: str = "shell"
    agents: Mapping[str, Agent] = field(default_factory=dict)
    tools: Sequence[Tool | Agent] = ()
    grace_s: float = 2.0
    kill_s: float = 5.0
    drain_s: float = 10.0
    run_deadline_s: float | None = None
    call_deadline_s: float | None = None
    queue_max: int = 1000
    message_max_bytes: int = 1_048_576
    barrier: Literal["forced", "strict"] = "forced"

    def __post_init__(self) -> None:
        if not str(self.state_dir).strip():
            raise _invalid("state_dir", "a path", self.state_dir)
        if not self.agent:
            raise _invalid("agent", "the name of an agent", self.agent)
        for key in ("grace_s", "kill_s", "drain_s"):
            _check_number(key, getattr(self, key), least=0.0)
        for key in ("run_deadline_s", "call_deadline_s"):
            value = getattr(self, key)
            if value is not None:
                _check_number(key, value, least=0.001)
        for key in ("queue_max", "message_max_bytes"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _invalid(key, "a whole number, at least 1", value)
        if self.barrier not in ("forced", "strict"):
            raise _invalid("barrier", "'forced' or 'strict'", self.barrier)

    @property
    def settings(self) -> Settings:
        """The part of it that the actors work by."""
        return Settings(
            agent=self.agent,
            grace_s=self.grace_s,
            kill_s=self.kill_s,
            run_deadline_s=self.run_deadline_s,
            call_deadline_s=self.call_deadline_s,
            queue_max=self.queue_max,
            message_max_bytes=self.message_max_bytes,
            barrier=self.barrier,
        )


def _check_number(key: str, value: object, least: float) -> None:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not math.isfinite(float(value)) or float(value) < least:  # type: ignore[arg-type]  # a number here
        raise _invalid(key, f"a number of seconds, at least {least:g}", value)


def _invalid(key: str, expected: str, got: object) -> Invalid:
    return Invalid(
        f"the configuration key {key!r} has a value that cannot be right",
        expected=expected,
        got=repr(got),
        remedy=f"change {key}, or leave it out for its default",
    )
