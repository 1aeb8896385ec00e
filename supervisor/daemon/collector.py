"""Turns the garbage collector off during startup.

A start imports a thousand modules, which all stay in memory. Searching them for garbage again and again, as Python does
while objects are created, takes a seventh of the start and finds almost nothing. Later searches skip the objects of the
start as well: otherwise they would block every thread of the daemon, now and then, for a tenth of a second.
"""

from __future__ import annotations

import gc


def hold() -> None:
    """Turn the garbage collector off until `release`."""
    gc.disable()


def release() -> None:
    """Turn the garbage collector on again, for objects that are created from now on."""
    gc.freeze()
    gc.enable()
