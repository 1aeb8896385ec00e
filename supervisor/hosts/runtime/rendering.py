"""The renderings of threads and tools for providers: files of the daemon's process, which need no other library."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 3, "actors", "plugin")


def _loaded(name: str) -> Any:
    # Not by its package, which needs libraries that an agent's interpreter may not have.
    file = os.path.join(FOLDER, f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{__package__}.shared_{name}", file)
    assert spec is not None, "it is a file of Python's"
    assert spec.loader is not None, "it is a file of Python's"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_shared = _loaded("rendering")
newest_media = _shared.newest_media
render_anthropic = _shared.render_anthropic
render_openai = _shared.render_openai
render_responses = _shared.render_responses
_shared = _loaded("offering")
offer_anthropic = _shared.offer_anthropic
offer_openai = _shared.offer_openai
offer_responses = _shared.offer_responses
