"""The door: an ASGI application around the routes, through which every request comes."""

from __future__ import annotations

from typing import Any

from actors.errors import CountermandError, Invalid
from supervisor.http.access import PEER, WHO, Access
from supervisor.http.refusals import answer


class HeadersTooLarge(CountermandError):
    """More in the request line and the headers than anybody needs."""

    code = "headers_too_large"


class Door:
    """An ASGI application around another one: whoever is not let in is answered here.

    Args:
        app: the application inside.
        access: who may come in.
        header_max: bytes that the request line and the headers may have; the parser bounds only what comes in pieces.
    """

    def __init__(self, app: Any, access: Access, header_max: int = 16_384) -> None:
        self._app = app
        self._access = access
        self._header_max = header_max

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer whoever is not let in; hand everybody else on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["state"][WHO] = self._access.admit(scope["state"].get(PEER), scope["headers"])
            _check_size(scope, self._header_max)
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


def _keep_encoded(scope: Any) -> None:
    """Route by the path as it came, so that a name with an encoded slash stays one segment: no name leads elsewhere."""
    path = scope["raw_path"].decode("ascii", "replace")
    if "//" in path:
        raise Invalid(
            "this path has a segment without a name",
            expected="a name between two slashes",
            got=f"{path!r:.80}",
            remedy="name the session or the run",
        )
    scope["path"] = path
