"""The `grep` tool: it searches files beneath a root with a regular expression, in a process of its own."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec

from actors.errors import Invalid
from actors.plugin.registration import Tool
from actors.plugin.spawning import AsyncSpawn
from supervisor.tools.searcher import SEARCH_MAX_CPU_S

GREP_MAX_BYTES: Final = 65_536
"""How much `grep` returns."""
_START: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from supervisor.tools.searcher import main
sys.exit(main())
"""
_PACKAGES: Final = str(Path(__file__).resolve().parents[2])

_Pattern = Annotated[str, msgspec.Meta(description="A regular expression of Python, held against each line.")]


class Grep:
    """The tool of one supervisor.

    Args:
        root: the absolute path of the directory that it may not leave.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def tools(self) -> list[Tool]:
        """Return it as a tool."""
        return [Tool(self.grep, isolation="task")]

    async def grep(
        self, pattern: _Pattern, spawn: AsyncSpawn, path: str = ".", glob: str = "*", ignore_case: bool = False
    ) -> str:
        """Search a file, or all files below a directory, line by line. Returns `path:line number:line` of each match.

        `glob` is held against the names of the files. Directories named .git and files that are no text are left out.
        """
        asked = {"root": self._root, "path": path, "pattern": pattern, "glob": glob, "ignore_case": ignore_case}
        command = [sys.executable, "-I", "-S", "-c", _START, _PACKAGES]
        given = json.dumps(asked).encode()
        process = await spawn(command, name="grep", stdin=given, stdout="pipe", stderr="pipe")
        found, cut = bytearray(), False
        while piece := await process.stdout.read(GREP_MAX_BYTES):
            found += piece
            if len(found) > GREP_MAX_BYTES:
                cut = True
                process.kill(0.0)
                break
        if cut:
            kept = found[: found.rindex(b"\n", 0, GREP_MAX_BYTES) + 1]
            return f"{kept.decode(errors='replace')}[there are more: name a path or a glob, or a narrower pattern]"
        wrong = await process.stderr.read(GREP_MAX_BYTES)
        status = (await process.wait()).status
        if status == 0:
            return found.decode(errors="replace").rstrip("\n")
        took_too_long = status in {-signal.SIGXCPU, -signal.SIGKILL}
        raise Invalid(
            "the search has failed",
            expected="a regular expression of Python, and a path below the root",
            got=f"more than {SEARCH_MAX_CPU_S} s of processor time, or than limits.cpu_s"
            if took_too_long
            else wrong.decode(errors="replace").strip() or f"exit status {status}",
            remedy="simplify the pattern, or name a path" if took_too_long else "correct it",
        )
