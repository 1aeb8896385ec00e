"""Pipes to a process: live output, input, their bounds, and a Stop at each point. Agents and tools in this process.

The file has over 600 lines, and is whole: the same commands talk to agents and to tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, RunCancelled, Turn
from actors.errors import BlockingAskError, Invalid
from actors.gate.pending import Pending
from actors.kernel.thread_role import serve_all
from actors.model import How, Mode, Provenance
from actors.plugin import pipes
from actors.plugin.pipes import AsyncInput, AsyncOutput, End, OutputFile, Pipes
from actors.plugin.registration import tool
from actors.plugin.spawning import AsyncSpawn, Spawn, _Door
from supervisor.containment.processes import copies
from supervisor.containment.reactor import Reactor
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, stop, until
from tests.pipe_kit import descriptors, no_more_than
from tests.pipe_points import FULL, PLAIN_POINTS, POINTS, answer, request, server
from tests.process_kit import RealClock

WHO = ["agent", "tool"]


def settle(future: Future[Any], call: Callable[[], Any]) -> None:
    """Give a future what `call` returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


def run_async(kit: Kit, who: str, body: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """Start a supervisor whose agent, or its tool, runs `body` with its `spawn`; returns a session of it."""

    @tool(isolation="task")
    async def do(spawn: AsyncSpawn) -> str:
        return str(await body(spawn))

    async def agent(turn: AsyncTurn) -> Any:
        if who == "agent":
            return await body(turn.spawn)
        return (await turn.call("do")).content

    return kit.session(agent, tools=[do], **options)


def run_plain(kit: Kit, who: str, body: Callable[[Any], Any], **options: Any) -> Any:
    """The same for plain code."""

    @tool(isolation="thread")
    def do(spawn: Spawn) -> str:
        return str(body(spawn))

    def agent(turn: Turn) -> Any:
        return body(turn.spawn) if who == "agent" else turn.call("do").content

    return kit.session(agent, tools=[do], **options)


def done(session: Any, run_id: str) -> Any:
    """Return the result of a run that ends by itself, and whose receipt is complete."""
    assert session.receipt(run_id, timeout=WAIT_S).complete
    run = session.run(run_id)
    assert run.status == "completed", run
    return run.result


def printed(session: Any) -> str:
    """What is in the log of all output."""
    return "".join(event.data["text"] for event in log(session) if event.kind in ("run.output", "tool.output"))


# ── Conversations ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", WHO)
def test_async_code_talks_with_a_server_of_json_lines_and_nothing_of_that_is_logged(kit: Kit, who: str) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(server(), stdin="pipe", stdout="pipe")
        for number in range(20):
            await process.stdin.write(request(number))
            assert json.loads(await process.stdout.readline()) == answer(number)
        process.stdin.close()
        assert [line async for line in process.stdout] == []
        done = await process.wait()
        return f"{done.status} {done.total_bytes}"

    session = run_async(kit, who, body)
    before = descriptors()
    assert done(session, say(session)) == "0 0"
    assert printed(session) == ""
    check_rest(session)
    no_more_than(before)


@pytest.mark.parametrize("who", WHO)
def test_plain_code_does_so_with_files(kit: Kit, who: str) -> None:
    def body(spawn: Any) -> str:
        process = spawn(server(), stdin="pipe", stdout="pipe")
        for number in range(20):
            process.stdin.write(request(number))
            assert json.loads(process.stdout.readline()) == answer(number)
        process.stdin.close()
        assert list(process.stdout) == []
        return str(process.wait().status)

    session = run_plain(kit, who, body)
    before = descriptors()
    assert done(session, say(session)) == "0"
    assert printed(session) == ""
    no_more_than(before)


@pytest.mark.parametrize("who", WHO)
def test_output_that_is_followed_comes_while_the_command_runs_and_is_in_the_log_as_always(kit: Kit, who: str) -> None:
    async def body(spawn: Any) -> str:
        script = "echo one; read go; echo two; echo bad >&2; exit 3"
        process = await spawn(["sh", "-c", script], stdin="pipe", stdout="follow", stderr="follow")
        lines = [await process.stdout.readline()]
        # It runs: it waits for this.
        await process.stdin.write(b"go\n")
        lines += [line async for line in process.stdout]
        done = await process.wait()
        assert await process.stderr.read() == b"bad\n"
        return f"{lines} {done.status} {done.total_bytes}"

    session = run_async(kit, who, body)
    before = descriptors()
    assert done(session, say(session)) == "[b'one\\n', b'two\\n'] 3 12"
    assert sorted(printed(session).split()) == ["bad", "one", "two"]
    no_more_than(before)


def test_output_is_read_as_text_by_a_wrapper(kit: Kit) -> None:
    def body(spawn: Any) -> list[str]:
        process = spawn(["printf", "é\\nü"], stdout="follow")
        return list(io.TextIOWrapper(process.stdout, encoding="utf-8"))

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) == ["é\n", "ü"]


def test_a_plain_file_reads_by_size_to_the_end_and_into_buffers(kit: Kit) -> None:
    def body(spawn: Any) -> list[str]:
        out = spawn(["printf", "abc\\ndefgh\\nij"], stdout="pipe").stdout
        into = bytearray(2)
        parts = [out.read(2), out.readline(), out.readline(3)]
        assert out.readinto(into) == 2
        parts += [bytes(into), out.readline(100), out.read(), out.read(1), out.read1()]
        return [part.decode() for part in parts]

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) == ["ab", "c\n", "def", "gh", "\n", "ij", "", ""]


def test_everything_arrives_unchanged_whatever_the_sizes(kit: Kit) -> None:
    sent = os.urandom(3_000_000)

    async def body(spawn: Any) -> bool:
        process = await spawn(["cat"], stdin="pipe", stdout="pipe")

        async def write() -> None:
            await process.stdin.write(sent)
            process.stdin.close()

        writer = asyncio.create_task(write())
        got = await process.stdout.read()
        await writer
        return bool(got == sent)

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) is True


# ── A Stop at each point ──────────────────────────────────────────────────────────────────────────


def ended_at(kit: Kit, session: Any, at: threading.Event, mode: Mode) -> None:
    """Stop a run where its code is by now; everything ends, is proven, and is closed."""
    run_id = say(session)
    assert at.wait(WAIT_S)
    stop(session, mode=mode)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    ends = [row.how for row in rows(receipt) if row.kind == "process"]
    assert ends
    assert set(ends) <= {How.SIGTERM, How.SIGKILL, How.EXIT, How.GONE}
    assert session.run(run_id).status == "cancelled"
    check_rest(session)
    until(lambda: not kit.alive(), "no process is left")


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_a_stop_is_raised_once_in_async_code_and_no_descriptor_is_left(
    kit: Kit, point: Any, who: str, mode: Mode
) -> None:
    at, raised = threading.Event(), list[str]()
    over = threading.Event()

    async def body(spawn: Any) -> None:
        try:
            await point(spawn, at.set)
        except BaseException as error:
            raised.append(f"{type(error).__name__} {error.provenance.source}")  # type: ignore[attr-defined]
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
            except BaseException as again:
                raised.append(type(again).__name__)
                raise
            with pytest.raises(asyncio.CancelledError):
                await spawn(["true"], stdout="pipe")
            raise
        finally:
            over.set()

    session = run_async(kit, who, body)
    before = descriptors()
    ended_at(kit, session, at, mode)
    assert over.wait(WAIT_S)
    assert raised == ["CancelledError user.test"]
    no_more_than(before)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", PLAIN_POINTS, ids=lambda point: point.__name__)
def test_a_stop_is_raised_in_plain_code_and_no_descriptor_is_left(kit: Kit, point: Any, who: str, mode: Mode) -> None:
    at, raised = threading.Event(), list[str]()

    def body(spawn: Any) -> None:
        try:
            point(spawn, at.set)
        except BaseException as error:
            raised.append(type(error).__name__)
            raise

    session = run_plain(kit, who, body)
    before = descriptors()
    ended_at(kit, session, at, mode)
    assert raised == ["RunCancelled"]
    no_more_than(before)


def test_after_a_cancel_each_use_raises_and_closing_does_not(kit: Kit) -> None:
    at, seen = threading.Event(), list[str]()

    async def body(spawn: Any) -> None:
        process = await spawn(["sleep", "600"], stdin="pipe", stdout="pipe", stderr="follow")
        at.set()
        try:
            await process.stdout.readline()
        finally:
            for use in (process.stdin.write(b"x"), process.stdout.read(1), process.stderr.readline()):
                try:
                    await use
                except asyncio.CancelledError:
                    seen.append("cancelled")
            process.stdin.close()
            process.stdout.close()
            process.stderr.close()

    session = run_async(kit, "agent", body)
    before = descriptors()
    ended_at(kit, session, at, Mode.GRACEFUL)
    assert seen == ["cancelled"] * 3
    no_more_than(before)


def test_a_command_that_is_ended_may_still_print_its_last_words(kit: Kit, tmp_path: Any) -> None:
    at, marker = threading.Event(), tmp_path / "said"

    async def body(spawn: Any) -> None:
        script = f"trap 'echo bye && touch {marker}; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        process = await spawn(["sh", "-c", script], stdout="pipe")
        assert await process.stdout.readline() == b"up\n"
        at.set()
        await process.stdout.readline()

    session = run_async(kit, "agent", body, grace_s=WAIT_S)
    ended_at(kit, session, at, Mode.GRACEFUL)
    assert marker.exists()


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


BROKEN = "does not read its input any more"


@pytest.mark.parametrize("script", ["exec <&-; echo up; sleep 600", "echo up"], ids=["closed it", "has exited"])
def test_a_command_that_does_not_read_any_more_is_a_clear_error(kit: Kit, script: str) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["sh", "-c", script], stdin="pipe", stdout="pipe")
        assert await process.stdout.readline() == b"up\n"
        with pytest.raises(BrokenPipeError, match=BROKEN):
            await process.stdin.write(b"x" * FULL)
        process.kill(0)
        await process.wait()
        with pytest.raises(BrokenPipeError, match=BROKEN):
            await process.stdin.write(b"x")
        return "as it should"

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "as it should"
    no_more_than(before)


def test_the_same_in_plain_code_and_a_closed_file_is_one(kit: Kit) -> None:
    def body(spawn: Any) -> str:
        process = spawn(["true"], stdin="pipe")
        process.wait()
        with pytest.raises(BrokenPipeError, match=BROKEN):
            process.stdin.write(b"x")
        process.stdin.close()
        with pytest.raises(ValueError, match="closed"):
            process.stdin.write(b"x")
        return "as it should"

    session = run_plain(kit, "agent", body)
    assert done(session, say(session)) == "as it should"


@pytest.mark.parametrize("how", ["pipe", "follow"])
def test_what_is_left_behind_holds_the_output_open_until_the_tree_has_ended(kit: Kit, how: str) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["sh", "-c", "trap '' HUP; sleep 600 & echo up"], stdout=how)
        assert await process.stdout.readline() == b"up\n"
        assert (await process.wait()).held
        reader = asyncio.create_task(process.stdout.readline())
        await asyncio.sleep(0)
        assert not reader.done()
        process.kill(0)
        return repr(await reader)

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "b''"
    no_more_than(before)


def test_the_end_of_the_tree_ends_a_pipe_that_a_process_outside_of_it_holds_open() -> None:
    token = CancelToken(lambda callback: callback())
    opened = Pipes({"stdin": "pipe", "stdout": "pipe"})
    held = opened.theirs.take()
    assert held is not None
    door = _Door(Pending(token))
    out, got = OutputFile(opened.ends["stdout"], door), list[bytes]()
    os.write(held["stdout"], b"last words")
    reader = threading.Thread(target=lambda: got.append(out.read()))
    reader.start()
    opened.tree_ended()
    reader.join(WAIT_S)
    assert got == [b"last words"]

    async def write() -> None:
        with pytest.raises(BrokenPipeError, match=BROKEN):
            await AsyncInput(opened.ends["stdin"], door).write(b"x")

    asyncio.run(write())
    for fd in held.values():
        os.close(fd)


def test_a_command_that_cannot_be_started_leaves_no_descriptor(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        with pytest.raises(OSError, match="no-such"):
            await spawn(["/no-such"], stdin="pipe", stdout="pipe", stderr="follow")
        return "as it should"

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "as it should"
    no_more_than(before)


def test_one_that_is_given_up_while_it_starts_leaves_no_descriptor(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        for _ in range(5):
            task = asyncio.create_task(spawn(["cat"], stdin="pipe", stdout="pipe"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return "as it should"

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "as it should"
    no_more_than(before)


def test_a_reader_that_closes_early_does_not_end_what_is_logged(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["sh", "-c", "echo one; read go; seq 20000; echo last"], stdin="pipe", stdout="follow")
        assert await process.stdout.readline() == b"one\n"
        process.stdout.close()
        await process.stdin.write(b"go\n")
        with pytest.raises(ValueError, match="closed"):
            await process.stdout.readline()
        return str((await process.wait()).status)

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "0"
    assert printed(session) == "".join(f"{word}\n" for word in ("one", *range(1, 20001), "last"))
    no_more_than(before)


def test_the_end_of_the_supervisor_closes_what_nobody_has_read(kit: Kit) -> None:
    kept = list[Any]()
    at = threading.Event()

    async def body(spawn: Any) -> None:
        kept.append(await spawn(["yes"], stdout="follow"))
        at.set()
        await asyncio.Event().wait()

    before = descriptors()
    session = run_async(kit, "agent", body)
    say(session)
    assert at.wait(WAIT_S)
    kit.close(0.0)
    kept.clear()
    no_more_than(before)


# ── A terminal ────────────────────────────────────────────────────────────────────────────────────


async def typed(spawn: Any, script: str, *texts: bytes, close: bool = False) -> tuple[str, int]:
    """Type on the terminal of a script once it is up; returns what it printed after that, and its status."""
    process = await spawn(["sh", "-c", f"{script}"], pty=True, stdin="pipe", stdout="follow")
    assert await process.stdout.readline() == b"up\n"
    for text in texts:
        await process.stdin.write(text)
    if close:
        process.stdin.close()
    output: bytes = await process.stdout.read()
    return output.decode(), (await process.wait()).status


@pytest.mark.parametrize(
    ("script", "texts", "close", "output", "status"),
    [
        ("stty -echo; echo up; read a; read b; echo $b $a", [b"one\n", b"two\n"], False, "two one\n", 0),
        ("echo up; read a; echo got $a", [b"one\n"], False, "one\ngot one\n", 0),
        ("stty -echo; echo up; cat; echo over", [b"line\n"], True, "line\nover\n", 0),
        ("stty -echo; echo up; cat; echo over", [b"line\nhalf"], True, "line\nhalfover\n", 0),
        ("stty -echo; echo up; cat; echo over", [], True, "over\n", 0),
        ("stty raw -echo; echo up; head -c 3", [b"a", b"b", b"\x03"], False, "ab\x03", 0),
        (
            "stty -echo; trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.05; done",
            [b"\x03"],
            False,
            "int\n",
            9,
        ),
    ],
    ids=["lines", "echo", "end", "end after half a line", "end at once", "keys", "Ctrl-C"],
)
def test_one_types_on_a_terminal(
    kit: Kit, script: str, texts: list[bytes], close: bool, output: str, status: int
) -> None:
    async def body(spawn: Any) -> list[Any]:
        return list(await typed(spawn, script, *texts, close=close))

    session = run_async(kit, "agent", body)
    before = descriptors()
    shown, exited = done(session, say(session))
    # Ctrl-C is echoed where nothing has switched that off.
    assert (shown.removeprefix("^C"), exited) == (output, status)
    no_more_than(before)


def test_a_terminal_that_is_hung_up_is_not_typed_on(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["true"], pty=True, stdin="pipe")
        await process.wait()
        with pytest.raises(BrokenPipeError, match=BROKEN):
            await process.stdin.write(b"line\n" * FULL)
        return "as it should"

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "as it should"
    no_more_than(before)


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────

FILL = """
import os
os.set_blocking(1, False)
total = 0
while True:
    try:
        total += os.write(1, bytes(4096))
    except BlockingIOError:
        break
os.write(2, b"%d" % total)
"""


def test_a_command_whose_pipe_is_not_read_waits_when_that_is_full(kit: Kit) -> None:
    async def body(spawn: Any) -> int:
        process = await spawn([sys.executable, "-c", FILL], stdout="pipe", stderr="pipe")
        total = int(await process.stderr.read())
        assert len(await process.stdout.read()) == total
        return total

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == 65_536


@pytest.mark.parametrize("who", ["agent", "tool"])
def test_when_code_has_returned_a_process_that_goes_on_has_no_reader(kit: Kit, who: str) -> None:
    """So it ends by SIGPIPE, and does not wait for ever in a write."""

    async def body(spawn: Any) -> str:
        process = await spawn(["yes", kit.mark], stdout="pipe", owner="session")
        return str((await process.stdout.readline()).decode())

    session = run_async(kit, who, body)
    assert done(session, say(session)) == f"{kit.mark}\n"
    until(lambda: not kit.alive(), "it has ended by itself")


def test_a_command_whose_followed_output_is_not_read_waits_and_its_log_with_it(kit: Kit) -> None:
    size = 4_000_000
    script = f"import sys; sys.stdout.write('0123456789' * {size // 10})"
    at, go = threading.Event(), kit.gate()

    def body(spawn: Any) -> str:
        process = spawn([sys.executable, "-c", script], stdout="follow")
        at.set()
        go.wait()
        got = process.stdout.read()
        return f"{hashlib.sha256(got).hexdigest()} {process.wait().total_bytes}"

    session = run_plain(kit, "agent", body)
    run_id = say(session)
    assert at.wait(WAIT_S)
    assert kit.supervisor is not None
    trees = kit.supervisor._processes._trees.by_id
    until(lambda: any(tree.waiting for tree in trees.values()), "its output is not read")
    (tree,) = trees.values()
    # Its own pipe, one read that is held, and the pipe to the reader.
    assert tree.output.total_bytes <= 3 * 65_536
    # Meanwhile the thread of all pipes serves others.
    other = kit.supervisor.session("other")
    assert say(other, "go")
    until(lambda: len(trees) == 2, "it starts one more")
    go.set()
    expected = hashlib.sha256(b"0123456789" * (size // 10)).hexdigest()
    assert done(session, run_id) == f"{expected} {size}"


def test_after_the_exit_the_rest_is_logged_though_nobody_reads_it(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        # More than the reader's pipe has room for, and all of it printed before the exit.
        process = await spawn(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x"], stdout="follow")
        exited = await process.wait()
        assert exited.total_bytes == 100_000
        return str(len(await process.stdout.read()))

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "100000"
    no_more_than(before)


def test_what_is_held_for_a_reader_has_a_bound_after_the_exit(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "HELD_MAX_BYTES", 70_000)

    async def body(spawn: Any) -> str:
        # What it leaves behind prints on and on.
        process = await spawn(["sh", "-c", "yes & echo"], stdout="follow")
        exited = await process.wait()
        assert exited.held
        assert exited.total_bytes <= 65_536 + 70_000 + 2 * 65_536
        process.kill(0)
        return str(len(await process.stdout.read()) > 0)

    session = run_async(kit, "agent", body)
    before = descriptors()
    assert done(session, say(session)) == "True"
    no_more_than(before)


@pytest.mark.parametrize("reader", ["reads", "closes"])
def test_a_write_that_comes_before_the_word_of_room_says_that_there_is_room(reader: str) -> None:
    # So it is when the rest of the output is read behind the exit: the stream waits for room, and that read takes it.
    rooms: list[str] = []
    read, write = os.pipe()
    reactor = Reactor("test-copies", RealClock())

    def late() -> str:
        copy = copies.Copy(reactor, write, lambda: rooms.append("room"), lambda: rooms.append("closed"))
        copy.feed(b"x" * 200_000)
        assert copy.behind
        assert not rooms
        while reader == "reads" and copy.behind:
            os.read(read, 200_000)
            copy.feed(b"y")
        if reader == "closes":
            os.close(read)
            copy.feed(b"y")
            assert rooms.pop(0) == "closed"
        assert not copy.behind
        copy.close()
        return rooms[0]

    said: Future[str] = Future()
    reactor.start()
    try:
        reactor.post(lambda: settle(said, late))
        assert said.result(WAIT_S) == "room"
    finally:
        assert reactor.stop(WAIT_S)
        if reader == "reads":
            os.close(read)


def test_a_line_has_a_bound_and_can_be_read_in_pieces(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "LINE_MAX_BYTES", 100_000)
    monkeypatch.setattr(pipes, "READ_MAX_BYTES", 150_000)

    async def body(spawn: Any) -> str:
        process = await spawn(["sh", "-c", "head -c 99999 /dev/zero; echo; head -c 200000 /dev/zero"], stdout="pipe")
        assert len(await process.stdout.readline()) == 100_000
        with pytest.raises(ValueError, match="at most 100000 bytes"):
            await process.stdout.readline()
        with pytest.raises(ValueError, match="at most 150000 bytes"):
            await process.stdout.read()
        size = 0
        while piece := await process.stdout.read(1000):
            size += len(piece)
        return str(size)

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == "200000"


def test_writes_of_several_tasks_do_not_mix_and_two_readers_are_one_too_many(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["cat"], stdin="pipe", stdout="pipe")
        writers = [asyncio.create_task(process.stdin.write(letter * 300_000 + b"\n")) for letter in (b"a", b"b", b"c")]
        lines = [await process.stdout.readline() for _ in writers]
        await asyncio.gather(*writers)
        readers = [asyncio.create_task(process.stdout.readline()) for _ in range(2)]
        await asyncio.wait(readers, return_when="FIRST_COMPLETED")
        with pytest.raises(ValueError, match="one at a time"):
            await next(reader for reader in readers if reader.done())
        process.stdin.close()
        await asyncio.gather(*readers, return_exceptions=True)
        return ",".join(f"{line[:1].decode()}{len(set(line))}{len(line)}" for line in sorted(lines))

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == "a2300001,b2300001,c2300001"


def test_a_read_that_its_own_time_limit_ends_has_taken_nothing(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["cat"], stdin="pipe", stdout="pipe")
        await process.stdin.write(b"half")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await process.stdout.readline()
        await process.stdin.write(b" and half\n")
        line: bytes = await process.stdout.readline()
        return line.decode()

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == "half and half\n"


def test_a_flood_that_is_read_leaves_the_loop_to_others(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["yes"], stdout="pipe")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while turns < 50:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for _ in process.stdout:
            if task.done():
                break
        return str(turns)

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == "50"


def test_a_thread_that_others_wait_for_may_not_wait_for_a_pipe() -> None:
    opened = Pipes({"stdout": "pipe"})
    out = OutputFile(opened.ends["stdout"], _Door(Pending(CancelToken(lambda callback: callback()))))
    raised: Future[BaseException | None] = Future()

    def read() -> None:
        serve_all()
        try:
            out.read(1)
        except BaseException as error:
            raised.set_result(error)

    threading.Thread(target=read).start()
    assert isinstance(raised.result(WAIT_S), BlockingAskError)
    opened.close()


# ── Ends of pipes, by themselves ──────────────────────────────────────────────────────────────────


def a_pipe() -> tuple[End, int]:
    read, write = os.pipe()
    return End(read), write


def test_an_end_that_is_closed_while_it_is_waited_for_stays_open_until_the_wait_is_over() -> None:
    end, write = a_pipe()
    token = CancelToken(lambda callback: callback())
    raised: Future[BaseException] = Future()

    def read() -> None:
        try:
            OutputFile(end, _Door(Pending(token))).read(1)
        except BaseException as error:
            raised.set_result(error)

    threading.Thread(target=read).start()
    until(lambda: end._woken is not None, "it waits")
    end.close()
    os.fstat(end._fd)
    token.cancel(Provenance(source="user.test", reason="the test says so", initiated_at=0.0))
    assert isinstance(raised.result(WAIT_S), RunCancelled)
    until(lambda: end._fd < 0, "it is closed")
    os.close(write)


def test_an_async_reader_that_is_cancelled_leaves_nothing_with_its_loop() -> None:
    end, write = a_pipe()

    async def main() -> None:
        out = AsyncOutput(end, _Door(Pending(CancelToken(lambda callback: callback()))))
        task = asyncio.create_task(out.readline())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert end._woken is not None
        number = end._fd
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not asyncio.get_running_loop().remove_reader(number)

    asyncio.run(main())
    end.close()
    os.close(write)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stdout": "both"},
        {"stdout": None},
        {"stderr": 1},
        {"stdin": "text"},
        {"stdout": "pipe", "pty": True},
        {"stderr": "follow", "pty": True},
    ],
    ids=str,
)
def test_what_is_no_pipe_is_refused(wrong: dict[str, Any]) -> None:
    spawn = Spawn(lambda *_: None, Pending(CancelToken(lambda callback: callback())), lambda *_: None)
    with pytest.raises(Invalid):
        spawn(["true"], **wrong)


def test_a_process_without_a_pipe_says_how_to_get_one(kit: Kit) -> None:
    async def body(spawn: Any) -> str:
        process = await spawn(["true"])
        for stream in ("stdin", "stdout", "stderr"):
            with pytest.raises(Invalid, match=f"pass {stream}="):
                getattr(process, stream)
        return "as it should"

    session = run_async(kit, "agent", body)
    assert done(session, say(session)) == "as it should"
