"""Which commands are known to work elsewhere, so that killing them does not reach what they started."""

from __future__ import annotations

import pytest

from supervisor.containment.remote import FOUND_MAX, far_sides


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
    assert far_sides(argv) == [(name, True)]


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
    assert far_sides(argv) == []


def test_what_a_script_names_is_said_to_be_named_only_and_is_named_once() -> None:
    script = "cd /x && A=1 docker run -d img & if ssh h true; then (kubectl exec p -- ls); fi\nssh h true"
    named = [("docker run -d img", False), ("ssh h true", False), ("kubectl exec p -- ls", False)]
    assert far_sides(["bash", "-lc", script]) == named


def test_l14_what_a_script_names_is_bounded() -> None:
    script = ";".join(f"ssh host{number}" for number in range(100))
    assert len(far_sides(["sh", "-c", script])) == FOUND_MAX
