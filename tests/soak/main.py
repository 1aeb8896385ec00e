"""The daemon under load, and what breaks it from outside, for as long as wanted.

    ./scripts/soak --minutes 30

In the first half of the time the daemon is killed and started again, among other faults. In the second half it is not,
so that one sees whether it grows. Then everything comes to rest, the daemon is ended, and what the clients were told is
held against its store: nothing lost, nothing done twice, nothing left.

Exit codes: 0 all of it held; 1 something did not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from tests.crash_kit import Told, nobody_left
from tests.soak.clients import Clients
from tests.soak.faults import Faults
from tests.soak.samples import SLACK, Samples, curve
from tests.soak.stand import Stand
from tests.soak.verdict import settle, verdict

BETWEEN_S: Final = (0.2, 1.0, 3.0)
SAY_EVERY_S: Final = 30.0
SENDERS: Final = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak, and print what it found; returns the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the load goes on (default: 30)")
    parser.add_argument("--seed", default=uuid.uuid4().hex[:8], help="of what is sent and what is broken")
    parser.add_argument("--senders", type=int, default=SENDERS, help=f"clients that send at once (default: {SENDERS})")
    parser.add_argument("--calm", action="store_true", help="load alone, and no faults")
    parser.add_argument("--json", action="store_true", help="print the report, with all samples, as JSON")
    given = parser.parse_args(argv)
    notes = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="countermand-soak-", ignore_cleanup_errors=True) as folder:
        stand = Stand(Path(folder))
        try:
            with nobody_left(stand.mark):
                report = soak(stand, notes, given.seed, given.minutes * 60.0, given.senders, calm=given.calm)
        except Exception as failure:  # whatever it is, the daemon's log says more
            notes.print(f"seed {given.seed}: {type(failure).__name__}: {failure}", style="red", markup=False)
            keep = Path(tempfile.gettempdir()) / f"countermand-soak-{given.seed}.log"
            keep.write_bytes(stand.log_file.read_bytes())
            notes.print(f"the daemon's log: {keep}", markup=False)
            return 1
        finally:
            stand.close()
    if given.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        show(Console(), report)
    return 1 if report["growing"] or report["alarms"] else 0


def soak(stand: Stand, notes: Console, seed: str, load_s: float, senders: int, *, calm: bool = False) -> dict[str, Any]:
    """Load the daemon, break what can be broken, and judge. Raises AssertionError where something did not hold."""
    chance = random.Random(seed)
    if not stand.disk.mounted:
        notes.print("no full disk is tried: a file system in a file can be mounted by root alone")
    stand.start()
    told = Told()
    faults = Faults(stand, chance)
    samples = Samples(stand)
    clients = Clients(stand, told, seed, senders)
    began = said = time.monotonic()
    try:
        while (passed_s := time.monotonic() - began) < load_s:
            time.sleep(chance.choice(BETWEEN_S))
            if not calm:
                faults.one(restarts=passed_s < load_s / 2)
            clients.check()
            stand.check()
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                notes.print(
                    f"{passed_s / 60:5.1f} of {load_s / 60:g} min: {len(told.answered):,} answers, "
                    f"{len(clients.sessions):,} sessions, {sum(faults.done.values()):,} faults, "
                    f"{stand.lives:,} daemons, {samples.all[-1].memory_mb if samples.all else 0:.0f} MB"
                )
        clients.end()
        notes.print("the load has ended; all comes to rest…")
        sessions = settle(stand)
        samples.end()
        stand.end()
    finally:
        samples.end()
    missing = set(clients.sessions) & {sent.session for sent in told.sent.values() if sent.answer} - set(sessions)
    assert not missing, f"sessions that were answered are gone: {missing}"
    seen: Counter[str] = verdict(stand, told)
    return {
        "seed": seed,
        "minutes": round(load_s / 60, 2),
        "sessions": len(sessions),
        "daemons": stand.lives,
        "faults": faults.done,
        "seen": dict(sorted(seen.items())),
        "alarms": stand.alarms(),
        "growing": samples.growing(),
        "samples": samples.all,
    }


def show(console: Console, report: dict[str, Any]) -> None:
    """Print a report for people."""
    counts = Table("what", "how often", box=None)
    for name, count in {**report["faults"], **report["seen"]}.items():
        counts.add_row(name, f"{count:,}")
    console.print(counts)
    curves = Table("over time, all daemons", "from", "to", "", box=None)
    for name in (*SLACK, "store_mb"):
        values = [float(getattr(sample, name)) for sample in report["samples"]]
        curves.add_row(name, f"{min(values, default=0):.0f}", f"{max(values, default=0):.0f}", curve(values))
    console.print(curves)
    for name, (before, after) in report["growing"].items():
        console.print(f"{name} grew while the daemon was not restarted: {before:.0f} to {after:.0f}", style="red")
    for message, count in report["alarms"].items():
        console.print(f"{count} times in the log: {message}", style="red", markup=False)
    counted = (
        f"{report['sessions']:,} sessions, {report['daemons']:,} daemons, {sum(report['faults'].values()):,} faults"
    )
    held = "nothing lost, nothing done twice, nothing left"
    console.print(f"seed {report['seed']}: {report['minutes']:g} min, {counted}: {held}")


if __name__ == "__main__":
    sys.exit(main())
