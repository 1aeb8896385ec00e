"""The renderings of a thread for providers: the file of the daemon's process, which needs no other library."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

FILE = os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 3, "actors", "plugin", "rendering.py")


def _loaded() -> Any:
    # Not by its package, which needs libraries that an agent's interpreter may not have.
    spec = importlib.util.spec_from_file_location(f"{__package__}.shared_rendering", FILE)
    assert spec is not None, "it is a file of Python's"
    assert spec.loader is not None, "it is a file of Python's"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_shared = _loaded()
render_anthropic = _shared.render_anthropic
render_openai = _shared.render_openai
render_responses = _shared.render_responses
