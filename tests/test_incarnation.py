"""Incarnation: what a session decides with, from the moment that it was read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.hierarchy.incarnation import Incarnation, Phase
from actors.model import Isolation
from actors.ports import Settings


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.FAILED])
def test_a_tool_that_was_loaded_while_the_session_was_read_has_its_own_isolation(phase: Phase) -> None:
    executor = SimpleNamespace(call=lambda callback: callback(), token=lambda _: None)
    ids = SimpleNamespace(new=lambda prefix: f"{prefix}_1")
    ports: Any = SimpleNamespace(
        settings=Settings(agent="a"), clock=SimpleNamespace(wall=lambda: 0.0), ids=ids, executor=executor, hosts=None
    )
    plugins: Any = SimpleNamespace(isolation={}, refusal=lambda _: None)
    incarnation = Incarnation("s", ports, plugins)
    incarnation.phase = phase
    plugins.isolation = {"late": Isolation.PROCESS}
    incarnation.begin()
    assert incarnation.phase is Phase.SERVING
    assert incarnation.protocol.state.isolation == {"late": Isolation.PROCESS}
