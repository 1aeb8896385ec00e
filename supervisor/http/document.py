"""The OpenAPI document, as it is served: what is made from the routes, and what those cannot say."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response, Router
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Struct

from supervisor import wire

PATH: Final = "/openapi.json"
BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
DESCRIPTION: Final = """Sessions, runs and processes of a Countermand daemon.

Over the Unix socket the peer's uid is checked; over loopback every request carries `Authorization: Bearer <token>`.
A request body may carry an `id`: the same body sent again under it has one effect and the same answer.
"""


class Document(JsonRenderPlugin):
    """Serves the document, which is made once, at the first request: on a thread, since that takes a while."""

    def __init__(self) -> None:
        super().__init__(path=PATH)
        self._making = threading.Lock()
        self._made: bytes | None = None

    async def answer(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """Answer in place of Litestar's handler, which would make the document on the loop, and has pages of its own.

        Raises:
            NotFoundException: something else was asked for, below the path that Litestar takes for its documents.
        """
        if not request.url.path.endswith(PATH):
            raise NotFoundException
        return Response(await asyncio.to_thread(self.make, request.app), media_type=self.media_type)

    def make(self, app: Litestar) -> bytes:
        """Return the document as JSON; whoever comes while it is made waits for it. Blocks: not for the loop."""
        with self._making:
            if self._made is None:
                self._made = msgspec.json.encode(_completed(app.openapi_schema.to_schema()))
            return self._made

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Return the document; `answer` comes first, so this is for who asks the plug-in itself."""
        return self.make(request.app)


def openapi_config(version: str) -> OpenAPIConfig:
    """Return how the document is made, and where it is served."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="Over loopback; the Unix socket needs none.")
    document = Document()

    async def answer(request: Request[Any, Any, Any]) -> Response[bytes]:
        # Litestar copies what it is given, and no lock can be copied: a function is taken as it is.
        return await document.answer(request)

    return OpenAPIConfig(
        title="Countermand",
        version=version,
        description=DESCRIPTION,
        openapi_router=Router("/v1", route_handlers=[], include_in_schema=False, before_request=answer),
        render_plugins=[document],
        use_handler_docstrings=True,
        components=Components(security_schemes={"token": bearer}),
        security=[{"token": []}, {}],
    )


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """Say what Litestar does not: what a message has to have, what bodies do not take, and which may be left out."""
    for name, schema in document["components"]["schemas"].items():
        kind = getattr(wire, name, None)
        if isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = False
    message = document["components"]["schemas"]["MessageBody"]
    message["properties"]["content_base64"] |= {"contentEncoding": "base64", "pattern": BASE64}
    message["oneOf"] = [{"required": ["content"]}, {"required": ["content_base64"]}]
    for path in document["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody")
            if body is not None and {"type": "null"} in _choices(body):
                body["required"] = False
    return document


def _choices(body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body["content"]["application/json"]["schema"].get("oneOf", [])
    return found
