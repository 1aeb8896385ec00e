"""How the store is: what the API, the metrics and `doctor` say of it."""

from __future__ import annotations

from msgspec import Struct


class JournalHealth(Struct, frozen=True):
    """The stop journal.

    `kept`: Stops in it; `unwritten`: slots that are still to be written; `torn`: records of which the start found a
    part; `refused`: Stops that found no room; `error`: why it cannot write now.
    """

    kept: int
    unwritten: int
    slots: int
    slots_free: int
    torn: int
    refused: int
    error: str | None


class StoreHealth(Struct, frozen=True):
    """The store at one moment. Times are seconds; `failed_at` since the epoch, UTC.

    state: ``ok``; ``slow``: what was handed in waits longer than it should, as behind another process's lock;
    ``failing``: the last attempt to write failed, and none has succeeded since; ``damaged``: it takes writes, and the
    check after an error found the file malformed; ``closed``.

    `error` is the last one, whether or not it is over. `lag_s` is how long the oldest of the `waiting` batches and
    loads has waited. `integrity` is what the last check found: ``ok``, the damage, or that it was not finished.
    `left_out` names what could not be stored, or not be read: the newest of it.
    """

    state: str
    error: str | None
    failed_at: float | None
    waiting: int
    lag_s: float
    integrity: str | None
    left_out: tuple[str, ...]
    journal: JournalHealth

    @property
    def writable(self) -> bool:
        """True where a message would be accepted, as far as is known."""
        return self.state in ("ok", "slow", "damaged")
