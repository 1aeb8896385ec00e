"""The daemon's health: alive, ready, its version, and its checks of itself."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from litestar import Response, Router, get
from litestar.openapi.datastructures import ResponseSpec

from actors.errors import AgentUnavailable, CountermandError
from actors.model import RunInfo, ServicePhase
from actors.text import one_line, storable
from supervisor.containment.layers import Layers
from supervisor.containment.spool import use_of
from supervisor.http.agents import agent_entries
from supervisor.http.gauges import leaked_threads
from supervisor.http.routing import TheService, refusals
from supervisor.states import AgentPlace, AgentState, StoreState
from supervisor.store.health import DISK_LEAST_BYTES, StoreHealth
from supervisor.supervisor import Supervisor
from supervisor.wire import AgentEntry, Diagnosis, Finding, Health, Info, Readiness

PROBE_S: Final = 1.0
STUCK_SLACK_S: Final = 5.0
RESTART: Final = "restart the daemon: what was accepted is kept"
CGROUPS: Final = (
    "for cgroups, which end a tree at one stroke, run it as a systemd unit with Delegate=yes (scripts/install), "
    "on a machine with cgroup v2; without them the named layers hold"
)
RELOAD: Final = "when it is mended: countermand agents reload; to see what it does: countermand agents try {name} TEXT"
HANGS: Final = "look at the disk and at who has the store's file open"
NAMED_MAX: Final = 5


@get("/v1/health", summary="Is it alive?", responses=refusals())
async def health() -> Health:
    """Answer; that is the whole check."""
    return Health("ok")


@get(
    "/v1/ready",
    summary="Does it accept requests?",
    responses={
        **refusals(),
        503: ResponseSpec(data_container=Readiness, description="Not now.", generate_examples=False),
    },
)
async def ready(service: TheService) -> Response[Readiness]:
    """Report whether the supervisor and the store's thread answer, and whether new work is accepted; if not, why."""
    found = await service.read(readiness, service.supervisor)
    return Response(found, status_code=200 if found.ready else 503)


@get("/v1/info", summary="What serves here?", responses=refusals())
async def info(service: TheService) -> Info:
    """Report the version and the state directory."""
    supervisor = service.supervisor
    state_dir = storable(str(supervisor.state_dir))
    return Info(own_version(), os.getpid(), service.uptime_s, service.started_at, state_dir, supervisor.config.agent)


@get("/v1/doctor", summary="What is wrong, and what helps?", responses=refusals())
async def doctor(service: TheService) -> Diagnosis:
    """Check the store, the disk, permissions, stops that do not end, and parts that still run."""
    findings = await service.read(lambda: list(diagnose(service.supervisor)))
    return Diagnosis(all(one.ok for one in findings), findings)


def own_version() -> str:
    """Return the installed version."""
    try:
        return version("countermand")
    except PackageNotFoundError:
        return "unknown"


def readiness(supervisor: Supervisor) -> Readiness:
    """Ask the supervisor's actor and the store's thread; wait for each at most `PROBE_S` seconds."""
    pong = supervisor.ping(PROBE_S)
    store = supervisor.store_responds(PROBE_S)
    # After the probe, so that it includes what the probe waited for.
    health = supervisor.store_health()
    phase = pong.phase if pong is not None else None
    agents = agent_entries(supervisor)
    reason, remedy = _why_not(phase, health, supervisor.unavailable(), store=store)
    if not reason:
        reason, remedy = _why_broken(agents)
    return Readiness(
        ready=not reason,
        phase=phase,
        supervisor=pong is not None,
        store=store,
        journal=health.journal.well,
        sessions=pong.sessions if pong is not None else 0,
        store_state=health.state,
        reason=reason,
        remedy=remedy,
        agents={one.name: one.state for one in agents},
    )


def _why_broken(agents: list[AgentEntry]) -> tuple[str, str]:
    """Return why the runs of the agent that runs messages fail, if no host of it can be started, and what helps."""
    for one in agents:
        if one.default and one.state is AgentState.BROKEN:
            return f"the agent {one.name!r}: {one_line(one.failure)}", RELOAD.format(name=one.name)
    return "", ""


def _why_not(
    phase: ServicePhase | None, health: StoreHealth, unavailable: AgentUnavailable | None, *, store: bool
) -> tuple[str, str]:
    """Return why requests are not accepted, and what helps; both are empty if they are."""
    if phase is None:
        return "the supervisor does not answer", RESTART
    if not health.writable:
        return f"the store: {health.words}", health.remedy
    if not store:
        return f"the store's thread is busy for longer than {PROBE_S:g} s: {health.words}", health.remedy or HANGS
    if phase is not ServicePhase.SERVING:
        return f"the daemon is {phase}: it is being shut down", "send it again after the restart"
    if unavailable is not None:
        return f"{unavailable.message}: {unavailable.got}", unavailable.remedy
    return "", ""


def diagnose(supervisor: Supervisor) -> Iterator[Finding]:
    """Yield the findings. It reads the store and the disk: not for the loop's thread."""
    found = readiness(supervisor)
    yield Finding(
        "supervisor",
        found.supervisor,
        f"{found.phase}, sessions in memory: {found.sessions}" if found.supervisor else "it does not answer",
        "" if found.supervisor else RESTART,
    )
    yield from _store(supervisor.store_health(), answers=found.store)
    yield _plugins(supervisor)
    yield from _agents(agent_entries(supervisor))
    yield from _disk(supervisor.state_dir)
    yield _layers(supervisor.layers())
    yield _spool(supervisor)
    try:
        yield from _runs(supervisor)
    except CountermandError as error:
        yield Finding("runs", ok=False, found=str(error), remedy=error.remedy or "look at the store")
    late = sum(supervisor.refused().values())
    yield Finding("dead letters", ok=True, found=f"{late} effects of closed runs were refused since the start")


def _store(health: StoreHealth, *, answers: bool) -> Iterator[Finding]:
    now = time.time()  # noqa: TID251  # as the times in the store
    well = answers and health.state in (StoreState.OK, StoreState.SLOW)
    words = health.words if answers else f"its thread does not answer: {health.words}"
    if health.error is not None and health.failed_at is not None:
        ago_s = max(0.0, now - health.failed_at)
        words += f"; last error {ago_s:.0f} s ago: {health.error}; opened again {health.reopened} times since the start"
    yield Finding("store", well, words, "" if well else f"{health.remedy or HANGS}; stops work meanwhile")
    shown = "; ".join(health.left_out[-NAMED_MAX:])
    left = len(health.left_out)
    yield Finding(
        "store contents",
        not left,
        f"{health.unfit} batches put aside, {left} things that could not be stored or read"
        + (f": {shown}" * bool(left)),
        "their sessions lack what is named: see the log for it, and the table batches_unfit" if left else "",
    )
    journal = health.journal
    yield Finding(
        "stop journal",
        journal.well,
        f"{journal.kept} stops kept that the store does not have, {journal.unwritten} slots to be written, "
        f"{journal.slots_free} of {journal.slots} free"
        + (f"; {journal.torn} were torn at the start" if journal.torn else "")
        + (f"; {journal.refused} had no room" if journal.refused else "")
        + (f"; it cannot be written: {journal.error}" if journal.error else "")
        + (f"; it hangs: a write of it has taken {journal.writing_s:.0f} s so far" if journal.hangs else ""),
        journal.remedy,
    )


def _plugins(supervisor: Supervisor) -> Finding:
    unloaded = supervisor.unloaded()
    if not unloaded:
        return Finding("plug-ins", ok=True, found="every agent and tool of the configuration was loaded")
    found = "; ".join(f"{name}: {why}" for name, why in unloaded.items())
    remedy = f"mend it, then have the configuration read again: kill -HUP {os.getpid()}, or systemctl reload"
    return Finding("plug-ins", ok=False, found=f"could not be loaded: {found}", remedy=remedy)


def _agents(entries: list[AgentEntry]) -> Iterator[Finding]:
    """Report the agents in hosts, each broken one by itself; those of the daemon's own process are plug-ins."""
    hosted = [one for one in entries if one.where is AgentPlace.HOST]
    broken = [one for one in hosted if one.state is AgentState.BROKEN]
    for one in broken:
        yield Finding("agents", ok=False, found=f"{one.name}: {_agent(one)}", remedy=RELOAD.format(name=one.name))
    if not broken:
        found = "; ".join(f"{one.name}: {_agent(one)}" for one in hosted)
        yield Finding("agents", ok=True, found=found or "none runs in hosts")


def _agent(entry: AgentEntry) -> str:
    if entry.state is AgentState.BROKEN:
        return f"no host of it can be started: {one_line(entry.failure)}"
    counts = Counter(host.state for host in entry.hosts)
    return f"{entry.state}" + "".join(f", {count} {state}" for state, count in sorted(counts.items()))


def _disk(state_dir: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(state_dir).free
    roomy = free >= DISK_LEAST_BYTES
    yield Finding(
        "disk",
        roomy,
        f"{free // 1_048_576} MiB free in the state directory",
        "" if roomy else "free space: a full disk refuses messages, and stops are only kept in the journal",
    )
    seen = state_dir.stat()
    private = not seen.st_mode & 0o077 and seen.st_uid == os.geteuid()
    yield Finding(
        "permissions",
        private,
        f"the state directory has mode {stat.S_IMODE(seen.st_mode):04o} and belongs to uid {seen.st_uid}",
        "" if private else f"chmod 700 it and give it to uid {os.geteuid()}: it holds every thread, and the socket",
    )


def _layers(layers: Layers) -> Finding:
    """Report the layers of containment. Missing cgroups are not a fault, since the other layers hold."""
    names = ", ".join(layers.names) or "none"
    if layers.cgroup is not None:
        how = "delegated" if layers.delegated else "writable, and not delegated: its manager may take it away"
        return Finding("containment", ok=True, found=f"{names}; cgroups below {layers.cgroup}, {how}")
    found = f"{names}; process trees have no cgroups: {layers.why_not}"
    return Finding("containment", ok=bool(layers.names), found=found, remedy=CGROUPS)


def _spool(supervisor: Supervisor) -> Finding:
    most = supervisor.config.spool_total_bytes
    try:
        files, size = use_of(supervisor.state_dir / "spool")
    except OSError as error:
        remedy = "mend its permissions: long outputs are kept to their tail only"
        return Finding("spool", ok=False, found=f"it cannot be read: {error.strerror}", remedy=remedy)
    mib = 1_048_576
    found = f"{files} file{'s' * (files != 1)} of long outputs, {size / mib:.1f} of at most {most / mib:.0f} MiB"
    return Finding("spool", ok=True, found=found)


def _runs(supervisor: Supervisor) -> Iterator[Finding]:
    config = supervisor.config
    now = time.time()  # noqa: TID251  # as the times in the store
    runs = supervisor.store.open_runs()
    ends_within = config.grace_s + config.kill_s + STUCK_SLACK_S
    stuck = [run for run in runs if _ending_since(run, now) > ends_within]
    yield _named(
        "stops", "that have not ended in time", [run.run_id for run in stuck], "kill them: countermand kill RUN"
    )
    late = [run.run_id for run in runs if run.late]
    yield _named(
        "abandoned", "with a part that could not be ended", late, "see the receipt for what it is: countermand why RUN"
    )
    yield _named("threads", "that ignore their stop", leaked_threads(supervisor), "only a restart ends a thread")
    yield _named(
        "strays",
        "of ended runs, started without spawn, that still run",
        supervisor.left(overdue=True),
        "end a process by its pid, see the receipt: countermand why RUN; only a restart ends a thread or a task",
    )
    ill = [row.session for row in supervisor.store.every_session() if row.quarantined]
    yield _named("quarantine", "sessions that failed too often", ill, "see the log for why; a restart tries them again")


def _ending_since(run: RunInfo, now: float) -> float:
    if run.settled or run.provenance is None:
        return 0.0
    return now - (run.ended_at or run.provenance.initiated_at)


def _named(check: str, what: str, names: list[str], remedy: str) -> Finding:
    shown = ", ".join(names[:NAMED_MAX]) + ("…" if len(names) > NAMED_MAX else "")
    return Finding(check, not names, f"{len(names)} {what}" + (f": {shown}" if names else ""), remedy if names else "")


HEALTH = Router("/", route_handlers=[health, ready, info, doctor], tags=["daemon"])
