"""Watch: the laws as predicates over what is observed. A world reports to it at every port while it runs.

`LogLaws` reads the log. The watch knows in addition what really happened: which tools and agents are inside their
functions, which process trees live, what clients asked and were answered. It never takes a decision of the actors for
the truth about the world, only for the truth about themselves (whether a run is open in its session's memory).

A predicate that does not hold is written into `broken`; the world raises it at the end of the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.bounds import Bounds
from tests.sim.watch.answers import AnswerLaws
from tests.sim.watch.attempts import AttemptLaws
from tests.sim.watch.barrier import BarrierLaws
from tests.sim.watch.causes import CauseLaws
from tests.sim.watch.children import ChildLaws
from tests.sim.watch.choices import ChoiceLaws
from tests.sim.watch.ends import EndLaws
from tests.sim.watch.executions import ExecutionLaws
from tests.sim.watch.journal import JournalLaws
from tests.sim.watch.receipts import ReceiptLaws
from tests.sim.watch.records import RecordLaws
from tests.sim.watch.rest import RestLaws
from tests.sim.watch.saves import SaveLaws
from tests.sim.watch.seen import Seen
from tests.sim.watch.trees import TreeLaws
from tests.sim.watch.usage import UsageLaws

if TYPE_CHECKING:
    from tests.sim.disk import Disk
    from tests.sim.world import World


class LawBroken(AssertionError):
    """A predicate does not hold."""


class Watch(Seen):
    """The watcher of one client's worlds: the world it is in, and those that crashed before."""

    def __init__(self, disk: Disk, *, fold: bool = True) -> None:
        super().__init__(disk, fold=fold)
        self.bounds = Bounds(disk, self.broken)
        self.journal = JournalLaws(self)
        self.answers = AnswerLaws(self, self.journal, self.bounds)
        self.children = children = ChildLaws(self)
        self.causes = CauseLaws(self, self.journal, self.answers, children)
        self.rest = RestLaws(self)
        self.ends = EndLaws(self)
        self.saves = SaveLaws(self)
        self.choices = ChoiceLaws(self)
        barrier = BarrierLaws(self)
        self.executions = ExecutionLaws(self, barrier, children)
        self.trees = TreeLaws(self, barrier, self.bounds)
        attempts = AttemptLaws(self, self.journal, self.answers)
        disk.on_batch = RecordLaws(
            self,
            self.bounds,
            barrier,
            self.journal,
            self.answers,
            self.causes,
            attempts,
            ReceiptLaws(self),
            self.rest,
            UsageLaws(self),
            self.choices,
            children,
        ).batch

    def enter(self, world: World) -> None:
        """Watch this world from here on. Code that was inside a function in the last one is gone.

        What it had begun behind guards is known to nobody.
        """
        if self.world is not None and self.world.interrupts_at is not None:
            self.interrupts.append((self.world.interrupts_at, world.clock.wall()))
        self.inside.clear()
        self.effects.clear()
        self.asked_for_guards.clear()
        self.refused_at.clear()
        self.under_way.clear()
        self.world = world
        self.bounds.enter(world)
        world.clock.on_timer = self.bounds.timer

    def crashed(self) -> None:
        """Forget what only the memory of the crashed world had."""
        self.crashes += 1
        self.forgot = True
        self.journal.crashed()
