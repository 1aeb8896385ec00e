"""Tools in the formats of model providers: what goes into a request beside the thread.

Agents in hosts have this file too: it is loaded there by itself, needs only the standard library, runs from Python 3.9
on, and looks at no class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing import TypeAlias

    from actors.model import JsonObject

    Offered: TypeAlias = "HasOffer | Mapping[str, Any]"


class HasOffer(Protocol):
    """A `Tool`."""

    @property
    def offer(self) -> JsonObject:
        """Its `name`, `description` and `parameters`."""


def offer_anthropic(tools: Iterable[Offered]) -> list[JsonObject]:
    """Return tools as the Messages API of Anthropic takes them: entries of `turn.tools`, and `Tool`s, in one list."""
    return [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in _offers(tools)
    ]


def offer_openai(tools: Iterable[Offered]) -> list[JsonObject]:
    """Return tools as the Chat Completions API of OpenAI takes them; see `offer_anthropic`."""
    return [{"type": "function", "function": one} for one in _offers(tools)]


def offer_responses(tools: Iterable[Offered]) -> list[JsonObject]:
    """Return tools as the Responses API of OpenAI takes them; see `offer_anthropic`.

    That API would make a schema strict by itself, which not every schema can be: so they are not.
    """
    return [{"type": "function", **one, "strict": False} for one in _offers(tools)]


def _offers(tools: Iterable[Offered]) -> list[JsonObject]:
    """Return what a model is told of each tool. Providers want the type of the parameters to be named."""
    offers = [tool if isinstance(tool, Mapping) else tool.offer for tool in tools]
    return [
        {
            "name": one["name"],
            "description": one["description"],
            "parameters": {"type": "object", "properties": {}, **one["parameters"]},
        }
        for one in offers
    ]
