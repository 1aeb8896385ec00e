"""The gauntlet's command line.

    scripts/gauntlet                              every case by every trigger, 20 times
    scripts/gauntlet --runs 3 --cases plain,deep  some of it
    scripts/gauntlet --triggers stop,daemon       how the runs are ended
    scripts/gauntlet --by host                    an agent in a host starts the commands, by subprocess
    scripts/gauntlet --layer subreaper            without control groups (cgroup: only with them)
    scripts/gauntlet --layer namespace            without control groups, in PID namespaces
    scripts/gauntlet --user nobody                all of it as an ordinary user (as root only)
    scripts/gauntlet --jobs 2                     so many runs at once
    scripts/gauntlet --json                       one document on stdout; progress and every fault go to stderr

The exit code is 1 if anything survived, a receipt was wrong, or something had an effect after its fence, and 2 if
the gauntlet cannot be run as asked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from loguru import logger
from rich.console import Console

from actors.kernel.log_context import speak
from supervisor import Supervisor
from tests.gauntlet import as_user, by_host, census
from tests.gauntlet.cases import BY_NAME, Case, Needs, choose, elsewhere, look
from tests.gauntlet.crash import Crashes
from tests.gauntlet.plugins import LAYERS, LayerMissing, Names, config
from tests.gauntlet.report import SPARES, Totals, faults
from tests.gauntlet.single import Outcome, Singles

TRIGGERS = ("stop", "immediate", "supersede", "deadline", "end", "warden", "daemon")
RUNS = 20
JOBS = 4 * (os.cpu_count() or 1)
WAVE = 16
HEAVY_WAVE = 3
HEAVY_JOBS = 2
SEED = 20
TABLE_WIDTH = 130
REST_S = 10.0

END_LOOK_S = 0.2

Job = Callable[[], list[Outcome]]
_early: list[int] = []


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gauntlet; returns the exit code."""
    options = _options(argv)
    try:
        cases, triggers = choose(options.cases), _triggers(options.triggers, options.by)
        if options.user is not None:
            return as_user.run(options.user, _without_user(sys.argv[1:] if argv is None else list(argv)))
    except (ValueError, as_user.NotPossible) as error:
        sys.stderr.write(f"gauntlet: {error}\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_early)
    speak()
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    totals = Totals()
    try:
        run(
            cases,
            triggers,
            runs=options.runs,
            layer=options.layer,
            by=options.by,
            jobs=options.jobs,
            totals=totals,
            tell_faults=options.json,
        )
    except LayerMissing as error:
        sys.stderr.write(f"gauntlet: {error}\n")
        return 2
    finally:
        # Ended early, it says what came of the runs until then.
        if totals.count and options.json:
            sys.stdout.write(json.dumps(totals.document(), indent=1) + "\n")
            sys.stderr.write("".join(f"leaked: {leak}\n" for leak in totals.leaks()))
        elif totals.count:
            totals.show(Console(width=None if sys.stdout.isatty() else TABLE_WIDTH))
    _leave_if_asked()
    return 1 if totals.bad else 0


def _end_early(number: int, _: object) -> None:
    """Note the signal. Raised from here, an exit could come between any two lines, of a lock or a pool as well."""
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    _early.append(number)


def _leave_if_asked() -> None:
    """Leave by the exit that says which signal it was; what has begun is brought to its end first."""
    if _early:
        sys.exit(128 + _early[0])


def run(
    cases: Sequence[Case],
    triggers: Sequence[str],
    *,
    runs: int = RUNS,
    layer: str = "auto",
    by: str = "spawn",
    jobs: int = JOBS,
    names: Names | None = None,
    totals: Totals | None = None,
    tell_faults: bool = False,
) -> Totals:
    """Run every case by every trigger, so many times. Whatever was started is ended, also when this fails.

    `by`: ``spawn``, by a tool; or ``host``, by an agent in a host, with `subprocess`.
    `tell_faults`: each survivor, and all that a receipt says wrongly, goes to stderr as it is found.

    Raises:
        LayerMissing: the layer that is asked for cannot be had, or does not hold.
    """
    totals = Totals() if totals is None else totals
    names = names or Names(f"cmg-{uuid.uuid4().hex[:12]}-")
    with _folder(names) as folder:
        needs = look(folder / "made", layer)
        kinds = [
            (case, trigger)
            for case in cases
            if not _skip(case, needs, totals)
            for trigger in triggers
            if by != "host" or by_host.makes_sense(case, trigger)
        ]
        for case, trigger in kinds:
            totals.expect(case.name, trigger)
        with contextlib.ExitStack() as stack:
            needs = stack.enter_context(elsewhere(folder / "made", needs))
            singles = _singles(stack, folder, names, needs, layer, by, totals)
            crashes = Crashes(folder, names, needs, layer, by_host=singles.by_host)
            progress = Progress(runs * len(kinds), tell_faults=tell_faults)
            # The first of all is not counted: what is made once is there after it.
            singles.run(BY_NAME["plain"], "immediate")
            totals.before = census.household(os.getpid())
            try:
                # Those that measure the machine come last, and few at once: nobody else would get to run beside them.
                for heavy, at_once in ((False, jobs), (True, HEAVY_JOBS)):
                    some = [kind for kind in kinds if kind[0].heavy is heavy]
                    _run_all(_work(some, runs, singles, crashes), totals, min(jobs, at_once), progress)
            finally:
                progress.end()
            totals.after = _at_rest(totals.before, totals.spares)
    _check_layer(totals, layer)
    return totals


# ── What is to be done ────────────────────────────────────────────────────────────────────────────


def _singles(
    stack: contextlib.ExitStack, folder: Path, names: Names, needs: Needs, layer: str, by: str, totals: Totals
) -> Singles:
    """What runs the cases, with the supervisors that it needs."""
    if by == "spawn":
        return Singles(stack.enter_context(Supervisor.start(config(folder / "state", layer))), folder, names, needs)
    once = config(folder / "state", layer, by_host.agent(names.prefix))
    expiring = config(folder / "expiring", layer, by_host.agent(names.prefix), by_host.DEADLINE_S)
    keeping = config(folder / "keeping", layer, by_host.agent(names.prefix, "session"))
    one, two, three = (stack.enter_context(Supervisor.start(some)) for some in (once, expiring, keeping))
    totals.supervisors = 3
    # Below each spare host there is a warden as well.
    totals.spares = totals.supervisors * (SPARES + by_host.SPARES)
    return by_host.HostSingles(one, {"deadline": two, "idle": three, "kept": three}, folder, names, needs)


def _work(kinds: Sequence[tuple[Case, str]], runs: int, singles: Singles, crashes: Crashes) -> list[Job]:
    """All runs, in an order that mixes them; daemons are killed one at a time."""
    order = random.Random(SEED)
    one_wave = threading.Lock()

    def single(case: Case, trigger: str) -> Job:
        return lambda: [singles.run(case, trigger)]

    def wave(some: Sequence[Case]) -> Job:
        def job() -> list[Outcome]:
            with one_wave:
                return crashes.run(some)

        return job

    jobs = [single(case, trigger) for case, trigger in kinds if trigger != "daemon" for _ in range(runs)]
    order.shuffle(jobs)
    mixed = [case for case, trigger in kinds if trigger == "daemon" for _ in range(runs)]
    if mixed:
        order.shuffle(mixed)
        size = HEAVY_WAVE if any(case.heavy for case in mixed) else WAVE
        waves = [wave(mixed[start : start + size]) for start in range(0, len(mixed), size)]
        # Spread among the others, so that they do not all wait for one another.
        step = max(1, len(jobs) // len(waves)) if waves else 1
        for number, job in enumerate(waves):
            jobs.insert(min(len(jobs), number * (step + 1)), job)
    return jobs


def _at_rest(before: census.Household, spares: int) -> census.Household:
    """What the daemon has when the runs are over, once it came to rest."""
    deadline = time.monotonic() + REST_S
    while True:
        now = census.household(os.getpid())
        if (
            now.zombies <= before.zombies and now.wardens <= max(before.wardens, spares)
        ) or time.monotonic() >= deadline:
            return now
        time.sleep(0.02)


def _run_all(work: list[Job], totals: Totals, jobs: int, progress: Progress) -> None:
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="gauntlet")
    ended: queue.SimpleQueue[Future[list[Outcome]]] = queue.SimpleQueue()
    try:
        for job in work:
            pool.submit(job).add_done_callback(ended.put)
        for _ in work:
            for outcome in _next(ended).result():
                totals.add(outcome)
                progress.step(outcome)
    finally:
        # Interrupted: what has begun is brought to its end, and cleans up after itself.
        pool.shutdown(wait=True, cancel_futures=True)


def _next(ended: queue.SimpleQueue[Future[list[Outcome]]]) -> Future[list[Outcome]]:
    """The next job that has ended, unless the gauntlet is to end."""
    while True:
        _leave_if_asked()
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=END_LOOK_S)


class Progress:
    """One line on stderr that says how far it is; where that is no terminal, a line now and then."""

    EVERY_S = 10.0

    def __init__(self, count: int, *, tell_faults: bool = False) -> None:
        self._count = count
        self._tell_faults = tell_faults
        self._done = self._bad = 0
        self._began = time.monotonic()
        self._next = 0.0
        self._terminal = sys.stderr.isatty()

    def step(self, outcome: Outcome) -> None:
        """Count a run."""
        self._done += 1
        self._bad += outcome.bad
        if self._tell_faults:
            clear = "\r\033[K" if self._terminal else ""
            for fault in faults(outcome):
                sys.stderr.write(f"{clear}{outcome.case} by {outcome.trigger}, {fault.kind}: {fault.what}\n")
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (0.1 if self._terminal else self.EVERY_S)
            self._show(outcome.case)

    def end(self) -> None:
        """Show the last of it."""
        self._show("")
        if self._terminal:
            sys.stderr.write("\n")

    def _show(self, what: str) -> None:
        seconds = time.monotonic() - self._began
        line = f"{self._done} of {self._count} runs, {self._bad} bad, {seconds:.0f} s {what}"
        sys.stderr.write(f"\r\033[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()


def _skip(case: Case, needs: Needs, totals: Totals) -> bool:
    reason = needs.lacks.get(case.needs, "")
    if not reason and case.shell != "/bin/sh" and shutil.which(case.shell) is None:
        reason = f"there is no {case.shell}"
    if reason:
        totals.skipped[case.name] = reason
    return bool(reason)


def _check_layer(totals: Totals, layer: str) -> None:
    """Refuse figures of a layer that was asked for and that did not hold the cases."""
    held = {name for line in totals.document()["cases"] for name in line["layer"].split("+")} - {"unknown"}
    if layer != "auto" and held and held != {layer}:
        raise LayerMissing(f"the layer {layer} was asked for, and the cases were held by {', '.join(sorted(held))}")


# ── What is left ──────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _folder(names: Names) -> Iterator[Path]:
    """A folder for everything; in the end nobody of any run lives, and it is gone."""
    folder = Path(tempfile.mkdtemp(prefix="cm-gauntlet-"))
    (folder / "made").mkdir()
    try:
        yield folder
    finally:
        census.end_all(names.prefix, list(folder.glob("*/seen")))
        shutil.rmtree(folder, ignore_errors=True)


def _triggers(names: str | None, by: str) -> list[str]:
    there = by_host.TRIGGERS if by == "host" else TRIGGERS
    wanted = [name.strip() for name in (names or ",".join(there)).split(",") if name.strip()]
    for name in wanted:
        if name not in there:
            raise ValueError(f"there is no trigger {name!r}; there are: {', '.join(there)}")
    return wanted


def _without_user(argv: list[str]) -> list[str]:
    """The same arguments, for the child that is that user already."""
    kept, skip = [], False
    for word in argv:
        if skip:
            skip = False
        elif word == "--user":
            skip = True
        elif not word.startswith("--user="):
            kept.append(word)
    return kept


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("gauntlet", description="Ends nasty commands in every way and counts survivors.")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each case by each trigger")
    parser.add_argument("--cases", help="their names, separated by commas")
    parser.add_argument("--triggers", help=f"of {', '.join(TRIGGERS)}; by a host also idle, kept")
    parser.add_argument("--by", choices=("spawn", "host"), default="spawn", help="who starts the commands")
    parser.add_argument("--layer", choices=LAYERS, default="auto", help="what has to hold the processes")
    parser.add_argument("--user", help="a name or a uid: run all of it as that user")
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many runs at once")
    parser.add_argument("--json", action="store_true", help="print one document instead of the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
