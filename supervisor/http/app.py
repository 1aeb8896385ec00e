"""make_app: the routes, the errors and the OpenAPI document, put together."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from supervisor.http import refusals
from supervisor.http.agents import AGENTS
from supervisor.http.document import openapi_config
from supervisor.http.events import EVENTS
from supervisor.http.gauges import Gauges, Levels
from supervisor.http.health import HEALTH, own_version
from supervisor.http.metrics import METRICS
from supervisor.http.processes import PROCESSES
from supervisor.http.runs import RUNS
from supervisor.http.service import ApiService
from supervisor.http.sessions import SESSIONS


class _App(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Return the plug-in for our bodies. Litestar's defaults import pydantic, which takes a fifth of the start."""
        return [*plugins, MsgspecDIPlugin()]


def make_app(service: ApiService) -> Litestar:
    """Return the application for a service. `AdmissionMiddleware` has admitted each request that reaches it."""
    gauges = Gauges(service.supervisor)
    gauges.registry.register(Levels(service))
    service.on_stop = gauges.stop_seconds.observe

    def the_service() -> Any:
        return service

    def the_gauges() -> Any:
        return gauges

    def respond(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        return refusals.respond(error, service.limits.body_max)

    return _App(
        route_handlers=[SESSIONS, RUNS, EVENTS, PROCESSES, AGENTS, HEALTH, METRICS],
        dependencies={
            "service": Provide(the_service, sync_to_thread=False),
            "gauges": Provide(the_gauges, sync_to_thread=False),
        },
        exception_handlers={Exception: respond},
        request_max_body_size=service.limits.body_max,
        openapi_config=openapi_config(own_version()),
        logging_config=None,
        debug=False,
    )
