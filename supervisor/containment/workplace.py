"""The directory that a command begins in.

By default that is the supervisor's own working directory, which may be removed: a build directory, a checkout. If
another one of that name exists by now, commands begin in that. Otherwise they begin in an empty one in the state
directory: a script that cleans up must not delete other files than it meant.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from loguru import logger

FOLDER: Final = "workplace"


class Workplace:
    """Where commands begin. `path` may be called from any thread, one at a time.

    Args:
        state_dir: absolute; a directory is made in it when it is needed.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER
        self._last: str | None = None
        self._logged = ""
        with contextlib.suppress(FileNotFoundError):
            self._last = os.getcwd()

    def path(self, wanted: str | None) -> str:
        """Return the absolute path of the directory for a command that asks for `wanted`, or for none.

        It may not exist: the command then reports that. The kernel resolves it: behind a symbolic link `..` is another
        directory than the text says. Raises OSError if a directory cannot be made.
        """
        if wanted is not None and os.path.isabs(wanted):
            return wanted
        return os.path.join(self._own(), wanted) if wanted else self._own()

    def _own(self) -> str:
        try:
            self._last = os.getcwd()
        except FileNotFoundError:
            if self._last is None or not os.path.isdir(self._last):
                return self._instead()
        return self._last

    def _instead(self) -> str:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        gone = self._last or "in which this was started"
        if gone != self._logged:
            self._logged = gone
            logger.warning("the directory {} was removed: commands begin in {} instead", gone, self._folder)
        return str(self._folder)
