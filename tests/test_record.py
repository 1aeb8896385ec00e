"""What a session keeps of a run has a bound, whatever the run does."""

from __future__ import annotations

from actors.cancel import CancelToken
from actors.credit import Credit
from actors.model import Outcome, RunInfo, RunStatus
from actors.ports import CallRow
from actors.record import PARTS_KEPT_MAX, CallRecord, RunRecord


def test_l14_calls_that_were_refused_are_forgotten_beyond_a_bound_and_open_ones_are_not() -> None:
    info = RunInfo(session="s", run_id="r", status=RunStatus.IN_PROGRESS, agent="a", generation=1, receipt_id="x")
    record = RunRecord(info, CancelToken(lambda callback: callback()), Credit(1, 1))
    waiting = CallRow("s", "r", "open", "t", {}, "requested", "thread")
    record.calls["open"] = CallRecord(waiting)
    for number in range(3 * PARTS_KEPT_MAX):
        row = CallRow("s", "r", str(number), "t", {}, "ended", "thread", outcome=str(Outcome.NOT_STARTED))
        record.calls[str(number)] = CallRecord(row)
        record.trim()
        assert len(record.calls) <= PARTS_KEPT_MAX
    assert record.calls["open"].waits
    assert str(3 * PARTS_KEPT_MAX - 1) in record.calls
    assert not record.effects
    assert record.file_receipt(0.0, ()).omitted == 0
