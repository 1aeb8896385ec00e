"""What `config check` finds of agents in hosts: a host of each is started, in a supervisor that is made for it."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
from typing import Final

from actors.errors import CountermandError, Invalid
from supervisor.agent import Agent
from supervisor.daemon.settings import DaemonSettings
from supervisor.supervisor import Supervisor

LOOK_S: Final = 0.05
TO_DO: Final = "; to do: "
"""It is in a failure that says everything, as the text of an error does."""


def unstartable(settings: DaemonSettings) -> list[CountermandError]:
    """Return a refusal for each agent of the settings of which no host can be started here, and by this user.

    It takes as long as the slowest of them, at most its `start_s`.
    """
    agents = {
        name: dataclasses.replace(agent, spares=1)
        for name, agent in settings.config.agents.items()
        if isinstance(agent, Agent)
    }
    if not agents:
        return []
    folder = tempfile.mkdtemp(prefix="countermand-check-")
    config = dataclasses.replace(settings.config, state_dir=folder, agent="shell", agents=agents, drain_s=0.0)
    try:
        with Supervisor.start(config) as supervisor:
            looking = threading.Event()
            while any(not one.broken and not one.ready for one in supervisor.hosts()):
                looking.wait(LOOK_S)
            broken = {one.name: one.broken for one in supervisor.hosts() if one.broken}
    except CountermandError as error:
        return [error]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Invalid(why)
        if TO_DO in why
        else Invalid(
            f"the agent {name!r} cannot be started",
            expected=f"a host of {agents[name].spelled} that says hello",
            got=why,
            remedy=f"mend it; to see what it does: countermand agents try {name} TEXT",
        )
        for name, why in broken.items()
    ]
