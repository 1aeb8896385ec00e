"""Presets: programs of other people's that an agent can be, by name; what speaks with them is the host's."""

from __future__ import annotations

from typing import Final, NamedTuple


class Preset(NamedTuple):
    """One preset.

    run: the function that speaks with the program, ``module:function`` of the runtime of hosts.
    command: the program, as for exec, unless the agent has a command; empty: the agent must have one.
    """

    run: str
    command: tuple[str, ...]


ACP: Final = "countermand.programs.acp:answer"

PRESETS: Final = {
    "acp": Preset(ACP, ()),
    "claude-code": Preset("countermand.programs.claude_code:answer", ("claude",)),
    "codex": Preset("countermand.programs.codex:answer", ("codex", "app-server")),
    "gemini": Preset(ACP, ("gemini", "--acp")),
    "opencode": Preset(ACP, ("opencode", "acp")),
}

COMMAND: Final = "COUNTERMAND_PROGRAM"
"""The variable of a host with the command of its program, as a list in JSON."""
