"""Common: what the options say that every command has.

All but `--json` may stand before the command and after it; after it wins.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from loguru import Message

    from supervisor.console.client.endpoint import Endpoint
    from supervisor.daemon.settings import Source


class Common(NamedTuple):
    """What the common options say; None and False where they are not given."""

    state_dir: str | None = None
    agent: str | None = None
    socket: str | None = None
    verbose: bool = False
    as_json: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Common:
        """Take them from among the values of a command's options."""
        return cls(**{key: values[key] for key in cls._fields if key in values})

    def over(self, before: Common) -> Common:
        """Put these options, from after the command, over those from before it."""
        given = {key: value for key, value in self._asdict().items() if value is not None and value is not False}
        return before._replace(**given)

    def endpoint(self) -> Endpoint:
        """Where a daemon is looked for.

        Raises:
            Invalid: a path is empty, names a user who does not exist, or is relative in a directory that was removed.
        """
        from supervisor.config import absolute, default_state_dir, expanded
        from supervisor.console.client.endpoint import Endpoint

        chosen = _path("--state-dir", self.state_dir, "a directory")
        named = _path("--socket", self.socket, "a socket")
        return Endpoint(
            absolute(chosen or default_state_dir()),
            expanded(named, "the path of --socket") if named is not None else None,
        )

    def source(self, config: str | None, assignments: Sequence[str]) -> Source:
        """Where the daemon's configuration is; an option of its own wins over everything else."""
        from supervisor.daemon.settings import Source

        given = {"state_dir": self.state_dir, "agent": self.agent}
        own = [f"{key}={value}" for key, value in given.items() if value is not None]
        if self.verbose:
            own.append("log.level=debug")
        return Source(Path(config) if config is not None else None, None, (*assignments, *own))

    def log(self) -> None:
        """Send the log to standard error; standard output is for the output."""
        from loguru import logger

        from actors.kernel.log_context import speak
        from actors.text import below, one_line

        def write(message: Message) -> None:
            at, level, text = message.record["time"], message.record["level"].name, message.record["message"]
            sys.stderr.write(f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {level} {one_line(text)}\n")
            trace = message.removeprefix("\n").rstrip()
            if trace:
                sys.stderr.write(f"{below(trace)}\n")

        speak()
        logger.remove()
        # The format leaves the traceback alone, where there is one.
        logger.add(write, level="DEBUG" if self.verbose else "WARNING", format="", backtrace=False, diagnose=False)


def _path(option: str, chosen: str | None, what: str) -> Path | None:
    if chosen is not None and not chosen.strip():
        from actors.errors import Invalid

        raise Invalid(f"{option} is empty", expected="a path", got="''", remedy=f"name {what}, or leave it out")
    return Path(chosen) if chosen is not None else None
