"""Commands that print without an end: bounded memory, and neither a stop nor anybody else's work waits for them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors import How, NewMessage, RunStatus
from supervisor.containment import spool as spool_module
from tests.kit import WAIT_S, Kit, check_rest, log, say, settled, stop, until
from tests.process_kit import Bench, Recorder, bench
from tests.test_spool import Disk, disk  # noqa: F401  # a fixture

PYTHON = sys.executable
RSS_GROWTH_MAX_BYTES = 96 * 1024 * 1024
FLOOD_BYTES = 300_000_000

FLOODS = {
    "text": "yes",
    "binary": "cat /dev/urandom",
    "one endless line": "tr '\\0' x < /dev/zero",
    "NULs": "cat /dev/zero",
    "stderr": "yes >&2",
    "both streams": "yes & yes >&2",
    "no whole character": "yes \"$(printf '\\303')\" | tr -d '\\n'",
    "small writes": "while :; do echo a line; done",
    "many writers": "for n in 1 2 3 4 5 6 7 8 9; do while :; do echo $n; done & done; wait",
}


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as opened:
        yield opened


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def written(pids: list[int]) -> int:
    """How many bytes these processes have written so far."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    return total


@pytest.mark.parametrize("kind", FLOODS)
def test_l14_a_stop_ends_a_flood_of_every_kind(kit: Kit, kind: str) -> None:
    session = kit.session()
    run_id = say(session, kit.script(FLOODS[kind]))
    until(lambda: written(kit.alive()) > 3_000_000, "it floods", 60)
    assert stop(session).outcome == "stopped"
    receipt = session.receipt(run_id, timeout=60)
    assert receipt.complete
    assert kit.alive() == []
    events = check_rest(session)
    said = [event for event in events if event.kind == "tool.output"]
    assert sum(len(event.data["text"].encode()) for event in said if "marker" not in event.data) <= 1_048_576


def test_l3_a_flood_in_the_background_ends_with_its_run(kit: Kit) -> None:
    session = kit.session()
    run_id = say(session, kit.script("yes & exit 0"))
    assert session.receipt(run_id, timeout=60).complete
    assert session.run(run_id).status is RunStatus.COMPLETED
    assert kit.alive() == []
    check_rest(session)


def test_l14_floods_cost_bounded_memory_and_other_runs_continue_meanwhile(kit: Kit) -> None:
    supervisor = kit.start()
    quiet = supervisor.session("quiet")
    quiet.receipt(say(quiet, "echo before"), timeout=WAIT_S)
    before = resident()
    floods = {name: supervisor.session(name.replace(" ", "-")) for name in ("text", "one endless line", "stderr")}
    runs = {name: say(session, kit.script(FLOODS[name])) for name, session in floods.items()}
    most = 0

    def flooded() -> bool:
        nonlocal most
        most = max(most, resident())
        return written(kit.alive()) > FLOOD_BYTES

    until(flooded, "much was written", 100)
    assert most - before < RSS_GROWTH_MAX_BYTES

    # Others work, and are stopped, while all of them go on.
    done = say(quiet, "echo one; echo two >&2")
    quiet.receipt(done, timeout=WAIT_S)
    assert quiet.run(done).status is RunStatus.COMPLETED
    held = say(quiet, kit.script("echo up; sleep 1000"))
    until(lambda: any(event.run_id == held and event.kind == "tool.output" for event in log(quiet)), "it is up")
    stop(quiet)
    assert quiet.receipt(held, timeout=WAIT_S).complete
    for name, session in floods.items():
        assert session.run(runs[name]).status is RunStatus.IN_PROGRESS
    now = written(kit.alive())
    until(lambda: written(kit.alive()) > now + 1_000_000, "the floods went on all the time")

    # One is stopped; the others are none the worse for it.
    stop(floods["text"])
    assert floods["text"].receipt(runs["text"], timeout=WAIT_S).complete
    assert floods["stderr"].run(runs["stderr"]).status is RunStatus.IN_PROGRESS
    for name in ("one endless line", "stderr"):
        stop(floods[name])
        assert floods[name].receipt(runs[name], timeout=WAIT_S).complete
    assert kit.alive() == []


def test_a_command_that_prints_very_much_and_ends_does_so_by_itself(b: Bench) -> None:
    b.sh("head -c 300000000 /dev/zero | tr '\\0' x; echo; echo the end")
    until(lambda: b.owner.kinds()[-1:] == ["ProcessEnded"], "it ends", 110)
    exited = b.owner.exited()
    assert (exited.status, exited.total_bytes, exited.held) == (0, 300_000_009, False)
    assert exited.tail.endswith("x\nthe end\n")
    assert exited.spooled_bytes == 67_108_864
    assert exited.spool is not None
    assert os.path.getsize(exited.spool) == 67_108_864


def test_l14_past_its_cap_a_flood_from_the_background_neither_grows_nor_stands_still(tmp_path: Path) -> None:
    with bench(tmp_path, spool_max_bytes=100_000) as b:
        b.sh("yes & exit 0")
        exited = b.owner.exited()
        assert exited.held
        assert exited.spool is not None
        until(lambda: os.path.getsize(exited.spool or "") == 100_000, "its file is full")
        now = written(b.alive())
        until(lambda: written(b.alive()) > now + 10_000_000, "it goes on")
        assert os.path.getsize(exited.spool) == 100_000
        b.trees.kill("p", 0.0)
        assert b.owner.ended().proven


def test_l14_a_disk_that_stands_still_stops_the_flood_and_no_stop(tmp_path: Path, disk: Disk) -> None:  # noqa: F811
    with bench(tmp_path) as b:
        disk.goes.clear()
        b.sh("yes", "flood")
        assert disk.reached.wait(WAIT_S)
        # It fills what may wait, and its pipe, and then it waits too.
        before = -1

        def still() -> bool:
            nonlocal before
            now, before = before, written(b.alive())
            # It may also not have had the processor between two looks.
            return now == before and before > spool_module.PENDING_MAX_BYTES

        until(still, "the flood waits for the disk")
        assert before < spool_module.PENDING_MAX_BYTES + 4 * 1_048_576
        b.sh("echo hello", "other")
        assert b.owner.exited("other").tail == "hello\n"
        b.trees.kill("flood", 60.0)
        ended = b.owner.ended("flood")
        assert (ended.proven, ended.how) == (True, How.SIGTERM)
        assert b.owner.exited("flood").total_bytes > spool_module.PENDING_MAX_BYTES
        disk.goes.set()


def test_a_disk_that_was_slow_costs_no_byte(tmp_path: Path, disk: Disk) -> None:  # noqa: F811
    with bench(tmp_path) as b:
        disk.goes.clear()
        b.sh("seq 1 1000000", "p")
        assert disk.reached.wait(WAIT_S)
        disk.goes.set()
        exited = b.owner.exited()
        expected = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
        assert exited.total_bytes == exited.spooled_bytes == len(expected)
        assert Path(exited.spool or "").read_bytes() == expected


def test_what_is_left_in_the_pipe_at_the_exit_is_read_however_long_the_thread_was_away(tmp_path: Path) -> None:
    class Slow(Recorder):
        """An owner that keeps the thread that tells it for longer than a drain may take."""

        def tell(self, report: object) -> None:
            super().tell(report)
            if type(report).__name__ == "ProcessStarted":
                until(lambda: not running(b), "the command has exited")

    def running(b: Bench) -> list[int]:
        return b.alive()

    with bench(tmp_path, drain_s=0.0) as b:
        b.owner = Slow()
        b.sh("head -c 60000 /dev/zero | tr '\\0' x; echo the end")
        exited = b.owner.exited()
        assert (exited.total_bytes, exited.held) == (60_008, False)
        assert exited.tail.endswith("xthe end\n")


def test_an_agent_reads_of_a_large_output_the_end_and_where_the_rest_is(kit: Kit) -> None:
    session = kit.session()
    session.receipt(session.ask(NewMessage(content="seq 1 300000"), timeout=WAIT_S).run_id or "", timeout=60)
    settled(session)
    (ended,) = [event for event in log(session) if event.kind == "tool.ended"]
    (marker,) = [event for event in log(session) if event.data.get("marker")]
    whole = "".join(f"{number}\n" for number in range(1, 300_001))
    data, content = ended.data["data"], ended.data["content"]
    assert Path(data["spool"]).read_text() == whole
    assert data["spooled_bytes"] == data["total_bytes"] == len(whole)
    assert content.startswith(f"[the last 65536 of {len(whole)} bytes of output; all of it is in {data['spool']}]\n")
    assert content.endswith(whole[-65_536:])
    assert data["spool"] in marker.data["text"]
    assert Path(data["spool"]).parent == kit.state_dir / "spool"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf '\\360'", lambda path: f"\ufffd\n[not all of the output is text; all of it is in {path}]"),
        (
            "sleep 1000 & echo hi",
            lambda path: (
                f"hi\n\n[a process left in the background still holds the output, and goes on writing to {path}]"
            ),
        ),
    ],
)
def test_an_agent_gets_the_path_of_output_that_cannot_be_shown(
    kit: Kit, script: str, told: Callable[[str], str]
) -> None:
    session = kit.session()
    say(session, kit.script(script))
    settled(session)
    (ended,) = [event for event in log(session) if event.kind == "tool.ended"]
    assert ended.data["content"] == told(ended.data["data"]["spool"])


def test_an_agent_that_has_read_all_output_gets_no_path(kit: Kit) -> None:
    session = kit.session()
    say(session, "head -c 65536 /dev/zero | tr '\\0' x")
    settled(session)
    (ended,) = [event for event in log(session) if event.kind == "tool.ended"]
    assert ended.data["content"] == "x" * 65_536
    assert "spool" not in ended.data["data"]
    assert not list((kit.state_dir / "spool").iterdir())


def test_a_tree_that_is_killed_after_its_whole_output_was_reported_makes_no_file(b: Bench) -> None:
    """As at the end of a run, which ends what its commands have left behind."""
    b.sh("head -c 30000 /dev/zero | tr '\\0' x; sleep 1000 > /dev/null 2>&1 & exit 0")
    exited = b.owner.exited()
    assert (exited.total_bytes, exited.held, exited.spool) == (30_000, False, None)
    b.trees.kill("p", 0.0)
    assert b.owner.ended().proven
    written = threading.Event()
    b.trees.spools.after(written.set)
    assert written.wait(WAIT_S)
    assert not list(b.trees.spools.folder.iterdir())


def test_where_files_are_switched_off_no_path_is_reported(kit: Kit) -> None:
    session = kit.session(spool_max_bytes=0)
    say(session, "seq 1 300000")
    settled(session)
    (ended,) = [event for event in log(session) if event.kind == "tool.ended"]
    (marker,) = [event for event in log(session) if event.data.get("marker")]
    assert ended.data["content"].startswith("[the last 65536 of 1988895 bytes of output]\n")
    assert "spool" not in ended.data["content"][:200] + marker.data["text"]


def test_what_is_written_in_the_background_after_the_exit_is_in_the_file_to_the_end(b: Bench) -> None:
    b.sh("(trap 'printf last; exit' TERM; while :; do echo more; sleep 0.01; done) & echo first; exit 0")
    exited = b.owner.exited()
    assert exited.held
    path = Path(exited.spool or "")
    until(lambda: path.read_text().count("more") > 100, "it is written along")
    b.trees.kill("p", 60.0)
    assert b.owner.ended().proven
    until(lambda: path.read_text().count("last") == 1, "its last word too")
    assert path.read_text().startswith(("first", "more"))
    assert "last" not in b.owner.text()


def test_the_exit_counts_what_was_logged_and_not_what_comes_while_the_disk_is_waited_for(
    tmp_path: Path,
    disk: Disk,  # noqa: F811
) -> None:
    with bench(tmp_path) as b:
        disk.goes.clear()
        b.sh("(while :; do echo more; sleep 0.01; done) & echo first; exit 0")
        exited = b.owner.exited()
        disk.goes.set()
        assert exited.held
        assert exited.total_bytes == len(b.owner.text().encode())
