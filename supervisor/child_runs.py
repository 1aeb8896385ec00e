"""Child runs as a port: what starts, ends and reports them, in place of process trees.

`ChildRuns` is the port of process trees (`Processes`) with child runs in it: an id of a run goes to the supervisor's
actor, any other to the port below. `ChildLinks` is the part of that actor which has the links of all child runs. It
outlives the actors of parents, as the port of trees does, so what a parent's next incarnation adopts is here.

`actors.protocol.child_link` has the theory, and decides.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from loguru import logger
from pykka import ActorDeadError
from pykka._envelope import Envelope

from actors.errors import CountermandError, QueueFull, StoreUnavailable
from actors.kernel.actor import tell
from actors.kernel.future import ReplyFuture
from actors.kernel.succession import Succession
from actors.messages import (
    AdoptChild,
    AskChild,
    ChildCommand,
    ChildHeard,
    ChildReport,
    EndChild,
    EndChildren,
    ForgetChild,
    ForgetChildren,
    ProcessEnded,
    ProcessNews,
    Route,
    StartChild,
)
from actors.model import How, Provenance
from actors.ports import ChildSpec, Clock, Processes, SpawnSpec
from actors.protocol.child_link import ChildLink

if TYPE_CHECKING:
    from pykka import ActorRef

ASK_AGAIN_S: Final = 0.02
ASK_AGAIN_MAX_S: Final = 1.0
_PASSING: Final = (QueueFull, StoreUnavailable)
"""Refusals that pass."""


class ChildRuns:
    """`actors.ports.Processes`, with child runs among the trees, and `actors.ports.Children`.

    Args:
        trees: the port of process trees.
    """

    def __init__(self, trees: Processes) -> None:
        self._trees = trees
        self._supervisor: ActorRef[Any] | None = None

    def route_through(self, supervisor: ActorRef[Any]) -> None:
        """Messages about child runs go to this actor, which has the `ChildLinks`. Before anything is started."""
        self._supervisor = supervisor

    def _tell(self, message: object) -> None:
        assert self._supervisor is not None, "it is given its actor before anything starts"
        tell(self._supervisor, message)

    def start(self, run_id: str, spec: ChildSpec, owner: ActorRef[Any]) -> None:
        """See `Children.start`."""
        self._tell(StartChild(run_id, spec, owner))

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """See `Processes.spawn`."""
        self._trees.spawn(process_id, spec, owner, session)

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        """See `Processes.kill`."""
        if _is_run(process_id):
            self._tell(EndChild(process_id, grace_s, session))
        else:
            self._trees.kill(process_id, grace_s, session)

    def kill_session(self, session: str, grace_s: float) -> None:
        """See `Processes.kill_session`."""
        self._tell(EndChildren(session, grace_s))
        self._trees.kill_session(session, grace_s)

    def set_nice(self, process_id: str, nice: int) -> None:
        """See `Processes.set_nice`."""
        self._trees.set_nice(process_id, nice)

    def adopt(self, process_id: str, owner: ActorRef[Any], session: str = "", *, anew: bool = False) -> None:
        """See `Processes.adopt`."""
        if _is_run(process_id):
            self._tell(AdoptChild(process_id, owner, session, anew))
        else:
            self._trees.adopt(process_id, owner, session, anew=anew)

    def read_output(self, process_id: str) -> None:
        """See `Processes.read_output`."""
        self._trees.read_output(process_id)

    def forget(self, process_id: str) -> None:
        """See `Processes.forget`."""
        if _is_run(process_id):
            self._tell(ForgetChild(process_id))
        else:
            self._trees.forget(process_id)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `Processes.forget_ended`."""
        self._tell(ForgetChildren(session, frozenset(but)))
        self._trees.forget_ended(session, but)

    def forget_session(self, session: str) -> None:
        """See `Processes.forget_session`."""
        self._trees.forget_session(session)


def _is_run(process_id: str) -> bool:
    return process_id.startswith("run_")


class _Linked:
    """A link, who hears its news, the number of the last question, and how often that failed in a row.

    parent: the session whose run it is a part of.
    """

    __slots__ = ("asked", "failed", "link", "owner", "parent", "succession")

    def __init__(self, link: ChildLink, owner: ActorRef[Any], parent: str = "") -> None:
        self.link = link
        self.owner = owner
        self.succession = Succession()
        self.parent = parent
        self.asked = 0
        self.failed = 0


class ChildLinks:
    """The links of all child runs of this supervisor. Used in the turns of the supervisor's actor only.

    Args:
        me: that actor.
        clock: tells when to ask again.
    """

    def __init__(self, me: ActorRef[Any], clock: Clock) -> None:
        self._me = me
        self._clock = clock
        self._linked: dict[str, _Linked] = {}

    def take(self, message: ChildCommand) -> None:
        """Handle one message."""
        match message:
            case StartChild():
                self._start(message)
            case EndChild():
                linked = self._linked.get(message.run_id)
                if linked is not None:
                    linked.parent = message.parent or linked.parent
                    self._end(linked, message.grace_s)
            case EndChildren():
                for linked in self._of(message.parent):
                    self._end(linked, message.grace_s)
            case AdoptChild():
                self._adopt(message)
            case ForgetChild():
                self._linked.pop(message.run_id, None)
            case ForgetChildren():
                for linked in self._of(message.parent):
                    if linked.link.over and linked.link.run_id not in message.but:
                        del self._linked[linked.link.run_id]
            case ChildHeard():
                self._heard(message)
            case AskChild():
                self._ask_again(message)

    def _start(self, start: StartChild) -> None:
        linked = self._linked.get(start.run_id)
        if linked is None:
            parent = "" if start.spec.parent is None else start.spec.parent.session
            linked = _Linked(ChildLink(start.run_id, start.spec.session, start.spec), start.owner, parent)
            self._linked[start.run_id] = linked
            self._ask(linked)

    def _of(self, parent: str) -> list[_Linked]:
        """The links of the child runs of a session's runs."""
        return [linked for linked in self._linked.values() if linked.parent == parent]

    def _end(self, linked: _Linked, grace_s: float) -> None:
        token = None if linked.link.spec is None else linked.link.spec.token
        cause = None if token is None else token.provenance
        if cause is None:
            reason = "what waited for it is gone"
            cause = Provenance(source="actor.failure", reason=reason, initiated_at=self._clock.wall())
        if linked.link.end(cause, grace_s):
            self._ask(linked)

    def _adopt(self, adopt: AdoptChild) -> None:
        linked, at = self._linked.get(adopt.run_id), self._clock.wall()
        if linked is not None:
            if not linked.succession.admits(adopt.owner, anew=adopt.anew):
                return
            linked.owner = adopt.owner
            self._say(linked, linked.link.news(at))
        elif not adopt.session:
            # It was never sent: whoever was to send it has failed before.
            note = "stopped before it was sent"
            tell(adopt.owner, ProcessEnded(adopt.run_id, How.NOT_STARTED, proven=True, at=at, note=note))
        else:
            reason = "the supervisor ended, and the run that it belongs to with it"
            gone = Provenance(source="supervisor.recovery", reason=reason, initiated_at=at)
            linked = _Linked(ChildLink(adopt.run_id, adopt.session, None, stop=gone), adopt.owner)
            linked.succession.admits(adopt.owner, anew=adopt.anew)
            self._linked[adopt.run_id] = linked
            self._ask(linked)

    def _ask(self, linked: _Linked) -> None:
        linked.asked += 1
        run_id, number, me = linked.link.run_id, linked.asked, self._me
        reply: ReplyFuture[Any] = ReplyFuture()
        reply.add_done_callback(lambda done: tell(me, ChildHeard(run_id, number, _answer(done))))
        wanted = linked.link.wanted(self._clock.wall())
        try:
            me.actor_inbox.put(Envelope(Route(wanted.session, wanted), reply))
        except ActorDeadError as error:
            reply.try_set_exception(error)

    def _ask_again(self, again: AskChild) -> None:
        linked = self._linked.get(again.run_id)
        if linked is not None and linked.asked == again.number:
            self._ask(linked)

    def _heard(self, heard: ChildHeard) -> None:
        linked = self._linked.get(heard.run_id)
        if linked is None:
            return
        if isinstance(heard.answer, ChildReport):
            linked.failed = 0
            self._say(linked, linked.link.heard(heard.answer, self._clock.wall()))
            if heard.number == linked.asked and not linked.link.over:
                self._ask(linked)
        elif heard.number == linked.asked:
            self._not_heard(linked, heard.answer)

    def _not_heard(self, linked: _Linked, error: BaseException) -> None:
        link = linked.link
        refused = isinstance(error, CountermandError) and not isinstance(error, _PASSING)
        if refused and link.stop is None and link.seen is None:
            logger.debug("child run {} was refused: {}", link.run_id, error)
            self._say(linked, link.refuse(str(error), self._clock.wall()))
            return
        wait_s = min(ASK_AGAIN_S * 2 ** min(linked.failed, 10), ASK_AGAIN_MAX_S)
        linked.failed += 1
        self._clock.call_later(wait_s, self._me, AskChild(link.run_id, linked.asked))

    def _say(self, linked: _Linked, news: list[ProcessNews]) -> None:
        for one in news:
            tell(linked.owner, one)


def _answer(done: ReplyFuture[Any]) -> ChildReport | BaseException:
    """Return what a reply that is done holds."""
    try:
        report = done.get(timeout=0)
    except BaseException as error:  # noqa: BLE001  # whatever the session failed with: it is asked again
        return error
    assert isinstance(report, ChildReport), "a session answers with a report"
    return report


__all__ = ["ChildLinks", "ChildRuns"]
