"""Cgroups of trees: found on every kind of mount, joined before anything runs, and removed as the proof."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.model import How
from supervisor.containment.guard import cgroups, procfs
from tests.process_kit import NO_CGROUP, OWN_GROUP, Bench, bench, needs_cgroups, until

ROOT = Path(__file__).parent.parent

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
NAMESPACED = "30 23 0:26 /docker/ab\\040c /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n"


# ── Finding a place ───────────────────────────────────────────────────────────────────────────────


def test_the_mount_is_found_on_hybrid_and_unified_machines() -> None:
    assert cgroups.mount_of(HYBRID) == ("/sys/fs/cgroup/unified", "/")
    assert cgroups.mount_of(UNIFIED) == ("/sys/fs/cgroup", "/")
    assert cgroups.mount_of(NAMESPACED) == ("/mnt/my groups", "/docker/ab c")
    assert cgroups.mount_of("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n") is None


def test_our_own_path_is_that_of_the_unified_hierarchy() -> None:
    assert cgroups.path_of("9:name=systemd:/\n4:memory:/x\n0::/user.slice/a.scope\n") == "/user.slice/a.scope"
    assert cgroups.path_of("0::/a (deleted)\n") == "/a"
    assert cgroups.path_of("4:memory:/x\n") is None


@pytest.mark.parametrize(
    ("mount", "cgroup", "expected"),
    [
        (HYBRID, "0::/user.slice/a.scope\n", "/sys/fs/cgroup/unified/user.slice/a.scope"),
        (UNIFIED, "0::/\n", "/sys/fs/cgroup"),
        (NAMESPACED, "0::/docker/ab c/x\n", "/mnt/my groups/x"),
        (NAMESPACED, "0::/elsewhere\n", None),
        (NAMESPACED, "0::/../up\n", None),
        ("", "0::/\n", None),
    ],
)
def test_our_own_directory_is_where_the_mount_shows_it(
    monkeypatch: pytest.MonkeyPatch, mount: str, cgroup: str, expected: str | None
) -> None:
    texts = {"/proc/self/mountinfo": mount, "/proc/self/cgroup": cgroup}
    monkeypatch.setattr(procfs, "read_text", texts.__getitem__)
    assert cgroups.own_group() == expected


def test_a_group_that_is_not_ours_to_write_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "own_group", lambda: "/nowhere")
    base, why = cgroups.prepare(str(tmp_path))
    assert base is None
    assert why == "/nowhere is not ours to write"
    monkeypatch.setattr(cgroups, "own_group", lambda: None)
    assert cgroups.prepare(str(tmp_path)) == (None, "there is no cgroup v2 here")


# ── One group ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def group() -> Iterator[str]:
    """A group of this test, below our own; emptied and removed at the end."""
    assert OWN_GROUP is not None
    path = os.path.join(OWN_GROUP, f"countermand-test-{uuid.uuid4().hex}")
    os.mkdir(path)
    try:
        yield path
    finally:
        cgroups.end(path, 10.0)


def sleeper_in(group: str, script: str = "exec sleep 1000") -> subprocess.Popen[bytes]:
    """A process that has joined `group`; it says so before this returns."""
    join = f"echo 0 > {group}/cgroup.procs; echo in; {script}"
    process = subprocess.Popen(["/bin/sh", "-c", join], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"in\n"
    process.stdout.close()
    return process


@needs_cgroups
def test_l3_a_group_is_removed_only_when_it_is_empty(group: str) -> None:
    process = sleeper_in(group)
    try:
        assert not cgroups.remove(group)
        assert cgroups.end(group, 10.0)
        assert process.wait(10) == -9
        assert not cgroups.remove(group), "who finds nothing has proven nothing"
        assert not cgroups.end(group, 0.0)
    finally:
        process.kill()
        process.wait()


@needs_cgroups
def test_l3_groups_that_a_tree_made_itself_are_ended_with_it(group: str) -> None:
    nested = os.path.join(group, "a", "b")
    os.makedirs(nested)
    process = sleeper_in(nested)
    try:
        assert cgroups.end(group, 10.0)
        assert process.wait(10) == -9
        assert not os.path.exists(group)
    finally:
        process.kill()
        process.wait()


@needs_cgroups
def test_l3_a_kernel_without_cgroup_kill_freezes_and_kills_one_by_one(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "KILL_FILE", "cgroup.no-such-file")
    nested = os.path.join(group, "nested")
    os.mkdir(nested)
    processes = [sleeper_in(group, "while :; do /bin/true; done"), sleeper_in(nested)]
    try:
        assert cgroups.end(group, 10.0)
        assert [process.wait(10) for process in processes] == [-9, -9]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@needs_cgroups
def test_l3_a_process_that_left_the_group_is_not_signalled_as_its_member(group: str) -> None:
    process = sleeper_in(group)
    try:
        other = os.path.join(group, "other")
        os.mkdir(other)
        cgroups.join(other, process.pid)
        assert not cgroups.signal_member(process.pid, group, 9)
        assert cgroups.signal_member(process.pid, other, 9)
        assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()


BORN = """
import os, sys
from supervisor.containment.guard import cgroups
if sys.argv[2] == "old":
    cgroups.SYS_CLONE3 = 100_000
pid, inside = cgroups.fork_into(sys.argv[1])
if pid == 0:
    if not inside:
        cgroups.join(sys.argv[1])
    os.execv("/bin/cat", ["cat", "/proc/self/cgroup"])
os.waitpid(pid, 0)
print(inside, open("/proc/self/cgroup").read().count("countermand-test"))
"""


@needs_cgroups
@pytest.mark.parametrize("kernel", ["new", "old"])
def test_l3_a_command_is_in_its_group_before_it_is_executed_and_its_parent_is_not(group: str, kernel: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BORN, group, kernel],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("0::") and line.endswith(os.path.basename(group))]
    assert lines[-1] == f"{kernel == 'new'} 0"


LEAF = """
import os, sys
from supervisor.containment.guard import cgroups
print(cgroups.take_leaf(sys.argv[1]) == sys.argv[1], cgroups.own_group() == os.path.join(sys.argv[1], "daemon"))
print(cgroups.take_leaf(cgroups.own_group()) == sys.argv[1])
"""


@needs_cgroups
@pytest.mark.parametrize("case", ["delegated", "not delegated", "not alone"])
def test_the_daemon_takes_a_leaf_only_in_a_group_that_is_delegated_and_that_it_has_alone(group: str, case: str) -> None:
    if case != "not delegated":
        try:
            os.setxattr(group, "user.delegate", b"1")
        except OSError:
            pytest.skip("no extended attributes on cgroups here")
    other = sleeper_in(group) if case == "not alone" else None
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$0" -c "$1" {group}', sys.executable, LEAF],
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        if other is not None:
            other.kill()
            other.wait()
    assert done.stdout.splitlines() == (["True True", "True"] if case == "delegated" else ["True False", "True"])


# ── Trees in their groups ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as opened:
        yield opened


@needs_cgroups
def test_l3_all_of_a_tree_is_in_its_group_and_neither_warden_nor_zygote_nor_daemon_is(b: Bench) -> None:
    b.sh("setsid sleep 1000 & sleep 1000 & echo up; wait")
    b.owner.wait_text("up")
    group, pid = b.group(), b.owner.started().pid
    assert group is not None
    until(lambda: len(b.alive()) == 3, "all three")
    # For a moment more what kept the command's memory until its exec is there, too.
    until(lambda: sorted(cgroups.pids_in(group)) == sorted(b.alive()), "the group holds the three and nobody else")
    wardens = os.path.join(os.path.dirname(group), cgroups.WARDENS)
    assert {b.warden_of(pid), b.zygote_pid()} <= set(cgroups.pids_in(wardens))
    assert cgroups.own_group() == OWN_GROUP
    b.trees.kill("p", 5.0)
    assert b.owner.ended().proven
    assert not os.path.exists(group)


@needs_cgroups
def test_l3_the_group_goes_with_a_natural_end_and_with_a_command_that_cannot_be_executed(b: Bench) -> None:
    mount = cgroups.mount_of(procfs.read_text("/proc/self/mountinfo"))
    assert mount is not None
    b.sh(f"mkdir {mount[0]}/$(sed -n 's/^0:://p' /proc/self/cgroup)/mine || exit 4; exit 3")
    b.run(("/no/such/command",), "none")
    assert b.owner.ended().status == 3
    assert b.owner.ended("none").how is How.NOT_STARTED
    for process_id in ("p", "none"):
        group = b.group(process_id)
        assert group is not None
        assert not os.path.exists(group)


@needs_cgroups
def test_l3_a_process_that_changes_its_group_is_caught_by_the_layer_below(b: Bench) -> None:
    assert OWN_GROUP is not None
    b.sh(f"setsid sh -c 'echo 0 > {OWN_GROUP}/cgroup.procs; echo moved; exec sleep 1000' & wait")
    b.owner.wait_text("moved")
    group = b.group()
    assert group is not None
    until(lambda: len(cgroups.pids_in(group)) == 1, "who has moved is not in it, and what its warden had ready is gone")
    b.trees.kill("p", 0.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


@needs_cgroups
def test_l3_a_stranger_in_the_group_does_not_prevent_the_proof(b: Bench) -> None:
    b.sh("echo up; exec sleep 1000")
    b.owner.wait_text("up")
    group = b.group()
    assert group is not None
    stranger = sleeper_in(group)
    try:
        b.trees.kill("p", 0.0)
        assert b.owner.ended().proven
        assert stranger.wait(10) == -9, "who is in the group of a tree is of it"
    finally:
        stranger.kill()
        stranger.wait()


@needs_cgroups
def test_l3_groups_of_a_dead_daemon_are_emptied_and_removed_at_the_next_start(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.trees.close()
        base, _ = cgroups.prepare(str(tmp_path / "wardens"))
        assert base is not None
        left = os.path.join(base, f"{cgroups.TREE_PREFIX}4194304-1")
        os.mkdir(left)
        process = sleeper_in(left)
        living = os.path.join(base, f"{cgroups.TREE_PREFIX}{os.getpid()}-{procfs.stat(os.getpid()).start_ticks}")  # type: ignore[union-attr]
        os.mkdir(living)
        try:
            b.trees = b.new_trees()
            until(lambda: not os.path.exists(left), "what was left is removed")
            assert process.wait(10) == -9
            b.run(("/bin/true",))
            assert b.owner.ended().proven
            assert os.path.exists(living), "the group of a warden that lives is its own to remove"
        finally:
            os.rmdir(living)
            process.kill()
            process.wait()
            cgroups.end(left, 10.0)
        b.trees.close()
        assert not os.path.exists(base)


@needs_cgroups
def test_l3_what_a_dead_daemon_left_in_another_group_is_found_by_its_note(tmp_path: Path, group: str) -> None:
    base = os.path.join(group, "countermand-before")
    left = os.path.join(base, f"{cgroups.TREE_PREFIX}4194304-1")
    os.makedirs(left)
    process = sleeper_in(left)
    (tmp_path / "wardens").mkdir()
    (tmp_path / "wardens" / "cgroup").write_text(f"{procfs.boot_id()}\n{base}")
    try:
        with bench(tmp_path):
            until(lambda: not os.path.exists(base), "all of it is removed")
            assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()


# ── One layer without another ─────────────────────────────────────────────────────────────────────


def escaped(tmp_path: Path) -> str:
    """A command that exits as soon as a child of it is in a session of its own and ignores SIGTERM."""
    up = tmp_path / "up"
    child = f'trap "" TERM; touch {up}; while :; do sleep 0.05; done'
    return f"setsid sh -c '{child}' & while ! test -e {up}; do sleep 0.01; done; exit 0"


@needs_cgroups
def test_l3_without_the_subreaper_the_cgroup_alone_waits_for_kills_and_proves(tmp_path: Path) -> None:
    with bench(tmp_path, layers={"cgroup"}) as b:
        b.sh(escaped(tmp_path))
        b.owner.exited()
        assert b.owner.exited().status == 0
        b.sh("exit 0", "later")
        assert b.owner.ended("later").proven
        assert "ProcessEnded" not in b.owner.kinds(), "who is in the background is not ended with the command"
        b.trees.kill("p", 10_000.0)
        until(lambda: '"SIGCONT"' in b.ledger_text(), "it is asked to end")
        b.trees.kill("p", 0.1)
        ended = b.owner.ended()
        assert (ended.proven, ended.note) == (True, "")
        assert {"SIGTERM", "SIGKILL"} <= {sent.signal for sent in ended.signals}
        b.assert_nobody_left()


def test_l3_without_subreaper_and_cgroup_what_the_marker_finds_is_killed_and_no_proof_is_claimed(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, layers={"marker"}) as b:
        b.sh(escaped(tmp_path))
        b.owner.exited()
        ended = b.owner.ended()
        assert (ended.how, ended.status, ended.proven) == (How.EXIT, 0, False)
        assert ended.note.startswith("the subreaper layer is off; ")
        assert ended.note.endswith("nothing proves that no other process of it is left")
        b.assert_nobody_left()


def test_l3_with_no_layer_at_all_nothing_is_claimed(tmp_path: Path) -> None:
    with bench(tmp_path, layers=()) as b:
        b.sh(escaped(tmp_path))
        b.owner.exited()
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.EXIT, False)
        assert b.alive()


@pytest.mark.parametrize("layers", [NO_CGROUP, {"subreaper"}, {"subreaper", "zygote"}])
def test_l3_the_subreaper_alone_holds_whatever_else_is_off(tmp_path: Path, layers: frozenset[str]) -> None:
    with bench(tmp_path, layers=layers) as b:
        b.sh(escaped(tmp_path))
        b.owner.exited()
        assert b.group() is None
        b.trees.kill("p", 0.1)
        assert b.owner.ended().proven
        b.assert_nobody_left()


@needs_cgroups
def test_l3_without_the_zygotes_layer_the_cgroup_of_a_killed_warden_is_emptied(tmp_path: Path) -> None:
    with bench(tmp_path, layers={"subreaper", "cgroup"}) as b:
        b.sh("setsid sleep 1000 & echo up; exec sleep 1000")
        b.owner.wait_text("up")
        os.kill(b.warden_of(b.owner.started().pid), 9)
        ended = b.owner.ended()
        assert ended.proven
        assert "its cgroup was emptied and removed" in ended.note
        b.assert_nobody_left()
