"""A store of many sessions, as after short talks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from actors.events import RunEndedData, as_data
from actors.model import Event, Receipt, RunInfo
from actors.ports import Batch, SessionRow
from actors.run_status import RunStatus
from supervisor.clock import SystemClock
from supervisor.store.sqlite import SqliteStore
from tests.bench.kit import WAIT_S, Inbox


def write_sessions(folder: Path, number: int, *, halves: int = 0) -> Path:
    """Write a store of so many sessions, `halves` of them with a run that is going on; returns the state directory.

    Each has three runs, of a message, five texts, a call and its result: 40 events, as after a short talk.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    clock = SystemClock()
    store = SqliteStore(folder / "store.sqlite3", clock=clock)
    inbox: Any = Inbox()
    try:
        for place in range(number):
            store.commit(a_session(f"session {place:06}", half=place < halves), inbox)
            if place % 1000 == 999:
                assert store.answers(WAIT_S)
        assert store.answers(WAIT_S)
    finally:
        store.close(WAIT_S)
        clock.close()
    return folder


def a_session(name: str, *, half: bool) -> Batch:
    """A session's whole past as one batch."""
    events: list[Event] = []
    runs: list[RunInfo] = []
    receipts: list[Receipt] = []
    at = time.time()  # noqa: TID251  # a clock of ours has a thread, and this is called for each session
    for generation in (1, 2, 3):
        run_id = f"run_{name}_{generation}"
        open_ = half and generation == 3

        def add(kind: str, data: Any, generation: int = generation, run_id: str = run_id) -> None:
            events.append(Event(len(events) + 1, name, generation, run_id, kind, data, at))

        add(
            "message", {"id": f"m_{name}_{generation}", "content": "make test", "origin": "user", "policy": "interrupt"}
        )
        add("run.started", {"agent": "waits", "inputs": [f"m_{name}_{generation}"]})
        for word in range(5):
            add("text", {"text": f"word {word} of what it says"})
        call = f"call_{name}_{generation}"
        add("tool.requested", {"call_id": call, "tool": "shell", "arguments": {"script": "make test"}})
        if not open_:
            add("tool.started", {"call_id": call})
            add("tool.ended", {"call_id": call, "tool": "shell", "outcome": "finished", "content": "it is done " * 20})
            add("run.status", {"status": "completed"})
            receipt = Receipt(f"rcpt_{run_id}", run_id, generation, None, at, at, complete=True)
            add("run.ended", as_data(RunEndedData(status=RunStatus.COMPLETED, receipt=receipt)))
            receipts.append(receipt)
        status = RunStatus.IN_PROGRESS if open_ else RunStatus.COMPLETED
        runs.append(
            RunInfo(
                session=name,
                run_id=run_id,
                status=status,
                agent="waits",
                generation=generation,
                receipt_id=f"rcpt_{run_id}",
                inputs=(f"m_{name}_{generation}",),
                created_at=at,
                started_at=at,
                settled=not open_,
            )
        )
    row = SessionRow(name, 3, len(events))
    return Batch(name, "inc_0", 1, tuple(events), row, tuple(runs), receipts=tuple(receipts))
