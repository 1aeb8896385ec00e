"""Rewriting: other words in the messages of a script that has been drawn.

A rewriting is drawn from a source of its own, so that the rest of the script stays as it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.sim.client import Op

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
AGENTS: Final = ("scripted", "other", "other", "broken", "nobody")
TELLS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (("tells", (1, 2, 4)), ("told", (0.1, 0.2, 0.3)))
MEDIA: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (("files", (1, 2)), ("draws", (1, 3)), ("paints", (1, 2)))
SAVES: Final = (0, 1, 1, 2, 3)
EFFECTS_S: Final = (0, 0.1, 1, 3)
OWN_WORDS: Final = {"run": "own", "leave": "own_left", "serve": "own_serve", "hand": "own_hand", "crowd": "own_many"}


def in_message(op: Op, change: Callable[[str], str]) -> Op:
    """Change the text of an op that sends a message, and of no other."""
    match op:
        case ("new", str(content), *rest):
            return ("new", change(content), *rest)
        case ("at" | "later" | "child", place, inner):
            return (op[0], place, in_message(inner, change))
        case _:
            return op


def gated(random: Random, content: str) -> str:
    """Have the words that call a tool gate a function of the agent's own, or bring the tool along."""
    return " ".join(
        word.replace(name, random.choice(("gate", "foreign")))
        if (name := word.partition("=")[0]) in ("write", "sleep", "deaf", "late")
        else word
        for word in content.split()
    )


def calling(tool: str, random: Random, content: str) -> str:
    """Have most words that call a tool call this one: with a process of its own, or with guards."""
    words = []
    for word in content.split():
        name, equals, value = word.partition("=")
        other = name in ("write", "deaf", "late", "patient") and random.random() < 0.8
        words.append(f"{tool}{equals}{value}" if other else word)
    return " ".join(words)


def inserted(random: Random, word: str, values: Sequence[float], content: str) -> str:
    """Have a word with one of these values in the message, near its beginning."""
    words = content.split()
    words.insert(random.randint(0, min(len(words), 2)), f"{word}={random.choice(values)}")
    return " ".join(words)


def own(random: Random, content: str) -> str:
    """Have most words that start a process do so in no call."""
    words = []
    for word in content.split():
        name, equals, value = word.partition("=")
        itself = name in OWN_WORDS and random.random() < 0.8
        words.append(f"{OWN_WORDS[name]}{equals}{value.partition(',after')[0]}" if itself else word)
    return " ".join(words)


def answered(random: Random, content: str) -> str:
    """Have many words that say or call something do so in an answer of a model."""
    words = []
    for word in content.split():
        said = word.partition("=")[0] in ("say", "write", "sleep", "gate", "deaf") and random.random() < 0.5
        answer = random.choice(("answer=0", "open=0.1 answer=0.5", "answer=3", "answer_left=1"))
        words.append(answer if said else word)
    return " ".join(words)


def asking(random: Random, content: str) -> str:
    """Have most words that say, call or wait ask a person, or call what a person has to allow."""
    words = []
    for word in content.split():
        name = word.partition("=")[0]
        asks = name in ("say", "write", "sleep", "late", "deaf", "gate", "limit") and random.random() < 0.6
        words.append(random.choice(("ask", "ask=2", "allowed=0.5", "allowed=3")) if asks else word)
    return " ".join(words)


def to_the_limit(random: Random, op: Op) -> Op:
    """Have every other op that sends a message send one that goes beyond a limit."""
    match op:
        case ("new", _, *rest) if random.random() < 0.5:
            return ("new", random.choice(TIGHT), *rest)
        case _:
            return op


def naming(random: Random, content: str) -> str:
    """Have many messages name their agent, and some hand the session over."""
    words = content.split()
    if random.random() < 0.5:
        words.insert(random.randint(0, len(words)), f"to={random.choice(AGENTS)}")
    if random.random() < 0.3:
        words.insert(random.randint(0, min(len(words), 2)), f"hand_off={random.choice(AGENTS)}")
    if random.random() < 0.4:
        words[:0] = ["sleep=0.3", "steer"]
    return " ".join(words)
