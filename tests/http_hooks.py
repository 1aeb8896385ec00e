"""What schemathesis has to know: which names a session can have. It is loaded by `tests/test_http_schema.py`."""

from __future__ import annotations

import schemathesis
from hypothesis import strategies as st

_PRINTABLE = st.characters(codec="utf-8", exclude_categories=["C", "Z"])

schemathesis.openapi.format("session-name", st.text(_PRINTABLE, min_size=1, max_size=128))
