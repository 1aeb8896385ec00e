"""Scripts for `protocol_driver`: any requests and any reports, in any order."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from actors.events import ProgressData
from tests.protocol_check import SESSION
from tests.protocol_driver import WORD, Op
from tests.protocol_family import NAMED
from tests.rendered_thread import CHAT, ITEMS
from tests.sim.asking import ALLOWED
from tests.sim.model_answers import PROVIDER

which = st.sampled_from((0, 0, 0, 1, 2, 5))
ages = st.sampled_from((None, None, None, 0.0, 1.0, 30.0))
policies = st.sampled_from((None, "interrupt", "enqueue", "enqueue", "steer", "steer", "reject", "rollback"))


def op(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.tuples(st.just(name), *arguments)


requests = st.one_of(
    op("new", policies, st.sampled_from(("user", "bot")), st.booleans(), ages),
    op("new", policies, st.sampled_from(("user", "bot")), st.booleans(), ages),
    op(
        "stop",
        st.sampled_from(("graceful", "immediate")),
        st.sampled_from((None, None, 0, 1, 2, 3, 4)),
        st.sampled_from((None, "withdraw", "park", "keep")),
        ages,
    ),
    op("ask_for", st.sampled_from((None, "a", "other")), st.sampled_from(("user", "bot")), policies),
    op("resume"),
    op("withdraw", which),
    op("again", which),
    op("reuse", which),
    op("reply", which, st.sampled_from((True, True, False, None))),
)
reports = st.one_of(
    op("say", which, st.sampled_from((WORD, WORD, ProgressData(shown={"text": "word "})))),
    op("call", which, st.sampled_from(("held", "free", "none"))),
    op("call", which, st.sampled_from(("held", "free"))),
    op("begin_answer", which, st.integers(0, 2), st.sampled_from((PROVIDER, PROVIDER, CHAT, ITEMS))),
    op("tell", which, st.booleans()),
    op("hand_off", which, st.sampled_from(("a", "other"))),
    op("save", which, st.sampled_from((1, None))),
    op("question", which, st.sampled_from(("ask", ALLOWED)), st.sampled_from((None, None, 0))),
    op("call", which, st.sampled_from(("held", "free", "none")), which),
    op("answer", which, which, st.sampled_from(("text", "block", "media", "end", "end", "leave"))),
    op("start_call", which),
    op("start_call", which),
    op("end_call", which, st.sampled_from((0, 0, 1, 2, 3, 4))),
    op("expire_call", which),
    op("give_up", which),
    op("spawn", which),
    op("process", which, st.sampled_from(("started", "output", "exited", "ended", "lost"))),
    op("steer", which),
    op("finish", which, st.booleans()),
    op("expire_run", which),
    op("lose_run", which),
    op("kill_deadline", which, st.booleans()),
    op("repeat_report", which),
    op("strange", st.integers(0, 5), st.sampled_from(("run_0001", "run_0002", "run_of_nobody"))),
)
commits = op("commit", st.integers(1, 5))
failures = op("fail", st.sampled_from(("store", "actor", "daemon")))
RUNS: Final[tuple[Op, ...]] = (("new", None, "user", True, None), ("commit", 9))
BEGINNINGS: Final[tuple[tuple[Op, ...], ...]] = (
    (),
    RUNS,
    (*RUNS, ("call", 0, "held"), ("commit", 9), ("start_call", 0)),
    (*RUNS, ("begin_answer", 0, 2, PROVIDER), ("answer", 0, 0, "block"), ("answer", 0, 0, "text"), ("commit", 9)),
    (*RUNS, ("begin_answer", 0, 2), ("answer", 0, 0, "end"), ("commit", 9)),
    (*RUNS, ("begin_answer", 0, 2), ("answer", 0, 0, "leave"), ("commit", 9)),
)
"""What a script may begin with: drawn one by one, few runs come as far."""
scripts = st.builds(
    lambda begins, then: [*begins, *then],
    st.sampled_from(BEGINNINGS),
    st.lists(st.one_of(requests, reports, reports, commits, commits | failures), min_size=25, max_size=70),
)

# ── Sessions with child runs ──────────────────────────────────────────────────────────────────────

delegations = st.one_of(
    op("delegate", which, st.sampled_from(("", "", NAMED, NAMED, SESSION)), st.sampled_from((None, None, 0))),
    op("start_call", which),
    op("end_call", which, st.sampled_from((0, 1, 2))),
    op("give_up", which),
    op("expire_call", which),
    op("finish", which, st.booleans()),
    op("adopt", which),
    op("kill_deadline", which, st.just(False)),
)
places = st.sampled_from((0, 0, 1, 2, 2, 3, 4))
family_ops = st.one_of(
    op("in", places, delegations),
    op("in", places, delegations),
    op("in", places, st.one_of(requests, reports, reports)),
    op("in", places, commits),
    op("deliver", st.integers(0, 3)),
    op("deliver", st.integers(0, 3)),
    op("deliver", st.integers(0, 3)),
    op("go"),
    op("ask_again"),
    op("lose_question", which),
    op("in", places, op("fail", st.sampled_from(("store", "actor")))),
    op("crash", st.integers(0, 3)),
    op("delegates", places, st.sampled_from(("", "", NAMED))),
)
RUNS_IN_ONE: Final[tuple[Op, ...]] = (("in", 0, RUNS[0]), ("go",))
ASKED: Final[tuple[Op, ...]] = (
    *RUNS_IN_ONE,
    ("in", 0, ("delegate", 0, "", None)),
    ("go",),
    ("in", 0, ("start_call", 0)),
    ("in", 0, ("commit", 9)),
)
FAMILY_BEGINNINGS: Final[tuple[tuple[Op, ...], ...]] = (
    RUNS_IN_ONE,
    (*RUNS_IN_ONE, ("delegates", 0, NAMED)),
    (*RUNS_IN_ONE, ("delegates", 0, ""), ("in", 2, ("call", 0, "held")), ("go",)),
    (*RUNS_IN_ONE, ("delegates", 0, ""), ("delegates", 2, "")),
    (*RUNS_IN_ONE, ("delegates", 0, ""), ("delegates", 0, NAMED)),
    ASKED,
    (*ASKED, ("deliver", 0), ("deliver", 0), ("deliver", 0)),
)
"""What a script of a family may begin with. The first session that is made for a child run is the third one."""
STOP: Final[Op] = ("stop", "graceful", None, None, None)
ENDS: Final[tuple[tuple[Op, ...], ...]] = (
    (),
    (),
    (("in", 0, STOP),),
    (("in", 0, STOP), ("in", 2, ("start_call", 0)), ("in", 2, ("call", 0, "held"))),
    (("in", 1, RUNS[0]), ("delegates", 0, NAMED)),
    (("in", 0, ("stop", "immediate", None, None, None)),),
    (("in", 0, ("new", "interrupt", "user", True, None)),),
    (("in", 0, ("new", "rollback", "user", True, None)),),
    (("in", 0, ("give_up", 0)),),
    (("in", 2, STOP),),
    (("in", 0, ("fail", "actor")),),
    (("in", 2, ("fail", "actor")),),
    (("in", 2, STOP), ("in", 2, ("fail", "store"))),
    (("in", 2, ("finish", 0, True)), ("in", 2, ("fail", "store"))),
    (("delegates", 3, ""),),
    (("crash", 0),),
    (("in", 2, ("start_call", 0)), ("in", 2, STOP), ("in", 2, ("kill_deadline", 0, False)), ("go",)),
)
"""How it goes on: most often with an end, at once."""
family_scripts = st.builds(
    lambda begins, ends, then: [*begins, *ends, *then],
    st.sampled_from(FAMILY_BEGINNINGS),
    st.sampled_from(ENDS),
    st.lists(family_ops, min_size=15, max_size=45),
)
