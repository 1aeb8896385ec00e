"""Agent tables: the agents of the settings, ``[agents.NAME]``, as the values that a library configures.

A name is written as a table of the keys of `supervisor.Agent`, or as ``module:function`` alone, which is its key `run`.
Such an agent runs in hosts. With ``in_process = true`` its function is imported here, and runs in the daemon.

All mistakes are found at once: each key is tried alone, and then all of a table together.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Final

from actors.errors import CountermandError, Invalid
from actors.plugin.registration import Unloaded
from actors.text import shown
from supervisor.agent import MODEL_KEYS, Agent, is_spelled
from supervisor.config import AgentFunction
from supervisor.daemon.plug_ins import plug_in_agent
from supervisor.presets import PRESETS

IN_PROCESS: Final = "in_process"
_SET_LATER: Final = ("name", "servers")
AGENT_KEYS: Final = (*(one.name for one in dataclasses.fields(Agent) if one.name not in _SET_LATER), IN_PROCESS)
"""The keys of a table."""

_ANY: Final = "module:function"
"""Stands for what an agent runs, while another key is tried."""


class AgentTables:
    """The agents of the settings, and the mistakes in them.

    Args:
        tables: the tables as written, by name.
        source: the source of the tables, for errors.
    """

    def __init__(self, tables: Mapping[str, str | Mapping[str, Any]], source: str) -> None:
        self.agents: dict[str, Agent | AgentFunction | Unloaded] = {}
        self.problems: list[CountermandError] = []
        self._source = source
        for name, written in tables.items():
            table = {"run": written} if isinstance(written, str) else dict(written)
            agent = self._agent(name, table)
            if agent is not None:
                self.agents[name] = agent

    def _agent(self, name: str, table: dict[str, Any]) -> Agent | AgentFunction | Unloaded | None:
        if not name.strip():
            self._add(Invalid("an agent has no name", expected="[agents.NAME]", got=shown(name), remedy="name it"))
            return None
        known = len(self.problems)
        inside = table.pop(IN_PROCESS, False)
        if not isinstance(inside, bool):
            self._wrong(name, IN_PROCESS, "true or false", inside)
        for key in list(table):
            if key not in AGENT_KEYS:
                self._unknown(name, key)
                del table[key]
            else:
                self._try(name, _beside(key, table[key]), {key: table[key]})
        if len(self.problems) > known:
            return None
        if inside:
            return self._inside(name, table)
        return self._try(name, table)

    def _inside(self, name: str, table: Mapping[str, Any]) -> AgentFunction | Unloaded | None:
        spelled = table.get("run")
        for key in table:
            if key != "run":
                self._add(
                    Invalid(
                        f"the key 'agents.{name}.{key}' is for an agent in a process of its own",
                        expected="run and in_process alone",
                        got=key,
                        remedy=f"remove {key}, or in_process",
                    )
                )
        if not is_spelled(spelled):
            self._wrong(name, "run", "module:function, a function that can be imported", spelled)
            return None
        agent: AgentFunction | Unloaded = plug_in_agent(str(spelled))
        return agent

    def _try(self, name: str, *tables: Mapping[str, Any]) -> Agent | None:
        values = {key: value for table in tables for key, value in table.items()}
        try:
            return Agent(name=name, **values)
        except CountermandError as error:
            self._add(error)
            return None

    def _wrong(self, name: str, key: str, expected: str, got: object) -> None:
        self._add(
            Invalid(
                f"the key 'agents.{name}.{key}' has an invalid value",
                expected=expected,
                got="nothing" if got is None else shown(got),
                remedy=f"change {key}, or leave it out for its default" if got is not None else f"set {key}",
            )
        )

    def _unknown(self, name: str, key: str) -> None:
        near = difflib.get_close_matches(key, AGENT_KEYS, n=1)
        self._add(
            Invalid(
                f"there is no configuration key 'agents.{name}.{key}'",
                expected=" | ".join(AGENT_KEYS),
                got=key,
                remedy=f"did you mean 'agents.{name}.{near[0]}'?" if near else "remove it",
            )
        )

    def _add(self, error: CountermandError) -> None:
        text = f"{self._source}: {error.message}"
        self.problems.append(Invalid(text, expected=error.expected, got=error.got, remedy=error.remedy))


def _beside(key: str, value: object) -> Mapping[str, Any]:
    """Return what a key is tried with."""
    if key == "preset":
        preset = PRESETS.get(value) if isinstance(value, str) else None
        return {"model": "model"} if preset is not None and preset.is_model else {"command": ["program"]}
    if key in MODEL_KEYS:
        return {"preset": "openai", "model": "model"}
    return {} if key in ("run", "command") else {"run": _ANY}
