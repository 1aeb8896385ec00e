"""TurnQueue: its count, and the agent that was chosen last, are those of the messages that wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.queue import PendingTurn, TurnQueue, chooses_agent
from actors.requests import USER, NewMessage

MESSAGES = st.builds(
    NewMessage,
    content=st.just("x"),
    agent=st.sampled_from([None, "a", "b"]),
    origin=st.sampled_from([USER, "timer"]),
    merge=st.booleans(),
)
STEPS = st.sampled_from(["steer", "requeue", "pull", "next", "turns", "all", "turn", "message", "restore"])


def _in(wanted: list[str]) -> Callable[[PendingTurn], bool]:
    return lambda turn: turn.run_id in wanted


@given(st.lists(st.one_of(MESSAGES, st.tuples(STEPS, st.integers(0, 9), MESSAGES))))
def test_what_it_counts_is_what_waits(steps: list[NewMessage | tuple[str, int, NewMessage]]) -> None:
    queue, numbers = TurnQueue("s", 100), itertools.count()
    for step in steps:
        run_id = f"run_{next(numbers)}"
        if isinstance(step, NewMessage):
            queue.enqueue(step, run_id, 0.0)
        else:
            kind, pick, message = step
            wanted = [turn.run_id for turn in queue.turns[pick:]]
            rows = [*queue.steering, *(row for turn in queue.turns for row in turn.rows)]
            match kind:
                case "steer" if not queue.turns:
                    queue.steer(message, run_id, 0.0)
                case "requeue":
                    queue.requeue_steering(lambda: f"run_{next(numbers)}")
                case "pull":
                    queue.pull_steering()
                case "next":
                    queue.take_next(_in(wanted))
                case "turns":
                    queue.take_turns(wanted)
                case "all":
                    queue.take_all()
                case "turn" if wanted:
                    queue.take_turn(wanted[0])
                case "message" if pick < len(rows):
                    queue.take_message(rows[pick].message.id)
                case "restore":
                    queue = TurnQueue("s", 100)
                    queue.restore(rows, parked=False)
        waiting = [*queue.steering, *(row for turn in queue.turns for row in turn.rows)]
        chosen = [row.message.agent for row in waiting if chooses_agent(row.message)]
        assert len(queue) == len(waiting)
        assert queue.chosen_agent == (chosen[-1] if chosen else None)
