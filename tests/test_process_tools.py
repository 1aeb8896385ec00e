"""Tools in processes of their own: gated as any, killed truly, and whatever they do ends as one result."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from pykka import ActorRegistry

from actors import Invalid, Turn
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.tool import ToolActor
from actors.model import How, Mode, PartKind, Receipt, Row
from actors.plugin.registration import Tool, Unloaded
from supervisor import SessionHandle
from tests import process_tools
from tests.kit import GRACE_S, WAIT_S, Kit, check_rest, log, poison, rows, say, stop, until

TOOLS = [value for value in vars(process_tools).values() if getattr(value, "isolation", None) == "process"]
SPELLED = "tests.process_tools:counts"


def calling(kit: Kit, name: str, grace_s: float = GRACE_S, **arguments: Any) -> tuple[SessionHandle, str]:
    """Begin a run whose agent calls one tool; `grace_s` is long where that is to clean up, however busy the machine."""

    def agent(turn: Turn) -> list[Any]:
        result = turn.call(name, **arguments)
        return [result.outcome, result.content, result.is_error, result.data]

    (tool,) = [one for one in TOOLS if Tool(one).name == name]
    session = kit.session(agent, tools=[tool], grace_s=grace_s)
    return session, say(session)


def result_of(session: SessionHandle, run_id: str) -> list[Any]:
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete, receipt
    result: list[Any] = next(run for run in session.runs() if run.run_id == run_id).result
    return result


def host_row(receipt: Receipt) -> Row:
    """The row of the tool's process: below that of its call."""
    (call,) = [row for row in rows(receipt) if row.kind is PartKind.CALL]
    return next(row for row in call.rows if row.name.startswith("host of "))


def begun(file: Path) -> None:
    until(lambda: file.exists() and file.read_text(), "the tool to begin")


# ── Results ───────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_tool_runs_in_a_process_of_its_own_below_its_call(kit: Kit) -> None:
    session, run_id = calling(kit, "whoami", WAIT_S, word="ha", times=2)
    outcome, content, is_error, _ = result_of(session, run_id)
    assert (outcome, is_error) == ("finished", False)
    said = json.loads(content)
    events = check_rest(session)
    (asked,) = [event.data for event in events if event.kind == "tool.requested"]
    assert (said["word"], said["fence"]) == ("haha", f"s1:1:{asked['call_id']}")
    assert said["pid"] != process_tools.PARENT
    row = host_row(session.receipt(run_id))
    assert (row.how, row.reaped >= 1) == (How.SIGTERM, True)
    assert row.provenance is not None
    assert row.provenance.source == "tool.kill"
    printed = "".join(event.data["text"] for event in events if event.kind == "tool.output")
    assert printed == "first line by ha\nlast line by ha\n"


@pytest.mark.parametrize("others", [True, False], ids=["with others", "alone"])
def test_a_tool_that_could_be_loaded_only_later_has_spares_and_works_as_any(kit: Kit, others: bool) -> None:
    def agent(turn: Turn) -> list[Any]:
        result = turn.call("counts", number=3)
        return [result.outcome, result.content]

    unloaded = Unloaded(SPELLED, Invalid(f"{SPELLED!r} cannot be imported", got="SyntaxError"))
    session = kit.session(agent, tools=[unloaded, *([process_tools.whoami] if others else [])])
    assert kit.supervisor is not None
    assert kit.supervisor.mend({}, {SPELLED: process_tools.counts}) == [SPELLED]
    assert result_of(session, say(session)) == ["finished", "counted to 3"]
    names = {status.name: status.spares for status in kit.supervisor.hosts()}
    assert names == {"tool counts": 1, **({"tool whoami": 1} if others else {})}
    # It can be loaded already: nothing changes.
    assert kit.supervisor.mend({}, {SPELLED: process_tools.counts}) == []
    check_rest(session)


def test_an_async_tool_says_its_result_with_data(kit: Kit) -> None:
    session, run_id = calling(kit, "counts", number=3)
    assert result_of(session, run_id) == ["finished", "counted to 3", False, [0, 1, 2]]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ValueError: it cannot be"),
        ("segv", "the host of tool fails ended: killed by SIGSEGV"),
        ("exit", "the host of tool fails ended: exit status 3"),
        ("sys.exit", "SystemExit"),
    ],
)
def test_an_end_of_any_kind_is_one_result_that_says_so(kit: Kit, how: str, said: str) -> None:
    session, run_id = calling(kit, "fails", how=how)
    outcome, content, is_error, _ = result_of(session, run_id)
    assert (outcome, is_error) == ("finished", True)
    assert said in content
    check_rest(session)


def test_a_result_that_is_too_long_is_cut(kit: Kit) -> None:
    session, run_id = calling(kit, "fails", how="long")
    outcome, content, is_error, _ = result_of(session, run_id)
    assert (outcome, is_error) == ("finished", False)
    assert 100_000 < len(content) <= 1_048_576
    assert content.count("\x01") > 100_000


def test_arguments_that_do_not_fit_start_nothing(kit: Kit) -> None:
    session, run_id = calling(kit, "counts", number="many")
    outcome, content, _, _ = result_of(session, run_id)
    assert outcome == "not_started"
    assert "do not fit" in content
    assert not [event for event in log(session) if event.kind == "process.started"]


def test_it_starts_processes_for_its_call(kit: Kit) -> None:
    session, run_id = calling(kit, "builds")
    outcome, content, _, _ = result_of(session, run_id)
    (asked,) = [event.data["call_id"] for event in log(session) if event.kind == "tool.requested"]
    assert (outcome, content) == ("finished", f"5 s1:1:{asked}")
    (call,) = [row for row in rows(session.receipt(run_id)) if row.kind is PartKind.CALL]
    assert sorted(row.name for row in call.rows) == ["host of builds", "sh"]


@pytest.mark.parametrize("password", ["hunter22", "raise-it"])
def test_a_secret_is_in_no_result_and_no_event(kit: Kit, password: str) -> None:
    session, run_id = calling(kit, "keeps", password=password)
    _, content, _, _ = result_of(session, run_id)
    assert "[secret]" in content
    events = check_rest(session)
    assert password not in str([event.data for event in events])
    printed = "".join(event.data["text"] for event in events if event.kind == "tool.output")
    assert ("ValueError: no [secret]" in printed) == (password == "raise-it"), printed


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", list(Mode))
def test_a_stop_kills_one_that_ignores_everything_and_all_that_it_started(kit: Kit, tmp_path: Path, mode: Mode) -> None:
    file = tmp_path / "file"
    session, run_id = calling(kit, "stubborn", mark=kit.mark, file=str(file))
    begun(file)
    stop(session, mode=mode)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert kit.alive() == []
    row = host_row(receipt)
    assert row.how is How.SIGKILL
    assert row.reaped >= 2
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert ended["outcome"] == "interrupted"


def test_a_stop_is_raised_in_the_code_which_cleans_up(kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "file"
    session, run_id = calling(kit, "tidy", WAIT_S, file=str(file))
    begun(file)
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert file.read_text() == "cleaned up: user.test"


def test_the_deadline_of_a_call_ends_its_process_and_the_run_continues(kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "file"
    session, run_id = calling(kit, "slow", WAIT_S, file=str(file))
    outcome, content, _, _ = result_of(session, run_id)
    assert outcome == "interrupted"
    assert "deadline" in content
    # It may have come before the first line of the tool.
    assert not file.exists() or file.read_text() == "cleaned up: tool.deadline"


@pytest.mark.parametrize("who", [ToolActor, RunActor, ProcessActor])
def test_l13_an_actor_that_fails_leaves_no_process_and_the_next_call_works(
    kit: Kit, tmp_path: Path, who: type[Any]
) -> None:
    file = tmp_path / "file"
    session, run_id = calling(kit, "stubborn", mark=kit.mark, file=str(file))
    begun(file)
    for ref in ActorRegistry.get_by_class(who):
        poison(ref)
    until(lambda: kit.alive() == [], "its end")
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert ended["outcome"] in ("interrupted", "finished")
    file.unlink()
    again = say(session)
    begun(file)
    stop(session, mode="immediate")
    assert session.receipt(again, timeout=WAIT_S).complete
    assert kit.alive() == []


def test_a_tool_whose_module_cannot_be_imported_there_fails_with_the_reason(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_once.py").write_text(
        "from actors import tool\n@tool(isolation='process')\ndef gone() -> str: return 'x'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_once")
    (tmp_path / "only_once.py").unlink()
    session = kit.session(lambda turn: turn.call("gone").content, tools=[module.gone])
    run_id = say(session)
    assert "only_once" in str(result_of(session, run_id))


# ── Registration ──────────────────────────────────────────────────────────────────────────────────


def test_what_another_process_cannot_import_is_refused_where_it_is_registered() -> None:
    def local() -> None: ...

    for function in (local, lambda: None, Tool(process_tools.whoami).check):
        with pytest.raises(Invalid) as caught:
            Tool(function, isolation="process", name="t")
        assert "import" in caught.value.expected


def test_l6_a_stop_tells_what_a_tool_had_begun_behind_a_guard_and_the_next_effect_does_not_take_place(
    kit: Kit, tmp_path: Path
) -> None:
    file = tmp_path / "effects"
    session, run_id = calling(kit, "guarded", file=str(file))
    until(lambda: file.exists() and file.read_text() == "begun", "its effect")
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert [(one["name"], one["begun"]) for one in ended["effects"]] == [("write", 1)]
    assert file.read_text() == "begun"
