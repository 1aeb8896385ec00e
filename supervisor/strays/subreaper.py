"""Whether orphans fall to this process."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37


def inherits_orphans() -> bool:
    """True if a descendant that loses its parent becomes a child of this process."""
    if os.getpid() == 1:
        return True
    answer = ctypes.c_int(0)
    return _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer)) == 0 and answer.value == 1


def inherit_orphans() -> bool:
    """Make this process the parent of orphaned descendants; False if it cannot be. It affects the whole program."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: Any) -> int:
    try:
        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))
    except (OSError, AttributeError):
        return -1
