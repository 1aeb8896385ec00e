"""make_app: the routes, the errors and the OpenAPI document, put together."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from supervisor.http import refusals
from supervisor.http.agents import AGENTS
from supervisor.http.desk import Desk
from supervisor.http.document import openapi_config
from supervisor.http.events import EVENTS
from supervisor.http.gauges import Gauges, Levels
from supervisor.http.health import HEALTH, own_version
from supervisor.http.metrics import METRICS
from supervisor.http.processes import PROCESSES
from supervisor.http.runs import RUNS
from supervisor.http.sessions import SESSIONS


class _App(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Those for what our bodies are. Litestar's own would load pydantic, and with it a fifth of the start."""
        return [*plugins, MsgspecDIPlugin()]


def make_app(desk: Desk) -> Litestar:
    """Return the application for a desk. `AdmissionMiddleware` has admitted each request that reaches it."""
    gauges = Gauges(desk.supervisor)
    gauges.registry.register(Levels(desk))
    desk.on_stop = gauges.stop_seconds.observe

    def the_desk() -> Any:
        return desk

    def the_gauges() -> Any:
        return gauges

    def respond(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        return refusals.respond(error, desk.limits.body_max)

    return _App(
        route_handlers=[SESSIONS, RUNS, EVENTS, PROCESSES, AGENTS, HEALTH, METRICS],
        dependencies={
            "desk": Provide(the_desk, sync_to_thread=False),
            "gauges": Provide(the_gauges, sync_to_thread=False),
        },
        exception_handlers={Exception: respond},
        request_max_body_size=desk.limits.body_max,
        openapi_config=openapi_config(own_version()),
        logging_config=None,
        debug=False,
    )
