"""ArgumentSchema: the raw JSON schema of the arguments of a tool, as a framework or an MCP server has it.

A schema may come from an agent in a host, so checking it must be safe here: nothing is fetched for a reference, a
pattern may backtrack only so often, and the library bounds how deep it follows what refers to itself. It holds the
interpreter while it checks, so no Stop is handled meanwhile. So what a check costs is counted before.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

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
PATTERN_MAX_BYTES: Final = 500_000
"""How large a pattern may be once it is compiled, which takes some milliseconds then."""
PATTERNS_MAX: Final = 200
"""How many patterns a schema may have."""

MISFITS_MAX: Final = 3
"""How many faults of one call's arguments are named."""

MISFIT_MAX_CHARS: Final = 300

CHECKS_MAX: Final = 500_000
"""How many rules of a schema may be held against values in one check: that takes some hundredths of a second."""
NAMED_CHECKS_MAX: Final = 2_000
"""Up to so many, the faults are named. The library makes the texts of all faults, each with those of every branch."""
COUNT_STEPS_MAX: Final = 100_000
"""How many pairs of a rule and a value are looked at, to count that."""

_SAME: Final = ("not", "if", "then", "else")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_TABLES: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_ITEMS: Final = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
_OF_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_PATTERN_COSTS: Final = 100


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

        count = _patterns(self.schema)
        if count > PATTERNS_MAX:
            raise self._invalid(f"at most {PATTERNS_MAX} patterns", str(count))
        patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX, size_limit=PATTERN_MAX_BYTES)
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
        cost = _cost(self.schema, arguments)
        if cost > CHECKS_MAX:
            return f"the arguments of {self._tool} are too many, or its schema too entangled, to be checked"
        if self._validator.is_valid(dict(arguments)):
            return None
        if cost > NAMED_CHECKS_MAX:
            return f"the arguments of {self._tool} do not fit its schema"
        found = list(itertools.islice(self._validator.iter_errors(dict(arguments)), MISFITS_MAX + 1))
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


def _patterns(schema: JsonObject) -> int:
    """Return how many patterns a schema has at most."""
    count, todo = 0, list[Any]([schema])
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            properties = one.get("patternProperties")
            count += isinstance(one.get("pattern"), str) + (len(properties) if isinstance(properties, dict) else 0)
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return count


def _cost(schema: JsonObject, arguments: object) -> int:
    """Return how many rules are held against values at most, or more than CHECKS_MAX if that are too many.

    A rule that several ways lead to is held against a value once for each of them. What refers to itself with the same
    value is not followed, as in the library.
    """
    costs: dict[tuple[int, int], int] = {}
    todo: list[tuple[Any, Any, list[tuple[Any, Any]] | None]] = [(schema, arguments, None)]
    while todo:
        rule, value, below = todo.pop()
        key = (id(rule), id(value))
        if below is not None:
            costs[key] = _own_cost(rule) + sum(costs[id(one), id(other)] for one, other in below)
            if costs[key] > CHECKS_MAX:
                return CHECKS_MAX + 1
        elif key not in costs:
            costs[key] = 0
            below = list(_below(schema, rule, value))
            if len(costs) + len(todo) + len(below) > COUNT_STEPS_MAX:
                return CHECKS_MAX + 1
            todo.append((rule, value, below))
            todo += [(one, other, None) for one, other in below]
    return costs[id(schema), id(arguments)]


def _own_cost(rule: Any) -> int:
    if not isinstance(rule, dict):
        return 1
    choices = rule.get("enum")
    patterns = len(rule.get("patternProperties") or ()) + ("pattern" in rule)
    return 1 + len(rule) + (len(choices) if isinstance(choices, list) else 0) + _PATTERN_COSTS * patterns


def _below(schema: JsonObject, rule: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a rule holds against what, at most."""
    if not isinstance(rule, dict):
        return
    for key in _REFERENCES:
        if key in rule:
            yield _referred(schema, rule[key]), value
    yield from ((rule[key], value) for key in _SAME if key in rule)
    yield from ((one, value) for key in _SAME_LISTS for one in rule.get(key) or ())
    yield from ((one, value) for key in _SAME_TABLES for one in (rule.get(key) or {}).values())
    if isinstance(value, list):
        for key in _OF_ITEMS:
            found = rule.get(key)
            rules = found if isinstance(found, list) else [found] if key in rule else []
            yield from ((one, item) for one in rules for item in value)
    elif isinstance(value, Mapping):
        properties = rule.get("properties") or {}
        yield from ((properties[name], item) for name, item in value.items() if name in properties)
        rules = [*(rule.get("patternProperties") or {}).values(), *(rule[key] for key in _OF_MEMBERS if key in rule)]
        yield from ((one, item) for one in rules for item in value.values())
        if "propertyNames" in rule:
            yield from ((rule["propertyNames"], name) for name in value)


def _referred(schema: JsonObject, reference: Any) -> Any:
    """Return what a reference leads to; of one by another way than its place, all of the schema."""
    found: Any = schema
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return found
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and len(name) < 10 and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return schema
    return found


def _fault(error: Any) -> str:
    where = ".".join(str(step) for step in error.instance_path)
    return (f"{where}: " if where else "") + _one(error.message)


def _one(error: object) -> str:
    """Return the first line of a text, not too much of it."""
    text = storable(str(error)).strip().partition("\n")[0]
    return text if len(text) <= MISFIT_MAX_CHARS else f"{text[:MISFIT_MAX_CHARS]}…"
