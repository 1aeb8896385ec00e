"""UsageLaws: what runs have used is counted once, and no run goes beyond its budget (laws L6, L12, L14)."""

from __future__ import annotations

from collections import defaultdict

from actors.model import Event
from actors.ports import Batch
from actors.run_status import RunStatus
from actors.usage import Budget, Usage, of_answer
from tests.sim.laws import SPOKEN
from tests.sim.watch.seen import Seen


class UsageLaws:
    """The sums of runs and sessions, against the durable log; and the budgets of runs."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        # By session and run: its tokens; and the calls that have begun, those of them that did not ask, and how many
        # were asked for.
        self._tokens: defaultdict[str, dict[str, Usage]] = defaultdict(dict)
        self._begun: defaultdict[str, set[str]] = defaultdict(set)
        self._elsewhere: defaultdict[str, set[str]] = defaultdict(set)
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._spent: set[str] = set()
        self._agents: dict[str, str] = {}

    def batch(self, batch: Batch) -> None:
        """A batch is durable: its rows have the sums of the log so far."""
        if batch.erase:
            self._tokens.pop(batch.session, None)
        for event in batch.events:
            # One about the session may name a run that the same batch erases.
            if event.run_id is not None and not event.kind.startswith("session."):
                self._event(event, event.run_id)
        tokens = self._tokens[batch.session]
        for info in batch.runs:
            if info.usage != self._sum(tokens, info.run_id):
                self._seen.break_(
                    f"{info.run_id} has used {self._sum(tokens, info.run_id)}, and {info.usage} is on record (L6)"
                )
        if batch.row is not None:
            expected = Usage()
            for run in tokens:
                expected = expected.plus(self._sum(tokens, run))
            if batch.row.usage != expected:
                self._seen.break_(f"{batch.session} has used {expected}, and {batch.row.usage} is on record (L6)")
        for run in tokens:
            if run in self._spent and self._seen.laws(batch.session).status.get(run) is RunStatus.IN_PROGRESS:
                self._seen.break_(f"{run} has used up its budget, and goes on (L14)")

    def _event(self, event: Event, run: str) -> None:
        if event.kind == "run.started":
            self._agents[run] = event.data["agent"]
        tokens, budget = self._tokens[event.session], self._budget(run)
        tokens.setdefault(run, Usage())
        if run in self._spent and event.kind in SPOKEN:
            self._seen.break_(f"{run} has used up its budget, and {event.kind} follows (L14)")
        match event.kind:
            case "answer.ended" | "answer.left":
                tokens[run] = tokens[run].plus(of_answer(event.data.get("usage", {})))
                # Not by the budget's own methods: they are what is checked.
                if budget.max_tokens is not None and tokens[run].tokens > budget.max_tokens:
                    self._spent.add(run)
            case "tool.requested" | "tool.ended" if event.data["tool"] == "ask":
                # A question to a person: nothing executes it.
                pass
            case "tool.requested":
                self._asked[run] += 1
                if event.data.get("begun"):
                    self._elsewhere[run].add(event.data["call_id"])
            case "tool.started":
                self._begun[run].add(event.data["call_id"])
            case "tool.ended" if event.data["outcome"] != "not_started":
                self._begun[run].add(event.data["call_id"])
            case "run.status" if (event.data.get("provenance") or {}).get("source") == "run.budget":
                asked = budget.max_calls is not None and self._asked[run] > budget.max_calls
                # What it had used need not be stored, where the store failed.
                spent = asked or run in self._spent or self._seen.faults
                row = self._seen.disk.run(run)
                if row is not None and row.parent is not None and event.data["status"] == RunStatus.CANCELLING:
                    # The budget of its parent.
                    return
                if event.data["status"] != RunStatus.EXPIRED or not spent:
                    self._seen.break_(f"{run} is {event.data['status']} by its budget, and had some left (L5)")
            case _:
                pass
        # What has begun elsewhere did not ask.
        started = len(self._begun[run] - self._elsewhere[run])
        if budget.max_calls is not None and started > budget.max_calls:
            self._seen.break_(f"{run} has started {started} calls, and may start {budget.max_calls} (L14)")

    def _sum(self, tokens: dict[str, Usage], run: str) -> Usage:
        return tokens.get(run, Usage()).plus(Usage(calls=len(self._begun[run])))

    def _budget(self, run: str) -> Budget:
        world = self._seen.world
        assert world is not None, "a world was entered"
        agent = None if world.hosting is None else world.hosting.agent
        own = agent.budget if agent is not None and agent.name == self._agents.get(run) else Budget()
        return own.over(world.settings.budget)
