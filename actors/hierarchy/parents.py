"""Parents: those who wait for reports on child runs of this session.

A question is decided at the end of the turn in which it comes, once the session is read and its store takes writes.
It is answered when there is more to report than what it says was seen, and when that is durable. If this actor fails
first, the question fails with it, and is asked again (`actors.protocol.child_link`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.errors import CountermandError, StoreUnavailable
from actors.hierarchy.batches import Batches
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.kernel.future import ReplyFuture
from actors.messages import ChildFound, ChildReport, ChildWanted
from actors.model import Receipt, RunInfo
from actors.ports import Ports
from actors.protocol.step import TellParent


@dataclass(slots=True)
class _Asked:
    """Who waits, and for what. `reading`: the store was asked."""

    wanted: ChildWanted
    reply: ReplyFuture[Any]
    reading: bool = False


class Parents:
    """Used in the turns of the session's actor only.

    Args:
        owner: the session's actor, which gets ChildFound.
        ports: the store.
        live: the session.
        batches: what is not durable yet.
    """

    def __init__(self, owner: Any, ports: Ports, live: Incarnation, batches: Batches) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._batches = batches
        self._new: list[tuple[ChildWanted, ReplyFuture[Any]]] = []
        self._asked: list[_Asked] = []

    @property
    def idle(self) -> bool:
        """True if nobody waits."""
        return not self._new and not self._asked

    def add(self, wanted: ChildWanted, reply: ReplyFuture[Any] | None) -> None:
        """A parent asks."""
        if reply is not None:
            self._new.append((wanted, reply))

    def decide(self) -> None:
        """Decide what was asked, before the step of this turn is sent."""
        if self._live.phase is not Phase.SERVING:
            return
        new, self._new = self._new, []
        for wanted, reply in new:
            try:
                self._live.protocol.child_runs.wanted(wanted)
            except CountermandError as error:
                reply.try_set_exception(error)
            else:
                self._asked.append(_Asked(wanted, reply))

    def answer(self) -> None:
        """Answer those for whom there is news, after the step of this turn was sent."""
        if not self._asked or self._live.phase is not Phase.SERVING:
            return
        children, waiting = self._live.protocol.child_runs, []
        for asked in self._asked:
            if asked.reading:
                # What the store has stands, also if the session is deleted meanwhile: `found`.
                waiting.append(asked)
                continue
            report, run_id = children.report(asked.wanted), asked.wanted.run_id
            if report is not None:
                self._tell(asked, report)
                continue
            waiting.append(asked)
            if children.in_store(run_id):
                asked.reading = True
                self._ports.store.find_run(self._live.session, run_id, self._owner)
        self._asked = waiting

    def found(self, found: ChildFound) -> None:
        """The store says what it has of a settled run."""
        waiting = []
        for asked in self._asked:
            if not asked.reading or asked.wanted.run_id != found.run_id:
                waiting.append(asked)
            elif found.error is not None:
                error = StoreUnavailable("the run could not be read", expected="a readable store", got=found.error)
                asked.reply.try_set_exception(error)
            elif found.info is not None and found.info.settled:
                asked.reply.try_set(self._settled(found.info, found.receipt))
            else:
                # The store did not take its end: when the session is read again it ends once more.
                asked.reading = False
                waiting.append(asked)
        self._asked = waiting

    def _settled(self, info: RunInfo, receipt: Receipt | None) -> ChildReport:
        text = self._live.protocol.child_runs.content(info.run_id)
        return ChildReport(
            info.run_id, info.status, text, info.error, info.result, info.provenance, receipt, final=not info.late
        )

    def _tell(self, asked: _Asked, report: ChildReport) -> None:
        if self._batches.sent:
            self._batches.wait_for_last([TellParent(asked.reply, report)])
        else:
            asked.reply.try_set(report)
