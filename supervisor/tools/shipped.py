"""Which of the tools that ship a configuration has: `shell` always, the others where it says what they may touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.plugin.registration import Tool
from supervisor.tools.shell import shell


def shipped(files_root: str | None, http_hosts: Sequence[str]) -> Iterator[Tool]:
    """Yield the tools that ship.

    Args:
        files_root: the absolute path of the directory that the file tools may not leave; None: there are none.
        http_hosts: the hosts that `http_get` may ask; empty: there is no such tool.
    """
    yield Tool(shell)
    if files_root is not None:
        from supervisor.tools.files import Files
        from supervisor.tools.grep import Grep

        yield from Files(files_root).tools()
        yield from Grep(files_root).tools()
    if http_hosts:
        from supervisor.tools.http_get import HttpGet

        yield from HttpGet(http_hosts).tools()
