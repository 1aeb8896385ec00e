"""Measures what the product promises to be fast at, each next to a baseline taken in the same run.

    scripts/bench            a table
    scripts/bench --json     one document on stdout
    scripts/bench --quick    fewer rounds; the figures are rougher

Figures are of this machine at this moment: compare them within a run. The exit code is 1 if a figure is over its
limit: how much later a Stop is answered behind a hundred thousand messages, what containment may cost, and what it
costs to read two hundred chatty children, what an agent in a host costs next to the same agent inside, and how much
later a program that is kept has its first text.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from loguru import logger

from tests.bench.figure import QUICK, Figure, Rounds
from tests.bench.measures.actors_cost import actors_cost
from tests.bench.measures.after_many_spawns import after_many_spawns
from tests.bench.measures.agents_in_hosts import agents_in_hosts
from tests.bench.measures.answer_latency import answer_latency
from tests.bench.measures.big_trees import big_trees
from tests.bench.measures.chatty_children import chatty_children
from tests.bench.measures.console_start import console_start
from tests.bench.measures.daemon_start import daemon_start
from tests.bench.measures.first_text import first_text
from tests.bench.measures.flood import flood
from tests.bench.measures.group_commit import group_commit
from tests.bench.measures.idle_sessions import idle_sessions
from tests.bench.measures.polite_stop import polite_stop
from tests.bench.measures.ready_again import ready_again
from tests.bench.measures.spawn_from_a_big_daemon import spawn_from_a_big_daemon
from tests.bench.measures.spawn_latency import spawn_latency
from tests.bench.measures.stop_behind_backlog import stop_behind_backlog
from tests.bench.measures.stop_latency import stop_latency
from tests.bench.measures.throughput import throughput

MEASUREMENTS: tuple[Callable[[Path, Rounds], Iterator[Figure]], ...] = (
    actors_cost,
    stop_latency,
    polite_stop,
    stop_behind_backlog,
    answer_latency,
    spawn_latency,
    throughput,
    group_commit,
    idle_sessions,
    ready_again,
    console_start,
    daemon_start,
    big_trees,
    spawn_from_a_big_daemon,
    after_many_spawns,
    chatty_children,
    flood,
    agents_in_hosts,
    first_text,
)


def shown(value: float) -> str:
    """A number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_line(figure: Figure) -> str:
    """A figure as a line of the table."""
    line = f"  {figure.name:<46}{shown(figure.value):>9} {figure.unit:<6}"
    if figure.baseline is not None:
        line += f"{shown(figure.baseline):>9} {figure.unit:<6}{figure.against}"
    if figure.limit is not None:
        line += f"  {'OVER the' if figure.over else 'within the'} limit of {shown(figure.limit)}"
    return line


def main() -> int:
    """Measure and print; see the head of this file."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures countermand on this machine.")
    parser.add_argument("--json", action="store_true", help="one document on stdout, at the end")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rougher figures, sooner")
    parser.add_argument("--only", metavar="NAME", choices=[m.__name__ for m in MEASUREMENTS], help="one measurement")
    options = parser.parse_args()
    rounds = QUICK if options.quick else Rounds()
    logger.remove()
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    figures: list[Figure] = []
    if not options.json:
        print(f"{machine}, load {os.getloadavg()[0]:.1f}")
    for measure in MEASUREMENTS:
        if options.only not in (None, measure.__name__):
            continue
        with tempfile.TemporaryDirectory(prefix="countermand-bench-") as folder:
            for figure in measure(Path(folder), rounds):
                if not options.json:
                    if not figures or figures[-1].group != figure.group:
                        print(f"{figure.group}{'':<60}{'baseline' if figure.baseline is not None else ''}")
                    print(as_line(figure), flush=True)
                figures.append(figure)
    if options.json:
        document = {
            "machine": machine,
            "load": os.getloadavg()[0],
            "quick": options.quick,
            "figures": msgspec.to_builtins(figures),
        }
        print(json.dumps(document, indent=2))
    return 1 if any(figure.over for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
