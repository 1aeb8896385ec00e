"""The parent's side of a child run: what is wanted of it, what is known of it, and what is news of it.

Theory of operation. A child run is a run like any other, in a session of its own. To its parent it is what a process
tree is: a part of the run, with a row on record before anything is sent, a cell, an actor, and a port that ends it and
reports its news (`actors.ports.Children`). So the barrier, the kill deadline, the receipt, adoption after a failure and
the recovery hold for it as they do for trees. New is only what goes between two sessions.

*The fence is shared memory.* The token of the child run hangs below that of the parent's call. The parent's fence
cancels it in its own turn, and with it every cell and guard of the child, and of its own children (`Cell`). From that
instant nothing of the child begins. The child's session looks at the token before it handles anything: if the parent's
fence came, it first fences its run for the same cause (`ChildRuns.follow`). So nothing is accepted after the fence, and
no message is needed for that.

*All else is state, sent whole.* The parent's side asks the child's session with one message (`ChildWanted`): run this,
under this id; or, once that is so, end it, for this cause. It is answered with a report of what is on record, as soon
as that is more than what the parent knows. Both only ever grow: a run that has to stop never has to go on; a report
goes from *started* to *closed*, to *receipt filed*, to *final*. So a message may come late, twice, or behind a newer
one: it changes nothing. One that is lost with a failed actor fails the reply that waits for it, and then is asked
again. Each answer is given when the record of it is durable.

*What may go wrong.*

- It arrives behind the parent's fence: its token is cancelled, so the run is born stopped. After a crash no message is
  left of the supervisor before.
- The child's session fails: its next incarnation closes the run, as any, and the question is asked again. The run is
  not tried again there: only its parent could use what that brings.
- The parent's session fails: that cancels the token. Its next incarnation adopts the part, and asks how the run ended.
- The supervisor is killed: both sessions restore what is on record. The row of the part was durable before the first
  message, so no child runs that its parent does not know; the parent asks, and is told what there is.
- A settled run has left the memory of its session: the store has its row and its receipt.
- The child's session is deleted: it knows nothing of the run any more, and the question comes again. What the parent
  has seen, or what was forgotten since it asked first, does not begin anew: it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from actors.messages import (
    ChildClosed,
    ChildReport,
    ChildStarted,
    ChildWanted,
    ProcessEnded,
    ProcessNews,
    ProcessRemaining,
)
from actors.model import How, Provenance, Receipt
from actors.ports import ChildSpec
from actors.run_status import RunStatus

DELETED: Final = "its session was deleted"
"""Why nothing is known of a run that had begun."""


@dataclass(slots=True)
class ChildLink:
    """One child run, as its parent's side knows it.

    spec: what to run; None: an earlier supervisor started it, if it ever began.
    stop, grace_s: why it has to end, and its grace in seconds.
    seen: the last report. refused: why its session did not take it.
    since: when its session was asked first; seconds, epoch, UTC.
    """

    run_id: str
    session: str
    spec: ChildSpec | None
    stop: Provenance | None = None
    grace_s: float | None = None
    seen: ChildReport | None = None
    since: float | None = None
    refused: str = ""

    @property
    def over(self) -> bool:
        """True if nothing more will be known of it."""
        return self.seen is not None and self.seen.final

    def wanted(self, at: float) -> ChildWanted:
        """What to ask its session at this time (seconds, epoch, UTC)."""
        before, self.since = self.since, at if self.since is None else self.since
        return ChildWanted(self.session, self.run_id, self.spec, self.stop, self.grace_s, self.seen, before)

    def end(self, cause: Provenance, grace_s: float) -> bool:
        """It has to end. The first cause stands, and the grace never grows. Returns True if its session has to know."""
        changed = self.stop is None or self.grace_s is None or grace_s < self.grace_s
        self.stop = self.stop or cause
        self.grace_s = grace_s if self.grace_s is None else min(grace_s, self.grace_s)
        return changed and not self.over

    def heard(self, report: ChildReport, at: float) -> list[ProcessNews]:
        """Take a report. Returns what is new in it: nothing, if a later one came before."""
        if self.over or not report.follows(self.seen):
            return []
        known = self.seen
        if report.status is None and known is not None:
            # It was there: its session was deleted meanwhile.
            status = known.status if known.closed else RunStatus.FAILED
            error = known.error if known.closed else DELETED
            receipt = None if known.receipt is None else _all_gone(known.receipt, at)
            report = msgspec.structs.replace(known, status=status, error=error, receipt=receipt, final=True)
        self.seen = report
        return [news for news in self.news(at) if known is None or not _told(news, known)]

    def refuse(self, why: str, at: float) -> list[ProcessNews]:
        """Its session did not take it, and never has: it does not begin."""
        self.refused = why
        return self.heard(ChildReport(self.run_id, None, final=True), at)

    def news(self, at: float) -> list[ProcessNews]:
        """All that is known of it, in order."""
        report = self.seen
        if report is None:
            return []
        if report.status is None:
            note = self.refused or "its session has no such run"
            return [ProcessEnded(self.run_id, How.NOT_STARTED, proven=True, at=at, note=note, child=report)]
        news: list[ProcessNews] = [ChildStarted(self.run_id, at)]
        if report.closed:
            news.append(ChildClosed(self.run_id, report))
        receipt = report.receipt
        if receipt is not None and not report.final:
            news.append(ProcessRemaining(self.run_id, at, receipt.rows, f"not all of run {self.run_id} has ended"))
        if report.final:
            news.append(self._ended(report, at))
        return news

    def _ended(self, report: ChildReport, at: float) -> ProcessEnded:
        receipt = report.receipt
        note = f"run {self.run_id} of session {self.session}: {report.status}"
        if receipt is None:
            # It was deleted with its session, which waits until all of it is proven to have ended.
            return ProcessEnded(self.run_id, How.GONE, proven=True, at=at, note=note, child=report)
        return ProcessEnded(
            self.run_id,
            how_of(report) if receipt.complete else How.OUT_OF_REACH,
            proven=True,
            at=receipt.ended_at,
            reaped=receipt.reaped,
            rows=receipt.rows,
            note=note,
            child=report,
        )


def _all_gone(receipt: Receipt, at: float) -> Receipt:
    """Return the receipt of a run that was deleted, which waits until all that can be seen of it has ended."""
    left = (None, How.ABANDONED)
    rows = tuple(
        msgspec.structs.replace(row, how=How.GONE, ended_at=at) if row.how in left else row for row in receipt.rows
    )
    complete = all(row.how is not How.OUT_OF_REACH for row in rows)
    return msgspec.structs.replace(receipt, rows=rows, complete=complete, ended_at=at)


def how_of(report: ChildReport) -> How:
    """Return how a child run ended, in the words of a receipt."""
    if report.status is RunStatus.COMPLETED:
        return How.RETURNED
    return How.RAISED if report.provenance is None else How.CANCELLED


def _told(news: ProcessNews, known: ChildReport) -> bool:
    """True if a report that was known has said this news."""
    if isinstance(news, ChildStarted):
        return True
    return isinstance(news, ChildClosed) and known.closed
