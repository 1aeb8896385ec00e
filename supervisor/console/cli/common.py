"""Common: the values of the options that all commands share.

All but `--json` may stand before the command or after it; the one after it wins.
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
    """The values of the common options; None or False if an option is not given."""

    state_dir: str | None = None
    agent: str | None = None
    socket: str | None = None
    verbose: bool = False
    as_json: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Common:
        """Pick the common options from all options of a command."""
        return cls(**{key: values[key] for key in cls._fields if key in values})

    def over(self, before: Common) -> Common:
        """Merge these options, given after the command, with those before it; these win."""
        given = {key: value for key, value in self._asdict().items() if value is not None and value is not False}
        return before._replace(**given)

    def endpoint(self) -> Endpoint:
        """Return where to look for a daemon.

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
        """Return where to read the daemon's configuration; these options win over all other sources."""
        from supervisor.daemon.settings import Source

        given = {"state_dir": self.state_dir, "agent": self.agent}
        own = [f"{key}={value}" for key, value in given.items() if value is not None]
        if self.verbose:
            own.append("log.level=debug")
        return Source(Path(config) if config is not None else None, None, (*assignments, *own))

    def log(self) -> None:
        """Send the log to standard error; standard output is for the output of the command."""
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
        # An empty format adds nothing to a traceback.
        logger.add(write, level="DEBUG" if self.verbose else "WARNING", format="", backtrace=False, diagnose=False)


def _path(option: str, chosen: str | None, what: str) -> Path | None:
    if chosen is not None and not chosen.strip():
        from actors.errors import Invalid

        raise Invalid(f"{option} is empty", expected="a path", got="''", remedy=f"name {what}, or leave it out")
    return Path(chosen) if chosen is not None else None
