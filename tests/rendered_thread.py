"""What each provider is given of a thread: it takes that, with files and without, and each result is in it (law L6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors import File
from actors.model import Message, Role
from actors.plugin.rendering import render_anthropic, render_openai, render_responses
from tests.provider_checker import check_anthropic, check_openai, check_responses
from tests.sim.model_answers import PROVIDER

CHAT: Final = "chat"
ITEMS: Final = "items"
BLOCKS: Final[dict[str, dict[str, Any]]] = {
    PROVIDER: {"type": "thinking", "thinking": "hm", "signature": "signed"},
    CHAT: {"reasoning_content": "hm"},
    ITEMS: {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
}
"""What the model of each provider thinks, in the provider's form: Anthropic's, chat completions, Responses."""
GIVEN: Final = (
    File(b"\x89PNG\r\n\x1a\n", "image/png", "cat.png"),
    File(b"%PDF-1.7\n", "application/pdf", "figures.pdf"),
    File(b"a,b\n1,2\n", "text/csv"),
    File(b"PK\x05\x06", "application/zip", "all.zip"),
)
"""Files of messages, results and answers."""
BYTES: Final[Mapping[str, bytes]] = {
    attachment.name: attachment.data for attachment, _ in (one.kept() for one in GIVEN)
}
_KEYS: Final = frozenset({"reasoning_content"})


def check_renderings(messages: Sequence[Message]) -> None:
    """Check what each provider is given of a thread."""
    chat = render_openai(messages, provider=CHAT, files=BYTES)
    if chat:
        check_openai(chat, keys=_KEYS)
    items = render_responses(messages, provider=ITEMS, files=BYTES)
    if items:
        check_responses(items)
    for provider in (PROVIDER, "other"):
        spoken = render_anthropic(messages, provider=provider, thinking=True, files=BYTES)
        if spoken:
            check_anthropic(spoken, thinking=True, as_said=provider == PROVIDER)
    given = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
    results = [one.content for one in messages if one.role == Role.TOOL and one.status != "retracted"]
    assert len(given) == len(results), f"{len(results)} results are in the thread, and {len(given)} are given"
    for content in results:
        assert any(content in one for one in given), f"the result {content!r} is not given"


__all__ = ["BLOCKS", "BYTES", "CHAT", "GIVEN", "ITEMS", "check_renderings"]
