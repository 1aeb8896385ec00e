"""The OpenAPI document, as it is served: what is made from the routes, and what those cannot say."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Struct

from supervisor.http import bodies

DESCRIPTION: Final = """Sessions, runs and processes of a Countermand daemon.

Over the Unix socket the peer's uid is checked; over loopback every request carries `Authorization: Bearer <token>`.
A request body may carry an `id`: the same body sent again under it has one effect and the same answer.
"""


class Document(JsonRenderPlugin):
    """Serves the document, which is made once."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._made: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the document as JSON."""
        if self._made is None:
            self._made = self.render_json(request, _completed(openapi_schema))
        return self._made


def openapi_config(version: str) -> OpenAPIConfig:
    """Return how the document is made, and where it is served."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="Over loopback; the Unix socket needs none.")
    return OpenAPIConfig(
        title="Countermand",
        version=version,
        description=DESCRIPTION,
        path="/v1",
        render_plugins=[Document()],
        use_handler_docstrings=True,
        components=Components(security_schemes={"token": bearer}),
        security=[{"token": []}, {}],
    )


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """Say what Litestar does not: that bodies take no other fields, and that those with a default may be left out."""
    for name, schema in document["components"]["schemas"].items():
        kind = getattr(bodies, name, None)
        if isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = False
    for path in document["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody")
            if body is not None and {"type": "null"} in _choices(body):
                body["required"] = False
    return document


def _choices(body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body["content"]["application/json"]["schema"].get("oneOf", [])
    return found
