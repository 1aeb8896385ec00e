"""The waiting room: messages that were accepted and are not yet an input, in order of acceptance.

Steering messages come first: the active run may ask for them. The pending turns follow, each with the id of the run
that it will start. Only the session takes messages out, so the end of a run removes none. There is no clock and no
store here: each change returns what has to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from actors.errors import QueueFull
from actors.model import Message, Role
from actors.ports import WaitingRow
from actors.requests import USER, NewMessage


def as_message(message: NewMessage, run_id: str | None, at: float | None = None) -> Message:
    """Return a message that waits, or was returned, as a message of a thread without a generation."""
    return Message(
        id=message.id,
        role=Role.USER,
        content=message.content,
        generation=None,
        run_id=run_id,
        origin=message.origin,
        sent_at=message.sent_at,
        at=at,
        attachments=message.attachment_names,
        parts=message.parts,
    )


def chooses_agent(message: NewMessage) -> bool:
    """True if a message names an agent, and so chooses it for the session too; the first of a session does always."""
    return message.agent is not None and message.origin == USER


@dataclass(slots=True)
class PendingTurn:
    """Consecutive messages that will be the inputs of one run. They stay separate messages."""

    run_id: str
    merge: bool
    rows: list[WaitingRow] = field(default_factory=list)

    @property
    def agent(self) -> str | None:
        """The agent that its messages name; None: none."""
        return next((row.message.agent for row in self.rows if row.message.agent is not None), None)

    @property
    def chooses(self) -> bool:
        """True if one of its messages chooses that agent for the session."""
        return any(chooses_agent(row.message) for row in self.rows)

    def takes(self, message: NewMessage) -> bool:
        """True if a message may share the turn: both merge, and it is for the same agent.

        A message that names none is for the agent that the message before it has chosen for the session.
        """
        named = message.agent == self.agent or (message.agent is None and self.chooses)
        return self.merge and message.merge and named


class TurnQueue:
    """All waiting messages of one session.

    Args:
        session: the session's name.
        limit: the largest number of messages that may wait.
    """

    def __init__(self, session: str, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._place = 0
        self._count = 0
        # The agents that messages choose for the session, by their places, in order.
        self._choices: dict[int, str | None] = {}
        self.steering: list[WaitingRow] = []
        self.turns: list[PendingTurn] = []
        self.parked = False

    def __len__(self) -> int:
        return self._count

    @property
    def first_agent(self) -> str | None:
        """The agent that the first pending turn names; None: none."""
        return self.turns[0].agent if self.turns else None

    @property
    def chosen_agent(self) -> str | None:
        """The agent that the last of these messages to choose one chooses for the session; None: they choose none."""
        return next(reversed(self._choices.values()), None)

    def restore(self, rows: Iterable[WaitingRow], *, parked: bool) -> None:
        """Restore the messages of the store's rows, in order of `place`."""
        self.parked = parked
        for row in sorted(rows, key=lambda row: row.place):
            self._place = max(self._place, row.place)
            self._came(row)
            if row.steering:
                self.steering.append(row)
            elif self.turns and self.turns[-1].run_id == row.run_id:
                self.turns[-1].rows.append(row)
            else:
                self.turns.append(PendingTurn(row.run_id, row.message.merge, [row]))

    def refuse_if_full(self) -> None:
        """Raise QueueFull if the limit is reached. Nothing changes."""
        if len(self) >= self._limit:
            raise QueueFull(
                "too many messages wait in this session",
                expected=f"at most {self._limit} waiting messages",
                got=f"{len(self)} that wait already",
                remedy="wait for the active run, stop it, or withdraw a message",
            )

    def steer(self, message: NewMessage, run_id: str, at: float) -> WaitingRow:
        """Add a steering message, for which the active run may ask. There must be no pending turn before it."""
        assert not self.turns, "behind waiting messages a steering one is an enqueue"
        row = self._row(message, run_id, at, steering=True)
        self.steering.append(row)
        return row

    def enqueue(self, message: NewMessage, fresh_run_id: str, at: float) -> tuple[WaitingRow, bool]:
        """Add a message to the last turn if that takes it, else to a new turn with `fresh_run_id`.

        Returns its row, and whether the turn is new.
        """
        last = self.turns[-1] if self.turns else None
        new = last is None or not last.takes(message)
        if last is None or new:
            last = PendingTurn(fresh_run_id, message.merge)
            self.turns.append(last)
        row = self._row(message, last.run_id, at, steering=False)
        last.rows.append(row)
        return row, new

    def pull_steering(self) -> list[WaitingRow]:
        """Take the steering messages, in order."""
        pulled, self.steering = self.steering, []
        return self._gone(pulled)

    def requeue_steering(self, fresh_run_id: Callable[[], str]) -> tuple[list[WaitingRow], list[str]]:
        """Make the steering messages into pending turns, before all others: the active run is over.

        They form turns as other waiting messages do. The last of these turns joins the first of the others if both
        merge and name the same agent, or none. Returns the changed rows, and the run ids of the new turns.
        """
        waited, self.steering = self.steering, []
        behind, self.turns = self.turns, []
        new: list[str] = []
        rows: list[WaitingRow] = []
        for row in waited:
            last = self.turns[-1] if self.turns else None
            if last is None or not last.takes(row.message):
                last = PendingTurn(fresh_run_id(), row.message.merge)
                self.turns.append(last)
                new.append(last.run_id)
            rows.append(WaitingRow(self._session, row.message, row.place, last.run_id, False, row.accepted_at))
            last.rows.append(rows[-1])
        last = self.turns[-1] if self.turns else None
        if last is not None and behind and last.merge and behind[0].merge and last.agent == behind[0].agent:
            # Senders have the run id of the later turn in their answers, so that turn stays.
            joining = self.turns.pop()
            new.remove(joining.run_id)
            moved = [msgspec.structs.replace(row, run_id=behind[0].run_id) for row in joining.rows]
            rows[len(rows) - len(moved) :] = moved
            behind[0].rows[:0] = moved
        self.turns += behind
        return rows, new

    def take_next(self, may_start: Callable[[PendingTurn], bool]) -> PendingTurn | None:
        """Take the first pending turn that may start: one that waits for its agent holds up no other."""
        for index, turn in enumerate(self.turns):
            if may_start(turn):
                return self._pop(index)
        return None

    def take_turns(self, wanted: Collection[str]) -> list[PendingTurn]:
        """Take the turns with these run ids, in order; the others keep their places."""
        taken = [turn for turn in self.turns if turn.run_id in wanted]
        self.turns = [turn for turn in self.turns if turn.run_id not in wanted]
        for turn in taken:
            self._gone(turn.rows)
        return taken

    def take_all(self) -> tuple[list[WaitingRow], list[PendingTurn]]:
        """Take all messages, in order of acceptance, and the turns, for their run ids."""
        turns, self.turns = self.turns, []
        rows = self.pull_steering() + self._gone([row for turn in turns for row in turn.rows])
        self.parked = False
        return rows, turns

    def take_turn(self, run_id: str) -> PendingTurn | None:
        """Take the pending turn that would start the run `run_id`."""
        for index, turn in enumerate(self.turns):
            if turn.run_id == run_id:
                return self._pop(index)
        return None

    def take_message(self, message_id: str) -> tuple[WaitingRow, PendingTurn | None] | None:
        """Take one message. Returns its row, and its turn if that is empty now; None if it does not wait."""
        for index, row in enumerate(self.steering):
            if row.message.id == message_id:
                return self._gone([self.steering.pop(index)])[0], None
        for position, turn in enumerate(self.turns):
            for index, row in enumerate(turn.rows):
                if row.message.id == message_id:
                    self._gone([turn.rows.pop(index)])
                    emptied = not turn.rows
                    if emptied:
                        self.turns.pop(position)
                    return row, turn if emptied else None
        return None

    def _row(self, message: NewMessage, run_id: str, at: float, *, steering: bool) -> WaitingRow:
        self._place += 1
        row = WaitingRow(self._session, message, self._place, run_id, steering, at)
        self._came(row)
        return row

    def _came(self, row: WaitingRow) -> None:
        self._count += 1
        if chooses_agent(row.message):
            self._choices[row.place] = row.message.agent

    def _gone(self, rows: list[WaitingRow]) -> list[WaitingRow]:
        self._count -= len(rows)
        for row in rows:
            self._choices.pop(row.place, None)
        return rows

    def _pop(self, index: int) -> PendingTurn:
        turn = self.turns.pop(index)
        self._gone(turn.rows)
        return turn
