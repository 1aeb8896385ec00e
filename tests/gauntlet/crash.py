"""Many runs at once in a daemon that is killed, and what the next daemon on its directory says of them.

Run as a program (``python -m tests.gauntlet.crash``) it is that daemon: it reads one line of orders, starts a
supervisor and the runs, prints their ids, and stays until it is killed, or until whoever started it is gone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykka import Timeout

from actors import NewMessage
from actors.model import Event
from supervisor import Supervisor
from supervisor.agent import RUNTIME
from tests.gauntlet import census
from tests.gauntlet.by_host import agent
from tests.gauntlet.cases import Case, Needs
from tests.gauntlet.judge import judge, stale_events
from tests.gauntlet.plugins import SILENT_S, Names, config
from tests.gauntlet.single import Outcome, Singles, Stage, until

ROOT = Path(__file__).resolve().parent.parent.parent
WATCH_S = 0.01
LAST_LOOK_S = 1.0
KEEPERS = "cm-"
KEEPERS_S = 10.0


class Crashes:
    """Kills daemons. One wave at a time, from any thread."""

    def __init__(self, folder: Path, names: Names, needs: Needs, layer: str, *, by_host: bool = False) -> None:
        self._by_host = by_host
        self._folder = folder
        self._names = names
        self._needs = needs
        self._layer = layer

    def run(self, cases: Sequence[Case]) -> list[Outcome]:
        """Run cases at once in one daemon, kill it, and hold what its successor says against what is left."""
        state_dir = self._folder / self._names.next()
        outcomes = {}
        stages: list[Stage] = []
        daemon = Daemon(state_dir, self._layer, self._names.prefix if self._by_host else "")
        try:
            outcomes = self._wave(cases, state_dir, daemon, stages)
        except Exception as error:  # whatever it is, it is this wave's and is told
            failure = f"the wave could not be brought to its end: {type(error).__name__}: {error}"
            outcomes = {stage.token: Outcome(stage.case.name, "daemon", wrong=[failure]) for stage in stages}
        finally:
            daemon.kill()
            for stage in stages:
                stage.clean()
            # Nobody of a case is left to be kept by now.
            outlived = daemon.end_keepers()
            shutil.rmtree(state_dir, ignore_errors=True)
        if outlived:
            said = ", ".join(f"{life.name} (pid {life.pid}, state {life.state})" for life in outlived)
            # Whose warden it was cannot be told any more; of those that were not proven gone it was one.
            unproven = [outcome for outcome in outcomes.values() if outcome.unproven or outcome.survivors]
            for outcome in unproven or outcomes.values():
                outcome.wrong.append(f"in its daemon's wave, these outlived the daemon and its successor: {said}"[:600])
        return list(outcomes.values())

    def _wave(self, cases: Sequence[Case], state_dir: Path, daemon: Daemon, stages: list[Stage]) -> dict[str, Outcome]:
        # The successor starts with nothing of this process, so sessions are looked up by name then.
        names = [self._names.next() for _ in cases]
        for case, token in zip(cases, names, strict=True):
            folder = self._folder / token
            folder.mkdir()
            stages.append(Stage(case, token, folder, None))  # type: ignore[arg-type]  # there is none yet
        outcomes = {stage.token: Outcome(stage.case.name, "daemon") for stage in stages}
        runs = daemon.start([(stage.token, stage.order(self._needs)) for stage in stages])
        for stage in stages:
            stage.run_id = runs[stage.token]
            if not stage.up():
                outcomes[stage.token].wrong.append(f"its processes were not up: {census.read(stage.seen)}"[:600])
            outcomes[stage.token].layer = stage.layer
        began, at = time.monotonic(), time.time()  # noqa: TID251  # it is compared with the times of events
        daemon.kill()
        watch = Watch(self._names, stages, began)
        watch.start()
        try:
            self._recover(state_dir, stages, outcomes, at)
        finally:
            watch.end()
        for stage in stages:
            outcomes[stage.token].dead_ms = watch.dead_ms.get(stage.token)
        return outcomes

    def _recover(self, state_dir: Path, stages: list[Stage], outcomes: dict[str, Outcome], at: float) -> None:
        host = agent(self._names.prefix) if self._by_host else None
        with Supervisor.start(config(state_dir, self._layer, host)) as supervisor:
            for stage in stages:
                outcome = outcomes[stage.token]
                stage.session = supervisor.session(stage.token)
                receipt = Singles.receipt(stage.session, stage.run_id)
                living = stage.living()
                now = time.time()  # noqa: TID251  # the times in a receipt are of this clock
                seen = census.read(stage.seen)
                verdict = judge(receipt, living, seen, "daemon", uid=os.geteuid(), now=now, by_host=self._by_host)
                outcome.survivors += verdict.survivors
                outcome.wrong += verdict.wrong
                outcome.unproven = verdict.unproven
                events = Singles.log(stage)
                closed = _closed(events, stage.run_id)
                if closed is None:
                    outcome.wrong.append("the next daemon did not close the run")
                else:
                    outcome.fence_ms = max(0.0, closed.at - at) * 1000
                    outcome.stale += stale_events(events, closed.seq, stage.run_id)


class Daemon:
    """A supervisor in a process of its own; with `hosts`, the prefix that these carry, the agent runs in hosts."""

    def __init__(self, state_dir: Path, layer: str, hosts: str = "") -> None:
        self._orders: dict[str, Any] = {"state_dir": str(state_dir), "layer": layer, "hosts": hosts}
        self._log = state_dir.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.keepers: list[census.Life] = []

    def start(self, cases: list[tuple[str, dict[str, Any]]]) -> dict[str, str]:
        """Start it with these runs; returns their ids by token."""
        with self._log.open("ab") as log:
            # Orders go in by a pipe: a token on its command line would make it a process of every case.
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.gauntlet.crash"],
                cwd=ROOT,
                env={**os.environ, "LOGURU_LEVEL": "WARNING"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({**self._orders, "cases": cases}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            said = self._log.read_text()
            # Once for all of the wave: it may show what all its threads did.
            sys.stderr.write(said)
            raise RuntimeError(f"the daemon did not start: {said[-2000:]}")
        runs: dict[str, str] = json.loads(line)
        return runs

    def kill(self) -> None:
        """Kill it with SIGKILL; again is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        self.keepers = [
            life for life in census.below(process.pid) if life.name.startswith(KEEPERS) or RUNTIME.name in life.command
        ]
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.unlink(missing_ok=True)

    def end_keepers(self) -> list[census.Life]:
        """End wardens, zygote and hosts that outlived the daemon for longer than they may; returns those who did."""
        until(lambda: not census.still(self.keepers), KEEPERS_S)
        left = census.still(self.keepers)
        for life in left:
            census.signal_exactly(life, signal.SIGKILL)
        return left


class Watch(threading.Thread):
    """Looks, again and again, who of a wave lives, and notes when the last of each run was gone."""

    def __init__(self, names: Names, stages: list[Stage], began: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.dead_ms: dict[str, float] = {}
        self._prefix = names.prefix
        self._stages = stages
        self._began = began
        self._over = threading.Event()

    def run(self) -> None:
        """Look until nobody lives, or it is ended."""
        left = {stage.token: stage.seen for stage in self._stages}
        while left and not self._over.wait(WATCH_S):
            alive = census.tokens_alive(self._prefix, left)
            for token in left.keys() - alive:
                self.dead_ms[token] = (time.monotonic() - self._began) * 1000
                del left[token]

    def end(self) -> None:
        """Stop looking, unless somebody may be seen to be gone in a moment."""
        self.join(LAST_LOOK_S)
        self._over.set()
        self.join()


def _closed(events: Sequence[Event], run_id: str) -> Event | None:
    return next(
        (
            event
            for event in events
            if event.run_id == run_id and event.kind == "run.status" and event.data["status"] == "failed"
        ),
        None,
    )


# ── The daemon ────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Run the orders until killed."""
    orders = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_our_starter, daemon=True).start()
    host = agent(orders["hosts"]) if orders["hosts"] else None
    supervisor = Supervisor.start(config(Path(orders["state_dir"]), orders["layer"], host))
    runs = begin(supervisor, orders["cases"])
    sys.stdout.write(json.dumps(runs) + "\n")
    sys.stdout.flush()
    threading.Event().wait()


def begin(supervisor: Supervisor, cases: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Start a run of each case, with its token as the session; returns their ids by token.

    The answer to a message comes behind all that the earlier runs say meanwhile, so it takes as long as it takes.

    Raises:
        Timeout: there was none. What each thread did is on stderr: a deadlock can be told from a slow machine.
    """
    runs = {}
    for token, case in cases:
        content = json.dumps({"do": "hold", "token": token, "case": case})
        try:
            accepted = supervisor.session(token).ask(NewMessage(content=content), timeout=SILENT_S)
        except Timeout:
            faulthandler.dump_traceback(sys.stderr)
            raise
        assert accepted.run_id is not None, "an idle session starts a run"
        runs[token] = accepted.run_id
    return runs


def _end_with_our_starter() -> None:
    """The end of our input says that whoever would have killed us is gone: the runs go as they would have gone then."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
