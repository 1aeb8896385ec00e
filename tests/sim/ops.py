"""Ops: the steps of a script. An op is drawn alone, or with others where several things have to happen together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Final

from actors.ports import Settings
from tests.sim.client import Op

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
POLICIES: Final = (None, "interrupt", "enqueue", "enqueue", "steer", "reject", "rollback")
AGES: Final = (None, None, None, 0.0, 0.5, 5.0)
WORLDS: Final = 1 << 32


def any_op(random: Random, trouble: str, settings: Settings) -> Op:
    """Draw one op of a schedule with this kind of trouble."""
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


def op_of_stops(random: Random, settings: Settings) -> Op:
    """Draw one op of a schedule in which Stops meet all that keeps them from being stored."""
    draws: list[tuple[float, Callable[[Random], Op]]] = [(5, _news), (5, _stop), (4, _restop), (1, _other)]
    draws += [(4, _fault), (3, _slow), (6, _moment), (3, _pause), (0.7, _crash), (1, _failure), (0.2, _shutdown)]
    if settings.passivate_s is not None:
        draws.append((2, _idle))
    kinds = [kind for _, kind in draws]
    return random.choices(kinds, [weight for weight, _ in draws])[0](random)


def with_answers(random: Random, script: Iterable[Op]) -> Iterator[Op]:
    """Have a person answer now and then: what was asked last, or before, or what does not wait any more."""
    for op in script:
        yield op
        while random.random() < 0.4:
            answer: Op = ("answer", random.choice((0, 0, 0, 0, 1, 2)), random.choice((True, True, False, None, "bot")))
            if random.random() < 0.15:
                answer = ("at", "t", answer)
            if random.random() < 0.15:
                answer = ("later", random.choice((0.0, 0.001, 0.5)), answer)
            yield answer


def at_children(random: Random, script: Iterable[Op]) -> Iterator[Op]:
    """Have some requests go to sessions of child runs, and some wait until one has begun."""
    for op in script:
        yield ("child", random.choice((0, 0, 1)), op) if asks(op) and op[0] != "new" and random.random() < 0.3 else op
        if op[0] == "new" and random.random() < 0.3:
            yield ("steps", random.choice((9, 20, 60)))
            if random.random() < 0.3:
                yield ("child", 0, random.choice((_stop, _news))(random))


def asks(op: Op) -> bool:
    """True if an op sends a request to a session."""
    return op[0] in ("new", "stop", "withdraw", "resume", "answer", "delete", "repeat", "restop", "reuse")


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


# ── What needs several things at once ─────────────────────────────────────────────────────────────


def unstored(random: Random) -> list[Op]:
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


def outlived(random: Random) -> list[Op]:
    """Code of a run goes on for longer than it may, and has left things behind when it ends; then there are calls."""
    return [
        ("litter", random.randrange(WORLDS)),
        ("new", random.choice(("late=9", "deaf=9")), None, "user", True, None),
        ("wait", 0.05),
        ("new", random.choice(("write=1", "stubborn")), None, "user", True, None),
        ("wait", 9.0),
        ("new", "write=3 write=3", None, "user", True, None),
    ]


def hurried(random: Random) -> list[Op]:
    """What does not end is stopped, and when the grace is over somebody kills it at once."""
    return [
        ("new", random.choice(("run=40,never_dies", "deaf=9", "late=9")), None, "user", True, None),
        ("wait", 1.0),
        ("stop", "graceful", None, "keep", "run", "user", None),
        ("wait", 3.0),
        ("stop", "immediate", None, "keep", random.choice(("run", "session")), "user", None),
        ("wait", 9.0),
    ]


def erased(random: Random) -> list[Op]:
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


def joined(random: Random) -> list[Op]:
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


def unproven(random: Random) -> list[Op]:
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


def abandoned(random: Random) -> list[Op]:
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


def orphaned(random: Random) -> list[Op]:
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


def awoken(random: Random) -> list[Op]:
    """A message comes before an idle session is asked to leave, and more before it has said that it stays."""
    return [("idle", 0), _news(random), ("asked_to_leave",), random.choice((_news, _stop))(random)]


def read_late(random: Random) -> list[Op]:
    """A session has left memory with a message that is parked. That is withdrawn, and then the shutdown comes."""
    return [
        ("new", "sleep=60", None, "user", True, None),
        ("new", "say=1", "enqueue", "user", True, None),
        ("stop", "graceful", None, "park", "run", "user", None),
        ("idle", 20),
        ("withdraw", -1),
        ("shutdown", random.choice((0.5, 3.0))),
    ]
