"""scripts/install: the service as it is installed for the system, hardened, and removed again.

Everything happens under a system manager of the test's, over a copy of the machine's files that is thrown away.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_kit import PROJECT
from tests.kit import until
from tests.systemd_kit import Manager, manager

UNIT = "countermand.service"
INSTALL = str(PROJECT / "scripts" / "install")
INSTALL_S = 900.0
WAIT_S = 120.0
PREFIX = "/opt/countermand test"
CLI = f"{PREFIX}/bin/countermand"

# What builds, tests, browsers and interpreters do, each a line of the output if it works.
TOOLS = r"""
cd ~ && pwd
echo it can write here > file && cat file
test -w /etc || echo it cannot write in /etc
python3 -c 'import mmap; m = mmap.mmap(-1, 4096, prot=7); print("it compiles just in time")'
python3 -c 'import os, pty; pid, fd = pty.fork(); os._exit(0) if pid == 0 else print("it has terminals")'
python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print("it listens")'
python3 -c 'import multiprocessing as m; m.Lock(); print("it has semaphores")'
python3 -c 'import os; os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1); print("it sets its priority")'
test -r /proc/meminfo && test -r /proc/self/status && echo it sees /proc
cp /bin/true ./program && ./program && echo it runs what it has made
test -w /tmp && echo it has a /tmp
unshare --user true && echo it makes namespaces
mkdir /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/own && echo it has a cgroup of its own
"""
EXPECTED = [
    "/var/lib/countermand",
    "it can write here",
    "it cannot write in /etc",
    "it compiles just in time",
    "it has terminals",
    "it listens",
    "it has semaphores",
    "it sets its priority",
    "it sees /proc",
    "it runs what it has made",
    "it has a /tmp",
]


def run_as_service(systemd: Manager, script: str) -> str:
    """Run a script under exactly the restrictions of the unit, as a service beside it; return its output."""
    text = systemd.run("cat", f"/etc/systemd/system/{UNIT}").stdout
    path = "/var/lib/countermand/script.sh"
    systemd.run("sh", "-c", f"cat > {path} <<'END'\n{script}\nEND\nchmod 755 {path}; rm -f /run/out")
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(("Exec", "Type=", "NotifyAccess=", "Restart", "Watchdog", "WantedBy"))
    ]
    place = lines.index("[Service]") + 1
    lines[place:place] = ["Type=oneshot", f"ExecStart=/bin/sh {path}", "StandardOutput=file:/run/out"]
    lines[place:place] = ["StandardError=file:/run/err"]
    body = "\n".join(lines)
    systemd.run("sh", "-c", f"cat > /etc/systemd/system/probe.service <<'END'\n{body}\nEND")
    systemd.ctl("daemon-reload")
    systemd.ctl("start", "probe.service", check=False)
    return systemd.run("cat", "/run/out").stdout


def mode(systemd: Manager, path: str) -> str:
    return systemd.run("stat", "-c", "%U %a", path).stdout.strip()


@pytest.mark.timeout(2 * INSTALL_S)
def test_it_is_installed_serves_hardened_without_breaking_tools_and_is_removed(tmp_path: Path) -> None:
    with manager("system", tmp_path) as systemd:
        systemd.start()
        # An account of the machine's own would be used, and removed at the end.
        assert systemd.run("id", "countermand", check=False).returncode != 0

        systemd.run(INSTALL, "--prefix", PREFIX, "--start", timeout=INSTALL_S)
        assert systemd.show(UNIT, "ActiveState") == "active"
        assert systemd.show(UNIT, "User") == "countermand"
        assert systemd.show(UNIT, "UnitFileState") == "enabled"
        assert mode(systemd, "/var/lib/countermand") == "countermand 700"
        assert mode(systemd, "/run/countermand/countermand.sock") == "countermand 600"
        assert mode(systemd, "/etc/countermand/countermand.toml") == "root 644"
        version = systemd.run(CLI, "--version", environment={"PYTHONPATH": ""}).stdout
        assert version.startswith("countermand 0."), "it is installed whole, with its metadata"
        packages = systemd.run(f"{PREFIX}/bin/pip", "list", "--format=freeze").stdout
        assert "msgspec==" in packages
        assert "pytest==" not in packages, "what only developers need stays out"

        told = run_as_service(systemd, TOOLS).splitlines()
        assert [line for line in told if line in EXPECTED] == EXPECTED, told
        # What the machine itself allows outside of the unit, the unit allows too.
        if (
            systemd.run(
                "setpriv", "--reuid=65534", "--clear-groups", "unshare", "--user", "true", check=False
            ).returncode
            == 0
        ):
            assert "it makes namespaces" in told

        first = systemd.show(UNIT, "MainPID")
        systemd.ctl("reload", UNIT)
        systemd.run("kill", "-KILL", first)
        until(lambda: systemd.show(UNIT, "MainPID") not in ("0", first), "the restart", WAIT_S)
        until(lambda: systemd.show(UNIT, "ActiveState") == "active", "the start", WAIT_S)

        # Again, over what is there: the configuration and the state stay.
        systemd.run("sh", "-c", "echo 'drain_s = 3.5' > /etc/countermand/countermand.toml")
        systemd.run(INSTALL, "--prefix", PREFIX, "--start", timeout=INSTALL_S)
        assert systemd.show(UNIT, "ActiveState") == "active"
        assert "3.5" in systemd.run("cat", "/etc/countermand/countermand.toml").stdout

        said = systemd.run(INSTALL, "--prefix", PREFIX, "--uninstall").stderr
        assert "stays: /var/lib/countermand" in said
        assert systemd.show(UNIT, "LoadState") == "not-found"
        assert systemd.show(UNIT, "ActiveState") == "inactive"
        gone = [PREFIX, "/run/countermand", f"/etc/systemd/system/{UNIT}", "/etc/systemd/system/countermand.socket"]
        assert [path for path in gone if exists(systemd, path)] == []
        assert exists(systemd, "/var/lib/countermand/store.sqlite3")
        systemd.run(INSTALL, "--prefix", PREFIX, "--uninstall", "--purge")
        gone = ["/etc/countermand", "/var/lib/countermand"]
        assert [path for path in gone if exists(systemd, path)] == []
        assert systemd.run("id", "countermand", check=False).returncode != 0


def exists(systemd: Manager, path: str) -> bool:
    return systemd.run("test", "-e", path, check=False).returncode == 0


# ── What is refused, for a user, without a manager ────────────────────────────────────────────────


def install(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run([INSTALL, *words], capture_output=True, text=True, check=False, env=environment)


def test_a_directory_of_another_user_is_neither_taken_nor_removed(tmp_path: Path) -> None:
    prefix = tmp_path / "mine"
    prefix.mkdir()
    (prefix / "thesis").write_text("all of it")
    done = install(tmp_path, "--user", "--prefix", str(prefix), "--uninstall", "--purge")
    assert done.returncode == 0
    assert "it stays" in done.stderr
    assert (prefix / "thesis").read_text() == "all of it"
    done = install(tmp_path, "--user", "--prefix", str(prefix))
    assert done.returncode == 2
    assert "is not an environment of countermand" in done.stderr
    assert (prefix / "thesis").read_text() == "all of it"


def test_what_waits_beside_the_prefix_is_not_taken_for_ours(tmp_path: Path) -> None:
    beside = tmp_path / "mine.before"
    beside.mkdir()
    (beside / "thesis").write_text("all of it")
    for words in ([], ["--uninstall", "--purge"]):
        done = install(tmp_path, "--user", "--prefix", str(tmp_path / "mine"), *words)
        assert done.returncode == (0 if words else 2)
        assert (beside / "thesis").read_text() == "all of it"
    assert not (tmp_path / "mine").exists()


@pytest.mark.timeout(INSTALL_S)
@pytest.mark.parametrize("interrupted", [False, True])
def test_what_is_installed_is_there_again_where_another_cannot_be_made(tmp_path: Path, interrupted: bool) -> None:
    """A package that is not what the lock says; before that, where so asked, an install that was killed half-way."""
    project = tmp_path / "project"
    ignored = shutil.ignore_patterns(".venv*", ".git", "tests", "__pycache__", ".*_cache")
    shutil.copytree(PROJECT, project, ignore=ignored)
    lock = project / "requirements.lock"
    digests = re.compile(r"(?<=sha256:)[0-9a-f]{64}")
    wrong = re.sub(r"(?ms)^pykka==.*?# via", lambda found: digests.sub("0" * 64, found[0]), lock.read_text())
    assert wrong != lock.read_text()
    lock.write_text(wrong)
    prefix, before = tmp_path / "prefix", tmp_path / "prefix.before"
    old = before if interrupted else prefix
    old.mkdir()
    (old / ".countermand").write_text("whole")
    (old / "command").write_text("works")
    if interrupted:
        prefix.mkdir()
        (prefix / ".countermand").touch()
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [str(project / "scripts" / "install"), "--user", "--prefix", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "the one from before is there again" in done.stderr
    assert (prefix / "command").read_text() == "works"
    assert not before.exists()
    assert not (tmp_path / ".config").exists()


def test_what_a_user_has_installed_is_removed_and_the_conversations_stay(tmp_path: Path) -> None:
    prefix = tmp_path / ".local" / "share" / "countermand"
    units = tmp_path / ".config" / "systemd" / "user"
    config = tmp_path / ".config" / "countermand"
    state = tmp_path / ".local" / "state" / "countermand"
    for directory in (prefix, units, config, state):
        directory.mkdir(parents=True)
    (prefix / ".countermand").touch()
    (units / UNIT).touch()
    (units / "other.service").touch()
    (config / "countermand.toml").touch()
    (state / "store.sqlite3").touch()
    assert install(tmp_path, "--user", "--uninstall").returncode == 0
    assert not prefix.exists()
    assert not (units / UNIT).exists()
    assert (units / "other.service").exists()
    assert (config / "countermand.toml").exists()
    assert (state / "store.sqlite3").exists()
    assert install(tmp_path, "--user", "--uninstall", "--purge").returncode == 0
    assert not config.exists()
    assert not state.exists()


def test_a_mistaken_option_changes_nothing(tmp_path: Path) -> None:
    for words in (["--usr"], ["--user", "--purge"], ["--user", "--prefix", "/opt/100%"]):
        done = install(tmp_path, *words)
        assert done.returncode == 2
        assert list(tmp_path.iterdir()) == []


# ── What was installed into the environment for agents ────────────────────────────────────────────

CARRY_OVER = str(PROJECT / "scripts" / "carry_over.py")


def environment_of(prefix: Path, version: str = "python3.11") -> Path:
    """A folder of packages with one of ours in it."""
    site = prefix / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    put(site, "msgspec", "0.21", {"msgspec/__init__.py": f"of {prefix.name}"})
    return site


def put(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Install a distribution, as far as others can see it."""
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files) + f"{info}/RECORD,,\n"
    for file, text in files.items():
        place = site / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def carry_over(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", CARRY_OVER, str(old), str(new)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_upgrade_keeps_what_was_installed_for_agents_and_nothing_of_ours(tmp_path: Path) -> None:
    old, new = tmp_path / "prefix.before", tmp_path / "prefix"
    before, site = environment_of(old), environment_of(new)
    (old / "bin").mkdir()
    put(before, "old_dependency", "1.0", {"old_dependency.py": "x"})
    put(site, "old-dependency", "2.0", {"old_dependency.py": "ours"})
    put(before, "My.Agents", "1.2", {"my_agents/__init__.py": "a", "my_agents/data/x": "b", "../../../bin/mine": "c"})
    (before / "loose.py").write_text("d")
    (before / "there.pth").write_text("/srv/agents")
    (before / "__pycache__").mkdir()
    done = carry_over(old, new)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "carried over: my-agents 1.2, loose.py, there.pth\n"
    kept = {"my_agents/__init__.py": "a", "my_agents/data/x": "b", "loose.py": "d", "there.pth": "/srv/agents"}
    assert {name: (site / name).read_text() for name in kept} == kept
    assert (new / "bin" / "mine").read_text() == "c"
    assert (site / "msgspec" / "__init__.py").read_text() == "of prefix"
    assert (site / "old_dependency.py").read_text() == "ours"
    assert not (site / "__pycache__").exists()
    assert not (site / "old_dependency-1.0.dist-info").exists()
    # The next upgrade finds them as the first did.
    again = tmp_path / "again"
    environment_of(again)
    assert "my-agents 1.2" in carry_over(new, again).stdout


def test_what_was_installed_for_another_python_is_named(tmp_path: Path) -> None:
    old, new = tmp_path / "prefix.before", tmp_path / "prefix"
    put(environment_of(old), "my_agents", "1.2", {"my_agents.py": "a"})
    site = environment_of(new, "python3.12")
    done = carry_over(old, new)
    assert done.returncode == 1
    assert "python3.11; install them again: my-agents 1.2" in done.stdout
    assert not (site / "my_agents.py").exists()


def test_a_record_that_names_what_is_outside_takes_nothing_from_there(tmp_path: Path) -> None:
    old, new = tmp_path / "prefix.before", tmp_path / "prefix"
    (tmp_path / "secret").write_text("x")
    put(environment_of(old), "odd", "1", {"odd.py": "a", "../../../../secret": "x"})
    environment_of(new)
    assert carry_over(old, new).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prefix", "prefix.before", "secret"]
    assert (new / "lib" / "python3.11" / "site-packages" / "odd.py").exists()
