"""What the daemon counts: stops, ends by status and source, refused effects, queues, lag, processes, leaked threads."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from actors import AsyncTurn, Turn, tool
from supervisor.http.gauges import SOURCES_MAX
from tests.http_kit import Api, api
from tests.kit import WAIT_S, check_rest, kit, until
from tests.test_http_sessions import answers, get, running, say, stop, waits

__all__ = ["api", "kit"]


def value(client: httpx.Client, name: str, **labels: str) -> float:
    """The value of a sample; 0 where there is none."""
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"countermand_{name}" and sample.labels == labels:
                return sample.value
    return 0.0


def counted(client: httpx.Client, expected: float, name: str, **labels: str) -> None:
    """Wait for a counter: an event is shown to readers, and then counted."""
    until(lambda: value(client, name, **labels) == expected, f"{name} {labels} to be {expected}")


def test_they_are_what_prometheus_reads(api: Api) -> None:
    response = api.start(answers).get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.headers["content-type"].count("charset") == 1
    assert all(one.name.startswith("countermand_") for one in text_string_to_metric_families(response.text))


def test_runs_are_counted_by_how_they_ended_and_who_ended_them(api: Api) -> None:
    async def ends(turn: AsyncTurn) -> None:
        content = turn.inputs[-1].content
        if content == "fail":
            raise RuntimeError("the test says so")
        if content == "wait":
            await turn.cancel_token.wait()

    client = api.start(ends)
    for content in ("go", "go", "fail"):
        say(client, content)
        check_rest(api.session())
    say(client, "wait")
    stop(client, source="user.console", wait_s=WAIT_S)
    say(client, "wait")
    say(client, "go")
    check_rest(api.session())
    counted(client, 3, "runs_total", end="completed", source="itself")
    assert value(client, "runs_total", end="cancelled", source="user.console") == 1
    assert value(client, "runs_total", end="cancelled", source="session.new_message") == 1
    failed = get(client, "/v1/sessions/s1/runs")["runs"][2]
    source = failed["provenance"]["source"] if failed["provenance"] else "itself"
    assert value(client, "runs_total", end="failed", source=source) == 1
    assert value(client, "stop_seconds_count") == 1
    assert value(client, "stop_end_seconds_count") >= 2
    assert value(client, "store_lag_seconds_count") > 5


def test_an_event_that_is_published_twice_is_counted_once(api: Api) -> None:
    client = api.start(answers)
    say(client)
    events = check_rest(api.session())
    counted(client, 1, "runs_total", end="completed", source="itself")
    api.supervisor._hub.publish("s1", events)
    api.supervisor._hub.publish("s1", events[-2:])
    assert value(client, "runs_total", end="completed", source="itself") == 1


def test_sources_that_clients_make_up_are_bounded(api: Api) -> None:
    client = api.start(waits)
    for number in range(SOURCES_MAX + 8):
        say(client)
        stop(client, source=f"client.n{number}", wait_s=WAIT_S)
    counted(client, 8, "runs_total", end="cancelled", source="client.other")
    assert value(client, "runs_total", end="cancelled", source="client.n0") == 1


def test_a_thread_that_ignores_its_stop_is_named_leaked_and_its_late_result_is_counted(api: Api) -> None:
    over, begun = api.kit.gate(), api.kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        begun.set()
        over.wait(WAIT_S)
        return "too late"

    async def calls(turn: AsyncTurn) -> None:
        await turn.emit("calling")
        await turn.call("deaf")

    client = api.start(calls, tools=[deaf], grace_s=0.1, kill_s=0.2)
    say(client)
    running(client)
    assert begun.wait(WAIT_S), "the tool"
    assert value(client, "threads_busy") == 1
    assert value(client, "threads_leaked") == 0, "its run goes on"
    receipt = stop(client, wait_s=WAIT_S)["receipt"]
    assert receipt["complete"] is False
    assert value(client, "threads_leaked") == 1
    doctor = get(client, "/v1/doctor")
    assert {one["check"] for one in doctor["findings"] if not one["ok"]} == {"threads", "abandoned"}
    over.set()
    until(lambda: value(client, "threads_leaked") == 0, "the tool's end")
    until(lambda: get(client, "/v1/dead-letters")["counts"], "the late result")
    letters = get(client, "/v1/dead-letters")
    for kind, count in letters["counts"].items():
        assert value(client, "fenced_effects_total", kind=kind) == count
    assert {one["session"] for one in letters["letters"]} == {"s1"}


def test_levels_are_what_there_is(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    say(client, "later", policy="enqueue")
    assert value(client, "queue_depth", queue="messages") == 1
    assert value(client, "sessions_resident") == 1
    assert value(client, "processes") == 0
    assert value(client, "threads_busy") == 0, "an async agent has no thread"


def test_the_agent_of_an_active_run_is_no_leak(api: Api) -> None:
    over = api.kit.gate()

    def plain(turn: Turn) -> None:
        turn.emit("x")
        over.wait(WAIT_S)

    client = api.start(plain)
    say(client)
    running(client)
    assert (value(client, "threads_busy"), value(client, "threads_leaked")) == (1, 0)
    over.set()
    check_rest(api.session())
    until(lambda: value(client, "threads_busy") == 0, "its end")


def test_a_failing_counter_harms_no_session(api: Api) -> None:
    client = api.start(answers)

    def fails(*_: object) -> None:
        raise RuntimeError("the test says so")

    api.supervisor.tap(fails)
    say(client)
    check_rest(api.session())
    counted(client, 1, "runs_total", end="completed", source="itself")
