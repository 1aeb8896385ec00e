"""The cases by name: a command, how many processes tell that they are up, and what it needs of the machine.

A case is a script of /bin/sh in which ``note PID`` says that a process is there, and ``role NAME`` runs a role of
`roles.py`. Every process carries the run's token in its environment or in its command line, or has said its pid.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from tests.gauntlet.census import own_group

ROLES = Path(__file__).with_name("roles.py")
TOKEN_NAME = "CM_GAUNTLET"
SETUID_NAME = "CM_GAUNTLET_SETUID"
SETPRIV_NAME = "CM_GAUNTLET_SETPRIV"
PROBE_S = 20.0

# Field 22 of /proc/PID/stat is its start; behind the pid it is the 23rd word. No process is started for it.
PRELUDE = r"""
echo "namespace $(readlink /proc/self/ns/pid)" >>"$CM_GAUNTLET_SEEN"
note() { read -r line <"/proc/$1/stat"; set -- "$1" $line; echo "is $1 ${23}" >>"$CM_GAUNTLET_SEEN"; }
role() { "$CM_GAUNTLET_PYTHON" -I -S "$CM_GAUNTLET_ROLES" "$1" "$CM_GAUNTLET_SEEN" "$CM_GAUNTLET"; }
become() { exec "$CM_GAUNTLET_PYTHON" -I -S "$CM_GAUNTLET_ROLES" "$1" "$CM_GAUNTLET_SEEN" "$CM_GAUNTLET"; }
"""


class Needs(Struct, frozen=True):
    """What a machine has for the cases that need it.

    Args:
        lacks: why cases cannot be run, by the need that they name.
        environment: where the cases find what they need.
    """

    lacks: dict[str, str]
    environment: dict[str, str]


class Case(Struct, frozen=True):
    """A kind of command.

    Args:
        name: what people call it.
        script: for the shell; see `PRELUDE`.
        ready: how many lines say that its processes are up.
        needs: what the machine must not lack; nothing by default.
        heavy: many of this kind at once would measure the machine.
        beats: those who are alive say so again and again, since a scan of /proc may miss them.
        foreign: it has processes of another user, which only that user or root can end.
        shell: the shell's program.
    """

    name: str
    script: str
    ready: int = 1
    needs: str = ""
    heavy: bool = False
    beats: bool = False
    foreign: bool = False
    shell: str = "/bin/sh"

    def argv(self) -> tuple[str, ...]:
        """Return the command."""
        return (self.shell, "-c", PRELUDE + self.script)

    def environment(self, token: str, seen: Path, needs: Needs) -> dict[str, str]:
        """Return what the command's environment has to hold."""
        return {
            TOKEN_NAME: token,
            "CM_GAUNTLET_SEEN": str(seen),
            "CM_GAUNTLET_PYTHON": sys.executable,
            "CM_GAUNTLET_ROLES": str(ROLES),
            **needs.environment,
        }


def _plays(name: str, ready: int = 1, *, role: str = "", **options: object) -> Case:
    return Case(name, f"become {role or name.replace('-', '_')}", ready, **options)  # type: ignore[arg-type]


TYPED = '"$CM_GAUNTLET_PYTHON" -I -S "$CM_GAUNTLET_ROLES" plain "$CM_GAUNTLET_SEEN" "$CM_GAUNTLET"'
NODE = """'setInterval(() => {}, 1000);
const busy = () => require("crypto").pbkdf2("a", "b", 1e5, 64, "sha512", busy);
for (let i = 0; i < 8; i++) busy();'"""
LATER = "sleep 100 & note $!"

CASES: tuple[Case, ...] = (
    # The plain ones: what every harness meets.
    _plays("plain"),
    _plays("polite"),
    Case("background", f"{LATER}; {LATER}; note $$; wait", 3),
    Case("own-session", "setsid sleep 100 & note $!; note $$; wait", 2),
    _plays("daemon", 2),
    _plays("ignores-term", 2, role="ignores"),
    Case("stopped", f"{LATER}; note $$; kill -STOP $$", 2),
    _plays("fork-chain", 2, role="chain", beats=True),
    Case("leader-exits", f"{LATER}; exit 0", 1),
    _plays("tree-of-20", 21, role="tree"),
    _plays("burst-50mb", role="burst"),
    Case("nohup", "nohup sleep 100 >/dev/null 2>&1 & note $!; note $$; wait", 2),
    Case("disown", "nohup sleep 100 >/dev/null 2>&1 & note $!; disown -a; exit 0", 1, shell="bash"),
    # What field reports tell of.
    Case("holds-pipes", "sleep 100 & note $!; setsid sleep 100 & note $!; exit 0", 2),
    Case("term-loop", "(trap '' TERM; while :; do sleep 0.05; done) & note $!; note $$; wait", 2),
    Case("wrapper", f"sh -c 'sleep 100; :' & note $!; trap 'exit 143' TERM; setsid {LATER}; note $$; wait", 3),
    Case("stopped-child", f"{LATER}; kill -STOP $!; note $$; wait", 2),
    Case("env-i", "env -i sleep 100 & note $!; env -i setsid sleep 100 & note $!; note $$; wait", 3),
    _plays("zombies", 51),
    _plays("hup-setsid", 2, role="hup"),
    Case("kills-parent", "role kills_parent; sleep 100", 1),
    # Those that run away.
    _plays("setsid-twice", 7, role="twice"),
    _plays("walkers", 4, beats=True),
    _plays("fork-bomb", 64, role="bomb", heavy=True),
    _plays("respawner", 4, beats=True),
    _plays("forks-on-term", role="hydra"),
    _plays("leaves-cgroup", 3, role="leaves_group", needs="groups"),
    _plays("nests-cgroup", 3, role="nests_group", needs="groups"),
    _plays("group-hoppers", 4, role="hoppers"),
    _plays("subreaper", 7),
    Case(
        "pid-namespace",
        "note $$; exec unshare $CM_GAUNTLET_UNSHARE --pid --fork "
        '"$CM_GAUNTLET_PYTHON" -I -S "$CM_GAUNTLET_ROLES" tree "$CM_GAUNTLET_SEEN" "$CM_GAUNTLET"',
        22,
        "pid-namespace",
    ),
    # Those that cannot be asked.
    _plays("blocks-signals", 2, role="blocks"),
    _plays("vfork-storm", 5, role="storm", beats=True),
    _plays("vfork-held", 2),
    _plays("setuid", 2, needs="setuid"),
    _plays("other-user", 2, needs="other-user", foreign=True),
    _plays("tracer", 2, needs="trace"),
    _plays("tracer-at-exit", 2, needs="trace"),
    # Those that hide.
    _plays("renamed", 3),
    _plays("invisible", 2),
    _plays("closes-all", role="closes"),
    _plays("exec-loop", role="execs"),
    # Those that ask others to do it.
    _plays("far-sides", 3),
    # Those that are many.
    _plays("thousand", heavy=True),
    _plays("thousand-away", heavy=True),
    _plays("deep", 61),
    _plays("threads"),
    _plays("threads-at-work", role="threads_at_work"),
    Case("threads-chain", "role threads_at_work & role threads_at_work & become threads", 3),
    Case("node", f"note $$; exec node -e {NODE}", 1, "node"),
    # Those that print.
    Case("flood-yes", "note $$; exec yes"),
    Case("flood-binary", "note $$; exec cat /dev/urandom"),
    Case("flood-zeros", "note $$; exec cat /dev/zero"),
    Case("flood-one-line", "yes | tr -d '\\n' & note $!; note $$; wait", 2),
    Case("flood-stderr", "note $$; exec yes >&2"),
    Case(
        "flood-many",
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (while :; do echo $i; done) & note $!; done; note $$; wait",
        13,
    ),
    Case("terminal", f"note $$; exec script -qefc {TYPED!r} /dev/null", 2, "terminal"),
    # Those that turn on their keeper.
    _plays("stops-warden", 2, needs="sight-of-warden"),
    _plays("kills-warden", 2, needs="sight-of-warden"),
)

BY_NAME = {case.name: case for case in CASES}


# ── What the machine has ──────────────────────────────────────────────────────────────────────────


def look(folder: Path, layer: str = "auto") -> Needs:
    """Find out what this machine and this user have for the cases; `folder` is for what is made for them."""
    mount = _cgroup2_mount()
    groups = _writable_group(mount) if mount else ""
    setuid = _setuid_program(folder)
    setpriv = os.environ.get(SETPRIV_NAME, "")
    unshare = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    has = {
        "groups": (groups, "no control group of version 2 may be made here"),
        "setuid": (setuid, "no setuid program to execute (root makes one, for --user, too)"),
        "other-user": (
            setpriv,
            "only an ordinary user has processes that he may not end: start it as root, with --user",
        ),
        "trace": (_succeeds(sys.executable, "-I", "-S", str(ROLES), "can_trace", os.devnull, ""), "no ptrace here"),
        "pid-namespace": (_succeeds("unshare", *unshare, "--pid", "--fork", "true"), "no PID namespace may be made"),
        "sight-of-warden": (layer != "namespace", "from within a namespace no warden can be seen, or signalled"),
        "node": (shutil.which("node"), "there is no program `node`"),
        "terminal": (shutil.which("script"), "there is no program `script`"),
    }
    environment = {
        "CM_GAUNTLET_CGROUP2": mount,
        "CM_GAUNTLET_GROUPS": groups,
        SETUID_NAME: setuid,
        SETPRIV_NAME: setpriv,
        "CM_GAUNTLET_UNSHARE": " ".join(unshare),
    }
    return Needs({need: why for need, (found, why) in has.items() if not found}, environment)


@contextmanager
def elsewhere(folder: Path, needs: Needs) -> Iterator[Needs]:
    """Have another daemon, which starts processes for whoever asks it; what cases need, with the way to it."""
    socket = folder / "far"
    argv = [sys.executable, "-I", "-S", str(ROLES), "far_server", str(socket), ""]
    # It is no child of whom the cases are below, and ends when its input does, however we end.
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the far side is there"
        yield Needs(needs.lacks, {**needs.environment, "CM_GAUNTLET_FAR": str(socket)})
        server.stdin.close()


def _succeeds(*argv: str) -> bool:
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _cgroup2_mount() -> str:
    """Where control groups of version 2 are mounted, on a hybrid machine too; empty if nowhere."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            return before.split(" ")[4]
    return ""


def _writable_group(mount: str) -> str:
    """A control group in which groups may be made and processes moved to; empty if there is none."""
    folder = f"{mount}{own_group().rstrip('/')}"
    trial = Path(tempfile.gettempdir())
    try:
        trial = Path(tempfile.mkdtemp(prefix="cm-gauntlet-", dir=folder))
    except OSError:
        return ""
    script = 'echo 0 >"$1/cgroup.procs"'
    try:
        return folder if _succeeds("/bin/sh", "-c", script, "sh", str(trial)) else ""
    finally:
        trial.rmdir()


def _setuid_program(folder: Path) -> str:
    """The path of a program that is another user's and runs with that user's rights; empty where there is none."""
    given = os.environ.get(SETUID_NAME, "")
    if given or os.geteuid() != 0:
        return given
    made = str(make_setuid(folder, 65534))
    return made if _changes_user(made) else ""


def make_setuid(folder: Path, owner: int) -> Path:
    """Make a `sleep` that runs with the rights of `owner`. Root only."""
    path = folder / "sleep"
    shutil.copyfile(shutil.which("sleep") or "/bin/sleep", path)
    os.chown(path, owner, -1)
    path.chmod(0o4755)
    folder.chmod(0o755)
    return path


def _changes_user(program: str) -> bool:
    running = subprocess.Popen([program, "10"], stdin=subprocess.DEVNULL)
    try:
        # The exec that Popen waits for changes the descriptors first, and the user a moment later.
        deadline = time.monotonic() + 2.0
        while not (changed := _effective_uid(running.pid) != os.geteuid()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return changed
    finally:
        running.kill()
        running.wait()


def _effective_uid(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return -1


def choose(names: str | None) -> list[Case]:
    """The cases of that name, separated by commas; all by default. Raises ValueError for a name that none has."""
    if not names:
        return list(CASES)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in BY_NAME:
            raise ValueError(f"there is no case {name!r}; there are: {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in wanted]
