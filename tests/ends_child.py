"""A supervisor that kills itself at a moment of a run, with whatever runs in its hosts.

    python -m tests.ends_child STATE_DIR OPTIONS RUNS

OPTIONS are the agent's, as JSON; RUNS is a list of the messages of a session, each with a moment in the run of its last
one, as JSON. The sessions are `s0` and so on. The moment of the first one is awaited; and those that are to be idle
are.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from actors.decoding import decoder
from supervisor import Agent, Config, Supervisor
from tests.ends_kit import IDLE, Moment, begin, ended
from tests.kit import GRACE_S, KILL_S


def main() -> None:
    state_dir, options, runs = sys.argv[1:]
    agents = {"test": Agent(**decoder(dict[str, Any])(options))}
    supervisor = Supervisor.start(
        Config(state_dir=state_dir, agents=agents, agent="test", grace_s=GRACE_S, kill_s=KILL_S)
    )
    told = decoder(list[tuple[list[str], Moment]])(runs)
    run_ids = [begin(supervisor.session(f"s{number}"), messages) for number, (messages, _) in enumerate(told)]
    for number, (_, moment) in enumerate(told):
        if moment.step == IDLE:
            ended(supervisor.session(f"s{number}"), run_ids[number])
    told[0][1].wait(supervisor.session("s0"), run_ids[0])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
