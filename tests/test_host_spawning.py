"""`spawn` in a Python host: the frames that it makes of it, and what code gets, whenever the end comes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.host_kit import WHY, Daemon, Json, python_host

KINDS = pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
EXIT: Json = {"status": 3, "output": "out\n", "total_bytes": 4, "duration_s": 0.5, "later": "is ignored"}


def started(host: Daemon, frame: Json, process: str = "p1") -> None:
    host.answer(frame, process=process, pid=77)


def exited(host: Daemon, process: str = "p1", **more: Any) -> None:
    news = {"fence": "s:1:", "process": process, "news": "exited", "exit": EXIT, **more}
    host.send(method="process", params=news)


@KINDS
def test_a_command_is_asked_for_and_its_exit_is_waited_for(tmp_path: Path, python: str, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            process = {wait}turn.spawn(
                ["make", "-j"], cwd="/tmp", env={{"A": "b"}}, name="n", owner="session", stdin=b"\\0x", pty_size=(9, 8)
            )
            done = {wait}process.wait(60)
            again = {wait}process.wait()
            return [process.process_id, process.pid, done.status, done.output, done.spool, again == done]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        frame = host.take("spawn")
        assert frame["params"] == {
            "fence": "s:1:",
            "argv": ["make", "-j"],
            "cwd": "/tmp",
            "env": {"A": "b"},
            "name": "n",
            "owner": "session",
            "pty": False,
            "pty_size": [9, 8],
            "stdin": base64.b64encode(b"\0x").decode(),
        }
        started(host, frame)
        exited(host)
        assert host.answered(number)["result"]["value"] == ["p1", 77, 3, "out\n", None, True]


@KINDS
def test_it_is_killed_and_handed_over(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            process = {wait}turn.spawn(["serve"])
            process.kill(0.5)
            {wait}process.hand_over()
            try:
                {wait}process.hand_over()
            except ProcessLookupError as error:
                return str(error)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        started(host, host.take("spawn"))
        kill = host.take("process.kill")
        assert kill["params"] == {"fence": "s:1:", "process": "p1", "grace_s": 0.5}
        host.answer(kill)
        host.answer(host.take("process.hand_over"))
        frame = host.take("process.hand_over")
        data = {"type": "ProcessLookupError", "message": "it has ended"}
        host.send(id=frame["id"], error={"code": -32000, "message": "ProcessLookupError: it has ended", "data": data})
        assert host.answered(number)["result"]["value"] == "it has ended"


ERRORS: list[tuple[Json, list[str]]] = [
    ({"code": -32000, "message": "x", "data": {"type": "OSError", "message": "no file"}}, ["OSError", "no file"]),
    ({"code": -32003, "message": "too many", "data": {"code": "queue_full"}}, ["CountermandError", "too many"]),
    ({"code": -32003, "message": "no command", "data": {"code": "invalid"}}, ["Invalid", "no command"]),
    ({"code": -32602, "message": "it does not fit"}, ["Invalid", "it does not fit"]),
    ({"code": -32003, "message": "not now", "data": {"code": "refused"}}, ["Refused", "not now"]),
]


@KINDS
@pytest.mark.parametrize(("error", "raised"), ERRORS)
def test_code_gets_the_daemons_reason(tmp_path: Path, kind: str, wait: str, error: Json, raised: list[str]) -> None:
    code = f"""
        {kind} agent(turn):
            try:
                {wait}turn.spawn(["make"])
            except Exception as error:
                return [type(error).__name__, str(error)]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.send(id=host.take("spawn")["id"], error=error)
        assert host.answered(number)["result"]["value"] == raised


def test_what_is_no_command_is_refused_where_it_is_asked(tmp_path: Path) -> None:
    wrong = ['"ls -l"', 'b"ls"', "5", "[5]", '["\\ud800"]', '["ls"], env=5', '["ls"], stdin="text"', '["ls"], cwd=5']
    code = f"""
        from countermand import Invalid
        def agent(turn):
            said = 0
            for ask in {[f"turn.spawn({one})" for one in wrong]!r}:
                try:
                    eval(ask)
                except Invalid:
                    said += 1
            return said
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == len(wrong)


@KINDS
def test_a_time_limit_ends_the_wait_and_not_the_process(tmp_path: Path, python: str, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            process = {wait}turn.spawn(["make"])
            try:
                {wait}process.wait(0.01)
            except TimeoutError:
                {wait}turn.emit("late")
            return ({wait}process.wait()).status
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        started(host, host.take("spawn"))
        host.take("emit")
        exited(host)
        assert host.answered(number)["result"]["value"] == 3


def test_a_tree_that_was_lost_is_an_os_error(tmp_path: Path) -> None:
    code = """
        def agent(turn):
            process = turn.spawn(["make"])
            try:
                process.wait()
            except OSError as error:
                return str(error)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        started(host, host.take("spawn"))
        exited(host, news="lost", exit=None, note="its warden was lost")
        assert host.answered(number)["result"]["value"] == "its warden was lost"


# ── A Stop at each moment ─────────────────────────────────────────────────────────────────────────


@KINDS
@pytest.mark.parametrize("moment", ["asked", "started", "waiting", "exited"])
def test_a_stop_at_each_moment_is_raised_once_and_the_clean_up_is_not_cut(
    tmp_path: Path, kind: str, wait: str, moment: str
) -> None:
    pause = "asyncio.sleep(0.05)" if wait else "time.sleep(0.05)"
    code = f"""
        import asyncio, time
        {kind} agent(turn):
            try:
                process = {wait}turn.spawn(["make"])
                {wait}turn.typing()
                {wait}process.wait()
                {wait}{"asyncio" if wait else "time"}.sleep(1000)
            except asyncio.CancelledError as error:
                {wait}{pause}
                print("cleaned", turn.cancelled_by.source, flush=True)
                try:
                    {wait}turn.spawn(["more"])
                except asyncio.CancelledError:
                    print("again", flush=True)
                raise
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        frame = host.take("spawn")
        if moment == "asked":
            host.cancel(number)
            host.send(id=frame["id"], error={"code": -32800, "message": "cancelled", "data": {"provenance": WHY}})
        else:
            started(host, frame)
            if moment == "started":
                host.cancel(number)
            else:
                host.take("typing")
                if moment == "exited":
                    exited(host)
                host.cancel(number)
                if moment == "waiting":
                    exited(host)
        answer = host.next()
        while answer.get("method") == "typing":
            answer = host.next()
        assert (answer["id"], answer["error"]["code"]) == (number, -32800)
        assert host.stdout() == "cleaned user.console\nagain\n"


def test_news_of_an_earlier_run_are_of_no_process_of_this_one(tmp_path: Path) -> None:
    code = """
        def agent(turn):
            return turn.spawn(["make"]).process_id
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        started(host, host.take("spawn"))
        assert host.answered(number)["result"]["value"] == "p1"
        second = host.run(fence="s:2:", generation=2, run="run_2")
        frame = host.take("spawn")
        exited(host)
        started(host, frame, "p2")
        assert host.answered(second)["result"]["value"] == "p2"


@pytest.mark.parametrize("crosses", [False, True], ids=["before the answer", "behind the answer"])
def test_a_spawn_that_is_not_waited_for_is_given_up_and_the_agent_continues(tmp_path: Path, crosses: bool) -> None:
    code = """
        import asyncio, pathlib, time
        async def agent(turn):
            task = asyncio.ensure_future(turn.spawn(["make"]))
            await asyncio.sleep(0)
            # The loop is blocked: the answer is read meanwhile, and the task does not go on.
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        frame = host.take("spawn")
        if crosses:
            started(host, frame)
            host.answered(host.request("ping"))
        (tmp_path / "go").touch()
        given_up = host.take("$/cancel_request")
        assert given_up["params"] == {"fence": "s:1:", "requestId": frame["id"]}
        if not crosses:
            host.send(id=frame["id"], error={"code": -32800, "message": "it is not waited for any more"})
        assert host.answered(number)["result"]["value"] is True


# ── Tools of the user's ───────────────────────────────────────────────────────────────────────────

TOOLS = """
    from countermand import AsyncSpawn, Spawn
    def builds(target: str, spawn: Spawn) -> str:
        "Build it."
        return spawn(["make", target]).wait().output
    async def waits(target: str, spawn: AsyncSpawn) -> str:
        "Build it."
        return (await (await spawn(["make", target])).wait()).output
"""


@KINDS
@pytest.mark.parametrize("tool", ["builds", "waits"])
def test_a_tool_starts_processes_for_its_call(tmp_path: Path, python: str, kind: str, wait: str, tool: str) -> None:
    code = f"""{TOOLS}
    {kind} agent(turn):
        return ({wait}turn.call("{tool}", target="all")).content
    """
    with python_host(tmp_path, code, "--tool", f"mine:{tool}", python=python) as host:
        (offer,) = host.hello()["tools"]
        assert list(offer["parameters"]["properties"]) == ["target"]
        number = host.run()
        call = host.take("call")
        execute = host.request("execute", fence="s:1:c1", call="c1", of=call["id"], deadline_s=None)
        frame = host.take("spawn")
        assert (frame["params"]["fence"], frame["params"]["argv"]) == ("s:1:c1", ["make", "all"])
        started(host, frame)
        exited(host, fence="s:1:c1")
        assert host.answered(execute)["result"]["content"] == "out\n"
        host.answer(call, call="c1", outcome="finished", content="out\n", is_error=False, data=None)
        assert host.answered(number)["result"]["value"] == "out\n"


@pytest.mark.parametrize("tool", ["builds", "waits"])
def test_the_end_of_a_call_ends_the_waits_of_its_tool_and_the_run_continues(tmp_path: Path, tool: str) -> None:
    code = f"""{TOOLS}
    async def agent(turn):
        return (await turn.call("{tool}", target="all")).outcome
    """
    with python_host(tmp_path, code, "--tool", f"mine:{tool}") as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        execute = host.request("execute", fence="s:1:c1", call="c1", of=call["id"], deadline_s=None)
        started(host, host.take("spawn"))
        host.cancel(execute, fence="s:1:c1", source="tool.deadline")
        assert host.answered(execute)["error"]["code"] == -32800
        host.answer(call, call="c1", outcome="interrupted", content="late", is_error=True, data=None)
        assert host.answered(number)["result"]["value"] == "interrupted"


PIPED = """
    {kind} agent(turn):
        process = {wait}turn.spawn(["make"], stdin="pipe", stdout="pipe", stderr="follow")
        try:
            {use}
        except BaseException as error:
            said = [type(error).__name__, turn.cancelled_by is not None]
            if turn.cancelled_by is not None:
                raise
            return said
        return "at its end"
"""
USES = pytest.mark.parametrize(
    ("use", "end"),
    [
        ("assert not {wait}process.stdout.read()", "at its end"),
        ("assert not {wait}process.stderr.readline()", "at its end"),
        ('{wait}process.stdin.write(b"x")', ["BrokenPipeError", False]),
    ],
)


@KINDS
@USES
def test_pipes_go_along_with_the_frame_and_their_end_is_the_end(
    tmp_path: Path, python: str, kind: str, wait: str, use: str, end: Any
) -> None:
    code = PIPED.format(kind=kind, wait=wait, use=use.format(wait=wait))
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        # The descriptors are closed here.
        frame = host.take("spawn")
        assert frame["params"]["pipes"] == {"stdin": "pipe", "stdout": "pipe", "stderr": "follow"}
        assert frame["params"]["stdin"] is None
        started(host, frame)
        look = host.take("process.look")
        assert look["params"] == {"fence": "s:1:"}
        host.answer(look)
        assert host.answered(number)["result"]["value"] == end


@KINDS
@USES
def test_the_end_of_a_pipe_is_a_cancel_if_one_was_before_it(
    tmp_path: Path, kind: str, wait: str, use: str, end: Any
) -> None:
    del end
    code = PIPED.format(kind=kind, wait=wait, use=use.format(wait=wait))
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        started(host, host.take("spawn"))
        look = host.take("process.look")
        host.cancel(number)
        data = {"provenance": WHY}
        host.send(id=look["id"], error={"code": -32800, "message": "cancelled", "data": data})
        assert host.answered(number)["error"]["code"] == -32800


@pytest.mark.parametrize("wrong", ['stdout="both"', "stderr=None", 'stdin="text"'])
def test_what_is_no_pipe_is_refused(tmp_path: Path, wrong: str) -> None:
    code = f"""
        from countermand import Invalid
        def agent(turn):
            try:
                turn.spawn(["make"], {wrong})
            except Invalid as error:
                return "invalid"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == "invalid"
