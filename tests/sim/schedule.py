"""Schedules: what a seed stands for. A script of requests, pauses and faults, and the settings it is played under.

A schedule is drawn by weights, not by a grammar: every request may come at every moment. Each has one kind of trouble
in it, or all of them, so that what goes wrong without any is not hidden by what may go wrong with it. What needs
several things at once is drawn together, or it is met too seldom: so *stops* are Stops, the same ones again, and all
that keeps them from being stored, within the tenth of a second in which a session waits for its store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final
from unittest import mock

import msgspec

from actors.model import Barrier
from actors.ports import HostedAgent, Settings
from actors.protocol import run_record
from supervisor.router import RestartPolicy
from tests.sim.client import Client, Op
from tests.sim.hosts import Hosting

CONTENTS: Final = (
    "say=1",
    "say=2 show say=1 show",
    "say=3 write=1 say=1",
    "both=2 say=1",
    "write=0.1 run=1 write=0.1",
    "run=30,children=2,output=3",
    "run=30,ignores_term",
    "run=40,never_dies",
    "leave=60 say=1 sleep=1",
    "leave=60,ignores_term leave=1 sleep=2 say=1",
    "sleep=60",
    "open=5",
    "open=0.1 say=1",
    "deaf=9",
    "late=4 say=1",
    "late=9",
    "stubborn",
    "tidy=1",
    "limit=0.5 sleep=2 say=1",
    "limit=0.9998 limit=0.01 limit=0",
    "say=1 tidy=9",
    "say=1 steer sleep=1 steer",
    "say=1 steer say=1 steer say=1",
    "raise",
    "fail bad",
    "forever",
    "run=1,absent say=1",
    "run=1,lost",
    "write=0.01 say=1 write=0.01 say=1",
    "serve=60 say=1",
    "serve=0,serves,ignores_term write=1",
    "hand=60,children=1 say=1",
    "hand=0,serves sleep=1 run=1",
    "hand=60,after=0.4998 say=1",
    "hand=60,after=1.9998",
    "serve=0.5 hand=0.5 leave=0.5 sleep=1",
)
TIGHT: Final = (
    "sleep=0.3 write=0.1 say=1",
    "sleep=0.4 write=0.1 sleep=0.4 write=0.1",
    "patient=1 say=1",
    "patient=9 say=1",
    "many=14 say=1",
    "crowd=4 sleep=1 crowd=4",
    "fan=4 say=1",
    "leave=60,ignores_term leave=60 sleep=1",
    "run=30,ignores_term",
    "serve=60,ignores_term say=1",
    "deaf=3",
)
POLICIES: Final = (None, "interrupt", "enqueue", "enqueue", "steer", "reject", "rollback")
AGES: Final = (None, None, None, 0.0, 0.5, 5.0)
IDLES: Final = (0.001, 0.05, 1.0)
TROUBLES: Final = ("none", "none", "store", "failures", "crashes", "shutdowns", "all", "stops", "stops", "stops")
OPS_MIN, OPS_MAX = 5, 22
WORLDS: Final = 1 << 32
LITTERED: Final = 0.25
"""In how many schedules executions leave something behind that they started by themselves."""

TOGETHER: Final = 0.04
"""In how many schedules there is something that needs several things at once."""

ABANDONED: Final = 0.01
"""In how many schedules the store hangs while something is abandoned that an agent in a host waits for."""

JOINED: Final = 0.02
"""In how many schedules a Stop joins a run beside the next one, of whose start the store does not say what became."""

UNPROVEN: Final = 0.01
"""In how many schedules a tree of the session is not proven to have ended with its daemon."""

ORPHANED: Final = 0.05
"""In how many schedules the actor of a call fails while a host for the call is asked for."""

HOSTED: Final = 0.2
"""In how many schedules the agent runs in hosts."""

GATED: Final = 0.2
"""In how many schedules functions of the agent's own, and tools that calls bring along, stand for registered ones."""

PROC: Final = 0.4
"""In how many schedules with hosts tools run in processes of their own."""

GUARDED: Final = 0.1
"""In how many schedules tools have their effects behind guards."""

SAVING: Final = 0.15
"""In how many schedules agents save something for later runs."""

OWN: Final = 0.2
"""In how many schedules agents start processes themselves, in no call."""

OWN_WORDS: Final = {"run": "own", "leave": "own_left", "serve": "own_serve", "hand": "own_hand", "crowd": "own_many"}

ANSWERED: Final = 0.2
"""In how many schedules what agents say and call is in answers of models."""

AWOKEN: Final = 0.1
"""In how many of the schedules in which sessions leave memory one is in use again as it leaves, or soon behind it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule: the seed of its world, the settings, and the script."""

    seed: int
    settings: Settings
    script: tuple[Op, ...]
    failures_max: int = 5
    parts_max: int = 1000
    hosting: Hosting | None = None

    def play(self) -> int:
        """Play it in a fresh world; returns how many steps that took.

        Raises:
            AssertionError: a law was broken.
        """
        with self.client() as client:
            client.play(self.script)
            return client.steps

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of a fresh world with the limits of this schedule."""
        with (
            mock.patch.object(run_record, "PARTS_KEPT_MAX", self.parts_max),
            Client(self.seed, self.settings, RestartPolicy(failures_max=self.failures_max), self.hosting) as client,
        ):
            yield client


def draw(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    random = Random(seed)
    trouble = random.choice(TROUBLES)
    script = []
    settings = _settings(random)
    for _ in range(random.randint(OPS_MIN, OPS_MAX)):
        op = _op_of_stops(random, settings) if trouble == "stops" else _op(random, trouble, settings)
        if random.random() < 0.1:
            op = ("at", "t", op) if _asks(op) else op
        if random.random() < 0.1:
            op = ("later", random.choice((0.0, 0.001, 0.5)), op) if _asks(op) else op
        script.append(op)
    world = random.randrange(WORLDS)
    # Of a source of its own: what else is drawn stays what it was.
    litter = Random(f"litter {seed}")
    if litter.random() < LITTERED:
        script.insert(0, ("litter", litter.randrange(WORLDS)))
    together = Random(f"together {seed}")
    if together.random() < TOGETHER:
        place = together.randint(0, len(script))
        script[place:place] = together.choice((_unstored, _outlived, _hurried, _erased))(together)
    joined = Random(f"joined {seed}")
    if joined.random() < JOINED:
        place = joined.randint(0, len(script))
        script[place:place] = _joined(joined)
    unproven = Random(f"unproven {seed}")
    if unproven.random() < UNPROVEN:
        place = unproven.randint(0, len(script))
        script[place:place] = _unproven(unproven)
    awoken = Random(f"awoken {seed}")
    if settings.passivate_s is not None and awoken.random() < AWOKEN:
        place = awoken.randint(0, len(script))
        script[place:place] = awoken.choice((_awoken, _read_late))(awoken)
    gated = Random(f"gated {seed}")
    if gated.random() < GATED:
        script = [_in_message(op, partial(_gated, gated)) for op in script]
    hosting = _hosting(Random(f"hosted {seed}"))
    abandoned = Random(f"abandoned {seed}")
    if abandoned.random() < ABANDONED:
        place = abandoned.randint(0, len(script))
        script[place:place] = _abandoned(abandoned)
        hosting = Hosting(abandoned.randrange(WORLDS), HostedAgent("scripted", keep=False, overlap=False))
    orphaned = Random(f"orphaned {seed}")
    if orphaned.random() < ORPHANED:
        place = orphaned.randint(0, len(script))
        script[place:place] = _orphaned(orphaned)
        hosting = hosting or Hosting(orphaned.randrange(WORLDS), HostedAgent("scripted", keep_idle_s=0.5))
    drawn = Schedule(world, settings, tuple(script), hosting=hosting)
    tight = Random(f"{seed} tight")
    drawn = _tight(tight, drawn) if tight.random() < 0.25 else drawn
    proc = Random(f"proc {seed}")
    if drawn.hosting is not None and proc.random() < PROC:
        drawn = _in_messages(drawn, partial(_calling, "proc", proc))
    guarded = Random(f"guarded {seed}")
    if guarded.random() < GUARDED:
        drawn = _in_messages(drawn, partial(_calling, "guard", guarded))
    saving = Random(f"saving {seed}")
    if saving.random() < SAVING:
        drawn = _in_messages(drawn, partial(_saving, saving))
    own = Random(f"own {seed}")
    if own.random() < OWN:
        drawn = _in_messages(drawn, partial(_own, own))
    answered = Random(f"answered {seed}")
    if answered.random() < ANSWERED:
        drawn = _in_messages(drawn, partial(_answered, answered))
    return drawn


def _hosting(random: Random) -> Hosting | None:
    """How the agent of a schedule runs in hosts; None: it does not."""
    if random.random() >= HOSTED:
        return None
    keep, overlap, idle_s = random.random() < 0.6, random.random() < 0.8, random.choice((0.5, 5.0, 30.0))
    return Hosting(random.randrange(WORLDS), HostedAgent("scripted", keep, idle_s, overlap))


def _tight(random: Random, drawn: Schedule) -> Schedule:
    """Have a schedule come to its limits: they are low, and what its messages say goes beyond them."""
    script = tuple(_to_the_limit(random, op) for op in drawn.script)
    match random.choice(("deadlines", "limits", "quarantine")):
        case "deadlines":
            run_s, call_s = random.choice((1.0, 3.0)), random.choice((0.5, None))
            settings = _changed(drawn.settings, run_deadline_s=run_s, call_deadline_s=call_s)
            return replace(drawn, settings=settings, script=script)
        case "limits":
            settings = _changed(drawn.settings, queue_max=2, calls_open_max=2, processes_max=2)
            return replace(drawn, settings=settings, script=script, parts_max=6)
        case _:
            ops: list[Op] = []
            for op in script:
                ops.append(op)
                if random.random() < 0.3:
                    ops.append(("poison", 0, random.randrange(4), random.random() < 0.5))
            return replace(drawn, script=tuple(ops), failures_max=1)


def _in_messages(drawn: Schedule, change: Callable[[str], str]) -> Schedule:
    """Change the text of each message of a schedule."""
    return replace(drawn, script=tuple(_in_message(op, change) for op in drawn.script))


def _in_message(op: Op, change: Callable[[str], str]) -> Op:
    match op:
        case ("new", str(content), *rest):
            return ("new", change(content), *rest)
        case ("at" | "later", place, inner):
            return (op[0], place, _in_message(inner, change))
        case _:
            return op


def _gated(random: Random, content: str) -> str:
    """Have the words that call a tool gate a function of the agent's own, or bring the tool along."""
    return " ".join(
        word.replace(name, random.choice(("gate", "foreign")))
        if (name := word.partition("=")[0]) in ("write", "sleep", "deaf", "late")
        else word
        for word in content.split()
    )


def _calling(tool: str, random: Random, content: str) -> str:
    """Have most words that call a tool call this one: with a process of its own, or with guards."""
    words = []
    for word in content.split():
        name, equals, value = word.partition("=")
        other = name in ("write", "deaf", "late", "patient") and random.random() < 0.8
        words.append(f"{tool}{equals}{value}" if other else word)
    return " ".join(words)


def _saving(random: Random, content: str) -> str:
    """Have something saved, at a place in the message."""
    words = content.split()
    words.insert(random.randint(0, min(len(words), 2)), f"save={random.choice((0, 1, 1, 2, 3))}")
    return " ".join(words)


def _own(random: Random, content: str) -> str:
    """Have most words that start a process do so in no call."""
    words = []
    for word in content.split():
        name, equals, value = word.partition("=")
        own = name in OWN_WORDS and random.random() < 0.8
        words.append(f"{OWN_WORDS[name]}{equals}{value.partition(',after')[0]}" if own else word)
    return " ".join(words)


def _answered(random: Random, content: str) -> str:
    """Have many words that say or call something do so in an answer of a model."""
    words = []
    for word in content.split():
        said = word.partition("=")[0] in ("say", "write", "sleep", "gate", "deaf") and random.random() < 0.5
        answer = random.choice(("answer=0", "open=0.1 answer=0.5", "answer=3", "answer_left=1"))
        words.append(answer if said else word)
    return " ".join(words)


def _to_the_limit(random: Random, op: Op) -> Op:
    match op:
        case ("new", _, *rest) if random.random() < 0.5:
            return ("new", random.choice(TIGHT), *rest)
        case _:
            return op


def _settings(random: Random) -> Settings:
    settings = Settings(agent="scripted")
    if random.random() < 0.15:
        settings = Settings(agent="scripted", barrier=Barrier.STRICT)
    if random.random() < 0.15:
        settings = _changed(settings, call_deadline_s=random.choice((0.5, 2.0)))
    if random.random() < 0.15:
        settings = _changed(settings, run_deadline_s=random.choice((0.5, 3.0)))
    if random.random() < 0.3:
        settings = _changed(settings, passivate_s=random.choice(IDLES))
    if random.random() < 0.1:
        settings = _changed(settings, queue_max=2, calls_open_max=1, processes_max=1, credit_events=1)
    return settings


def _changed(settings: Settings, **changes: object) -> Settings:
    changed: Settings = msgspec.structs.replace(settings, **changes)
    return changed


def _op(random: Random, trouble: str, settings: Settings) -> Op:
    draws: list[tuple[float, Callable[[Random], Op]]] = [(6, _news), (3.5, _stop), (2.5, _other), (9, _pause)]
    if settings.passivate_s is not None:
        draws += [(3, _idle), (1, _tree)]
    if trouble in ("store", "all"):
        draws.append((2, _fault))
    if trouble in ("failures", "all"):
        draws.append((2, _failure))
    if trouble in ("crashes", "all"):
        draws.append((1.5, _crash))
    if trouble in ("shutdowns", "all"):
        draws.append((1.5, _shutdown))
    kinds = [kind for _, kind in draws]
    return random.choices(kinds, [weight for weight, _ in draws])[0](random)


def _op_of_stops(random: Random, settings: Settings) -> Op:
    draws: list[tuple[float, Callable[[Random], Op]]] = [(5, _news), (5, _stop), (4, _restop), (1, _other)]
    draws += [(4, _fault), (3, _slow), (6, _moment), (3, _pause), (0.7, _crash), (1, _failure), (0.2, _shutdown)]
    if settings.passivate_s is not None:
        draws.append((2, _idle))
    kinds = [kind for _, kind in draws]
    return random.choices(kinds, [weight for weight, _ in draws])[0](random)


def _asks(op: Op) -> bool:
    return op[0] in ("new", "stop", "withdraw", "resume", "delete", "repeat", "restop", "reuse")


def _news(random: Random) -> Op:
    origin = random.choice(("user", "user", "bot"))
    content = random.choice(CONTENTS)
    return ("new", content, random.choice(POLICIES), origin, random.random() < 0.5, random.choice(AGES))


def _stop(random: Random) -> Op:
    mode, aim = random.choice(("graceful", "immediate")), random.choice((None, None, 0, 1, 2, 3))
    waiting = random.choice((None, "withdraw", "park", "keep"))
    scope, origin = random.choice(("run", "session")), random.choice(("user", "user", "bot"))
    return ("stop", mode, aim, waiting, scope, origin, random.choice(AGES))


def _other(random: Random) -> Op:
    kind = random.choice(("withdraw", "withdraw", "resume", "delete", "repeat", "repeat", "reuse", "leave", "come"))
    return (kind,) if kind in ("resume", "delete", "leave", "come") else (kind, random.randrange(10))


def _pause(random: Random) -> Op:
    kind = random.choice(("steps", "steps", "steps", "steps", "wait", "hold"))
    if kind == "steps":
        return ("steps", random.choice((1, 3, 9, 20, 60)))
    if kind == "wait":
        return ("wait", random.choice((0.05, 1.0, 3.0, 9.0)))
    return ("hold", random.random() < 0.4)


def _restop(random: Random) -> Op:
    return ("restop", random.choice((0, 0, 0, 1, 2)))


def _slow(random: Random) -> Op:
    kind = random.choice(("hold", "hold_reads", "hold_reads", "hold_journal"))
    return (kind, random.random() < 0.55)


def _moment(random: Random) -> Op:
    """A pause about as long as what a Stop waits for: the journal, its answer, the next attempt of a store."""
    if random.random() < 0.6:
        return ("steps", random.choice((1, 2, 4, 8)))
    return ("wait", random.choice((0.02, 0.11, 0.16, 0.3)))


def _unstored(random: Random) -> list[Op]:
    """A turn waits, and that is stored. It begins behind a store that hangs, is stopped, and then the store fails.

    The Stop leaves what waits: on record that is the turn which it has stopped.
    """
    mode, waiting = random.choice(("graceful", "immediate")), random.choice(("park", "keep"))
    return [
        ("new", "sleep=0.3 say=1", None, "user", True, None),
        ("new", random.choice(CONTENTS), "enqueue", "user", True, None),
        ("steps", random.choice((20, 60))),
        ("hold", True),
        ("wait", 1.0),
        ("stop", mode, None, waiting, "run", "user", None),
        random.choice((("steps", 9), ("wait", 0.3))),
        random.choice((("fail", 1), ("unfit", 1), ("lose", 1))),
        ("hold", False),
        ("wait", 1.0),
    ]


def _outlived(random: Random) -> list[Op]:
    """Code of a run goes on for longer than it may, and has left things behind when it ends; then there are calls."""
    return [
        ("litter", random.randrange(WORLDS)),
        ("new", random.choice(("late=9", "deaf=9")), None, "user", True, None),
        ("wait", 0.05),
        ("new", random.choice(("write=1", "stubborn")), None, "user", True, None),
        ("wait", 9.0),
        ("new", "write=3 write=3", None, "user", True, None),
    ]


def _hurried(random: Random) -> list[Op]:
    """What does not end is stopped, and when the grace is over somebody kills it at once."""
    return [
        ("new", random.choice(("run=40,never_dies", "deaf=9", "late=9")), None, "user", True, None),
        ("wait", 1.0),
        ("stop", "graceful", None, "keep", "run", "user", None),
        ("wait", 3.0),
        ("stop", "immediate", None, "keep", random.choice(("run", "session")), "user", None),
        ("wait", 9.0),
    ]


def _erased(random: Random) -> list[Op]:
    """A Stop and a deletion wait for a store that hangs, the Stop for so long that it is answered early."""
    return [
        ("new", random.choice(("say=1", "run=5", "sleep=60")), None, "user", True, None),
        ("wait", random.choice((0.05, 1.0))),
        ("hold", True),
        ("stop", random.choice(("graceful", "immediate")), None, None, random.choice(("run", "session")), "user", None),
        ("wait", 0.3),
        ("delete",),
        random.choice((("steps", 9), ("wait", 3.0))),
        ("hold", False),
        ("wait", 3.0),
    ]


def _joined(random: Random) -> list[Op]:
    """A run that takes its time to end is taken over from; that is stored, and said not to be. A Stop, and a crash.

    Then what is restored may not be stored either, and there is another Stop.
    """
    slow = random.choice(("run=30,ignores_term", "hand=60,after=0.4998", "late=4 say=1", "serve=60 say=1"))
    return [
        ("new", slow, None, "user", True, None),
        ("wait", 0.05),
        ("lose", 1),
        *[("new", "say=1", None, "user", True, None)] * random.choice((1, 1, 2)),
        ("steps", random.randint(12, 24)),
        _stop(random),
        ("steps", random.randint(6, 20)),
        ("crash",),
        *random.choice(([], [(random.choice(("fail", "unfit")), 1), _stop(random), ("wait", 0.05), ("crash",)])),
    ]


def _unproven(random: Random) -> list[Op]:
    """Of a tree of the session nobody can say that it has ended with its daemon. A Stop, and a deletion."""
    end = random.choice(("never_dies", "lost"))
    return [
        ("new", f"{random.choice(('serve=60', 'hand=60'))},{end} say=1", None, "user", True, None),
        ("wait", 1.0),
        ("crash",),
        random.choice((("steps", random.randint(1, 9)), ("wait", 3.0), ("wait", 9.0))),
        random.choice((_stop, _news))(random),
        random.choice((("steps", 20), ("wait", 9.0))),
        ("delete",),
    ]


def _abandoned(random: Random) -> list[Op]:
    """What never dies is stopped, and the store hangs until that is abandoned. Then it writes the start of a run.

    What it writes next, with what was abandoned in it, is written some time later.
    """
    word = random.choice(("run=60,never_dies", "run=60,never_dies", "serve=60,never_dies", "hand=60,never_dies"))
    return [
        ("new", word, None, "user", True, None),
        ("wait", 1.0),
        ("stop", random.choice(("graceful", "immediate")), None, None, "session", "user", None),
        random.choice((("steps", 20), ("wait", 1.0))),
        ("hold", True),
        ("new", "say=1", None, "user", True, None),
        ("wait", 9.0),
        ("hold", False),
        ("steps", 1),
        ("hold", True),
        ("steps", 20),
        ("hold", False),
        ("wait", 1.0),
    ]


def _orphaned(random: Random) -> list[Op]:
    """The actor of a call fails when it has asked for a host, perhaps behind a store that hangs. Others follow."""
    words = random.choice(("proc=3", "proc=3 say=1", "write=0.1 proc=3", "proc=1 proc=3"))
    ops: list[Op] = [
        ("new", words, None, "user", True, None),
        ("steps", random.randint(10, 40)),
        *random.choice(([], [("hold", True), ("steps", random.randint(1, 12))])),
        ("poison", 2, random.randrange(4), random.random() < 0.3),
        ("steps", random.choice((3, 9, 20))),
        ("hold", False),
        *random.choice(([], [_stop(random)])),
        ("new", "proc=1 say=1", random.choice(("enqueue", "interrupt")), "user", True, None),
        ("wait", 3.0),
    ]
    # Or that of the run, or of the session. Drawn last, so that what else is drawn stays what it was.
    kind = random.choice((2, 2, 1, 0))
    return [("poison", kind, *op[2:]) if op[0] == "poison" else op for op in ops]


def _awoken(random: Random) -> list[Op]:
    """A message comes before an idle session is asked to leave, and more before it has said that it stays."""
    return [("idle", 0), _news(random), ("asked_to_leave",), random.choice((_news, _stop))(random)]


def _read_late(random: Random) -> list[Op]:
    """A session has left memory with a message that is parked. That is withdrawn, and then the shutdown comes."""
    return [
        ("new", "sleep=60", None, "user", True, None),
        ("new", "say=1", "enqueue", "user", True, None),
        ("stop", "graceful", None, "park", "run", "user", None),
        ("idle", 20),
        ("withdraw", -1),
        ("shutdown", random.choice((0.5, 3.0))),
    ]


def _tree(random: Random) -> Op:
    """A message whose process tree becomes the session's."""
    return ("new", random.choice(CONTENTS[-4:]), None, "user", True, None)


def _idle(random: Random) -> Op:
    return ("idle", random.randrange(8))


def _fault(random: Random) -> Op:
    kind = random.choice(("fail", "lose", "down", "unfit"))
    return ("down", random.random() < 0.4) if kind == "down" else (kind, random.randint(1, 2))


def _failure(random: Random) -> Op:
    kind = random.choice((0, 0, 1, 1, 2, 2, 3, 3, 4))
    return ("poison", kind, random.randrange(4), random.random() < 0.5)


def _crash(random: Random) -> Op:
    del random
    return ("crash",)


def _shutdown(random: Random) -> Op:
    return ("shutdown", random.choice((0.0, 0.5, 3.0)))


def broken(schedule: Schedule) -> str | None:
    """Play a schedule; returns what it breaks, None where it breaks nothing."""
    try:
        schedule.play()
    except AssertionError as error:
        return str(error)
    return None


def shrink(schedule: Schedule, seconds: float = 60.0) -> Schedule:
    """Take away from a script that breaks a law, as long as it still breaks one: no single op can go any more.

    Args:
        schedule: one that breaks a law.
        seconds: how long it may take; what was found by then is returned.
    """
    until = time.monotonic() + seconds
    kinds = _kinds(broken(schedule) or "")

    def still(tried: Schedule) -> bool:
        said = broken(tried)
        return said is not None and bool(_kinds(said) & kinds)

    before = None
    while schedule != before and time.monotonic() < until:
        before = schedule
        size = max(1, len(schedule.script) // 2)
        while size:
            start = 0
            while start < len(schedule.script) and time.monotonic() < until:
                shorter = replace(schedule, script=schedule.script[:start] + schedule.script[start + size :])
                if still(shorter):
                    schedule = shorter
                else:
                    start += size
            size //= 2
        for index, op in enumerate(schedule.script):
            for simpler in _simpler(op):
                tried = replace(schedule, script=(*schedule.script[:index], simpler, *schedule.script[index + 1 :]))
                if time.monotonic() < until and still(tried):
                    schedule = tried
                    break
    return schedule


def _kinds(said: str) -> set[str]:
    """The laws that a failure names; its text without numbers, where it names none."""
    return set(re.findall(r"\(L\d+\)", said)) or {re.sub(r"\d+", "", said)}


def _simpler(op: Op) -> list[Op]:
    """Ops that are simpler than this one, the simplest first."""
    match op:
        case ("at" | "later", _, inner):
            return [*_simpler(inner), inner]
        case ("new", str(content), policy, origin, merge, age):
            words = content.split()
            shorter: list[Op] = [("new", word, policy, origin, merge, age) for word in words] if len(words) > 1 else []
            return [("new", "say=1", None, "user", True, None), *shorter, ("new", content, None, "user", True, None)]
        case ("stop", *_):
            plain = ("stop", "graceful", None, None, "run", "user", None)
            return [plain] if op != plain else []
        case ("shutdown", float(drain_s)) if drain_s:
            return [("shutdown", 0.0)]
        case ("wait", float(seconds)) if seconds > 0.05:
            return [("steps", 1), ("wait", 0.05)]
        case ("steps", int(count)) if count > 1:
            return [("steps", 1), ("steps", count // 2)]
        case _:
            return []
