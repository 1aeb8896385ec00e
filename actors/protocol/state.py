"""The state of a session: data, and the few operations that every decision uses.

Theory of operation. The deciders of this folder hold one `SessionState` and no other state of the session's. Here are

- *the log*: `event` appends to it, and only there does an event get its sequence number;
- *acceptance*: `open_run` returns the run of an address if it is active, in the current generation, with its call open;
- *the barrier*: `barrier` lists what permits wait for, which is every part of an earlier run that still holds;
- *the step*: what the current turn of the mailbox has decided so far (`step`), until `take_step` hands it on.

Nothing here starts, ends or refuses anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from actors.agent_choice import NO_CHOICE
from actors.attachments import Attachment
from actors.errors import CountermandError, TooLarge
from actors.events import EventData, as_data
from actors.gate.credit import Credit
from actors.gate.token import CancelToken, Notify
from actors.hosts import HostedAgent
from actors.model import Address, Event, Fate, Isolation, Provenance, RunInfo, SessionActivity, SessionStatus
from actors.parts import MediaPart
from actors.ports import AttachmentRow, Clock, Ids, SessionRow, Settings, Snapshot
from actors.protocol.owned_tree import OwnedTree
from actors.protocol.queue import TurnQueue
from actors.protocol.request_book import RequestBook
from actors.protocol.run_record import AGENT, CallRecord, Part, RunRecord
from actors.protocol.step import KeepDeadLetter, Step
from actors.protocol.stop_receipt import StopReceipt
from actors.questions import Asking
from actors.run_status import RunStatus
from actors.saved import Saved
from actors.thread import Thread
from actors.usage import NO_USAGE, Budget, Usage

LATE_KEPT_MAX: Final = 256
"""Settled runs that are kept because a part of theirs may still end; and receipts of Stops that wait for trees."""


class Hosting(Protocol):
    """The agents that run in hosts, and the hosts for them; see `actors.hosts`."""

    def hosted(self, agent: str) -> HostedAgent | None:
        """Return an agent that runs in hosts; None: it does not."""

    def reserve(self, agent: str, kept: str | None) -> str:
        """Reserve a host for a run; see `Hosts.reserve`."""

    def asked(self, process_id: str) -> None:
        """A call asks for a host that it has reserved."""

    def unused(self, process_id: str) -> None:
        """It is decided that a host does not get its run or call: the host is released when that is durable."""

    def code_changed_at(self, process_id: str) -> float | None:
        """Return when the code of a reserved host was last changed; see `Hosts.code_changed_at`."""


class SessionState:
    """One session's state. Not thread-safe: it lives in its session's mailbox.

    Args:
        session: the session's id.
        settings: limits and graces.
        clock: only its time of day is used.
        ids: makes the ids of runs and receipts.
        notify: where callbacks of cancel tokens run.
        isolation: of each tool, by name.
        unavailable: returns why an agent cannot run, by its name; None if it can.
        hosting: the agents that run in hosts; None: there are none.
        token_of: returns the token of an execution, by the id of its run or its call; see `Executor.token`.

    Attributes:
        saved: what agents have saved for later runs.
        usage: what all runs have used so far.
        choice: the agent that answers messages which name none.
        attachments_bytes: of all attachments of the session.
        active: the run that is in progress.
        ending: runs that are closed and not settled, by id: parts of theirs are still ending.
        late: settled runs with parts that were abandoned, by id: a late proof amends their receipts.
        over: the receipt id of each settled run.
        fates: what became of each message that no longer waits.
        room: the messages that wait.
        book: the request ids and their answers.
        queued: runs that have not started, by id.
        held: the active run, while the start of its agent waits for the barrier.
        holding: the run whose end the queue waits for, after a Stop that keeps what waits.
        cutoffs: when each origin last stopped the session (epoch seconds, UTC).
        owned: the process trees of the session, by id.
        stop_receipts: receipts of Stops that wait for such trees, by id.
        deleting: why the session is being deleted; None if it is not.
        deleted: the session is deleted, and nothing has happened in it since.
        restoring: the session is being restored: nothing starts before that is done.
    """

    def __init__(
        self,
        session: str,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        notify: Notify,
        isolation: Mapping[str, Isolation],
        unavailable: Callable[[str], CountermandError | None] = lambda _: None,
        hosting: Hosting | None = None,
        token_of: Callable[[str], CancelToken | None] = lambda _: None,
    ) -> None:
        self.session = session
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.notify = notify
        self.isolation = isolation
        self.unavailable = unavailable
        self.hosting = hosting
        self.token_of = token_of
        self.generation = 0
        self.seq = 0
        self.thread = Thread()
        self.saved = Saved()
        self.usage = NO_USAGE
        self.choice = NO_CHOICE
        self.attachments_bytes = 0
        self.step = Step()
        self.active: RunRecord | None = None
        self.ending: dict[str, RunRecord] = {}
        self.late: dict[str, RunRecord] = {}
        self.over: dict[str, str] = {}
        self.fates: dict[str, Fate] = {}
        self.queue = TurnQueue(session, settings.queue_max)
        self.book = RequestBook(session, settings.requests_kept, settings.requests_kept_s)
        self.queued: dict[str, RunInfo] = {}
        self.held: str | None = None
        self.holding: str | None = None
        self.cutoffs: dict[str, float] = {}
        self.owned: dict[str, OwnedTree] = {}
        self.stop_receipts: dict[str, StopReceipt] = {}
        self.draining = False
        self.interrupted = False
        self.quarantined = False
        self.deleting: Provenance | None = None
        self.deleted = False
        self.restoring = False

    def restore(self, snapshot: Snapshot) -> None:
        """Take over what the store holds, apart from runs and process trees."""
        row = snapshot.row
        if row is not None:
            self.generation, self.seq, self.deleted = row.generation, row.seq, row.deleted
            self.cutoffs = dict(row.cutoffs)
            self.usage = row.usage
            self.attachments_bytes = row.attachments_bytes
            self.choice = row.choice
        self.thread, self.saved = snapshot.thread, snapshot.saved
        self.fates = dict(snapshot.fates)
        self.over = dict(snapshot.over)
        self.book.restore(snapshot.requests, row.forgotten_to if row is not None else 0.0)
        self.queue.restore(snapshot.waiting, parked=row.parked if row is not None else False)
        self.queued = {info.run_id: info for info in snapshot.runs if info.status is RunStatus.QUEUED}

    def take_step(self) -> Step:
        """Return what was decided since the last call, and begin a new step."""
        step, self.step = self.step, Step()
        return step

    # ── What the session is doing ────────────────────────────────────────────────────────────────────

    @property
    def row(self) -> SessionRow:
        """The session's own row in the store."""
        return SessionRow(
            session=self.session,
            generation=self.generation,
            seq=self.seq,
            parked=self.queue.parked,
            quarantined=self.quarantined,
            cutoffs=dict(self.cutoffs),
            forgotten_to=self.book.forgotten_to,
            deleted=self.deleted,
            usage=self.usage,
            choice=self.choice,
            attachments_bytes=self.attachments_bytes,
        )

    @property
    def agent(self) -> str:
        """The agent that answers a message which names none."""
        return self.choice.name or self.settings.agent

    @property
    def idle(self) -> bool:
        """True when no run is active and none is ending."""
        return self.active is None and not self.ending

    @property
    def quiet(self) -> bool:
        """True when the session is idle, and waits for no end of a tree of its own."""
        return self.idle and all(owned.given_up for owned in self.owned.values())

    @property
    def nothing_left(self) -> bool:
        """True when all that the session ever started is proven to have ended, and each receipt is filed."""
        return self.quiet and not self.late and not self.owned and not self.stop_receipts

    @property
    def at_rest(self) -> bool:
        """True when the store holds the whole state: the session may leave memory, and be restored later.

        No run is active or ending, no part of a settled run and no tree of the session is left, no receipt waits, so
        the barrier is open; and no message waits, unless a Stop has parked it.
        """
        kept = self.draining or self.quarantined or self.deleting is not None
        return self.nothing_left and not kept and (self.queue.parked or not len(self.queue))

    def status(self) -> SessionStatus:
        """What the session is doing now."""
        if self.quarantined:
            state = SessionActivity.QUARANTINED
        elif self.active is not None:
            state = SessionActivity.RUNNING
        else:
            state = SessionActivity.CANCELLING if self.ending else SessionActivity.IDLE
        refused: dict[str, int] = {}
        for record in self.records():
            for kind, count in record.refused.items():
                refused[kind] = refused.get(kind, 0) + count
        return SessionStatus(
            session=self.session,
            state=state,
            generation=self.generation,
            last_seq=self.seq,
            run_id=self.active.id if self.active else None,
            ending=tuple(self.ending),
            waiting=len(self.queue),
            parked=self.queue.parked,
            barrier=tuple(f"{part.kind} {part.name}" for part in self.barrier()),
            refused=refused,
            owned=tuple(self.owned),
            usage=self.usage,
            asking=self._asking(),
            agent=self.agent,
            attachments_bytes=self.attachments_bytes,
        )

    def _asking(self) -> tuple[Asking, ...]:
        """What waits for a person, in the order in which it was asked for."""
        calls = self.active.open_calls() if self.active is not None else ()
        waiting = [(call.row, call.row.question) for call in calls if call.waits_for_person]
        return tuple(
            Asking(row.call_id, row.tool, asked.text, asked.options, asked.approval)
            for row, asked in waiting
            if asked is not None
        )

    # ── The barrier ──────────────────────────────────────────────────────────────────────────────────

    def barrier(self) -> list[Part]:
        """What permits of the active run wait for: parts of every earlier run, and trees that the session ends."""
        earlier = [record for record in (*self.ending.values(), *self.late.values()) if record is not self.active]
        held = [part for record in earlier for part in record.barrier()]
        # A tree that a receipt of a run names is a part of that run too.
        known = {id(part) for part in held}
        return held + [one.part for one in self.owned.values() if one.holds and id(one.part) not in known]

    def barrier_may_open(self) -> bool:
        """True while no kill deadline of what the barrier waits for has passed."""
        if any(record.barrier() for record in self.late.values()):
            return False
        return not any(owned.late and owned.holds for owned in self.owned.values())

    # ── Acceptance ───────────────────────────────────────────────────────────────────────────────────

    def open_run(self, address: Address) -> RunRecord | None:
        """Return the run that an address belongs to if all of the address is open; else None: it is stale."""
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

    def refuse_stale(self, kind: str, address: Address, shown: object = "") -> None:
        """Count a stale report in the receipt of its run, and keep it as a dead letter."""
        record = self.record(address.run)
        if record is not None:
            record.refused[kind] += 1
        self.dead_letter(kind, "its generation, run or call is closed", address, shown)

    def refuse_late(self, address: Address, counts: Mapping[str, int]) -> None:
        """Count what was refused before it came here: see `LateRefused`."""
        record = self.record(address.run)
        for kind, count in counts.items():
            if record is not None:
                record.refused[kind] += count
            why = "it came from a host after the end of its run"
            self.step.now.append(KeepDeadLetter(kind, why, address, f"{count} of them", count))

    def dead_letter(self, kind: str, why: str, address: Address | None, shown: object) -> None:
        """Keep a report or request that has no effect."""
        self.step.now.append(KeepDeadLetter(kind, why, address, f"{shown!s:.200}"))

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────

    def event(self, data: EventData, record: RunRecord | None, *, run_id: str | None = None) -> int:
        """Append an event to the log and return its sequence number.

        An event of a run has that run's own generation, any other the current one.
        """
        self.seq += 1
        self.deleted = False
        generation = self.generation
        if record is not None:
            run_id = record.id
            if record.info.generation is not None:
                generation = record.info.generation
        kind, at = str(data.event_kind), self.clock.wall()
        event = Event(self.seq, self.session, generation, run_id, kind, as_data(data), at)
        self.thread.add(event, data)
        self.saved.add(event, data)
        self.step.events.append(event)
        self.step.row_changed = True
        return self.seq

    def save_run(self, record: RunRecord) -> None:
        """Write the row of a run with this step."""
        self.step.runs[record.id] = record.info

    def save_call(self, call: CallRecord) -> None:
        """Write the row of a call with this step."""
        self.step.calls[call.row.call_id] = call.row

    # ── Attachments ──────────────────────────────────────────────────────────────────────────────────

    def keep(self, attachments: Iterable[Attachment], media: Iterable[MediaPart], at: float) -> None:
        """Write attachments with this step; `media` says what they are. Each has to fit: see `too_large`."""
        kinds = {part.attachment: part.media_type for part in media}
        for one in attachments:
            self.step.attachments.append(AttachmentRow(self.session, one.name, one.data, at, kinds.get(one.name)))
            self.attachments_bytes += len(one.data)
            self.step.row_changed = True

    def too_large(self, media: Collection[MediaPart]) -> TooLarge | None:
        """Return why a message may not have these files; None: it may."""
        settings, size = self.settings, sum(part.size for part in media)
        for what, limit, found in (
            ("attachments", settings.attachments_max, len(media)),
            ("bytes of attachments", settings.attachments_max_bytes, size),
        ):
            if found > limit:
                return _too_many(what, limit, found)
        return self.no_room(media)

    def no_room(self, media: Collection[MediaPart]) -> TooLarge | None:
        """Return why the session keeps no more files such as these; None: it does."""
        limit, found = self.settings.attachments_kept_bytes, self.attachments_bytes + sum(part.size for part in media)
        return _too_many("bytes of attachments in the session", limit, found) if media and found > limit else None

    # ── Usage ────────────────────────────────────────────────────────────────────────────────────────

    def use(self, record: RunRecord, more: Usage) -> None:
        """A run has used this. Its own sum and the session's are written with the event that says so."""
        record.info = msgspec.structs.replace(record.info, usage=record.info.usage.plus(more))
        self.usage = self.usage.plus(more)
        self.save_run(record)
        self.step.row_changed = True

    def budget(self, record: RunRecord) -> Budget:
        """How much a run may use."""
        agent = None if self.hosting is None else self.hosting.hosted(record.info.agent)
        return self.settings.budget if agent is None else agent.budget.over(self.settings.budget)

    # ── Looking up ───────────────────────────────────────────────────────────────────────────────────

    def records(self) -> Iterable[RunRecord]:
        """The records of all runs that are in memory: active, ending, late."""
        if self.active is not None:
            yield self.active
        yield from self.ending.values()
        yield from self.late.values()

    def record(self, run_id: str) -> RunRecord | None:
        """The record of a run that is active, ending or late."""
        if self.active is not None and self.active.id == run_id:
            return self.active
        return self.ending.get(run_id) or self.late.get(run_id)

    def call(self, address: Address) -> CallRecord | None:
        """The record of the call of an address, open or closed."""
        record = self.record(address.run)
        if record is None or address.call is None:
            return None
        return record.calls.get(address.call)

    def part(self, address: Address) -> Part | None:
        """The part that executes an address: a call's execution, or the agent's."""
        record = self.record(address.run)
        return record.parts.get(address.call or AGENT) if record is not None else None

    def open_parts(self) -> frozenset[str]:
        """Return the ids under which the ports have what is open: parts of runs, and trees of the session."""
        parts = [(record, part) for record in self.records() for part in record.open_parts()]
        return frozenset(record.id if part.id == AGENT else part.id for record, part in parts).union(self.owned)

    def open_runs(self) -> frozenset[str]:
        """Return the ids of the runs that have open parts."""
        return frozenset(record.id for record in self.records() if record.open_parts())

    # ── Made from the settings ───────────────────────────────────────────────────────────────────────

    def new_token(self, below: CancelToken | None = None) -> CancelToken:
        """Make the token of a run; that of a child run hangs below another one."""
        return CancelToken(self.notify, below)

    def new_credit(self) -> Credit:
        """Make the credit of a run: how much of what its agent emits may be on its way."""
        return Credit(self.settings.credit_events, self.settings.credit_bytes)


def _too_many(what: str, limit: int, found: int) -> TooLarge:
    remedy = "give fewer or smaller files, or put them where they can be read"
    return TooLarge(f"there are too many {what}", expected=f"at most {limit}", got=str(found), remedy=remedy)
