"""The middleware: an ASGI application around the routes, through which every request comes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from actors.errors import CountermandError, Invalid
from actors.text import shown
from supervisor.http.access import PEER, WHO, Access
from supervisor.http.refusals import answer, check_named_once


class HeadersTooLarge(CountermandError):
    """The request line and the headers are larger than the limit."""

    code = "headers_too_large"


class UnsupportedMediaType(CountermandError):
    """A body that is not declared as JSON."""

    code = "unsupported_media_type"


class AdmissionMiddleware:
    """An ASGI application around another one. It answers the requests that it does not admit.

    Args:
        app: the application inside.
        access: decides who is admitted.
        header_max: limit on the bytes of the request line and the headers; the parser bounds only incomplete ones.
    """

    def __init__(self, app: Any, access: Access, header_max: int = 16_384) -> None:
        self._app = app
        self._access = access
        self._header_max = header_max

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request that is not admitted; pass on every other one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["state"][WHO] = self._access.admit(scope["state"].get(PEER), scope["headers"])
            _check_size(scope, self._header_max)
            _check_query(scope)
            _check_declared(scope)
            _keep_encoded(scope)
        except CountermandError as error:
            await answer(error, send)
            return
        await self._app(scope, receive, send)


def _check_size(scope: Any, header_max: int) -> None:
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > header_max:
        raise HeadersTooLarge(
            "the request line and the headers are too large",
            expected=f"at most {header_max} bytes",
            got=f"{size} bytes",
            remedy="send less in headers and in the query",
        )


def _check_query(scope: Any) -> None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    check_named_once("parameter of the query", (name for name, _ in pairs))


def _check_declared(scope: Any) -> None:
    """Refuse a body that is not declared as JSON in UTF-8, so that no form of a web page is taken for a request."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    named = dict(headers)
    if named.get(b"content-length", b"0").strip(b"0") == b"" and b"transfer-encoding" not in named:
        return
    declared = [value.decode("latin-1") for name, value in headers if name == b"content-type"]
    kind, *parameters = (part.strip().lower() for part in (declared[0] if len(declared) == 1 else "").split(";"))
    charsets = {value.strip('"') for name, _, value in (one.partition("=") for one in parameters) if name == "charset"}
    if kind != "application/json" or not charsets <= {"utf-8"}:
        raise UnsupportedMediaType(
            "this body is not declared as JSON",
            expected="one header 'Content-Type: application/json'",
            got=shown(", ".join(declared)) if declared else "no Content-Type",
            remedy="send that header with the body; curl does with --json",
        )


def _keep_encoded(scope: Any) -> None:
    """Route by the undecoded path, so that a name with an encoded slash stays one segment."""
    path = scope["raw_path"].decode("ascii", "replace")
    if "//" in path:
        raise Invalid(
            "this path has a segment without a name",
            expected="a name between two slashes",
            got=f"{path!r:.80}",
            remedy="name the session or the run",
        )
    scope["path"] = path
