"""The ids port: ids that are unique across restarts, and sort by the time at which they were made."""

from __future__ import annotations

from actors.ids import new_request_id


class RandomIds:
    """`actors.ports.Ids`: the kind, then the time in microseconds and 70 random bits in base 32."""

    def new(self, kind: str) -> str:
        """Return a new id such as ``run_01m8…``. Any thread."""
        return f"{kind}_{new_request_id().removeprefix('req_')}"
