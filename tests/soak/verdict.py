"""What has to hold when a daemon that many things happened to has come to rest."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from actors import RunInfo, SessionStatus
from supervisor.console.client.api import Api, segment
from supervisor.store.reader import SqliteReader
from supervisor.wire import SessionPage
from tests.crash_kit import Judge, Told, alive, judge, rows_of
from tests.soak.remote import connect
from tests.soak.stand import Stand

STANDSTILL_S: Final = 120.0
LOOK_S: Final = 0.2


class SoakJudge(Judge):
    """Some runs fail here, since their host, or what it needed, was killed; and hosts are handed on to other runs."""

    def failed_with_a_cause(self, run: RunInfo) -> None:
        assert run.provenance is not None or run.error, f"{run} failed, and nothing says why"

    def receipts_are_whole(self) -> None:
        for run_id, receipt in self.receipts.items():
            if not self.runs[run_id].settled:
                continue
            assert receipt is not None, f"{run_id} has no receipt"
            assert receipt.complete, f"{run_id} left something behind: {receipt}"
            for row in rows_of(receipt.rows):
                assert row.ended_at is not None, f"{run_id}: {row} has not ended"


def names(api: Api) -> list[str]:
    """All sessions of the daemon."""
    found: list[str] = []
    after = ""
    while True:
        page = api.get("/v1/sessions", SessionPage, after=after) if after else api.get("/v1/sessions", SessionPage)
        found += [entry.session for entry in page.sessions]
        if page.next is None:
            return found
        after = page.next


def settle(stand: Stand) -> list[str]:
    """Wait until every session has come to rest by itself; returns their names. The deadline is one of standstill."""
    stand.scripts.release.touch()
    api = connect(stand.endpoint)
    try:
        busy = names(api)
        all_of_them = list(busy)
        seen: list[SessionStatus] = []
        deadline = time.monotonic() + STANDSTILL_S
        while busy:
            now = [api.get(f"/v1/sessions/{segment(name)}", SessionStatus) for name in busy]
            if now != seen:
                seen, deadline = now, time.monotonic() + STANDSTILL_S
            busy = [
                name
                for name, status in zip(busy, now, strict=True)
                if status.state != "idle" or (status.waiting and not status.parked)
            ]
            assert time.monotonic() < deadline, f"at a standstill: {seen}"
            time.sleep(LOOK_S if busy else 0.0)
        return all_of_them
    finally:
        api.close()


def verdict(stand: Stand, told: Told) -> Counter[str]:
    """Check everything of a daemon that has ended; returns what was seen. Raises AssertionError."""
    assert not (left := alive(stand.mark)), f"what has a complete receipt is dead: {left}"
    reader = SqliteReader(stand.state_dir / "store.sqlite3")
    try:
        return judge(reader, told, stand.scripts, SoakJudge)
    finally:
        reader.close()
