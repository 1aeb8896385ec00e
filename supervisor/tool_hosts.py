"""Tools with the isolation ``process``: how the processes in which they run are started."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from actors.model import Isolation
from actors.plugin.registration import Tool, host_of, is_async
from supervisor.agent import Agent

OWN: Final = str(Path(__file__).parents[1])


def tool_hosts(tools: Iterable[Tool]) -> Mapping[str, Agent]:
    """Return the hosts of those tools that run in a process of their own, by what they are called."""
    return {host_of(one.name): _host(one) for one in tools if one.isolation is Isolation.PROCESS}


def _host(tool: Tool) -> Agent:
    kind = "as_task" if is_async(tool.function) else "as_thread"
    return Agent(
        run=f"supervisor.hosts.tool_process:{kind}",
        env={"COUNTERMAND_TOOL": tool.spelled},
        path=tuple(dict.fromkeys([_root_of(tool), OWN])),
        name=host_of(tool.name),
    )


def _root_of(tool: Tool) -> str:
    """Return the directory from which the module of a tool was imported."""
    module = sys.modules[tool.spelled.partition(":")[0]]
    file = Path(getattr(module, "__file__", None) or OWN).resolve()
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    return str(file.parents[depth])
