"""Usage and budgets: what a run has used, and how much of it a run may use.

An agent says what an answer of its model cost (`answer.usage`), so the counts of tokens are the agent's own, as it had
them from its provider. One that says nothing has used no tokens. The calls are counted by the supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

COUNT_MAX: Final = 2**63 - 1
"""A sum that would be larger stays here: the store and JSON hold no larger whole number."""

TOKENS: Final = ("input", "output", "cached", "reasoning")
"""The kinds of tokens that are summed. What an agent counts under other names is in the log alone."""


class Usage(Struct, frozen=True):
    """What one run has used, or all runs of a session.

    input, output, cached, reasoning: tokens, as the agents say them. Most providers count cached tokens among the input
        and reasoning among the output.
    calls: calls that started.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    calls: int = 0

    @property
    def tokens(self) -> int:
        """What counts against a budget: input and output."""
        return min(self.input + self.output, COUNT_MAX)

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        names = self.__struct_fields__
        return Usage(*(min(getattr(self, name) + getattr(other, name), COUNT_MAX) for name in names))


NO_USAGE: Final = Usage()


def of_answer(counts: Mapping[str, int]) -> Usage:
    """Return what an answer cost, by the counts that were said with its end."""
    return Usage(**{kind: counts[kind] for kind in TOKENS if kind in counts})


class Budget(Struct, frozen=True):
    """How much one run may use; None: any amount.

    max_tokens: tokens of input and output. An answer that goes beyond is on record; the run ends after it.
    max_calls: calls that start. The run ends as it asks for one more.
    deadline_s: seconds, without the time in which its calls wait.
    """

    max_tokens: int | None = None
    max_calls: int | None = None
    deadline_s: float | None = None

    def over(self, others: Budget) -> Budget:
        """Return this budget, with what it leaves open taken from `others`."""
        names = self.__struct_fields__
        return Budget(*(getattr(others if getattr(self, name) is None else self, name) for name in names))

    def spent(self, usage: Usage) -> str | None:
        """Return why a run that has used so much has to end; None: it may go on."""
        if self.max_tokens is None or usage.tokens <= self.max_tokens:
            return None
        return f"it has used {usage.tokens} tokens, and {self.max_tokens} are its limit"

    def calls_spent(self, usage: Usage, granted: int) -> str | None:
        """Return why a run has to end that asks for one more call; None: the call may start.

        `granted`: calls that may start by now, and have not.
        """
        if self.max_calls is None or usage.calls + granted < self.max_calls:
            return None
        return f"it asked for one more call, and {self.max_calls} are its limit"
