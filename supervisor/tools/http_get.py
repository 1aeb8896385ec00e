"""The `http_get` tool: it gets a text from one of the hosts that the configuration names.

Each request is an effect of its own: a Stop that comes before it means that it is not sent. Each redirect is a request,
and its host is checked as that of the first one was.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from actors.errors import Invalid
from actors.gate.token import AsyncCancelToken
from actors.plugin.registration import Tool

if TYPE_CHECKING:
    from httpx import URL, Response

GET_MAX_BYTES: Final = 262_144
"""How much of an answer is returned."""
GET_TIMEOUT_S: Final = 30.0
"""How long each of connecting, sending and reading a piece may take."""
GET_MAX_S: Final = 120.0
"""How long all of it may take."""
REDIRECTS_MAX: Final = 5

_ASKED: Final = {"Accept-Encoding": "gzip"}
_PACKED: Final = frozenset({"gzip", "x-gzip"})
_SLOW: Final = frozenset({"punycode", "idna"})
"""Encodings that are no page's, and whose decoders take the square of the size."""


class HttpGet:
    """The tool of one supervisor.

    Args:
        hosts: the hosts that it may ask, such as ``example.org`` or ``*.example.org``; ``*`` is every one.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(".".join(_in_ascii(label) for label in host.lower().split(".")) for host in hosts)

    def tools(self) -> list[Tool]:
        """Return it as a tool."""
        return [Tool(self.http_get, isolation="task", deadline_s=GET_MAX_S)]

    async def http_get(self, url: str, token: AsyncCancelToken) -> str:
        """Get what a URL has, as text, with the status and the type. Only some hosts may be asked."""
        import httpx

        try:
            # No proxy, no password file of the daemon's user: the request has what the model says, and nothing else.
            async with httpx.AsyncClient(timeout=GET_TIMEOUT_S, trust_env=False) as client:
                at = self._checked(url)
                for _ in range(REDIRECTS_MAX + 1):
                    async with token.guard(f"GET {at.host}"), client.stream("GET", at, headers=_ASKED) as answer:
                        location = answer.headers.get("location")
                        if not (answer.is_redirect and location):
                            return await _shown(answer)
                    at = self._checked(str(at.join(location)))
        except (httpx.HTTPError, httpx.InvalidURL, zlib.error, UnicodeError) as error:
            raise Invalid(
                "nothing could be got",
                expected="a URL of a server that answers",
                got=f"{type(error).__name__}: {error}",
                remedy="check the URL; try again later",
            ) from error
        raise Invalid(
            "too many redirects",
            expected=f"at most {REDIRECTS_MAX}",
            got="one more",
            remedy="ask for the address that it redirects to",
        )

    def _checked(self, url: str) -> URL:
        """Return a URL whose host may be asked. Raises Invalid."""
        import httpx

        parsed = httpx.URL(url)
        if parsed.scheme not in {"http", "https"} or parsed.userinfo:
            raise Invalid(
                "such a URL cannot be got",
                expected="http:// or https://, without a user",
                got=url[:200],
                remedy="correct it",
            )
        # As it is sent: `host` has the characters that an international name stands for.
        named = parsed.raw_host.decode("ascii").lower()
        if not any(fnmatchcase(named, host) for host in self._hosts):
            raise Invalid(
                "this host may not be asked",
                expected=" | ".join(self._hosts),
                got=named[:200],
                remedy="ask another one, or have it added to http_hosts in the configuration",
            )
        return parsed


def _in_ascii(label: str) -> str:
    """Return a part of a host's name as it is sent. Raises Invalid."""
    if label.isascii():
        return label
    import httpx

    try:
        if any(one in "*?[]#" for one in label):
            raise UnicodeError("a wildcard beside a letter that is not ASCII")
        return httpx.URL(f"http://{label}").raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Invalid(
            "the key 'http_hosts' has an international name that cannot be used",
            expected="a name of IDNA, such as bücher.example or xn--bcher-kva.example",
            got=f"{label[:200]}: {error}",
            remedy="correct it",
        ) from error


async def _shown(answer: Response) -> str:
    """Return the head and the text of an answer, up to its bound."""
    data = bytearray()
    unpack = _unpacking(answer)
    async for piece in answer.aiter_raw():
        data += unpack(piece, GET_MAX_BYTES + 1 - len(data))
        if len(data) > GET_MAX_BYTES:
            break
    cut = f"\n[the first {GET_MAX_BYTES} bytes; there are more]" if len(data) > GET_MAX_BYTES else ""
    text = bytes(data[:GET_MAX_BYTES]).decode(_encoding(answer), errors="replace")
    kind = answer.headers.get("content-type", "no content type")
    return f"{answer.status_code} {answer.reason_phrase}, {kind}\n\n{text}{cut}"


def _unpacking(answer: Response) -> Callable[[bytes, int], bytes]:
    """Return what unpacks a piece of an answer, up to a size.

    Not by httpx: a few bytes can be packed so that they become more than there is memory, all at once.
    """
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return lambda piece, size: piece[:size]
    if coding in _PACKED:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress
    raise Invalid("the answer cannot be read", expected="one that is packed with gzip, or not at all", got=coding[:200])


def _encoding(answer: Response) -> str:
    """Return the encoding of the text: the one that the answer names, if it can be used."""
    try:
        name = codecs.lookup(answer.charset_encoding or "utf-8").name
        b"?".decode(name, errors="replace")
    except (LookupError, ValueError):
        return "utf-8"
    return "utf-8" if name in _SLOW else name
