"""Effects: what a step decided is carried out here, in one `match` for what is done now and one for what waits.

See `actors.protocol.step` for the two kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.gate.pending import fail, settle
from actors.hierarchy.answers import refuse
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.quarantine import Quarantine
from actors.hierarchy.run_actors import RunActors
from actors.hierarchy.tree_actors import TreeActors
from actors.kernel.actor import Actor
from actors.kernel.each import Each
from actors.messages import (
    CallAnswered,
    CallClosed,
    Erased,
    Halt,
    Permit,
    PermitRefused,
    PermitWaiting,
    SpawnRefused,
    Steered,
    TreeTaken,
)
from actors.ports import Ports
from actors.protocol.step import (
    AdoptRun,
    AdoptTree,
    AnswerRequest,
    CloseCall,
    EndTrees,
    ForgetEnded,
    ForgetPart,
    ForgetSession,
    ForgetStop,
    GiveAnswer,
    GivePermit,
    GiveSpawn,
    GiveSteering,
    HaltRun,
    KeepDeadLetter,
    Keeper,
    KeepHost,
    KillTree,
    Later,
    LetTreeGo,
    MakeWait,
    NothingToSteer,
    Now,
    OpenBarrier,
    RefuseCall,
    RefuseDeleted,
    RefuseHandOver,
    RefuseRequest,
    RefuseSave,
    RefuseSpawn,
    ReleaseHost,
    ReturnCredit,
    SayHandedOver,
    SaySaved,
    ShowEphemeral,
    SpawnOwn,
    StartRun,
    TakeTree,
    TellParent,
)


class Effects:
    """Carries out the effects of one session's steps. Used in the turns of its actor only.

    Args:
        owner: the session's actor.
        ports: what effects act on outside.
        live: the session.
        runs: the actors of its runs.
        trees: the actors of its process trees.
        late_stops: hears that a Stop is refused, or need not be decided again.
        quarantine: is lifted when the session is deleted.
    """

    def __init__(
        self,
        owner: Actor,
        ports: Ports,
        live: Incarnation,
        runs: RunActors,
        trees: TreeActors,
        late_stops: LateStops,
        quarantine: Quarantine,
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._runs = runs
        self._trees = trees
        self._late_stops = late_stops
        self._quarantine = quarantine

    def carry_out_now(self, effects: Sequence[Now]) -> None:
        """Carry out what takes something away, in order. If one fails the others are carried out, then it is raised."""
        if not effects:
            return
        with Each() as each:
            for effect in effects:
                each.do(self._take_away, effect)

    def carry_out_later(self, effects: Sequence[Later]) -> None:
        """Carry out what acts, in order; what it rests on is durable. If one fails it is as with the others.

        What was decided and is durable happens, such as an answer. Then the actor fails, and the next one ends what
        was begun.
        """
        if not effects:
            return
        with Each() as each:
            for effect in effects:
                each.do(self._act, effect)

    def _take_away(self, effect: Now) -> None:
        match effect:
            case HaltRun():
                self._runs.halt(effect)
            case RefuseCall():
                self._runs.tell(effect.run_id, PermitRefused(effect.call_id, effect.result))
            case CloseCall():
                self._runs.tell(effect.run_id, CallClosed(effect.call_id, effect.result, effect.provenance))
            case MakeWait():
                self._runs.tell(effect.run_id, PermitWaiting(effect.call_id))
            case RefuseSpawn():
                refused = SpawnRefused(effect.call_id, effect.process_id, effect.limit, effect.reason)
                self._runs.tell(effect.run_id, refused)
            case LetTreeGo():
                self._trees.let_go(effect.process_id)
            case TakeTree():
                self._runs.tell(effect.address.run, TreeTaken(effect.address.call or "", effect.process_id))
                self._trees.adopt(effect.address, effect.process_id, effect.listener)
            case RefuseHandOver():
                fail(effect.handed, effect.error)
            case RefuseSave():
                fail(effect.saved, effect.error)
            case RefuseRequest():
                if effect.reply is not None:
                    effect.reply.try_set_exception(effect.error)
            case KillTree():
                self._trees.end(effect.process_id, Halt(effect.provenance, effect.grace_s))
            case EndTrees():
                self._trees.end_all(effect)
            case NothingToSteer():
                self._runs.tell(effect.run_id, Steered(effect.request_id, ()))
            case KeepDeadLetter():
                at = self._ports.clock.wall()
                self._ports.dead_letters.add(effect.kind, effect.why, effect.address, at, effect.shown, effect.count)

    def _act(self, effect: Later) -> None:
        match effect:
            case AnswerRequest(reply=reply, answer=answer) | TellParent(reply=reply, report=answer):
                if reply is not None:
                    reply.try_set(answer)
            case StartRun():
                self._runs.start(effect.run_id)
            case OpenBarrier():
                self._live.protocol.runs.open_barrier(effect)
            case GivePermit():
                deadline_s = self._ports.settings.call_deadline_s
                self._runs.tell(effect.run_id, Permit(effect.call_id, effect.cell, effect.token, deadline_s))
            case GiveAnswer():
                self._runs.tell(effect.run_id, CallAnswered(effect.call_id, effect.result))
            case GiveSpawn():
                self._live.hosts.begun(effect.permit.process_id)
                self._runs.tell(effect.run_id, effect.permit)
            case GiveSteering():
                self._runs.tell(effect.run_id, effect.steered)
            case ReturnCredit():
                record = self._live.protocol.state.record(effect.run_id)
                if record is not None:
                    record.credit.give(*effect.sizes)
            case ShowEphemeral():
                self._ports.publisher.ephemeral(effect.event)
            case ForgetPart():
                self._forget_part(effect)
            case ForgetEnded():
                self._live.forget_ended(effect.parts, effect.runs)
            case ForgetSession():
                self._forget_session()
            case AdoptRun():
                self._runs.adopt(effect.run_id)
            case SpawnOwn():
                self._runs.tell(effect.address.run, TreeTaken(effect.address.call or "", effect.process_id))
                self._trees.spawn(effect)
            case SayHandedOver():
                self._live.protocol.trees.handed_over(effect.process_id)
                settle(effect.handed, None)
            case SaySaved():
                settle(effect.saved, None)
            case ReleaseHost():
                self._live.hosts.release(effect.process_id)
            case KeepHost():
                self._live.protocol.trees.handed_over(effect.process_id)
                self._trees.watch_host(effect.process_id)
            case AdoptTree():
                owned = self._live.protocol.state.owned.get(effect.process_id)
                if owned is not None:
                    self._trees.adopt(owned.address, owned.id, None)
                    self._trees.watch_host(owned.id)
            case RefuseDeleted():
                self._late_stops.refused(effect.request)
                refuse(self._live.session, effect.request, effect.reply, effect.error)
            case ForgetStop():
                self._late_stops.forget(effect.request_id)

    def _forget_part(self, part: ForgetPart) -> None:
        match part.keeper:
            case Keeper.PROCESSES:
                self._ports.processes.forget(part.key)
            case Keeper.STRAYS:
                self._ports.strays.forget(part.key)
            case Keeper.EXECUTOR:
                self._ports.executor.forget(part.key)

    def _forget_session(self) -> None:
        """The session is deleted. Its id begins anew, out of quarantine."""
        self._ports.processes.forget_session(self._live.session)
        self._live.protocol.state.book.forgotten()
        self._quarantine.lift()
        self._owner.tell_parent(Erased(self._live.session))
