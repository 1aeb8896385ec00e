"""The order of a fork and a moment, by the kernel's counters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from supervisor.containment.guard import procfs
from supervisor.containment.guard.moment import Moment, forked_before


def at(pid: int | None, ticks: int = 100) -> Moment:
    made = Moment()
    made.pid, made.ticks = pid, ticks
    return made


def born(pid: int, ticks: int = 100) -> procfs.Stat:
    return procfs.Stat(pid, f"{pid} (x) S 1 1 1 {'0 ' * 15}{ticks} 0")


@pytest.mark.parametrize(
    ("pid", "expected"), [(49, True), (50, True), (51, None), (55, None), (56, False), (60, False), (61, True)]
)
def test_within_a_tick_the_order_is_that_of_the_pids(pid: int, expected: bool | None) -> None:
    assert forked_before(born(pid), at(50), at(55), at(60)) is expected


@pytest.mark.parametrize(
    ("pid", "expected"), [(31999, True), (32000, None), (310, None), (311, False), (320, False), (321, True)]
)
def test_pids_begin_again_at_the_lowest(pid: int, expected: bool | None) -> None:
    assert forked_before(born(pid), at(31999), at(310), at(320)) is expected


def test_a_process_of_an_earlier_tick_is_older_whatever_its_pid_is() -> None:
    assert forked_before(born(52, ticks=99), at(50), at(55), at(60)) is True
    assert forked_before(born(58, ticks=99), at(None), at(None), at(None)) is True


def test_where_the_kernel_does_not_say_the_last_pid_the_order_within_a_tick_is_unknown() -> None:
    for missing in range(3):
        moments = [at(None) if number == missing else at(50 + number) for number in range(3)]
        assert forked_before(born(53), *moments) is None


def test_the_order_of_real_forks_is_found() -> None:
    def child() -> procfs.Stat:
        with subprocess.Popen(["sleep", "1000"]) as process:
            seen = procfs.stat(process.pid)
            process.kill()
        assert seen is not None
        return seen

    older, before = child(), Moment()
    meanwhile, after = child(), Moment()
    newer, now = child(), Moment()
    if now.pid is None:
        pytest.skip("this kernel does not say which pid was the last")
    assert forked_before(older, before, after, now) is True
    assert forked_before(meanwhile, before, after, now) is None
    assert forked_before(newer, before, after, now) is False


@pytest.mark.parametrize("read", [lambda _: "", lambda _: (_ for _ in ()).throw(OSError)])
def test_a_kernel_without_that_file_says_no_pid(monkeypatch: pytest.MonkeyPatch, read: Callable[[str], str]) -> None:
    monkeypatch.setattr(procfs, "read_text", read)
    assert Moment().pid is None
