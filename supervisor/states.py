"""The states of the store and of agents, for health, the API and the metrics."""

from __future__ import annotations

from enum import StrEnum


class StoreState(StrEnum):
    """How the store is."""

    OK = "ok"
    """It takes writes."""
    SLOW = "slow"
    """What was handed in waits longer than it should, as behind another process's lock."""
    FAILING = "failing"
    """The last attempt to write failed, and none has succeeded since."""
    DAMAGED = "damaged"
    """It takes writes, and the check after an error found the file malformed."""
    CLOSED = "closed"
    """It was closed."""


WRITABLE = frozenset({StoreState.OK, StoreState.SLOW, StoreState.DAMAGED})
"""Those in which a message would be accepted."""


class StoreFault(StrEnum):
    """What an error of the store is about."""

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
    """How an agent is."""

    READY = "ready"
    """A run of it can begin, or has begun."""
    STARTING = "starting"
    """Its first host has not said hello yet."""
    COLD = "cold"
    """It has no host, and no spare is wanted: its next run starts one."""
    BROKEN = "broken"
    """It could not be loaded, or the last host of it could not be started."""
