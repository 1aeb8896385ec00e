"""`scripts/sim`: plays schedules, replays one by its seed, or plants mutants and hunts them.

    scripts/sim                       2,000 schedules, the same each time
    scripts/sim --seeds 100000        the first 100,000
    scripts/sim --minutes 10 --fresh  ten minutes of schedules that nobody has seen
    scripts/sim … --hosts             of these, those whose agents run in hosts
    scripts/sim --seed 42             one schedule: what it is, its timeline, what it breaks
    scripts/sim --mutants             every mutant, until it is caught
    scripts/sim … --json              one document on stdout

Steps a second are those of one core: steps by the processor time that they took. The exit code is 1 if a law was
broken or a mutant lives, 2 if that could not be found out.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.schedule import Schedule, broken, draw, shrink
from tests.sim.timeline import timeline
from tests.sim.world import quiet_log

CHUNK: Final = 200
SEEDS: Final = 2_000
MUTANT_SCHEDULES: Final = 20_000
SHOWN_MAX: Final = 3
TIMELINE_MAX: Final = 200
FRESH: Final = 1 << 40
GARBAGE_OBJECTS: Final = 2_000


@dataclass(slots=True)
class Tally:
    """What came of some schedules: how many, their steps, the processor time, and the seeds that broke a law."""

    schedules: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what came of others."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.cpu_s += other.cpu_s
        self.broken += other.broken

    def as_json(self) -> str:
        """The document of --json."""
        per_s = round(self.steps / self.cpu_s) if self.cpu_s else 0
        said = {"schedules": self.schedules, "steps": self.steps, "violations": len(self.broken), "steps_per_s": per_s}
        return json.dumps(said)


def play(seeds: range, *, hosts: bool = False) -> Tally:
    """Play the schedules of some seeds; `hosts`: those of them whose agents run in hosts."""
    # A schedule leaves little and keeps nothing: to look for it through all modules is lost time. To look seldom is
    # slower again: what is made anew is then in no cache. Frozen once: what is frozen while it is garbage is kept.
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS)
    tally, started = Tally(), time.process_time()
    with quiet_log():
        for seed in seeds:
            schedule = draw(seed)
            if hosts and schedule.hosting is None:
                continue
            try:
                tally.steps += schedule.play()
            except Exception as error:  # a harness that breaks is a failure of that seed too
                tally.broken.append((seed, f"{type(error).__name__}: {error}"))
            tally.schedules += 1
    tally.cpu_s = time.process_time() - started
    return tally


def hunt(mutant: tuple[int, int]) -> tuple[int, int | None]:
    """Hunt one mutant, by its place, with so many schedules; returns its place and after how many it was caught."""
    place, schedules = mutant
    with quiet_log():
        return place, MUTANTS[place].hunt(schedules)


def _chunks(first: int, seeds: int | None, until: float | None) -> Iterator[range]:
    end = None if seeds is None else first + seeds
    while (end is None or first < end) and (until is None or time.monotonic() < until):
        last = first + CHUNK if end is None else min(first + CHUNK, end)
        yield range(first, last)
        first = last


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet,
    )


def play_all(console: Console, chunks: Iterator[range], total: int | None, jobs: int, *, hosts: bool = False) -> Tally:
    """Play chunks of seeds on `jobs` processes. The next chunk is taken when one is done: its time may be over then."""
    tally, some = Tally(), partial(play, hosts=hosts)
    with (
        ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        _progress(console, not console.is_terminal) as progress,
    ):
        task = progress.add_task("schedules", total=total)
        said = time.monotonic()
        # One more than there are processes, so that none waits.
        playing = {pool.submit(some, chunk) for chunk in itertools.islice(chunks, jobs + 1)}
        while playing:
            done, playing = wait(playing, return_when=FIRST_COMPLETED)
            for one in done:
                played = one.result()
                tally.add(played)
                for seed, what in played.broken:
                    # At once: a run of hours may be interrupted.
                    progress.console.print(f"seed {seed} {what}", markup=False, highlight=False)
            playing |= {pool.submit(some, chunk) for chunk in itertools.islice(chunks, len(done))}
            progress.update(task, completed=tally.schedules)
            if not console.is_terminal and time.monotonic() - said > 10:
                said = time.monotonic()
                console.print(f"{tally.schedules} schedules, {tally.steps} steps, {len(tally.broken)} violations")
    return tally


def _show(console: Console, seed: int, what: str, schedule: Schedule) -> None:
    console.rule(f"seed {seed}")
    console.print(what, markup=False, style="bold")
    console.print(f"settings: {_settings(schedule)}", markup=False, highlight=False)
    console.print("script:", *(f"    {op!r}" for op in schedule.script), sep="\n", markup=False, highlight=False)
    lines = timeline(schedule)
    if len(lines) > TIMELINE_MAX:
        console.print(f"timeline, its last {TIMELINE_MAX} of {len(lines)} lines:")
    for line in lines[-TIMELINE_MAX:]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _settings(schedule: Schedule) -> str:
    settings = schedule.settings
    names, defaults = settings.__struct_fields__, settings.__struct_defaults__
    changed = {
        name: getattr(settings, name)
        for name, default in zip(names, defaults, strict=True)
        if getattr(settings, name) != default
    }
    # As Python reads it.
    return ", ".join(
        f"{name}={f'{type(value).__name__}.{value.name}' if isinstance(value, Enum) else repr(value)}"
        for name, value in changed.items()
    )


def run_seed(console: Console, seed: int, as_json: bool) -> int:
    """Replay one seed, and show it; where it breaks a law, as small as it can be made."""
    with quiet_log():
        schedule = draw(seed)
        tally = play(range(seed, seed + 1))
        what = tally.broken[0][1] if tally.broken else "it keeps the laws"
        _show(console, seed, what, shrink(schedule) if tally.broken else schedule)
    if as_json:
        print(tally.as_json())
    return 1 if tally.broken else 0


def run_seeds(console: Console, options: argparse.Namespace) -> int:
    """Play many schedules, and show the first few that break a law."""
    first = secrets.randbelow(FRESH) if options.fresh else options.first
    seeds = options.seeds if options.seeds is not None else None if options.minutes else SEEDS
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    console.print(f"seeds from {first}")
    try:
        total = None if options.hosts else seeds
        tally = play_all(console, _chunks(first, seeds, until), total, options.jobs, hosts=options.hosts)
    except BrokenProcessPool as error:
        console.print(f"a process that played schedules was ended from outside, so nothing is known: {error}")
        return 2
    with quiet_log():
        for seed, what in sorted(tally.broken)[:SHOWN_MAX]:
            found = draw(seed)
            _show(console, seed, what, shrink(found) if broken(found) is not None else found)
    if tally.broken:
        console.print("replay: " + "  ".join(f"scripts/sim --seed {seed}" for seed, _ in sorted(tally.broken)[:10]))
    if options.json:
        print(tally.as_json())
    else:
        per_s = tally.steps / tally.cpu_s if tally.cpu_s else 0.0
        print(
            f"{tally.schedules} schedules, {tally.steps} steps, {len(tally.broken)} violations, "
            f"{per_s:,.0f} steps/s on one core"
        )
    return 1 if tally.broken else 0


def run_mutants(console: Console, options: argparse.Namespace) -> int:
    """Hunt every mutant, or those whose name has a text in it."""
    wanted = [place for place, mutant in enumerate(MUTANTS) if options.mutants in mutant.name]
    if not wanted:
        console.print(f"no mutant has {options.mutants!r} in its name; --mutants alone hunts all {len(MUTANTS)}")
        return 2
    found: dict[int, int | None] = {}
    work = [(place, options.schedules) for place in wanted]
    with (
        multiprocessing.get_context("spawn").Pool(options.jobs) as pool,
        _progress(console, not console.is_terminal) as progress,
    ):
        task = progress.add_task("mutants", total=len(wanted))
        for place, caught in pool.imap_unordered(hunt, work):
            found[place] = caught
            progress.advance(task)
    if options.json:
        said = [
            {
                "name": MUTANTS[place].name,
                "caught": found[place] is not None,
                "schedules": _schedules(found[place], options),
            }
            for place in wanted
        ]
        print(json.dumps({"mutants": said}))
    else:
        Console().print(_table([(MUTANTS[place], found[place]) for place in wanted]))
    return 1 if None in found.values() else 0


def _schedules(caught: int | None, options: argparse.Namespace) -> int:
    schedules: int = options.schedules if caught is None else caught
    return schedules


def _table(rows: list[tuple[Mutant, int | None]]) -> Table:
    table = Table("law", "mutant", "caught after", box=None)
    for mutant, caught in rows:
        table.add_row(mutant.law, mutant.name, "[red]lives[/]" if caught is None else f"{caught} schedules")
    return table


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="scripts/sim",
        description=summary[0],
        epilog=summary[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, metavar="N", help="replay the schedule of this seed")
    parser.add_argument("--seeds", type=_count, metavar="N", help=f"how many schedules; {SEEDS:,} by default")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the seed to begin with; 0 by default")
    parser.add_argument("--fresh", action="store_true", help="begin with a seed that is drawn now")
    parser.add_argument("--hosts", action="store_true", help="only the schedules whose agents run in hosts")
    parser.add_argument("--minutes", type=_minutes, metavar="M", help="play for so long")
    parser.add_argument("--jobs", type=_count, default=1, metavar="J", help="processes; 1 by default")
    parser.add_argument("--mutants", nargs="?", const="", metavar="NAME", help="hunt the mutants, or those named so")
    parser.add_argument(
        "--schedules", type=_count, default=MUTANT_SCHEDULES, metavar="N", help="schedules a mutant may live through"
    )
    parser.add_argument("--json", action="store_true", help="one document on stdout; people's text goes to stderr")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {count}")
    return count


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 100_000:
        raise argparse.ArgumentTypeError(f"expected minutes above 0, got {text}")
    return minutes


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    options = _parse(arguments)
    console = Console(stderr=True)
    if options.mutants is not None:
        return run_mutants(console, options)
    if options.seed is not None:
        return run_seed(console, options.seed, options.json)
    return run_seeds(console, options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
