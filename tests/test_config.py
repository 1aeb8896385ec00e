"""The configuration: an invalid one is refused when it is constructed, and the error says what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import Invalid
from supervisor import Config
from tests.test_text import Number, Words


def test_a_key_that_is_not_known_is_refused_with_the_one_that_is_near() -> None:
    keys: dict[str, Any] = {"grace": 1.0}
    with pytest.raises(Invalid) as caught:
        Config(**keys)
    assert "'grace'" in caught.value.message
    assert "drain_s" in caught.value.expected
    assert "'grace_s'" in caught.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state_dir", None),
        ("state_dir", 5),
        ("state_dir", b"/tmp"),
        ("state_dir", " "),
        ("agent", None),
        ("agent", 5),
        ("agent", ""),
        ("agents", None),
        ("agents", ["shell"]),
        ("agents", {5: print}),
        ("tools", None),
        ("tools", 5),
        ("tools", "bash"),
        ("tools", {"bash": print}),
        ("limits", None),
        ("limits", {"files": 5}),
        ("limits", {"nofile": -1}),
        ("limits", {"nofile": True}),
        ("limits", {"nofile": "5"}),
        ("limits", {"nofile": 2**63}),
        ("limits", ["nofile"]),
        ("layers", None),
        ("layers", "cgroup"),
        ("layers", {"cgroups"}),
        ("layers", [["cgroup"]]),
        ("grace_s", None),
        ("grace_s", -1),
        ("kill_s", "5"),
        ("drain_s", float("inf")),
        ("run_deadline_s", float("nan")),
        ("run_deadline_s", 0),
        ("run_deadline_s", 1e10),
        ("call_deadline_s", 10**400),
        ("call_deadline_s", True),
        ("spool_max_bytes", -1),
        ("spool_max_bytes", 1.5),
        ("spool_total_bytes", True),
        ("spool_keep_s", None),
        ("spool_keep_s", -1),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_and_its_key_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Config(**{"state_dir": tmp_path, key: value})
    assert repr(key) in caught.value.message
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy


def test_what_the_actors_are_given_is_of_built_in_types(tmp_path: Path) -> None:
    settings = Config(state_dir=tmp_path, agent=Words("mine"), grace_s=Number(1), run_deadline_s=Number(60)).settings
    assert (settings.agent, settings.grace_s, settings.run_deadline_s) == ("mine", 1.0, 60.0)
    assert type(settings.agent) is str
    assert type(settings.grace_s) is type(settings.run_deadline_s) is float
