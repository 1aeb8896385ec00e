"""Which commands are known to work elsewhere, so that killing them does not reach what they started."""

from __future__ import annotations

import os

import pytest

from supervisor.containment.guard import out_of_reach, procfs
from supervisor.containment.guard.out_of_reach import FOUND_MAX, OutOfReach, commands_out_of_reach


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["ssh", "host", "sleep 9"], "ssh host sleep 9"),
        (["/usr/bin/ssh", "host"], "ssh host"),
        (["docker", "exec", "web", "sleep"], "docker exec web sleep"),
        (["docker", "--context", "exec", "-D", "run", "-d", "img"], "docker run -d img"),
        (["kubectl", "-n", "prod", "exec", "pod", "--", "ls"], "kubectl exec pod -- ls"),
        (["sudo", "-u", "bob", "docker", "run", "img"], "docker run img"),
        (["env", "-i", "A=1", "timeout", "5", "ssh", "h"], "ssh h"),
        (["systemd-run", "--user", "sleep"], "systemd-run --user sleep"),
        (["systemctl", "--user", "start", "x"], "systemctl start x"),
    ],
)
def test_a_command_whose_work_is_done_elsewhere_is_named(argv: list[str], name: str) -> None:
    assert commands_out_of_reach(argv) == [(name, True)]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sleep", "9"],
        ["docker", "ps"],
        ["docker", "logs", "run"],
        ["kubectl", "get", "pods"],
        ["grep", "ssh", "file"],
        ["sh", "script", "ssh"],
        ["sh", "-c", "echo ssh host; grep docker exec"],
        ["sshd"],
    ],
)
def test_other_commands_are_not_named(argv: list[str]) -> None:
    assert commands_out_of_reach(argv) == []


def test_what_a_script_names_is_said_to_be_named_only_and_is_named_once() -> None:
    script = "cd /x && A=1 docker run -d img & if ssh h true; then (kubectl exec p -- ls); fi\nssh h true"
    named = [("docker run -d img", False), ("ssh h true", False), ("kubectl exec p -- ls", False)]
    assert commands_out_of_reach(["bash", "-lc", script]) == named


def test_l14_what_a_script_names_is_bounded() -> None:
    script = ";".join(f"ssh host{number}" for number in range(100))
    assert len(commands_out_of_reach(["sh", "-c", script])) == FOUND_MAX


def test_a_command_line_that_many_have_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[str]] = []

    def far(argv: list[str]) -> list[tuple[str, bool]]:
        looked.append(argv)
        return commands_out_of_reach(argv)

    monkeypatch.setattr(out_of_reach, "commands_out_of_reach", far)
    found = OutOfReach()
    shell = ["bash", "-c", "ssh host & wait"]
    assert [row["name"] for argv in (shell, list(shell), ["ssh", "other"]) for row in found.see(argv)] == [
        "ssh host",
        "ssh other",
    ]
    assert looked == [shell, ["ssh", "other"]]


def test_a_kill_waits_no_longer_for_what_a_tree_has_asked_others_to_do_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, read = [0.0], []

    def command_line(pid: int) -> list[str]:
        # As slow as the parsing of a long script.
        now[0] += 0.005
        read.append(pid)
        return ["ssh", f"host{pid}"]

    monkeypatch.setattr(procfs, "command_line", command_line)
    monkeypatch.setattr(out_of_reach, "monotonic", lambda: now[0])
    assert len(OutOfReach().look(range(1000))) == len(read) == out_of_reach.SOUGHT_MAX_S / 0.005
    monkeypatch.setattr(out_of_reach, "SOUGHT_MAX_S", 1e9)
    read.clear()
    OutOfReach().look(range(1000))
    assert len(read) == out_of_reach.SOUGHT_MAX
    monkeypatch.undo()
    assert OutOfReach().look([os.getpid(), 2**22 + 1]) == []
