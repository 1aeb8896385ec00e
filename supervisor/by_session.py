"""BySession: ids, and the session that each belongs to.

What the ports keep of a session is found by it, at a cost that does not grow with the other sessions.
"""

from __future__ import annotations


class BySession:
    """Ids by session. It has no lock: its owner has one, or a thread of its own."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._ids: dict[str, set[str]] = {}

    def add(self, key: str, session: str) -> None:
        """Note the session of an id, which may have had another; with "" it belongs to none."""
        self.discard(key)
        if session:
            self._of[key] = session
            self._ids.setdefault(session, set()).add(key)

    def discard(self, key: str) -> None:
        """Forget an id, if it is known."""
        session = self._of.pop(key, None)
        if session is not None:
            ids = self._ids[session]
            ids.discard(key)
            if not ids:
                del self._ids[session]

    def of(self, session: str) -> list[str]:
        """Return the ids of a session, in an order that means nothing."""
        return list(self._ids.get(session, ()))
