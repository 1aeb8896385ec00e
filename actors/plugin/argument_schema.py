"""ArgumentSchema: the raw JSON schema of the arguments of a tool, as a framework or an MCP server has it.

A schema may come from an agent in a host, so checking it must be safe here: nothing is fetched for a reference, a
pattern may backtrack only so often, and the library bounds how deep it follows what refers to itself.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors.errors import Invalid
from actors.model import JsonObject
from actors.secrets import MARK, NOTHING, Withheld, withheld
from actors.text import shown, storable, storable_json

if TYPE_CHECKING:
    from jsonschema_rs import Validator

SCHEMA_MAX_BYTES: Final = 262_144
BACKTRACKS_MAX: Final = 100_000
"""How often one match of a pattern may go back; then it does not match."""

MISFITS_MAX: Final = 3
"""How many faults of one call's arguments are named."""

MISFIT_MAX_CHARS: Final = 300


class ArgumentSchema:
    """The schema of a tool's arguments.

    Args:
        tool: the tool's name, for errors.
        schema: a JSON schema of an object, of draft 4 or later; 2020-12 if it does not say.
        secret: names of the arguments that only the tool may see.

    Raises:
        Invalid: it is no valid schema, or not one of an object; it is larger than `SCHEMA_MAX_BYTES` as JSON; it
            refers to something that is not in it; or a secret argument is none of its properties.
    """

    def __init__(self, tool: str, schema: Mapping[str, Any], secret: Collection[str] = ()) -> None:
        self._tool = tool
        self.schema = self._plain(schema)
        properties = self.schema.get("properties")
        self.names = frozenset(properties if isinstance(properties, dict) else ())
        self._secret = frozenset(secret)
        self._validator = self._made()
        unknown = sorted(self._secret - self.names)
        if unknown:
            raise self._invalid("each secret argument to be one of its properties", ", ".join(unknown))

    def _plain(self, schema: object) -> JsonObject:
        plain: JsonObject = storable_json(dict(schema)) if isinstance(schema, Mapping) else {}
        try:
            size, same = len(msgspec.json.encode(plain)), plain == schema
        except RecursionError:
            size, same = 0, False
        if not same or size > SCHEMA_MAX_BYTES:
            expected = f"an object of plain JSON, at most {SCHEMA_MAX_BYTES} bytes"
            raise self._invalid(expected, f"{size} bytes" if same else shown(schema))
        if plain.get("type", "object") != "object":
            raise self._invalid("the type 'object', since the arguments of a call have names", shown(plain["type"]))
        return plain

    def _made(self) -> Validator:
        # Not at the top: most processes never need it.
        import jsonschema_rs

        patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX)
        # The values of a call with secrets are not to be in a text that is stored.
        mask = MARK if self._secret else None
        try:
            return jsonschema_rs.validator_for(self.schema, offline=True, pattern_options=patterns, mask=mask)
        except Exception as error:
            raise self._invalid("a valid JSON schema, which refers to nothing outside of it", _one(error)) from error

    def _invalid(self, expected: str, got: str) -> Invalid:
        return Invalid(
            f"the schema of the tool {self._tool!r} is not valid",
            expected=expected,
            got=got[:MISFIT_MAX_CHARS],
            remedy="give the schema that a model provider takes: {'type': 'object', 'properties': {…}}",
        )

    def check(self, arguments: Mapping[str, object]) -> str | None:
        """Return what is wrong with arguments, or None. The text names no value of a tool with secrets."""
        found = list(itertools.islice(self._validator.iter_errors(dict(arguments)), MISFITS_MAX + 1))
        if not found:
            return None
        faults = [_fault(error) for error in found[:MISFITS_MAX]]
        more = "; and more" if len(found) > MISFITS_MAX else ""
        return f"the arguments of {self._tool} do not fit: {'; '.join(faults)}{more}"

    def withheld(self, arguments: JsonObject) -> tuple[JsonObject, Withheld]:
        """Return the arguments to show, and the secret ones; see `actors.secrets`."""
        return withheld(arguments, self._secret, self.names)

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """Return the arguments for the tool, which may change them."""
        return copy.deepcopy(arguments)


def checked(
    tool: str, arguments: JsonObject, schema: Mapping[str, Any] | None, secret: Collection[str]
) -> tuple[str | None, JsonObject, Withheld]:
    """Return why a call is invalid, or None; the arguments to show; and the secret ones.

    Args:
        tool: what is called. Its code is not here, and neither is a `Tool` for it.
        arguments: of the call.
        schema: which they have to fit; None: there is none. If it is not valid, that is what is wrong.
        secret: names of the secret arguments.
    """
    if schema is None and not secret:
        return None, arguments, NOTHING
    if schema is None:
        return None, *withheld(arguments, frozenset(secret), frozenset(arguments))
    try:
        rules = ArgumentSchema(tool, schema, secret)
    except Invalid as error:
        # What is secret is not known then: nothing is shown if anything may be.
        return str(error), *withheld(arguments, frozenset(secret), frozenset())
    problem = rules.check(arguments)
    kept, secrets = rules.withheld(arguments)
    return problem, kept, secrets


def _fault(error: Any) -> str:
    where = ".".join(str(step) for step in error.instance_path)
    return (f"{where}: " if where else "") + _one(error.message)


def _one(error: object) -> str:
    """Return the first line of a text, not too much of it."""
    text = storable(str(error)).strip().partition("\n")[0]
    return text if len(text) <= MISFIT_MAX_CHARS else f"{text[:MISFIT_MAX_CHARS]}…"
