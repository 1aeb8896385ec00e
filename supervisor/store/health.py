"""The health of the store, as the API, the metrics and `doctor` show it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from supervisor.states import WRITABLE, StoreFault, StoreState

REMEDIES: Final = {
    StoreFault.LOCKED: (
        "end the program that keeps the store's file locked, or wait for it: lsof on it names who has it open"
    ),
    StoreFault.FULL: "free space on the disk of the state directory; the store then recovers by itself",
    StoreFault.MALFORMED: (
        "stop the daemon, copy the state directory, and restore the store's file from an undamaged copy"
    ),
    StoreFault.DISK: (
        "look at the disk, at the permissions of the state directory, and that the store's file is still there"
    ),
}
"""What to do about each kind of error."""
DISK_LEAST_BYTES: Final = 256 * 1024 * 1024
"""With less free space in the state directory, `doctor` warns."""
JOURNAL_HANGS_S: Final = 3.0
"""A write of the stop journal that takes longer is reported as hanging; it is not aborted."""


def error_text(error: BaseException) -> str:
    """Return the text of an error, or the name of its class where it has none."""
    return str(error) or type(error).__name__


class JournalHealth(Struct, frozen=True):
    """The stop journal.

    `kept`: Stops in it; `unwritten`: slots still to be written; `torn`: partly written records found at the start;
    `refused`: Stops there was no room for; `error`: why it cannot write now; `writing_s`: how long the write under way
    has taken, in seconds.
    """

    kept: int
    unwritten: int
    slots: int
    slots_free: int
    torn: int
    refused: int
    error: str | None
    writing_s: float

    @property
    def hangs(self) -> bool:
        """True if a write has been under way for longer than `JOURNAL_HANGS_S`."""
        return self.writing_s > JOURNAL_HANGS_S

    @property
    def writes(self) -> bool:
        """True if it can write, as far as is known."""
        return self.error is None and not self.hangs

    @property
    def well(self) -> bool:
        """True if the journal would keep a Stop that the store cannot write."""
        return self.writes and self.slots_free > 0

    @property
    def remedy(self) -> str:
        """What helps; empty where nothing has to."""
        if self.well:
            return ""
        what = (
            "look at the disk of the state directory: it does not answer"
            if self.hangs
            else "repair the store, or the disk"
        )
        return f"{what}; a crash loses a stop that is not kept"


class StoreHealth(Struct, frozen=True):
    """The store at one moment. Times are seconds; `failed_at` since the epoch, UTC.

    `error`: the last one, past or present; `kind`: its kind. `reopened`: how often an error made the file be opened
    again. `unfit`: batches since the start that could not be stored. `waiting`: batches and loads in the queue;
    `lag_s`: how long the oldest of them, or of the group under way, has waited. `integrity`: the result of the last
    check: ``ok``, the damage, or that it was not finished. `left_out`: the newest names of batches that could not be
    stored and of rows that could not be read.
    """

    state: StoreState
    error: str | None
    kind: StoreFault | None
    failed_at: float | None
    reopened: int
    unfit: int
    waiting: int
    lag_s: float
    integrity: str | None
    left_out: tuple[str, ...]
    journal: JournalHealth

    @property
    def writable(self) -> bool:
        """True if a message would be accepted, as far as is known."""
        return self.state in WRITABLE

    @property
    def words(self) -> str:
        """The state, in one line for people."""
        text = {
            StoreState.OK: "it takes writes",
            StoreState.SLOW: f"the oldest write has waited for {self.lag_s:.1f} s",
            StoreState.FAILING: f"it takes no writes: {self.error}",
            StoreState.DAMAGED: f"it takes writes, and its file is damaged: {self.integrity}",
            StoreState.CLOSED: "it is closed",
        }[self.state]
        return f"{text}; {self.waiting} waiting"

    @property
    def remedy(self) -> str:
        """What helps; empty where nothing has to."""
        if self.state is StoreState.OK:
            return ""
        if self.state is StoreState.CLOSED:
            return "start the daemon again"
        if self.state is StoreState.DAMAGED:
            return REMEDIES[StoreFault.MALFORMED]
        return REMEDIES[StoreFault.LOCKED if self.state is StoreState.SLOW else self.kind or StoreFault.DISK]
