"""Mutants of the session's actor: batches, hosts, reading, passivation, draining."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.batches import Batches
from actors.hierarchy.draining import Draining
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.passivation import Passivation
from actors.hierarchy.reading import Reading
from actors.hierarchy.serving import Serving
from actors.hierarchy.session import SessionActor
from actors.hierarchy.session_hosts import SessionHosts
from actors.hierarchy.stash import Stash
from tests.sim.mutants.mutant import at_once, mutant

BUMP_AFTER_HALT: Final = """
    from pykka._envelope import Envelope
    from actors.messages import Halt
    from actors.protocol.stops import provenance_of
    from actors.requests import Stop
    if isinstance(request, Stop) and not getattr(self, "_halted_first", False):
        self._batches._effects._runs.halt_all(Halt(provenance_of(request, 0.0), 0.0))
        self._halted_first = True
        self._mailbox.put(Envelope(request, reply))
        return
    self._halted_first = False
    try:
        answer = self._live.protocol.requests.decide(request, reply, kept)
"""

SESSION_ACTOR: Final = (
    # ── SessionActor ──
    mutant(
        "a failing session leaves its gates open",
        "L2",
        SessionActor,
        "_let_go",
        "each.do(self._protocol.abandon, cause)",
        "pass",
    ),
    mutant(
        "a deadline of an earlier incarnation counts",
        "L7",
        SessionActor,
        "_time_over",
        "case KillDeadline() if timer.incarnation == self._live.id:",
        "case KillDeadline():",
    ),
    mutant(
        "a session that fails in quarantine leaves its trees",
        "L3",
        SessionActor,
        "_let_go",
        "if failed and self._quarantine.on:",
        "if False:",
    ),
    # ── Reading ──
    mutant(
        "what had ended is kept when a session is read anew",
        "L14",
        Reading,
        "loaded",
        "self._live.forget_ended()",
        "pass",
    ),
    mutant(
        "strays that had ended are kept when a session is read anew",
        "L14",
        Incarnation,
        "forget_ended",
        "ports.strays.forget_ended(self.session, state.open_runs().union(runs))",
        "pass",
    ),
    # ── SessionHosts ──
    mutant(
        "a host that was reserved when its session failed is kept",
        "L14",
        SessionHosts,
        "end",
        "processes.kill(process_id, 0.0, self._session)",
        "processes.kill(process_id, 0.0)",
    ),
    # ── Serving ──
    mutant(
        "the halt is sent before the fence",
        "L1",
        Serving,
        "decide",
        "    try:\n        answer = self._live.protocol.requests.decide(request, reply, kept)\n",
        BUMP_AFTER_HALT.lstrip("\n"),
    ),
    mutant(
        "a session is deleted before its Stop is reported durable",
        "L12",
        Serving,
        "flush",
        "not self._late_stops.pending and ",
        "",
    ),
    # ── Batches ──
    mutant("permit before its commit", "L2", Batches, "send_step", *at_once("GivePermit")),
    mutant("spawn permit before its commit", "L2", Batches, "send_step", *at_once("GiveSpawn")),
    mutant("a part is forgotten before its commit", "L3", Batches, "send_step", *at_once("ForgetPart")),
    mutant("a hand-over is answered before its commit", "L12", Batches, "send_step", *at_once("SayHandedOver")),
    mutant("a save is answered before its commit", "L12", Batches, "send_step", *at_once("SaySaved")),
    mutant("a tree of the session is spawned before its commit", "L12", Batches, "send_step", *at_once("SpawnOwn")),
    mutant("a host is released before its release is on record", "L12", Batches, "send_step", *at_once("ReleaseHost")),
    mutant("answer before commit", "L12", Batches, "send_step", *at_once("AnswerRequest")),
    mutant("the agent starts before its run is durable", "L12", Batches, "send_step", *at_once("StartRun")),
    mutant(
        "publish before commit",
        "L12",
        Batches,
        "send_step",
        "        self._ports.store.commit(batch, self._owner)\n",
        "        self._ports.publisher.publish(self._live.session, events)\n"
        "        self._ports.store.commit(batch, self._owner)\n",
    ),
    mutant("the journal lets a Stop go before it is on record", "L12", Batches, "send_step", *at_once("ForgetStop")),
    mutant(
        "a Stop that becomes durable late is not reported",
        "L12",
        Batches,
        "_stops_are_durable",
        "            self._live.protocol.stops.durable(stop, effect.answer)\n",
        "",
    ),
    mutant(
        "an early answer to a Stop lists messages that may never be on record",
        "L4",
        Batches,
        "early_answer",
        "else without_unstored(answer, unstored)",
        "else answer",
    ),
    # ── Passivation ──
    mutant(
        "passivates with a batch under way",
        "L11",
        Passivation,
        "at_rest",
        "        and not self._batches.sent\n        and not self._live.protocol.state.step.has_records\n",
        "",
    ),
    # ── Draining ──
    mutant(
        "shutdown does not wait for its own commits",
        "L11",
        Draining,
        "say_quiet",
        "not (self._batches.sent or step.has_records or self._stash or self._late_stops.pending)",
        "True",
    ),
    mutant(
        "shutdown does not wait for requests that wait for a read",
        "L11",
        Draining,
        "say_quiet",
        "self._stash or ",
        "",
    ),
    # ── Reading ──
    mutant(
        "a failure named in the journal is lost when a restoration fails",
        "L12",
        Reading,
        "_restore",
        "    unrecorded.cause = self._live.protocol.restoration.restore(\n",
        "    from actors.protocol.restoration import _recovery_cause\n"
        "    unrecorded.cause = unrecorded.cause or _recovery_cause(self._ports.clock.wall())\n"
        "    self._live.protocol.restoration.restore(\n",
    ),
    # ── SessionHosts ──
    mutant(
        "a host is released that may be on record",
        "L12",
        SessionHosts,
        "settle",
        "(self._reserved | self._unused) - on_record",
        "self._reserved | self._unused",
    ),
    # ── Stash ──
    mutant(
        "an early answer to a Stop says that nothing ran",
        "L10",
        Stash,
        "answer_overdue",
        "unknown(request)",
        'type(unknown(request))("nothing_running", None, request_id, None)',
    ),
)
