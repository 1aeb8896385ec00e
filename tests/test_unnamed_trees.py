"""Trees of a dead daemon that no row of the store names: ended, proven and forgotten at the next start."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.model import How
from supervisor.config import LAYERS
from supervisor.containment.guard import ledger, procfs
from supervisor.store.reader import SqliteReader
from tests.kit import Kit
from tests.process_kit import NO_CGROUP, Bench, Recorder, bench, needs_cgroups, until
from tests.test_orphans import kill_all_three
from tests.test_warden import SPAWNING, STARTED, Daemon, daemon, leave, sent

FAMILY = "trap '' TERM; setsid sleep 1000 & echo up; wait"


@pytest.fixture(params=[pytest.param(LAYERS, id="cgroup", marks=needs_cgroups), pytest.param(NO_CGROUP, id="plain")])
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(tmp_path, layers=request.param) as opened:
        opened.trees.close()
        yield opened


def spawn(victim: Daemon, process_id: str) -> int:
    """The pid of a tree of the daemon that is up."""
    victim.spawn(FAMILY, process_id)
    pid = int(victim.line().split()[1])
    assert victim.line() == "ProcessOutput  up"
    return pid


def restart(b: Bench, *named: str) -> None:
    b.trees = b.new_trees()
    b.trees.end_unnamed(lambda: set(named))


def ledgers(b: Bench) -> set[str]:
    return {path.stem for path in (b.state_dir / "wardens").glob("*.ledger")}


def test_l14_the_ledger_of_what_a_killed_daemon_had_goes_when_its_session_is_read_anew(b: Bench) -> None:
    with daemon(b, b.options["layers"]) as victim:
        for process_id in ("over", "asked", "another"):
            spawn(victim, process_id)
        victim.kill()
    restart(b, "over", "asked", "another")
    for process_id, session in (("over", "s"), ("asked", "s"), ("another", "t")):
        b.trees.adopt(process_id, b.owner, session)  # type: ignore[arg-type]
        assert b.owner.ended(process_id).proven
    b.trees.forget_ended("s", {"asked"})
    until(lambda: ledgers(b) == {"asked", "another"}, "one ledger less")
    again = Recorder()
    b.trees.adopt("asked", again, "s")  # type: ignore[arg-type]
    assert again.ended("asked").how is not How.NOT_STARTED


@pytest.mark.parametrize("zygote_first", [False, True], ids=["daemon", "zygote and daemon"])
def test_l3_what_a_killed_daemon_had_and_no_row_names_is_gone_and_so_is_its_ledger(
    b: Bench, zygote_first: bool
) -> None:
    with daemon(b, b.options["layers"]) as victim:
        spawn(victim, "spare")
        spawn(victim, "named")
        if zygote_first:
            os.kill(victim.zygote(), 9)
        victim.kill()
    restart(b, "named")
    until(lambda: ledgers(b) == {"named"}, "only the ledger that a row names is left")
    # It was removed at the proof, or later.
    owner = Recorder()
    b.trees.adopt("named", owner)  # type: ignore[arg-type]
    ended = owner.ended("named")
    assert (ended.how, ended.proven) == (How.SIGKILL, True)
    b.assert_nobody_left()
    b.trees.adopt("spare", owner)  # type: ignore[arg-type]
    assert owner.ended("spare").how is How.NOT_STARTED


def test_l3_what_daemon_zygote_and_warden_left_and_no_row_names_is_killed_and_its_ledger_removed(b: Bench) -> None:
    with daemon(b, b.options["layers"]) as victim:
        pid = spawn(victim, "spare")
        group = b.group("spare")
        kill_all_three(b, victim, pid)
        assert procfs.stat(pid) is not None
        restart(b)
        until(lambda: not ledgers(b), "its ledger is removed")
    b.assert_nobody_left()
    assert group is None or not os.path.exists(group)


def test_l3_a_tree_that_its_warden_is_still_ending_keeps_its_ledger_until_it_is_gone(b: Bench) -> None:
    with daemon(b, b.options["layers"]) as victim:
        pid = spawn(victim, "spare")
        with b.stopped(b.warden_of(pid)):
            victim.kill()
            restart(b)
            b.settle()
            assert ledgers(b) == {"spare"}
            assert procfs.stat(pid) is not None
    until(lambda: not ledgers(b), "its ledger is removed")
    b.assert_nobody_left()


def test_a_spawn_without_an_owner_and_one_that_ended_leave_no_ledger(b: Bench) -> None:
    boot = procfs.boot_id()
    leave(b, "unborn", sent(boot))
    leave(b, "ended", sent(boot), SPAWNING, STARTED, {**ledger.fold([]), "word": "empty", "proven": True, "at": 3.0})
    leave(b, "restarted", sent("another-boot"), SPAWNING, STARTED)
    restart(b)
    until(lambda: not ledgers(b), "none is left")


def test_an_actor_that_asks_for_a_tree_after_all_gets_it_and_its_ledger(b: Bench) -> None:
    with daemon(b, b.options["layers"]) as victim:
        pid = spawn(victim, "spare")
        with b.stopped(b.warden_of(pid)):
            victim.kill()
            restart(b)
            b.trees.adopt("spare", b.owner)  # type: ignore[arg-type]
            b.settle()
    assert b.owner.ended("spare").proven
    assert ledgers(b) == {"spare"}
    b.trees.forget("spare")
    until(lambda: not ledgers(b), "it is forgotten")


def test_l3_the_ledger_of_a_tree_whose_group_is_not_empty_is_kept_for_the_next_start(b: Bench, tmp_path: Path) -> None:
    # A directory that is there stands for a group that cannot be removed.
    swept = {**ledger.fold([]), "word": "swept", "how": "abandoned", "proven": False, "note": "", "at": 3.0}
    there = {**SPAWNING, "cgroup": str(tmp_path)}
    gone = {**SPAWNING, "cgroup": str(tmp_path / "gone")}
    leave(b, "there", sent(procfs.boot_id()), there, STARTED, swept)
    leave(b, "gone", sent(procfs.boot_id()), gone, STARTED, swept)
    restart(b)
    until(lambda: ledgers(b) == {"there"}, "what may still be proven is kept")
    b.settle()
    assert ledgers(b) == {"there"}


def test_without_a_ledger_the_rows_are_not_asked_for(b: Bench) -> None:
    b.trees = b.new_trees()

    def never() -> set[str]:
        raise AssertionError

    b.trees.end_unnamed(never)
    b.sh("echo on")
    assert b.owner.ended().status == 0


def test_what_is_spawned_from_then_on_is_not_touched(b: Bench) -> None:
    leave(b, "spare", sent(procfs.boot_id()))
    restart(b)
    b.sh("echo up; exec sleep 1000")
    b.owner.wait_text("up")
    until(lambda: ledgers(b) == {"p"}, "the old one is removed")
    b.settle()
    assert b.ledger_text()
    assert b.owner.kinds() == ["ProcessStarted", "ProcessOutput"]


def test_a_supervisor_removes_what_no_row_names_and_keeps_what_one_names_that_it_cannot_read(kit: Kit) -> None:
    kit.start()
    kit.close()
    folder = kit.state_dir / "wardens"
    for process_id in ("spare", "named"):
        ledger.create(folder / f"{process_id}.ledger", process_id, 1.0, procfs.boot_id())
    with sqlite3.connect(kit.state_dir / "store.sqlite3") as connection:
        connection.execute(
            "INSERT INTO processes (session, process_id, state, doc) VALUES ('s', 'named', 'granted', ?)", (b"no row",)
        )
        connection.execute(
            "INSERT INTO processes (session, process_id, state, doc) VALUES ('s', 'over', 'ended', ?)", (b"no row",)
        )
    connection.close()
    reader = SqliteReader(kit.state_dir / "store.sqlite3")
    try:
        assert reader.living_trees() == {"named"}
    finally:
        reader.close()
    kit.start()
    until(lambda: [path.stem for path in folder.glob("*.ledger")] == ["named"], "the unnamed one is removed")
