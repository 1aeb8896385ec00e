"""BarrierLaws: whether anything of an earlier run is left as code or a process of the next one begins (law L3)."""

from __future__ import annotations

from actors.model import Owner
from actors.ports import Batch
from tests.sim.disk import was_released
from tests.sim.laws import LogLaws
from tests.sim.watch.seen import Seen


class BarrierLaws:
    """The barrier between the runs of a session, as it is seen from outside."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def before_run(self, session: str, run_id: str, what: str) -> None:
        """Nothing of an earlier run is alive that holds, or its session was made to go on without it (law L3)."""
        laws, world = self._seen.laws(session), self._seen.world
        if world is None:
            return
        generation = laws.run_generation.get(run_id, 0)
        tables = self._seen.disk.of(session)
        for process in tables.processes.values():
            if process.owner is Owner.SESSION:
                continue
            earlier = laws.run_generation.get(process.run_id, 0) < generation and process.run_id not in laws.forced
            if (
                earlier
                and not was_released(process)
                and process.process_id in self._seen.spawned
                and world.processes.lives(process.process_id)
            ):
                self._seen.break_(f"{what} begins while {process.process_id} of {process.run_id} lives (L3)")
        for fence, of in self._seen.inside.items():
            call = tables.calls.get(fence.rpartition(":")[2]) if of == session else None
            if call is None or call.isolation == "task" or call.run_id in laws.forced:
                continue
            if laws.run_generation.get(call.run_id, 0) < generation:
                self._seen.break_(f"{what} begins while {fence} of {call.run_id} runs (L3)")

    def of_session(self, session: str, what: str) -> None:
        """No tree is alive that the session is ending, or the session was made to go on without it (law L3)."""
        named = self._seen.laws(session).forced.get(None, ())
        for process in self._seen.disk.of(session).processes.values():
            ends = process.owner is Owner.SESSION and process.ending is not None
            if ends and self._seen.lives(process) and f"{process.kind} {process.name}" not in named:
                self._seen.break_(f"{what} begins while {process.process_id} lives, which the session is ending (L3)")

    def granted(self, batch: Batch, laws: LogLaws) -> None:
        """No call is granted while something goes on that code of an earlier run is known to have started (L3).

        Where the session was made to go on without it, it is named in the log before.
        """
        world, tables = self._seen.world, self._seen.disk.of(batch.session)
        for call in batch.calls:
            known = tables.calls.get(call.call_id)
            if call.state != "granted" or world is None or (known is not None and known.state == "granted"):
                continue
            generation = laws.run_generation.get(call.run_id, 0)
            for row in tables.processes.values():
                named = f"{row.kind} {row.name}" in laws.forced.get(row.run_id, ())
                earlier = laws.run_generation.get(row.run_id, 0) < generation and not named
                if earlier and row.ours and world.strays.lives(row.process_id):
                    self._seen.break_(f"{call.call_id} is granted while {row.process_id} of {row.run_id} goes on (L3)")
