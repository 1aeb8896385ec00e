"""The spool: exact bytes in a file where a report has no room for them; bounded, and nobody waits for the disk."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from supervisor.containment import spool as spool_module
from supervisor.containment.reactor import Reactor
from supervisor.containment.spool import PENDING_MAX_BYTES, Spool, SpooledFile, Spools
from tests.process_kit import WAIT_S, RealClock, until

T = TypeVar("T")
INLINE = 100


class Desk:
    """Spools on a directory, and a reactor on whose thread they are used."""

    def __init__(self, folder: Path, **options: Any) -> None:
        limits: dict[str, Any] = {"file_max_bytes": 10_000_000, "total_max_bytes": 100_000_000, "keep_s": 3600.0}
        self.folder = folder
        self.reactor = Reactor("test-reactor", RealClock())
        self.spools = Spools(folder, RealClock(), **{**limits, **options})
        self.room: list[str] = []
        self.reactor.start()
        self.spools.start()

    def open(self, name: str = "p", session: str = "") -> Spool:
        return Spool(self.spools, name, self.reactor, INLINE, lambda: self.room.append(name), session)

    def do(self, work: Callable[[], T]) -> T:
        """Do it on the reactor's thread, and return what it returns."""
        done, told = threading.Event(), list[T]()

        def call() -> None:
            told.append(work())
            done.set()

        assert self.reactor.post(call)
        assert done.wait(WAIT_S)
        return told[0]

    def settled(self, spool: Spool) -> SpooledFile | None:
        """What is in the file once everything is."""
        done = threading.Event()
        self.do(lambda: spool.settle(done.set))
        assert done.wait(WAIT_S)
        return self.do(lambda: spool.kept)

    def store(self, name: str, data: bytes, session: str = "") -> SpooledFile | None:
        """Spool some bytes, all of them, and close."""
        spool = self.open(name, session)
        self.do(lambda: spool.feed(data))
        self.do(spool.need)
        kept = self.settled(spool)
        self.do(spool.close)
        self.settled(spool)
        return kept

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def close(self) -> None:
        self.reactor.stop(WAIT_S)
        self.spools.close(WAIT_S)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**options: Any) -> Desk:
        made.append(Desk(tmp_path / "spool", **options))
        return made[-1]

    try:
        yield make
    finally:
        for desk in made:
            desk.close()


def full(spool: Spool) -> bool:
    return spool.full


class Disk:
    """A disk that can be slow, or full; in place of `os.write`."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self.reached = threading.Event()
        self.full = False

    def write(self, fd: int, data: memoryview) -> int:
        self.reached.set()
        assert self.goes.wait(WAIT_S)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        # In pieces, as a file may take it.
        return os.write(fd, data[: max(1, len(data) // 2)])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(spool_module, "write", made.write)
    try:
        yield made
    finally:
        made.goes.set()


def test_what_fits_into_a_report_makes_no_file(make: Callable[..., Desk]) -> None:
    desk = make()
    spool = desk.open()
    desk.do(lambda: spool.feed(b"x" * INLINE))
    assert desk.settled(spool) is None
    desk.do(spool.close)
    assert desk.settled(spool) is None
    assert desk.names() == []


def test_what_does_not_fit_is_in_the_file_from_its_first_byte_exactly(make: Callable[..., Desk], disk: Disk) -> None:
    desk = make()
    spool = desk.open("a/b")
    pieces = [b"\0\xff\xf0", b"y" * INLINE, os.urandom(300_000), b"z", "é".encode()]
    for piece in pieces:
        desk.do(partial(spool.feed, piece))
    whole = b"".join(pieces)
    path = desk.folder / "a%2Fb.out"
    assert desk.settled(spool) == SpooledFile(str(path), len(whole))
    assert path.read_bytes() == whole
    assert path.stat().st_mode & 0o777 == 0o600
    assert desk.folder.stat().st_mode & 0o777 == 0o700


def test_what_is_needed_is_in_the_file_however_little_it_is_and_so_is_what_follows(make: Callable[..., Desk]) -> None:
    desk = make()
    spool = desk.open()
    desk.do(lambda: spool.feed(b"\xf0"))
    desk.do(spool.need)
    assert desk.settled(spool) == SpooledFile(str(desk.folder / "p.out"), 1)
    desk.do(lambda: spool.feed(b"more"))
    # Nobody asks for it now; it comes by itself, for somebody who reads along.
    until(lambda: (desk.folder / "p.out").read_bytes() == b"\xf0more", "what followed is in the file")


def test_l14_a_file_is_capped_and_has_the_beginning(make: Callable[..., Desk]) -> None:
    desk = make(file_max_bytes=1000)
    spool = desk.open()
    for number in range(100):
        desk.do(partial(spool.feed, b"%099d\n" % number))
    assert desk.settled(spool) == SpooledFile(str(desk.folder / "p.out"), 1000)
    assert (desk.folder / "p.out").read_bytes() == b"".join(b"%099d\n" % number for number in range(10))


def test_with_a_cap_of_0_there_are_no_files(make: Callable[..., Desk]) -> None:
    desk = make(file_max_bytes=0)
    assert desk.store("p", b"x" * 1000) is None
    assert desk.names() == []


def test_l14_all_files_together_are_capped_and_the_oldest_go_first(make: Callable[..., Desk]) -> None:
    desk = make(total_max_bytes=2500)
    for number, name in enumerate(("one", "two", "three")):
        desk.store(name, b"x" * 1000)
        path = desk.folder / f"{name}.out"
        if path.exists():
            os.utime(path, (1_000_000_000_000 + number,) * 2)
    assert desk.names() == ["three.out", "two.out"]


def test_l14_where_all_the_room_is_taken_by_files_in_use_the_next_one_ends_where_it_is(
    make: Callable[..., Desk],
) -> None:
    desk = make(total_max_bytes=2500)
    spools = [desk.open(name) for name in ("one", "two", "three")]
    for spool in spools:
        desk.do(partial(spool.feed, b"x" * 1000))
    assert [kept and kept.size for kept in map(desk.settled, spools)] == [1000, 1000, 500]
    assert desk.names() == ["one.out", "three.out", "two.out"]
    desk.do(lambda: spools[2].feed(b"x" * 1000))
    kept = desk.settled(spools[2])
    assert kept is not None
    assert kept.size == 500


def test_l14_files_that_are_too_old_go_at_the_start_and_others_are_left_alone(make: Callable[..., Desk]) -> None:
    first = make()
    for name in ("old", "new"):
        first.store(name, b"x" * 1000)
    (first.folder / "notes").write_text("not ours")
    os.utime(first.folder / "old.out", (1, 1))
    os.utime(first.folder / "notes", (1, 1))
    make()
    until(lambda: first.names() == ["new.out", "notes"], "the old one is gone")


def test_l14_files_of_an_earlier_daemon_count(make: Callable[..., Desk]) -> None:
    first = make()
    first.store("old", b"x" * 1000)
    os.utime(first.folder / "old.out", (1_000_000_000_000,) * 2)
    desk = make(total_max_bytes=1500)
    desk.store("new", b"x" * 1000)
    assert desk.names() == ["new.out"]


def test_l14_behind_a_slow_disk_a_spool_is_full_until_all_is_written(make: Callable[..., Desk], disk: Disk) -> None:
    desk = make()
    spool = desk.open()
    disk.goes.clear()
    fed = 0
    while not desk.do(lambda: spool.full):
        desk.do(lambda: spool.feed(b"x" * 65_536))
        fed += 65_536
        assert fed <= PENDING_MAX_BYTES + 65_536
    assert desk.room == []
    disk.goes.set()
    until(lambda: desk.room == ["p"], "it is told that there is room")
    assert not desk.do(lambda: spool.full)
    kept = desk.settled(spool)
    assert kept is not None
    assert kept.size == fed


def test_l14_behind_a_slow_disk_all_spools_together_are_bounded(
    make: Callable[..., Desk], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "ALL_PENDING_MAX_BYTES", 300_000)
    desk = make()
    spools = [desk.open(f"p{number}") for number in range(10)]
    disk.goes.clear()
    fed = 0
    for spool in spools:
        for _ in range(3):
            if not desk.do(partial(full, spool)):
                desk.do(partial(spool.feed, b"x" * 65_536))
                fed += 65_536
    assert fed <= 300_000 + len(spools) * 2 * 65_536
    disk.goes.set()
    for spool in spools:
        desk.settled(spool)
    assert not any(desk.do(partial(full, spool)) for spool in spools)


def test_l13_a_full_disk_ends_the_file_and_nothing_else(make: Callable[..., Desk], disk: Disk) -> None:
    desk = make()
    spool = desk.open()
    desk.do(lambda: spool.feed(b"x" * 1000))
    assert desk.settled(spool) is not None
    disk.full = True
    for _ in range(100):
        desk.do(lambda: spool.feed(b"y" * 65_536))
    kept = desk.settled(spool)
    assert kept is not None
    assert kept.size == 1000
    assert not desk.do(lambda: spool.full)
    disk.full = False
    assert desk.store("other", b"z" * 1000) == SpooledFile(str(desk.folder / "other.out"), 1000)


def test_l13_a_disk_that_is_nearly_full_is_left_to_the_store(
    make: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "FREE_MIN_BYTES", 1 << 60)
    desk = make()
    assert desk.store("p", b"x" * 1000) is None


def test_what_is_already_there_is_not_written_to(make: Callable[..., Desk], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    desk = make()
    (desk.folder / "p.out").symlink_to(victim)
    assert desk.store("p", b"x" * 1000) is None
    assert victim.read_text() == "precious"


def test_the_files_of_a_session_go_with_it_and_those_of_others_stay(make: Callable[..., Desk]) -> None:
    desk = make()
    for session in ("mine", "yours", ""):
        desk.store("p", b"x" * 1000, session)
    assert len(desk.names()) == 3
    desk.spools.forget("mine")
    until(lambda: len(desk.names()) == 2, "mine are gone")
    assert set(desk.names()) == {desk.spools.path("p", "yours").name, "p.out"}
    # Its room is free: what was taken is counted.
    desk.store("q", b"x" * 1000, "mine")
    assert desk.spools._used == 3000


@pytest.mark.parametrize("moment", ["before the first byte", "in between", "closed"])
def test_the_file_of_a_tree_that_becomes_a_sessions_goes_with_it(
    make: Callable[..., Desk], moment: str, disk: Disk
) -> None:
    desk = make()
    spool = desk.open("p")
    if moment == "before the first byte":
        desk.do(lambda: spool.belong_to("mine"))
    desk.do(lambda: spool.feed(b"x" * 1000))
    desk.do(spool.need)
    if moment == "closed":
        desk.do(spool.close)
    if moment != "before the first byte":
        desk.do(lambda: spool.belong_to("mine"))
    if moment != "closed":
        desk.do(lambda: spool.feed(b"y" * 1000))
        desk.do(spool.close)
    kept = desk.settled(spool)
    assert kept is not None
    assert kept.path == str(desk.spools.path("p", "mine"))
    assert Path(kept.path).stat().st_size == kept.size == (1000 if moment == "closed" else 2000)
    assert not desk.spools._open
    desk.spools.forget("mine")
    until(lambda: desk.names() == [], "it is gone")


def test_files_of_sessions_that_are_not_go_before_anything_new_is_written(make: Callable[..., Desk]) -> None:
    first = make()
    for session in ("here", "deleted", ""):
        first.store("p", b"x" * 1000, session)
    desk = make()
    desk.spools.keep_only(lambda: ["here"])
    assert desk.store("p", b"x" * 1000, "fresh") is not None
    names = {desk.spools.path("p", session).name for session in ("here", "", "fresh")}
    assert set(desk.names()) == names


def test_where_the_sessions_are_unknown_every_file_stays(make: Callable[..., Desk]) -> None:
    desk = make()
    desk.store("p", b"x" * 1000, "here")

    def unknown() -> list[str]:
        raise OSError("the store cannot be read")

    desk.spools.keep_only(unknown)
    desk.store("q", b"x" * 1000, "here")
    assert len(desk.names()) == 2


def test_closed_spools_leave_no_descriptor(make: Callable[..., Desk]) -> None:
    desk = make()
    spool = desk.open("open")
    desk.do(lambda: spool.feed(b"x" * 1000))
    until(lambda: descriptors_below(desk.folder) == 1, "an open one has its file open")
    desk.do(spool.close)
    for number in range(20):
        desk.store(f"p{number}", b"x" * 1000)
    until(lambda: descriptors_below(desk.folder) == 0, "each file was closed")


def descriptors_below(folder: Path) -> int:
    """How many files of a folder this process has open. (The descriptors of other tests come and go.)"""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += link.readlink().is_relative_to(folder)
    return count
