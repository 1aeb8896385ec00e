"""Commands whose work is done elsewhere, by another daemon or on another machine: killing them does not end that work.

A receipt names such a command as out of reach if it is recognised: by its command line, or in a shell's script. A
script may just mention one, so the receipt then says that the script names it, not that it ran.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

import os
import re
from time import monotonic

from supervisor.containment.guard import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

ALWAYS = frozenset({"ssh", "slogin", "mosh", "systemd-run", "at", "batch", "machinectl", "rsh"})
"""Programs that always work elsewhere."""
BY_VERB = {
    "docker": frozenset({"exec", "run", "start", "restart", "compose"}),
    "podman": frozenset({"exec", "run", "start", "restart", "compose"}),
    "nerdctl": frozenset({"exec", "run", "start", "restart", "compose"}),
    "docker-compose": frozenset({"exec", "run", "up", "start", "restart"}),
    "kubectl": frozenset({"exec", "run", "debug", "attach", "create", "apply"}),
    "oc": frozenset({"exec", "run", "debug", "rsh"}),
    "lxc": frozenset({"exec", "launch", "start"}),
    "crictl": frozenset({"exec", "run", "start"}),
    "systemctl": frozenset({"start", "restart"}),
}
"""Programs that work elsewhere with one of these as their first word that is no option."""
TAKES_A_VALUE = frozenset(
    {"-H", "--host", "-c", "--context", "--config", "-l", "--log-level", "-n", "--namespace", "--kubeconfig", "-u"}
    | {"--cluster", "-f", "--file", "-p", "--project-name", "-s", "--server", "-g", "-k", "-C"}
)
BEFORE = frozenset(
    {"sudo", "doas", "env", "nohup", "time", "setsid", "nice", "ionice", "exec", "command", "timeout", "stdbuf"}
    | {"if", "then", "do", "else", "while", "until", "!", "eval", "unshare", "xargs", "busybox"}
)
"""Words that may stand before a command."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
SEPARATORS = re.compile(r"[;&|\n(){}`]+")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
SCRIPT_MAX_CHARS = 65_536
FOUND_MAX = 10
SOUGHT_MAX = 200
"""How many processes of a tree are looked at before they are killed: a dead one has no command line."""
SOUGHT_MAX_S = 0.02
"""How long that may delay the kill, beside the command line being read."""
SHOWN_MAX_CHARS = 80
SEEN_MAX = 1_000


class OutOfReach:
    """The rows for a tree's commands whose work is done elsewhere, at most FOUND_MAX."""

    def __init__(self) -> None:
        self._rows: dict[str, Word] = {}
        self._seen: set[int] = set()

    @property
    def rows(self) -> list[Word]:
        """One row for each command."""
        return list(self._rows.values())

    def see(self, argv: list[str]) -> list[Word]:
        """Check a command line; returns the rows that are new or changed."""
        fresh: list[Word] = []
        # Subshells have the command line of their shell, which may be a long script.
        key = hash(tuple(argv))
        if key in self._seen:
            return fresh
        if len(self._seen) < SEEN_MAX:
            self._seen.add(key)
        for name, ran in commands_out_of_reach(argv):
            known = self._rows.get(name)
            if known is None and len(self._rows) >= FOUND_MAX:
                continue
            row = row_of(name, ran=ran)
            if known is None or (ran and known != row):
                self._rows[name] = row
                fresh.append(row)
        return fresh

    def look(self, pids: Iterable[int]) -> list[Word]:
        """Check the processes of a tree before it is killed, at most SOUGHT_MAX of them, for SOUGHT_MAX_S seconds.

        Returns rows as `see` does.
        """
        fresh: list[Word] = []
        until = monotonic() + SOUGHT_MAX_S
        for count, pid in enumerate(pids):
            if count >= SOUGHT_MAX or monotonic() >= until:
                break
            fresh += self.see(procfs.command_line(pid))
        return fresh

    def take(self, rows: list[Word]) -> None:
        """Add rows from the ledger."""
        for row in rows:
            self._rows[row["name"]] = row


def row_of(name: str, *, ran: bool) -> Word:
    """The receipt's row for a command whose work is done elsewhere; not `ran`: a script names it."""
    verb = "ran" if ran else "is named in the script"
    return {
        "kind": "remote",
        "name": name,
        "pid": None,
        "started_at": None,
        "ended_at": None,
        "how": "out_of_reach",
        "status": None,
        "signals": [],
        "note": f"{name!r} {verb}: what it started elsewhere is out of reach, and may still run",
    }


def commands_out_of_reach(argv: list[str]) -> list[tuple[str, bool]]:
    """The commands in `argv` that work elsewhere, at most FOUND_MAX.

    True with the command itself, False with those that a shell's script names.
    """
    words = _command(argv)
    if not words:
        return []
    if os.path.basename(words[0]) in SHELLS:
        scripts = [word for word in words[1:] if not word.startswith("-")] if "-c" in _letters(words) else []
        named = [
            _out_of_reach(_command(part.split())) for part in SEPARATORS.split("\n".join(scripts)[:SCRIPT_MAX_CHARS])
        ]
        return [(name, False) for name in dict.fromkeys(filter(None, named))][:FOUND_MAX]
    name = _out_of_reach(words)
    return [(name, True)] if name else []


def _letters(words: list[str]) -> set[str]:
    """The options of one letter, also where several share a dash, as in ``bash -lc``."""
    return {f"-{letter}" for word in words[1:] if re.fullmatch(r"-[A-Za-z]+", word) for letter in word[1:]}


def _command(words: list[str]) -> list[str]:
    """`words` from the command on, without the words before it."""
    at = 0
    while at < len(words):
        word = words[at].strip("\"'")
        in_front = at > 0 and os.path.basename(words[at - 1]) not in SHELLS
        is_value = in_front and (word.startswith("-") or re.fullmatch(r"\d+(\.\d+)?[smhd]?", word) is not None)
        if not (ASSIGNMENT.match(word) or os.path.basename(word) in BEFORE or is_value):
            break
        at += 2 if word in TAKES_A_VALUE else 1
    return words[at:]


def _out_of_reach(words: list[str]) -> str:
    """The name to show for a command line whose work is done elsewhere; empty if it is not."""
    if not words:
        return ""
    program = os.path.basename(words[0].strip("\"'"))
    if program in ALWAYS:
        return " ".join([program, *words[1:]])[:SHOWN_MAX_CHARS]
    verbs = BY_VERB.get(program)
    if verbs is None:
        return ""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in TAKES_A_VALUE else 1
    return " ".join([program, *words[at:]])[:SHOWN_MAX_CHARS] if at < len(words) and words[at] in verbs else ""
