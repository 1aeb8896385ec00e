"""The gauntlet: a quick part of it, and proofs that it would find what it is there to find."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pykka import Timeout

from actors import NewMessage, Receipt, Row
from actors.messages import ProcessEnded
from actors.model import Event, How, PartKind, Provenance, Signalled
from supervisor import supervisor
from supervisor.containment.guard.tree_record import MAYBE
from supervisor.containment.processes.trees import ProcessTrees
from tests.gauntlet import census, crash, plugins, roles, single
from tests.gauntlet.__main__ import TRIGGERS, run
from tests.gauntlet.cases import BY_NAME, CASES, PRELUDE, ROLES, Needs, choose
from tests.gauntlet.census import Life, Seen
from tests.gauntlet.judge import judge, stale_events, stale_output
from tests.gauntlet.plugins import Names
from tests.gauntlet.report import Totals
from tests.gauntlet.single import Stage
from tests.kit import WAIT_S, until

ROOT = Path(__file__).parent.parent
QUICK = "plain,polite,stopped,leader-exits,fork-chain,setsid-twice,env-i,invisible,holds-pipes,forks-on-term,tracer"
QUICK += ",far-sides"
NOW = 1_000_000.0


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Tokens of this test; whoever carries one is ended with it. All of it happens below the test's own folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Names(f"cmg-test-{os.getpid()}-{time.monotonic_ns()}-")
    yield made
    census.end_all(made.prefix, list(tmp_path.rglob("seen")))


def gauntlet(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the gauntlet's command line to its end."""
    argv = [sys.executable, "-m", "tests.gauntlet", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False, **options)


# ── The gauntlet itself ───────────────────────────────────────────────────────────────────────────


def test_no_process_survives_and_no_receipt_is_wrong(names: Names) -> None:
    cases = choose(QUICK)
    totals = run(cases, TRIGGERS, runs=1, names=names)
    document = totals.document()
    assert (document["failures"], document["leaks"]) == ([], [])
    assert not totals.bad
    skipped = {skip["case"] for skip in document["skipped"]}
    ran = {(line["case"], line["trigger"]) for line in document["cases"]}
    assert ran == {(case.name, trigger) for case in cases if case.name not in skipped for trigger in TRIGGERS}
    for line in document["cases"]:
        assert line["runs"] == 1
        assert line["unproven"] == 0
        # Unknown where a deadline was over before anybody of the case was up.
        assert line["layer"] in ("cgroup", "subreaper") or (line["layer"], line["trigger"]) == ("unknown", "deadline")
        assert 0 <= line["dead_ms"]["median"] <= line["dead_ms"]["max"]
        assert 0 <= line["fence_ms"]["median"] <= line["fence_ms"]["max"]
    assert census.marked(names.prefix) == []


class Lying(ProcessTrees):
    """Process trees that are said to be gone as soon as somebody wants them to be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.owners: dict[str, Any] = {}

    def spawn(self, process_id: str, spec: Any, owner: Any, session: str = "") -> None:
        self.owners[process_id] = owner
        super().spawn(process_id, spec, owner, session)

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        at = time.time()  # noqa: TID251
        self.owners[process_id].tell(ProcessEnded(process_id, How.SIGKILL, proven=True, at=at, status=-9, reaped=1))


@pytest.mark.parametrize("trigger", ["stop", "immediate", "supersede", "deadline", "end"])
def test_a_tree_that_is_only_said_to_be_gone_is_found_and_ended(
    names: Names, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    monkeypatch.setattr(supervisor, "ProcessTrees", Lying)
    # The processes of the case have to be up before: nobody survives who was not there.
    for module in (plugins, single):
        monkeypatch.setattr(module, "DEADLINE_S", 10.0)
    totals = run(choose("setsid-twice,invisible"), [trigger], runs=1, names=names)
    assert totals.bad
    for line in totals.document()["cases"]:
        assert line["survivors"] > 0
        assert line["receipts_wrong"] > 0
        assert (line["stale_effects"] > 0) == (trigger == "supersede")
    assert census.marked(names.prefix) == []


def test_in_json_every_fault_is_printed_as_it_is_found(
    names: Names, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "ProcessTrees", Lying)
    totals = run(choose("setsid-twice"), ["stop"], runs=2, names=names, tell_faults=True)
    told = capfd.readouterr().err.splitlines()
    failures = totals.failures()
    assert {failure["kind"] for failure in failures} >= {"survivor", "wrong"}
    for failure in failures:
        line = "{case} by {trigger}, {kind}: {what}".format(**failure)
        assert told.count(line) == failure["times"]


@pytest.mark.parametrize("script", ["gauntlet", "sim", "bench"])
def test_help_needs_no_environment(script: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in (script, "env.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    module = {"gauntlet": "tests/gauntlet/__main__.py", "sim": "tests/sim/main.py", "bench": "tests/bench/bench.py"}
    copied = tmp_path / module[script]
    copied.parent.mkdir(parents=True)
    shutil.copy(ROOT / module[script], copied)
    done = subprocess.run(
        [tmp_path / "scripts" / script, "--runs", "3", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"scripts/{script} --json" in done.stdout.replace("… ", "")
    assert '"""' not in done.stdout
    assert "import" not in done.stdout
    assert not (tmp_path / ".venv").exists()


class Deaf(ProcessTrees):
    """Process trees that end nothing and say nothing."""

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        return


def test_what_a_receipt_admits_to_have_lost_is_counted_as_a_survivor_too(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ProcessTrees", Deaf)
    monkeypatch.setattr(plugins, "KILL_S", 0.5)
    totals = run(choose("plain"), ["stop"], runs=1, names=names)
    (line,) = totals.document()["cases"]
    assert (line["survivors"], line["unproven"]) == (1, 1)
    assert totals.bad


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_gauntlet_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "tests.gauntlet", "--runs", "500", "--cases", "setsid-twice,ignores-term"]
    running = subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # Runs of every kind, those in a daemon of their own, too.
        until(lambda: len(census.marked(str(tmp_path))) > 20, "processes of cases", WAIT_S * 2)
        running.send_signal(number)
        assert running.wait(WAIT_S * 2) in (143, -number)
        until(lambda: census.marked(str(tmp_path)) == [], "the end of all of them", WAIT_S * 2)
    finally:
        running.kill()
        running.wait()
        census.end_all(str(tmp_path), list(tmp_path.rglob("seen")))


def test_a_daemon_of_the_gauntlet_ends_when_its_starter_is_gone(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.gauntlet.crash"]
    orders = {"state_dir": str(tmp_path / "state"), "layer": "auto", "hosts": "", "cases": []}
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdin is not None
            assert daemon.stdout is not None
            daemon.stdin.write(json.dumps(orders).encode() + b"\n")
            daemon.stdin.flush()
            assert daemon.stdout.readline() == b"{}\n"
            assert daemon.poll() is None
            daemon.stdin.close()
            assert daemon.wait(WAIT_S) == 1
        finally:
            daemon.kill()


def test_the_command_line_prints_one_document_and_says_by_its_code_that_all_is_well() -> None:
    done = gauntlet("--runs", "2", "--cases", "plain", "--triggers", "immediate", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)["cases"]
    assert line.keys() >= {
        "case",
        "trigger",
        "runs",
        "survivors",
        "receipts_wrong",
        "stale_effects",
        "fence_ms",
        "dead_ms",
        "layer",
    }
    assert (line["case"], line["trigger"], line["runs"]) == ("plain", "immediate", 2)
    assert line["fence_ms"].keys() == line["dead_ms"].keys() == {"median", "max"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--cases", "plain,no-such"), "'no-such'"),
        (("--triggers", "stop,no-such"), "'no-such'"),
        (("--user", "no-such-user-here"), "user"),
    ],
)
def test_what_cannot_be_run_as_asked_is_refused_with_its_name(arguments: tuple[str, ...], word: str) -> None:
    done = gauntlet("--runs", "1", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_an_ordinary_user_runs_it_too() -> None:
    done = gauntlet("--runs", "1", "--cases", "ignores-term,setuid", "--triggers", "stop", "--user", "61234", "--json")
    if done.returncode == 2 and "may run none of" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr + done.stdout
    assert {line["case"] for line in json.loads(done.stdout)["cases"]} == {"ignores-term", "setuid"}


# ── The cases ─────────────────────────────────────────────────────────────────────────────────────


def test_every_case_has_a_name_of_its_own_and_every_role_that_it_plays_is_there() -> None:
    assert len(BY_NAME) == len(CASES) >= 31
    for case in CASES:
        words = case.script.split()
        for before, name in pairwise(words):
            if before in ("become", "role"):
                assert callable(getattr(roles, name.strip(";")))


# ── The census ────────────────────────────────────────────────────────────────────────────────────


def sleeper(*argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process of a test."""
    return subprocess.Popen(argv or ("sleep", "60"), env=env, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("way", ["environment", "command line", "its own line"])
def test_a_process_is_found_by_its_environment_its_command_line_or_its_own_line(tmp_path: Path, way: str) -> None:
    token, seen = f"cmg-test-{time.monotonic_ns()}.", tmp_path / "seen"
    env = {"PATH": os.environ["PATH"], **({"ANY": token} if way == "environment" else {})}
    argv = ("sh", "-c", "sleep 60; :", token) if way == "command line" else ("sleep", "60")
    with sleeper(*argv, env=env) as process:
        try:
            if way == "its own line":
                assert census.living(token, seen) == {}
                seen.write_text(f"is {process.pid} {ticks_of(process.pid)}\n")
            until(lambda: process.pid in census.living(token, seen), "found")
        finally:
            census.end_all(token, [seen])
            process.kill()
    assert census.living(token, seen) == {}


def ticks_of(pid: int) -> int:
    """When a process began, in ticks."""
    life = census.look(pid)
    assert life is not None
    return life.ticks


def test_a_pid_of_another_process_by_now_is_neither_counted_nor_signalled(tmp_path: Path) -> None:
    token, seen = f"cmg-test-{time.monotonic_ns()}.", tmp_path / "seen"
    with sleeper() as stranger:
        try:
            life = census.look(stranger.pid)
            assert life is not None
            seen.write_text(f"is {stranger.pid} {life.ticks - 1}\n")
            assert census.living(token, seen) == {}
            assert census.end_all(token, [seen]) == 0
            was = Life(life.pid, life.ticks - 1, life.uid, life.name, life.state, life.command)
            assert not census.signal_exactly(was, signal.SIGKILL)
            assert stranger.poll() is None
            assert census.signal_exactly(life, signal.SIGKILL)
            assert stranger.wait(WAIT_S) == -signal.SIGKILL
        finally:
            stranger.kill()


def test_a_dead_process_that_is_not_reaped_does_not_live(tmp_path: Path) -> None:
    with sleeper() as process:
        ticks = ticks_of(process.pid)
        seen = tmp_path / "seen"
        seen.write_text(f"is {process.pid} {ticks}\n")
        process.kill()
        until(lambda: census.living("cmg-test-nobody.", seen) == {}, "dead")


def test_walkers_that_outrun_a_look_at_proc_are_heard(tmp_path: Path) -> None:
    token, seen = f"cmg-test-{time.monotonic_ns()}.", tmp_path / "seen"
    with sleeper(sys.executable, "-I", "-S", str(ROLES), "walkers", str(seen), token) as process:
        try:
            until(lambda: census.read(seen).lines >= 4, "walkers")
            assert census.beats(seen)
        finally:
            process.kill()
            # Whoever kills by looking at /proc may come too late for them: then they end because their file is removed,
            # if they are heard. On a busy machine that may take some looks.
            until(lambda: census.end_all(token, [seen]) == 0 and not census.beats(seen), "nobody is left")
    until(lambda: census.marked(token) == [], "the end of the walkers")


def test_the_shell_writes_the_start_time_that_proc_says(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"{PRELUDE}sleep 60 & note $!; echo $!; kill -STOP $$"
    env = {**os.environ, "CM_GAUNTLET_SEEN": str(seen)}
    process = subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert census.read(seen).everybody == {(child, ticks_of(child))}
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_a_run_leaves_is_ended_with_the_run_and_not_with_the_gauntlet(names: Names, tmp_path: Path) -> None:
    token = names.next()
    stage = Stage(BY_NAME["plain"], token, tmp_path / token, None)  # type: ignore[arg-type]  # it has no session
    stage.folder.mkdir()
    environment = {**os.environ, **stage.case.environment(token, stage.seen, Needs({}, {}))}
    with sleeper(*stage.case.argv(), env=environment) as process:
        try:
            assert stage.up()
            assert process.pid in stage.living()
            stage.clean()
            assert process.wait(WAIT_S) == -signal.SIGKILL
        finally:
            process.kill()
    assert not stage.folder.exists()


def test_a_keeper_that_outlives_its_daemon_is_reported_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash, "KEEPERS_S", 0.05)
    daemon = crash.Daemon(tmp_path / "state", "auto")
    assert daemon.end_keepers() == []
    with sleeper() as process:
        try:
            daemon.keepers = census.below(os.getpid())
            assert process.pid in [life.pid for life in daemon.keepers]
            daemon.keepers = [life for life in daemon.keepers if life.pid == process.pid]
            assert [life.pid for life in daemon.end_keepers()] == [process.pid]
            assert process.wait(WAIT_S) == -signal.SIGKILL
        finally:
            process.kill()
    assert daemon.end_keepers() == []


def test_a_daemon_of_the_gauntlet_that_gets_no_answer_waits_long_and_then_says_what_its_threads_do(
    capfd: pytest.CaptureFixture[str],
) -> None:
    waited: list[float] = []

    class Silent:
        def session(self, _token: str) -> Silent:
            return self

        def ask(self, _message: NewMessage, *, timeout: float = 30.0) -> None:
            waited.append(timeout)
            raise Timeout(f"{timeout} seconds")

    with pytest.raises(Timeout):
        crash.begin(Silent(), [("cmg-a.", {}), ("cmg-b.", {})])  # type: ignore[arg-type]  # what it asks of one
    assert waited == [plugins.SILENT_S]
    said = capfd.readouterr().err
    assert "most recent call first" in said
    assert " in begin\n" in said


def test_dead_children_that_are_not_reaped_are_counted() -> None:
    # What earlier tests have left open is not closed while this one counts.
    gc.collect()
    before = census.household(os.getpid())
    with sleeper() as process:
        try:
            process.kill()
            until(lambda: census.household(os.getpid()).zombies == before.zombies + 1, "a zombie")
        finally:
            process.kill()
            process.wait()
    after = census.household(os.getpid())
    assert after.zombies == before.zombies
    with open(os.devnull) as _:
        assert census.household(os.getpid()).descriptors == after.descriptors + 1


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (census.Household(1, 1, 20, 9), "not reaped"),
        (census.Household(0, 2, 20, 9), "wardens"),
        (census.Household(0, 1, 60, 9), "descriptors"),
    ],
)
def test_what_a_daemon_has_too_many_of_after_all_runs_is_bad(after: census.Household, word: str) -> None:
    totals = Totals()
    totals.before = totals.after = census.Household(0, 1, 20, 9)
    assert not totals.bad
    totals.after = after
    assert totals.bad
    assert word in totals.document()["leaks"][0]


# ── The judge ─────────────────────────────────────────────────────────────────────────────────────

LIFE = Life(pid=77, ticks=0, uid=1000, name="sleep", state="S", command="sleep 100")
GOOD = Row(PartKind.PROCESS, "case", NOW - 9, NOW - 1, How.SIGTERM, -15, (Signalled("SIGTERM", NOW - 2),), 77, reaped=2)
STOPPED = Provenance(source="user.gauntlet", reason="a test")


def receipt(*rows: Row, complete: bool = True, provenance: Provenance | None = STOPPED, reaped: int = 2) -> Receipt:
    """A receipt of a stop."""
    return Receipt("r", "run", 1, provenance, NOW - 2, NOW, complete, rows, reaped)


def found(
    given: Receipt | None, *alive: Life, seen: Seen | None = None, trigger: str = "stop", uid: int = 0
) -> tuple[list[str], list[str]]:
    """The survivors and the faults that the judge finds."""
    seen = seen or Seen(lines=1, everybody={(77, 0)})
    verdict = judge(given, {life.pid: life for life in alive}, seen, trigger, uid=uid, now=NOW)
    return verdict.survivors, verdict.wrong


def test_a_true_receipt_is_not_wrong() -> None:
    assert found(receipt(GOOD)) == ([], [])
    assert found(receipt(GOOD, provenance=None), trigger="end") == ([], [])


def changed(**values: Any) -> Row:
    """The good row with something else in it."""
    return Row(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **values})


@pytest.mark.parametrize(
    ("given", "trigger", "word"),
    [
        (None, "stop", "no receipt"),
        (receipt(GOOD, provenance=None), "stop", "provenance"),
        (receipt(GOOD), "end", "provenance"),
        (receipt(GOOD), "supersede", "provenance"),
        (receipt(GOOD), "immediate", "asked to end"),
        (receipt(changed(status=-9)), "stop", "contradict"),
        (receipt(changed(how=How.EXIT)), "stop", "exited"),
        (receipt(changed(ended_at=NOW + 60)), "stop", "future"),
        (receipt(changed(started_at=NOW - 1, ended_at=NOW - 9)), "stop", "before it began"),
        (receipt(changed(ended_at=None, how=None)), "stop", "has not ended"),
        (receipt(changed(how=How.ABANDONED, status=None)), "stop", "lost"),
        (receipt(GOOD, Row(PartKind.CALL, "case", NOW - 9)), "stop", "has not ended"),
        (receipt(GOOD, reaped=0), "stop", "none was reaped"),
    ],
)
def test_a_receipt_that_says_what_cannot_be_is_wrong(given: Receipt | None, trigger: str, word: str) -> None:
    _, wrong = found(given, trigger=trigger)
    assert any(word in fault for fault in wrong), wrong


def test_a_complete_receipt_with_a_survivor_is_wrong() -> None:
    survivors, wrong = found(receipt(GOOD), LIFE)
    assert len(survivors) == 1
    assert "complete" in wrong[0]


def test_a_receipt_that_names_a_living_process_dead_is_wrong_also_if_it_is_not_complete() -> None:
    born = changed(started_at=LIFE.started_at, ended_at=LIFE.started_at + 1)
    verdict = judge(receipt(born, complete=False), {77: LIFE}, Seen(), "stop", uid=0, now=LIFE.started_at + 2)
    assert any("pid 77 has ended" in fault for fault in verdict.wrong)
    assert verdict.unproven
    # The pid alone says nothing: somebody else may have it by now.
    other = changed(started_at=LIFE.started_at - 50, ended_at=LIFE.started_at - 40)
    later = judge(receipt(other, complete=False), {77: LIFE}, Seen(), "stop", uid=0, now=LIFE.started_at + 2)
    assert later.wrong == []


def test_only_what_another_user_runs_may_be_named_as_out_of_reach() -> None:
    lost = receipt(changed(ended_at=None, how=How.ABANDONED), complete=False)
    noted = receipt(
        changed(pid=5, ended_at=None, how=How.ABANDONED, note="could not be killed: sleep (pid 77, state S)"),
        complete=False,
    )
    silent = receipt(changed(pid=5, ended_at=None, how=How.ABANDONED), complete=False)
    near = receipt(changed(pid=5, ended_at=None, how=How.ABANDONED, note="pid 770"), complete=False)
    assert found(lost, LIFE, uid=61234) == ([], [])
    assert found(noted, LIFE, uid=61234) == ([], [])
    for given, uid in ((silent, 61234), (near, 61234), (lost, 1000), (lost, 0)):
        survivors, _ = found(given, LIFE, uid=uid)
        assert len(survivors) == 1, (given, uid)


def test_signals_that_came_have_to_be_in_the_receipt_and_no_others_may_be() -> None:
    heard = Seen(lines=1, everybody={(77, 0)}, hear={77}, heard={77})
    _, wrong = found(receipt(changed(signals=(), how=How.EXIT, status=0)), seen=heard)
    assert any("not in the receipt" in fault for fault in wrong)
    other = changed(signals=(), how=How.EXIT, status=0, note=f"{MAYBE} SIGHUP")
    assert any("not in the receipt" in fault for fault in found(receipt(other), seen=heard)[1])
    unsure = changed(signals=(), how=How.EXIT, status=0, note=f"{MAYBE} SIGTERM")
    assert found(receipt(unsure), seen=heard) == ([], [])
    deaf = Seen(lines=1, everybody={(77, 0)}, hear={77})
    _, wrong = found(receipt(changed(how=How.EXIT, status=0)), seen=deaf)
    assert any("said to have exited" in fault for fault in wrong)
    assert found(receipt(changed(how=How.EXIT, status=0)), seen=heard) == ([], [])


def test_the_far_side_of_a_case_has_to_be_named_exactly_and_to_live() -> None:
    me = census.look(os.getpid())
    assert me is not None
    there = Seen(lines=3, everybody={(77, 0)}, far={(me.pid, me.ticks)})
    early = Seen(lines=2, everybody={(77, 0)}, far={(me.pid, me.ticks)})
    gone = Seen(lines=3, everybody={(77, 0)}, far={(me.pid, me.ticks - 1)})
    ssh, docker, at = (
        Row(PartKind.REMOTE, name, how=How.OUT_OF_REACH) for name in ("ssh host", "docker exec web", "at now")
    )
    assert found(receipt(GOOD, ssh, docker), seen=there) == ([], [])
    for rows in ((ssh,), (ssh, docker, at), (ssh, ssh, docker), ()):
        _, wrong = found(receipt(GOOD, *rows), seen=there)
        assert any("as out of reach" in fault for fault in wrong)
    assert any("as out of reach" in fault for fault in found(receipt(GOOD, ssh))[1])
    # The second client was ended before it was one.
    for some in ([], [ssh], [ssh, docker]):
        assert found(receipt(GOOD, *some), seen=early) == ([], [])
    for others in ([ssh, ssh], [ssh, at]):
        assert any("as out of reach" in fault for fault in found(receipt(GOOD, *others), seen=early)[1])
    assert any("is gone" in fault for fault in found(receipt(GOOD, ssh, docker), seen=gone)[1])


def test_a_process_elsewhere_is_no_survivor_and_any_other_that_shows_the_token_is(tmp_path: Path) -> None:
    token, seen = f"cmg-test-{time.monotonic_ns()}.", tmp_path / "seen"
    env = {"PATH": os.environ["PATH"], "ANY": token}
    with sleeper("sh", "-c", "sleep 60; :", env=env) as far, sleeper(env=env) as near:
        try:
            until(lambda: len(census.marked(token)) == 3, "all of them")
            seen.write_text(f"far {far.pid} {ticks_of(far.pid)}\n")
            assert set(census.living(token, seen)) == {near.pid}
            assert census.tokens_alive("cmg-test-", {token: seen}) == {token}
            near.kill()
            near.wait()
            assert census.living(token, seen) == {}
            assert census.tokens_alive("cmg-test-", {token: seen}) == set()
            assert [life.pid for life in census.far_side(census.read(seen))] == [far.pid]
        finally:
            census.end_all(token, [seen])
            for one in (far, near):
                one.kill()
    assert census.marked(token) == []


def test_what_a_run_says_after_its_fence_is_stale_and_its_ending_is_not() -> None:
    events = [
        Event(seq, "s", 1, run, kind, {}, NOW)
        for seq, run, kind in (
            (1, "a", "text"),
            (2, "a", "session.fenced"),
            (3, "a", "tool.output"),
            (4, "b", "tool.started"),
            (5, "a", "process.ended"),
            (6, "a", "run.ended"),
        )
    ]
    assert [line.split()[0] for line in stale_events(events, 2, "a")] == ["tool.output"]
    assert stale_events(events, None, "a") == []
    calls = [("tool.output", "c"), ("tool.ended", "c"), ("tool.output", "d"), ("tool.output", "c")]
    logged = [Event(seq, "s", 1, "a", kind, {"call_id": call}, NOW) for seq, (kind, call) in enumerate(calls, 1)]
    assert stale_output(logged, "c") == ["tool.output #4 after the end of its call"]
