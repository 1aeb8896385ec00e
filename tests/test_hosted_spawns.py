"""Processes that an agent in a real host has the daemon start: gated, contained, in the receipt, whatever happens."""

from __future__ import annotations

import pytest

from actors.model import How, Mode, Owner, PartKind, Receipt, Row
from tests.kit import Kit, check_rest, log, rows, say, stop, until
from tests.test_hosts import asleep, ended, next_turn_works, none_left, receipt_of, session_of

STUBBORN = "trap '' TERM; setsid sleep 600 & while :; do echo x; sleep 0.05; done"


def spawned_row(receipt: Receipt) -> Row:
    """The row of what was spawned: below the agent, beside its host."""
    (agent,) = [row for row in rows(receipt) if row.kind is PartKind.AGENT]
    (row,) = [row for row in agent.rows if row.kind is PartKind.PROCESS and not row.name.startswith("host ")]
    return row


def test_it_runs_prints_exits_and_is_in_the_receipt_below_the_agent(kit: Kit) -> None:
    session = session_of(kit)
    run_id = say(session, "spawn echo $COUNTERMAND_FENCE; exit 4")
    run = ended(session, run_id)
    assert run.result == [4, f"s1:{run.generation}:\n"]
    receipt = receipt_of(session, run_id)
    row = spawned_row(receipt)
    assert (row.name, row.how, row.status) == ("sh", How.EXIT, 4)
    none_left(kit, receipt)
    events = [event for event in check_rest(session) if event.run_id == run_id]
    started = [event.data for event in events if event.kind == "process.started"]
    assert ["call_id" in one for one in started] == [False, False]
    (output,) = [event.data["text"] for event in events if event.kind == "run.output"]
    assert output == f"s1:{run.generation}:\n"
    assert not [event for event in events if event.kind.startswith("tool.")]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_stop_ends_it_with_the_run_while_its_output_is_under_way(kit: Kit, mode: Mode) -> None:
    session = session_of(kit)
    run_id = asleep(session, f"spawn {STUBBORN}")
    until(lambda: any(event.kind == "run.output" for event in log(session)), "output")
    stop(session, mode=mode)
    receipt = receipt_of(session, run_id)
    row = spawned_row(receipt)
    assert row.how is How.SIGKILL
    assert row.reaped >= 2
    none_left(kit, receipt)
    next_turn_works(session)


def test_that_of_the_next_run_waits_until_it_is_dead(kit: Kit) -> None:
    session = session_of(kit)
    first = asleep(session, f"spawn {STUBBORN}")
    # It ignores SIGTERM from now on.
    until(lambda: any(event.kind == "run.output" for event in log(session)), "output")
    second = say(session, "spawn echo next", policy="interrupt")
    assert ended(session, second).result == [0, "next\n"]
    none_left(kit, receipt_of(session, second))
    # Its host may have been killed too.
    dead = [
        event.seq
        for event in log(session)
        if event.kind == "process.ended" and event.run_id == first and event.data["how"] == "sigkill"
    ]
    begun = [event.seq for event in log(session) if event.kind == "process.started" and event.run_id == second]
    assert len(begun) == 2
    assert dead
    assert max(begun) > max(dead)


def test_the_host_dies_meanwhile_and_it_ends_with_the_run(kit: Kit) -> None:
    session = session_of(kit)
    run_id = asleep(session, f"spawn_and_die {STUBBORN}")
    assert ended(session, run_id).status == "failed"
    receipt = receipt_of(session, run_id)
    assert spawned_row(receipt).how is How.SIGKILL
    none_left(kit, receipt)
    next_turn_works(session)


def test_one_that_was_handed_over_outlives_run_and_host_until_the_session_is_stopped(kit: Kit) -> None:
    session = session_of(kit)
    run_id = say(session, "serve sleep 600")
    process_id = ended(session, run_id).result
    receipt = receipt_of(session, run_id)
    assert receipt.complete
    assert spawned_row(receipt).how is How.HANDED_OVER
    owned = {one.process_id for one in session.processes() if one.owner is Owner.SESSION}
    assert owned == {process_id}
    assert kit.alive()
    next_turn_works(session)
    assert kit.alive()
    stop(session, scope="session")
    until(lambda: not kit.alive(), "its end")
