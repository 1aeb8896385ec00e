"""Kills daemons whose hosts are in every state, again and again, and holds what is left against the receipts.

    python -m tests.gauntlet.kills                     500 kills
    python -m tests.gauntlet.kills --kills 20 --seed 7
    python -m tests.gauntlet.kills --layer subreaper   as in scripts/gauntlet
    python -m tests.gauntlet.kills --lanes 2           so many at once, each on its own directory

A daemon runs agents of four kinds under a load: with spares, with hosts that start slowly, with hosts that sessions
keep, without spares. It is killed by SIGKILL, either after a drawn time, or when one of its hosts is in the state that
was drawn. Then nobody may live who carries its mark, nor a warden of it. Another daemon is started on its directory,
and killed as well. After ROUND kills one is started that is left alone: every run that there ever was must have ended,
with a complete receipt that names its host.

The exit code is 1 if anybody survived or a receipt was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from loguru import logger

from actors.model import RunInfo
from actors.run_status import TERMINAL
from supervisor import SessionHandle, Supervisor
from tests.gauntlet import census
from tests.gauntlet.judge import always_wrong, is_host, rows_of
from tests.gauntlet.killed import AIMS, config, daemon
from tests.gauntlet.plugins import LAYERS, LayerMissing
from tests.gauntlet.single import until

FORKS = multiprocessing.get_context("forkserver")
"""Daemons are forked from a process that has imported all that they need, and has no thread."""
KILLS = 500
ROUND = 10
DEAD_S = 15.0
LOOK_S = 0.1
REST_S = 90.0
LATEST_S = 1.5
KEEPER_NAMES = ("cm-warden", "cm-zygote", "cm-spare", "cm-seed", "cm-anchor")
# ── Killing it ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Found:
    """What came of some kills.

    Args:
        doing: how many hosts did what when their daemon was killed, as it had seen them last.
        runs: how many runs were looked at, with their receipts.
        wrong: what may not be so, in words.
        dead_ms: for each kill, until nobody lived.
    """

    kills: int = 0
    runs: int = 0
    hosts: int = 0
    doing: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    dead_ms: list[float] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take in what came of others."""
        self.kills += other.kills
        self.runs += other.runs
        self.hosts += other.hosts
        self.doing += other.doing
        self.statuses += other.statuses
        self.wrong += other.wrong
        self.dead_ms += other.dead_ms


class Round:
    """Some kills on one directory, and a look at all its receipts after the last. All of it is drawn from the seed."""

    def __init__(self, folder: Path, prefix: str, seed: str, layer: str = "auto") -> None:
        self.found = Found()
        self._state_dir = folder / "state"
        self._log = folder / "log"
        self._prefix = prefix
        self._seed = seed
        self._layer = layer
        self._lookers: list[threading.Thread] = []
        folder.mkdir()

    def run(self, kills: int) -> Found:
        """Kill so many daemons. Whatever was started is ended, also when this fails."""
        try:
            for number in range(kills):
                self._kill(number)
            for looker in self._lookers:
                looker.join()
            self._look_at_receipts()
        except Exception as error:  # whatever it is, it is of this round and is told
            log = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
            self.found.wrong.append(f"round {self._seed} could not be brought to its end: {error!r}; {log}")
        finally:
            census.end_all(self._prefix, [])
        return self.found

    def _kill(self, number: int) -> None:
        rng = random.Random(f"{self._seed}:{number}")
        mark = f"{self._prefix}{number}."
        aim = rng.choice(AIMS) if rng.random() < 0.6 else ""
        orders = {
            "state_dir": str(self._state_dir),
            "log": str(self._log),
            "layer": self._layer,
            "mark": mark,
            "seed": f"{self._seed}:{number}",
            "aim": aim,
        }
        ours, theirs = FORKS.Pipe()
        process = FORKS.Process(target=daemon, args=(orders, theirs), daemon=True)
        process.start()
        assert process.pid is not None
        theirs.close()
        with ours:
            try:
                keepers = self._until_killed(process.pid, ours, None if aim else rng.uniform(0.0, LATEST_S))
            finally:
                process.kill()
                process.join()
        assert process.exitcode == -signal.SIGKILL, f"the daemon ended with {process.exitcode}"
        began = time.monotonic()
        self.found.kills += 1
        # The next daemon may come while its predecessor's wardens are at work.
        if rng.random() < 0.5:
            self.look_who_lives(mark, keepers, began, f"kill {self._seed}:{number}")
        else:
            what = f"kill {self._seed}:{number}"
            looker = threading.Thread(target=self.look_who_lives, args=(mark, keepers, began, what))
            self._lookers.append(looker)
            looker.start()

    def _until_killed(self, pid: int, told: Connection, after_s: float | None) -> list[census.Life]:
        """Have it live for so long, or until it kills itself; returns its zygote, and wardens that it had."""
        told.recv()
        keepers = [life for life in census.below(pid) if life.name in KEEPER_NAMES]
        if after_s is not None:
            time.sleep(after_s)
            keepers = [life for life in census.below(pid) if life.name in KEEPER_NAMES]
            os.kill(pid, signal.SIGKILL)
        doing: list[str] = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                doing = told.recv()
        self.found.doing.update(doing)
        return keepers

    def look_who_lives(self, mark: str, keepers: Sequence[census.Life], began: float, what: str) -> None:
        """Wait until nobody lives who carries the mark, or is one of the keepers; tell and end those who do not go."""

        def living() -> list[census.Life]:
            return [*census.marked(mark), *census.still(keepers)]

        # A look at all of /proc costs a processor something, and others are at work.
        while left := living():
            if time.monotonic() > began + DEAD_S:
                break
            time.sleep(LOOK_S)
        if not left:
            self.found.dead_ms.append((time.monotonic() - began) * 1000)
        else:
            self.found.wrong.append(f"{what}: after {DEAD_S:g} s there lived {left}"[:1500])
            census.end_all(mark, [])
            for life in census.still(keepers):
                census.signal_exactly(life, signal.SIGKILL)

    # ── What the last daemon says ─────────────────────────────────────────────────────────────────

    def _look_at_receipts(self) -> None:
        mark = f"{self._prefix}last."
        with Supervisor.start(config(self._state_dir, self._layer, mark, random.Random(self._seed))) as supervisor:
            for name in supervisor.sessions():
                session = supervisor.session(name)
                if not until(lambda: self._rests(session), REST_S):  # noqa: B023  # it is called here
                    self.found.wrong.append(f"round {self._seed}: {session.status()} came not to rest"[:1500])
                for run in session.runs():
                    self._look_at(session, run)
                self._look_at_kept(session)
        self.look_who_lives(self._prefix, (), time.monotonic(), f"round {self._seed}, after a shutdown")

    @staticmethod
    def _rests(session: SessionHandle) -> bool:
        status = session.status()
        at_rest = status.state == "idle" and not status.waiting
        return at_rest and all(run.status in TERMINAL and run.settled for run in session.runs())

    def _look_at(self, session: SessionHandle, run: RunInfo) -> None:
        self.found.runs += 1
        self.found.statuses[run.status] += 1
        receipt = session.receipt(run.run_id, timeout=REST_S)
        rows = list(rows_of(receipt.rows))
        wrong = list(always_wrong(receipt, {}, time.time()))  # noqa: TID251  # the times are of this clock
        if not receipt.complete or receipt.omitted:
            wrong.append("it is not complete")
        hosts = [row for row in rows if is_host(row)]
        self.found.hosts += len(hosts)
        # A Stop also ends a host that the session has kept of an earlier run, and its receipt names that as well.
        if not hosts and run.started_at is not None:
            wrong.append("it names no host")
        self.found.wrong += (f"round {self._seed}, {run}: {fault}: {receipt}"[:3000] for fault in wrong)

    def _look_at_kept(self, session: SessionHandle) -> None:
        """Each host that the session kept, and that has ended, names who ended it: nobody of them goes by itself."""
        last = session.status().last_seq
        with session.subscribe(0, timeout=REST_S) as events:
            for event in events:
                kept = event.kind == "process.ended" and event.data.get("owner") == "session"
                if kept and not event.data.get("provenance"):
                    self.found.wrong.append(f"round {self._seed}, {session.session}: no cause: {event}"[:1500])
                if event.seq >= last:
                    break


# ── The command line ──────────────────────────────────────────────────────────────────────────────


def kill(kills: int, seed: str, *, layer: str = "auto", lanes: int = 1, folder: Path | None = None) -> Found:
    """Kill so many daemons, in rounds; returns what was found. Nobody is left."""
    FORKS.set_forkserver_preload(["tests.gauntlet.killed"])
    total, prefix = Found(), f"cmg-{uuid.uuid4().hex[:12]}-"
    began = time.monotonic()
    with _folder(folder) as place, ThreadPoolExecutor(lanes) as pool:

        def one(number: int) -> Found:
            folder = place / str(number)
            round_ = Round(folder, f"{prefix}{number:04d}-", f"{seed}:{number}", layer)
            found = round_.run(min(ROUND, kills - number * ROUND))
            shutil.rmtree(folder, ignore_errors=not found.wrong)
            return found

        try:
            for found in pool.map(one, range(-(-kills // ROUND))):
                total.add(found)
                for wrong in found.wrong:
                    sys.stderr.write(f"{wrong}\n")
                said = f"{total.kills} of {kills} kills, {len(total.wrong)} wrong, {total.runs} runs"
                sys.stderr.write(f"{said}, {time.monotonic() - began:.0f} s\n")
        finally:
            census.end_all(prefix, [])
    return total


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="cm-kills-", dir=given))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main(argv: Sequence[str]) -> int:
    """Kill, and print what was found; returns the exit code."""
    parser = argparse.ArgumentParser("kills", description="Kills daemons whose hosts are in every state.")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", default=str(time.monotonic_ns()))
    parser.add_argument("--layer", choices=LAYERS, default="auto", help="what has to hold the processes")
    parser.add_argument("--lanes", type=int, default=1, help="how many daemons at once")
    options = parser.parse_args(argv)
    logger.remove()
    logger.add(sys.stderr, level="CRITICAL")
    sys.stderr.write(f"seed {options.seed}\n")
    try:
        found = kill(options.kills, options.seed, layer=options.layer, lanes=options.lanes)
    except LayerMissing as error:
        sys.stderr.write(f"kills: {error}\n")
        return 2
    dead = sorted(found.dead_ms) or [0.0]
    sys.stdout.write(
        f"{found.kills} kills, {found.runs} runs with {found.hosts} hosts in their receipts, {len(found.wrong)} wrong\n"
        f"nobody lived after {dead[len(dead) // 2]:.0f} ms (median), {dead[-1]:.0f} ms (longest)\n"
        f"runs: {', '.join(f'{status} {count}' for status, count in found.statuses.most_common())}\n"
        "hosts at the kills:\n" + "".join(f"    {what}: {found.doing[what]}\n" for what in AIMS)
    )
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
