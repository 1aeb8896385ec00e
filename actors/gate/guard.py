"""Guards: the gate for effects of a tool's or an agent's own, such as a request or a write to a file.

Theory of operation. Entering a guard is one compare-and-set under the lock of its token, as is the cancel. So either
the guard is entered first, and the effect counts as begun, or the cancel is first, and the effect does not take place.
The compare-and-set is the last step before the effect. What has begun is kept in memory, and goes on record with the
end of the call, or with that of the run. The token is kept with the execution: so a failure of the store, or of an
actor, forgets nothing of it; a crash of the daemon does.

A loop may enter a guard a million times. So effects are counted by name, and beyond a number of names together.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final

from actors.errors import Invalid
from actors.model import Effect
from actors.text import one_line, shown, storable

if TYPE_CHECKING:
    from actors.gate.token import CancelBoundary, CancelToken

NAMES_MAX: Final = 32
"""How many names of effects a token has; further ones are counted together, as `OTHERS`."""
NAME_MAX_CHARS: Final = 200
OTHERS: Final = "others"


class Effects:
    """The effects of one token, counted by name. Counting needs the token's lock; reading needs none."""

    __slots__ = ("_begun", "_done")

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """Count an effect that begins."""
        if name not in self._begun and len(self._begun) >= NAMES_MAX:
            name = OTHERS
        self._begun[name] = self._begun.get(name, 0) + 1

    def finish(self, name: str) -> bool:
        """Count an effect that is done. False: none of this name had begun and not been done."""
        if name not in self._begun:
            name = OTHERS
        done = self._done.get(name, 0) + 1
        if done > self._begun.get(name, 0):
            return False
        self._done[name] = done
        return True

    def listed(self) -> tuple[Effect, ...]:
        """Return them in the order in which they first began. Copying a dict is one step for other threads."""
        done = dict(self._done)
        return tuple(Effect(name, begun, done.get(name, 0)) for name, begun in dict(self._begun).items())


class Guard:
    """What `CancelToken.guard` returns. It may be entered again, also from several threads at once."""

    __slots__ = ("_name", "_token")

    def __init__(self, token: CancelToken, name: object) -> None:
        if not isinstance(name, str) or not name.strip():
            raise Invalid(
                "a guard needs a name of the effect",
                expected="a str that is not empty",
                got=shown(name),
                remedy="token.guard('write report')",
            )
        self._token = token
        self._name = one_line(storable(name[:NAME_MAX_CHARS]))

    def begin(self) -> None:
        """Begin the effect. Raises RunCancelled if a fence was first; then it must not take place."""
        self._token._begin_effect(self._name)

    def finish(self) -> bool:
        """Take note that the effect is done. False: it had not begun, or was done before."""
        return self._token._finish_effect(self._name)

    def __enter__(self) -> None:
        """Begin the effect. Raises RunCancelled if a fence was first; then it must not take place."""
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take note that the effect is done, unless it raised."""
        if kind is None:
            self.finish()


class AsyncGuard:
    """What `AsyncCancelToken.guard` returns: for ``with`` and for ``async with``.

    Neither awaits anything where the effect may begin. If it may not, ``async with`` behaves as a method of the turn:
    in a task of a group it lets the group cancel the task.
    """

    __slots__ = ("_boundary", "_guard")

    def __init__(self, guard: Guard, boundary: CancelBoundary) -> None:
        self._guard = guard
        self._boundary = boundary

    def __enter__(self) -> None:
        """Begin the effect. Raises asyncio.CancelledError, with its `provenance`, if a fence was first."""
        with self._boundary:
            self._guard.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take note that the effect is done, unless it raised."""
        self._guard.__exit__(kind, error, traceback)

    async def __aenter__(self) -> None:
        """Begin the effect. Raises asyncio.CancelledError, with its `provenance`, if a fence was first."""
        async with self._boundary:
            self._guard.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take note that the effect is done, unless it raised."""
        self._guard.__exit__(kind, error, traceback)
