"""An agent in a host next to the same agent in this process: its start, its texts, its Stop, and its memory."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from actors import NewMessage, Stop
from supervisor import Agent, Config, SessionHandle, Supervisor
from supervisor.hosts.host import HostState
from supervisor.hosts.status import AgentStatus
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, median_ms, timed
from tests.bench.talker import talker

GROUP = "an agent in a host"
RUN = "tests.bench.talker:talker"
PATH = [str(Path(__file__).parents[3])]
SPARE, KEPT, INSIDE = "spare host", "kept host", "inside"
AGENTS: dict[str, Agent | Callable[..., Any]] = {
    SPARE: Agent(run=RUN, path=PATH),
    KEPT: Agent(run=RUN, path=PATH, keep="session"),
    INSIDE: talker,
}
SPARE_TIMES_MAX, KEPT_TIMES_MAX, PUBLISHED_TIMES_MAX, TEXTS_TIMES_MAX = 2.0, 1.1, 1.3, 1 / 0.85
RECEIPT_LATER_MAX_MS, MEMORY_MAX_MB = 12.0, 12.0
TIMED_TEXTS = 50

By = dict[str, list[float]]


def agents_in_hosts(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures. Those that are compared are measured in turn, so that each meets the same load."""
    with contextlib.ExitStack() as stack:
        daemons = {name: stack.enter_context(_running(folder, name)) for name in AGENTS}
        sessions = {name: daemon.session("measured") for name, daemon in daemons.items()}
        _read(sessions[KEPT], "texts 1")

        for name, times in ((SPARE, SPARE_TIMES_MAX), (KEPT, KEPT_TIMES_MAX)):
            starts = _each(daemons, (name, INSIDE), 2 * rounds.polite, lambda one: _first_line(sessions[one]))
            yield _compared(f"message to the first line in a {name}", starts, name, times)

        published = _each(daemons, (KEPT, INSIDE), 12, lambda name: _published(sessions[name]))
        yield _compared("said to published in a kept host", published, KEPT, PUBLISHED_TIMES_MAX)

        said = f"texts {rounds.texts}"
        spent = _each(daemons, (KEPT, INSIDE), 7, lambda name: timed(lambda: _read(sessions[name], said)))
        yield _compared(f"{rounds.texts} texts from a kept host", spent, KEPT, TEXTS_TIMES_MAX)

        stops = _each(daemons, (SPARE, INSIDE), rounds.polite, lambda name: _stop(sessions[name]))
        inside = median_ms(stops[INSIDE])
        name = "a Stop to the receipt of a run in a host"
        yield Figure(GROUP, name, median_ms(stops[SPARE]), "ms", inside, INSIDE, inside + RECEIPT_LATER_MAX_MS)
    with _running(folder / "alone", SPARE) as daemon:
        _await_quiet([daemon])
        yield Figure(GROUP, "memory of a spare, private", _private_mb(), "MB", limit=MEMORY_MAX_MB)


def _compared(name: str, taken: By, host: str, times: float) -> Figure:
    """A figure of hosts next to that of the agent inside."""
    inside = median_ms(taken[INSIDE])
    return Figure(GROUP, f"{name}, median", median_ms(taken[host]), "ms", inside, INSIDE, times * inside)


@contextlib.contextmanager
def _running(folder: Path, name: str) -> Iterator[Supervisor]:
    config = Config(state_dir=folder / name.replace(" ", "-"), agent=name, agents={name: AGENTS[name]}, drain_s=0.0)
    with Supervisor.start(config) as daemon:
        yield daemon


def _each(daemons: dict[str, Supervisor], names: tuple[str, ...], rounds: int, measure: Callable[[str], float]) -> By:
    """Measure these in turn, `rounds` times; returns seconds by name.

    Each alone: behind a run in a spare host, that host ends and the next one imports, beside whatever is measured next.
    """
    taken: By = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            _await_quiet(daemons.values())
            taken[name].append(measure(name))
    return taken


def _await_quiet(daemons: Iterable[Supervisor]) -> None:
    """Wait until all spares are ready, and no host of what was measured before is at work."""
    until = time.monotonic() + WAIT_S
    for daemon in daemons:
        while not all(_is_quiet(agent) for agent in daemon.hosts()):
            assert time.monotonic() < until, "all spares are ready in time"
            time.sleep(0.002)


def _is_quiet(agent: AgentStatus) -> bool:
    states = [host.state for host in agent.hosts]
    return states.count(HostState.SPARE) == agent.spares and not {*states} - {HostState.SPARE, HostState.KEPT}


def _events(session: SessionHandle, content: str) -> Iterator[tuple[str, str]]:
    """Send a message; yields the kind of each event of its run, and its text, to its end."""
    with session.subscribe(from_seq=session.status().last_seq, timeout=WAIT_S) as events:
        session.tell(NewMessage(content=content))
        for event in events:
            yield event.kind, event.data["text"] if event.kind == "text" else ""
            if event.kind == "run.ended":
                return


def _read(session: SessionHandle, content: str) -> None:
    """Have it say what the message asks for, and read that."""
    said = sum(kind == "text" for kind, _ in _events(session, content))
    assert said == int(content.split()[1]), "every text is read"


def _first_line(session: SessionHandle) -> float:
    started = time.perf_counter()
    for kind, _ in _events(session, "texts 1"):
        if kind == "text":
            taken = time.perf_counter() - started
    return taken


def _published(session: SessionHandle) -> float:
    """The median of the times between what the agent says and what is read, in seconds."""
    late = [time.monotonic() - float(text) for kind, text in _events(session, f"times {TIMED_TEXTS}") if kind == "text"]
    return statistics.median(late)


def _stop(session: SessionHandle) -> float:
    """The seconds between a Stop and its receipt."""
    for kind, _ in _events(session, "wait"):
        if kind == "text":
            started = time.perf_counter()
            session.tell(Stop(source="user.bench", reason="measured"))
    return time.perf_counter() - started


def _private_mb() -> float:
    """The private memory of the one host that runs below this process."""
    argv = Agent(run=RUN).argv
    (host,) = (child for child in psutil.Process().children(recursive=True) if tuple(child.cmdline()[:3]) == argv)
    return float(host.memory_full_info().uss) / 1e6
