"""The start of the `countermand` command: it works, or says why it cannot, whatever package is called `supervisor`.

supervisord's distribution, `supervisor`, has a package of that name too. In one environment the later install writes
over the earlier, and where the folders differ the first on the path hides the other. So this module is outside of both
packages, and imports neither before it can say what is wrong.

An agent can import what it needs from here (`from countermand import AsyncTurn`). In a host, another package has this
name, with the same names in it: so the agent's module runs in the daemon's process and in a host as it stands. That
package has the adapters of frameworks too, `countermand.adapters`, and an import of them from here leads there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NoReturn

OTHER = "supervisor"
"""The name of supervisord's distribution."""

FOR_AGENTS = {
    "actors": (
        "AsyncCancelToken",
        "AsyncEmit",
        "AsyncModelAnswer",
        "AsyncModelCall",
        "AsyncProcess",
        "AsyncSpawn",
        "AsyncTurn",
        "CancelToken",
        "CountermandError",
        "Delegated",
        "Emit",
        "Exit",
        "File",
        "Invalid",
        "Message",
        "ModelAnswer",
        "ModelCall",
        "Process",
        "Provenance",
        "QueueFull",
        "Refused",
        "RunCancelled",
        "Secret",
        "Spawn",
        "Tool",
        "ToolResult",
        "Turn",
        "offer_anthropic",
        "offer_openai",
        "offer_responses",
        "render_anthropic",
        "render_openai",
        "render_responses",
        "tool",
    ),
    "actors.model": ("Address", "ToolCall"),
    "actors.parts": ("AnswerInfo", "BlockPart", "CallPart", "MediaPart", "TextPart"),
}
"""What agents import, by the module that has it."""


def __getattr__(name: str) -> Any:
    """Return what an agent imports, or where its import of an adapter looks."""
    if name == "__path__":
        package = importlib.util.find_spec("supervisor")
        folders = package.submodule_search_locations if package is not None else None
        return [str(Path(folder) / "hosts" / "runtime") for folder in folders or ()]
    for module, names in FOR_AGENTS.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> NoReturn:
    """Run the command and exit; the entry point."""
    try:
        from supervisor.console.cli import main as command
    except ImportError:
        wrong = wrong_supervisor()
        if wrong is None:
            raise
        sys.exit(f"countermand: {wrong[0]}; to do: {wrong[1]}")
    command()


def wrong_supervisor() -> tuple[str, str] | None:
    """Say what is wrong with this environment's package `supervisor`, and what to do; None: it is Countermand's."""
    begins = inside = False
    folder = ""
    try:
        package = importlib.import_module("supervisor")
        folder = next(iter(package.__path__), "")
        begins = "Supervisor" in getattr(package, "__all__", ())
        inside = importlib.util.find_spec("supervisor.console") is not None
    except ImportError:
        pass
    other = _other()
    beside = other is not None and Path(str(other.locate_file("supervisor"))).resolve() == Path(folder).resolve()
    if begins and inside and not beside:
        return None
    if other is not None:
        whose = f"is of the distribution supervisor {other.version} (supervisord)" + " too" * inside
        what = f"the package 'supervisor' in {folder} {whose}: the two cannot share an environment"
        return what, "give countermand one of its own: python3 -m venv DIR, and install it there with DIR/bin/pip"
    if inside:
        what = f"the package 'supervisor' in {folder} lacks its __init__.py, as where supervisord was uninstalled there"
        return what, "install countermand again: pip install --force-reinstall"
    return f"the package 'supervisor' in {folder} is not countermand's", "take it from PYTHONPATH, or rename it"


def _other() -> Distribution | None:
    try:
        return distribution(OTHER)
    except PackageNotFoundError:
        return None
