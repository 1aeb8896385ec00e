"""Presets: the programs and models that an agent can be by name. What speaks with them is in the runtime of hosts."""

from __future__ import annotations

from typing import Final, NamedTuple


class Preset(NamedTuple):
    """One preset.

    run: the function that speaks with the program or the model, ``module:function`` of the runtime of hosts.
    command: the program, as for exec, unless the agent has a command; empty: the agent must have one. None: it is a
        model.
    """

    run: str
    command: tuple[str, ...] | None

    @property
    def is_model(self) -> bool:
        """True if it is a model, which the agent names."""
        return self.command is None


ACP: Final = "countermand.programs.acp:answer"

PRESETS: Final = {
    "acp": Preset(ACP, ()),
    "anthropic": Preset("countermand.models.messages:answer", None),
    "claude-code": Preset("countermand.programs.claude_code:answer", ("claude",)),
    "codex": Preset("countermand.programs.codex:answer", ("codex", "app-server")),
    "gemini": Preset(ACP, ("gemini", "--acp")),
    "openai": Preset("countermand.models.chat:answer", None),
    "openai-responses": Preset("countermand.models.responses:answer", None),
    "opencode": Preset(ACP, ("opencode", "acp")),
}

COMMAND: Final = "COUNTERMAND_PROGRAM"
"""The variable of a host with the command of its program, as a list in JSON."""

MODEL: Final = "COUNTERMAND_MODEL"
"""The variable of a host with its model, as an object in JSON. Its key is not in it."""
