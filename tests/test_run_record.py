"""What a session keeps of a run has a bound, whatever the run does."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from actors import Owner, Spawn, Stop, tool
from actors.errors import RunCancelled
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.messages import HandOverRequested, ProcessEnded, ProcessStarted, SpawnRequested
from actors.model import CallState, How, Outcome, PartKind, Row, RunInfo, TreeState
from actors.ports import CallRow, ProcessRow, SpawnSpec
from actors.protocol.run_record import AGENT, PARTS_KEPT_MAX, CallRecord, OpenIndex, Part, RunRecord, restored
from actors.protocol.state import LATE_KEPT_MAX
from actors.protocol.step import RefuseHandOver
from actors.run_status import RunStatus
from tests.kit import Kit, say
from tests.protocol_driver import Driver, started
from tests.protocol_ports import SimTree


def in_a_call(driver: Driver) -> tuple[RunRecord, str]:
    """Start a run whose agent has one call, which goes on; returns the run's record, and the call's id."""
    run = started(driver)
    driver.op_call(0, "held")
    driver.commit(99)
    driver.op_start_call(0)
    record = driver.protocol.state.record(run)
    assert record is not None
    (call,) = driver.calls
    assert call.address.call is not None
    return record, call.address.call


def spawn(driver: Driver, number: int, **options: Any) -> SimTree:
    """Have the call of `in_a_call` spawn a process, which begins."""
    tree = SimTree(driver.calls[0].address, f"p{number}")
    driver.report(SpawnRequested(tree.address, tree.process_id, SpawnSpec(("true",), "true"), **options))
    driver.trees.append(tree)
    driver.commit(99)
    return tree


def end(driver: Driver, tree: SimTree) -> None:
    at = driver.clock.wall()
    driver.news(tree, ProcessStarted(tree.process_id, 7, at))
    driver.news(tree, ProcessEnded(tree.process_id, How.EXIT, proven=True, at=at, status=0, reaped=1))
    tree.over = True


def below(record: RunRecord, call_id: str) -> tuple[Row, ...]:
    (call,) = [row for row in record.file_receipt(0.0, ()).rows if row.kind == "call"]
    assert call_id in record.parts
    return call.rows


def test_l14_calls_that_were_refused_are_forgotten_beyond_a_bound_and_open_ones_are_not() -> None:
    info = RunInfo(session="s", run_id="r", status=RunStatus.IN_PROGRESS, agent="a", generation=1, receipt_id="x")
    record = RunRecord(info, CancelToken(lambda callback: callback()), Credit(1, 1))
    waiting = CallRow("s", "r", "open", "t", {}, CallState.REQUESTED)
    record.calls["open"] = CallRecord(waiting)
    for number in range(3 * PARTS_KEPT_MAX):
        row = CallRow("s", "r", str(number), "t", {}, CallState.ENDED, outcome=Outcome.NOT_STARTED)
        record.calls[str(number)] = CallRecord(row)
        record.trim()
        assert len(record.calls) <= PARTS_KEPT_MAX
    assert record.calls["open"].waits
    assert str(3 * PARTS_KEPT_MAX - 1) in record.calls
    assert not record.effects
    assert record.file_receipt(0.0, ()).omitted == 0


def test_l14_a_call_that_spawns_again_and_again_keeps_a_bounded_number_of_parts() -> None:
    driver = Driver()
    record, call_id = in_a_call(driver)
    stays = spawn(driver, 0)
    ended = PARTS_KEPT_MAX + 50
    for number in range(1, ended + 1):
        end(driver, spawn(driver, number))
        assert len(record.parts) <= PARTS_KEPT_MAX
        assert len(record.processes) <= PARTS_KEPT_MAX
    receipt = record.file_receipt(0.0, ())
    rows = below(record, call_id)
    # The agent, the call, the one that still runs, and those that ended last.
    assert len(rows) == PARTS_KEPT_MAX - 2
    assert (rows[0].how, rows[-1].how) == (How.ABANDONED, How.EXIT)
    assert receipt.omitted == ended + 3 - PARTS_KEPT_MAX
    assert receipt.reaped == ended
    assert stays.process_id in record.parts
    assert f"p{ended}" in record.parts
    assert "p1" not in record.parts
    end(driver, stays)
    driver.finish()


def test_l14_a_receipt_lists_all_open_parts_and_beyond_the_bound_none_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.protocol.run_record.PARTS_KEPT_MAX", 10)
    driver = Driver()
    record, call_id = in_a_call(driver)
    trees = [spawn(driver, number) for number in range(30)]
    assert record.file_receipt(0.0, ()).omitted == 0
    assert len(below(record, call_id)) == 30
    for tree in trees[:10]:
        end(driver, tree)
    assert record.file_receipt(0.0, ()).omitted == 10
    assert [row.how for row in below(record, call_id)] == [How.ABANDONED] * 20
    for tree in trees[10:]:
        end(driver, tree)
    receipt = record.file_receipt(0.0, ())
    # The agent, the call, and those that ended last.
    assert [row.how for row in below(record, call_id)] == [How.EXIT] * 8
    assert (receipt.omitted, receipt.reaped) == (22, 30)
    driver.finish()


@pytest.mark.parametrize("how", ["handed over", "never spawned"])
def test_l14_what_a_call_has_for_its_session_again_and_again_is_bounded_too(how: str) -> None:
    driver = Driver()
    record, _ = in_a_call(driver)
    for number in range(PARTS_KEPT_MAX + 50):
        at = driver.clock.wall()
        if how == "handed over":
            tree = spawn(driver, number)
            driver.news(tree, ProcessStarted(tree.process_id, 7, at))
            driver.protocol.report(HandOverRequested(tree.address, tree.process_id, Future()))
            driver.took()
            driver.commit(99)
            last = ProcessEnded(tree.process_id, How.EXIT, proven=True, at=at)
        else:
            tree = spawn(driver, number, owner=Owner.SESSION)
            last = ProcessEnded(tree.process_id, How.NOT_STARTED, proven=True, at=at)
        driver.news(tree, last)
        assert len(record.parts) <= PARTS_KEPT_MAX
        assert not driver.protocol.state.owned
    assert record.omitted == 50 + 2


def test_l14_the_receipts_that_a_tree_of_the_session_is_named_in_are_bounded() -> None:
    driver = Driver()
    in_a_call(driver)
    tree = spawn(driver, 0, owner=Owner.SESSION)
    driver.news(tree, ProcessStarted(tree.process_id, 7, driver.clock.wall()))
    driver.op_end_call(0, 0)
    driver.op_finish(0, returned=True)
    for _ in range(LATE_KEPT_MAX + 10):
        driver.request(Stop(id=driver.new("x"), source="user.test", reason="enough", scope="session"))
    assert len(driver.protocol.state.owned[tree.process_id].row.receipts) == LATE_KEPT_MAX


def test_l5_a_hand_over_that_comes_too_late_is_refused_with_the_end_of_its_run() -> None:
    driver = Driver()
    in_a_call(driver)
    tree = spawn(driver, 0)
    driver.news(tree, ProcessStarted(tree.process_id, 7, driver.clock.wall()))
    driver.request(Stop(id="x", source="user.test", reason="enough"))
    driver.protocol.report(HandOverRequested(tree.address, tree.process_id, Future()))
    (refused,) = [one for one in driver.protocol.state.step.now if isinstance(one, RefuseHandOver)]
    assert isinstance(refused.error, RunCancelled)
    assert refused.error.provenance == driver.protocol.state.ending[tree.address.run].info.provenance
    assert refused.error.provenance.source == "user.test"


class Counted(OpenIndex[Part]):
    """Parts that count how many of them are looked at."""

    looked = 0

    def values(self) -> Any:
        """Give all, and count them."""
        for part in super().values():
            self.looked += 1
            yield part


class Looked(Part):
    """A part that counts how often it is asked whether it has ended."""

    times = 0

    @property
    def open(self) -> bool:
        """As ever."""
        type(self).times += 1
        return super().open


def test_l14_a_spawn_costs_the_same_however_many_have_ended_and_a_receipt_looks_at_each_part_once_or_twice() -> None:
    costs = []
    for ended in (10, 500, PARTS_KEPT_MAX + 200):
        record = RunRecord(
            RunInfo(session="s", run_id="r", status=RunStatus.IN_PROGRESS, agent="a", generation=1, receipt_id="x"),
            CancelToken(lambda callback: callback()),
            Credit(1, 1),
        )
        record.parts = parts = Counted()
        record.add(Looked("c", PartKind.CALL, "t", None, holds=True))
        for number in range(ended):
            part = Looked(f"p{number}", PartKind.PROCESS, "true", "c", holds=True)
            record.add(part)
            part.end(How.EXIT, 0.0)
        parts.looked, before = 0, Looked.times
        record.add(Looked("last", PartKind.PROCESS, "true", "c", holds=True))
        assert len(record.open_parts()) == 2
        assert parts.looked == 0
        costs.append(Looked.times - before)
        record.file_receipt(0.0, ())
        assert parts.looked <= 2 * len(parts)
    assert len(set(costs)) == 1


def test_l14_a_receipt_of_a_call_with_very_many_processes_has_the_last_ones_and_counts_the_others(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.protocol.run_record.PARTS_KEPT_MAX", 10)

    @tool(isolation="thread")
    def again(spawn: Spawn) -> None:
        for number in range(30):
            spawn(["true"], name=f"the {number}th").wait()

    session = kit.session(lambda turn: turn.call("again").content, tools=[again])
    receipt = session.receipt(say(session), timeout=60)
    (call,) = [row for row in receipt.rows if row.kind == "call"]
    assert [row.name for row in call.rows] == [f"the {number}th" for number in range(22, 30)]
    assert (receipt.omitted, receipt.reaped, receipt.complete) == (22, 30, True)


def test_l7_a_part_of_a_kind_that_only_a_later_version_knows_is_named_as_left() -> None:
    info = RunInfo("s", "r", RunStatus.CANCELLING, "a", 1, "x", started_at=1.0)
    row = ProcessRow("s", "r", "", "p", "a later part", TreeState.GRANTED, kind=PartKind.OTHER, started_at=1.0)
    record = restored(info, CancelToken(lambda callback: callback()), Credit(1, 1), (), (row,), {})
    record.parts[AGENT].end(How.CANCELLED, 2.0)
    assert [part.id for part in record.awaited_parts()] == ["p"]
    receipt = record.file_receipt(3.0, ())
    assert (receipt.complete, [(one.kind, one.how) for one in receipt.rows if one.kind != PartKind.AGENT]) == (
        False,
        [(PartKind.OTHER, How.ABANDONED)],
    )
