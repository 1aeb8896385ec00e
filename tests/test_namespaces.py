"""Namespaces of trees: whoever is in one dies with its first process, by the kernel's hand and nobody else's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import How, NewMessage, Stop
from actors.errors import Invalid
from supervisor import Config, Supervisor
from supervisor.config import LAYERS
from supervisor.containment.guard import ledger, procfs
from supervisor.containment.guard.namespaces import KEEPER
from tests.process_kit import (
    NAMESPACE,
    Bench,
    bench,
    needs_namespaces,
    our_children,
    our_preforked,
    until,
    until_a_preforked_child_is_old,
)
from tests.test_orphans import kill_all_three
from tests.test_warden import daemon

ROOT = Path(__file__).parent.parent
ALONE = frozenset({"namespace"})
"""Nothing else that could find, kill or prove anything."""

AWAY = "setsid env -i /bin/sh -c 'setsid sleep 1000 & exec sleep 1000' & while :; do sleep 0.1; done"
"""A daemon in a session of its own, and another one below it, both without the environment that they are known by."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else, or forbid namespaces")

pytestmark = needs_namespaces


@pytest.fixture(params=[ALONE, NAMESPACE], ids=["alone", "with all layers"])
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(tmp_path, layers=request.param) as opened:
        yield opened


def members(b: Bench, process_id: str = "p") -> list[procfs.Stat]:
    """Who lives in the namespace of a tree, its keeper aside: found by the namespace, whatever they hide."""
    keeper = b.keeper(process_id)
    space = os.readlink(f"/proc/{keeper}/ns/pid")
    found = []
    for name in os.listdir("/proc"):
        try:
            inside = name.isdigit() and int(name) != keeper and os.readlink(f"/proc/{name}/ns/pid") == space
        except OSError:
            continue
        seen = procfs.stat(int(name)) if inside else None
        if seen is not None and seen.state not in "ZX":
            found.append(seen)
    return found


def up(b: Bench, script: str = AWAY, names: str = "sh sleep sleep sleep") -> list[procfs.Stat]:
    """Start a tree, and wait until all of it is there, what it executes included."""
    b.sh(script)
    b.owner.started()
    until(lambda: sorted(seen.name for seen in members(b)) == sorted(names.split()), "all of the tree")
    return members(b)


def gone(lives: list[procfs.Stat]) -> bool:
    """True if none of them lives."""
    now = [(one, procfs.stat(one.pid)) for one in lives]
    return not [one for one, seen in now if seen and seen.start_ticks == one.start_ticks and seen.state not in "ZX"]


# ── What dies with it ─────────────────────────────────────────────────────────────────────────────


def test_l3_a_process_that_hides_from_all_other_layers_dies_with_the_namespace(b: Bench) -> None:
    lives = up(b)
    b.trees.kill("p", 0.0)
    ended = b.owner.ended()
    assert gone(lives)
    assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)
    assert procfs.stat(b.keeper() or 0) is None


def test_l3_a_killed_warden_takes_its_namespace_with_it(b: Bench) -> None:
    lives = up(b)
    os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
    assert b.owner.ended().proven
    assert gone(lives)


def test_l3_with_warden_and_zygote_both_killed_the_end_of_the_namespace_is_the_proof(b: Bench) -> None:
    lives, zygote = up(b), b.zygote_pid()
    warden = b.warden_of(b.owner.started().pid)
    with b.stopped(zygote):
        os.kill(warden, signal.SIGKILL)
        os.kill(zygote, signal.SIGKILL)
    ended = b.owner.ended()
    assert gone(lives)
    assert (ended.how, ended.proven) == (How.SIGKILL, True)
    assert "the first process of its PID namespace has ended, and with it all others in it" in ended.note


def test_l3_with_daemon_zygote_and_warden_all_killed_no_process_is_left_before_the_next_start(b: Bench) -> None:
    b.trees.close()
    with daemon(b, b.options["layers"]) as victim:
        victim.spawn(AWAY)
        pid = int(victim.line().split()[1])
        until(lambda: len(members(b)) == 4, "all of the tree")
        lives = members(b)
        kill_all_three(b, victim, pid)
        until(lambda: gone(lives), "the kernel has killed all of it")
    b.trees = b.new_trees()
    b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
    ended = b.owner.ended()
    assert (ended.how, ended.proven, ended.pid) == (How.SIGKILL, True, pid)


def test_l3_after_kill_9_of_the_daemon_alone_its_warden_ends_all_of_it(b: Bench) -> None:
    b.trees.close()
    with daemon(b, b.options["layers"]) as victim:
        victim.spawn(AWAY)
        victim.line()
        until(lambda: len(members(b)) == 4, "all of the tree")
        lives, keeper = members(b), b.keeper()
        victim.kill()
        until(lambda: '"empty"' in b.ledger_text(), "the warden's last word")
    assert gone(lives)
    assert procfs.stat(keeper or 0) is None
    b.trees = b.new_trees()
    b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
    assert b.owner.ended().proven


def test_l3_a_killed_keeper_takes_all_with_it_and_the_end_is_proven(b: Bench) -> None:
    lives, keeper = up(b), b.keeper()
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    ended = b.owner.ended()
    assert gone(lives)
    assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)


def test_l3_a_stopped_keeper_does_not_hold_up_a_kill(b: Bench) -> None:
    lives, keeper = up(b), b.keeper()
    assert keeper is not None
    with b.stopped(keeper):
        b.trees.kill("p", 0.1)
        assert b.owner.ended().proven
        assert gone(lives)


def test_l3_a_keeper_cannot_be_signalled_from_within(b: Bench) -> None:
    b.sh("kill -KILL 1; kill -STOP 1; kill -TERM 1; sleep 0.1; exit 5")
    assert b.owner.ended().status == 5


def test_l3_the_zygote_is_killed_and_a_tree_is_ended_as_ever(b: Bench) -> None:
    lives = up(b)
    os.kill(b.zygote_pid(), signal.SIGKILL)
    b.trees.kill("p", 0.1)
    ended = b.owner.ended()
    assert (ended.status, ended.proven) == (-9 if ended.how is How.SIGKILL else -15, True)
    assert gone(lives)


def test_l3_at_the_end_no_keeper_is_left_nor_one_of_a_spare_warden_that_was_killed(b: Bench) -> None:
    b.sh("exit 0")
    assert b.owner.ended().proven
    zygote = b.zygote_pid()

    def keepers() -> list[int]:
        spares = procfs.children(zygote)
        below = [procfs.stat(pid) for spare in spares for pid in [spare, *procfs.children(spare)]]
        return [seen.pid for seen in below if seen is not None and seen.name == KEEPER]

    until(lambda: len(keepers()) == 1, "the keeper of a spare warden")
    (keeper,) = keepers()
    os.kill(procfs.stat(keeper).ppid, signal.SIGKILL)  # type: ignore[union-attr]
    until(lambda: procfs.stat(keeper) is None, "its keeper is gone and reaped")
    until(lambda: len(keepers()) == 1, "the keeper of another one")
    (keeper,) = keepers()
    assert b.trees.close()
    assert procfs.stat(keeper) is None
    assert not [pid for pid in our_children() if (seen := procfs.stat(pid)) and seen.name == KEEPER]


# ── What is as it was ─────────────────────────────────────────────────────────────────────────────


def test_l3_a_process_that_ends_politely_is_listed_and_all_pids_are_those_of_the_machine(b: Bench) -> None:
    # The one in the background loses its parent, and falls to the keeper.
    b.sh("(sleep 1000 & exec true); echo $$; exec sleep 1000")
    b.owner.wait_text("2\n")
    until(lambda: sorted(seen.name for seen in members(b)) == ["sleep", "sleep"], "both")
    lives, pid = members(b), b.owner.started().pid
    assert pid in {one.pid for one in lives}
    b.trees.kill("p", 60.0)
    ended = b.owner.ended()
    assert ended.pid == pid
    assert {one.pid for one in lives} <= {row.pid for row in ended.rows}
    for row in ended.rows:
        if row.pid in {one.pid for one in lives}:
            assert (row.how, row.status) == (How.SIGTERM, -15)
            assert [sent.signal for sent in row.signals] == ["SIGTERM", "SIGCONT"]
    assert b.keeper() not in {row.pid for row in ended.rows}


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 255", 255), ("kill -SEGV $$", -11)])
def test_the_exit_status_is_the_commands_and_no_process_is_counted_twice(b: Bench, script: str, status: int) -> None:
    b.sh(script)
    ended = b.owner.ended()
    assert (b.owner.exited().status, ended.status, ended.reaped, ended.proven) == (status, status, 1, True)


def test_l3_a_process_in_the_background_is_waited_for_and_its_status_is_seen(b: Bench, tmp_path: Path) -> None:
    b.sh(f"(while ! test -e {tmp_path}/go; do sleep 0.01; done; exit 7) & exit 0")
    b.owner.exited()
    assert "ProcessEnded" not in b.owner.kinds()
    (tmp_path / "go").touch()
    ended = b.owner.ended()
    assert (ended.status, ended.proven) == (0, True)
    assert 7 in [row.status for row in ended.rows]


def test_the_proc_of_a_command_shows_its_own_namespace_and_no_warden(b: Bench) -> None:
    b.sh("cat /proc/self/status | sed -n 's/^NSpid:.//p'; cat /proc/[0-9]*/comm")
    ended = b.owner.ended()
    assert ended.status == 0
    number, *names = b.owner.text().split()
    assert int(number) < 10
    assert names[:2] == [KEEPER, "sh"]
    assert "cm-warden" not in names


def test_l3_a_command_that_cannot_be_executed_leaves_no_keeper(b: Bench) -> None:
    b.run(("/no/such/command",))
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.NOT_STARTED, True)
    assert ended.note == "cannot execute '/no/such/command': No such file or directory"
    assert procfs.stat(b.keeper() or 0) is None


# ── An ordinary user ──────────────────────────────────────────────────────────────────────────────

ORDINARY = """
import os, signal, sys
from pathlib import Path
import pytest
assert os.getresuid() == (61234, 61234, 61234)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", sys.argv[1] + "/t",
    "tests/test_namespaces.py", "-k", "hides or killed or numbers_of_the_machine or status"]))
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
def test_l3_an_ordinary_user_has_the_same_by_a_user_namespace() -> None:
    folder = Path(tempfile.mkdtemp(prefix="countermand-test-"))
    os.chown(folder, 61234, 61234)
    caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    who = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups", *caps]
    try:
        done = subprocess.run(
            [*who, sys.executable, "-c", ORDINARY, str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


# ── Where it cannot be had ────────────────────────────────────────────────────────────────────────

FORBIDDEN = """
import sys
from actors.errors import Invalid
from supervisor import Config, Supervisor
from supervisor.config import LAYERS
try:
    Supervisor.start(Config(state_dir=sys.argv[1], layers=LAYERS | {"namespace"}))
except Invalid as error:
    print(error.expected, error.got, error.remedy, sep="\\n")
with Supervisor.start(Config(state_dir=sys.argv[1])):
    print("without")
"""


NO_SPACE = "unshare: No space left on device"


@needs_root
@pytest.mark.parametrize(
    ("before", "drop", "why"),
    [
        (("--map-user=1000", "--keep-caps"), "--ambient-caps=-all --inh-caps=-all", NO_SPACE),
        (("--map-root-user",), "--bounding-set=+all", NO_SPACE),
        (("--map-root-user",), "--bounding-set=-sys_admin", "we are root without CAP_SYS_ADMIN"),
    ],
    ids=["user", "pid", "root-without-capability"],
)
def test_where_the_kernel_forbids_it_a_start_that_asks_for_it_is_refused_and_another_is_not(
    tmp_path: Path, before: tuple[str, ...], drop: str, why: str
) -> None:
    # In a user namespace of its own, whose limits are nobody else's.
    kind = "pid" if "+all" in drop else "user"
    script = f'echo 0 >/proc/sys/user/max_{kind}_namespaces && exec setpriv {drop} "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "--user", *before, "/bin/sh", "-c", script, sys.executable, FORBIDDEN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected, got, remedy, last = done.stdout.splitlines() or pytest.fail(done.stderr)
    assert "PID namespace" in expected
    assert why in got
    assert "user.max_user_namespaces" in remedy
    assert last == "without"


def test_the_layer_is_there_only_if_it_is_asked_for(tmp_path: Path) -> None:
    assert "namespace" not in Config(state_dir=tmp_path).layers
    assert "namespace" in Config(state_dir=tmp_path, layers=[*LAYERS, "namespace"]).layers
    with pytest.raises(Invalid, match="layers"):
        Config(state_dir=tmp_path, layers=["namespaces"])
    with bench(tmp_path) as b:
        b.sh("exit 0")
        assert b.owner.ended().proven
        assert b.keeper() is None
        spawning = ledger.said(ledger.read_path(tmp_path / "wardens" / "p.ledger"), "spawning")
        assert spawning is not None
        assert spawning["keeper"] is None


def test_what_runs_is_listed_by_the_numbers_of_the_machine_and_without_its_keeper(tmp_path: Path) -> None:
    with Supervisor.start(Config(state_dir=tmp_path, layers=NAMESPACE)) as supervisor:
        session = supervisor.session("s1")
        accepted = session.ask(NewMessage(content="(setsid sleep 1000 &); exec sleep 1001"))
        until(lambda: sorted(one.command for one in session.processes()) == ["sleep 1000", "sleep 1001"], "both")
        listed = session.processes()
        assert [procfs.command_line(one.pid) for one in listed] == [one.command.split() for one in listed]
        session.ask(Stop(source="user.test", reason="seen"))
        receipt = session.receipt(accepted.run_id, timeout=20)
        assert receipt.complete
        rows = [row for call in receipt.rows for row in (call, *call.rows)]
        rows += [row for tree in rows for row in tree.rows]
        assert {one.pid for one in listed} <= {row.pid for row in rows}
        assert all(procfs.stat(one.pid) is None for one in listed)


# ── A preforked child that dies ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layers", [LAYERS, NAMESPACE], ids=["without", "namespace"])
def test_a_preforked_child_that_is_killed_before_it_has_read_its_command_costs_nothing(
    tmp_path: Path, layers: frozenset[str]
) -> None:
    with bench(tmp_path, layers=layers) as b:
        until_a_preforked_child_is_old()
        until(b.has_spare, "its warden is the one that is asked")
        children = [child for child in our_preforked() if child.name != KEEPER]
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        b.sh("echo up")

        def asked() -> bool:
            """Its warden has sent the command, and waits for what comes of it."""
            words = ledger.read_path(tmp_path / "wardens" / "p.ledger")
            seen = procfs.stat((ledger.said(words, "warden") or {"pid": 0})["pid"])
            return ledger.said(words, "spawning") is not None and seen is not None and seen.state == "S"

        until(asked, "the command is sent")
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        b.owner.wait_text("up")
        ended = b.owner.ended()
        assert (ended.how, ended.status, ended.proven) == (How.EXIT, 0, True)
