"""Client: plays a script against worlds, through faults and crashes, and checks what came of all of it.

A script is a list of small tuples, so that it can be drawn, shrunk, printed and typed in. The client does what a good
client does: where its request was not answered, because the daemon died, the store was down, or the client itself was
away, it sends the same object again; and it reads on from the last event that it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

import msgspec
from pykka import ActorDeadError

from actors.errors import CountermandError, NotFound, RequestReused, RequestTooOld, ShuttingDown, StoreUnavailable
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.kernel.actor import Actor
from actors.model import Event, Owner
from actors.ports import Settings
from actors.requests import Accepted, Answer, Delete, NewMessage, OutsideRequest, Resume, Stop, Stopped, Withdraw
from actors.run_status import RunStatus
from supervisor.router import RestartPolicy, SupervisorActor
from tests.sim.disk import was_released
from tests.sim.hosts import Hosting
from tests.sim.laws import LogLaws
from tests.sim.media import files_of
from tests.sim.world import Asked, World

Op = tuple[Any, ...]

KINDS: Final[tuple[type[Actor], ...]] = (SessionActor, RunActor, ToolActor, ProcessActor, SupervisorActor)
RESENT_MAX: Final = 50
IDLE_STEPS_MAX: Final = 2000
LEAVING_STEPS_MAX: Final = 20
ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
REFUSALS: Final = (RequestReused, RequestTooOld, NotFound, StoreUnavailable, ShuttingDown, ActorDeadError)
"""What another request under an id that was used may meet; the last four say nothing of the id."""


class Stream:
    """What a client has seen of a session's events: replayed from the store, then live."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._world: World | None = None
        self._session = ""
        self._live: list[Event] | None = None
        self._taken = 0

    def connect(self, world: World, session: str) -> None:
        """Read on from the last event that was seen, then what is published from here on."""
        self._world, self._session = world, session
        self._live = world.publisher.events.setdefault(session, [])
        self._taken = len(self._live)
        self._take(event for event in world.events(session) if event.seq > len(self.events))

    def read(self) -> None:
        """Take what was published; nothing while the client is away."""
        if self._live is not None:
            new, self._taken = self._live[self._taken :], len(self._live)
            self._take(event for event in new if event.seq > len(self.events))

    def disconnect(self) -> None:
        """Take what was published, and nothing more."""
        self.read()
        self._live = None

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            seen, world = len(self.events), self._world
            if event.seq > seen + 1 and world is not None and world.disk.deleted.get(self._session):
                # It was away while the session was deleted, and nobody is given what is gone.
                self.events += world.disk.ever(self._session)[seen : event.seq - 1]
                seen = len(self.events)
            if event.seq > seen + 1 and world is not None and world.watch.faults:
                # Durable, and the session never heard so: a subscriber finds the gap and reads it from the store.
                self.events += world.events(self._session)[seen : event.seq - 1]
                seen = len(self.events)
            assert event.seq == seen + 1, f"a client sees {event.seq} after {seen} (L6)"
            self.events.append(event)


class Client:
    """One client of a few sessions, and the worlds that it lives through.

    Args:
        seed: of the first world, and of what the client itself draws.
        settings: of every world.
        policy: when a session is quarantined, in every world.
        hosting: how the agent runs in hosts, in every world; None: it does not.
    """

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        policy: RestartPolicy | None = None,
        hosting: Hosting | None = None,
    ) -> None:
        self.world = World(seed, settings=settings, policy=policy, hosting=hosting)
        self.worlds = [self.world]
        self.watch = self.world.watch
        self.random = Random(seed)
        self.requests: dict[str, OutsideRequest] = {}
        self.history: list[Asked] = []
        self._sent_again: set[Asked] = set()
        self.streams: dict[str, Stream] = {}
        self.played = 0
        self._session = "s"
        self._home: dict[str, str] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    @property
    def steps(self) -> int:
        """How many steps its worlds took."""
        return sum(world.steps for world in self.worlds)

    # ── Playing ───────────────────────────────────────────────────────────────────────────────────

    def play(self, script: Iterable[Op]) -> None:
        """Do the script, then stop what is left, settle, and check everything."""
        for op in script:
            self._do(op)
            self._restart_if_dead()
            self.played += 1
        self._finish()
        self._check()

    def _do(self, op: Op) -> None:
        world = self.world
        match op:
            case ("at" | "child", place, inner):
                self._session = place if op[0] == "at" else self._child_session(place)
                try:
                    self._do(inner)
                finally:
                    self._session = "s"
            case ("later", delay, inner):
                # Over a channel of its own, which may be slower than the others.
                session = self._session
                world.clock.call_at(world.clock.monotonic() + delay, lambda: self._arrive(world, session, inner))
            case ("new" | "stop" | "withdraw" | "resume" | "answer" | "delete" | "repeat" | "restop" | "reuse", *_):
                request = self._request(op)
                if request is not None:
                    self._send(request)
            case ("steps", int(count)):
                world.run(max_steps=count)
            case ("wait", seconds):
                world.wait(seconds)
            case ("idle", int(count)):
                # So many steps behind the moment in which a session says that it is idle.
                world.run(world.someone_is_idle, max_steps=IDLE_STEPS_MAX)
                world.run(max_steps=count)
            case ("asked_to_leave",):
                # Soon behind the same moment: the session may be in use by now, and what comes for it is held.
                world.run(world.someone_is_to_leave, max_steps=LEAVING_STEPS_MAX)
            case ("fail", int(groups)):
                world.store.fail_next(groups)
            case ("lose", int(groups)):
                world.store.lose_next(groups)
            case ("unfit", int(groups)):
                world.store.unfit_next(groups)
            case ("hold", bool(is_held)):
                # While it shuts down the disk answers: how long it may take is said in seconds there.
                world.store.hold(is_held and world.interrupts_at is None)
            case ("hold_reads", bool(is_held)):
                world.store.hold_reads(is_held and world.interrupts_at is None)
            case ("hold_journal", bool(is_held)):
                world.store.hold_journal(is_held and world.interrupts_at is None)
            case ("down", bool(is_down)):
                world.store.down(is_down)
            case ("poison", int(kind), int(which), bool(before)):
                world.poison(KINDS[kind % len(KINDS)], which=which, before=before)
            case ("litter", int(seed)):
                world.strays.random = Random(seed)
            case ("leave",):
                for stream in self.streams.values():
                    stream.disconnect()
            case ("come",):
                self._reconnect()
            case ("shutdown", drain_s):
                self._let_go()
                world.shutdown(drain_s)
            case ("crash",):
                self._crash()
            case _:
                raise AssertionError(f"the client does not know {op}")

    def _request(self, op: Op) -> OutsideRequest | None:
        wall = self.world.clock.wall()
        match op:
            case ("new", str(content), policy, str(origin), bool(merge), age):
                sent_at = None if age is None else wall - age
                named = [word.removeprefix("to=") for word in content.split() if word.startswith("to=")]
                identity = self._id()
                return NewMessage(
                    id=identity,
                    attachments=files_of(content, identity),
                    content=" ".join(word for word in content.split() if not word.startswith("to=")),
                    policy=policy,
                    origin=origin,
                    merge=merge,
                    sent_at=sent_at,
                    agent=named[0] if named else None,
                )
            case ("stop", mode, aim, waiting, scope, str(origin), age):
                made = self._id()
                return Stop(
                    id=made,
                    source="user.test",
                    reason="as the script says",
                    mode=mode,
                    run_id=self._some_run(aim),
                    waiting=waiting,
                    scope=scope,
                    origin=origin,
                    requested_by=made,
                    sent_at=None if age is None else wall - age,
                )
            case ("withdraw", int(which)):
                messages = [one for one in self._own() if isinstance(one, NewMessage)]
                return Withdraw(id=self._id(), message_id=messages[which % len(messages)].id) if messages else None
            case ("resume",):
                return Resume(id=self._id())
            case ("answer", int(which), allow):
                # Of those that the client has heard of the newest are the first: others are over, or of another run.
                asked = [one for one in self.world.disk.events(self._session) if one.kind == "call.waiting"]
                call_id = asked[-1 - which % len(asked)].data["call_id"] if asked else "call_of_nobody"
                made = self._id()
                # A bot that allows it: it may answer a question alone.
                origin, allow = ("bot", True) if allow == "bot" else ("user", allow)
                return Answer(id=made, call_id=call_id, content=f"as {made} says", allow=allow, origin=origin)
            case ("delete",):
                return Delete(id=self._id(), source="user.test", reason="as the script says")
            case ("repeat", int(which)):
                own = self._own()
                return own[which % len(own)] if own else None
            case ("restop", int(which)):
                # One of the last Stops: what came of it may not be settled yet.
                stops = [one for one in self._own() if isinstance(one, Stop)]
                return stops[-1 - which % len(stops)] if stops else None
            case ("reuse", int(which)):
                # A client in error: another request under an id that was used.
                own = [one for one in self._own() if self.watch.answers.is_answered(one.id)]
                return NewMessage(id=own[which % len(own)].id, content="say=9 other=1") if own else None
            case _:
                raise AssertionError(f"the client does not know {op}")

    def _own(self) -> list[OutsideRequest]:
        return [one for one in self.requests.values() if self._home[one.id] == self._session]

    def _id(self) -> str:
        """An id as a request makes its own: it tells its time, and so whether it is older than a deletion."""
        number = int(self.world.clock.wall() * 1000) << 80 | len(self.requests) + 1
        digits = "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
        return f"req_{digits}"

    def _send(self, request: OutsideRequest) -> Asked:
        if request.id not in self.requests:
            self.requests[request.id] = request
            self._home[request.id] = self._session
        session = self._home[request.id]
        if session not in self.streams:
            self.streams[session] = Stream()
            self.streams[session].connect(self.world, session)
        asked = self.world.send(session, request)
        self.history.append(asked)
        return asked

    def _child_session(self, which: int) -> str:
        """The session of a child run, a late one first; where there is none, the one that all ops are at."""
        runs = [run for tables in self.world.disk.tables.values() for run in tables.runs.values()]
        found = sorted({run.session for run in runs if run.parent is not None})
        return found[-1 - which % len(found)] if found else self._session

    def _arrive(self, world: World, session: str, op: Op) -> None:
        if world is self.world:
            self._do(("at", session, op))

    def _some_run(self, aim: int | None) -> str | None:
        """An id for a Stop that is aimed: of a run that the client has heard of."""
        if aim is None:
            return None
        known = [run.run_id for run in self.world.disk.runs(self._session)]
        return known[aim % len(known)] if known else "run_of_nobody"

    def _reconnect(self) -> None:
        """Come back: read on, and send again what was not answered."""
        for session, stream in self.streams.items():
            stream.connect(self.world, session)
        for request in {asked.request.id: asked.request for asked in self.history if not asked.done}.values():
            self._send(request)

    def _restart_if_dead(self) -> None:
        """Start anew what was shut down, or what has ended with its root."""
        if self.world.ended or not self.world.supervisor.is_alive():
            self._crash()

    def _crash(self) -> None:
        for stream in self.streams.values():
            stream.disconnect()
        open_ones = [asked.request for asked in self.history if not asked.done]
        seed = self.random.randrange(1 << 30)
        self.world = self.world.restart(seed) if self.world.ended else self.world.crash(seed)
        self.worlds.append(self.world)
        for session, stream in self.streams.items():
            stream.connect(self.world, session)
        for request in open_ones:
            self._send(request)

    def _finish(self) -> None:
        """The store is well again, what still runs is stopped, and everything comes to rest."""
        self.world.store.down(False)
        self._let_go()
        self.world.wait(30.0)
        if self.world.interrupts_at is not None and self.world.supervisor.is_alive():
            assert self.world.run(lambda: self.world.ended), "a shutdown is never answered (L11)"
        self._restart_if_dead()
        sessions = list(self.streams)
        for _ in range(RESENT_MAX):
            self._restart_if_dead()
            self._resend()
            stops = []
            for self._session in sessions:
                made = self._id()
                why = "the end of the script"
                stop = Stop(id=made, source="user.test", reason=why, requested_by=made, scope="session")
                stops.append(self._send(stop))
            self.world.run(lambda stops=stops: all(one.done for one in stops))  # type: ignore[misc]
            if not self.world.supervisor.is_alive():
                continue
            assert all(one.done for one in stops), "a Stop is never answered"
            self.world.settle()
            answers = [one.outcome() for one in stops]
            if all(map(self._stopped, sessions, answers)) and not self._resend():
                return
        raise AssertionError("the session does not come back")

    def _let_go(self) -> None:
        """Nothing of the disk waits any longer."""
        self.world.store.hold(False)
        self.world.store.hold_reads(False)
        self.world.store.hold_journal(False)

    def _stopped(self, session: str, answer: object) -> bool:
        """A Stop is on record; or it is refused, since the session was deleted, and nothing has begun it anew."""
        if isinstance(answer, NotFound):
            row = self.world.disk.of(session).row
            assert row is not None, f"{session} is said to be deleted, and was never there"
            assert row.deleted, f"{session} is said to be deleted, and is not"
            return True
        return isinstance(answer, Stopped) and answer.durable

    def _resend(self) -> bool:
        """Send again what was refused because of the store or a shutdown, or died; True if there was any.

        Of two copies of a request on their way the second may be answered first, and be refused for good; what the
        first was refused for may still have been stored. So each copy counts, not the last one that was sent.
        """
        unsure = [
            asked
            for asked in self.history
            if asked.done
            and asked not in self._sent_again
            and isinstance(asked.outcome(), StoreUnavailable | ShuttingDown | ActorDeadError)
        ]
        self._sent_again.update(unsure)
        again = {asked.request.id: asked.request for asked in unsure}
        for request in again.values():
            self._send(request)
        self.world.run(lambda: all(asked.done for asked in self.history))
        return bool(again)

    # ── Checking ──────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        assert not [asked.request for asked in self.history if not asked.done], "a request is never answered"
        for one in self.worlds:
            assert not one.executor.errors, one.executor.errors
            errors = [error for error in one.errors if not (one.hesitated and "did not come to rest" in error)]
            if not self.watch.faults:
                assert not errors, errors
        for session, stream in self.streams.items():
            laws = self.watch.laws(session)
            laws.finished()
            laws.check_thread()
            self._check_stream(session, stream)
            self._check_answers(session, laws)
            assert not laws.waiting, f"still waiting: {laws.waiting} (L4)"
        self._check_rest()
        self.watch.answers.all_stand()
        assert not self.world.disk.journal, f"left in the journal: {list(self.world.disk.journal)} (L12)"
        for request_id, (kept, _) in self.watch.journal.owed.items():
            known = kept.stop.run_id is None or self.world.disk.run(kept.stop.run_id) is not None
            assert not known, f"{request_id} was in the journal, and was never decided (L12)"

    def _check_stream(self, session: str, stream: Stream) -> None:
        stream.read()
        durable = self.world.disk.ever(session)
        if not self.watch.faults and stream._live is not None:
            assert len(stream.events) == len(durable), "not everything was published (L6)"
        for seen, written in zip(stream.events, durable, strict=False):
            assert seen == written, f"a client saw {seen}, on record is {written} (L6)"

    def _check_answers(self, session: str, laws: LogLaws) -> None:
        answers: dict[str, Any] = {}
        for asked in self.history:
            if asked.session != session:
                continue
            outcome = asked.outcome()
            assert isinstance(outcome, CountermandError | ActorDeadError | msgspec.Struct), repr(outcome)
            if asked.request is not self.requests[asked.request.id]:
                first = isinstance(answers.get(asked.request.id), msgspec.Struct)
                assert not first or isinstance(outcome, REFUSALS), (
                    f"{asked.request} takes the id of another request, and is answered {outcome} (L10)"
                )
            elif isinstance(outcome, msgspec.Struct) and getattr(outcome, "durable", True):
                answers[asked.request.id] = outcome
        laws.asking.check_answers(answers.values())
        accepted = set()
        for answer in answers.values():
            if isinstance(answer, Accepted):
                accepted.add(answer.message_id)
                fate = (answer.message_id in laws.inputs) + (answer.message_id in laws.returned)
                assert fate == 1, f"{answer.message_id} has {fate} fates (L4)"
                if answer.returned:
                    assert laws.returned[answer.message_id] == answer.returned
            elif isinstance(answer, Stopped):
                self._check_stopped(answer, laws)
        self._check_withdrawn(session, laws)
        if not self._reused():
            # Of what was deleted since, a client that had no answer learns that it is too old, and no more.
            touched = (set(laws.inputs) | set(laws.returned)) - self.watch.deleted_requests
            touched = {one for one in touched if not one.startswith("delegated_")}
            assert touched <= accepted, f"refused, and in the log: {touched - accepted}"

    def _reused(self) -> bool:
        return any(asked.request is not self.requests[asked.request.id] for asked in self.history)

    def _check_withdrawn(self, session: str, laws: LogLaws) -> None:
        """What a Stop said it withdrew has not run, also where the store did not take that Stop at first."""
        if self.watch.crashes:
            return
        for asked in [one for one in self.history if one.session == session]:
            answer = asked.outcome()
            for message in answer.withdrawn if isinstance(answer, Stopped) else ():
                assert message.id in laws.returned, f"{message.id} was withdrawn, and ran (L4)"

    def _check_stopped(self, answer: Stopped, laws: LogLaws) -> None:
        if answer.receipt_id not in self.watch.deleted_receipts:
            assert self.world.disk.receipt(answer.receipt_id) is not None, f"no receipt for {answer}"
        for message in answer.withdrawn:
            assert message.id in laws.returned, f"{message.id} is withdrawn in an answer, and was not returned"
        places = [laws.waited[message.id] for message in answer.withdrawn if message.id in laws.waited]
        assert places == sorted(places), f"{answer} names what it withdraws in another order than it came in (L4)"
        if answer.outcome in ("stopped", "stopping"):
            assert answer.run_id is not None
            # Of a run that the store never heard of, since it failed or a crash came first, there is a receipt alone.
            unheard_of = self.watch.faults or self.watch.crashes
            status = laws.status.get(answer.run_id, RunStatus.CANCELLED if unheard_of else None)
            assert status is RunStatus.CANCELLED, f"{answer}: {status}"
        else:
            assert answer.outcome in ("nothing_running", "already_over")

    def _check_rest(self) -> None:
        world = self.world
        running, alive = world.executor.running(), 0
        for execution in running:
            # An agent that swallows every cancel lives on, and a tool in a process that nothing ends: the receipt of
            # its run says that it was abandoned.
            key = execution.rpartition(" ")[2]
            runs = [
                call.run_id
                for tables in world.disk.tables.values()
                for call in tables.calls.values()
                if call.call_id == key
            ]
            receipt = world.disk.receipt(*(runs or [key]))
            assert receipt is not None, f"{execution} runs, and there is no receipt of it"
            assert not receipt.complete, f"{execution} runs, and its receipt is complete (L3)"
        for process_id in world.processes.alive():
            row = world.disk.process(process_id)
            if process_id in self.watch.hosts and (row is None or was_released(row)):
                # It was told nothing, and is of no run: a spare, or one that nothing ends.
                spare = world.hosts is None or world.hosts.is_spare(process_id)
                assert spare or world.processes.is_ending(process_id), f"{process_id} is reserved for nobody (L14)"
                continue
            assert row is not None, f"{process_id} lives, and is nobody's"
            for of in row.receipts if row.owner is Owner.SESSION else (row.run_id,):
                receipt = world.disk.receipt(of)
                assert receipt is not None, f"{process_id} lives, and there is no receipt of {of}"
                assert not receipt.complete, f"{process_id} lives, and the receipt of {of} is complete (L3)"
            alive += 1
        for stray in world.strays.alive():
            receipt = world.disk.receipt(stray.address.run)
            assert receipt is not None, f"{stray} goes on, and there is no receipt of its run"
            assert not receipt.complete, f"{stray} goes on, and its receipt is complete (L3)"
            alive += 1
        # What is abandoned of a child run keeps the actors of its parent.
        alive += len(world._root._child_links._linked)
        left = [actor for actor in world.actors(Actor) if not isinstance(actor, SupervisorActor | SessionActor)]
        assert len(left) <= 3 * (len(running) + alive), f"actors that never end: {left} (L14)"
        # A session that failed in quarantine has no actor: the next one records how this has ended.
        unread = [
            tables
            for session, tables in world.disk.tables.items()
            if session in world._root._quarantined and session not in world._root.children
        ]
        theirs = {key for one in unread for rows in (one.runs, one.calls, one.processes) for key in rows}
        ended = world.executor.kept() + world.processes.kept() + world.strays.kept()
        kept = [key for key in ended if key.rpartition(" ")[2] not in theirs]
        assert not kept, f"ended, and forgotten by nobody: {kept} (L14)"
        if not self.watch.faults:
            self.watch.rest.at_rest()
            self.watch.children.at_rest()
