"""Stands where the SDK does, in the supervisor's process and in hosts: a model with scripted answers.

`MODEL_FOLDER` has its scripts, one file an answer, each a list of texts, blocks and `WAITS`. It writes there what it is
asked, and that it waits.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WAITS = "waits"
"""In a script: the model says nothing more, until it is cut off."""


class Block(SimpleNamespace):
    """A block of an answer, as the SDK has it."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as it came."""
        return dict(vars(self))


class AsyncAnthropic:
    """The client."""

    def __init__(self) -> None:
        self.messages = self
        self._folder = Path(os.environ["MODEL_FOLDER"])

    def stream(self, *, messages: list[dict[str, Any]], thinking: object, **_: object) -> Stream:
        """Begin the next answer."""
        asked = self._folder / f"request_{len(list(self._folder.glob('request_*'))):03}"
        asked.write_text(json.dumps({"messages": messages, "thinking": thinking}))
        script = next(iter(sorted(self._folder.glob("script_*"))), None)
        if script is None:
            return Stream(self._folder, ["All done."])
        said = json.loads(script.read_text())
        script.unlink()
        return Stream(self._folder, said)


class Stream:
    """One answer."""

    def __init__(self, folder: Path, script: list[Any]) -> None:
        self._folder = folder
        self._script = script

    async def __aenter__(self) -> Stream:
        """Begin it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield its events."""
        for part in self._script:
            if part == WAITS:
                (self._folder / "waiting").touch()
                await asyncio.Event().wait()
            elif isinstance(part, str):
                yield SimpleNamespace(type="text", text=part)
                yield SimpleNamespace(type="content_block_stop", content_block=Block(type="text", text=part))
            else:
                yield SimpleNamespace(type="content_block_stop", content_block=Block(**part))

    async def get_final_message(self) -> Any:
        """Return what is known of it at its end."""
        calls = any(isinstance(part, dict) and part["type"] == "tool_use" for part in self._script)
        usage = SimpleNamespace(input_tokens=7, output_tokens=3)
        return SimpleNamespace(id="msg_1", stop_reason="tool_use" if calls else "end_turn", usage=usage)
