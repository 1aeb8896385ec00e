"""The main thread of a plain agent: where, and where not, a signal interrupts it. See the head of this package."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import signal
import threading
import time
import types
import typing
from collections.abc import Callable
from typing import Any

from .errors import RunCancelled
from .token import CancelToken, tell
from .values import Provenance

SIGNAL_AGAIN_S = 0.02
SIGNAL_AGAIN_MAX_S = 0.5

UNSET: Any = object()
"""Stands for the value of code that has none."""


class Target:
    """Code on the main thread: the agent, or the function of a gated call in it. `told`: it was notified of its end."""

    __slots__ = ("token", "told")

    def __init__(self, token: CancelToken) -> None:
        self.token = token
        self.told = False


class MainThread:
    """Raises RunCancelled on the main thread, once, where the agent's own code is."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.targets: list[Target] = []
        # How many doors the main thread is in.
        self.doors = 0

    @property
    def is_here(self) -> bool:
        """True on the main thread."""
        return threading.get_ident() == self.ident

    def interrupt(self, _signal: int, frame: types.FrameType | None) -> None:
        """Handle SIGINT, on the main thread, between any two bytecodes."""
        target = self._owed()
        if target is None:
            return
        target.told = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RunCancelled(typing.cast("Provenance", target.token.provenance)) from None
        # The agent runs a loop of its own: cancel its main task, which ends the others in its usual way.
        main, told = _main_task(frame), target.token._told

        def tell_all() -> None:
            for task in asyncio.all_tasks(loop) if main is None else (main,):
                tell(task, told)

        loop.call_soon_threadsafe(tell_all)

    def urge(self) -> None:
        """Interrupt the agent's code on the main thread, until it was notified. Any thread."""
        if self._owed() is not None:
            self._kill()
            threading.Thread(target=self._urge, name="countermand-urge", daemon=True).start()

    def _urge(self) -> None:
        pause = SIGNAL_AGAIN_S
        # An agent with a handler of its own gets one signal.
        while signal.getsignal(signal.SIGINT) == self.interrupt:
            time.sleep(pause)
            if self._owed() is None:
                return
            self._kill()
            pause = min(2 * pause, SIGNAL_AGAIN_MAX_S)

    def _kill(self) -> None:
        signal.pthread_kill(self.ident, signal.SIGINT)

    def attempt(self, token: CancelToken, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the agent's code: the agent, or the function of a gated call, from inside of a door.

        Returns its value, or UNSET and its error. On the main thread the handler may raise in it, once: from the first
        line here up to the line that records the notification.
        """
        if not self.is_here:
            try:
                token.raise_if_cancelled()
                return function(), None
            except BaseException as error:  # noqa: BLE001  # every end of the agent's code is noted
                return UNSET, error
        doors, target = self.doors, Target(token)
        try:
            value, raised = self._attempt(target, function)
        except RunCancelled as late:
            # The signal came while another error was noted.
            value, raised = UNSET, late
        # In this order: below is the target of the run, which the door tells.
        self.doors = doors
        self.targets.remove(target)
        return value, raised

    def _attempt(self, target: Target, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            self.targets.append(target)
            self.doors = 0
            target.token.raise_if_cancelled()
            value = function()
            target.told = True
        except BaseException as error:  # noqa: BLE001  # every end of the agent's code is noted
            target.told = True
            return UNSET, error
        return value, None

    def _owed(self) -> Target | None:
        """Return the target that has to be notified, if no door will do it."""
        for target in self.targets[-1:]:
            if not self.doors and target.token.cancelled and not target.told:
                return target
        return None


def _main_task(frame: types.FrameType | None) -> asyncio.Task[Any] | None:
    """Return the task that the loop in these frames runs until it is complete; None if that is not known."""
    while frame is not None:
        if frame.f_code is asyncio.base_events.BaseEventLoop.run_until_complete.__code__:
            task = frame.f_locals.get("future")
            return task if isinstance(task, asyncio.Task) else None
        frame = frame.f_back
    return None


class PlainDoor:
    """Wraps each method that plain code uses. On the main thread it notifies instead of the handler."""

    __slots__ = ("_main", "_token")

    def __init__(self, main: MainThread, token: CancelToken) -> None:
        self._main = main
        self._token = token

    def __enter__(self) -> None:
        """Go in: from here on the handler does nothing."""
        if self._main.is_here:
            self._main.doors += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave, and then look at the token: a signal that came in here did nothing."""
        main = self._main
        if not main.is_here:
            return
        target = main.targets[-1] if main.targets else None
        if target is not None and isinstance(error, RunCancelled) and self._token.cancelled:
            target.told = True
        main.doors -= 1
        if target is not None and target.token.provenance is not None and not target.told:
            target.told = True
            raise RunCancelled(target.token.provenance) from error
