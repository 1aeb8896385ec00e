"""Runs whose agent is in a host and starts the command of the case itself, by `subprocess`; see `hosted`.

The tool `case` and its `spawn` are not there: the command is below the host, and ends with it. Triggers are those of
`single`, with these differences, and two more:

    deadline    the run's
    warden      the run ends with its host
    idle        the host is kept after the run's end, with all that it has started; a Stop, which finds no run
    kept        the same, and the session's next run, which is in that host and starts nothing; it is stopped
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from actors import Receipt, Stop
from actors.model import How
from actors.requests import Stopped
from supervisor import SessionHandle, Supervisor
from supervisor.agent import Agent
from tests.gauntlet import census
from tests.gauntlet.cases import Case, Needs
from tests.gauntlet.judge import rows_of, stale_events
from tests.gauntlet.plugins import SILENT_S, Names
from tests.gauntlet.single import Outcome, Singles, Stage, Trigger, is_end, until, warden_of

HERE = Path(__file__).parent
MARK = "CM_GAUNTLET_HOST"
SPARES = 2
DEADLINE_S = 5.0
"""From the beginning of a run to its deadline: the host may have to start, and the case is to be up."""
TRIGGERS: Final = ("stop", "immediate", "supersede", "deadline", "end", "warden", "idle", "kept", "daemon")
KILLS_KEEPER: Final = "kills-warden"


def agent(prefix: str, keep: Literal["run", "session"] = "run") -> Agent:
    """How the hosts are started. All carry the prefix of the tokens, so that spares are found as well."""
    return Agent(
        run="hosted:agent",
        path=[str(HERE)],
        env={MARK: f"{prefix}hosts", "PYTHONDONTWRITEBYTECODE": "1"},
        spares=SPARES,
        keep=keep,
    )


def makes_sense(case: Case, trigger: str) -> bool:
    """Whether a case can be ended so: one that ends its keeper at once ends its host, and so its run."""
    return case.name != KILLS_KEEPER or trigger == "warden"


class HostSingles(Singles):
    """Runs cases by hosts, from many threads at once.

    Args:
        supervisor: each of its hosts has one run.
        others: those of some triggers: for `deadline` one whose runs have the deadline DEADLINE_S; for `idle` and
            `kept` one whose hosts are kept.
        folder, names, needs: as in `Singles`.
    """

    by_host = True

    def __init__(
        self, supervisor: Supervisor, others: Mapping[str, Supervisor], folder: Path, names: Names, needs: Needs
    ) -> None:
        super().__init__(supervisor, folder, names, needs)
        self._others = others

    def _more_triggers(self) -> dict[str, Trigger]:
        return {"idle": self._idle, "kept": self._kept}

    def _session(self, trigger: str) -> SessionHandle:
        if trigger not in self._others:
            return super()._session(trigger)
        # A session of its own for each: what a kept host leaves is not another case's.
        return self._others[trigger].session(f"s{self._names.next()}")

    def _deadline(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        began = time.time()  # noqa: TID251  # it is compared with the times of events
        self._begin(stage, "hold")
        stage.up(DEADLINE_S)
        receipt = self.receipt(stage.session, stage.run_id)
        run = stage.session.run(stage.run_id)
        due = (run.started_at or began) + DEADLINE_S
        if run.status != "expired" or run.ended_at is None:
            outcome.wrong.append(f"it was not ended by the deadline: {run}"[:600])
        elif receipt is not None:
            outcome.fence_ms = max(0.0, run.ended_at - due) * 1000
            outcome.dead_ms = max(0.0, receipt.ended_at - due) * 1000
        return receipt

    def _end(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        receipt, returned = self._leave(stage, outcome)
        run = stage.session.run(stage.run_id)
        if returned is not None:
            outcome.dead_ms = (time.time() - returned) * 1000  # noqa: TID251  # as the agent has noted it
            if run.ended_at is not None:
                outcome.fence_ms = max(0.0, run.ended_at - returned) * 1000
        return receipt

    def _leave(self, stage: Stage, outcome: Outcome) -> tuple[Receipt | None, float | None]:
        """Have a run started that ends by itself when the case is up; returns its receipt, and when it returned."""
        self._begin(stage, "leave")
        self._wait_up(stage, outcome)
        (stage.folder / "go").touch()
        receipt = self.receipt(stage.session, stage.run_id)
        run = stage.session.run(stage.run_id)
        if run.status != "completed":
            outcome.wrong.append(f"it did not end by itself: {run}"[:600])
            return receipt, None
        return receipt, float((stage.folder / "returned").read_text())

    def _warden(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._begin(stage, "hold")
        self._wait_up(stage, outcome)
        warden = warden_of(stage.living())
        began = time.monotonic()
        if warden is not None:
            census.signal_exactly(warden, signal.SIGKILL)
        elif stage.case.name != KILLS_KEEPER:
            outcome.wrong.append("it has no warden above it")
        receipt = self.receipt(stage.session, stage.run_id)
        self._measure(outcome, began, None)
        run = stage.session.run(stage.run_id)
        if run.status != "failed":
            outcome.wrong.append(f"its host's warden was killed, and the run has not failed: {run}"[:600])
        return receipt

    def _idle(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._keep(stage, outcome)
        began = time.monotonic()
        stopped = self._ask_to_stop(stage)
        answered = time.monotonic()
        receipt = self.receipt(stage.session, stopped.receipt_id)
        self._measure(outcome, began, answered)
        if stopped.run_id is not None:
            outcome.wrong.append(f"the Stop was answered with {stopped}")
        self._look_for_late(stage, outcome, stage.run_id)
        return receipt

    def _kept(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._keep(stage, outcome)
        before, first = census.read(stage.seen).hosts, stage.run_id
        self._begin(stage, "stay")
        if not until((stage.folder / "stays").exists, SILENT_S):
            outcome.wrong.append("the next run did not begin")
        began = time.monotonic()
        stopped = self._ask_to_stop(stage)
        answered = time.monotonic()
        receipt = self.receipt(stage.session, stage.run_id)
        self._measure(outcome, began, answered)
        if (stopped.outcome, stopped.run_id) != ("stopped", stage.run_id):
            outcome.wrong.append(f"the Stop was answered with {stopped}")
        if census.read(stage.seen).hosts != before:
            outcome.wrong.append("the next run was not in the host that was kept")
        self._look_for_late(stage, outcome, first)
        return receipt

    def _keep(self, stage: Stage, outcome: Outcome) -> None:
        """Have a run leave its case in a host that is kept: its receipt says so, and nobody of it was ended."""
        receipt, _ = self._leave(stage, outcome)
        if receipt is None or not any(row.how is How.HANDED_OVER for row in rows_of(receipt.rows)):
            outcome.wrong.append(f"its host was not kept: {receipt}"[:600])
        hosts = {pid for pid, _ in census.read(stage.seen).hosts}
        if not hosts <= stage.living().keys():
            outcome.wrong.append("its host was kept, and does not live")

    def _look_for_late(self, stage: Stage, outcome: Outcome, run_id: str) -> None:
        """A run that has ended by itself has said nothing after that, though its host went on."""
        events = self.log(stage)
        over = next((event.seq for event in events if event.run_id == run_id and is_end(event)), None)
        outcome.stale += stale_events(events, over, run_id)

    @staticmethod
    def _ask_to_stop(stage: Stage) -> Stopped:
        stop = Stop(source="user.gauntlet", reason=f"the case {stage.case.name}")
        return stage.session.ask(stop, timeout=SILENT_S)
