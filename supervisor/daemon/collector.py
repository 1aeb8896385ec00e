"""The collector of garbage, which waits for the end of a start.

A start reads a thousand modules, and they all stay. Looking for garbage among them again and again, as Python does
while objects come to be, takes a seventh of the start and finds next to nothing. Nor does what is there at its end have
to be looked at later: that would hold up every thread of the daemon, now and then, for a tenth of a second.
"""

from __future__ import annotations

import gc


def hold() -> None:
    """Look for no garbage until `release`."""
    gc.disable()


def release() -> None:
    """Look for garbage again, among what comes to be from now on."""
    gc.freeze()
    gc.enable()
