"""Trees of an earlier daemon: their ledgers tell how they ended, and their orphans are ended."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from loguru import logger

from actors.kernel.succession import Succession
from supervisor.by_session import BySession
from supervisor.containment.guard import cgroups, ledger, procfs
from supervisor.containment.guard.ledger import Ledger
from supervisor.containment.processes.reports import ended, not_started, remaining, tell

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pykka import ActorRef

    from actors.messages import ProcessEnded
    from actors.ports import Clock
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.orphans import OrphanTree
    from supervisor.containment.processes.search import Search
    from supervisor.containment.processes.warden_dir import WardenDir
    from supervisor.containment.reactor import Alarm, Reactor

LOCK_POLL_S = 0.02
LOCK_SLACK_S = 5.0
SWEEP_S = 2.0
STOPPED_MAX_S = 3.0
"""After so long a warden of an earlier daemon, and its zygote, get SIGCONT: a signal may have stopped them."""


class Adoption:
    """A tree of an earlier daemon whose ledger is not final yet. `owner` is None while no actor asks for it.

    `unnamed`: no row of the store names it, so its ledger is removed when its end is known.
    """

    def __init__(
        self, process_id: str, owner: ActorRef[Any] | None, path: Path, since: float, session: str = ""
    ) -> None:
        self.process_id = process_id
        self.session = session
        self.owner = owner
        self.succession = Succession()
        self.path = path
        self.since = since
        self.alarm: Alarm | None = None
        self.orphan: OrphanTree | None = None
        self.woken = False
        self.size = -1
        self.report: ProcessEnded | None = None
        self.unnamed = False


class Adoptions:
    """All adoptions of one daemon. Reactor thread only.

    Args:
        give_up_s: a warden that holds its ledger is waited for LOCK_SLACK_S longer than this.
    """

    def __init__(self, reactor: Reactor, clock: Clock, warden_dir: WardenDir, search: Search, give_up_s: float) -> None:
        self._reactor = reactor
        self._clock = clock
        self._warden_dir = warden_dir
        self._search = search
        self._give_up_s = give_up_s
        self._by_id: dict[str, Adoption] = {}
        # Ids of trees whose end was reported, and whose ledger is kept.
        self._reported = BySession()

    def clean_up(self, before: str | None, ours: Collection[str]) -> None:
        """At a start: end the orphans of a dead daemon's trees, also if no actor asks for them.

        `before`: the cgroup of the last daemon. `ours`: ids of trees that this daemon has spawned by now.
        """
        base = self._warden_dir.cgroup
        bases = {one for one in (base, before) if one is not None}
        judged: set[str] = set()
        for process_id, path in self._warden_dir.ledgers():
            if process_id not in ours:
                self.adopt(process_id, None)
            words = ledger.read_path(path)
            group = (ledger.said(words, "spawning") or {}).get("cgroup")
            if group is not None and not (ledger.said(words, "empty") or ledger.said(words, "swept")):
                # The search that judges the tree removes it, and that is its proof.
                judged.add(group)
        if bases:
            self._search.aside(lambda: _sweep(bases, base, frozenset(judged)), lambda: None)
        if judged:
            last = partial(_sweep, bases, base, frozenset())
            self._reactor.later(self._give_up_s, lambda: self._search.aside(last, lambda: None))

    def end_unnamed(self, process_ids: Collection[str]) -> None:
        """End the orphans of trees that no row names, and remove their ledgers."""
        for process_id in process_ids:
            adoption = self._by_id.get(process_id)
            if adoption is not None:
                adoption.unnamed = True
            else:
                self._begin(process_id, None, unnamed=True)

    def adopt(self, process_id: str, owner: ActorRef[Any] | None, session: str = "", *, anew: bool = False) -> None:
        """Report the end of a tree to `owner`, after ending its orphans; None: no actor asks for a report.

        `session`: to which the tree belongs. `anew`: see `actors.ports.Executor.adopt`.
        """
        adoption = self._by_id.get(process_id)
        if adoption is not None:
            if owner is not None and not adoption.succession.admits(owner, anew=anew):
                return
            adoption.owner, adoption.session = owner, session
            adoption.size = -1
            if adoption.report is not None:
                tell(owner, adoption.report)
            return
        adoption = self._begin(process_id, owner, session)
        if owner is not None:
            adoption.succession.admits(owner, anew=anew)

    def reported(self, session: str) -> list[str]:
        """Return the ids of a session's trees that are proven gone, and whose ledgers are kept until `forget`."""
        return self._reported.of(session)

    def forget(self, process_id: str) -> None:
        """Stop looking for its end."""
        self._reported.discard(process_id)
        adoption = self._by_id.pop(process_id, None)
        if adoption is not None and adoption.alarm is not None:
            adoption.alarm.cancel()

    def forget_all(self) -> None:
        """Stop looking for all of them: the daemon is closing, and the next one continues."""
        for adoption in self._by_id.values():
            if adoption.alarm is not None:
                adoption.alarm.cancel()
        self._by_id.clear()

    def _begin(
        self, process_id: str, owner: ActorRef[Any] | None, session: str = "", *, unnamed: bool = False
    ) -> Adoption:
        path = self._warden_dir.ledger(process_id)
        adoption = Adoption(process_id, owner, path, self._clock.monotonic(), session)
        adoption.unnamed = unnamed
        self._by_id[process_id] = adoption
        self._look(adoption)
        return adoption

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    def _look(self, adoption: Adoption) -> None:
        """Read the ledger of an earlier daemon's tree, if no process holds it; else look again in a moment."""
        report = self._find_out(adoption)
        if report is None:
            self._report_survivors(adoption)
            adoption.alarm = self._reactor.later(LOCK_POLL_S, lambda: self._look(adoption))
            return
        tell(adoption.owner, report)
        orphan = adoption.orphan
        if report.proven or orphan is None or orphan.cgroup is None:
            del self._by_id[adoption.process_id]
            self._put_away(adoption, report)
            return
        adoption.report = report
        self._search.go_on(
            orphan,
            lambda: self._by_id.get(adoption.process_id) is adoption,
            lambda: self._prove(adoption, orphan),
        )

    def _prove(self, adoption: Adoption, orphan: OrphanTree) -> None:
        """Record in the ledger that a dead daemon's tree is gone after all, and report it."""
        verdict = self._search.verdict(ledger.fold(ledger.read_path(adoption.path)), orphan)
        held = Ledger.lock(adoption.path, wait=False)
        if held is not None:
            held.write(verdict)
            held.close()
        del self._by_id[adoption.process_id]
        report = ended(adoption.process_id, verdict, proven=True)
        tell(adoption.owner, report)
        self._put_away(adoption, report)

    def _put_away(self, adoption: Adoption, report: ProcessEnded) -> None:
        """Remove the ledger of a tree that no row names, if its end is known."""
        if report.proven and adoption.owner is not None:
            self._reported.add(adoption.process_id, adoption.session)
        if not adoption.unnamed or adoption.owner is not None:
            return
        if not report.proven:
            logger.warning("{} of an earlier daemon is not proven gone: {}", adoption.process_id, report.note)
            words = ledger.read_path(adoption.path)
            group = (ledger.said(words, "spawning") or {}).get("cgroup")
            judged = ledger.said(words, "swept") or ledger.said(words, "empty")
            if judged is None or (group is not None and os.path.isdir(group)):
                # The next start tries again.
                return
        adoption.path.unlink(missing_ok=True)

    def _report_survivors(self, adoption: Adoption) -> None:
        """Report the processes that the warden could not kill so far, if its ledger names any."""
        try:
            size = adoption.path.stat().st_size
        except OSError:
            return
        if size == adoption.size:
            return
        adoption.size = size
        word = ledger.said(ledger.read_path(adoption.path), "remaining")
        if word is not None:
            tell(adoption.owner, remaining(adoption.process_id, word))

    # ── The verdict ───────────────────────────────────────────────────────────────────────────────

    def _find_out(self, adoption: Adoption) -> ProcessEnded | None:
        """The report of its end; None: not known yet. The cases are those of `ledger`'s theory of operation."""
        process_id, now = adoption.process_id, self._clock.monotonic()
        try:
            held = Ledger.lock(adoption.path, wait=False)
        except FileNotFoundError:
            if not self._warden_dir.restarted:
                return not_started(process_id, "never spawned", self._clock.wall())
            note = "the machine was restarted, and its ledger, if there was one, did not reach the disk"
            return ended(process_id, self._abandoned([], note), proven=True)
        except OSError as error:
            note = f"its ledger cannot be read: {error.strerror}"
            return ended(process_id, self._abandoned([], note), proven=False)
        if held is None:
            if now - adoption.since >= STOPPED_MAX_S and not adoption.woken:
                adoption.woken = True
                _wake_up(ledger.read_path(adoption.path))
            if now - adoption.since < self._give_up_s + LOCK_SLACK_S:
                return None
            words = ledger.read_path(adoption.path)
            return ended(process_id, self._abandoned(words, "its warden is still ending it"), proven=False)
        try:
            return self._read_verdict(adoption, held, now)
        finally:
            held.close()

    def _read_verdict(self, adoption: Adoption, held: Ledger, now: float) -> ProcessEnded | None:
        process_id, words = adoption.process_id, held.words
        last = ledger.said(words, "swept") or ledger.said(words, "empty")
        if last is not None and last.get("proven", True):
            return ended(process_id, last, proven=True)
        if last is None and ledger.said(words, "spawning") is None:
            if ledger.said(words, "void") is None:
                held.write({"word": "void", "at": self._clock.wall()})
            return not_started(process_id, "never spawned", self._clock.wall())
        sent = ledger.said(words, "sent")
        if self._warden_dir.boot and sent is not None and sent["boot"] != self._warden_dir.boot:
            note = "the machine was restarted, which ended all its processes"
            word = self._abandoned(words, note) if last is None else {**last, "note": note, "at": self._clock.wall()}
            return ended(process_id, word, proven=True)
        if last is not None:
            return ended(process_id, last, proven=False)
        # The warden was killed. Its zygote, if it lives, is about to take over the lock and finish the work. It cannot
        # have written since we read the ledger, because it writes only under the lock that we hold.
        if _zygote_lives(words) and now - adoption.since < self._give_up_s + LOCK_SLACK_S:
            return None
        if adoption.orphan is None:
            adoption.orphan = orphan = self._search.orphan(process_id, "its warden left no last word", words)
            self._search.end(orphan, lambda: setattr(orphan, "done", True))
        if not adoption.orphan.done:
            return None
        verdict = self._search.verdict(ledger.fold(words), adoption.orphan)
        held.write(verdict)
        return ended(process_id, verdict, proven=verdict["proven"])

    def _abandoned(self, words: list[Word], note: str) -> Word:
        word = ledger.fold(words)
        word.update(how="abandoned", note=note, at=self._clock.wall())
        return word


def _wake_up(words: list[Word]) -> None:
    """Send SIGCONT to the warden of a ledger and its zygote, if the recorded pids are still theirs."""
    warden = ledger.said(words, "warden")
    for one in (warden, warden["zygote"]) if warden is not None else ():
        if one is None or one.get("start_ticks") is None:
            continue
        try:
            fd = os.pidfd_open(one["pid"])
        except OSError:
            continue
        seen = procfs.stat(one["pid"])
        try:
            if seen is not None and seen.start_ticks == one["start_ticks"]:
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        except OSError as error:
            logger.warning("a stopped {} cannot be continued: {}", seen.name if seen else "process", error)
        finally:
            os.close(fd)


def _zygote_lives(words: list[Word]) -> bool:
    """True if the zygote that forked the warden lives, and its pid was not reused."""
    warden = ledger.said(words, "warden")
    if warden is None or warden["zygote"] is None:
        return False
    seen = procfs.stat(warden["zygote"]["pid"])
    return seen is not None and seen.state not in "ZX" and seen.start_ticks == warden["zygote"]["start_ticks"]


def _sweep(bases: set[str], ours: str | None, spare: frozenset[str]) -> None:
    """End the cgroups of dead wardens below `bases`, except those in `spare`, and remove bases other than `ours`."""
    for base in bases:
        cgroups.sweep(base, SWEEP_S, spare)
        if base != ours:
            cgroups.leave(base)
