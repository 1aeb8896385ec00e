"""What the crash tests share: the load's words, the child that is killed, and what has to hold after all restarts.

Theory of operation. A child process (`tests/crash_child.py`) runs a supervisor under load and prints what it was
given: every event of its subscriptions, every request before it is sent and every answer after it came. It is
killed by SIGKILL, from outside at a seeded instant or by itself at a named point, and started again on the same
state directory, many times. What it printed is what the world knows; `judge` holds the store against it.

Lines go out in one write each, before the child does anything else with what they tell, so nothing that the child
acted upon is missing here. A line that the kill has torn was given to nobody.

Everything that the load starts carries the mark of its test, in its command line or its environment, so that what is
left alive is found whatever it did.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from actors import Message, RunInfo, SessionStatus, render_anthropic, render_openai
from actors.decoding import decoder
from actors.model import Event, Json, Receipt, Row, Waiting
from actors.requests import Accepted, NewMessage, OutsideRequest, Reply, Resumed, Stop, Stopped
from actors.run_status import TERMINAL, RunStatus
from supervisor import Config, Supervisor
from supervisor.store.reader import SqliteReader
from tests.load_agents import worker
from tests.provider_checker import check_anthropic, check_openai

ROOT = Path(__file__).parent.parent
SESSIONS = ("s0", "s1", "s2")
SHARED = "shared"
"""A session with two clients, who do not know of each other: nobody but the session says in which order they came."""
SHARERS = 2
OWN = "own-"
"""How the words of scripts begin that an agent runs without a call."""
RESENT_MAX = 8
MARK_NAME = "CM_CRASH_MARK"
READY_S = 60.0
STANDSTILL_S = 60.0
WAIT_S = 60.0
DEATH_S = 60.0

Line = dict[str, Any]


# ── The load's words ──────────────────────────────────────────────────────────────────────────────


class Scripts:
    """The load's scripts: each notes that it ran, once, and marks what it starts."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.ran = folder / "ran"
        self.release = folder / "release"
        self._head = f"export {MARK_NAME}={mark}; "

    def quick(self, word: str) -> str:
        """A script that ends by itself."""
        return f"{self._head}echo {word} >> {self.ran}; echo ran {word}"

    def background(self, word: str) -> str:
        """A script that ends, and leaves a process in a session of its own."""
        return f"{self.quick(word)}; setsid sleep 300 >/dev/null 2>&1 &"

    def tree(self, word: str) -> str:
        """A tree that stays until the file `release` is there: new sessions, a double fork, one that ignores TERM."""
        return (
            f"{self.quick(word)}; sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & exit' &); "
            f"(trap '' TERM; sleep 300) & while [ ! -e {self.release} ]; do sleep 0.03; done"
        )

    def runs_of(self, word: str) -> int:
        """How often a script with this word ran."""
        return self.all_runs()[word]

    def all_runs(self) -> Counter[str]:
        """How often each word's script ran."""
        return Counter(self.ran.read_text().split()) if self.ran.exists() else Counter()


def config(state_dir: Path) -> Config:
    """The supervisor of the crash tests: short graces, so that what ignores SIGTERM is killed soon.

    Sessions leave memory as soon as they rest, so that the kill also comes while they leave and come back. No barrier
    is forced, and no receipt names what is still being ended, since a warden got no time on a busy machine.
    """
    return Config(
        state_dir=state_dir,
        agent="worker",
        agents={"worker": worker},
        grace_s=0.15,
        kill_s=WAIT_S,
        drain_s=0.0,
        passivate_s=0.01,
    )


# ── What crosses the pipe ─────────────────────────────────────────────────────────────────────────


def fingerprint(event: Event) -> list[Json]:
    """What two copies of an event must have in common: all of it."""
    data = json.dumps(json.loads(msgspec.json.encode(event.data)), sort_keys=True)
    return [event.seq, event.generation, event.run_id, event.kind, hashlib.sha256(data.encode()).hexdigest()[:16]]


def pack(value: OutsideRequest | Reply) -> str:
    """A request or an answer as text."""
    return msgspec.json.encode(value).decode()


def unpack_request(text: str) -> OutsideRequest:
    """A request from its text."""
    request: OutsideRequest = decoder(OutsideRequest)(text)
    return request


def unpack_answer(text: str) -> Reply:
    """An answer from its text."""
    answer: Reply = decoder(Reply)(text)
    return answer


@dataclass
class Sent:
    """A request of the load: in which session, with what answer or refusal, if any came."""

    session: str
    request: OutsideRequest
    answer: str | None = None
    refused: str | None = None


@dataclass
class Told:
    """All that the children of one state directory were given."""

    events: dict[str, dict[int, list[Json]]] = field(default_factory=lambda: defaultdict(dict))
    sent: dict[str, Sent] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    parked: int = 0
    dying: list[str] = field(default_factory=list)

    def to_resend(self) -> list[Sent]:
        """What a client sends again after a crash, in order: some of what was answered, all that was not."""
        resent = []
        for session in (*SESSIONS, SHARED):
            of_session = [sent for sent in self.sent.values() if sent.session == session and sent.refused is None]
            resent += [sent for sent in of_session if sent.answer is not None][-RESENT_MAX:]
            resent += [sent for sent in of_session if sent.answer is None]
        return resent

    def parked_sessions(self) -> list[str]:
        """Where the last that was sent is a person's stop that parks, and it was answered."""
        last = {sent.session: sent for sent in self.sent.values() if sent.refused is None}
        return [
            session
            for session, sent in last.items()
            if session != SHARED
            and sent.answer is not None
            and isinstance(sent.request, Stop)
            and sent.request.waiting is Waiting.PARK
        ]

    def take(self, line: Line) -> None:
        """Take in one line of a child."""
        match line["told"]:
            case "event":
                known = self.events[line["session"]].setdefault(line["event"][0], line["event"])
                assert known == line["event"], f"an event was given in two versions: {known}, {line['event']}"
            case "sent":
                request = unpack_request(line["request"])
                self.sent.setdefault(request.id, Sent(line["session"], request))
            case "answer":
                sent = self.sent[line["id"]]
                answer = unpack_answer(line["answer"])
                if isinstance(answer, Stopped) and not answer.durable:
                    # On a slow disk: a client that wants to know sends it again.
                    return
                if isinstance(answer, Accepted):
                    # What became of a message that waited is news in the answer to a repeat.
                    answer = msgspec.structs.replace(answer, fate=None)
                if sent.answer is None:
                    self.answered.append(line["id"])
                    sent.answer = pack(answer)
                assert sent.answer == pack(answer), f"{sent.request} had two answers: {sent.answer}, {line}"
            case "refused":
                sent = self.sent[line["id"]]
                assert sent.answer is None, f"{sent.request} was answered, and then refused: {line}"
                sent.refused = line["code"]
            case "parked":
                assert line["kept"], f"a stop that parked messages was undone by a restart: {line}"
                self.parked += 1
            case "dying":
                self.dying.append(line["at"])
            case "ready":
                pass
            case other:
                raise AssertionError(f"a child said {other!r}")


class Child:
    """A child from its start to its death: under load, or with nothing to do but `only` some requests to `s0`."""

    def __init__(
        self,
        folder: Path,
        mark: str,
        seed: str,
        *,
        told: Told,
        die_at: str | None = None,
        only: Sequence[OutsideRequest] | None = None,
    ) -> None:
        self.folder = folder
        resend, parked = told.to_resend(), told.parked_sessions()
        orders = {
            "folder": str(folder),
            "mark": mark,
            "seed": seed,
            "die_at": die_at,
            "resend": [{"session": sent.session, "request": pack(sent.request)} for sent in resend],
            "parked": parked,
            "only": None if only is None else [pack(request) for request in only],
        }
        environment = {**os.environ, MARK_NAME: mark, "LOGURU_LEVEL": "WARNING"}
        with (folder / "child.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash_child", json.dumps(orders)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._out: IO[bytes] = self.process.stdout  # type: ignore[assignment]  # it is a pipe
        os.set_blocking(self._out.fileno(), False)
        self._left = b""
        self.lines: list[Line] = []
        self.ended = False

    def pump(self, wait_s: float) -> None:
        """Take in what the child printed; waits at most `wait_s` seconds for more."""
        readable, _, _ = select.select([self._out], [], [], max(0.0, wait_s))
        if not readable:
            return
        try:
            data = os.read(self._out.fileno(), 1 << 20)
        except BlockingIOError:
            return
        if not data:
            self.ended = True
            return
        *lines, self._left = (self._left + data).split(b"\n")
        self.lines.extend(json.loads(line) for line in lines)

    def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Take in lines until a condition holds, the child's output ends, or the time is over."""
        deadline = time.monotonic() + within_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or self.ended:
                return condition()
            self.pump(min(left, 0.5))
        return True

    def until_ready(self) -> None:
        """Until the load begins, or the child has killed itself at a point of its start."""
        done = self.until(lambda: any(line["told"] in ("ready", "dying") for line in self.lines), READY_S)
        assert done, f"the child did not start: {(self.folder / 'child.log').read_text()[-4000:]}"

    def answers(self) -> list[Reply]:
        """The answers it had so far."""
        return [unpack_answer(line["answer"]) for line in self.lines if line["told"] == "answer"]

    def kill(self) -> None:
        """Kill it, if it lives, and take in the rest."""
        self.process.kill()
        self.process.wait()
        # Its zygote holds no copy of the pipe for longer than it takes to notice the death.
        ended = self.until(lambda: self.ended, DEATH_S)
        self._out.close()
        assert ended, "somebody holds the output of a dead child"
        assert self.process.returncode == -signal.SIGKILL, (
            f"the child ended by itself with {self.process.returncode}: "
            f"{(self.folder / 'child.log').read_text()[-4000:]}"
        )

    def dispose(self) -> None:
        """Leave nothing of it, also when a test failed."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._out.close()


# ── Who is alive ──────────────────────────────────────────────────────────────────────────────────


def alive(mark: str) -> dict[int, str]:
    """Processes that carry the mark and are no zombies, with their command lines."""
    found = {}
    needle = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        folder = Path("/proc") / name
        try:
            command = (folder / "cmdline").read_bytes()
            if needle not in command and needle not in (folder / "environ").read_bytes():
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return found


@contextmanager
def nobody_left(mark: str) -> Iterator[None]:
    """Kill at the end what carries the mark, for a test that failed must leave nothing either."""
    try:
        yield
    finally:
        for pid in alive(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


# ── What has to hold ──────────────────────────────────────────────────────────────────────────────


def until(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
    """Poll a condition with a deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.005)


def settle(supervisor: Supervisor) -> None:
    """Wait until every session came to rest by itself: no run is open and only what is parked waits.

    There may be many turns to run first, so the deadline is one of standstill: nothing new in any log.
    """
    names = supervisor.sessions()
    assert names, "the load made sessions"
    seen: list[SessionStatus] = []
    deadline = 0.0
    while True:
        now = [supervisor.session(name).status() for name in names]
        if all(status.state == "idle" and (status.parked or not status.waiting) for status in now):
            # A session says what it has decided: twice, so that what it decided last was handed in, and is written.
            assert supervisor._store.answers(STANDSTILL_S)
            if now == seen:
                return
        if now != seen:
            seen, deadline = now, time.monotonic() + STANDSTILL_S
        assert time.monotonic() < deadline, f"at a standstill: {now}"
        time.sleep(0.01)


class Judge:
    """Holds one session's log and rows against what the children were told."""

    def __init__(self, reader: SqliteReader, session: str, told: Told) -> None:
        self.session = session
        self.told = told
        self.log = list(all_events(reader, session))
        self.runs: dict[str, RunInfo] = {run.run_id: run for run in reader.runs(session)}
        self.thread: list[Message] = reader.thread(session)
        self.receipts: dict[str, Receipt | None] = {run_id: reader.receipt(session, run_id) for run_id in self.runs}
        row = reader.session(session)
        self.parked = row is not None and row.parked

    def judge(self) -> None:
        """Check all of it."""
        self.events_given_are_in_the_log()
        self.nothing_of_a_run_follows_its_fence()
        self.messages_have_one_fate_in_order()
        self.runs_end_once()
        self.runs_begin_for_a_reason()
        self.stops_stand()
        self.receipts_are_whole()
        self.thread_is_valid()

    def of(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [event for event in self.log if event.kind == kind]

    def events_given_are_in_the_log(self) -> None:
        assert [event.seq for event in self.log] == list(range(1, len(self.log) + 1)), "a gap in the log"
        stored = {event.seq: fingerprint(event) for event in self.log}
        for seq, given in self.told.events[self.session].items():
            assert stored.get(seq) == given, f"{self.session}: given {given}, stored {stored.get(seq)}"
        generations = [event.generation for event in self.log if event.kind in ("session.fenced", "run.started")]
        assert generations == sorted(generations), "a generation went back"

    def nothing_of_a_run_follows_its_fence(self) -> None:
        closed: set[str] = set()
        for event in self.log:
            if event.kind == "session.fenced" and event.data["run_id"]:
                closed.add(event.data["run_id"])
            elif event.kind in ("text", "tool.requested", "tool.started", "tool.output", "message"):
                assert event.run_id not in closed, f"{event.kind} of {event.run_id} after its fence"

    def messages_have_one_fate_in_order(self) -> None:
        order = []
        waiting = Counter(e.data["message_id"] for e in self.of("session.message_waiting"))
        inputs = Counter(event.data["id"] for event in self.of("message"))
        returned = Counter(event.data["message_id"] for event in self.of("session.message_returned"))
        in_runs: dict[str, list[RunInfo]] = defaultdict(list)
        for run in self.runs.values():
            for message_id in run.inputs:
                in_runs[message_id].append(run)
        for request_id in self.told.answered:
            sent = self.told.sent[request_id]
            if sent.session != self.session or not isinstance(sent.request, NewMessage):
                continue
            fates = inputs[request_id] + returned[request_id]
            kept = self.parked and waiting[request_id] > 0
            assert fates == 1 or (fates == 0 and kept), f"message {sent} has {fates} fates"
            self.is_input_of_one_chain(request_id, in_runs[request_id], inputs[request_id])
            if inputs[request_id]:
                order.append(request_id)
        logged = [event.data["id"] for event in self.of("message") if event.data["id"] in set(order)]
        assert self.session == SHARED or logged == order, (
            "messages became inputs in another order than they were accepted"
        )

    def is_input_of_one_chain(self, message_id: str, runs: list[RunInfo], times: int) -> None:
        """A run and those that retry it count as one; a message may have joined it in a retry, by steering."""
        ids = {run.run_id for run in runs}
        first = [run for run in runs if run.retry_of not in ids]
        assert len(first) == times, f"message {message_id} is an input of {runs}"
        retried = [run.retry_of for run in runs if run.retry_of in ids]
        assert len(set(retried)) == len(retried), f"a run was retried twice: {runs}"
        for run_id in retried:
            self.was_untouched(run_id or "")

    def was_untouched(self, run_id: str) -> None:
        kinds = {event.kind for event in self.log if event.run_id == run_id}
        assert not kinds & {"text", "tool.requested"}, f"{run_id} was retried although it had begun: {kinds}"

    def runs_end_once(self) -> None:
        terminal = Counter(e.run_id for e in self.of("run.status") if RunStatus(e.data["status"]) in TERMINAL)
        ended = Counter(event.run_id for event in self.of("run.ended"))
        for run_id, run in self.runs.items():
            if run.status is RunStatus.QUEUED:
                assert self.parked, f"{run_id} is queued and not parked"
                continue
            assert run.settled, f"{run} is not settled"
            assert (terminal[run_id], ended[run_id]) == (1, 1), f"{run_id}: {terminal[run_id]}, {ended[run_id]}"
            if run.status is RunStatus.FAILED:
                self.failed_with_a_cause(run)
            elif run.status is not RunStatus.COMPLETED:
                assert run.status is RunStatus.CANCELLED, f"{run}"
                assert run.provenance is not None, f"{run} was cancelled by nobody"

    def failed_with_a_cause(self, run: RunInfo) -> None:
        assert run.provenance is not None, f"the load raises nothing, so {run} has a cause"
        assert run.provenance.source == "supervisor.recovery", f"{run}"

    def runs_begin_for_a_reason(self) -> None:
        """A run has inputs of its own, or somebody resumed the session, or it tries again what nobody had begun."""
        resumed = {event.data["run_id"] for event in self.of("session.resumed")}
        taken = {event.run_id for event in self.of("message")}
        for event in self.of("run.started"):
            again = event.data.get("retry_of") is not None
            assert event.run_id in resumed | taken or again, f"{event} begins, and nobody asked for it"
            assert (event.run_id in resumed) == bool(event.data.get("resumed")), f"{event} was resumed by nobody"

    def stops_stand(self) -> None:
        """What an answer said was stopped ended cancelled, by that request and no other."""
        for request_id in self.told.answered:
            sent = self.told.sent[request_id]
            if sent.session != self.session:
                continue
            answer = unpack_answer(sent.answer or "")
            if isinstance(answer, Stopped) and answer.outcome == "stopped":
                assert isinstance(sent.request, Stop)
                run = self.runs[answer.run_id or ""]
                assert run.status is RunStatus.CANCELLED, f"{run} was stopped"
                assert run.provenance is not None
                assert run.provenance.reason == sent.request.reason, f"{run} was stopped by {sent.request}"
            elif isinstance(answer, Accepted) and answer.superseded_run_id is not None:
                run = self.runs[answer.superseded_run_id]
                assert run.status is RunStatus.CANCELLED, f"{run} was superseded"
                assert run.provenance is not None
                assert run.provenance.requested_by == request_id, f"{run} was superseded by {request_id}"
            elif isinstance(answer, Resumed):
                assert answer.run_id in self.runs

    def receipts_are_whole(self) -> None:
        """Each run has one receipt, everything in it was proven dead, and it counts what the wardens reaped."""
        reaped: Counter[str] = Counter()
        spawned: Counter[str] = Counter()
        for event in self.of("process.ended"):
            reaped[event.run_id or ""] += event.data["reaped"]
        for event in self.of("process.started"):
            spawned[event.run_id or ""] += 1
        for run_id, receipt in self.receipts.items():
            if not self.runs[run_id].settled:
                continue
            assert receipt is not None, f"{run_id} has no receipt"
            assert receipt.complete, f"{run_id} left something behind: {receipt}"
            assert receipt.reaped == reaped[run_id], f"{run_id}: {reaped[run_id]} were reaped, not {receipt.reaped}"
            assert receipt.reaped >= spawned[run_id], f"{run_id} spawned {spawned[run_id]}: {receipt}"
            for row in rows_of(receipt.rows):
                assert row.ended_at is not None, f"{run_id}: {row} has not ended"

    def thread_is_valid(self) -> None:
        if self.thread:
            check_openai(render_openai(self.thread))
            check_anthropic(render_anthropic(self.thread))


def judge(reader: SqliteReader, told: Told, scripts: Scripts, kind: type[Judge] = Judge) -> Counter[str]:
    """Check everything; returns what was seen, so that a test can say that it saw something."""
    seen: Counter[str] = Counter()
    ran = scripts.all_runs()
    twice = {word: count for word, count in ran.items() if count > 1 and not word.startswith(OWN)}
    assert not twice, f"scripts ran twice: {twice}"
    for row in reader.sessions():
        case = kind(reader, row.session, told)
        case.judge()
        for run in case.runs.values():
            seen[f"run {run.status}"] += 1
            if run.provenance is not None:
                seen[run.provenance.source] += 1
            if run.retry_of is not None:
                seen["retry"] += 1
        for message in case.thread:
            if message.outcome is not None:
                seen[f"call {message.outcome}"] += 1
        for event in case.log:
            if event.kind == "tool.ended" and event.data["outcome"] == "not_started":
                call = next(e for e in case.of("tool.requested") if e.data["call_id"] == event.data["call_id"])
                word = call.data["arguments"].get("script", "").partition("echo ")[2].partition(" ")[0]
                assert not word or word not in ran, f"{word} ran, and its result says that it did not start"
        seen["events given"] += len(told.events[row.session])
    seen["answers"] = len(told.answered)
    seen["parked"] = told.parked
    return seen


def rows_of(rows: tuple[Row, ...]) -> Iterator[Row]:
    """All rows of a receipt."""
    for row in rows:
        yield row
        yield from rows_of(row.rows)


def all_events(reader: SqliteReader, session: str) -> Iterator[Event]:
    """The whole log of a session."""
    after = 0
    while page := reader.events(session, after):
        yield from page
        after = page[-1].seq
