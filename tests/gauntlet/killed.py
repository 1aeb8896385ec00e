"""The daemon that `kills` kills: a supervisor with agents of four kinds in hosts, under a load drawn from a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from loguru import logger

from actors import CountermandError, NewMessage, Stop
from supervisor import Config, SessionHandle, Supervisor
from supervisor.agent import Agent
from supervisor.hosts.host import HostState
from tests.gauntlet.by_host import HERE, MARK
from tests.gauntlet.hosted_load import WORDS
from tests.gauntlet.plugins import layers_of

SESSIONS = ("s0", "s1", "s2")
GRACE_S = 0.2
KILL_S = 60.0
"""So long that no receipt names what only waits for a processor to be ended, or to end on."""
ANSWER_S = 60.0
LOOK_S = 0.002
AIM_S = 15.0
WORD_MAX_S = 0.4
CALM_S = 3.0
AIMS: Final = (
    *(state for state in HostState if state is not HostState.RUNNING),
    *(f"{HostState.RUNNING}, {word}" for word in WORDS),
)
"""What a host may be doing when its daemon is killed."""
CALM: Final[dict[str, str]] = {HostState.KEPT: "keeping", HostState.SPARE: "ready"}
"""Where the clients leave time between runs, which end by themselves: by what is aimed at, the agent."""


def config(state_dir: Path, layer: str, mark: str, rng: random.Random, aim: str = "") -> Config:
    """The configuration of a daemon: the agent that runs messages is drawn, and how many spares each has.

    A host of the daemon may be kept, or a spare, if that is the aim.
    """

    def agent(slow_s: float = 0.0, **options: Any) -> Agent:
        env = {"PYTHONDONTWRITEBYTECODE": "1", MARK: mark, "LOAD_SLOW_S": f"{slow_s:.3f}"}
        return Agent(run="hosted_load:agent", path=[str(HERE)], env=env, **options)

    idle_s = rng.uniform(0.05, 0.5) + (aim in CALM) * CALM_S
    agents = {
        "ready": agent(spares=rng.randint(1, 2)),
        "slow": agent(rng.uniform(0.1, 0.6), spares=rng.randint(0, 1)),
        "keeping": agent(spares=rng.randint(0, 1), keep="session", keep_idle_s=idle_s),
        "cold": agent(spares=0, overlap=False),
    }
    return Config(
        state_dir=state_dir,
        agent=CALM[aim] if aim in CALM else rng.choice(list(agents)),
        agents=agents,
        grace_s=GRACE_S,
        kill_s=KILL_S,
        drain_s=0.0,
        **layers_of(layer),
    )


class Client(threading.Thread):
    """Asks one session for runs of all kinds, and stops some of them."""

    def __init__(self, session: SessionHandle, rng: random.Random, *, calm: bool) -> None:
        super().__init__(daemon=True)
        self._calm = calm
        self.session = session
        self.word = ""
        self._rng = rng

    def run(self) -> None:
        while True:
            rng = self._rng
            self.word = rng.choice(WORDS[:-1]) if self._calm else rng.choice(WORDS)
            content = f"{self.word} {rng.uniform(0.0, WORD_MAX_S):.3f}"
            policy = "enqueue" if self._calm else rng.choice(("interrupt", "interrupt", "enqueue"))
            with contextlib.suppress(CountermandError):
                self.session.ask(NewMessage(content=content, policy=policy), timeout=ANSWER_S)
                time.sleep(rng.uniform(0.0, 2 * WORD_MAX_S) + self._calm * CALM_S)
                if not self._calm and rng.random() < 0.4:
                    mode = rng.choice(("graceful", "immediate"))
                    self.session.ask(Stop(source="user.load", reason="drawn", mode=mode), timeout=ANSWER_S)


def daemon(orders: dict[str, Any], told: Connection) -> None:
    """Be a daemon under load until killed; by ourselves if a host is in the state that is aimed at."""
    with open(orders["log"], "ab") as log:
        os.dup2(log.fileno(), 2)
    logger.remove()
    threading.Thread(target=_end_with_our_starter, args=(told,), daemon=True).start()
    rng = random.Random(orders["seed"])
    supervisor = Supervisor.start(
        config(Path(orders["state_dir"]), orders["layer"], orders["mark"], rng, orders["aim"])
    )
    calm = orders["aim"] in CALM
    clients = {name: Client(supervisor.session(name), random.Random(rng.random()), calm=calm) for name in SESSIONS}
    told.send([])
    for client in clients.values():
        client.start()
    aim, until_s, said = orders["aim"], time.monotonic() + AIM_S, [""]
    while True:
        doing = [
            f"{host.state}, {clients[host.session].word}"
            if host.state is HostState.RUNNING and host.session in clients
            else str(host.state)
            for agent in supervisor.hosts()
            for host in agent.hosts
        ]
        if aim and (aim in doing or time.monotonic() > until_s):
            told.send(doing)
            os.kill(os.getpid(), signal.SIGKILL)
        if not aim and doing != said:
            said = doing
            told.send(doing)
        time.sleep(LOOK_S)


def _end_with_our_starter(told: Connection) -> None:
    with contextlib.suppress(EOFError):
        told.recv()
    os._exit(1)
