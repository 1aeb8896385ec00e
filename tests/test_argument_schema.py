"""Raw JSON schemas of tools: what is held to them, what is refused, and what a schema may not do here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from actors.errors import Invalid
from actors.plugin.argument_schema import MISFITS_MAX, PATTERNS_MAX, SCHEMA_MAX_BYTES, ArgumentSchema, checked
from actors.secrets import MARK

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "integer", "maximum": 7, "default": 1},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"city": "Bern", "days": 3}, None),
        ({"city": "Bern"}, None),
        ({}, '"city" is a required property'),
        ({"city": 7}, 'city: 7 is not of type "string"'),
        ({"city": "Bern", "days": 8}, "days: 8 is greater than the maximum of 7"),
        ({"city": "Bern", "units": "C"}, "'units' was unexpected"),
    ],
)
def test_arguments_are_held_to_the_schema(arguments: dict[str, Any], fault: str | None) -> None:
    found = ArgumentSchema("weather", CITY).check(arguments)
    if fault is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("the arguments of weather do not fit: ")
        assert fault in found


def test_the_first_faults_are_named_and_no_more() -> None:
    schema = {"properties": {str(number): {"type": "string"} for number in range(MISFITS_MAX + 1)}}
    found = ArgumentSchema("t", schema).check({str(number): number for number in range(MISFITS_MAX)})
    assert found is not None
    assert found.count("is not of type") == MISFITS_MAX
    assert not found.endswith("and more")
    found = ArgumentSchema("t", schema).check({str(number): number for number in range(MISFITS_MAX + 1)})
    assert found is not None
    assert found.count("is not of type") == MISFITS_MAX
    assert found.endswith("; and more")


def test_l14_the_text_of_a_fault_is_cut() -> None:
    found = ArgumentSchema("t", {"properties": {"a": {"type": "integer"}}}).check({"a": "x" * 100_000})
    assert found is not None
    assert len(found) < 500


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "the type 'object'"),
        ({"type": "array"}, "the type 'object'"),
        ({"properties": []}, "is not of type"),
        ({"properties": {"a": {"type": "objekt"}}}, "not valid under any"),
        ({"required": "city"}, "is not of type"),
        ({"properties": {"a": {"pattern": "("}}}, "regex"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"$schema": "urn:unknown"}, "meta-schema"),
        ([], "plain JSON"),
        ("object", "plain JSON"),
        (None, "plain JSON"),
        ({"properties": {"a": {"enum": [object()]}}}, "plain JSON"),
        ({"properties": {"a": {"const": {1, 2}}}}, "plain JSON"),
    ],
)
def test_a_schema_that_is_not_valid_is_refused_with_the_reason(schema: Any, why: str) -> None:
    with pytest.raises(Invalid, match="the schema of the tool 'weather' is not valid") as refused:
        ArgumentSchema("weather", schema)
    assert why in str(refused.value)


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/schema", "https://127.0.0.1:9/s", "file:///etc/passwd"])
def test_nothing_is_fetched_for_a_schema(where: str) -> None:
    with pytest.raises(Invalid, match=re.escape(where)):
        ArgumentSchema("t", {"properties": {"a": {"$ref": where}}})


def test_what_refers_to_itself_is_followed_as_far_as_the_arguments_go() -> None:
    tree = {"properties": {"below": {"type": "array", "items": {"$ref": "#"}}}, "additionalProperties": False}
    arguments: dict[str, Any] = {}
    for _ in range(50):
        arguments = {"below": [arguments]}
    assert ArgumentSchema("t", tree).check(arguments) is None
    assert ArgumentSchema("t", tree).check({"below": [{"above": 1}]})
    assert ArgumentSchema("t", {"allOf": [{"$ref": "#"}]}).check({"a": 1}) is None


def test_l14_a_schema_has_a_size_and_a_depth() -> None:
    schema: dict[str, Any] = {"description": ""}
    room = SCHEMA_MAX_BYTES - len('{"description":""}')
    assert ArgumentSchema("t", {"description": "x" * room}).check({}) is None
    with pytest.raises(Invalid, match=f"at most {SCHEMA_MAX_BYTES} bytes"):
        ArgumentSchema("t", {"description": "x" * (room + 1)})
    for _ in range(2_000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(Invalid, match="plain JSON"):
        ArgumentSchema("t", schema)


def test_l14_a_pattern_that_backtracks_ends() -> None:
    for pattern in ("^(a+)+$", "^(?=(a+)+$)b", r"^(\w+\s?)*$"):
        assert ArgumentSchema("t", {"properties": {"a": {"pattern": pattern}}}).check({"a": "a" * 60 + "!"})


def test_secret_arguments_are_marked_and_no_fault_shows_a_value() -> None:
    schema = {
        "properties": {"url": {"type": "string"}, "key": {"type": "string", "minLength": 50}, "pin": {"maximum": 9}},
        "additionalProperties": False,
    }
    rules = ArgumentSchema("fetch", schema, ["key", "pin"])
    found = rules.check({"url": "u", "key": "hunter2", "pin": 77, "kye": "hunter3"})
    assert found is not None
    assert "key: " in found
    assert not re.search("hunter|77", found)
    shown, secrets = rules.withheld({"url": "u", "key": "hunter2", "kye": "hunter3"})
    assert shown == {"url": "u", "key": MARK, "kye": MARK}, "what is misspelt may be secret"
    assert secrets.restored(shown) == {"url": "u", "key": "hunter2", "kye": "hunter3"}
    with pytest.raises(Invalid, match="each secret argument"):
        ArgumentSchema("fetch", schema, ["keys"])


def test_the_arguments_of_what_is_executed_elsewhere_are_checked_by_the_same_rules() -> None:
    assert checked("t", {"a": 1}, None, ())[:2] == (None, {"a": 1})
    assert checked("t", {"a": 1, "b": 2}, None, ["a"])[:2] == (None, {"a": MARK, "b": 2})
    assert checked("t", {"city": "Bern"}, CITY, ())[:2] == (None, {"city": "Bern"})
    problem, shown, _ = checked("t", {"city": 1}, CITY, ["city"])
    assert problem is not None
    assert shown == {"city": MARK}
    problem, shown, _ = checked("t", {"city": "Bern", "key": "k"}, {"type": 7}, ["key"])
    assert problem is not None
    assert problem.startswith("the schema of the tool 't' is not valid")
    assert shown == {"city": MARK, "key": MARK}, "which are secret is not known"


def test_a_tool_gets_a_copy_of_its_arguments() -> None:
    arguments = {"a": [1]}
    ArgumentSchema("t", {}).convert(arguments)["a"].append(2)
    assert arguments == {"a": [1]}


def entangled(times: int) -> dict[str, Any]:
    """A schema that holds two rules against a value, each of which does so too, and so on."""
    rules: dict[str, Any] = {f"r{n}": {"anyOf": [{"$ref": f"#/$defs/r{n + 1}"}] * 2} for n in range(times)}
    return {"$defs": {**rules, f"r{times}": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/r0"}}}


def nested(times: int) -> dict[str, Any]:
    return {"a": nested(times - 1)} if times else {"a": 1}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (entangled(60), {"a": 1}),
        ({"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}] * 2}, nested(60)),
        ({"properties": {"a": {"items": {"anyOf": [{"const": n} for n in range(5000)]}}}}, {"a": ["x"] * 3000}),
        ({"properties": {"a": {"items": {"enum": [*range(10_000)]}}}}, {"a": [str(n) for n in range(3000)]}),
    ],
)
def test_l1_a_check_that_would_hold_up_the_daemon_is_not_made(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    # It would take hours, or more memory than there is; a Stop is handled by no other thread meanwhile.
    found = ArgumentSchema("t", schema).check(arguments)
    assert found == "the arguments of t are too many, or its schema too entangled, to be checked"


def test_l14_the_faults_of_a_large_check_are_not_named() -> None:
    assert ArgumentSchema("t", entangled(12)).check({"a": "x"}) is None
    assert ArgumentSchema("t", entangled(12)).check({"a": 1}) == "the arguments of t do not fit its schema"
    named = ArgumentSchema("t", entangled(3)).check({"a": 1})
    assert named is not None
    assert named.startswith("the arguments of t do not fit: a: 1 ")
    # Large arguments are no fault.
    items = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert ArgumentSchema("t", items).check({"a": [*range(20_000)]}) is None


def test_l14_a_schema_may_have_so_many_patterns_and_none_that_is_larger_than_its_limit() -> None:
    def patterns(number: int) -> dict[str, Any]:
        return {"properties": {str(n): {"type": "string", "pattern": "^(?!-)[a-z0-9-]{1,63}$"} for n in range(number)}}

    assert ArgumentSchema("t", patterns(PATTERNS_MAX)).check({"1": "a-b"}) is None
    with pytest.raises(Invalid, match=f"at most {PATTERNS_MAX} patterns; got {PATTERNS_MAX + 1}"):
        ArgumentSchema("t", patterns(PATTERNS_MAX + 1))
    with pytest.raises(Invalid, match="is not a"):
        ArgumentSchema("t", {"properties": {"a": {"type": "string", "pattern": r"(?=x)\w{40}y"}}})
