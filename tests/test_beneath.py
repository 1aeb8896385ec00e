"""Paths beneath a root: whatever names and links they have, and whoever moves these meanwhile, they do not leave it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import CancelToken
from actors.errors import CountermandError
from supervisor.tools import beneath
from supervisor.tools.beneath import DEPTH_MAX, LINKS_MAX, Beneath, PathRefused, below
from supervisor.tools.files import Files
from tests.process_kit import fd_count
from tests.test_token import inline

OUTSIDE = "OUTSIDE"


def token() -> CancelToken:
    return CancelToken(inline)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """A root with a secret beside it. No descriptor is left when the test is over."""
    gc.collect()  # what an earlier test has left may hold some, and let them go meanwhile
    before = fd_count()
    yield made_world(tmp_path)
    assert fd_count() <= before


def made_world(folder: Path) -> Path:
    (folder / "root" / "a" / "b").mkdir(parents=True)
    (folder / "out").mkdir()
    (folder / "out" / "secret").write_text(OUTSIDE)
    (folder / "root" / "a" / "file").write_text("inside")
    return folder / "root"


def outside(root: Path) -> dict[str, str]:
    """Everything beside a root, by name."""
    return {
        str(path): path.read_text() if path.is_file() else ""
        for path in root.parent.rglob("*")
        if not path.is_relative_to(root)
    }


NAMES = st.sampled_from(["a", "b", "file", "link", "other", "out", "secret", "root", "..", ".", ""])
PATHS = st.lists(NAMES, min_size=1, max_size=6).map("/".join)
OUT = st.sampled_from(["..", "../out", "../../out", "../out/secret", "{root}/../out", "/", "link", "a/link", "other"])
WAYS = st.sampled_from(["link", "link/secret", "other/secret", "a/link/secret", "link/out/secret", "a/b/other/secret"])
TARGETS = st.one_of(OUT, PATHS, PATHS.map("/".__add__), PATHS.map("{root}/".__add__), PATHS.map("{root}/../".__add__))
LINKS = st.lists(st.tuples(st.sampled_from(["link", "other", "a/link", "a/b/other", "a/b/link"]), TARGETS), max_size=4)


@settings(max_examples=150, deadline=None)
@given(links=LINKS, path=st.one_of(WAYS, TARGETS, PATHS))
def test_no_path_through_any_links_reads_or_changes_what_is_outside(links: list[tuple[str, str]], path: str) -> None:
    folder = tempfile.mkdtemp()
    try:
        root = made_world(Path(folder))
        for name, target in links:
            if not os.path.lexists(root / name):
                (root / name).symlink_to(target.format(root=root) or ".")
        tools, asked, before = Files(str(root)), path.format(root=root), outside(root)
        uses: list[Callable[[], str]] = [
            lambda: tools.read(asked, token()),
            lambda: tools.listing(token(), asked, depth=9),
            lambda: tools.edit(asked, OUTSIDE, "gone", token()),
            lambda: tools.write(asked, "written", token()),
        ]
        for use in uses:
            with contextlib.suppress(CountermandError, PathRefused, OSError):
                told = use()
                assert OUTSIDE not in told
                # No file inside has this name before one is written.
                assert "secret" not in told or told.endswith(f"bytes written to {asked}")
        assert outside(root) == before
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("path", ["../out/secret", "a/../../out/secret", "/etc/passwd", "out/secret", "up/out/secret"])
def test_each_way_out_is_refused_with_the_root(world: Path, path: str) -> None:
    (world / "out").symlink_to("../out")
    (world / "up").symlink_to(world.parent)
    with (
        pytest.raises(PathRefused, match=f"leads out of the root; expected a path below {world}"),
        Beneath(str(world)).place(path),
    ):
        pass


@pytest.mark.parametrize(
    "path", ["a/b/../file", "{root}/a/file", "link/file", "a/b/back/a/file", "absolute", "a/b/absolute", "./a//file/"]
)
def test_each_way_inside_leads_there(world: Path, path: str) -> None:
    (world / "link").symlink_to("a")
    (world / "a" / "b" / "back").symlink_to("../..")
    (world / "absolute").symlink_to(world / "a" / "file")
    (world / "a" / "b" / "absolute").symlink_to(world / "a" / "file")
    assert Files(str(world)).read(path.format(root=world), token()) == "inside"


def test_a_root_that_is_a_link_is_the_directory_that_it_points_to(world: Path) -> None:
    link = world.parent / "to-root"
    link.symlink_to("root")
    for path in ("a/file", f"{link}/a/file", f"{world}/a/file"):
        assert Files(str(link)).read(path, token()) == "inside"


def test_links_that_are_moved_at_any_moment_lead_nowhere_else(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each name that is opened, its directory is replaced by a link to the outside, and back."""
    tools, before, opened = Files(str(world)), outside(world), beneath._opened
    real, aside = world / "a", world / "aside"
    for swap_at in range(4):
        count = [0]

        def swapped(directory: int, name: str, count: list[int] = count, swap_at: int = swap_at) -> int | None:
            if count[0] == swap_at and not aside.exists():
                real.rename(aside)
                real.symlink_to("../out")
            count[0] += 1
            return opened(directory, name)

        monkeypatch.setattr(beneath, "_opened", swapped)
        uses: list[Callable[[], str]] = [
            lambda: tools.read("a/secret", token()),
            lambda: tools.write("a/secret", "written", token()),
            lambda: tools.write("a/new/x", "written", token()),
        ]
        for use in uses:
            count[0] = 0
            with contextlib.suppress(PathRefused):
                assert OUTSIDE not in use()
            if aside.exists():
                real.unlink()
                aside.rename(real)
        assert outside(world) == before


def test_a_thread_that_swaps_directories_and_links_all_the_time_changes_nothing_outside(world: Path) -> None:
    tools, before, over = Files(str(world)), outside(world), threading.Event()
    real, link = os.fsencode(world / "a"), os.fsencode(world / "link")
    os.symlink("../out", link)
    libc, here, exchange = ctypes.CDLL(None), -100, 2

    def swap() -> None:
        while not over.is_set():
            assert libc.renameat2(here, link, here, real, exchange) == 0

    uses: list[Callable[[], str]] = [
        lambda: tools.read("a/secret", token()),
        lambda: tools.write("a/secret", "w", token()),
    ]
    swapper, tried = threading.Thread(target=swap), 0
    swapper.start()
    try:
        for _ in range(150):
            for use in uses:
                with contextlib.suppress(PathRefused):
                    assert OUTSIDE not in use()
                tried += 1
    finally:
        over.set()
        swapper.join()
    assert tried == 300
    assert outside(world) == before


def test_l14_a_path_has_up_to_its_limits_of_directories_and_links(world: Path) -> None:
    deep = "/".join(["d"] * DEPTH_MAX)
    tools = Files(str(world))
    tools.write(f"{deep[2:]}/file", "deep", token())
    assert tools.read(f"{deep[2:]}/file", token()) == "deep"
    with pytest.raises(PathRefused, match=f"expected at most {DEPTH_MAX} directories"):
        tools.write(f"{deep}/d/file", "deep", token())
    (world / "l0").symlink_to("a/file")
    for number in range(LINKS_MAX):
        (world / f"l{number + 1}").symlink_to(f"l{number}")
    assert tools.read(f"l{LINKS_MAX - 1}", token()) == "inside"
    with pytest.raises(PathRefused, match=f"more than {LINKS_MAX} links"):
        tools.read(f"l{LINKS_MAX}", token())
    (world / "circle").symlink_to("circle")
    with pytest.raises(PathRefused, match=f"more than {LINKS_MAX} links"):
        tools.read("circle", token())


def test_a_path_that_cannot_be_one_is_refused(world: Path) -> None:
    tools = Files(str(world))
    for path, message in {
        "a\0b": "has a NUL",
        "a/file/x": "is a file, not a directory",
        "no/x": "there is no directory",
    }.items():
        with pytest.raises(PathRefused, match=message):
            tools.read(path, token())


def test_a_walk_finds_what_is_there_sorted_and_enters_no_link(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "link").symlink_to("../out")
    (world / "a" / "zip").mkdir()
    (world / "a" / "zip" / "x").touch()
    directory = os.open(world, os.O_RDONLY)
    try:
        assert [found.path for found in below(directory, 9, frozenset({"zip"}))] == [
            "a",
            "a/b",
            "a/file",
            "a/zip",
            "link",
        ]
        assert [found.path for found in below(directory, 1)] == ["a", "link"]
        monkeypatch.setattr(beneath, "NAMES_MAX", 1)
        assert len([found.path for found in below(directory, 1)]) == 1
    finally:
        os.close(directory)
