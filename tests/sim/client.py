"""Client: plays a script against worlds, through faults and crashes, and checks what came of all of it.

A script is a list of small tuples, so that hypothesis can draw, shrink and print it. The client does what a good
client does: where its request was not answered, because the daemon died or the store was down, it sends the same
object again.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

import msgspec
from pykka import ActorDeadError

from actors.base import Actor
from actors.errors import CountermandError, StoreUnavailable
from actors.messages import Accepted, NewMessage, OutsideRequest, Resume, Stop, Stopped, Withdraw
from actors.model import RunStatus
from actors.ports import Settings
from actors.process import ProcessActor
from actors.run import RunActor
from actors.session import SessionActor
from actors.tool import ToolActor
from supervisor.supervisor import SupervisorActor
from tests.sim.laws import LogLaws
from tests.sim.world import Asked, World

Op = tuple[Any, ...]

KINDS: Final[tuple[type[Actor], ...]] = (SessionActor, RunActor, ToolActor, ProcessActor)
RESENT_MAX: Final = 50
_encode = msgspec.json.Encoder().encode


class Client:
    """One client of one session, and the worlds that it lives through.

    Args:
        seed: of the first world.
        settings: of every world.
    """

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.world = World(seed, settings=settings)
        self.worlds = [self.world]
        self.random = Random(seed)
        self.requests: dict[str, OutsideRequest] = {}
        self.history: list[Asked] = []
        self.faults = False
        self.crashes = 0
        self.published: dict[int, bytes] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    # ── Playing ───────────────────────────────────────────────────────────────────────────────────

    def play(self, script: Iterable[Op]) -> None:
        """Do the script, then stop what is left, settle, and check everything."""
        for op in script:
            self._do(op)
        self._finish()
        self._check()

    def _do(self, op: Op) -> None:
        match op:
            case ("new", str(content), policy, str(origin), bool(merge), age):
                sent_at = None if age is None else self.world.clock.wall() - age
                self._send(
                    NewMessage(
                        id=self._id("m"), content=content, policy=policy, origin=origin, merge=merge, sent_at=sent_at
                    )
                )
            case ("stop", mode, aim, waiting, scope, age):
                sent_at = None if age is None else self.world.clock.wall() - age
                self._send(
                    Stop(
                        id=self._id("x"),
                        source="user.test",
                        reason="as the script says",
                        mode=mode,
                        run_id=self._some_run(aim),
                        waiting=waiting,
                        scope=scope,
                        sent_at=sent_at,
                    )
                )
            case ("withdraw", int(which)):
                messages = [one for one in self.requests.values() if isinstance(one, NewMessage)]
                if messages:
                    self._send(Withdraw(id=self._id("w"), message_id=messages[which % len(messages)].id))
            case ("resume",):
                self._send(Resume(id=self._id("r")))
            case ("repeat", int(which)):
                if self.requests:
                    self._send(list(self.requests.values())[which % len(self.requests)])
            case ("steps", int(count)):
                self.world.run(max_steps=count)
            case ("wait", seconds):
                self.world.wait(seconds)
            case ("fail", int(groups)):
                self.faults = True
                self.world.store.fail_next(groups)
            case ("lose", int(groups)):
                self.faults = True
                self.world.store.lose_next(groups)
            case ("hold", bool(is_held)):
                self.world.store.hold(is_held)
            case ("down", bool(is_down)):
                self.faults = self.faults or is_down
                self.world.store.down(is_down)
            case ("poison", int(kind), int(which), bool(before)):
                self.faults = self.world.poison(KINDS[kind % len(KINDS)], which=which, before=before) or self.faults
            case ("crash",):
                self._crash()
            case _:
                raise AssertionError(f"the client does not know {op}")

    def _id(self, kind: str) -> str:
        return f"{kind}{len(self.requests) + 1}"

    def _send(self, request: OutsideRequest) -> Asked:
        self.requests.setdefault(request.id, request)
        asked = self.world.send("s", request)
        self.history.append(asked)
        return asked

    def _some_run(self, aim: int | None) -> str | None:
        """An id for a Stop that is aimed: of a run that the client has heard of."""
        if aim is None:
            return None
        known = [run.run_id for run in self.world.disk.runs("s")]
        return known[aim % len(known)] if known else "run_of_nobody"

    def _crash(self) -> None:
        self._collect_published()
        self.crashes += 1
        open_ones = [asked.request for asked in self.history if not asked.done]
        self.world = self.world.crash(self.random.randrange(1 << 30))
        self.worlds.append(self.world)
        for request in open_ones:
            self._send(request)

    def _finish(self) -> None:
        """The store is well again, what still runs is stopped, and everything comes to rest."""
        self.world.store.down(False)
        self.world.store.hold(False)
        self.world.wait(30.0)
        for _ in range(RESENT_MAX):
            self._resend()
            end = Stop(id=self._id("x"), source="user.test", reason="the end of the script", scope="session")
            stopped = self._send(end)
            assert self.world.run(lambda stopped=stopped: stopped.done), "a Stop is never answered"  # type: ignore[misc]
            self.world.settle()
            answer = stopped.outcome()
            if isinstance(answer, Stopped) and answer.durable and not self._resend():
                return
        raise AssertionError("the session does not come back")

    def _resend(self) -> bool:
        """Send again what was refused because of the store, or died; True if there was any."""
        last = {asked.request.id: asked for asked in self.history}
        again = [
            asked.request
            for asked in last.values()
            if asked.done and isinstance(asked.outcome(), StoreUnavailable | ActorDeadError)
        ]
        for request in again:
            self._send(request)
        self.world.run(lambda: all(asked.done for asked in self.history))
        return bool(again)

    # ── Checking ──────────────────────────────────────────────────────────────────────────────────

    def _collect_published(self) -> None:
        for event in self.world.published("s"):
            shown = _encode(event)
            assert self.published.setdefault(event.seq, shown) == shown, f"{event.seq} was published twice (L6)"

    def _check(self) -> None:
        world = self.world
        assert not [asked.request for asked in self.history if not asked.done], "a request is never answered"
        for one in self.worlds:
            assert not one.violations, one.violations
            assert not one.executor.errors, one.executor.errors
            if not self.faults:
                assert not one.errors, one.errors
        events = world.events("s")
        laws = LogLaws()
        laws.take(events)
        laws.finished()
        self._collect_published()
        durable = {event.seq: _encode(event) for event in events}
        for seq, shown in self.published.items():
            assert durable.get(seq) == shown, f"event {seq} was published as {shown!r}, is {durable.get(seq)!r} (L6)"
        if not self.faults and not self.crashes:
            assert self.published == durable, "not everything was published (L6)"
        self._check_answers(laws)
        self._check_rest()

    def _check_answers(self, laws: LogLaws) -> None:
        answers: dict[str, Any] = {}
        for asked in self.history:
            outcome = asked.outcome()
            assert isinstance(outcome, CountermandError | ActorDeadError | msgspec.Struct), repr(outcome)
            if isinstance(outcome, msgspec.Struct) and getattr(outcome, "durable", True):
                assert answers.setdefault(asked.request.id, outcome) == outcome, (
                    f"{asked.request.id}: two answers (L10)"
                )
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
        self._check_withdrawn(laws)
        touched = set(laws.inputs) | set(laws.returned)
        assert touched <= accepted, f"refused, and in the log: {touched - accepted}"
        assert not laws.waiting, f"still waiting: {laws.waiting} (L4)"

    def _check_withdrawn(self, laws: LogLaws) -> None:
        """What a Stop said it withdrew has not run, also where the store did not take that Stop at first."""
        if self.crashes:
            return
        refused = {one.request.id for one in self.history if isinstance(one.outcome(), Exception)}
        for asked in self.history:
            answer = asked.outcome()
            for message in answer.withdrawn if isinstance(answer, Stopped) else ():
                assert message.id in laws.returned or message.id in refused, f"{message.id} was withdrawn, and ran (L4)"

    def _check_stopped(self, answer: Stopped, laws: LogLaws) -> None:
        assert self.world.disk.receipt(answer.receipt_id) is not None, f"no receipt for {answer}"
        for message in answer.withdrawn:
            assert message.id in laws.returned, f"{message.id} is withdrawn in an answer, and was not returned"
        if answer.outcome in ("stopped", "stopping"):
            assert answer.run_id is not None
            assert laws.status[answer.run_id] is RunStatus.CANCELLED, f"{answer}: {laws.status[answer.run_id]}"
        else:
            assert answer.outcome in ("nothing_running", "already_over")

    def _check_rest(self) -> None:
        world = self.world
        running = world.executor.running()
        for execution in running:
            # An agent that swallows every cancel lives on; then its receipt has to say that it was abandoned.
            receipt = world.disk.receipt(execution.rpartition(" ")[2])
            assert receipt is not None, f"{execution} runs, and there is no receipt of it"
            assert not receipt.complete, f"{execution} runs, and its receipt is complete (L3)"
        assert not world.processes.alive(), world.processes.alive()
        left = [actor for actor in world.actors(Actor) if not isinstance(actor, SupervisorActor | SessionActor)]
        assert len(left) <= len(running), f"actors that never end: {left} (L14)"
        if not self.faults:
            kept = world.executor.kept() + world.processes.kept()
            assert not kept, f"ended, and forgotten by nobody: {kept} (L14)"
