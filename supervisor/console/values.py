"""The values of options: texts, and those that are not given, are taken as they are.

Typer has pydantic look at every value, and loading that takes longer than most commands do. Numbers that are given, and
whatever else is not plain, are its to check all the same. A release of typer that does without needs none of this.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


def take_plainly(command: Any) -> None:
    """Have a command and those below it take plain values as they are."""
    found = command.get_params

    def parameters(context: Any) -> list[Any]:
        # Here and not once, since the one for help is made when it is asked for.
        every: list[Any] = found(context)
        for one in every:
            descriptor = getattr(one, "type_descriptor", None)
            if descriptor is not None and not isinstance(one.process_value, _Plainly):
                one.process_value = _Plainly(one, descriptor.annotation)
        return every

    command.get_params = parameters
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            take_plainly(below)


class _Plainly:
    """In place of a parameter's own `process_value`, which it asks for all that is not plain."""

    def __init__(self, parameter: Any, annotation: object) -> None:
        self._parameter = parameter
        self._annotation = annotation
        self._checked = parameter.process_value

    def __call__(self, context: Any, value: Any) -> Any:
        if not self._is_plain(value):
            return self._checked(context, value)
        callback = self._parameter.callback
        return value if callback is None else callback(context, self._parameter, value)

    def _is_plain(self, value: object) -> bool:
        parameter = self._parameter
        if value is None:
            return not parameter.required
        if parameter.multiple:
            return self._annotation == list[str]
        # The default of a number, which nobody has typed.
        return self._annotation is str or (isinstance(value, int | float) and value is parameter.default)
