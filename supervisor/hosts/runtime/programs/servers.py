"""The MCP servers of the configuration, in the words of the programs that are handed them.

The program starts them itself: they are its children, and end with the tree of the host. It is handed them through its
pipe and not by its arguments, which others may read: there may be secrets in them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from .. import daemon_log
from ..configured import servers
from ..errors import Invalid

IN_FOLDER = ("-c", 'cd "$1" && shift && exec "$@"', "sh")
"""What `sh` is given for a server with a working directory of its own: not every protocol has one."""
HANDED_OVER, ENDED = "handed over", "ended"


def by_name(headers: str) -> dict[str, dict[str, Any]]:
    """Return the servers by name, as most programs have them in their configuration; `headers`: their word for that."""
    return {name: _server(keys, headers) for name, keys in servers().items()}


def listed(program: str, able: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers as ACP has them.

    Args:
        program: the program's name.
        able: what it can, as it says in its answer to `initialize`.

    Raises:
        Invalid: one has a URL, and the program can only start servers.
    """
    found = []
    for name, server in by_name("headers").items():
        if "url" in server:
            if not able.get("http"):
                raise Invalid(
                    f"{program} cannot use the MCP server {name!r}",
                    expected="a server with 'command': it does not say that it can use one by HTTP",
                    got=f"one with 'url': {server['url']}",
                    remedy="leave it out of the key 'mcp' of the agent, or name a program that passes on to it",
                )
            found.append({"type": "http", "name": name, **server, "headers": _pairs(server["headers"])})
        else:
            found.append({"name": name, **server, "env": _pairs(server["env"])})
    return found


def show(failed: Any = None) -> None:
    """Show people that the program has the servers; `failed`: why it could not start some of them, as it says."""
    for name in servers():
        why = failed.get(name) if isinstance(failed, dict) else None
        daemon_log.server(name, ENDED if why else HANDED_OVER, why=why)


def _server(keys: Mapping[str, Any], headers: str) -> dict[str, Any]:
    if "url" in keys:
        return {"url": keys["url"], headers: keys["headers"]}
    command = (str(keys["command"]), *keys["args"])
    if keys["cwd"]:
        command = ("sh", *IN_FOLDER, keys["cwd"], *command)
    # ACP wants a path. What is not there is the program's to report.
    found = shutil.which(command[0], path=keys["env"].get("PATH", os.environ.get("PATH"))) or command[0]
    return {"command": found, "args": [*command[1:]], "env": keys["env"]}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
