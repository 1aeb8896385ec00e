"""The state of a session, and its log: what all decisions rest on.

Two questions have one answer each, here. *Is this accepted?* `_open`: is the address of the active run, in the current
generation, and is its call open? *Do permits wait?* `barrier`: which parts of earlier runs, however those ended, still
hold? And there is one place where an event gets its sequence number: `_event`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from actors.errors import CountermandError
from actors.gate.token import Notify
from actors.model import (
    Address,
    Event,
    JsonObject,
    Provenance,
    RunInfo,
    SessionStatus,
)
from actors.ports import Clock, Ids, SessionRow, Settings, WaitingRow
from actors.protocol.queue import WaitingRoom
from actors.protocol.request_book import RequestBook
from actors.protocol.run_record import AGENT, CallRecord, Part, RunRecord
from actors.protocol.step import DeadLetter, Step
from actors.requests import NewMessage
from actors.thread import Thread


class SessionState:
    """One session's state. Not thread-safe: it lives in its session's mailbox.

    Args:
        session: the session's id.
        settings: limits and graces.
        clock: asked for the time of day only.
        ids: makes the ids of runs and receipts.
        notify: where callbacks of cancel tokens run.
        isolation: of each tool, by name.
        unavailable: why the agent cannot run what is sent; None: it can.
    """

    def __init__(
        self,
        session: str,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        notify: Notify,
        isolation: Mapping[str, str],
        unavailable: Callable[[], CountermandError | None] = lambda: None,
    ) -> None:
        self.session = session
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._notify = notify
        self._isolation = isolation
        self._unavailable = unavailable
        self.generation = 0
        self.seq = 0
        self.active: RunRecord | None = None
        self.ending: dict[str, RunRecord] = {}
        self.late: dict[str, RunRecord] = {}
        self.over: dict[str, str] = {}
        self.fates: dict[str, str] = {}
        self.room = WaitingRoom(session, settings.queue_max)
        self.requests = RequestBook(session, settings.requests_kept, settings.requests_kept_s)
        self.cutoffs: dict[str, float] = {}
        self.thread = Thread()
        self.draining = False
        self.quarantined = False
        self.deleted = False
        self._queued: dict[str, RunInfo] = {}
        self._holding: str | None = None
        self._taking_up = False
        self.step = Step()

    def take_step(self) -> Step:
        """Return what was decided since the last call, and begin a new step."""
        step, self.step = self.step, Step()
        return step

    @property
    def row(self) -> SessionRow:
        """The session's own facts, as they are stored."""
        return SessionRow(
            session=self.session,
            generation=self.generation,
            seq=self.seq,
            parked=self.room.parked,
            quarantined=self.quarantined,
            cutoffs=dict(self.cutoffs),
            forgotten_to=self.requests.forgotten_to,
            deleted=self.deleted,
        )

    @property
    def quiet(self) -> bool:
        """True when no run is active and none is ending."""
        return self.active is None and not self.ending

    def status(self) -> SessionStatus:
        """What the session is doing now."""
        if self.quarantined:
            state = "quarantined"
        elif self.active is not None:
            state = "running"
        else:
            state = "cancelling" if self.ending else "idle"
        refused: dict[str, int] = {}
        for record in self._records():
            for kind, count in record.refused.items():
                refused[kind] = refused.get(kind, 0) + count
        return SessionStatus(
            session=self.session,
            state=state,
            generation=self.generation,
            last_seq=self.seq,
            run_id=self.active.id if self.active else None,
            ending=tuple(self.ending),
            waiting=len(self.room),
            parked=self.room.parked,
            barrier=tuple(f"{part.kind} {part.name}" for part in self.barrier()),
            refused=refused,
        )

    def barrier(self) -> list[Part]:
        """What the permits of the active run wait for: parts of every earlier run, however it ended."""
        return [
            part
            for record in (*self.ending.values(), *self.late.values())
            if record is not self.active
            for part in record.barrier()
        ]

    def record(self, run_id: str) -> RunRecord | None:
        """The record of a run that is active or ending, or of which something was abandoned."""
        return self._record(run_id)

    # ── Acceptance ───────────────────────────────────────────────────────────────────────────────────

    def _open(self, address: Address) -> RunRecord | None:
        """Return the run that an address belongs to if all of the address is open; else None (stale)."""
        record = self.active
        if (
            record is None
            or address.session != self.session
            or address.generation != self.generation
            or address.run != record.id
            or not record.open
        ):
            return None
        if address.call is not None:
            call = record.calls.get(address.call)
            if call is None or not call.open:
                return None
        return record

    def _stale(self, kind: str, address: Address, shown: object = "") -> None:
        """Count what an ended run still tried to do, and keep it as a dead letter."""
        record = self._record(address.run)
        if record is not None:
            record.refused[kind] += 1
        self._dead(kind, "its generation, run or call is closed", address, shown)

    def _dead(self, kind: str, why: str, address: Address | None, shown: object) -> None:
        self.step.now.append(DeadLetter(kind, why, address, f"{shown!s:.200}"))

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────

    def _event(self, kind: str, data: JsonObject, record: RunRecord | None, *, run_id: str | None = None) -> int:
        """Append to the log: the seq is given here and nowhere else. A run's record keeps its own generation."""
        self.seq += 1
        self.deleted = False
        generation = self.generation
        if record is not None:
            run_id = record.id
            if record.info.generation is not None:
                generation = record.info.generation
        event = Event(self.seq, self.session, generation, run_id, kind, data, self._clock.wall())
        self.thread.apply(event)
        self.step.events.append(event)
        self.step.row_changed = True
        return self.seq

    def _input(self, message: NewMessage, record: RunRecord) -> None:
        """A message becomes an input: only now it is in the thread."""
        self.fates[message.id] = "input"
        self.step.unwait(message)
        data: JsonObject = {
            "id": message.id,
            "content": message.content,
            "origin": message.origin,
            "policy": str(message.resolved_policy),
        }
        if message.sent_at is not None:
            data["sent_at"] = message.sent_at
        if message.attachments:
            data["attachments"] = [attachment.name for attachment in message.attachments]
        self._event("message", data, record)

    def _waits(self, row: WaitingRow) -> None:
        self.step.wait(row)
        message = row.message
        self._event(
            "session.message_waiting",
            {
                "message_id": message.id,
                "run_id": row.run_id,
                "steering": row.steering,
                "content": message.content,
                "origin": message.origin,
            },
            None,
            run_id=row.run_id,
        )

    def _returned(self, message: NewMessage, run_id: str | None, reason: str) -> None:
        self.fates[message.id] = "returned"
        self.step.unwait(message)
        self._event(
            "session.message_returned",
            {"message_id": message.id, "reason": reason, "content": message.content, "origin": message.origin},
            None,
            run_id=run_id,
        )

    def _save(self, record: RunRecord) -> None:
        self.step.runs[record.id] = record.info

    def _save_call(self, call: CallRecord) -> None:
        self.step.calls[call.row.call_id] = call.row

    # ── Looking up ───────────────────────────────────────────────────────────────────────────────────

    def _records(self) -> Iterable[RunRecord]:
        if self.active is not None:
            yield self.active
        yield from self.ending.values()
        yield from self.late.values()

    def _record(self, run_id: str) -> RunRecord | None:
        if self.active is not None and self.active.id == run_id:
            return self.active
        return self.ending.get(run_id) or self.late.get(run_id)

    def _call(self, address: Address) -> CallRecord | None:
        record = self._record(address.run)
        if record is None or address.call is None:
            return None
        return record.calls.get(address.call)

    def _part(self, address: Address) -> Part | None:
        record = self._record(address.run)
        return record.parts.get(address.call or AGENT) if record is not None else None

    def _inside(self, source: str, reason: str, at: float, requested_by: str | None) -> Provenance:
        return Provenance(source=source, reason=reason, requested_by=requested_by, initiated_at=at)
