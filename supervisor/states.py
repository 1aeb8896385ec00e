"""The states of the store and of agents, for health, the API and the metrics."""

from __future__ import annotations

from enum import StrEnum


class StoreState(StrEnum):
    """The state of the store."""

    OK = "ok"
    """It takes writes."""
    SLOW = "slow"
    """Writes wait longer than they should, as behind another process's lock."""
    FAILING = "failing"
    """The last attempt to write failed, and none has succeeded since."""
    DAMAGED = "damaged"
    """It takes writes, and the check after an error found the file malformed."""
    CLOSED = "closed"
    """It was closed."""


WRITABLE = frozenset({StoreState.OK, StoreState.SLOW, StoreState.DAMAGED})
"""The states in which a message would be accepted."""


class StoreFault(StrEnum):
    """The kind of an error of the store."""

    LOCKED = "locked"
    """Another process has the file locked."""
    FULL = "full"
    """The disk is full."""
    MALFORMED = "malformed"
    """The file is damaged."""
    DISK = "disk"
    """Any other error."""


class AgentPlace(StrEnum):
    """Where an agent runs."""

    HOST = "host"
    """In processes of its own."""
    DAEMON = "daemon"
    """In the daemon's own process."""


class AgentState(StrEnum):
    """The state of an agent."""

    READY = "ready"
    """A run of it can begin, or has begun."""
    STARTING = "starting"
    """Its first host has not said hello yet."""
    COLD = "cold"
    """It has no host, and no spare is wanted: its next run starts one."""
    BROKEN = "broken"
    """It could not be loaded, or the last host of it could not be started."""
