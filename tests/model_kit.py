"""What the tests of models as agents share: the agents, their tools, and the moments at which their runs are ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from actors import AsyncSpawn, RunInfo, tool
from supervisor import SessionHandle
from tests.ends_kit import said
from tests.kit import WAIT_S, log
from tests.model_server import SCRIPT
from tests.scripted_moments import INSTRUCTIONS
from tests.test_sdks import PYTHON


class Preset(NamedTuple):
    """A preset of a model: the format that it is asked in, the path of its base_url, and further parameters."""

    provider: str
    path: str
    options: dict[str, Any]


PRESETS = {
    "openai": Preset("openai", "/v1", {}),
    "openai-responses": Preset("responses", "/v1", {"reasoning": {"effort": "low"}}),
    "anthropic": Preset("anthropic", "", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
}
POLL_S = 0.1
MOMENTS = ("first", "between", "tool", "retry", "approve")
"""In the first token, between tools, in a tool, in a wait before another request, while a person is asked."""


def until(condition: Callable[[], Any], what: str) -> None:
    """Poll a condition with a deadline, seldom: an SDK takes seconds to be imported, and each look costs something."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(POLL_S)


def ended(session: SessionHandle, run_id: str) -> RunInfo:
    """Wait for the receipt of a run, and return the run."""
    session.receipt(run_id, timeout=WAIT_S)
    return session.run(run_id)


def options(preset: str, url: str, mark: str, **more: Any) -> dict[str, Any]:
    """The keys of an agent; `more` has its key."""
    return {
        "preset": preset,
        "model": "m",
        "base_url": url + PRESETS[preset].path,
        "instructions": INSTRUCTIONS,
        "options": PRESETS[preset].options,
        "python": PYTHON,
        "ask": ["careful"],
        "spares": 0,
        "env": {mark: "1", "PYTHONDONTWRITEBYTECODE": "1"},
        **more,
    }


def tools(mark: str) -> list[Any]:
    """The tools of the daemon: both note a text, and one that ends in ``hold`` starts what ignores SIGTERM."""

    async def noted(text: str, spawn: AsyncSpawn) -> str:
        if text.startswith("tool") and text.endswith(":hold"):
            process = await spawn(["sh", "-c", f"export {mark}=1\n{SCRIPT}"])
            await process.wait()
        return f"noted {text}"

    @tool(isolation="task")
    async def note(text: str, spawn: AsyncSpawn) -> str:
        """Note a text."""
        return await noted(text, spawn)

    @tool(isolation="task")
    async def careful(text: str, spawn: AsyncSpawn) -> str:
        """Note a text, if a person allows it."""
        return await noted(text, spawn)

    return [note, careful]


def reached(session: SessionHandle, run_id: str, folder: Path, name: str) -> None:
    """Wait for the moment that is named first in the name."""

    def in_tool() -> bool:
        kinds = [event.kind for event in log(session) if event.run_id == run_id]
        return "process.started" in kinds and "tool.ended" in kinds

    until(lambda: (folder / name).exists() or session.run(run_id).ended_at, f"the provider to reach {name}")
    conditions: dict[str, Callable[[], Any]] = {
        "first": lambda: said(session, run_id),
        "tool": in_tool,
        "approve": lambda: len(session.status().asking) == 2,
    }
    condition = conditions.get(name.rstrip("0123456789"), lambda: True)
    until(lambda: session.run(run_id).ended_at or condition(), name)
    assert session.run(run_id).ended_at is None, session.run(run_id)
