"""L12 Durable: what was answered is there after kill -9, and a restart does not undo what a person stopped."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from actors import NewMessage, RunStatus, Turn
from tests.kit import WAIT_S, Kit, check_rest, fates, log, message, say, settled, stop, until

TOLD_S = 240.0
"""Less than a test may take. On a machine that has much to do a new interpreter alone took more than 90 s to come up;
one that has ended is known by the end of what it says."""

# A supervisor of its own process, told what to do by lines of JSON; each answer is a line, flushed before the next.
CHILD = """
import json, sys, threading
from actors import NewMessage, Stop, Turn
from supervisor import Config, Supervisor

lock = threading.Lock()
stop_is_durable = threading.Event()

def tell(**told):
    with lock:
        sys.stdout.write(json.dumps(told) + "\\n")
        sys.stdout.flush()

def agent(turn):
    text = turn.inputs[-1].content if turn.inputs else ""
    if text.startswith("say"):
        turn.emit("spoken")
    if text.startswith("sh "):
        turn.call("shell", script=text[3:])
    if text == "silent":
        tell(silent=True)
    turn.cancel_token.wait()

config = Config(state_dir=sys.argv[1], agents={"test": agent}, agent="test", grace_s=0.3, kill_s=1.0)
supervisor = Supervisor.start(config)
session = supervisor.session("s1")

def listen():
    for event in session.subscribe():
        if event.kind in ("text", "tool.requested"):
            tell(heard=event.kind)
        if event.kind == "session.stop_durable":
            stop_is_durable.set()

threading.Thread(target=listen, daemon=True).start()
tell(ready=True)
for line in sys.stdin:
    kind, fields = json.loads(line)
    answer = session.ask({"NewMessage": NewMessage, "Stop": Stop}[kind](**fields), timeout=None)
    if kind == "Stop" and not answer.durable:
        # On a slow disk it is answered ahead of its record, and then only that is promised to survive.
        stop_is_durable.wait()
    tell(run_id=answer.run_id)
"""


class Child:
    """The supervisor in its own process."""

    def __init__(self, kit: Kit) -> None:
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(kit.state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._unread: list[dict[str, Any]] = []
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=self._listen, args=(stdout,), daemon=True).start()
        try:
            self.read("ready")
        except BaseException:
            self.close()
            raise

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._told.put(json.loads(line))
        self._told.put({})

    def read(self, key: str) -> Any:
        """The value of the first `key` that was told and not read."""
        for told in self._unread:
            if key in told:
                self._unread.remove(told)
                return told[key]
        while told := self._told.get(timeout=TOLD_S):
            if key in told:
                return told[key]
            self._unread.append(told)
        raise AssertionError(f"the child ended before it said {key}")

    def ask(self, kind: str, **fields: Any) -> str:
        """Send a request and return the run id of its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, fields]) + "\n")
        self.process.stdin.flush()
        return str(self.read("run_id"))

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def close(self) -> None:
        """End it, whatever happened."""
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


@pytest.fixture
def child(kit: Kit) -> Iterator[Child]:
    made = Child(kit)
    try:
        yield made
    finally:
        made.close()


def finish(turn: Turn) -> None:
    turn.emit("finished")


def test_l12_an_accepted_message_survives_kill_9_and_a_run_that_said_nothing_is_tried_again(
    kit: Kit, child: Child
) -> None:
    first = child.ask("NewMessage", content="silent")
    child.read("silent")
    queued = child.ask("NewMessage", content="two", policy="enqueue")
    child.kill()
    session = kit.session(finish)
    check_rest(session)
    run = session.run(first)
    assert run.status is RunStatus.FAILED
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.recovery"
    again = next(one for one in session.runs() if one.retry_of == first)
    assert again.status is RunStatus.COMPLETED
    assert again.inputs == run.inputs
    assert session.run(queued).status is RunStatus.COMPLETED
    assert [m.content for m in session.thread() if m.role == "user"] == ["silent", "two"]


@pytest.mark.parametrize("content", ["say something", "sh true"])
def test_l12_a_half_run_with_text_or_a_call_on_record_is_not_tried_again(kit: Kit, child: Child, content: str) -> None:
    first = child.ask("NewMessage", content=content)
    # What a subscriber was given is durable.
    assert child.read("heard") == ("text" if content.startswith("say") else "tool.requested")
    queued = child.ask("NewMessage", content="two", policy="enqueue")
    child.kill()
    session = kit.session(finish)
    check_rest(session)
    assert not [run for run in session.runs() if run.retry_of is not None]
    assert session.run(first).status is RunStatus.FAILED
    assert session.run(queued).status is RunStatus.COMPLETED
    receipt = session.receipt(first, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.source == "supervisor.recovery"


def test_l12_a_stop_is_not_undone_by_kill_9(kit: Kit, child: Child) -> None:
    first = child.ask("NewMessage", content="silent")
    child.read("silent")
    queued = child.ask("NewMessage", content="two", policy="enqueue")
    child.ask("Stop", source="user.test", reason="enough", waiting="park")
    child.kill()
    session = kit.session(finish)
    until(lambda: session.run(first).status is RunStatus.CANCELLED, "the stopped run is closed")
    settled(session)
    assert session.status().parked
    assert session.status().waiting == 1
    assert session.run(queued).status is RunStatus.QUEUED
    assert [run.run_id for run in session.runs()] == [first, queued]
    receipt = session.receipt(first, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.source == "user.test"
    accepted = session.ask(NewMessage(content="go on"))
    assert [m.content for m in accepted.with_messages] == ["two"]
    check_rest(session)


def test_l12_what_kill_9_leaves_running_is_dead_after_the_next_start_and_the_call_is_interrupted(
    kit: Kit, child: Child
) -> None:
    script = kit.script("setsid sleep 60 >/dev/null 2>&1 & echo up; sleep 60; :")
    first = child.ask("NewMessage", content="sh " + script)
    until(lambda: len(kit.alive()) >= 3, "the tree")
    child.kill()
    session = kit.session(finish)
    receipt = session.receipt(first, timeout=WAIT_S)
    until(lambda: not kit.alive(), "the leftovers are dead")
    assert session.run(first).status is RunStatus.FAILED
    results = [m.outcome for m in session.thread() if m.role == "tool"]
    assert results == ["interrupted"]
    assert receipt.provenance is not None
    assert receipt.provenance.source == "supervisor.recovery"
    check_rest(session)


@pytest.mark.parametrize("rounds", range(3))
def test_l12_every_answer_before_a_kill_9_at_any_moment_holds_after_it(kit: Kit, child: Child, rounds: int) -> None:
    child.ask("NewMessage", content="silent")
    told = [NewMessage(content=f"m{number}").id for number in range(20 + 7 * rounds)]
    for number, identity in enumerate(told):
        child.ask("NewMessage", id=identity, content=f"m{number}", policy="enqueue", merge=False)
    child.kill()
    session = kit.session(finish)
    inputs, returned = fates(check_rest(session))
    assert [i for i in inputs if i in set(told)] == told
    assert returned == []


def test_l12_a_parked_message_stays_parked_over_an_orderly_restart(kit: Kit) -> None:
    def hold(turn: Turn) -> None:
        turn.emit("x")
        turn.cancel_token.wait()

    session = kit.session(hold)
    say(session)
    until(lambda: any(event.kind == "text" for event in log(session)))
    queued = session.ask(message("two", policy="enqueue")).run_id
    stop(session, waiting="park")
    settled(session)
    kit.close()
    session = kit.session(finish)
    assert session.status().parked
    assert queued is not None
    assert session.run(queued).status is RunStatus.QUEUED
    assert session.status().waiting == 1
