"""Agents that are a model, with the SDKs as they are in the registry, against a provider that refuses what theirs does.

A run is ended at each moment of its work, by a Stop (names that end in 1) and by a message that takes over (in 2).
Nobody is left, the receipt is true, and what the provider is asked next it takes, and it is true. The key is nowhere
but in its file, and on the way to the provider.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from supervisor import Agent
from tests.ends_kit import TESTS, receipt_of, run_of, said
from tests.kit import Kit, alive, check_rest, kit, say, stop
from tests.model_kit import MOMENTS, PRESETS, ended, options, reached, tools, until
from tests.scripted_moments import Moments, serving
from tests.scripted_provider import PROVIDERS, TEXTS
from tests.test_sdks import INSTALL_S, sdks

__all__ = ["kit", "sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)

KEY = "sk-its-secret-0123456789"


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[tuple[Moments, str]]:
    """The provider, and where it is."""
    moments = Moments(tmp_path / "reached", KEY)
    with serving(moments) as url:
        yield moments, url
    assert not moments.refused


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return str(file)


def nowhere(kit: Kit) -> None:
    """The key is nowhere on disk below the state directory."""
    for file in kit.state_dir.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def in_no_process(kit: Kit) -> None:
    """The key is in no environment and in no command of a process of this test."""
    found = kit.alive()
    assert found
    assert not set(found) & set(alive(KEY))


def asked_truly(moments: Moments, preset: str, name: str, before: str, who: str) -> None:
    """What was asked for `name` says what became of the run before it, which was ended at a moment."""
    format_ = PROVIDERS[PRESETS[preset].provider]
    messages = moments.asked(PRESETS[preset].provider, name)
    text, word = json.dumps(messages), before.rstrip("0123456789")
    assert who in text, (before, text)
    results = [str(result) for result in format_.results(messages).values()][-2:]
    mine = [result for result in results if before in result]
    if word == "between":
        assert mine == [f"noted {before}:first", f"noted {before}:hold"]
    elif word == "tool":
        assert mine == [f"noted {before}:first"]
        assert results[1].startswith("Interrupted: "), results
    elif word == "approve":
        assert not mine
        assert all(result.startswith("Not started: ") for result in results), results
        assert "declined" not in text
    else:
        assert not mine
        assert f"{before}:first" not in text
    if word == "first":
        assert TEXTS[0].strip() in text
    if word in ("between", "tool", "approve"):
        # The thinking of a whole answer is given back.
        assert "hm, so" in text or "sealed" in text


@pytest.mark.parametrize("preset", PRESETS)
def test_l6_ended_at_each_moment_nobody_is_left_and_the_next_request_is_taken_and_true(
    sdks: None, kit: Kit, provider: tuple[Moments, str], key_file: str, preset: str
) -> None:
    moments, url = provider
    agent = Agent(**options(preset, url, kit.mark, key_file=key_file))
    session = kit.start(agent, tools=tools(kit.mark)).session("s1")
    names = [f"{word}{way}" for way in (1, 2) for word in MOMENTS]
    if preset != "openai":
        # The loop around an answer is the same: each moment in one of the two ways.
        names = [f"{word}{1 + place % 2}" for place, word in enumerate(MOMENTS)]
    run_id = say(session, f"[do {MOMENTS[0]} {names[0]}]")
    for number, name in enumerate(names):
        reached(session, run_id, moments.folder, name)
        seen = set(kit.alive())
        assert seen
        in_no_process(kit)
        then = names[number + 1] if name != names[-1] else "say1"
        message = f"[do {then.rstrip('0123456789')} {then}]"
        if name.endswith("1"):
            stop(session)
        later = None if name.endswith("1") else say(session, message)
        receipt = receipt_of(session, run_id)
        assert receipt.complete, (name, receipt)
        assert not seen & set(kit.alive()), (name, receipt)
        assert run_of(session, run_id).status == "cancelled", name
        run_id = later or say(session, message)
        until(lambda then=then: moments.requests[then] or moments.refused, f"the request of {then}")  # type: ignore[misc]
        assert not moments.refused
        who = "the user stopped it (user.test: " if name.endswith("1") else "a new message took over"
        asked_truly(moments, preset, then, name, who)
    assert ended(session, run_id).status == "completed"
    assert said(session, run_id) == "Done say1."
    assert session.status().usage.input > 0
    assert all(len(asked) <= 2 for asked in moments.requests.values()), "a wait was over before its time"
    check_rest(session)
    until(lambda: not kit.alive(), "its host to end")
    kit.close()
    nowhere(kit)


@pytest.mark.parametrize("preset", PRESETS)
def test_l12_killed_at_each_moment_nobody_is_left_and_the_next_request_is_taken_and_true(
    sdks: None, kit: Kit, provider: tuple[Moments, str], key_file: str, preset: str
) -> None:
    moments, url = provider
    chosen = options(preset, url, kit.mark, key_file=key_file)
    words = MOMENTS if preset == "openai" else ("tool", "retry")
    argv = [str(kit.state_dir), msgspec.json.encode(chosen).decode(), kit.mark, str(moments.folder), *words]
    with subprocess.Popen([sys.executable, "-m", "tests.model_child", *argv], cwd=TESTS.parent, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        child.kill()
    until(lambda: not kit.alive(), "everybody to die with the daemon")
    supervisor = kit.start(Agent(**chosen), tools=tools(kit.mark))
    for word in words:
        session = supervisor.session(word)
        killed, *again = session.runs()
        receipt = receipt_of(session, killed.run_id)
        assert receipt.complete, (word, receipt)
        assert bool(again) == (word == "retry"), "only a run that had said nothing is tried again"
        for run in again:
            stop(session)
            assert receipt_of(session, run.run_id).complete
        run_id = say(session, f"[do say {word}8]")
        assert ended(session, run_id).status == "completed", (run_of(session, run_id), moments.refused)
        assert said(session, run_id) == f"Done {word}8."
        who = "the user stopped it" if again else "the supervisor was restarted"
        asked_truly(moments, preset, f"{word}8", f"{word}9", who)
        check_rest(session)
    kit.close()
    nowhere(kit)


def test_what_passes_is_asked_again_and_what_does_not_is_a_clear_error_without_the_key(
    sdks: None, kit: Kit, provider: tuple[Moments, str], tmp_path: Path, key_file: str
) -> None:
    moments, url = provider
    session = kit.start(Agent(**options("openai", url, kit.mark, key_file=key_file, keep="session"))).session("s1")
    run_id = say(session, "[do flaky flaky1]")
    assert ended(session, run_id).status == "completed", run_of(session, run_id)
    assert (said(session, run_id), len(moments.requests["flaky1"])) == ("Done flaky1.", 3)
    failed = ended(session, say(session, "[do limit limit1]"))
    assert (failed.status, len(moments.requests["limit1"])) == ("failed", 1)
    assert failed.error is not None
    assert "the thread is too long for the model m at 127.0.0.1:" in failed.error
    assert "to do: go on in a new session, or choose a model with a larger context" in failed.error
    moments.key = "another"
    failed = ended(session, say(session, "[do say say1]"))
    assert failed.error is not None
    assert "refused the request: 401 Incorrect API key provided: [key]; to do: see that key_file" in failed.error
    moments.key = KEY
    assert ended(session, say(session, "[do say say2]")).status == "completed"
    kit.close()
    nowhere(kit)


def test_a_key_of_the_environment_is_not_in_that_of_a_tool(
    sdks: None, kit: Kit, provider: tuple[Moments, str], tmp_path: Path
) -> None:
    moments, url = provider
    file = tmp_path / "env"
    file.write_text(f"OPENAI_API_KEY={KEY}\n")
    chosen = options("openai", url, kit.mark, env_files=[str(file)], tools=["tests.model_tools:note"], ask=[])
    session = kit.start(Agent(**{**chosen, "path": [str(TESTS.parent)]})).session("s1")
    run_id = say(session, "[do env env1]")
    assert ended(session, run_id).status == "completed", run_of(session, run_id)
    (shown, _) = PROVIDERS["openai"].results(moments.requests["env1"][1]["messages"]).values()
    assert f"{kit.mark}=1" in shown
    assert "OPENAI_API_KEY" not in shown
    assert "COUNTERMAND_MODEL" not in shown
    kit.close()
    nowhere(kit)
