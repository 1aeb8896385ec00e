"""Each: steps that stand alone. One that fails keeps no other from being done."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec

from loguru import logger

P = ParamSpec("P")


class Each:
    """A context for steps that stand alone. It raises the first failure when all are done; further ones are logged.

    An actor that is left so fails as it would have at that step.
    """

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def __enter__(self) -> Each:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._failure is not None:
            raise self._failure

    def do(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do one step. What it raises is kept until the context is left."""
        try:
            step(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # the steps behind it are done, whatever it was
            if self._failure is None:
                self._failure = error
            else:
                logger.opt(exception=True).error("this failed too: {}", step)
