"""Starts this process as the host of a Python agent.

    COUNTERMAND_CHANNEL=<descriptor> python countermand_host.py module:function [--tool module:function]...

The daemon does that, with the agent's own interpreter, in the agent's own environment: Python 3.9 or later, and the
standard library alone. The runtime is in the folder `runtime`; in this process it is the package `countermand`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

CHANNEL = "COUNTERMAND_CHANNEL"
HERE = os.path.dirname(os.path.realpath(__file__))
EXIT_USAGE = 64


def load() -> Any:
    """Load the runtime as the package `countermand`, which may not be on the module path."""
    folder = os.path.join(HERE, "runtime")
    spec = importlib.util.spec_from_file_location(
        "countermand", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None, "it is a file of Python's"
    assert spec.loader is not None, "it is a file of Python's"
    package = sys.modules["countermand"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


def main() -> None:
    """Start."""
    # First of all: a process with the socket can speak as the agent.
    channel = os.environ.pop(CHANNEL, "")
    if channel.isdigit():
        os.set_inheritable(int(channel), False)
    agent, tools = sys.argv[1:2], sys.argv[3::2]
    fits = sys.argv[2::2] == ["--tool"] * len(tools) and all(":" in spelled for spelled in (*agent, *tools))
    if not channel.isdigit() or not agent or not fits:
        sys.exit(_said(__doc__.split("\n\n")[1].strip(), EXIT_USAGE))
    if sys.version_info < (3, 9):  # noqa: UP036  # of the agent's interpreter
        sys.exit(_said("countermand: a host needs Python 3.9, or later, and this is " + sys.version, EXIT_USAGE))
    if sys.path and os.path.realpath(sys.path[0] or ".") == HERE:
        # The modules beside this file are not the agent's.
        del sys.path[0]
    load()
    host: Any = importlib.import_module("countermand.host")
    host.main(int(channel), agent[0], tools)


def _said(text: str, status: int) -> int:
    sys.stderr.write(text + "\n")
    return status


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # A process that multiprocessing spawns imports this file first, and then the agent's module.
    load()
