"""Schedules: what a seed stands for. A script of ops, and the settings it is played under.

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
from actors.usage import Budget
from supervisor.router import RestartPolicy
from tests.sim import ops, rewriting
from tests.sim.client import Client, Op
from tests.sim.delegating import delegated_words
from tests.sim.hosts import Hosting

IDLES: Final = (0.001, 0.05, 1.0)
TROUBLES: Final = ("none", "none", "store", "failures", "crashes", "shutdowns", "all", "stops", "stops", "stops")
OPS_MIN, OPS_MAX = 5, 22
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

TELLING: Final = 1 / 6
"""In how many schedules tools say texts."""

DRAWING: Final = 1 / 6
"""In how many schedules messages, results or answers have files."""

GUARDED: Final = 0.1
"""In how many schedules tools have their effects behind guards."""

EFFECTIVE: Final = 0.15
"""In how many schedules agents have effects of their own behind guards; in hosts, also the calls executed there."""

SAVING: Final = 0.15
"""In how many schedules agents save something for later runs."""

OWN: Final = 0.2
"""In how many schedules agents start processes themselves, in no call."""

ANSWERED: Final = 0.2
"""In how many schedules what agents say and call is in answers of models."""

NAMING: Final = 0.2
"""In how many schedules messages name their agents, and agents hand sessions over."""

BUDGETED: Final = 0.2
"""In how many schedules runs have a budget."""

ASKING: Final = 0.15
"""In how many schedules agents ask a person, who answers, or not, or late."""

DELEGATING: Final = 0.2
"""In how many schedules agents delegate to others."""

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
        op = ops.op_of_stops(random, settings) if trouble == "stops" else ops.any_op(random, trouble, settings)
        if random.random() < 0.1:
            op = ("at", "t", op) if ops.asks(op) else op
        if random.random() < 0.1:
            op = ("later", random.choice((0.0, 0.001, 0.5)), op) if ops.asks(op) else op
        script.append(op)
    world = random.randrange(ops.WORLDS)
    # Of a source of its own: what else is drawn stays what it was.
    litter = Random(f"litter {seed}")
    if litter.random() < LITTERED:
        script.insert(0, ("litter", litter.randrange(ops.WORLDS)))
    together = Random(f"together {seed}")
    if together.random() < TOGETHER:
        place = together.randint(0, len(script))
        script[place:place] = together.choice((ops.unstored, ops.outlived, ops.hurried, ops.erased))(together)
    joined = Random(f"joined {seed}")
    if joined.random() < JOINED:
        place = joined.randint(0, len(script))
        script[place:place] = ops.joined(joined)
    unproven = Random(f"unproven {seed}")
    if unproven.random() < UNPROVEN:
        place = unproven.randint(0, len(script))
        script[place:place] = ops.unproven(unproven)
    awoken = Random(f"awoken {seed}")
    if settings.passivate_s is not None and awoken.random() < AWOKEN:
        place = awoken.randint(0, len(script))
        script[place:place] = awoken.choice((ops.awoken, ops.read_late))(awoken)
    gated = Random(f"gated {seed}")
    if gated.random() < GATED:
        script = [rewriting.in_message(op, partial(rewriting.gated, gated)) for op in script]
    hosting = _hosting(Random(f"hosted {seed}"))
    abandoned = Random(f"abandoned {seed}")
    if abandoned.random() < ABANDONED:
        place = abandoned.randint(0, len(script))
        script[place:place] = ops.abandoned(abandoned)
        hosting = Hosting(abandoned.randrange(ops.WORLDS), HostedAgent("scripted", keep=False, overlap=False))
    orphaned = Random(f"orphaned {seed}")
    if orphaned.random() < ORPHANED:
        place = orphaned.randint(0, len(script))
        script[place:place] = ops.orphaned(orphaned)
        hosting = hosting or Hosting(orphaned.randrange(ops.WORLDS), HostedAgent("scripted", keep_idle_s=0.5))
    drawn = Schedule(world, settings, tuple(script), hosting=hosting)
    tight = Random(f"{seed} tight")
    drawn = _tight(tight, drawn) if tight.random() < 0.25 else drawn
    proc = Random(f"proc {seed}")
    if drawn.hosting is not None and proc.random() < PROC:
        drawn = _in_messages(drawn, partial(rewriting.calling, "proc", proc))
    telling = Random(f"telling {seed}")
    if telling.random() < TELLING:
        drawn = _in_messages(drawn, partial(rewriting.inserted, telling, *telling.choice(rewriting.TELLS)))
    drawing = Random(f"drawing {seed}")
    if drawing.random() < DRAWING:
        drawn = _in_messages(drawn, partial(rewriting.inserted, drawing, *drawing.choice(rewriting.MEDIA)))
    guarded = Random(f"guarded {seed}")
    if guarded.random() < GUARDED:
        drawn = _in_messages(drawn, partial(rewriting.calling, "guard", guarded))
    saving = Random(f"saving {seed}")
    if saving.random() < SAVING:
        drawn = _in_messages(drawn, partial(rewriting.inserted, saving, "save", rewriting.SAVES))
    effective = Random(f"effective {seed}")
    if effective.random() < EFFECTIVE:
        drawn = _in_messages(drawn, partial(rewriting.inserted, effective, "effect", rewriting.EFFECTS_S))
        if drawn.hosting is not None:
            drawn = _in_messages(drawn, partial(rewriting.calling, "foreign_guard", effective))
    own = Random(f"own {seed}")
    if own.random() < OWN:
        drawn = _in_messages(drawn, partial(rewriting.own, own))
    answered = Random(f"answered {seed}")
    if answered.random() < ANSWERED:
        drawn = _in_messages(drawn, partial(rewriting.answered, answered))
    asking = Random(f"asking {seed}")
    if asking.random() < ASKING:
        drawn = _in_messages(drawn, partial(rewriting.asking, asking))
        drawn = replace(drawn, script=tuple(ops.with_answers(asking, drawn.script)))
    naming = Random(f"naming {seed}")
    if naming.random() < NAMING:
        drawn = _in_messages(drawn, partial(rewriting.naming, naming))
    delegating = Random(f"delegating {seed}")
    if delegating.random() < DELEGATING:
        drawn = _in_messages(drawn, partial(delegated_words, delegating))
        limits = delegating.choice(({}, {}, {"children_max": 1}, {"children_depth_max": 1}))
        settings = _changed(drawn.settings, **limits)
        drawn = replace(drawn, script=tuple(ops.at_children(delegating, drawn.script)), settings=settings)
    budgeted = Random(f"budgeted {seed}")
    return _budgeted(budgeted, drawn) if budgeted.random() < BUDGETED else drawn


def _budgeted(random: Random, drawn: Schedule) -> Schedule:
    """Give runs a budget: of all agents, or of the one that runs in hosts. An answer costs three tokens."""
    drawn = _in_messages(drawn, partial(rewriting.answered, random)) if random.random() < 0.5 else drawn
    max_tokens, max_calls = random.choice(((2, None), (3, 3), (5, None), (None, 1), (None, 2), (None, 4)))
    if drawn.hosting is not None and random.random() < 0.5:
        agent = msgspec.structs.replace(drawn.hosting.agent, budget=Budget(max_tokens, max_calls))
        return replace(drawn, hosting=replace(drawn.hosting, agent=agent))
    return replace(drawn, settings=_changed(drawn.settings, max_tokens=max_tokens, max_calls=max_calls))


def _hosting(random: Random) -> Hosting | None:
    """How the agent of a schedule runs in hosts; None: it does not."""
    if random.random() >= HOSTED:
        return None
    keep, overlap, idle_s = random.random() < 0.6, random.random() < 0.8, random.choice((0.5, 5.0, 30.0))
    return Hosting(random.randrange(ops.WORLDS), HostedAgent("scripted", keep, idle_s, overlap))


def _tight(random: Random, drawn: Schedule) -> Schedule:
    """Have a schedule come to its limits: they are low, and what its messages say goes beyond them."""
    script = tuple(rewriting.to_the_limit(random, op) for op in drawn.script)
    match random.choice(("deadlines", "limits", "quarantine")):
        case "deadlines":
            run_s, call_s = random.choice((1.0, 3.0)), random.choice((0.5, None))
            settings = _changed(drawn.settings, run_deadline_s=run_s, call_deadline_s=call_s)
            return replace(drawn, settings=settings, script=script)
        case "limits":
            settings = _changed(drawn.settings, queue_max=2, calls_open_max=2, processes_max=2)
            return replace(drawn, settings=settings, script=script, parts_max=6)
        case _:
            poisoned: list[Op] = []
            for op in script:
                poisoned.append(op)
                if random.random() < 0.3:
                    poisoned.append(("poison", 0, random.randrange(4), random.random() < 0.5))
            return replace(drawn, script=tuple(poisoned), failures_max=1)


def _in_messages(drawn: Schedule, change: Callable[[str], str]) -> Schedule:
    """Change the text of each message of a schedule."""
    return replace(drawn, script=tuple(rewriting.in_message(op, change) for op in drawn.script))


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
        case ("at" | "later" | "child", _, inner):
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
