"""`receipts`: what was running when runs ended, and how each part ended."""

from __future__ import annotations

from typing import Any, Final

from actors.errors import Invalid, ReceiptPending
from actors.model import Receipt, RunInfo
from supervisor.console.client.attended import HINT, attended, say_if_unattended, status_words
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import Records, find_run
from supervisor.console.client.source import open_records
from supervisor.console.render.output import console, heading, print_json, say
from supervisor.console.render.receipts import summary, table
from supervisor.console.render.words import cause, date_time, duration

RECEIPTS_MAX: Final = 50
"""Runs of a session whose receipts are shown, the newest; `--run` shows any other."""


def show_receipts(endpoint: Endpoint, session: str | None, run: str | None, default: str, *, as_json: bool) -> None:
    """Print the receipts of the newest runs of a session, the oldest first; or that of one run, in full.

    Args:
        endpoint: where they are on record.
        session: whose; None: the run's, or `default`.
        run: the id of a run or of its receipt, or the beginning of one.
        default: the session where neither is named.
        as_json: one array of receipts; with a run, its receipt.

    Raises:
        NotFound: there is no such session or run; see `open_records` too.
        Invalid: several runs begin so, or the run is another session's.
        ReceiptPending: the receipt of the run is not filed yet.
    """
    with open_records(endpoint) as records:
        if run is not None:
            _show_one(*_one(records, session, run), as_json=as_json)
            return
        name = default if session is None else session
        records.session(name)
        runs = records.runs(name)
        filed = _filed(records, runs[-RECEIPTS_MAX:])
        served = records.served
    if as_json:
        print_json([receipt for _, receipt in filed])
        return
    out = console()
    for info, receipt in filed:
        _head(out, info, receipt)
        say(out, f"  {summary(receipt)}", "" if receipt.complete else "bold red")
    for one in runs:
        if not one.settled:
            status = status_words(one.status, served=served)
            say(out, f"run {one.run_id} is {status}: its receipt is not filed yet", "yellow")
    say_if_unattended(out, runs, served=served)
    if len(runs) > RECEIPTS_MAX:
        say(out, f"of the newest {RECEIPTS_MAX} runs; countermand receipts --run RUN shows any other", "dim")
    if not runs:
        say(out, f"session {name} has had no run yet", "dim")


def _show_one(info: RunInfo, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        print_json(receipt)
        return
    out = console()
    _head(out, info, receipt)
    out.file.write(table(receipt, out.width, colour=out.is_terminal))


def _head(out: Any, info: RunInfo, receipt: Receipt) -> None:
    heading(out, f"Run {info.run_id}")
    say(out, f"  {info.status}, {date_time(receipt.ended_at)}, after {duration(info.started_at, receipt.ended_at)}")
    if receipt.provenance is not None:
        say(out, f"  ended by {cause(receipt.provenance)}")


def _filed(records: Records, runs: list[RunInfo]) -> list[tuple[RunInfo, Receipt]]:
    pairs = ((one, records.receipt(one.session, one.run_id)) for one in runs)
    return [(one, receipt) for one, receipt in pairs if receipt is not None]


def _one(records: Records, session: str | None, run: str) -> tuple[RunInfo, Receipt]:
    info = find_run(records, run)
    if session is not None and session != info.session:
        raise Invalid(
            f"run {info.run_id} is not of session {session!r}",
            expected=f"a run of session {session!r}",
            got=f"one of session {info.session!r}",
            remedy="leave --session out, or name its own",
        )
    receipt = records.receipt(info.session, info.run_id)
    if receipt is None:
        raise ReceiptPending(
            f"the receipt of run {info.run_id} is not filed yet",
            expected="a run that has ended, with all its parts",
            got=f"one that is {info.status}",
            remedy=HINT
            if attended(info, served=records.served) is False
            else f"ask again when it has ended; countermand ps {info.session} shows what lives",
        )
    return info, receipt
