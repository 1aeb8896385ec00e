"""One run of one case in a supervisor of this process, ended by one trigger, and what came of it.

    stop        a Stop that asks first
    immediate   a Stop that does not
    supersede   a new message of a person; its run looks for who is left of the old one
    deadline    the call's deadline, in a run that goes on
    end         the end of the run, which leaves what its call has started
    warden      SIGKILL to the warden of the tree

What is measured, in milliseconds: `fence`, from the asking to the answer (deadline, end: until the end of the call or
run is on record; warden: until the tree's end is), and `dead`, until the receipt is in the asker's hands (deadline,
warden: until the tree's end is on record).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pykka import Timeout

from actors import NewMessage, Receipt, Stop
from actors.errors import ReceiptPending
from actors.model import Event
from actors.run_status import TERMINAL
from supervisor import SessionHandle, Supervisor
from tests.gauntlet import census
from tests.gauntlet.cases import Case, Needs
from tests.gauntlet.judge import judge, stale_events, stale_output
from tests.gauntlet.plugins import DEADLINE_S, GRACE_S, HEAVY_DEADLINE_S, KILL_S, POLL_S, SILENT_S, Names, board

Trigger = Callable[["Stage", "Outcome"], Receipt | None]

LIMIT_S = GRACE_S + KILL_S + 20.0
WARDEN = "cm-warden"
RUNS_A_SESSION = 40
CLIMB_MAX = 4096


@dataclass
class Outcome:
    """What came of one run."""

    case: str
    trigger: str
    survivors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    unproven: bool = False
    fence_ms: float | None = None
    dead_ms: float | None = None
    layer: str = ""

    @property
    def bad(self) -> bool:
        """True if it may not be so."""
        return bool(self.survivors or self.wrong or self.stale)


@dataclass
class Stage:
    """One run while it goes on: its token, where its processes write themselves down, and its session."""

    case: Case
    token: str
    folder: Path
    session: SessionHandle
    from_seq: int = 0
    run_id: str = ""
    layer: str = ""

    @property
    def seen(self) -> Path:
        """The file in which its processes write themselves down."""
        return self.folder / "seen"

    def order(self, needs: Needs, returns: str = "at exit") -> dict[str, Any]:
        """Return what the tool is told; it returns ``at exit``, when all is ``up``, or ``never``."""
        return {
            "argv": list(self.case.argv()),
            "env": self.case.environment(self.token, self.seen, needs),
            "folder": str(self.folder),
            "name": self.case.name,
            "token": self.token,
            "seen": str(self.seen),
            "ready": self.case.ready,
            "returns": returns,
        }

    def up(self, within_s: float = SILENT_S) -> bool:
        """Wait until its processes are up, and see on the way what holds them: they may be gone in a moment."""
        return until(self._is_up, within_s)

    def _is_up(self) -> bool:
        lines = census.read(self.seen).lines
        # Looked at after the lines: whoever makes it complete is there to be looked at.
        self.layer = self.layer or census.layer_of(self.seen)
        return lines >= self.case.ready

    def living(self) -> dict[int, census.Life]:
        """Who of it lives. A beat without a body is one, too."""
        found = census.living(self.token, self.seen)
        if not found and self.case.beats and census.beats(self.seen):
            found = census.living(self.token, self.seen) or {0: census.Life(0, 0, os.getuid(), "somebody", "?", "")}
        return found

    def clean(self) -> None:
        """End who is left of it, and remove what it made."""
        groups = census.read(self.seen).groups
        census.end_all(self.token, [self.seen], beating=self.case.beats)
        for group in reversed(groups):
            with suppress(OSError):
                os.rmdir(group)
        shutil.rmtree(self.folder, ignore_errors=True)
        census.forget(self.seen)
        board.forget(self.token)


def until(condition: Callable[[], Any], within_s: float = LIMIT_S) -> bool:
    """Poll a condition; False if it did not come true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def warden_of(lives: dict[int, census.Life]) -> census.Life | None:
    """The warden above some processes."""
    for pid in lives:
        at = pid
        for _ in range(CLIMB_MAX):
            at = _parent(at)
            life = census.look(at) if at > 1 else None
            if life is None:
                break
            if life.name == WARDEN:
                return life
    return None


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


class Singles:
    """Runs cases in one supervisor, from many threads at once: a tool starts the command, by `spawn`.

    Args:
        supervisor: with the configuration of `plugins.config`.
        folder: where each run gets a folder of its own.
        names: gives tokens.
        needs: what the machine has.
    """

    by_host = False
    """Whether the agent runs in a host and starts the command itself: see `by_host`."""

    def __init__(self, supervisor: Supervisor, folder: Path, names: Names, needs: Needs) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._names = names
        self._needs = needs
        self._local = threading.local()
        self._triggers: dict[str, Trigger] = {
            "stop": lambda stage, outcome: self._stop(stage, outcome, "graceful"),
            "immediate": lambda stage, outcome: self._stop(stage, outcome, "immediate"),
            "supersede": self._supersede,
            "deadline": self._deadline,
            "end": self._end,
            "warden": self._warden,
            **self._more_triggers(),
        }

    def run(self, case: Case, trigger: str) -> Outcome:
        """Run a case once. What goes wrong in here is an outcome, too; nothing of the run is left."""
        outcome = Outcome(case.name, trigger)
        token = self._names.next()
        stage = Stage(case, token, self._folder / token, self._session(trigger))
        stage.folder.mkdir()
        try:
            stage.from_seq = stage.session.status(timeout=SILENT_S).last_seq
            receipt = self._triggers[trigger](stage, outcome)
            self._judge(stage, outcome, receipt)
        except Exception as error:  # whatever it is, it is this run's and is told
            outcome.wrong.append(f"the run could not be brought to its end: {type(error).__name__}: {error}")
            self._local.session = None
        finally:
            stage.clean()
        return outcome

    def _more_triggers(self) -> dict[str, Trigger]:
        return {}

    def _session(self, trigger: str) -> SessionHandle:  # of others it depends on that
        """A session of this thread's own, which is not very long yet."""
        local = self._local
        if getattr(local, "session", None) is None or local.left == 0:
            local.session, local.left = self._supervisor.session(f"s{self._names.next()}"), RUNS_A_SESSION
        local.left -= 1
        session: SessionHandle = local.session
        return session

    # ── The triggers ──────────────────────────────────────────────────────────────────────────────

    def _begin(self, stage: Stage, do: str, *, returns: str = "at exit", tool: str = "case") -> None:
        order = {"do": do, "token": stage.token, "case": stage.order(self._needs, returns), "tool": tool}
        accepted = stage.session.ask(NewMessage(content=json.dumps(order)), timeout=SILENT_S)
        assert accepted.run_id is not None, "an idle session starts a run"
        stage.run_id = accepted.run_id

    def _hold(self, stage: Stage, outcome: Outcome) -> None:
        """Start a run that goes on until it is ended, and wait until its case is up."""
        self._begin(stage, "hold")
        self._wait_up(stage, outcome)

    def _wait_up(self, stage: Stage, outcome: Outcome) -> None:
        if not stage.up():
            outcome.wrong.append(f"its processes were not up within {SILENT_S:g} s: {census.read(stage.seen)}"[:600])

    def _stop(self, stage: Stage, outcome: Outcome, mode: str) -> Receipt | None:
        self._hold(stage, outcome)
        began = time.monotonic()
        stop = Stop(source="user.gauntlet", reason=f"the case {stage.case.name}", mode=mode)
        stopped = stage.session.ask(stop, timeout=SILENT_S)
        answered = time.monotonic()
        receipt = self.receipt(stage.session, stage.run_id)
        self._measure(outcome, began, answered)
        if (stopped.outcome, stopped.run_id) != ("stopped", stage.run_id):
            outcome.wrong.append(f"the Stop was answered with {stopped}")
        self._look_for_effects(stage, outcome, answered)
        return receipt

    def _supersede(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._hold(stage, outcome)
        order = {"do": "look", "token": stage.token, "seen": str(stage.seen)}
        began = time.monotonic()
        accepted = stage.session.ask(NewMessage(content=json.dumps(order), policy="interrupt"), timeout=SILENT_S)
        answered = time.monotonic()
        receipt = self.receipt(stage.session, stage.run_id)
        self._measure(outcome, began, answered)
        if accepted.superseded_run_id != stage.run_id:
            outcome.wrong.append(f"the new message was answered with {accepted}")
        self.receipt(stage.session, accepted.run_id)
        left = board.looked.get(stage.token)
        if left is None:
            outcome.wrong.append("the run that superseded it has not looked")
        elif left and (receipt is None or receipt.complete):
            outcome.stale.append(f"a call of the next run began, and {left} lived")
        self._look_for_effects(stage, outcome, answered)
        return receipt

    def _deadline(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        deadline_s = HEAVY_DEADLINE_S if stage.case.heavy else DEADLINE_S
        # Its call would not return by itself, also where the command has exited and left the rest.
        self._begin(stage, "wait", returns="never", tool="heavy" if stage.case.heavy else "timed")
        stage.up(deadline_s)
        started = self._event(stage, "tool.started")
        ended = self._event(stage, "tool.ended")
        if started is None or ended is None:
            outcome.wrong.append("its call did not begin and end")
            return self.receipt(stage.session, stage.run_id)
        due = started.at + deadline_s
        outcome.fence_ms = max(0.0, ended.at - due) * 1000
        if ended.data["outcome"] != "interrupted":
            outcome.wrong.append(f"its call was not ended by the deadline: {ended.data}"[:600])
        if any(event.kind == "process.started" for event in self.log(stage)):
            # On a busy machine the deadline may come before the spawn, and then there is no tree.
            self._see_dead(stage, outcome, due)
        outcome.stale += stale_output(self.log(stage), ended.data["call_id"])
        board.released.add(stage.token)
        return self.receipt(stage.session, stage.run_id)

    def _end(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._begin(stage, "leave", returns="up")
        stage.up()
        receipt = self.receipt(stage.session, stage.run_id)
        returned = board.returned.get(stage.token)
        over = next((event for event in self.log(stage) if is_end(event)), None)
        if returned is not None:
            outcome.dead_ms = (time.time() - returned) * 1000  # noqa: TID251  # as the agent has noted it
            if over is not None:
                outcome.fence_ms = max(0.0, over.at - returned) * 1000
                outcome.stale += stale_events(self.log(stage), over.seq, stage.run_id)
        return receipt

    def _warden(self, stage: Stage, outcome: Outcome) -> Receipt | None:
        self._begin(stage, "wait")
        self._wait_up(stage, outcome)
        warden = warden_of(stage.living())
        at = time.time()  # noqa: TID251  # it is compared with the time of an event
        if warden is not None:
            census.signal_exactly(warden, signal.SIGKILL)
        elif stage.case.name != "kills-warden":
            outcome.wrong.append("it has no warden above it")
        outcome.fence_ms = self._see_dead(stage, outcome, at)
        board.released.add(stage.token)
        return self.receipt(stage.session, stage.run_id)

    def _see_dead(self, stage: Stage, outcome: Outcome, since: float) -> float | None:
        """Wait for the product's word that nobody is left, while the run goes on, and look who lives then."""
        ended = self._event(stage, "process.ended")
        if ended is None:
            kinds = ", ".join(f"{event.kind} at {event.at - since:+.1f} s" for event in self.log(stage)[-8:])
            outcome.wrong.append(f"the end of its tree is not on record; the last of its events: {kinds}")
            return None
        outcome.dead_ms = max(0.0, ended.at - since) * 1000
        if ended.data["proven"]:
            outcome.survivors += [f"{life.name} (pid {life.pid})" for life in stage.living().values()]
        return outcome.dead_ms

    # ── What came of it ───────────────────────────────────────────────────────────────────────────

    def _judge(self, stage: Stage, outcome: Outcome, receipt: Receipt | None) -> None:
        living = stage.living()
        now = time.time()  # noqa: TID251  # the times in a receipt are of this clock
        seen = census.read(stage.seen)
        verdict = judge(receipt, living, seen, outcome.trigger, uid=os.geteuid(), now=now, by_host=self.by_host)
        outcome.survivors += verdict.survivors
        outcome.wrong += verdict.wrong
        outcome.unproven = verdict.unproven
        outcome.layer = board.layers.get(stage.token) or stage.layer
        if receipt is not None:
            fence_seq = stage.session.run(stage.run_id).fence_seq
            outcome.stale += stale_events(self.log(stage), fence_seq, stage.run_id)

    def _look_for_effects(self, stage: Stage, outcome: Outcome, answered: float) -> None:
        """The tool that looks at its token before each act must have seen it cancelled from the answer on."""
        last = board.pulses.get(stage.token)
        if last is not None and last > answered:
            outcome.stale.append(f"a token said go on {(last - answered) * 1000:.1f} ms after the answer")

    @staticmethod
    def _measure(outcome: Outcome, began: float, answered: float | None) -> None:
        outcome.dead_ms = (time.monotonic() - began) * 1000
        if answered is not None:
            outcome.fence_ms = (answered - began) * 1000

    @staticmethod
    def receipt(session: SessionHandle, run_id: str | None) -> Receipt | None:
        try:
            return session.receipt(run_id, timeout=LIMIT_S)
        except (ReceiptPending, Timeout):
            return None

    @staticmethod
    def _event(stage: Stage, kind: str) -> Event | None:
        """The first event of a kind in this run; waits for it."""
        with stage.session.subscribe(stage.from_seq, timeout=SILENT_S) as events:
            for event in events:
                if event.run_id == stage.run_id and event.kind == kind:
                    return event
                if event.run_id == stage.run_id and event.kind == "run.ended":
                    return None
        return None

    @staticmethod
    def log(stage: Stage) -> list[Event]:
        """The events of this run and of what came after it."""
        last = stage.session.status(timeout=SILENT_S).last_seq
        events: list[Event] = []
        with stage.session.subscribe(stage.from_seq, timeout=LIMIT_S) as subscription:
            for event in subscription:
                events.append(event)
                if event.seq >= last:
                    break
        return events


def is_end(event: Event) -> bool:
    """True of the event with which a run has its last status."""
    return event.kind == "run.status" and event.data["status"] in TERMINAL
