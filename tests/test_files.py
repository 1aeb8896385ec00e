"""The file tools: each file has its old or its new content at each moment, and nothing is written after the fence."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, Effect, Invalid, Provenance, ToolResult
from actors.errors import RunCancelled
from supervisor.tools import draft, files
from supervisor.tools.beneath import PathRefused
from supervisor.tools.files import EDIT_MAX_BYTES, EDIT_TRIES_MAX, LISTED_MAX, READ_LINES_MAX, READ_MAX_BYTES, Files
from tests.kit import WAIT_S, Kit, check_rest, kit, log, rows, say, stop
from tests.test_token import inline

__all__ = ["kit"]

CAUSE = Provenance(source="user.test", reason="enough")
OLD, NEW = "old\n" * 20_000, "new\n" * 20_000
"""More than one piece of a draft."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture(params=["unnamed", "named"])
def drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of drafts: a file system may have no unnamed files."""
    if request.param == "named":
        opened = os.open

        def refuse_unnamed(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return opened(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", refuse_unnamed)
    return str(request.param)


def token() -> CancelToken:
    return CancelToken(inline)


@contextmanager
def at_line(number: int, then: Callable[[], None]) -> Iterator[list[int]]:
    """Call `then` before the line of the tools that this thread executes as its `number`th; yields the lines' count."""
    seen = [0]
    here = {files.__file__, draft.__file__}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in here:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                then()
        return trace

    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(None)


def change(tools: Files, how: str, name: str, cancel: CancelToken) -> None:
    if how == "edit":
        tools.edit(name, OLD, NEW, cancel)
    else:
        tools.write(name, NEW, cancel)


@pytest.mark.parametrize("how", ["write", "edit", "make"])
def test_l1_a_stop_at_each_line_of_a_change_leaves_the_old_file_or_the_new_one_and_says_which(
    root: Path, drafts: str, how: str
) -> None:
    tools, name = Files(str(root)), "made/here/file" if how == "make" else "file"
    ends, number = set[str](), 0
    while True:
        number += 1
        file = root / name
        if how == "make":
            for path in (file, file.parent, file.parent.parent):
                if path.exists():
                    path.unlink() if path.is_file() else path.rmdir()
        else:
            file.write_text(OLD)
        cancel = token()
        before = list[tuple[Effect, ...]]()

        def end(cancel: CancelToken = cancel, before: list[Any] = before) -> None:
            cancel.cancel(CAUSE)
            before.append(cancel.effects)

        with at_line(number, end) as seen:
            try:
                change(tools, how, name, cancel)
                stopped = False
            except RunCancelled:
                stopped = True
        content = file.read_text() if file.exists() else None
        assert content == (NEW if not stopped else None if how == "make" else OLD)
        done = [effect for effect in cancel.effects if effect.name == f"{'edit' if how == 'edit' else 'write'} {name}"]
        assert done == ([] if stopped else [Effect(f"{'edit' if how == 'edit' else 'write'} {name}", done=1)])
        # What the fence has read is what took place.
        if before:
            assert {effect.name for effect in before[0]} == {effect.name for effect in cancel.effects}
        left = [found for found in root.rglob("*") if found.name.startswith(".countermand")]
        assert left == [], f"{drafts}: a draft is left"
        ends.add("stopped" if stopped else "whole")
        if seen[0] < number:
            break
    assert ends == {"stopped", "whole"}
    assert number > 20


@pytest.mark.parametrize("how", ["write", "edit"])
def test_who_opens_a_file_at_any_line_of_its_change_reads_the_old_content_or_the_new_one(
    root: Path, drafts: str, how: str
) -> None:
    tools, file, number = Files(str(root)), root / "file", 0
    read = list[str]()
    while True:
        number += 1
        file.write_text(OLD)
        with at_line(number, lambda: read.append(file.read_text())) as seen:
            change(tools, how, "file", token())
        if seen[0] < number:
            break
    assert set(read) == {OLD, NEW}
    # It never becomes the old one again.
    assert read == sorted(read, key=[OLD, NEW].index)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_l1_after_the_receipt_nothing_is_written_that_it_does_not_name(kit: Kit, root: Path, part: float) -> None:
    """The run's receipt is filed while the tool is held up at a line, and then the tool goes on."""
    (root / "file").write_text(OLD)
    with at_line(0, lambda: None) as lines:
        change(Files(str(root)), "write", "file", token())
    (root / "file").write_text(OLD)
    held, go_on, over = threading.Event(), kit.gate(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait()

    class Slow(Files):
        def write(self, path: str, content: str, token: CancelToken) -> str:
            try:
                with at_line(1 + int(part * lines[0]), hold):
                    return super().write(path, content, token)
            finally:
                over.set()

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("write", path="file", content=NEW)

    session = kit.session(agent, tools=Slow(str(root)).tools(), grace_s=0.05, kill_s=0.1)
    run_id = say(session)
    assert held.wait(WAIT_S)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    (row,) = [row for row in rows(receipt) if row.kind == "call"]
    began = "write file" in str(row)
    before = (root / "file").read_text()
    go_on.set()
    assert over.wait(WAIT_S)
    after = (root / "file").read_text()
    assert (before, after) == (before, NEW) if began else (OLD, OLD)
    assert [path.name for path in root.iterdir()] == ["file"]
    (ended,) = [event for event in log(session) if event.kind == "tool.ended"]
    assert ended.data["outcome"] == "interrupted"
    assert ("write file" in ended.data["content"]) == began
    check_rest(session)


def test_the_tools_work_together_in_a_run_and_are_there_only_where_a_root_is_configured(kit: Kit, root: Path) -> None:
    results, offered = list[ToolResult](), list[str]()

    async def agent(turn: AsyncTurn) -> None:
        offered.extend(str(tool["name"]) for tool in turn.tools)
        results.append(await turn.call("write", path="a/b.txt", content="one\ntwo\n"))
        results.append(await turn.call("edit", path="a/b.txt", old="two", new="2"))
        results.append(await turn.call("read", path=str(root / "a" / "b.txt")))
        results.append(await turn.call("list", depth=2))
        results.append(await turn.call("grep", pattern=r"^\d$"))
        results.append(await turn.call("read", path="../x"))
        results.append(await turn.call("read", path="a/none"))

    session = kit.session(agent, files_root=root)
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert (session.run(run_id).error, receipt.complete) == (None, True)
    assert sorted(offered) == ["edit", "grep", "list", "read", "shell", "write"]
    assert [result.content for result in results[:5]] == [
        "8 bytes written to a/b.txt",
        "1 of 1 replaced in a/b.txt",
        "one\n2\n",
        "a/\na/b.txt",
        "a/b.txt:2:2",
    ]
    assert [result.is_error for result in results] == [False] * 5 + [True] * 2
    assert "leads out of the root" in results[5].content
    assert "there is no file 'a/none'" in results[6].content
    assert [row.name for row in rows(receipt) if row.kind == "process"] == ["grep"]
    check_rest(session)
    kit.close()
    offered.clear()
    session = kit.session(agent)
    session.receipt(say(session), timeout=WAIT_S)
    assert offered == ["shell"]


def test_a_root_that_is_not_there_is_refused_with_its_key(kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"'files_root' names no directory.*make it"):
        kit.start(files_root=tmp_path / "none")


# ── Edits ─────────────────────────────────────────────────────────────────────────────────────────


def test_edits_of_one_file_at_the_same_time_are_all_in_it(root: Path) -> None:
    tools, names = Files(str(root)), [f"<{number}>" for number in range(8)]
    (root / "file").write_text("".join(names))
    start = threading.Barrier(4)
    problems = list[BaseException]()

    def work(mine: list[str]) -> None:
        try:
            start.wait()
            for name in mine:
                tools.edit("file", name, name.upper() + "done", token())
        except BaseException as error:  # it is reported below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(names[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A busy file may be refused, and then it says so; an edit that was answered is never lost.
    done = (root / "file").read_text().count("done")
    assert done == len(names) or (problems and all("changes all the time" in str(one) for one in problems))


def test_l14_an_edit_of_a_file_that_changes_each_time_ends_after_its_tries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tools, tries = root / "file", Files(str(root)), list[int]()
    file.write_text("old")
    save = draft.Draft.save

    def and_another_writes(self: draft.Draft) -> None:
        tries.append(1)
        file.write_text(f"old{'!' * len(tries)}")
        save(self)

    monkeypatch.setattr(draft.Draft, "save", and_another_writes)
    with pytest.raises(Invalid, match="changes all the time"):
        tools.edit("file", "old", "new", token())
    assert (len(tries), file.read_text()) == (EDIT_TRIES_MAX, f"old{'!' * EDIT_TRIES_MAX}")


def test_an_edit_says_how_often_its_text_is_there(root: Path) -> None:
    (root / "file").write_text("a b a")
    tools = Files(str(root))
    for old, message in {"c": "does not have that text", "a": "is not unique", "": "is empty"}.items():
        with pytest.raises(Invalid, match=message):
            tools.edit("file", old, "x", token())
    assert tools.edit("file", "a", "x", token(), everywhere=True) == "2 of 2 replaced in file"
    assert (root / "file").read_text() == "x b x"


def test_a_change_that_waits_for_another_one_ends_with_its_cancel(root: Path) -> None:
    tools, cancel = Files(str(root)), token()
    with tools._alone(token()):
        threading.Timer(0.01, lambda: cancel.cancel(CAUSE)).start()
        with pytest.raises(RunCancelled):
            tools.write("file", "x", cancel)
    assert list(root.iterdir()) == []


def test_a_file_keeps_its_mode_and_a_link_its_place(root: Path, drafts: str) -> None:
    tools = Files(str(root))
    (root / "run").write_text("old")
    (root / "run").chmod(0o750)
    (root / "link").symlink_to("run")
    tools.write("link", "new", token())
    assert (root / "link").is_symlink()
    assert (root / "run").read_text() == "new"
    assert stat.S_IMODE((root / "run").stat().st_mode) == 0o750


@pytest.mark.parametrize("what", ["directory", "pipe", "root"])
def test_what_is_no_file_is_refused_and_waited_for_by_none(root: Path, what: str) -> None:
    tools = Files(str(root))
    (root / "directory").mkdir()
    os.mkfifo(root / "pipe")
    path = "." if what == "root" else what
    uses: list[Callable[[], str]] = [lambda: tools.read(path, token()), lambda: tools.write(path, "x", token())]
    for use in uses:
        with pytest.raises((PathRefused, Invalid), match="not a file"):
            use()
    assert sorted(found.name for found in root.iterdir()) == ["directory", "pipe"]


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────


def test_l14_a_read_has_up_to_its_limit_and_says_how_to_go_on(root: Path) -> None:
    tools = Files(str(root))
    (root / "full").write_bytes(b"x" * READ_MAX_BYTES)
    assert tools.read("full", token()) == "x" * READ_MAX_BYTES
    (root / "over").write_bytes(b"x" * (READ_MAX_BYTES + 1))
    assert tools.read("over", token()).endswith(f"\n[line 1 is longer: these are its first {READ_MAX_BYTES} bytes]")
    (root / "lines").write_text("".join(f"{number}\n" for number in range(1, READ_LINES_MAX + 2)))
    first = tools.read("lines", token())
    assert first.endswith(f"[lines 1 to {READ_LINES_MAX}; there are more: go on with first_line={READ_LINES_MAX + 1}]")
    assert tools.read("lines", token(), READ_LINES_MAX + 1) == f"{READ_LINES_MAX + 1}\n"
    assert tools.read("lines", token(), READ_LINES_MAX + 2) == f"[the file has fewer than {READ_LINES_MAX + 2} lines]"
    assert tools.read("lines", token(), 2, 1) == "2\n[lines 2 to 2; there are more: go on with first_line=3]"
    # What does not fit as a whole is left for the next read.
    (root / "two").write_bytes(b"x" * (READ_MAX_BYTES - 1) + b"\n" + b"y\n")
    assert tools.read("two", token()).endswith("x\n[lines 1 to 1; there are more: go on with first_line=2]")
    assert tools.read("two", token(), 2) == "y\n"
    (root / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="not a text file"):
        tools.read("binary", token())


def test_l14_a_file_of_the_limit_is_edited_and_a_larger_one_is_not(root: Path) -> None:
    tools, file = Files(str(root)), root / "file"
    with file.open("wb") as full:
        full.write(b"a" + b"x" * (EDIT_MAX_BYTES - 1))
    tools.edit("file", "a", "b", token())
    for old, new in (("b", "cc"), ("b", "c")):
        if new == "c":
            with file.open("ab") as full:
                full.write(b"x")
        with pytest.raises(Invalid, match="too large to edit"):
            tools.edit("file", old, new, token())
    assert file.read_bytes()[:1] == b"b"


def test_l14_an_edit_that_would_make_a_file_too_large_does_not_make_it_in_memory(root: Path) -> None:
    tools, file = Files(str(root)), root / "file"
    file.write_text("a" * 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match=f"got {20_000 * 5_000} bytes"):
            tools.edit("file", "a", "x" * 5_000, token(), everywhere=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * EDIT_MAX_BYTES
    assert file.read_text() == "a" * 20_000
    # Up to the limit it is made, with texts whose characters have several bytes.
    tools.edit("file", "a", "ä" * (EDIT_MAX_BYTES // 40_000), token(), everywhere=True)
    assert file.stat().st_size == EDIT_MAX_BYTES // 40_000 * 40_000


def test_l14_a_list_has_up_to_its_limit_of_names(root: Path) -> None:
    for number in range(LISTED_MAX):
        (root / f"{number:05}").touch()
    tools = Files(str(root))
    assert tools.listing(token()).split("\n") == [f"{number:05}" for number in range(LISTED_MAX)]
    (root / "x").touch()
    assert tools.listing(token()).split("\n")[LISTED_MAX:] == [
        f"[there are more: these are the first {LISTED_MAX}; name a pattern or a directory]"
    ]
    assert tools.listing(token(), pattern="x") == "x"
    assert tools.listing(token(), pattern="y") == "[nothing]"


def test_a_cancel_ends_a_read_and_a_list(root: Path) -> None:
    (root / "file").write_text("x\n")
    cancel = token()
    cancel.cancel(CAUSE)
    with pytest.raises(RunCancelled):
        Files(str(root)).read("file", cancel)
    with pytest.raises(RunCancelled):
        Files(str(root)).listing(cancel)
