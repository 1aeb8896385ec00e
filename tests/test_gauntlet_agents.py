"""The gauntlet by each kind of agent: the eleven commands that every harness meets, all at once, ended by one Stop.

Frameworks, SDKs and programs are as they are in their registries. Their model is a provider on this machine, whose
first answer is the commands, each a call of the tool by which such an agent runs a command. `./scripts/test --agents`
has three runs of each kind, and the programs from npm.
"""

from __future__ import annotations

import os
import shlex
import string
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors import Stop
from supervisor import Agent, SessionHandle, supervisor
from tests import model_kit
from tests.adapter_provider import Case, providing
from tests.gauntlet import census
from tests.gauntlet.cases import Needs, choose
from tests.gauntlet.judge import judge, stale_events
from tests.gauntlet.plugins import Names
from tests.gauntlet.single import Stage
from tests.kit import WAIT_S, Kit, kit, log, say
from tests.program_kit import ACP_AGENT
from tests.test_adapters import INSIDE, PLAIN, hosts
from tests.test_gauntlet_hosts import Lying, names
from tests.test_real_programs import ALL, Claude, Codex, Gemini, OpenCode, Real, of_all
from tests.test_sdks import INSTALL_S, sdks

__all__ = ["kit", "names", "sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)

ELEVEN = "plain,background,own-session,daemon,ignores-term,stopped,fork-chain,leader-exits,tree-of-20,burst-50mb,nohup"
ROUNDS = 3 if ALL else 1


@dataclass(frozen=True)
class Kind:
    """A kind of agent.

    Args:
        agent: makes one, for a folder and the URL of its model.
        call: makes what runs a command: a tool, as far as its name ends so, and its arguments; None: the message does.
        at_once: it runs the calls of one answer together. Else it gets one that starts all commands.
        by_itself: the commands are started below its host, and not by a tool of the daemon's.
    """

    agent: Callable[[Kit, Path, str], Agent]
    call: Callable[[str], tuple[str, dict[str, Any]]] | None
    at_once: bool = True
    by_itself: bool = True


def stand_in(preset: str) -> Kind:
    """A stand-in for a program that speaks ACP."""

    def agent(kit: Kit, folder: Path, url: str) -> Agent:
        return Agent(
            preset=preset, command=[sys.executable, str(ACP_AGENT)], cwd=str(folder), env={kit.mark: "1"}, spares=0
        )

    return Kind(agent, None)


def program(real: type[Real], tool: str, key: str) -> Kind:
    """A program as it is."""

    def agent(kit: Kit, folder: Path, url: str) -> Agent:
        return Agent(**real(kit, folder, url).options(ask=False))

    return Kind(agent, lambda command: (tool, {key: command, "description": "Work"}), at_once=False)


def adapted(name: str, *, at_once: bool) -> Kind:
    """An agent with an adapter: its tool is a function of its own, which starts a process."""

    def agent(kit: Kit, folder: Path, url: str) -> Agent:
        return hosts(kit, url, f"tests.adapted_agents:{name}", folder, NOTES=str(folder))

    return Kind(agent, lambda command: ("note", {"text": f"run {command}"}), at_once)


def model(preset: str) -> Kind:
    """A model, with the tool `shell` as it ships."""

    def agent(kit: Kit, folder: Path, url: str) -> Agent:
        return Agent(**model_kit.options(preset, url, kit.mark, ask=[]))

    return Kind(agent, lambda command: ("shell", {"script": command}), by_itself=False)


KINDS = {
    **{f"{preset} stand-in": stand_in(preset) for preset in ("acp", "gemini", "opencode")},
    "claude-code": program(Claude, "Bash", "command"),
    "codex": program(Codex, "exec_command", "cmd"),
    "opencode": program(OpenCode, "bash", "command"),
    "gemini": program(Gemini, "run_shell_command", "command"),
    # The Claude Agent SDK and smolagents do not run all calls of an answer together.
    **{name: adapted(name, at_once=name not in ("claude_agent_sdk", PLAIN)) for name in (*INSIDE, PLAIN)},
    **{preset: model(preset) for preset in model_kit.PRESETS},
}
FROM_NPM = ("codex", "opencode", "gemini")


def begin(kind: Kind, session: SessionHandle, served: dict[str, Case], stages: list[Stage], number: int) -> str:
    """Have an agent start all commands; returns its run when they are up."""
    files = []
    for stage in stages:
        stage.folder.mkdir()
        environment = stage.case.environment(stage.token, stage.seen, Needs({}, {}))
        words = [*(f"{name}={value}" for name, value in environment.items()), *stage.case.argv()]
        (stage.folder / "run").write_text(f"exec env {shlex.join(words)}\n")
        files.append(str(stage.folder / "run"))
    if not kind.at_once:
        every = stages[0].folder / "all"
        every.write_text("".join(f"sh {file} &\n" for file in files) + "wait\n")
        files = [str(every)]
    name = f"gauntlet-tool-{string.ascii_lowercase[number]}"
    if kind.call is not None:
        served[name] = Case(calls=[kind.call(f"sh {file}") for file in files])
    message = f"run {' '.join(files)}" if kind.call is None else f"[case {name}] Run them."
    run_id = say(session, message)
    for stage in stages:
        assert stage.up(WAIT_S), (stage.case.name, census.read(stage.seen), session.run(run_id).error)
    return run_id


def stop_all(kind: Kind, kit: Kit, names: Names, folder: Path, rounds: int) -> list[str]:
    """Have the eleven commands started and stopped, each time in a session of its own; returns what was wrong."""
    served: dict[str, Case] = {}
    wrong: list[str] = []
    with providing(served) as url:
        kit.start(kind.agent(kit, folder, url))
        assert kit.supervisor is not None
        for number in range(rounds):
            session = kit.supervisor.session(f"s{number}")
            stages = [Stage(case, token := names.next(), folder / token, session) for case in choose(ELEVEN)]
            run_id = begin(kind, session, served, stages, number)
            session.ask(Stop(source="user.gauntlet", reason="all of them"), timeout=WAIT_S)
            receipt = session.receipt(run_id, timeout=WAIT_S)
            for stage in stages:
                living, seen, now = stage.living(), census.read(stage.seen), time.time()  # noqa: TID251
                verdict = judge(receipt, living, seen, "stop", uid=os.geteuid(), now=now, by_host=kind.by_itself)
                wrong += [f"{stage.case.name}: {one}" for one in (*verdict.survivors, *verdict.wrong)]
            wrong += [] if receipt.complete else [f"the receipt is not complete: {receipt}"]
            wrong += stale_events(log(session), session.run(run_id).fence_seq, run_id)
            # Whatever else was started for it, such as a shell around the commands.
            wrong += [f"{life} lives" for life in census.marked(names.prefix)]
            for stage in stages:
                stage.clean()
    return wrong


@pytest.mark.parametrize("name", [pytest.param(one, marks=of_all if one in FROM_NPM else ()) for one in KINDS])
def test_l3_none_of_eleven_commands_outlives_a_stop_of_the_agent_that_started_them(
    sdks: None, kit: Kit, names: Names, tmp_path: Path, name: str
) -> None:
    assert stop_all(KINDS[name], kit, names, tmp_path, ROUNDS) == []
    assert kit.alive() == []


def test_commands_that_are_only_said_to_be_gone_are_found(
    kit: Kit, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ProcessTrees", Lying)
    wrong = stop_all(KINDS["acp stand-in"], kit, names, tmp_path, 1)
    assert {case.name for case in choose(ELEVEN)} <= {one.partition(":")[0] for one in wrong}
