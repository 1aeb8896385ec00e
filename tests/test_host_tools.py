"""Calls from a host: tools of the daemon, functions of a framework, and the user's own tools, each gated.

The file has over 600 lines, and is whole: each kind of tool must behave as the others do.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.decoding import convert, decoder
from actors.events import (
    AnswerBegunData,
    AnswerEndedData,
    BlockData,
    MessageData,
    TextData,
    ToolEndedData,
    ToolRequestedData,
)
from actors.model import Event, Message, Outcome
from actors.text import storable_json
from actors.thread import Thread
from supervisor.hosts.runtime import ToolResult
from supervisor.hosts.runtime import thread as theirs_thread
from supervisor.hosts.runtime.call import Call
from supervisor.hosts.runtime.plain import as_json
from supervisor.hosts.runtime.schema import converted
from supervisor.hosts.runtime.values import AnswerInfo, BlockPart
from supervisor.hosts.runtime.values import Message as HostMessage
from tests.host_kit import RUNTIME, Daemon, Json, python_host

# ── Tools of the daemon ──


def test_a_call_of_the_daemons_tool_is_asked_for_and_its_result_returned(tmp_path: Path, python: str) -> None:
    code = """
        async def agent(turn):
            result = await turn.call("shell", script="true", tries=2)
            calls = [call.arguments for message in turn.messages for call in message.tool_calls]
            return [result.outcome, result.content, result.is_error, result.data, turn.tools, calls]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        tools = [{"name": "shell", "description": "Run it.", "parameters": {"type": "object"}}]
        number = host.run(tools=tools)
        call = host.take("call")
        arguments = {"script": "true", "tries": 2}
        assert call["params"] == {"fence": "s:1:", "tool": "shell", "arguments": arguments}
        host.answer(call, call="c1", outcome="finished", content="ok", is_error=False, data={"status": 0})
        value = host.answered(number)["result"]["value"]
        assert value == ["finished", "ok", False, {"status": 0}, tools, [arguments]]


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_a_refusal_has_the_daemons_words(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        from countermand import CountermandError
        {kind} agent(turn):
            try:
                {wait}turn.call("shell")
            except CountermandError as error:
                said = [error.code, error.expected, str(error)]
            {wait}turn.emit("on")
            return [said, [message.content for message in turn.messages]]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        data = {"code": "too_many", "expected": "at most 128", "got": "more"}
        host.send(id=call["id"], error={"code": -32003, "message": "too many requests", "data": data})
        host.take("emit")
        said, contents = host.answered(number)["result"]["value"]
        assert said == ["too_many", "at most 128", "too many requests; expected at most 128; got more"]
        assert contents == ["hi", "on"]


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_a_question_is_a_call_and_its_answer_is_returned(tmp_path: Path, python: str, kind: str, wait: str) -> None:
    code = f"""
        from countermand import Invalid, Refused

        {kind} agent(turn):
            said = [{wait}turn.ask("Deploy?", options=("yes", "no"))]
            for question, options in (("", ()), (7, ()), ("x", "yes"), ("x", [1]), ("x", 7)):
                try:
                    {wait}turn.ask(question, options)
                except Invalid as error:
                    said.append(error.message)
            try:
                {wait}turn.ask("Which key?")
            except Refused as error:
                said.append(error.result.content)
            return said + [message.content for message in turn.messages if message.role == "tool"]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        asked = host.take("ask")
        assert asked["params"] == {"fence": "s:1:", "question": "Deploy?", "options": ["yes", "no"]}
        finished(host, asked, "yes")
        asked = host.take("ask")
        assert asked["params"] == {"fence": "s:1:", "question": "Which key?"}
        declined = "Not started: the user declined."
        host.answer(asked, call="c2", outcome="not_started", content=declined, is_error=True, data=None)
        wrong = ["this is not a question"] * 2 + ["these are not options of a question"] * 3
        assert host.answered(number)["result"]["value"] == ["yes", *wrong, declined, "yes", declined]


def test_steering_takes_messages_into_the_thread(tmp_path: Path) -> None:
    code = """
        def agent(turn):
            turn.emit("a")
            taken = turn.steering()
            turn.emit("b")
            return [[m.content for m in taken], [m.content for m in turn.inputs], [m.content for m in turn.messages]]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.take("emit")
        asked = host.take("steering")
        assert asked["params"] == {"fence": "s:1:"}
        host.answer(asked, messages=[{"id": "m9", "role": "user", "content": "left"}])
        host.take("emit")
        assert host.answered(number)["result"]["value"] == [["left"], ["hi", "left"], ["hi", "a", "left", "b"]]


# ── Functions that are here ──


def execute(host: Daemon, call: Json, name: str = "c1") -> int:
    return host.request("execute", fence=f"s:1:{name}", call=name, of=call["id"], deadline_s=None)


def finished(host: Daemon, call: Json, content: str, name: str = "c1", **more: Any) -> None:
    host.answer(call, call=name, outcome="finished", content=content, is_error=False, data=None, **more)


def test_a_closure_is_executed_when_the_daemon_says_so_and_gives_back_its_own_value(
    tmp_path: Path, python: str
) -> None:
    code = """
        import asyncio, contextvars
        span = contextvars.ContextVar("span")
        class Weather:
            degrees = 20
        async def agent(turn):
            span.set("parent")
            caller = asyncio.current_task()
            async def weather():
                await turn.progress(at=span.get(), same=asyncio.current_task() is caller)
                return Weather()
            found = await turn.gate(
                "weather", {"city": "Bern"}, weather, schema={"type": "object"}, provider_id="p1", deadline_s=5,
                show=lambda value: f"{value.degrees} degrees",
            )
            return [found.degrees, [message.content for message in turn.messages]]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        assert call["params"] == {
            "fence": "s:1:",
            "tool": "weather",
            "arguments": {"city": "Bern"},
            "where": "host",
            "schema": {"type": "object"},
            "provider_id": "p1",
            "deadline_s": 5.0,
        }
        # It does not begin before.
        host.ping()
        executed = execute(host, call)
        assert host.take("progress")["params"]["data"] == {"at": "parent", "same": False}
        assert host.answered(executed)["result"] == {"content": "20 degrees", "is_error": False, "data": None}
        finished(host, call, "20 degrees")
        assert host.answered(number)["result"]["value"] == [20, ["hi", "", "20 degrees"]]


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_what_a_closure_raises_is_raised_where_it_was_called(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        class Own(Exception): ...
        {kind} fails():
            raise Own("no")
        {kind} agent(turn):
            try:
                {wait}turn.gate("f", {{}}, fails)
            except Own as error:
                return str(error)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        executed = execute(host, call)
        assert host.answered(executed)["result"] == {"content": "Own: no", "is_error": True, "data": None}
        host.answer(call, call="c1", outcome="finished", content="Own: no", is_error=True, data=None)
        assert host.answered(number)["result"]["value"] == "no"


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_a_call_that_does_not_take_place_is_refused_with_its_result(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        from countermand import Refused
        {kind} f():
            print("executed")
        {kind} agent(turn):
            try:
                {wait}turn.gate("f", {{}}, f)
            except Refused as error:
                return [error.result.outcome, str(error)]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        host.answer(call, call="c1", outcome="not_started", content="a fence came", is_error=True, data=None)
        assert host.answered(number)["result"]["value"] == ["not_started", "a fence came"]
        # Too late: nobody waits for it.
        assert host.answered(execute(host, call))["error"]["code"] == -32800
        assert host.stdout() == ""


def test_the_deadline_of_one_call_ends_its_closure_once_and_nothing_else(tmp_path: Path, python: str) -> None:
    for kind, wait, sleep in (("def", "", "time.sleep"), ("async def", "await ", "await asyncio.sleep")):
        code = f"""
            import asyncio, time
            from countermand import Refused
            {kind} agent(turn):
                told = []
                {kind} closure():
                    try:
                        {wait}turn.emit("inside")
                        {sleep}(1000)
                    except asyncio.CancelledError:
                        told.append("closure")
                        for _ in range(5):
                            {sleep}(0.01)
                        told.append("cleaned")
                        raise
                try:
                    {wait}turn.gate("f", {{}}, closure)
                except Refused as error:
                    told.append(error.result.outcome)
                told.append(turn.cancelled_by)
                try:
                    {wait}turn.call("tool")
                except asyncio.CancelledError:
                    told.append("agent")
                return told
        """
        with python_host(tmp_path, code, python=python) as host:
            host.hello()
            number = host.run()
            call = host.take("call")
            executed = execute(host, call)
            host.take("emit")
            host.cancel(executed, fence="s:1:c1", source="tool.deadline")
            assert host.answered(executed)["error"]["code"] == -32800
            host.answer(call, call="c1", outcome="interrupted", content="its deadline", is_error=True, data=None)
            assert host.take("call")["params"]["tool"] == "tool"
            host.cancel(number)
            value = host.answered(number)["result"]["value"]
            assert value == ["closure", "cleaned", "interrupted", None, "agent"]


def test_the_end_of_the_run_ends_a_closure_once_and_its_call_is_answered(tmp_path: Path, python: str) -> None:
    for kind, wait, sleep in (("def", "", "time.sleep"), ("async def", "await ", "await asyncio.sleep")):
        code = f"""
            import asyncio, time
            told = []
            {kind} agent(turn):
                {kind} closure():
                    try:
                        {wait}turn.emit("inside")
                        {sleep}(1000)
                    finally:
                        for _ in range(5):
                            {sleep}(0.01)
                        print("cleaned")
                try:
                    {wait}turn.gate("f", {{}}, closure)
                finally:
                    print("agent")
        """
        with python_host(tmp_path, code, python=python) as host:
            host.hello()
            number = host.run()
            executed = execute(host, host.take("call"))
            host.take("emit")
            host.cancel(number)
            # As the daemon does: a cancel of its own follows.
            host.cancel(executed, fence="s:1:c1")
            answers = {frame["id"]: frame for frame in (host.next(), host.next())}
            assert {number, executed} == set(answers) or number == executed
            assert all(frame["error"]["code"] == -32800 for frame in answers.values())
            assert sorted(host.stdout().split()) == ["agent", "cleaned"]


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_what_is_to_be_executed_after_the_cancel_does_not_begin(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        {kind} closure():
            print("executed")
        {kind} agent(turn):
            {wait}turn.gate("f", {{}}, closure)
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        host.cancel(number)
        executed = execute(host, call)
        answers = {frame["id"]: frame for frame in (host.next(), host.next())}
        assert {frame["error"]["code"] for frame in answers.values()} == {-32800}
        assert set(answers) == {number, executed}
        assert host.stdout() == ""


def test_a_closure_whose_task_is_cancelled_before_it_begins_is_answered(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def closure():
            print("executed")
        async def agent(turn):
            loop = asyncio.get_running_loop()
            def cancelled(loop, coroutine, **more):
                task = asyncio.Task(coroutine, loop=loop, **more)
                task.cancel()
                return task
            call = asyncio.ensure_future(turn.gate("f", {}, closure))
            await asyncio.sleep(0)
            loop.set_task_factory(cancelled)
            await call
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        host.run()
        executed = execute(host, host.take("call"))
        assert host.answered(executed)["error"]["code"] == -32800
        assert host.stdout() == ""


def test_a_call_that_a_framework_executes_may_end_after_it_was_closed(tmp_path: Path) -> None:
    code = """
        import asyncio
        from countermand.adapters.gate import begun
        async def agent(turn):
            ended = asyncio.get_running_loop().create_future()
            assert await begun(turn, "f", {}, ended) is None
            await turn.call("g")
            ended.set_result("late")
            return "well"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        executed = execute(host, call)
        other = host.take("call")
        # Its deadline.
        host.cancel(executed)
        assert host.answered(executed)["error"]["code"] == -32800
        host.answer(call, call="c1", outcome="interrupted", content="", is_error=True, data=None)
        finished(host, other, "", "c2")
        assert host.answered(number)["result"]["value"] == "well"


def test_closures_that_run_when_the_agent_returns_are_ended(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def agent(turn):
            async def closure():
                try:
                    await turn.emit("inside")
                    await asyncio.sleep(1000)
                finally:
                    await asyncio.sleep(0.01)
                    print("cleaned")
            global call
            call = asyncio.ensure_future(turn.gate("f", {}, closure))
            while not turn.messages[-1].content == "inside":
                await asyncio.sleep(0.001)
            return "well"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        executed = execute(host, host.take("call"))
        host.take("emit")
        frames = {frame["id"]: frame for frame in (host.next(), host.next())} if number != executed else {}
        assert frames[number]["result"]["value"] == "well"
        assert frames[executed]["error"]["code"] == -32800
        assert host.stdout() == "cleaned\n"


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
@pytest.mark.parametrize(
    ("closure", "show", "said"),
    [("return 1", "lambda value: 1 / 0", "ZeroDivisionError"), ("return iter_()", "None", "Invalid")],
)
def test_a_value_that_cannot_be_shown_is_an_error_of_the_call(
    tmp_path: Path, kind: str, wait: str, closure: str, show: str, said: str
) -> None:
    code = f"""
        def iter_():
            yield 1
        {kind} closure():
            {closure}
        {kind} agent(turn):
            try:
                {wait}turn.gate("f", {{}}, closure, show={show})
            except Exception as error:
                return type(error).__name__
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        result = host.answered(execute(host, call))["result"]
        assert (result["content"].partition(":")[0], result["is_error"]) == (said, True)
        finished(host, call, result["content"])
        assert host.answered(number)["result"]["value"] == said


def test_a_plain_closure_is_called_on_the_thread_that_calls(tmp_path: Path) -> None:
    code = """
        import threading
        def agent(turn):
            found = []
            def work(name):
                threading.current_thread().name = name
                found.append(turn.gate(name, {}, lambda: threading.current_thread().name))
            other = threading.Thread(target=work, args=("other",))
            other.start()
            other.join()
            work("main")
            return found
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        for name in ("other", "main"):
            call = host.take("call")
            assert host.answered(execute(host, call, name))["result"]["content"] == name
            finished(host, call, name, name)
        assert host.answered(number)["result"]["value"] == ["other", "main"]


# ── The user's own tools ──

TOOLS = """
    import asyncio, dataclasses, enum, threading, time
    from typing import Annotated, Dict, List, Literal, Optional, Union
    from countermand import AsyncCancelToken, CancelToken, Secret, ToolResult, tool

    class Unit(enum.Enum):
        C = "celsius"

    @dataclasses.dataclass
    class Place:
        city: str
        zip: int = 0

    @tool(isolation="thread", name="look_up", deadline_s=3)
    def search(place: Place, unit: Unit, *, tries: int = 3, key: Annotated[Optional[str], Secret] = None,
               fence: str, token: CancelToken) -> dict:
        '''Look it up.'''
        return {"city": place.city, "unit": unit.name, "tries": tries, "key": key, "fence": fence,
                "token": token.cancelled, "thread": threading.current_thread() is threading.main_thread()}

    async def shout(words: List[str], token: AsyncCancelToken) -> str:
        await asyncio.sleep(0)
        return " ".join(words).upper()

    @tool(isolation="thread")
    def fails(key: Annotated[str, Secret]):
        raise ValueError(f"no such key: {key}")

    async def sleeps() -> None:
        print("up")
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            print("cleaned")
"""


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_the_users_tools_are_offered_called_by_name_and_gated(
    tmp_path: Path, python: str, kind: str, wait: str
) -> None:
    code = f"""{TOOLS}
    {kind} agent(turn):
        names = [tool["name"] for tool in turn.tools]
        found = {wait}turn.call("look_up", place={{"city": "Bern"}}, unit="celsius", key="hush-hush")
        loud = {wait}turn.call("shout", words=["a", "b"])
        wrong = {wait}turn.call("shout", words="a")
        return [names, found.content, loud.content, wrong.is_error]
    """
    tools = ("--tool", "mine:search", "--tool", "mine:shout")
    with python_host(tmp_path, code, *tools, python=python) as host:
        offers = host.hello()["tools"]
        assert [(offer["name"], offer["description"]) for offer in offers] == [
            ("look_up", "Look it up."),
            ("shout", ""),
        ]
        schema = offers[0]["parameters"]
        assert schema["required"] == ["place", "unit"]
        assert set(schema["properties"]) == {"place", "unit", "tries", "key"}
        assert schema["properties"]["tries"] == {"type": "integer", "default": 3}
        theirs: list[Json] = [{"name": name, "description": "", "parameters": {}} for name in ("shell", "shout")]
        number = host.run(tools=theirs)
        call = host.take("call")
        arguments = {"place": {"city": "Bern"}, "unit": "celsius", "key": "[secret]"}
        assert call["params"] == {
            "fence": "s:1:",
            "tool": "look_up",
            "arguments": {**arguments, "key": "hush-hush"},
            "where": "host",
            "description": "Look it up.",
            "schema": schema,
            "secret": ["key"],
            "deadline_s": 3.0,
        }
        content = host.answered(execute(host, call))["result"]["content"]
        expected = {"city": "Bern", "unit": "C", "tries": 3, "key": "[secret]", "fence": "s:1:c1", "token": False}
        assert decoder(Any)(content) == {**expected, "thread": kind == "def"}
        finished(host, call, content)
        for said in ("A B", "Invalid: the arguments of shout do not fit: words: expected an array, got 'a'"):
            call = host.take("call")
            result = host.answered(execute(host, call))["result"]
            assert result["content"] == said
            host.answer(call, call="c1", outcome="finished", content=said, is_error=result["is_error"], data=None)
        value = host.answered(number)["result"]["value"]
        assert value == [["look_up", "shout", "shell"], content, "A B", True]


def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    with python_host(tmp_path, f"{TOOLS}\n    def agent(turn): ...", *["--tool", "mine:shout"] * 2) as host:
        assert "two tools have the same name; got shout" in host.hello()["error"]


def test_a_result_of_the_daemons_class_is_a_result(tmp_path: Path) -> None:
    code = """
        import msgspec
        from actors import Outcome, ToolResult, tool
        class Facts(msgspec.Struct):
            size: int
        @tool(isolation="task")
        async def f(path: str):
            return ToolResult(Outcome.FINISHED, "seen", data=Facts(3))
        async def agent(turn):
            await turn.call("f", path="x")
    """
    root = str(RUNTIME.parents[2])
    with python_host(tmp_path, code, "--tool", "mine:f", env={"COUNTERMAND_PATH": root}) as host:
        host.hello()
        host.run()
        result = host.answered(execute(host, host.take("call")))["result"]
        assert result == {"content": "seen", "is_error": False, "data": {"size": 3}}


def test_a_secret_is_not_in_what_a_tool_raises(tmp_path: Path) -> None:
    code = f"""{TOOLS}
    async def agent(turn):
        await turn.call("fails", key="hush-hush")
    """
    with python_host(tmp_path, code, "--tool", "mine:fails") as host:
        host.hello()
        host.run()
        call = host.take("call")
        # The daemon checks it, and keeps it from every record.
        assert (call["params"]["arguments"], call["params"]["secret"]) == ({"key": "hush-hush"}, ["key"])
        result = host.answered(execute(host, call))["result"]
        assert result == {"content": "ValueError: no such key: [secret]", "is_error": True, "data": None}


@pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")])
def test_the_cancel_ends_the_users_tool_once(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""{TOOLS}
    {kind} agent(turn):
        {wait}turn.call("sleeps")
    """
    with python_host(tmp_path, code, "--tool", "mine:sleeps") as host:
        host.hello()
        number = host.run()
        executed = execute(host, host.take("call"))
        host.cancel(number)
        host.cancel(executed, fence="s:1:c1")
        frames = [host.next(), host.next()]
        assert {frame["id"] for frame in frames} == {number, executed}
        assert [frame["error"]["code"] for frame in frames] == [-32800, -32800]
        # The cancel may have come before its first line.
        assert host.stdout() in ("up\ncleaned\n", "")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("def f(x): ...", "the tool 'f' has a parameter without a type; expected"),
        ("def f(*x: int): ...", "a parameter that a schema cannot name"),
        ("def f(x: bytes): ...", "a parameter that a schema cannot describe"),
        ("def f(x: 'Nowhere'): ...", "a signature that cannot be read"),
        ("f = 1", "mine:f is not a function"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_the_error_of_hello(tmp_path: Path, function: str, said: str) -> None:
    with python_host(tmp_path, f"{function}\ndef agent(turn): ...\n", "--tool", "mine:f") as host:
        assert said in host.hello()["error"]


# ── The same as in the daemon's process ──


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


SAMPLES: list[Any] = [
    None,
    True,
    3,
    2.5,
    "red",
    "text",
    [],
    [1],
    ["a", 1],
    [[1]],
    {},
    {"x": 1},
    {"x": 1, "y": 2},
    {"y": 2.0},
    {"x": "a"},
    {"a": 1},
]


@pytest.mark.parametrize(
    "hint",
    [
        str,
        int,
        float,
        bool,
        Any,
        None,
        list,
        dict,
        list[int],
        set[int],
        tuple[int, ...],
        dict[str, int],
        int | None,
        int | str | list[str],
        Literal["text", 3],
        Colour,
        Point,
        list[Point] | None,
        Annotated[float, "how much"],
    ],
)
def test_arguments_fit_a_type_where_the_daemon_would_accept_them(hint: Any) -> None:
    for value in SAMPLES:
        try:
            expected = convert(value, hint)
        except msgspec.ValidationError:
            with pytest.raises((TypeError, ValueError)):
                converted(hint, value)
        else:
            assert converted(hint, value) == expected, value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=20,
    )
)
def test_values_become_the_same_json(value: Any) -> None:
    assert msgspec.json.encode(as_json(value)) == msgspec.json.encode(storable_json(value))


NUMBERS = st.integers(0, 3)
ANSWERS = st.none() | st.integers(0, 2)
ACTIONS = st.lists(
    st.tuples(st.just("text"), st.sampled_from(["", "a", "b"]), ANSWERS)
    | st.tuples(st.just("request"), NUMBERS, ANSWERS)
    | st.tuples(st.just("end"), NUMBERS, st.none())
    | st.tuples(st.just("steer"), NUMBERS, st.none())
    | st.tuples(st.sampled_from(["begin", "block", "finish"]), NUMBERS, st.integers(0, 2)),
    max_size=20,
)


@given(ACTIONS)
def test_the_thread_of_a_host_is_the_fold_of_what_its_agent_did(actions: list[tuple[str, Any, int | None]]) -> None:
    """As `actors.thread` folds the events of it, which the daemon writes."""
    theirs = theirs_thread.Thread({"run": "r", "generation": 1, "thread": [], "inputs": []})
    ours, calls, over = Thread(), {}, set()
    answers: dict[int | None, theirs_thread.Segment] = {}
    for kind, what, answer in actions:
        data: Any = None
        segment, of = answers.get(answer), None if answer is None else f"a{answer}"
        if kind == "begin" and answer not in answers:
            answers[answer] = theirs.begin_answer(AnswerInfo("p", "m"))
            data = AnswerBegunData(answer=f"a{answer}", provider="p", model="m")
        elif answer is not None and (segment is None or answer in over):
            continue
        elif kind == "block" and segment is not None:
            theirs.keep_block(BlockPart("p", {"n": what}), segment)
            data = BlockData(answer=f"a{answer}", data={"n": what})
        elif kind == "finish" and segment is not None:
            theirs.end_answer(AnswerInfo("p", "m", {"input": what}, "stop", "msg"), segment)
            over.add(answer)
            data = AnswerEndedData(answer=f"a{answer}", usage={"input": what}, stop="stop", provider_id="msg")
        elif kind == "text" and what:
            theirs.text(what, segment)
            data = TextData(text=what, answer=of)
        elif kind == "request" and what not in calls:
            call = calls[what] = Call.__new__(Call)
            call.id, call.tool, call.arguments, call.result, call.over = f"c{what}", "t", {"n": what}, None, False
            call.part_of, call.frame = segment, {"provider_id": f"toolu_{what}"}
            theirs.requested(call)
            data = ToolRequestedData(
                call_id=call.id, tool="t", arguments=call.arguments, answer=of, provider_id=f"toolu_{what}"
            )
        elif kind == "end" and what in calls:
            calls[what].over = True
            calls[what].result = calls[what].result or ToolResult("finished", f"result {what}")
            data = ToolEndedData(call_id=f"c{what}", outcome=Outcome.FINISHED, content=f"result {what}", is_error=False)
        elif kind == "steer":
            theirs.steered([HostMessage(f"m{what}", "user", "x", generation=1, run_id="r")])
            data = MessageData(id=f"m{what}", content="x", origin=None)
        if data is not None:
            ours.add(Event(0, "s", 1, "r", data.event_kind, {}, 0.0), data)
    made = [convert(as_json(message), Message) for message in theirs.messages()]
    assert made == [msgspec.structs.replace(message, at=None) for message in ours.messages()]
