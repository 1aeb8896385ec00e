"""Mutants of what the protocol decides about requests: messages and their queue, Stops, deletion."""

from __future__ import annotations

from typing import Final

from actors.protocol.deletion import Deletion
from actors.protocol.intake import Intake
from actors.protocol.queue import TurnQueue
from actors.protocol.request_book import RequestBook
from actors.protocol.requests import Requests
from actors.protocol.stops import Stops
from actors.protocol.turns import Turns
from tests.sim.mutants.mutant import mutant

REQUESTS: Final = (
    # ── Requests ──
    mutant(
        "request id not stored with its effect",
        "L10",
        Requests,
        "decide",
        "state.step.requests.append(state.book.answered(request, known, at))",
        "state.book.answered(request, known, at)",
    ),
    mutant(
        "the answer to a repeat says that a waiting message was returned",
        "L10",
        Requests,
        "decide",
        "state.fates.get(known.message_id)",
        'state.fates.get(known.message_id, "returned")',
    ),
    # ── RequestBook ──
    mutant(
        "the content of a repeat is not compared", "L10", RequestBook, "known", "row.digest != digest(request)", "False"
    ),
    mutant(
        "a deletion forgets which ids were used",
        "L10",
        RequestBook,
        "forget",
        "    return blank\n",
        "    self._rows, self._forgotten_to = OrderedDict(), 0.0\n    return []\n",
    ),
    # ── Intake ──
    mutant(
        "takeover in two steps",
        "L4",
        Intake,
        "_supersede",
        "self._start_with_all(message, at, superseded=active.id)",
        "self._enqueue(message, at)",
    ),
    mutant(
        "a message from before the Stop is taken",
        "L4",
        Intake,
        "new_message",
        "message.sent_at is not None and cutoff is not None and message.sent_at < cutoff",
        "False",
    ),
    # ── TurnQueue ──
    mutant(
        "steer handed over twice",
        "L4",
        TurnQueue,
        "pull_steering",
        "pulled, self.steering = self.steering, []",
        "pulled = list(self.steering)",
    ),
    mutant(
        "waiting messages are taken in reverse order",
        "L4",
        TurnQueue,
        "take_all",
        "for turn in turns for row in turn.rows]",
        "for turn in turns[::-1] for row in turn.rows]",
    ),
    mutant("one waiting message too many", "L14", TurnQueue, "refuse_if_full", ">= self._limit", "> self._limit"),
    # ── Turns ──
    mutant(
        "a Stop keeps messages that it reports as withdrawn",
        "L4",
        Turns,
        "stop",
        "if waiting is Waiting.KEEP:",
        "if waiting is not Waiting.PARK:",
    ),
    mutant(
        "a returned message waits again after a restart",
        "L12",
        Turns,
        "add_returned",
        "    self._state.step.unwait(message)\n",
        "",
    ),
    # ── Stops ──
    mutant(
        "a Stop of the session leaves its trees",
        "L3",
        Stops,
        "_stop_run",
        "    self._trees.end(self._ended_by(stop), provenance, record)\n",
        "",
    ),
    mutant("a kept host outlives a Stop", "L3", Stops, "_ended_by", "stop.run_id is None", "False"),
    mutant(
        "a Stop aimed at an earlier run ends the current run",
        "L9",
        Stops,
        "_stop_aimed",
        "if current is not None and current.id == run_id:",
        "if current is not None:",
    ),
    mutant(
        "a Stop that is decided again gets another answer",
        "L10",
        Stops,
        "stop",
        "answer = None if kept is None else kept.answer",
        "answer = None",
    ),
    mutant(
        "a receipt whose id was answered is not filed",
        "L10",
        Stops,
        "_replay",
        "    self._file_promised_receipt(answer, provenance, at)\n",
        "",
    ),
    mutant(
        "a Stop after a failure of the store becomes the first cause",
        "L5",
        Stops,
        "cancelled_unstored",
        "first = record.token.provenance or provenance",
        "first = provenance",
    ),
    mutant(
        "a Stop that is decided again keeps the turn that it had stopped",
        "L12",
        Stops,
        "_replay",
        "queued = self._stop_queued(answer.run_id, provenance, at)",
        "queued = None",
    ),
    mutant(
        "a message sent while a Stop waits to be decided is returned",
        "L4",
        Stops,
        "stop",
        "min(sent_at, handled_at)",
        "at",
    ),
    mutant(
        "a Stop is reported durable again after a restart",
        "L12",
        Stops,
        "durable",
        "if stop.id not in self._reported_durable:",
        "if True:",
    ),
    # ── Deletion ──
    mutant(
        "a session is deleted before its proofs",
        "L11",
        Deletion,
        "erase_if_proven",
        "state.deleting is None or not state.nothing_left",
        "state.deleting is None or state.active is not None",
    ),
    mutant(
        "the generation begins anew after a deletion",
        "L1",
        Deletion,
        "erase_if_proven",
        "    state.step.erase = True\n",
        "    state.step.erase = True\n    state.generation = 0\n",
    ),
)
