"""The gauntlet by an agent in a host, which starts the commands itself: a part of it, and proofs that it finds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pykka import ActorDeadError

from actors import Receipt, Row
from actors.messages import ProcessEnded
from actors.model import How, PartKind, Provenance
from actors.run_status import TERMINAL
from supervisor import supervisor
from supervisor.containment.processes.trees import ProcessTrees
from tests.gauntlet import by_host, census, kills
from tests.gauntlet.__main__ import run
from tests.gauntlet.cases import BY_NAME, choose
from tests.gauntlet.census import Seen
from tests.gauntlet.judge import judge
from tests.gauntlet.plugins import Names
from tests.kit import WAIT_S

QUICK = "polite,leader-exits,setsid-twice"
NOW = 1_000_000.0


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Tokens of this test; whoever carries one is ended with it. All of it happens below the test's own folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Names(f"cmg-test-{os.getpid()}-{time.monotonic_ns()}-")
    yield made
    census.end_all(made.prefix, list(tmp_path.rglob("seen")))


def test_no_process_survives_that_an_agent_has_started_by_itself(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    # Time enough for a host to start and the case to be up, where others are at work.
    monkeypatch.setattr(by_host, "DEADLINE_S", 15.0)
    cases = choose(QUICK)
    totals = run(cases, by_host.TRIGGERS, runs=1, by="host", names=names)
    document = totals.document()
    assert (document["failures"], document["leaks"]) == ([], [])
    assert not totals.bad
    ran = {(line["case"], line["trigger"]) for line in document["cases"]}
    assert ran == {(case.name, trigger) for case in cases for trigger in by_host.TRIGGERS}
    for line in document["cases"]:
        assert (line["runs"], line["unproven"]) == (1, 0)
        assert line["layer"] in ("cgroup", "subreaper")
    # Spares carry the names' prefix too.
    assert census.marked(names.prefix) == []


class Lying(ProcessTrees):
    """Process trees that are said to be gone as soon as somebody wants them to be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.owners: dict[str, Any] = {}

    def spawn(self, process_id: str, spec: Any, owner: Any, session: str = "") -> None:
        self.owners[process_id] = owner
        super().spawn(process_id, spec, owner, session)

    def adopt(self, process_id: str, owner: Any, *arguments: Any, **options: Any) -> None:
        self.owners[process_id] = owner
        super().adopt(process_id, owner, *arguments, **options)

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        at = time.time()  # noqa: TID251
        with suppress(ActorDeadError):
            self.owners[process_id].tell(ProcessEnded(process_id, How.SIGKILL, proven=True, at=at, status=-9, reaped=1))


@pytest.mark.parametrize("trigger", ["immediate", "end", "idle"])
def test_a_host_that_is_only_said_to_be_gone_is_found_and_ended(
    names: Names, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    monkeypatch.setattr(supervisor, "ProcessTrees", Lying)
    totals = run(choose("setsid-twice"), [trigger], runs=1, by="host", names=names)
    (line,) = totals.document()["cases"]
    # The host itself, and what it has started; three of these exit by themselves, and may not have done so yet.
    ready = BY_NAME["setsid-twice"].ready
    assert ready - 3 + 1 <= line["survivors"] <= ready + 1
    assert line["receipts_wrong"] == 1
    assert census.marked(names.prefix) == []


# ── The judge ─────────────────────────────────────────────────────────────────────────────────────

STARTED = Row(PartKind.PROCESS, "sleep", NOW - 8, NOW - 1, How.SIGTERM, -15, pid=77)
HOST = Row(PartKind.PROCESS, "host gauntlet", NOW - 60, NOW - 1, How.SIGTERM, -15, pid=70, reaped=2, rows=(STARTED,))
AGENT = Row(PartKind.AGENT, "gauntlet", NOW - 9, NOW - 2, How.CANCELLED, rows=(HOST,))
SEEN = Seen(lines=1, everybody={(77, 0), (70, 0)}, hosts={(70, 0)})


def wrong(*rows: Row, source: str | None = "user.gauntlet", trigger: str = "stop") -> list[str]:
    """What the judge finds wrong in a receipt of a run whose host was 70, and that has started 77."""
    provenance = None if source is None else Provenance(source=source, reason="a test")
    receipt = Receipt("r", "run", 1, provenance, NOW - 2, NOW, True, rows, 2)
    return judge(receipt, {}, SEEN, trigger, uid=0, now=NOW, by_host=True).wrong


def changed(row: Row, **values: Any) -> Row:
    return msgspec.structs.replace(row, **values)


def test_a_true_receipt_of_a_run_in_a_host_is_not_wrong() -> None:
    assert wrong(AGENT) == []
    assert wrong(AGENT, source="run.deadline", trigger="deadline") == []
    for trigger in ("idle", "kept"):
        assert wrong(AGENT, trigger=trigger) == []
    for trigger in ("end", "warden"):
        assert wrong(AGENT, source=None, trigger=trigger) == []


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ((changed(AGENT, rows=()),), "names 0 hosts"),
        ((AGENT, changed(HOST, pid=90, rows=())), "names 2 hosts"),
        ((changed(AGENT, rows=(changed(HOST, pid=71),)),), "the pid of its host"),
        ((changed(AGENT, rows=(changed(HOST, pid=None),)),), "the pid of its host"),
        ((changed(AGENT, rows=(changed(HOST, rows=()), STARTED)),), "not below that of the host"),
        ((changed(AGENT, rows=(changed(HOST, rows=()),)), STARTED), "not below that of the host"),
        ((changed(AGENT, rows=(changed(HOST, ended_at=None, how=None),)),), "has not ended"),
        ((changed(AGENT, rows=(changed(HOST, rows=(changed(STARTED, started_at=NOW - 70),)),)),), "began before"),
    ],
)
def test_a_receipt_that_says_something_else_of_a_host_is_wrong(rows: tuple[Row, ...], word: str) -> None:
    assert any(word in fault for fault in wrong(*rows)), wrong(*rows)


@pytest.mark.parametrize(("source", "trigger"), [(None, "deadline"), (None, "kept"), ("user.gauntlet", "end")])
def test_a_receipt_that_names_another_cause_is_wrong(source: str | None, trigger: str) -> None:
    assert any("provenance" in fault for fault in wrong(AGENT, source=source, trigger=trigger))


# ── Daemons that are killed ───────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)  # hosts start slowly where others are at work
def test_no_process_outlives_a_daemon_that_is_killed_and_every_run_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How soon is measured by `kills` itself. Here others are at work, and who was killed waits for a processor.
    monkeypatch.setattr(kills, "DEAD_S", WAIT_S)
    seed = str(time.monotonic_ns())
    found = kills.kill(3, seed, folder=tmp_path)
    assert found.wrong == [], f"seed {seed}"
    assert found.kills == 3
    assert sum(found.statuses.values()) == found.runs >= found.hosts
    assert found.statuses.keys() <= TERMINAL


def test_a_process_that_a_kill_leaves_is_reported_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "DEAD_S", 0.1)
    prefix = f"cmg-test-{time.monotonic_ns()}-"
    round_ = kills.Round(tmp_path / "round", prefix, "1")
    with subprocess.Popen(["sleep", "100"], env={**os.environ, "MARK": f"{prefix}0."}) as process:
        try:
            life = census.look(process.pid)
            assert life is not None
            round_.look_who_lives(f"{prefix}0.", [life], time.monotonic(), "a kill")
            assert process.wait(WAIT_S) == -signal.SIGKILL
        finally:
            process.kill()
    assert "sleep" in round_.found.wrong[0]
    round_.look_who_lives(f"{prefix}0.", [life], time.monotonic(), "a kill")
    assert len(round_.found.wrong) == len(round_.found.dead_ms) == 1
