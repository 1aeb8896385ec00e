"""The agents over the API: where each runs, the state of its hosts, their reload; and what readiness says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.errors import Invalid
from actors.plugin.registration import Unloaded
from supervisor import Agent, Config, Supervisor
from tests.http_kit import Api, api, code
from tests.kit import GRACE_S, kit, until
from tests.test_http_health import finding
from tests.test_http_sessions import answers, get, say

__all__ = ["api", "kit"]

TESTS = str(Path(__file__).parent)


def hosted(api: Api, run: str = "hosted_agents:agent", **options: Any) -> Agent:
    return Agent(run=run, env={api.kit.mark: "1"}, **{"path": [TESTS], **options})


def started(api: Api, **agents: Any) -> httpx.Client:
    """Serve with these agents; the first one runs messages."""
    config = Config(state_dir=api.kit.state_dir, agents=agents, agent=next(iter(agents)), grace_s=GRACE_S)
    api.kit.supervisor = Supervisor.start(config)
    api.serve(api.kit.supervisor)
    return api.client()


def entry(client: httpx.Client, name: str) -> dict[str, Any]:
    (found,) = (one for one in get(client, "/v1/agents")["agents"] if one["name"] == name)
    return dict(found)


def states(client: httpx.Client, name: str) -> list[str]:
    return sorted(host["state"] for host in entry(client, name)["hosts"])


def until_state(client: httpx.Client, name: str, *wanted: str) -> None:
    until(lambda: states(client, name) == sorted(wanted), f"the hosts of {name} to be {wanted}")


def test_agents_are_listed_by_name_with_where_they_run(api: Api) -> None:
    failed = Unloaded("no.such:thing", Invalid("'no.such:thing' cannot be imported", got="ModuleNotFoundError"))
    client = started(api, mine=hosted(api), cold=hosted(api, spares=0, keep="session"), inside=answers, gone=failed)
    until_state(client, "mine", "spare")
    listed = get(client, "/v1/agents")["agents"]
    assert [one["name"] for one in listed] == ["cold", "gone", "inside", "mine", "shell"]
    shown = {one["name"]: (one["where"], one["state"], one["runs"], one["default"]) for one in listed}
    assert shown == {
        "cold": ("host", "cold", "hosted_agents:agent", False),
        "gone": ("daemon", "broken", "no.such:thing", False),
        "inside": ("daemon", "ready", "tests.test_http_sessions:answers", False),
        "mine": ("host", "ready", "hosted_agents:agent", True),
        "shell": ("daemon", "ready", "supervisor.agents.shell:shell", False),
    }
    assert "cannot be imported" in entry(client, "gone")["failure"]
    assert entry(client, "cold")["keep"] == "session"


def test_a_host_is_listed_with_its_state_its_session_and_since_when(api: Api) -> None:
    client = started(api, mine=hosted(api, keep="session"))
    began = get(client, "/v1/info")["started_at"]
    until_state(client, "mine", "spare")
    say(client, "say hello")
    until_state(client, "mine", "kept", "spare")
    kept, spare = sorted(entry(client, "mine")["hosts"], key=lambda one: one["state"])
    assert (kept["session"], spare["session"]) == ("s1", None)
    assert kept["runtime"].startswith("python 3.")
    assert began - 5 <= kept["started_at"] <= kept["since"] <= kept["started_at"] + 600
    say(client, "sleep")
    until_state(client, "mine", "running", "spare")


def test_an_agent_that_cannot_be_loaded_is_listed_as_broken_and_disturbs_no_other(api: Api, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    client = started(api, mine=hosted(api), bad=hosted(api, "broken:agent", path=[str(tmp_path)]))
    until(lambda: entry(client, "bad")["state"] == "broken", "it to be broken")
    bad = entry(client, "bad")
    assert "No module named 'nothing_of_this_name'" in bad["failure"]
    assert bad["failed_at"] >= get(client, "/v1/info")["started_at"] - 5
    found = finding(client, "agents")
    assert found["ok"] is False
    assert "bad: no host of it can be started" in str(found["found"])
    assert "mine" not in str(found["found"])
    until_state(client, "mine", "spare")
    ready = get(client, "/v1/ready")
    assert (ready["ready"], ready["agents"]) == (True, {"bad": "broken", "mine": "ready", "shell": "ready"})
    run_id = say(client, "say hello")["run_id"]
    until(lambda: get(client, f"/v1/runs/{run_id}")["status"] == "completed", "the run in its spare")

    (tmp_path / "broken.py").write_text("async def agent(turn): ...\n")
    answer = client.post("/v1/agents/reload", json={"agent": "bad"})
    assert (answer.status_code, [one["name"] for one in answer.json()["agents"]]) == (200, ["bad"])
    until_state(client, "bad", "spare")
    mended = entry(client, "bad")
    assert mended["state"] == "ready"
    assert "nothing_of_this_name" in mended["failure"], "the last failure is remembered"
    until_state(client, "mine", "spare")
    found = finding(client, "agents")
    assert (found["ok"], found["found"]) == (True, "bad: ready, 1 spare; mine: ready, 1 spare")


def test_a_daemon_whose_agent_cannot_be_loaded_is_not_ready(api: Api, tmp_path: Path) -> None:
    client = started(api, mine=hosted(api, "mine:agent", path=[str(tmp_path)]))
    until(lambda: client.get("/v1/ready").status_code == 503, "it is not ready")
    ready = client.get("/v1/ready").json()
    assert (ready["phase"], ready["agents"]["mine"]) == ("serving", "broken")
    assert "the agent 'mine'" in ready["reason"]
    assert "No module named 'mine'" in ready["reason"]
    assert "countermand agents reload" in ready["remedy"]
    (tmp_path / "mine.py").write_text("async def agent(turn): ...\n")
    answer = client.post("/v1/agents/reload")
    assert (answer.status_code, [one["name"] for one in answer.json()["agents"]]) == (200, ["mine"])
    until(lambda: client.get("/v1/ready").status_code == 200, "it is ready")


def test_a_reload_replaces_spares_and_leaves_runs_alone(api: Api) -> None:
    client = started(api, mine=hosted(api), other=hosted(api))
    until_state(client, "mine", "spare")
    until_state(client, "other", "spare")
    say(client, "sleep")
    until_state(client, "mine", "running", "spare")

    def ids(name: str) -> dict[str, str]:
        return {host["state"]: host["process_id"] for host in entry(client, name)["hosts"]}

    before, others = ids("mine"), ids("other")
    assert client.post("/v1/agents/reload", json={"agent": "mine"}).status_code == 200
    until(lambda: ids("mine").get("spare") not in (None, before["spare"]), "another spare")
    assert ids("mine")["running"] == before["running"]
    assert ids("other") == others


@pytest.mark.parametrize(
    ("body", "status", "refusal"),
    [
        ({"agent": "nobody"}, 404, "not_found"),
        ({"agent": "shell"}, 400, "invalid"),
        ({"agent": ["mine"]}, 400, "invalid"),
        ({"agents": ["mine"]}, 400, "invalid"),
    ],
)
def test_a_reload_that_cannot_be_meant_is_refused_and_reloads_nothing(
    api: Api, body: dict[str, Any], status: int, refusal: str
) -> None:
    client = started(api, mine=hosted(api))
    until_state(client, "mine", "spare")
    before = entry(client, "mine")["hosts"][0]["process_id"]
    answer = client.post("/v1/agents/reload", json=body)
    assert (answer.status_code, code(answer)) == (status, refusal)
    assert entry(client, "mine")["hosts"][0]["process_id"] == before


def test_the_routes_of_agents_have_the_access_rules_of_the_others(api: Api) -> None:
    api.start(None, tcp=True)
    stranger = api.over_tcp()
    assert stranger.get("/v1/agents").status_code == 401
    assert stranger.post("/v1/agents/reload").status_code == 401


def test_the_document_has_the_routes_of_agents(api: Api) -> None:
    paths = get(api.start(None), "/v1/openapi.json")["paths"]
    assert set(paths["/v1/agents"]) == {"get"}
    assert set(paths["/v1/agents/reload"]["post"]["responses"]) >= {"200", "400", "401", "403", "404"}
