"""What is used of uvicorn, h11 and Litestar beside their public interfaces is as it was when it was read.

Each is pinned to its minor release in `pyproject.toml`. To move a pin, read what changed, and then change the version
here. Pykka has `test_pykka_pin.py`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import h11
import litestar
import pytest
from litestar.plugins.core import MsgspecDIPlugin
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from supervisor.http.app import _App
from supervisor.http.connection import Connection

ROOT = Path(__file__).parent.parent
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
PINNED = {"pykka": "4.5", "litestar": "2.25", "uvicorn": "0.54", "h11": "0.16"}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(("name", "minor"), PINNED.items())
def test_a_library_whose_private_parts_are_used_is_the_release_that_was_read(name: str, minor: str) -> None:
    assert importlib.metadata.version(name).startswith(f"{minor}.")
    assert any(one.startswith(f"{name}~={minor}.") for one in DEPENDENCIES)


def test_every_library_that_is_imported_is_declared() -> None:
    imported = {
        name
        for folder in ("actors", "supervisor")
        for file in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
    }
    provides = importlib.metadata.packages_distributions()
    used = {
        distribution.replace("_", "-").lower()
        for name in (imported & provides.keys()) - {"actors", "supervisor", "countermand"}
        for distribution in provides[name]
    }
    declared = {re.split("[~<>=]", one)[0] for one in DEPENDENCIES}
    assert used == declared


# ── uvicorn and h11 ───────────────────────────────────────────────────────────────────────────────


def test_a_connection_has_what_ours_uses_of_it() -> None:
    assert parameters(H11Protocol.__init__) == ["self", "config", "server_state", "app_state", "_loop"]
    loop = asyncio.new_event_loop()
    try:
        made = H11Protocol(Config(app=_nothing), ServerState(), {}, loop)
        used = {"app_state", "connections", "conn", "cycle", "flow", "loop", "tasks", "transport"}
        assert used <= set(vars(made))
        assert made.cycle is None
        assert isinstance(made.conn, h11.Connection)
    finally:
        loop.close()
    assert isinstance(inspect.getattr_static(FlowControl(None), "read_paused"), bool)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("never called")


def test_a_connection_counts_itself_and_gives_the_app_a_copy_of_its_state() -> None:
    assert "self.connections.add(self)" in inspect.getsource(H11Protocol.connection_made)
    assert "self.connections.discard(self)" in inspect.getsource(H11Protocol.connection_lost)
    events = inspect.getsource(H11Protocol.handle_events)
    assert '"state": self.app_state.copy()' in events
    assert "self.send_400_response(msg)" in events
    assert "self.flow.pause_reading()" in events


@pytest.mark.parametrize(
    "hook",
    [
        "connection_made",
        "data_received",
        "on_response_complete",
        "pause_writing",
        "resume_writing",
        "send_400_response",
    ],
)
def test_a_hook_of_a_connection_has_the_signature_that_ours_overrides(hook: str) -> None:
    assert hook in vars(Connection)
    assert parameters(getattr(H11Protocol, hook)) == parameters(getattr(Connection, hook))


def test_a_cycle_learns_that_its_client_has_gone_by_two_fields() -> None:
    made = inspect.getsource(RequestResponseCycle.__init__)
    for field in ("disconnected", "message_event", "response_started", "response_complete"):
        assert f"self.{field} = " in made or f"self.{field}: " in made, field
    assert "self.disconnected" in inspect.getsource(RequestResponseCycle.receive)


def test_an_h11_connection_says_what_is_left_and_where_the_client_is() -> None:
    connection = h11.Connection(h11.SERVER)
    assert connection.their_state is h11.IDLE
    assert connection.trailing_data == (b"", False)
    connection.receive_data(b"GET")
    assert connection.trailing_data == (b"GET", False)
    assert {h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR}.isdisjoint({h11.IDLE, h11.SEND_BODY})


# ── Litestar ──────────────────────────────────────────────────────────────────────────────────────


def test_an_application_begins_with_the_plugins_that_ours_chooses() -> None:
    assert isinstance(inspect.getattr_static(litestar.Litestar, "_get_default_plugins"), staticmethod)
    assert parameters(litestar.Litestar._get_default_plugins) == parameters(_App._get_default_plugins) == ["plugins"]
    assert "self._get_default_plugins(list(plugins or []))" in inspect.getsource(litestar.Litestar.__init__)
    assert "plugins.append(MsgspecDIPlugin())" in inspect.getsource(litestar.Litestar._get_default_plugins)
    assert [type(plugin) for plugin in _App._get_default_plugins([])] == [MsgspecDIPlugin]
