"""How the store is: what the API, the metrics and `doctor` say of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

REMEDIES: Final = {
    "locked": "end the program that keeps the store's file locked, or wait for it: lsof on it names who has it open",
    "full": "free space on the disk of the state directory; the store finds it by itself",
    "malformed": "stop the daemon, copy the state directory, and put the store's file back from a copy that is whole",
    "disk": "look at the disk, at the permissions of the state directory, and that the store's file is still there",
}
"""What helps, by what the last error was."""
DISK_LEAST_BYTES: Final = 256 * 1024 * 1024
"""With less room than that in the state directory, `doctor` warns."""
JOURNAL_HANGS_S: Final = 3.0
"""A write of the stop journal that takes longer is said to hang; it goes on all the same."""
STATES: Final = ("ok", "slow", "failing", "damaged", "closed")


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

    state: ``ok``; ``slow``: what was handed in waits longer than it should, as behind another process's lock;
    ``failing``: the last attempt to write failed, and none has succeeded since; ``damaged``: it takes writes, and the
    check after an error found the file malformed; ``closed``.

    `error` is the last one, whether or not it is over, and `kind` what it was: ``locked``, ``full``, ``malformed`` or
    ``disk``, which is any other. `reopened`: how often the file was opened again for one. `unfit`: batches since the
    start that were put aside, since they cannot be stored. `lag_s` is how long the oldest of the `waiting` batches and
    loads has waited. `integrity` is what the last check found: ``ok``, the damage, or that it was not finished.
    `left_out` names what could not be stored, or not be read: the newest of it.
    """

    state: str
    error: str | None
    kind: str | None
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
        return self.state in ("ok", "slow", "damaged")

    @property
    def words(self) -> str:
        """How it is, in one line for people."""
        said = {
            "ok": "it takes writes",
            "slow": f"what was handed in waits for {self.lag_s:.1f} s",
            "failing": f"it takes no writes: {self.error}",
            "damaged": f"it takes writes, and its file is damaged: {self.integrity}",
            "closed": "it is closed",
        }[self.state]
        return f"{said}; {self.waiting} waiting"

    @property
    def remedy(self) -> str:
        """What helps; empty where nothing has to."""
        if self.state == "ok":
            return ""
        if self.state == "closed":
            return "start the daemon again"
        if self.state == "damaged":
            return REMEDIES["malformed"]
        return REMEDIES["locked" if self.state == "slow" else self.kind or "disk"]
