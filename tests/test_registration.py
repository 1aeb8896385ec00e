"""Tools where they are registered: what a call could fail on later is refused there."""

from __future__ import annotations

import threading
from typing import Annotated, Any, Literal

import msgspec
import pytest

from actors import CancelToken, Invalid
from actors.plugin.registration import Tool


def collect(item: str, into: list[str] = ["first"]) -> list[str]:  # noqa: B006  # it is what is tested
    """Add an item."""
    into.append(item)
    return into


def unresolved(x: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821  # it is what is tested
    """Its annotation names nothing."""
    return str(x)


def unshowable(lock: threading.Event) -> str:
    """No schema can show what it takes."""
    return str(lock)


def annotated(
    path: Annotated[str, msgspec.Meta(description="Where the file is", min_length=1)],
    token: Annotated[CancelToken, "given"],
    depth: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None,
    mode: Annotated[Literal["r", "w"], msgspec.Meta(description="How")] = "r",
) -> str:
    """Its parameters say more than their types."""
    return f"{path} {depth} {mode} {token.cancelled}"


def plain() -> str:
    """Take nothing."""
    return ""


def test_a_default_that_a_call_could_change_is_a_fresh_one_for_each() -> None:
    tool = Tool(collect, isolation="thread")
    assert tool.function(**tool.convert({"item": "a"})) == ["first", "a"]
    assert tool.function(**tool.convert({"item": "b"})) == ["first", "b"]
    assert tool.schema["required"] == ["item"]


def test_what_an_annotation_says_of_a_parameter_is_in_the_schema_and_is_checked() -> None:
    tool = Tool(annotated, isolation="thread")
    assert tool.schema["properties"] == {
        "path": {"type": "string", "minLength": 1, "description": "Where the file is"},
        "depth": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}], "default": None},
        "mode": {"enum": ["r", "w"], "description": "How", "default": "r"},
    }
    assert tool.schema["required"] == ["path"]
    assert tool.given == {"token": "token"}
    assert tool.check({"path": "x", "depth": 9}) is None
    for wrong in ({"path": ""}, {"path": "x", "depth": 10}, {"path": "x", "depth": -1}, {"path": "x", "mode": "a"}):
        assert "do not fit" in (tool.check(wrong) or "")


@pytest.mark.parametrize("function", [unresolved, unshowable])
def test_a_signature_that_makes_no_schema_is_refused_at_registration(function: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Tool(function, isolation="thread")
    assert function.__name__ in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("deadline_s", ["5", 0, -1, float("inf"), float("nan"), 1e10, 10**400, True])
def test_a_deadline_that_is_no_number_of_seconds_is_refused_at_registration(deadline_s: Any) -> None:
    with pytest.raises(Invalid):
        Tool(plain, isolation="thread", deadline_s=deadline_s)
