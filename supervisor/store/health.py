"""How the store is: what the API, the metrics and `doctor` say of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from supervisor.states import WRITABLE, StoreFault, StoreState

REMEDIES: Final = {
    StoreFault.LOCKED: (
        "end the program that keeps the store's file locked, or wait for it: lsof on it names who has it open"
    ),
    StoreFault.FULL: "free space on the disk of the state directory; the store finds it by itself",
    StoreFault.MALFORMED: (
        "stop the daemon, copy the state directory, and put the store's file back from a copy that is whole"
    ),
    StoreFault.DISK: (
        "look at the disk, at the permissions of the state directory, and that the store's file is still there"
    ),
}
"""What helps, by what the last error was."""
DISK_LEAST_BYTES: Final = 256 * 1024 * 1024
"""With less room than that in the state directory, `doctor` warns."""
JOURNAL_HANGS_S: Final = 3.0
"""A write of the stop journal that takes longer is said to hang; it goes on all the same."""


def error_text(error: BaseException) -> str:
    """Return what an error of SQLite or of the disk says; its class where it says nothing."""
    return str(error) or type(error).__name__


class JournalHealth(Struct, frozen=True):
    """The stop journal.

    `kept`: Stops in it; `unwritten`: slots that are still to be written; `torn`: records of which the start found a
    part; `refused`: Stops that found no room; `error`: why it cannot write now; `writing_s`: how long the write that
    is under way has taken, in seconds.
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
        """True where its disk neither writes nor refuses to."""
        return self.writing_s > JOURNAL_HANGS_S

    @property
    def writes(self) -> bool:
        """True where it can write, as far as is known."""
        return self.error is None and not self.hangs

    @property
    def well(self) -> bool:
        """True where a Stop that the store does not take would be kept here."""
        return self.writes and self.slots_free > 0

    @property
    def remedy(self) -> str:
        """What helps; empty where nothing has to."""
        if self.well:
            return ""
        what = (
            "look at the disk of the state directory: it does not answer"
            if self.hangs
            else "mend the store, or the disk"
        )
        return f"{what}; a stop that is not kept is forgotten by a crash"


class StoreHealth(Struct, frozen=True):
    """The store at one moment. Times are seconds; `failed_at` since the epoch, UTC.

    `error` is the last one, whether or not it is over, and `kind` what it was about. `reopened`: how often the file was
    opened again for one. `unfit`: batches since the start that were put aside, since they cannot be stored. `lag_s` is
    how long the oldest of the `waiting` batches and loads has waited. `integrity` is what the last check found: ``ok``,
    the damage, or that it was not finished. `left_out` names what could not be stored, or not be read: the newest of
    it.
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
        """True where a message would be accepted, as far as is known."""
        return self.state in WRITABLE

    @property
    def words(self) -> str:
        """How it is, in one line for people."""
        said = {
            StoreState.OK: "it takes writes",
            StoreState.SLOW: f"what was handed in waits for {self.lag_s:.1f} s",
            StoreState.FAILING: f"it takes no writes: {self.error}",
            StoreState.DAMAGED: f"it takes writes, and its file is damaged: {self.integrity}",
            StoreState.CLOSED: "it is closed",
        }[self.state]
        return f"{said}; {self.waiting} waiting"

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
