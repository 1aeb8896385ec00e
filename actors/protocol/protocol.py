"""The protocol of a session: state and message in, records and effects out.

Theory of operation. Everything that a session decides is decided here, one message at a time, without a thread, a clock
or a file: so it can be read, tested and simulated as it is. `SessionActor` carries the steps out.

`SessionState` is data. Each decider holds it, and the deciders that it calls. `Protocol` builds them from the bottom
up, so a call goes down in this list, never up:

    Restoration    what becomes of what an earlier incarnation left
    ChildRuns      runs for a parent in another session
    Requests       a request from outside is decided once
    Stops, Intake  Stop; NewMessage, Resume, Withdraw
    PartReports, TreeReports  ends of executions, processes and strays; news of the session's trees
    Runs           start, fence, close, halt, settle; and what goes on when something has ended
    RunHosts       the hosts in which agents run: reserved, taken back, kept
    Calls, Trees, Turns, Saves, Deletion  calls; the session's trees; waiting messages; what agents save; the deletion
    Agents         which agent answers
    Processes      spawns and output
    SessionState   the log, acceptance, the barrier, the step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from actors.errors import CountermandError
from actors.gate.token import CancelToken, Notify
from actors.messages import (
    AnswerLeft,
    CallEnded,
    CallExpired,
    CallGivenUp,
    CallRequested,
    CallStarted,
    HandOffRequested,
    HandOverRequested,
    LateRefused,
    MediaGiven,
    ProcessReport,
    RunExpired,
    RunFinished,
    RunReport,
    Said,
    SaidTogether,
    SaveRequested,
    SpawnGivenUp,
    SpawnRequested,
    SteeringRequested,
    StrayEnded,
    StrayFound,
    ToolSaid,
)
from actors.model import Isolation, Provenance
from actors.ports import Clock, Ids, Settings
from actors.protocol.agents import Agents
from actors.protocol.calls import Calls
from actors.protocol.child_runs import ChildRuns
from actors.protocol.deletion import Deletion
from actors.protocol.intake import Intake
from actors.protocol.part_reports import PartReports
from actors.protocol.processes import Processes
from actors.protocol.requests import Requests
from actors.protocol.restoration import Restoration
from actors.protocol.run_hosts import RunHosts
from actors.protocol.runs import Runs
from actors.protocol.saves import Saves
from actors.protocol.state import Hosting, SessionState
from actors.protocol.stops import Stops
from actors.protocol.tree_reports import TreeReports
from actors.protocol.trees import Trees
from actors.protocol.turns import Turns
from actors.run_status import RunStatus


class Protocol:
    """One session's decisions. Not thread-safe: it lives in its session's mailbox.

    Args:
        session: the session's id.
        settings: limits and graces.
        clock: only its time of day is used.
        ids: makes the ids of runs and receipts.
        notify: where callbacks of cancel tokens run.
        isolation: of each tool, by name.
        unavailable: returns why an agent cannot run, by its name; None if it can.
        hosting: the agents that run in hosts; None: there are none.
        token_of: returns the token of an execution, by the id of its run or its call; see `Executor.token`.
    """

    def __init__(
        self,
        session: str,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        notify: Notify,
        isolation: Mapping[str, Isolation],
        unavailable: Callable[[str], CountermandError | None] = lambda _: None,
        hosting: Hosting | None = None,
        token_of: Callable[[str], CancelToken | None] = lambda _: None,
    ) -> None:
        state = SessionState(session, settings, clock, ids, notify, isolation, unavailable, hosting, token_of)
        processes = Processes(state)
        calls = Calls(state, processes)
        trees = Trees(state)
        agents = Agents(state)
        turns = Turns(state, agents)
        deletion = Deletion(state)
        hosts = RunHosts(state, trees)
        runs = Runs(state, calls, trees, turns, deletion, hosts)
        stops = Stops(state, trees, turns, runs)
        intake = Intake(state, turns, runs, agents)
        requests = Requests(state, intake, stops, runs, deletion)
        self.state = state
        self.child_runs = ChildRuns(state, turns, runs, intake)
        self.trees = trees
        self.deletion = deletion
        self.runs = runs
        self.tree_reports = TreeReports(state, processes, trees, runs)
        self.stops = stops
        self.requests = requests
        self.restoration = Restoration(state, trees, turns, runs, stops, requests)
        self._processes = processes
        self._calls = calls
        self._turns = turns
        self._saves = Saves(state)
        self._agents = agents
        self.hosts = hosts
        self._part_reports = PartReports(state, processes, calls, runs, hosts)

    def report(self, report: RunReport) -> None:
        """Decide on a report of a run, or of what it started."""
        match report:
            case Said():
                self.runs.said(report)
            case SaidTogether():
                for said in report.said:
                    self.runs.said(said)
            case ToolSaid():
                self.runs.tool_said(report)
            case CallRequested():
                self.runs.call_requested(report)
            case CallStarted():
                self._calls.started(report)
            case CallExpired():
                self._calls.expired(report)
            case AnswerLeft():
                self.runs.answer_left(report)
            case CallGivenUp():
                self._calls.given_up(report)
            case CallEnded():
                self._part_reports.call_ended(report)
            case LateRefused():
                self.state.refuse_late(report.address, report.counts)
            case SpawnRequested():
                self._processes.spawn_requested(report)
            case SpawnGivenUp():
                self._spawn_given_up(report)
            case HandOverRequested():
                self.trees.hand_over_requested(report)
            case ProcessReport():
                self._process_report(report)
            case StrayFound():
                self._part_reports.stray_found(report)
            case StrayEnded():
                self._part_reports.stray_ended(report)
            case SteeringRequested():
                self._turns.steering_requested(report)
            case SaveRequested():
                self._saves.requested(report)
            case MediaGiven():
                self.runs.media_given(report)
            case HandOffRequested():
                self._agents.hand_off_requested(report)
            case RunFinished():
                self._part_reports.run_finished(report)
            case RunExpired():
                self.runs.expired(report)
            case _:
                assert_never(report)

    def _spawn_given_up(self, report: SpawnGivenUp) -> None:
        owned = self.state.owned.get(report.process_id)
        if self._processes.given_up(report) and owned is not None:
            self.trees.end([owned], report.provenance, None)

    def _process_report(self, report: ProcessReport) -> None:
        owned = self.state.owned.get(report.process_id)
        if owned is not None:
            self.tree_reports.process(owned, report)
        else:
            self._part_reports.process(report)

    # ── From the supervisor ──────────────────────────────────────────────────────────────────────────

    def plugins_mended(self, isolation: Mapping[str, Isolation]) -> None:
        """An agent or a tool was loaded after all: what waited for it goes on. `isolation` is of each tool, by name."""
        self.state.isolation = isolation
        self.runs.start_next(self.state.clock.wall())

    def drain(self) -> None:
        """Refuse new work from now on. Runs may end by themselves; what waits stays for the next start."""
        self.state.draining = True
        self.trees.end_if_drained(self.state.clock.wall())

    def interrupt(self, provenance: Provenance) -> None:
        """End the active run and the session's trees, as a shutdown does; what waits stays for the next start."""
        self.state.interrupted = True
        self.trees.end_all(provenance, None)
        active = self.state.active
        if active is None:
            return
        at = self.state.clock.wall()
        self.runs.fence(provenance, active, at)
        self.runs.close(active, RunStatus.CANCELLING, provenance, at)
        self.runs.halt(active, provenance, provenance.mode)
        self._turns.requeue_steering(at)
        self.runs.settle_if_done(active, at)

    def abandon(self, provenance: Provenance) -> None:
        """Close every gate at once, without a record: the actor is failing, or the store takes no writes."""
        for record in self.state.records():
            self.runs.shut(record, provenance)
        for owned in self.state.owned.values():
            if owned.cell is not None:
                # A spawn for the session that has not begun does not begin.
                owned.cell.close()
