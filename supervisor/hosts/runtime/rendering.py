"""The renderings of threads and tools for providers: files of the daemon's process, which need no other library."""

from __future__ import annotations

from .shared import load

_shared = load("rendering")
media_note = _shared.media_note
newest_media = _shared.newest_media
render_anthropic = _shared.render_anthropic
render_openai = _shared.render_openai
render_responses = _shared.render_responses
_shared = load("offering")
offer_anthropic = _shared.offer_anthropic
offer_openai = _shared.offer_openai
offer_responses = _shared.offer_responses
