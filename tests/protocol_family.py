"""Sessions whose runs have child runs in one another: several protocols, and all that goes between them.

A `Family` holds a `Member` for each session, which is a `Driver` with the real `Parents`, and the real `ChildLinks`
between them. Messages go through boxes, of which any may be emptied first; each is in order. What the sessions decide
is checked against the logs of all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec
from pykka import ActorDeadError
from pykka._envelope import Envelope

from actors.gate.cell import CellState
from actors.hierarchy.incarnation import Phase
from actors.hierarchy.parents import Parents
from actors.hierarchy.spawns import child_session
from actors.messages import (
    CallEnded,
    CallExpired,
    CallRequested,
    ChildClosed,
    ChildFound,
    ChildHeard,
    ChildReport,
    ChildWanted,
    Committed,
    ProcessEnded,
    ProcessNews,
    ProcessReport,
    Route,
    SpawnPermit,
    SpawnRequested,
    ToolResult,
)
from actors.model import FAILURES, Address, Event, How, Mode, Outcome, Provenance, Receipt
from actors.plugin.delegation import DELEGATE
from actors.plugin.foreign import Foreign
from actors.ports import Batch, ChildSpec
from actors.protocol.step import (
    GivePermit,
    GiveSpawn,
    HaltRun,
    Later,
    Now,
    RefuseSpawn,
)
from actors.run_status import TERMINAL, RunStatus
from supervisor.child_runs import ChildLinks, ChildRuns
from tests.protocol_check import SESSION, SimCall
from tests.protocol_driver import Driver, Op
from tests.protocol_ports import Box
from tests.sim.laws import SPOKEN

NAMED: Final = "c"
"""A session to which more than one run delegates."""
CHILDREN_MAX: Final = 2
DEPTH_MAX: Final = 2
GRACE_S: Final = 2.0
TURNS_MAX: Final = 20_000
"""Of messages between two ops: what goes round in a circle takes more."""


@dataclass(slots=True, eq=False)
class SimChild:
    """A child run as its actor would see it. It stands in the place of that, as what is told of the run.

    ended: it was told to end the run.
    """

    box: Box
    address: Address
    process_id: str
    spec: ChildSpec
    actor_urn: str
    permit: SpawnPermit | None = None
    begun: bool = False
    over: bool = False
    ended: bool = False

    def tell(self, news: ProcessNews) -> None:
        """Take news of the run."""
        self.box.tell(news)


class Member(Driver):
    """A session, what its runs delegate to others, and what it says of runs that are child runs of others."""

    def __init__(self, family: Family, session: str, beside: Driver | None) -> None:
        self.family = family
        self.box = Box()
        self.children: list[SimChild] = []
        # The receipts of each run that are durable, the newest last.
        self.receipts: defaultdict[str, list[Receipt]] = defaultdict(list)
        # By child run: how often it was said to begin, and to end.
        self.told: Counter[tuple[str, str]] = Counter()
        # What ended a run, or a call on its own, also where the store did not take that.
        self.causes: defaultdict[str, list[Any]] = defaultdict(list)
        # Who waits for an answer of the actor that there is.
        self.asking: list[Any] = []
        self.failed = False
        super().__init__("forced", session, beside, children_max=CHILDREN_MAX, children_depth_max=DEPTH_MAX)

    def be_made(self, cause: Provenance | None) -> None:
        self.ports.processes = ChildRuns(cast("Any", self.trees))
        self.ports.processes.route_through(cast("Any", self.family.supervisor))
        super().be_made(cause)
        self.parents = Parents(cast("Any", self.box), self.ports, self.live, self.batches)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def heed(self) -> None:
        self.protocol.child_runs.follow()
        if not self.protocol.state.step.is_empty:
            self.took()

    def took(self) -> list[Event]:
        self.parents.decide()
        events = super().took()
        for child in self.children:
            if not child.ended and child.spec.token.cancelled:
                self.end_children(child.address.run, GRACE_S, child)
        for event in events:
            self.family.check(self, event)
        self.parents.answer()
        return events

    def carry_out_now(self, effects: Iterable[Now]) -> None:
        super().carry_out_now(effects)
        for effect in effects:
            match effect:
                case RefuseSpawn():
                    for child in self.children:
                        child.over = child.over or child.process_id == effect.process_id
                case HaltRun(mode=Mode.IMMEDIATE):
                    self.end_children(effect.run_id, 0.0)
                case _:
                    pass

    def end_children(self, run: str, grace_s: float, only: SimChild | None = None) -> None:
        """Have child runs of a run end, as its actor does."""
        for child in self.children:
            if child.address.run == run and child.begun and not child.over and only in (None, child):
                child.ended = True
                self.ports.processes.kill(child.process_id, grace_s, self.session)

    def hear(self, news: Committed | ChildFound) -> None:
        super().hear(news)
        if isinstance(news, ChildFound) and self.live.phase is Phase.SERVING:
            self.box.tell(news)
        elif isinstance(news, ChildFound):
            # The session is not read again before that.
            self.parents.found(news)

    def carry_out(self, effect: Later) -> None:
        if isinstance(effect, GiveSpawn):
            for child in self.children:
                if child.process_id == effect.permit.process_id:
                    child.permit = effect.permit
                    self.box.tell(child)
        super().carry_out(effect)

    def begins(self, run: str) -> None:
        assert not self.family.fenced(run), f"code of {run} begins behind the fence of its parent (L1)"

    def check_permit(self, permit: GivePermit) -> None:
        super().check_permit(permit)
        named = {one for names in self.laws.forced.values() for one in names}
        for child in self.children:
            goes_on = child.process_id in self.family.parent_of and child.process_id not in self.family.settled
            if goes_on and child.address.run != permit.run_id:
                assert named, f"a permit of {permit.run_id}, while {child.process_id} of the run before goes on (L2)"

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────

    def receive(self, envelope: Envelope[Any]) -> None:
        """Take the next message out of the box."""
        match envelope.message:
            case ChildWanted() as wanted:
                self.heed()
                self.asking.append(envelope.reply_to)
                self.parents.add(wanted, cast("Any", envelope.reply_to))
                self.took()
            case ChildFound() as found:
                self.heed()
                self.parents.found(found)
                self.took()
            case SimChild() as child:
                self._permitted(child)
            case news if isinstance(news, ProcessNews):
                self._heard(next(child for child in self.children if child.process_id == news.process_id), news)

    def _permitted(self, child: SimChild) -> None:
        if child.over or child.permit is None:
            return
        child.spec = msgspec.structs.replace(child.spec, parent=child.permit.parent)
        if child.permit.cell.start():
            self.begins(child.address.run)
            child.begun = True
            self.ports.processes.start(child.process_id, child.spec, child)
        else:
            ended = ProcessEnded(child.process_id, How.NOT_STARTED, proven=True, at=self.clock.wall())
            self._heard(child, ended)

    def _heard(self, child: SimChild, news: ProcessNews) -> None:
        """News of a child run: to the session, and to the call that waits for it."""
        self.report(ProcessReport(child.address, child.process_id, news))
        if isinstance(news, ProcessEnded):
            child.over = True
            if news.how is How.NOT_STARTED:
                self._returned(child, ToolResult(Outcome.FINISHED, news.note or "-", is_error=True))
        elif isinstance(news, ChildClosed) and news.report.provenance is None:
            self._returned(child, ToolResult(Outcome.FINISHED, news.report.content or "-"))

    def _returned(self, child: SimChild, result: ToolResult) -> None:
        for call in self.calls:
            if call.address == child.address and not call.over and call.cell is not None and call.cell.finish(result):
                call.over = True
                self.report(CallEnded(call.address, How.RETURNED, self.clock.wall(), result))

    # ── Ops ───────────────────────────────────────────────────────────────────────────────────────

    def op_delegate(self, which: int, session: str, answer: int | None) -> None:
        """An agent delegates: to a session of its own, to one that has a name, or to that of its own run."""
        address = self.address(which)
        if address is None:
            return
        call = SimCall(address.of_call(self.new("c")))
        self.calls.append(call)
        self.family.wanted[call.address] = session
        made = Foreign(DELEGATE, cast("Any", None), child="other")
        of = self.some_answer(address, answer) if answer is not None else None
        given = {"agent": "other", "message": "do it", **({"session": session} if session else {})}
        self.report(CallRequested(call.address, DELEGATE, given, made=made, answer=of))

    def started_call(self, call: SimCall) -> None:
        session = self.family.wanted.get(call.address)
        if session is None or call.token is None:
            return
        run_id = self.ids.new("run")
        spec = ChildSpec("other", "do it", session or child_session(self.session, run_id), call.token)
        self.children.append(SimChild(self.box, call.address, run_id, spec, self.new("")))
        self.report(SpawnRequested(call.address, run_id, spec))

    def op_end_call(self, which: int, how: int) -> None:
        call = self.some_call(which)
        if call is None or call.address not in self.family.wanted or self._is_left(call):
            super().op_end_call(which, how)
        elif how == 2:
            self._lose_actor(call)

    def _lose_actor(self, call: SimCall) -> None:
        """The actor of a call that waits for a child run is gone; that of its run closes the call, as `RunActor`."""
        assert call.cell is not None
        assert call.token is not None
        at, call.over = self.clock.wall(), True
        state, _ = call.cell.close()
        gone = Provenance(source="actor.failure", reason="the call's actor is gone", initiated_at=at)
        call.token.cancel(gone)
        self.report(CallExpired(call.address, at, gone, started=state is CellState.CLOSED))
        self.report(CallEnded(call.address, How.RAISED, at, None))

    def _is_left(self, call: SimCall) -> bool:
        """True if the code of a call that delegates is not waiting any more."""
        mine = [child for child in self.children if child.address == call.address]
        return (call.token is not None and call.token.cancelled) or any(child.over for child in mine)

    def op_adopt(self, which: int) -> None:
        """Another actor takes a child run over, and is told all of it anew."""
        begun = [child for child in self.children if child.begun and not child.over][::-1]
        if begun:
            child = replace(begun[which % len(begun)], box=self.box, actor_urn=self.new(""))
            self.ports.processes.adopt(child.process_id, child, child.spec.session)

    def op_fail(self, what: str) -> None:
        self.fail(what)
        # What was not written has not happened: what was seen of it is forgotten first.
        self.family.recall()
        self.read()

    # ── Failures ──────────────────────────────────────────────────────────────────────────────────

    def fail(self, what: str) -> None:
        before, self.failed = self.box, True
        self.box = Box()
        super().fail(what)
        # What its actors were told is told anew to those that take over; what nobody was told is gone with a daemon.
        kept = {"store": (ChildWanted, ChildFound), "actor": (ChildWanted,)}.get(what, ())
        self.box.extend(envelope for envelope in before if isinstance(envelope.message, kept))
        if what == "actor":
            for reply in self.asking:
                reply.try_set_exception(ActorDeadError())
        for child in self.children:
            child.over = child.over or not child.begun

    def adopted(self, address: Address, news: Any) -> None:
        if isinstance(news, ProcessNews) and any(child.process_id == news.process_id for child in self.children):
            self.box.tell(news)
        else:
            super().adopted(address, news)


class Family:
    """Sessions, and what goes between them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.supervisor = Box()
        # Of each call that delegates: the session that it names.
        self.wanted: dict[Address, str] = {}
        # By child run: the session, the run and the call of its parent.
        self.parent_of: dict[str, tuple[str, str, str]] = {}
        # Runs whose receipt is complete: its rows.
        self.settled: dict[str, list[Any]] = {}
        first = self.member(SESSION)
        first.store.disk.on_batch = self.written
        self.links = ChildLinks(cast("Any", self.supervisor), first.clock)
        self.member(NAMED)

    def member(self, session: str) -> Member:
        """A session, which may have to be made."""
        if session not in self.members:
            self.members[session] = Member(self, session, next(iter(self.members.values()), None))
        return self.members[session]

    # ── Playing ───────────────────────────────────────────────────────────────────────────────────

    def play(self, op: Op) -> None:
        """Do one thing."""
        match op:
            case ("in", place, inner):
                members = list(self.members.values())
                members[place % len(members)].play(inner)
            case ("deliver", which):
                self.deliver(which)
            case ("ask_again",):
                self.members[SESSION].clock.fire()
            case ("lose_question", which):
                self.lose_question(which)
            case ("delegates", place, session):
                for one in (("delegate", 0, session, None), ("start_call", 0)):
                    self.play(("in", place, one))
                    self.go()
            case ("go",):
                self.go()
            case ("crash", first):
                self.crash(first)

    def written(self, batch: Batch) -> None:
        """A batch is durable."""
        for receipt in batch.receipts:
            self.members[batch.session].receipts[receipt.run_id or ""].append(receipt)

    def crash(self, first: int) -> None:
        """The daemon is killed, and started again. It reads its sessions in some order."""
        self.supervisor = Box()
        self.links = ChildLinks(cast("Any", self.supervisor), self.members[SESSION].clock)
        members = list(self.members.values())
        for member in members:
            member.fail("daemon")
        self.recall()
        for number in range(len(members)):
            members[(first + number) % len(members)].read()

    def recall(self) -> None:
        """Know of the sessions what their logs say, and no more."""
        self.parent_of.clear()
        self.settled.clear()
        for member in self.members.values():
            member.told.clear()
        for member in self.members.values():
            waiting = [event for batch in member.store.waiting if isinstance(batch, Batch) for event in batch.events]
            for event in [*member.store.disk.events(member.session), *waiting]:
                self.note(member, event)

    def note(self, member: Member, event: Event) -> None:
        """Know what an event says."""
        run, data = event.run_id or "", event.data
        match event.kind:
            case "run.started" if data.get("parent"):
                parent = data["parent"]
                self.parent_of[run] = parent["session"], parent["run_id"], parent["call_id"]
            case "run.child" | "run.child_ended":
                member.told[event.kind, data["run_id"]] += 1
            case "run.ended" | "receipt.amended" if data["receipt"]["complete"]:
                self.settled[run] = list(data["receipt"]["rows"])
            case _:
                pass

    def deliver(self, which: int) -> bool:
        """Have one actor that has a message take it. Returns False if none has."""
        full: list[Member | None] = [member for member in self.members.values() if member.box]
        if self.supervisor:
            full.insert(0, None)
        if not full:
            return False
        member = full[which % len(full)]
        if member is not None:
            member.receive(member.box.popleft())
            return True
        envelope = self.supervisor.popleft()
        message = envelope.message
        if isinstance(message, Route):
            self.member(message.session).box.put(Envelope(message.message, envelope.reply_to))
            return True
        if isinstance(message, ChildHeard) and isinstance(message.answer, ChildReport):
            self.check_report(message.answer)
        self.links.take(message)
        return True

    def lose_question(self, which: int) -> None:
        """A session fails, with what it was asked of a child run."""
        asked = [envelope for member in self.members.values() for envelope in member.box if _is_question(envelope)]
        if asked:
            lost = asked[which % len(asked)]
            for member in self.members.values():
                if lost in member.box:
                    member.box.remove(lost)
            lost.reply_to.try_set_exception(ActorDeadError())

    def go(self) -> None:
        """Have everything that is on its way come to where it goes. By then each side knows of the other."""
        clock = self.members[SESSION].clock
        for _ in range(TURNS_MAX):
            moved = self.deliver(0)
            for member in list(self.members.values()):
                moved = moved or bool(member.store.waiting)
                member.commit(len(member.store.waiting))
            if not moved and not clock.fire():
                break
        else:
            raise AssertionError("messages go round in a circle")
        for member in self.members.values():
            self.check_known(member)

    def check_known(self, member: Member) -> None:
        """Nothing is on its way: what ends one side of a child run has ended the other (L3, L7)."""
        for child in member.children:
            run, call = child.process_id, child.address.call
            assert not child.begun or child.over or run in self.parent_of, f"{run} is not begun, nor refused (L7)"
            if run in self.parent_of:
                status = self.status(run)
                assert status is not RunStatus.IN_PROGRESS or not self.fenced(run), f"{run} goes on (L3)"
                waits = call not in member.laws.outcomes
                assert status is RunStatus.IN_PROGRESS or not waits, f"{call} waits for {run}, which is {status} (L7)"

    def finish(self) -> None:
        """Stop what runs, let every part end, and see that all is settled."""
        for _ in range(DEPTH_MAX + 2):
            for member in list(self.members.values()):
                member.wind_up()
            self.go()
        for member in self.members.values():
            member.check_settled()
            for child in member.children:
                assert child.over, f"nothing is heard of the end of {child.process_id} (L7)"
                assert member.told["run.child_ended", child.process_id] == 1 or not child.begun, (
                    f"the end of {child.process_id} is not in the log of its parent (L6)"
                )
        assert not self.links._linked, "a child run that has ended is not forgotten (L14)"

    # ── The laws ──────────────────────────────────────────────────────────────────────────────────

    def fenced(self, run: str) -> bool:
        """True if a run is a child run, and the run or the call of its parent is over."""
        return self.cause(run) is not None

    def cause(self, run: str) -> list[Any] | None:
        """Why a child run has to be over, as the logs of those above it say; None: it has not."""
        if run not in self.parent_of:
            return None
        session, parent, call = self.parent_of[run]
        member = self.members[session]
        found = list(member.causes[call])
        if member.laws.status[parent] is not RunStatus.IN_PROGRESS:
            found += member.causes[parent]
        above = self.cause(parent)
        return found + (above or []) or None

    def check(self, member: Member, event: Event) -> None:
        """Check an event against the logs of the other sessions."""
        run, data = event.run_id or "", event.data
        if event.kind == "run.started":
            assert run not in self.parent_of, f"{run} begins twice (L6)"
            assert data.get("retry_of") not in self.parent_of, f"{data.get('retry_of')} is tried again (L7)"
        self.note(member, event)
        match event.kind:
            case "run.started" if data.get("parent"):
                self.check_start(member, run, data["parent"])
            case "tool.ended" if data.get("provenance"):
                member.causes[data["call_id"]].append(data["provenance"])
            case "run.status" if data["status"] != RunStatus.IN_PROGRESS:
                if member.laws.closed_at[run] == event.seq:
                    member.causes[run].append(member.laws.cause.get(run))
                    self.check_cause(member, run)
            case "run.child" | "run.child_ended":
                assert member.told[event.kind, data["run_id"]] == 1, f"{event.kind} of {data['run_id']} twice (L6)"
                self.check_told(event.kind, data)
            case "run.ended" | "receipt.amended":
                self.check_receipt(run, data["receipt"])
            case _ if event.kind in SPOKEN:
                assert not self.fenced(run), f"{event.kind} of {run} is taken behind the fence of its parent (L1)"

    def check_start(self, member: Member, run: str, parent: dict[str, Any]) -> None:
        """A child run begins ahead of the fence, where nothing runs or waits, within the bounds."""
        assert not self.fenced(run), f"{run} begins behind the fence of its parent (L1)"
        running = [one for one, status in member.laws.status.items() if status is RunStatus.IN_PROGRESS]
        assert running == [run], f"{run} begins beside {running} (L4)"
        assert not member.laws.waiting, f"{run} begins ahead of {member.laws.waiting} (L4)"
        above, depth = run, 0
        while above in self.parent_of:
            above, depth = self.parent_of[above][1], depth + 1
        assert depth == parent["depth"] <= DEPTH_MAX, f"{run} stands {depth} deep (L14)"
        beside = [
            one for one, of in self.parent_of.items() if of[1] == parent["run_id"] and self.status(one) not in TERMINAL
        ]
        assert len(beside) <= CHILDREN_MAX, f"{parent['run_id']} has the child runs {beside} (L14)"

    def status(self, run: str) -> RunStatus | None:
        """The status of a run; None: it never began."""
        found = (member.laws.status[run] for member in self.members.values() if run in member.laws.status)
        return next(found, None)

    def check_cause(self, member: Member, run: str) -> None:
        """A child run that its parent ends is ended for the same cause (L5)."""
        causes = self.cause(run)
        if causes is None:
            return
        cause = member.laws.cause.get(run)
        # A run that ended by itself has no cause; what it leaves behind gets one.
        known = {(one["source"], one["reason"]) for one in causes if one}
        assert cause, f"{run} is closed behind the fence of its parent, without a cause (L5)"
        same = (cause["source"], cause["reason"]) in known or None in causes
        # When its own session has failed, that may be on record first, or a Stop that came before.
        first = all(one is None or cause["initiated_at"] <= one["initiated_at"] for one in causes)
        own = member.failed and (first or cause["source"] in FAILURES)
        assert same or own, f"{run} ends by {cause}, not {known} (L5)"

    def check_report(self, report: ChildReport) -> None:
        """What a parent hears of a child run is durable (L12)."""
        if report.status is None:
            return
        run = report.run_id
        member = next((one for one in self.members.values() if run in one.store.disk.of(one.session).runs), None)
        assert member is not None, f"{run} is reported before its start is durable (L12)"
        info = member.store.disk.of(member.session).runs[run]
        ends = info.status is not RunStatus.IN_PROGRESS
        assert ends or not report.closed, f"the end of {run} is reported before that is durable (L12)"
        over = info.settled and not info.late and info.status is report.status
        assert over or not report.final, f"{run} is reported to be over as {report.status}, and is {info} (L7, L12)"
        filed = report.receipt is None or report.receipt in member.receipts[run]
        assert filed, f"the receipt of {run} is reported before that is durable (L12)"

    def check_told(self, kind: str, data: dict[str, Any]) -> None:
        """What the log of a parent says of a child run is so (L3, L12)."""
        run = data["run_id"]
        began = any(run in one.store.disk.of(one.session).runs for one in self.members.values())
        if kind == "run.child":
            assert began, f"{run} is said to begin before that is durable (L12)"
        elif data["status"] is None:
            assert run not in self.parent_of, f"{run} is said never to have begun (L6)"
        elif data["proven"]:
            assert run in self.settled, f"{run} is said to have ended, and its receipt is not complete (L3)"

    def check_receipt(self, run: str, receipt: dict[str, Any]) -> None:
        """A complete receipt has all child runs, each with the rows of its own (L3)."""
        if not receipt["complete"] or receipt.get("omitted"):
            return
        rows = list(_runs_in(receipt["rows"]))
        for child, (_, parent, _) in self.parent_of.items():
            if parent == run:
                assert child in self.settled, f"the receipt of {run} is complete, and {child} has not ended (L3)"
                own = [row for row in rows if list(row.get("rows", ())) == self.settled[child]]
                assert own, f"the rows of {child} are not in the receipt of {run} (L3)"
                rows.remove(own[0])


def _is_question(envelope: Envelope[Any]) -> bool:
    return isinstance(envelope.message, ChildWanted)


def _runs_in(rows: Any) -> Any:
    """The rows of child runs, but those of their own child runs."""
    for row in rows:
        if row["kind"] == "run":
            yield row
        else:
            yield from _runs_in(row.get("rows", ()))
