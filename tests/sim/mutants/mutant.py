"""Mutant: a fault of the product that is planted alone, and hunted by schedules.

A mutant replaces text in the source of a few functions, and is made anew in each process. If that text is no longer
there, the mutant cannot be planted, and an error says so. Nothing else changes: the check that finds the mutant is the
check that guards the law.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from tests.sim.schedule import broken, draw


@dataclass(frozen=True, slots=True)
class Edit:
    """One function of a class or of a module, and the text that is replaced in its source."""

    owner: type | ModuleType
    function: str
    old: str
    new: str

    def made(self) -> Any:
        """Return the function with the edit in it, or the descriptor.

        Raises:
            ValueError: the text is not in the source, or is there more than once.
        """
        if inspect.getattr_static(self.owner, self.function, None) is None:
            raise ValueError(f"{self.owner.__name__}.{self.function} is not there: the mutant has to follow the code")
        plain: Any = inspect.unwrap(getattr(_raw(self.owner, self.function), "fget", None) or _function(self))
        source = textwrap.dedent(inspect.getsource(plain))
        if source.count(self.old) != 1:
            where = f"{self.owner.__name__}.{self.function}"
            raise ValueError(f"{where}: expected {self.old!r} once, it is there {source.count(self.old)} times")
        # `super()` in a function finds its class by the name `__class__`.
        inside = textwrap.indent(source.replace(self.old, self.new), "    ")
        code = f"def make(__class__):\n{inside}\n    return {self.function}\n"
        made: dict[str, Any] = {}
        exec(compile(code, f"<{self.function}>", "exec"), plain.__globals__, made)
        classes = getattr(self.owner, "__mro__", ())
        return made["make"](next((one for one in classes if self.function in vars(one)), None))


def _raw(owner: type | ModuleType, name: str) -> Any:
    return inspect.getattr_static(owner, name)


def _function(edit: Edit) -> Any:
    raw = _raw(edit.owner, edit.function)
    return getattr(raw, "__func__", raw)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    law: the law that it breaks.
    edits: what is replaced.
    other: returns a context in which the fault is planted, if no edit can plant it.
    """

    name: str
    law: str
    edits: tuple[Edit, ...] = ()
    other: Callable[[], Any] | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Return a context in which the actors have the fault."""
        with ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(mock.patch.object(edit.owner, edit.function, edit.made()))
            if self.other is not None:
                stack.enter_context(self.other())
            yield

    def hunt(self, schedules: int, first: int = 0) -> int | None:
        """Run schedules with the fault planted, from number `first`, at most `schedules` of them.

        Returns how many it took to find the fault; None if none of them did.
        """
        with self.planted():
            for number in range(schedules):
                if broken(draw(first + number)) is not None:
                    return number + 1
        return None


def mutant(name: str, law: str, owner: type | ModuleType, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, law, (Edit(owner, function, old, new),))


def at_once(effect: str) -> tuple[str, str]:
    """Return an edit of `Batches.send_step`: one kind of effect is carried out before the commit."""
    old = "    later = step.later\n"
    new = (
        f"    self._effects.carry_out_later([one for one in step.later if type(one).__name__ == {effect!r}])\n"
        f"    step.later = [one for one in step.later if type(one).__name__ != {effect!r}]\n{old}"
    )
    return old, new
