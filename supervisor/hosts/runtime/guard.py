"""Guards: the gate for effects of the agent's or a tool's own. The daemon decides, so entering one asks it.

Theory of operation. A Stop is decided in the daemon, so only there can a guard be compared with it. The daemon counts
the effect as begun, and then answers. The effect takes place only if the answer is here and no cancel is. If the cancel
comes between the daemon's decision and the effect, the effect does not take place, although the daemon has counted it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import Invalid
from .main_thread import PlainDoor
from .plain import storable
from .spawning import _request, _wait, _wait_async

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .run import Run
    from .token import CancelToken

NAME_MAX_CHARS = 200


class Gate:
    """Where the guards of one token ask: under the fence of its run, or of its call."""

    def __init__(self, run: Run, token: CancelToken, fence: str) -> None:
        self.run = run
        self.token = token
        self._fence = fence

    def plain(self, name: object) -> Guard:
        """Return a guard for plain code."""
        return Guard(self, _checked(name))

    def aio(self, name: object) -> AsyncGuard:
        """Return a guard for async code."""
        return AsyncGuard(self, _checked(name))

    def begin(self, name: str) -> Future[None]:
        """Ask whether an effect may begin; returns the future of the answer."""
        _, reply = _request(self.run, self.token, "guard", {"fence": self._fence, "name": name}, lambda _: None)
        return reply

    def finish(self, name: str) -> None:
        """Report that an effect is done."""
        self.run.host.wire.note("guard.done", {"fence": self._fence, "name": name})


def _checked(name: object) -> str:
    """Return a name as it is sent. The daemon makes one line of it."""
    if not isinstance(name, str) or not name.strip():
        raise Invalid(
            "a guard needs a name of the effect",
            expected="a str that is not empty",
            got=repr(name)[:NAME_MAX_CHARS],
            remedy="token.guard('write report')",
        )
    return storable(name[:NAME_MAX_CHARS])


class Guard:
    """What `CancelToken.guard` returns. It may be entered again, also from several threads at once."""

    def __init__(self, gate: Gate, name: str) -> None:
        self._gate = gate
        self._name = name

    def __enter__(self) -> None:
        """Begin the effect. Raises RunCancelled if a fence was first; then it must not take place."""
        _wait(self._gate.run, self._gate.token, lambda: self._gate.begin(self._name), None)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Report that the effect is done, unless it raised. As a method of the turn it may raise RunCancelled then."""
        if kind is None:
            # In a door: a signal must not cut the frame.
            with PlainDoor(self._gate.run.host.main, self._gate.token):
                self._gate.finish(self._name)


class AsyncGuard:
    """What `AsyncCancelToken.guard` returns: for ``async with``."""

    def __init__(self, gate: Gate, name: str) -> None:
        self._gate = gate
        self._name = name

    def __enter__(self) -> None:
        """Raise Invalid: it would block the loop."""
        raise Invalid(
            "a guard in a process of its own asks the daemon, and would block the event loop meanwhile",
            expected="async with",
            got="with",
            remedy="async with token.guard(…):",
        )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Do nothing: it is never entered."""

    async def __aenter__(self) -> None:
        """Begin the effect. Raises asyncio.CancelledError, with its `provenance`, if a fence was first."""
        await _wait_async(self._gate.run, self._gate.token, lambda: self._gate.begin(self._name), None)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Report that the effect is done, unless it raised."""
        if kind is None:
            self._gate.finish(self._name)
