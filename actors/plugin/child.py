"""The handle of a child run that a call has asked for, as `Process` is that of a process tree."""

from __future__ import annotations

from concurrent.futures import Future

from actors.gate.pending import Pending, fail, settle
from actors.messages import ChildReport, ProcessEnded
from actors.model import How


class Child:
    """A child run that a call has asked for. Its actor sets the fields; see `actors.plugin.delegation`."""

    def __init__(self, pending: Pending) -> None:
        self._id = ""
        self._session = ""
        self.report: ChildReport | None = None
        self.closed: Future[ChildReport] = pending.future()

    def _has_closed(self, report: ChildReport) -> None:
        """Resolve `closed`, unless something ended the child run: then its parent's session closes the call."""
        self.report = report
        if report.provenance is None:
            settle(self.closed, report)

    def _has_ended(self, news: ProcessEnded) -> None:
        """Resolve `closed`, if the child run never began."""
        if news.how is How.NOT_STARTED:
            settle(self.closed, ChildReport(news.process_id, None, error=news.note, final=True))

    def _fail(self, error: BaseException) -> None:
        """Fail `closed` with this error."""
        fail(self.closed, error)
