"""`demo`: what this is about, in some seconds, on real processes and without a network.

A scripted model on this machine starts jobs that ignore SIGTERM. Its run is taken over by a message, stopped, and ended
by a `kill -9` of the daemon. All that is shown is from the store, was measured here, or was looked for from outside:
processes by what is in their environment.

The daemon is one of its own, in a session of its own, so that a Ctrl-C reaches this command alone. Whatever ends the
command, the daemon is killed, and its wardens end what it had. Only a SIGKILL of this command itself leaves it running.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from actors.errors import CountermandError, Invalid
from actors.events import EventKind
from actors.model import Message, Receipt, Row
from actors.requests import NewMessage, Stop
from supervisor.console.chat.attached import AttachedSession
from supervisor.console.client.api import Api, NoDaemon
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.commands.thread import print_messages
from supervisor.console.ending import EndedBy
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, heading, print_json, say
from supervisor.console.render.receipts import table
from supervisor.console.render.words import cause, plural
from supervisor.daemon.settings import PREFIX

GRACE_S: Final = 0.5
STEP_S: Final = 60.0
"""How long one step may take; it is an error then."""
LOOK_S: Final = 0.02
JOBS: Final = 3
MARK: Final = "DEMO_SESSION"
"""The variable of the agent's hosts with the session. Its jobs have that in `FENCE`."""
FENCE: Final = "COUNTERMAND_FENCE"

CONFIGURATION: Final = f"""
agent = "demo"
grace_s = {GRACE_S}

[agents.demo]
run = "supervisor.agents.scripted:answer"
path = ['{{path}}']
env = {{{{ {MARK} = "{{session}}" }}}}
"""

WORDS: Final = {
    "answered": "until it was answered: from then on nothing of that run counts, and none of its calls starts",
    "proven": f"from then on to the proof that all its processes are dead; they had {GRACE_S} s to end by themselves",
    "spoke": "from the message to the first text of the new run",
    "gone": "until nothing that the daemon had was left",
    "started": "until a new daemon answered, which files the receipt",
}
"""What is measured, by its name in the JSON."""

BUILD, TEST, AGAIN, ASK = "Build it.", "No, test it.", "Build it after all.", "What has happened?"


class Step(Struct, frozen=True):
    """One step: what was done, its run, and what was measured, in seconds.

    run_id: the run that was ended; of the last step, the one that answers.
    processes: those of its jobs that were there just before, looked for from outside.
    left: how many of them, and of the processes that the receipt has, were there when that was filed. After the kill:
        how many of all that the daemon had, and when they were looked for the last time.
    """

    what: str
    run_id: str
    processes: int
    left: int
    seconds: dict[str, float]
    receipt: Receipt


class Story(Struct, frozen=True):
    """What a demo has shown.

    state_dir: None if it was removed.
    left: how many processes were there when the daemon was ended, looked for from outside.
    """

    session: str
    state_dir: str | None
    steps: list[Step]
    thread: list[Message]
    left: int
    seconds: float

    @property
    def proven(self) -> bool:
        """True if nothing was left, and each receipt says so."""
        return not self.left and all(step.receipt.complete and not step.left for step in self.steps)


def show_demo(state_dir: str | None, *, as_json: bool) -> ExitCode:
    """Play it, and show it as it goes; with `as_json` print a `Story` at the end. Main thread.

    Args:
        state_dir: an empty or a new directory, which is kept with all records; None: a temporary one.
        as_json: print one document.

    Raises:
        Invalid: the directory is not empty.
        EndedBy: a signal came; everything was ended and removed.
        DemoFailed: a step failed, or took too long.
    """
    began = time.monotonic()
    out = _Out(silent=as_json)
    with _ended_by_signals(), _folder(state_dir) as folder, _Daemon(folder) as daemon:
        steps, thread = _Play(daemon, out).play()
        kept = None if state_dir is None else str(folder)
        daemon.end()
        left, took = len(daemon.alive()), round(time.monotonic() - began, 3)
        story = Story(daemon.session, kept, steps, thread, left, took)
    if as_json:
        print_json(story)
    else:
        out.end(story)
    return ExitCode.OK if story.proven else ExitCode.FAILED


class _Play:
    """The steps, in order."""

    def __init__(self, daemon: _Daemon, out: _Out) -> None:
        self._daemon = daemon
        self._out = out

    def play(self) -> tuple[list[Step], list[Message]]:
        """Play it; returns the steps, and the thread at the end."""
        self._out.title("A daemon, with an agent whose model is a script on this machine")
        session = self._start()
        self._out.title(f"A message: {BUILD}")
        first = self._jobs(self._send(session, BUILD), JOBS)
        self._out.title(f"A new message takes over: {TEST}")
        asked = time.monotonic()
        second = self._send(session, TEST)
        answered = time.monotonic() - asked
        steps = [self._ended(session, "taken over", first, answered)]
        speaks = self._at(second, EventKind.TEXT) - self._at(second, EventKind.MESSAGE)
        steps[0].seconds["spoke"] = round(speaks, 4)
        self._out.step(steps[0], receipt=True)
        seen = self._jobs(second, 1)
        self._out.title("A Stop")
        asked = time.monotonic()
        session.ask(Stop(source="user.demo", reason="enough", run_id=second))
        steps.append(self._ended(session, "stopped", seen, time.monotonic() - asked))
        self._out.step(steps[-1])
        self._out.title(f"A message, and then a kill -9 of the daemon: {AGAIN}")
        seen = self._jobs(self._send(session, AGAIN), JOBS)
        steps.append(self._killed(seen))
        self._out.step(steps[-1])
        session = AttachedSession(self._daemon.api, self._daemon.session)
        self._out.title(f"A message: {ASK}")
        asked = time.monotonic()
        run_id = self._send(session, ASK)
        steps.append(self._ended(session, "answered", (run_id, set()), time.monotonic() - asked))
        thread = self._daemon.records.thread(self._daemon.session)
        self._out.thread(thread)
        return steps, thread

    def _start(self) -> AttachedSession:
        took = self._daemon.start()
        self._out.line(f"it answers after {took:.2f} s")
        return AttachedSession(self._daemon.api, self._daemon.session)

    def _send(self, session: AttachedSession, content: str) -> str:
        run_id = session.ask(NewMessage(content=content)).run_id
        assert run_id is not None, "nothing waits before it"
        return run_id

    def _jobs(self, run_id: str, jobs: int) -> tuple[str, set[int]]:
        """Wait until the jobs of a run are at work; returns it, and the processes that are seen from outside."""

        def at_work() -> bool:
            events = self._events(run_id)
            speaking = {event.data["call_id"] for event in events if event.kind == EventKind.TOOL_OUTPUT}
            return len(speaking) == jobs

        _until(at_work, "jobs at work")
        said = "".join(event.data["text"] for event in self._events(run_id) if event.kind == EventKind.TEXT)
        seen = self._daemon.alive(FENCE)
        self._out.line(f"the model: {said}")
        self._out.line(f"{plural(jobs, 'call is', 'calls are')} at work, in {len(seen)} processes")
        return run_id, seen

    def _ended(self, session: AttachedSession, what: str, found: tuple[str, set[int]], answered: float) -> Step:
        run_id, seen = found
        receipt = session.receipt(run_id, timeout=STEP_S)
        listed = {row.pid for row in _rows(receipt.rows)}
        left = len((seen | listed) & self._daemon.alive())
        seconds = {"answered": answered, "proven": receipt.ended_at - receipt.fenced_at}
        if receipt.provenance is None:
            del seconds["proven"]
        return Step(what, run_id, len(seen), left, {name: round(took, 4) for name, took in seconds.items()}, receipt)

    def _killed(self, found: tuple[str, set[int]]) -> Step:
        run_id, seen = found
        asked = time.monotonic()
        self._daemon.kill()
        with contextlib.suppress(_Late):
            _until(lambda: not self._daemon.alive(), "the end of what the daemon had")
        gone, left = time.monotonic() - asked, len(self._daemon.alive())
        started = self._daemon.start()
        receipt = AttachedSession(self._daemon.api, self._daemon.session).receipt(run_id, timeout=STEP_S)
        seconds = {"gone": round(gone, 4), "started": round(started, 4)}
        return Step("killed with the daemon", run_id, len(seen), left, seconds, receipt)

    def _events(self, run_id: str) -> list[Any]:
        return list(self._daemon.records.events(self._daemon.session, 0, run_id))

    def _at(self, run_id: str, kind: str) -> float:
        """Return when the first event of a kind was, of a run; it is waited for."""
        found: list[float] = []

        def there() -> bool:
            found[:] = [event.at for event in self._events(run_id) if event.kind == kind]
            return bool(found)

        _until(there, f"the first {kind} of a run")
        return found[0]


def _rows(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        yield row
        yield from _rows(row.rows)


class _Daemon:
    """A daemon of the demo's own, which is killed at the end of the `with`.

    Args:
        folder: where its state is, and its configuration and its output beside that.
    """

    def __init__(self, folder: Path) -> None:
        self.session = f"demo-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._root = Path(__file__).parents[3]
        self.api: Api
        self.records: RemoteRecords
        (folder / "countermand.toml").write_text(CONFIGURATION.format(path=self._root, session=self.session))

    def start(self) -> float:
        """Start it, and wait until it answers. Returns the seconds that this took."""
        began = time.monotonic()
        given = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        for name in ("NOTIFY_SOCKET", "RUNTIME_DIRECTORY", "LISTEN_FDS", "LISTEN_PID"):
            given.pop(name, None)
        state_dir = self._folder / "state"
        argv = [sys.executable, "-m", "supervisor.console", "serve", "--state-dir", str(state_dir)]
        argv += ["--config", str(self._folder / "countermand.toml")]
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**given, "PYTHONPATH": str(self._root)},
                start_new_session=True,
            )
        found: list[Api] = []

        def answers() -> bool:
            if self._process is not None and self._process.poll() is not None:
                said = (self._folder / "output").read_text(errors="replace")[-2_000:]
                raise DemoFailed(f"the daemon of the demo has ended: {said}")
            endpoint = Endpoint(state_dir)
            with contextlib.suppress(NoDaemon):
                found.extend([Api(endpoint, on_wait=lambda _: None)] if endpoint.is_listening() else [])
            return bool(found)

        _until(answers, "an answer of the daemon")
        self.api, self.records = found[0], RemoteRecords(found[0])
        return time.monotonic() - began

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def alive(self, name: str | None = None) -> set[int]:
        """The processes that have the session in their environment, or in this variable: jobs, and hosts of the agent.

        They are looked for from outside. The daemon has no such variable.
        """
        import psutil

        found = set()
        for process in psutil.process_iter(["environ", "status"]):
            environ = process.info["environ"] or {}
            values = environ.values() if name is None else [environ.get(name, "")]
            if process.info["status"] != psutil.STATUS_ZOMBIE and any(self.session in value for value in values):
                found.add(process.pid)
        return found

    def __enter__(self) -> _Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End it, and wait until nothing that it had is left."""
        self.kill()
        with contextlib.suppress(_Late):
            _until(lambda: not self.alive(), "the end of what the daemon had")


class DemoFailed(CountermandError):
    """A step of the demo failed."""

    code = "demo_failed"


class _Late(DemoFailed):
    """Something did not come in `STEP_S` seconds."""


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + STEP_S
    while not condition():
        if time.monotonic() > end:
            raise _Late("a step of the demo takes too long", expected=what, got=f"nothing for {STEP_S:g} s")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def _folder(chosen: str | None) -> Iterator[Path]:
    """Give the directory of the demo: a temporary one is removed."""
    if chosen is not None:
        folder = Path(chosen).absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Invalid(
                "the directory of --state-dir is not empty",
                expected="a new one, for the demo alone",
                got=str(folder),
                remedy="name another one, or leave it out for a temporary one",
            )
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="countermand-demo-"))
    try:
        yield folder
    finally:
        # Processes that end may still write there.
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise EndedBy where a signal comes that would end this process without its clean-up; the first one counts."""

    def end(number: int, _: object) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise EndedBy(number)

    before = {
        one: signal.getsignal(one)
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(one) is not signal.SIG_IGN
    }
    for one in before:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Out:
    """What people see, as it goes."""

    def __init__(self, *, silent: bool) -> None:
        self._out = None if silent else console()
        self._number = 0

    def title(self, text: str) -> None:
        """Begin a step."""
        self._number += 1
        if self._out is not None:
            heading(self._out, f"{self._number}  {text}")

    def line(self, text: str) -> None:
        """Say something of a step."""
        if self._out is not None:
            say(self._out, f"   {text}")

    def step(self, step: Step, *, receipt: bool = False) -> None:
        """Say how a step came out, with the rows of its receipt if they are asked for."""
        for name, took in step.seconds.items():
            self.line(f"{took * 1000:.0f} ms {WORDS[name]}" if took < 1 else f"{took:.2f} s {WORDS[name]}")
        ended = "the agent itself" if step.receipt.provenance is None else cause(step.receipt.provenance)
        self.line(f"of {step.processes} processes {step.left} are left, looked for from outside; ended by {ended}")
        complete = "everything ended" if step.receipt.complete else "NOT everything ended"
        self.line(f"receipt {step.receipt.receipt_id}: {complete}, {step.receipt.reaped} processes proven dead")
        if receipt and self._out is not None:
            for line in table(step.receipt, self._out.width, colour=False).splitlines()[:-1]:
                self.line(line)

    def thread(self, thread: list[Message]) -> None:
        """Show the thread, as the next model call sees it."""
        if self._out is not None:
            print_messages(self._out, thread)

    def end(self, story: Story) -> None:
        """Say what it all came to."""
        dead = sum(step.receipt.reaped for step in story.steps)
        proof = f"{dead} processes proven dead, none left" if story.proven else "NOT everything is proven to have ended"
        kept = "its directory is removed" if story.state_dir is None else f"its records: {story.state_dir}/state"
        if self._out is not None:
            say(self._out, f"{proof}, in {story.seconds:.1f} s; {kept}", "bold")
