"""Metrics for Prometheus."""

from __future__ import annotations

from typing import Final

from litestar import Response, Router, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from supervisor.http.gauges import Gauges
from supervisor.http.routing import TheService, refusals

# The character set is added when it is sent.
MEDIA_TYPE: Final = CONTENT_TYPE_LATEST.partition("; charset=")[0]


@get("/metrics", summary="Metrics", media_type=MEDIA_TYPE, responses=refusals())
async def metrics(service: TheService, gauges: NamedDependency[Gauges]) -> Response[str]:
    """Show the metrics in Prometheus's text format."""
    text = await service.read(generate_latest, gauges.registry)
    return Response(text.decode(), media_type=MEDIA_TYPE)


METRICS = Router("/", route_handlers=[metrics], tags=["daemon"])
