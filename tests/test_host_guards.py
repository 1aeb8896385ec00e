"""Guards in a Python host: an effect takes place only if the daemon permits it and no cancel has come by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host_kit import WHY, Daemon, Json, python_host

KINDS = pytest.mark.parametrize(("kind", "wait"), [("def", ""), ("async def", "await ")], ids=["plain", "async"])

AGENT = """
    import asyncio
    CANCELLED = (asyncio.CancelledError, getattr(__import__("countermand"), "RunCancelled"))

    {kind} agent(turn):
        took_place = []
        try:
            {within}with turn.cancel_token.guard("write report"):
                took_place.append("written")
                {body}
        except CANCELLED as error:
            return [took_place, type(error).__name__, getattr(error, "provenance", turn.cancelled_by).reason]
        return [took_place]
"""


def agent(kind: str, wait: str, body: str = "pass") -> str:
    return AGENT.format(kind=kind, within="async " if wait else "", body=body)


def asked(host: Daemon) -> Json:
    """Have the run begin, and take the request of its guard."""
    frame = host.take("guard")
    assert frame["params"] == {"fence": "s:1:", "name": "write report"}
    return frame


@KINDS
def test_an_effect_takes_place_when_it_is_permitted_and_is_then_done(
    tmp_path: Path, python: str, kind: str, wait: str
) -> None:
    with python_host(tmp_path, agent(kind, wait, f'{wait}turn.emit("inside")'), python=python) as host:
        host.hello()
        number = host.run()
        frame = asked(host)
        host.ping()
        host.answer(frame)
        host.take("emit")
        assert host.take("guard.done")["params"] == {"fence": "s:1:", "name": "write report"}
        assert host.answered(number)["result"]["value"] == [["written"]]


@KINDS
@pytest.mark.parametrize("then", ["permitted", "refused"])
def test_l1_a_cancel_that_is_there_before_the_permit_is_first(tmp_path: Path, kind: str, wait: str, then: str) -> None:
    with python_host(tmp_path, agent(kind, wait)) as host:
        host.hello()
        number = host.run()
        frame = asked(host)
        host.cancel(number)
        if then == "permitted":
            host.answer(frame)
        else:
            host.send(id=frame["id"], error={"code": -32800, "message": "no", "data": {"provenance": WHY}})
        name = "CancelledError" if wait else "RunCancelled"
        assert host.answered(number)["result"]["value"] == [[], name, "enough"]


@KINDS
def test_what_is_refused_since_its_call_is_closed_says_so_though_no_cancel_comes(
    tmp_path: Path, kind: str, wait: str
) -> None:
    with python_host(tmp_path, agent(kind, wait)) as host:
        host.hello()
        number = host.run()
        data = {"provenance": {**WHY, "source": "run.ended", "reason": "the call is closed"}}
        host.send(id=asked(host)["id"], error={"code": -32001, "message": "the call has ended", "data": data})
        name = "CancelledError" if wait else "RunCancelled"
        assert host.answered(number)["result"]["value"] == [[], name, "the call is closed"]


@KINDS
def test_l6_an_effect_that_a_cancel_interrupts_is_not_said_to_be_done(tmp_path: Path, kind: str, wait: str) -> None:
    body = "await asyncio.Event().wait()" if wait else "turn.cancel_token.wait(); turn.typing()"
    with python_host(tmp_path, agent(kind, wait, f'{wait}turn.emit("inside"); {body}')) as host:
        host.hello()
        number = host.run()
        host.answer(asked(host))
        host.take("emit")
        host.cancel(number)
        name = "CancelledError" if wait else "RunCancelled"
        assert host.answered(number)["result"]["value"] == [["written"], name, "enough"]


def test_l6_an_effect_that_ends_after_the_cancel_is_reported_as_done(tmp_path: Path) -> None:
    code = """
        import threading
        def agent(turn):
            def work():
                with turn.cancel_token.guard("write report"):
                    turn.emit("inside")
                    turn.cancel_token.wait()
                try:
                    with turn.cancel_token.guard("write report"):
                        late.append("written")
                except BaseException as error:
                    late.append(type(error).__name__)
            late = []
            thread = threading.Thread(target=work)
            thread.start()
            try:
                turn.cancel_token.wait()
                turn.typing()
            finally:
                thread.join()
                return late
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.answer(asked(host))
        host.take("emit")
        host.cancel(number)
        host.take("guard.done")
        assert host.answered(number)["result"]["value"] == ["RunCancelled"]


def test_an_effect_that_raises_is_not_said_to_be_done_and_ones_own_time_limit_is_no_cancel(tmp_path: Path) -> None:
    code = """
        import asyncio
        async def agent(turn):
            try:
                async with turn.cancel_token.guard("write report"):
                    raise ValueError
            except ValueError:
                await turn.emit("raised")
            try:
                async with asyncio.timeout(0.01):
                    async with turn.cancel_token.guard("write report"):
                        raise AssertionError("it took place")
            except TimeoutError:
                await turn.emit("too late")
            return "goes on"
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        host.answer(asked(host))
        host.take("emit")
        frame = asked(host)
        host.take("emit")
        host.answer(frame)
        assert host.answered(number)["result"]["value"] == "goes on"


@KINDS
def test_a_name_is_a_text_that_can_be_sent_and_is_not_empty(tmp_path: Path, kind: str, wait: str) -> None:
    code = f"""
        {kind} agent(turn):
            codes = []
            for name in ("", "  ", None, 7):
                try:
                    turn.cancel_token.guard(name)
                except Exception as error:
                    codes.append(error.code)
            {"async " if wait else ""}with turn.cancel_token.guard("a\\ud800" + "x" * 1000):
                return codes
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        frame = host.take("guard")
        assert frame["params"]["name"] == "a\ufffd" + "x" * 198
        host.answer(frame)
        assert host.take("guard.done")["params"]["name"] == frame["params"]["name"]
        assert host.answered(number)["result"]["value"] == ["invalid"] * 4


@pytest.mark.parametrize("tool", ["def", "async def"])
def test_the_guard_of_a_tool_asks_under_the_fence_of_its_call(tmp_path: Path, tool: str) -> None:
    a, token = ("async ", "AsyncCancelToken") if tool == "async def" else ("", "CancelToken")
    code = f"""
        from countermand import AsyncCancelToken, CancelToken
        {tool} mail(token: {token}) -> str:
            {a}with token.guard("send"):
                pass
            return "sent"
        async def agent(turn):
            return (await turn.call("mail")).content
    """
    with python_host(tmp_path, code, "--tool", "mine:mail") as host:
        host.hello()
        number = host.run()
        call = host.take("call")
        execute = host.request("execute", fence="s:1:c", call="c", of=call["id"], deadline_s=None)
        frame = host.take("guard")
        assert frame["params"] == {"fence": "s:1:c", "name": "send"}
        host.answer(frame)
        assert host.take("guard.done")["params"]["fence"] == "s:1:c"
        assert host.answered(execute)["result"]["content"] == "sent"
        host.answer(call, call="c", outcome="finished", content="sent", is_error=False, data=None)
        assert host.answered(number)["result"]["value"] == "sent"
