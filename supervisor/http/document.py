"""The OpenAPI document: generated from the routes, and completed by hand."""

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

from actors.events import DATA, EPHEMERAL
from actors.model import Event
from supervisor import wire

PATH: Final = "/openapi.json"
REF: Final = "#/components/schemas/{name}"
BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
DESCRIPTION: Final = """Sessions, runs and processes of a Countermand daemon.

Over the Unix socket the peer's uid is checked; over loopback every request carries `Authorization: Bearer <token>`.
A request body may carry an `id`: repeating the same body under it has one effect and gives the same answer.
"""


class Document(JsonRenderPlugin):
    """Serves the document. It is made once, at the first request, on a thread, since that takes time."""

    def __init__(self) -> None:
        super().__init__(path=PATH)
        self._making = threading.Lock()
        self._made: bytes | None = None

    async def answer(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """Answer instead of Litestar's handler, which would make the document on the loop, and serves other pages.

        Raises:
            NotFoundException: the path is another one below Litestar's path for documents.
        """
        if not request.url.path.endswith(PATH):
            raise NotFoundException
        return Response(await asyncio.to_thread(self.make, request.app), media_type=self.media_type)

    def make(self, app: Litestar) -> bytes:
        """Return the document as JSON; concurrent callers wait for it. It blocks: not for the loop."""
        with self._making:
            if self._made is None:
                self._made = msgspec.json.encode(_completed(app.openapi_schema.to_schema()))
            return self._made

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Return the document. Requests are answered by `answer`; this is for direct callers of the plug-in."""
        return self.make(request.app)


def openapi_config(version: str) -> OpenAPIConfig:
    """Return the configuration of the document: its content and its route."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="Over loopback; the Unix socket needs none.")
    document = Document()

    async def answer(request: Request[Any, Any, Any]) -> Response[bytes]:
        # Litestar copies the objects that it is given, and a lock cannot be copied; a function is not copied.
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
    """Add what Litestar leaves out: how a message has its content, unknown fields that are refused, optional bodies."""
    for name, schema in document["components"]["schemas"].items():
        kind = getattr(wire, name, None)
        if isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = False
    _type_events(document["components"]["schemas"])
    message = document["components"]["schemas"]["MessageBody"]
    data = document["components"]["schemas"]["FileBody"]["properties"]["data_base64"]
    for encoded in (message["properties"]["content_base64"], data):
        encoded |= {"contentEncoding": "base64", "pattern": BASE64}
    contents = [{"required": ["content"]}, {"required": ["content_base64"]}]
    without_parts = {"parts": {"maxItems": 0}}
    message["oneOf"] = [
        *({**one, "properties": without_parts} for one in contents),
        {
            "required": ["attachments"],
            "properties": {"attachments": {"minItems": 1}, **without_parts},
            "not": {"anyOf": contents},
        },
        {
            "required": ["parts"],
            "properties": {"parts": {"minItems": 1}, "attachments": {"maxItems": 0}},
            "not": {"anyOf": contents},
        },
    ]
    for path in document["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody")
            if body is not None and {"type": "null"} in _choices(body):
                body["required"] = False
    return document


def _type_events(schemas: dict[str, Any]) -> None:
    """Replace the schema of an event, whose data is any object, by one schema for each kind, chosen by `kind`."""
    of_any_kind = schemas[Event.__name__]
    kinds = {kind: struct for kind, struct in DATA.items() if kind not in EPHEMERAL}
    # They were learnt when they were imported.
    _, made = msgspec.json.schema_components(list(kinds.values()), ref_template=REF)  # noqa: TID251
    for name, schema in made.items():
        schemas.setdefault(name, schema)
    mapping: dict[str, str] = {}
    for kind, struct in kinds.items():
        name = f"{struct.__name__.removesuffix('Data')}{Event.__name__}"
        mapping[kind] = REF.format(name=name)
        properties = {
            **of_any_kind["properties"],
            "kind": {"const": kind},
            "data": {"$ref": REF.format(name=struct.__name__)},
        }
        schemas[name] = {**of_any_kind, "title": name, "description": struct.__doc__, "properties": properties}
    schemas[Event.__name__] = {
        "title": of_any_kind["title"],
        "description": of_any_kind.get("description", ""),
        "oneOf": [{"$ref": ref} for ref in mapping.values()],
        "discriminator": {"propertyName": "kind", "mapping": mapping},
    }


def _choices(body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body["content"]["application/json"]["schema"].get("oneOf", [])
    return found
