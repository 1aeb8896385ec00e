"""Mutants: faults of the product. The simulator has to find each of them when it is planted alone.

Each file but `mutant.py` has the mutants of one part of the product.

    mutant.py         Mutant: how a fault is planted, and hunted
    gates.py          the gate: cell, token, turn, execution, mailbox
    runs.py           what the protocol decides about runs and their calls
    parts.py          what the protocol decides about processes, and about reports that something has ended
    model_answers.py  what is decided about the calls of a model's answer, and what is rendered of it
    media.py          the bytes of files
    asking.py         what calls wait for a person, and what becomes of them
    children.py       what goes between the sessions of a parent and of a child run
    requests.py       what the protocol decides about requests: messages and their queue, Stops, deletion
    agents.py         which agent answers
    usage.py          what is counted of runs, and their budgets
    sessions.py       what the protocol keeps of a session, and how it restores it
    session_actor.py  the session's actor: batches, hosts, reading, passivation, draining
    outages.py        what a session does while the store fails; the stop journal
    run_actors.py     the actors of runs and calls, and how they use a host
    daemon.py         around the sessions: the supervisor's actor, the executor, hosts, the store
"""

from typing import Final

from tests.sim.mutants.agents import AGENTS
from tests.sim.mutants.asking import ASKING
from tests.sim.mutants.children import CHILDREN
from tests.sim.mutants.daemon import DAEMON
from tests.sim.mutants.gates import GATES
from tests.sim.mutants.media import MEDIA
from tests.sim.mutants.model_answers import MODEL_ANSWERS
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.outages import OUTAGES
from tests.sim.mutants.parts import PARTS
from tests.sim.mutants.requests import REQUESTS
from tests.sim.mutants.run_actors import RUN_ACTORS
from tests.sim.mutants.runs import RUNS
from tests.sim.mutants.session_actor import SESSION_ACTOR
from tests.sim.mutants.sessions import SESSIONS
from tests.sim.mutants.usage import USAGE

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Final = (
    *GATES,
    *RUNS,
    *PARTS,
    *MODEL_ANSWERS,
    *MEDIA,
    *ASKING,
    *CHILDREN,
    *REQUESTS,
    *AGENTS,
    *USAGE,
    *SESSIONS,
    *SESSION_ACTOR,
    *OUTAGES,
    *RUN_ACTORS,
    *DAEMON,
)
