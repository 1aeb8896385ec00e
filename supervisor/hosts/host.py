"""Host: one process in which an agent runs, and the conversation with it.

Theory of operation. There are two sources: the warden reports on the host's process tree, and the socket has its
frames. They are kept apart (W9). A frame ends no tree. And a process that has ended may have left frames unread: they
are handled first, and only then is the host *gone*. A host that closes its socket, breaks the protocol or does not say
hello is *cut off*: its frames are not read any more, its run fails, and the owner of its tree ends that.

Each frame names its run by the fence. The host has one run at a time (W8); a frame with another fence is of a run that
is over, and has no effect (W1).

Everything but the constructor, `tell` and `hung_up` runs on the thread of all channels. The pool decides who has the
host; `state` is guarded by the pool's lock.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from loguru import logger

from actors.events import EventKind
from actors.messages import ProcessEnded, ProcessExited
from actors.model import How, Json, Message
from actors.text import cut, one_line, visible
from supervisor.hosts import frames, lines
from supervisor.hosts.frames import FROM_HOST, PROTOCOLS
from supervisor.hosts.lines import LINE_MAX_BYTES, Code, NotAFrame, Notification, Request
from supervisor.hosts.peer import REQUESTS_MAX, REQUESTS_MAX_BYTES, Peer
from supervisor.hosts.processes import ProcessRequest, run_fence
from supervisor.hosts.run import OfRun, OfRunAlone

if TYPE_CHECKING:
    import socket

    from supervisor.agent import Agent
    from supervisor.containment.reactor import Alarm, Reactor
    from supervisor.hosts.run import HostRun

EXIT_S: Final = 1.0
"""How long to wait for the end of a process after the end of its socket: its exit status is the better reason."""

LAST_FRAMES_S: Final = 1.0
"""How long to wait for the end of a socket after the end of its process: a child may have inherited it."""

PING_S: Final = 60.0
"""How often a host without a run is pinged, and how long it has to answer."""

OUTPUT_CHARS: Final = 500
"""How much of the tail of a host's output is shown with its end."""

LOG_LINES_MAX: Final = 1_000
LOG_LINE_BYTES: Final = 8_192
WHY_MAX_CHARS: Final = 300
LOG_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})

METHODS: Final = tuple(method.name for method in FROM_HOST if method.params is not frames.Hello)
"""The methods that this daemon accepts from a host that has said hello."""

_LATE: Final = {
    "emit": str(EventKind.TEXT),
    "answer.begin": str(EventKind.ANSWER_BEGUN),
    "block": str(EventKind.BLOCK),
    "media": str(EventKind.MEDIA),
    "answer.end": str(EventKind.ANSWER_ENDED),
    "progress": str(EventKind.PROGRESS),
    "typing": str(EventKind.TYPING),
    "call": "call",
    "ask": "call",
    "steering": "steering",
    "attachment": "attachment",
    "state": "state",
    "hand_off": "hand_off",
    "guard": "guard",
    "spawn": "spawn",
    "process.kill": "kill",
    "process.hand_over": "hand_over",
}
"""The methods that are counted if they come late, and what the receipt calls them."""


class HostState(StrEnum):
    """Who has a host. `starting`, and `spare` once it has said hello: no session yet."""

    STARTING = "starting"
    SPARE = "spare"
    RESERVED = "reserved"
    RUNNING = "running"
    KEPT = "kept"
    ENDING = "ending"


class Keeper(Protocol):
    """The pool, as its hosts use it. On the thread of all channels."""

    def host_ready(self, host: Host) -> None:
        """It has said hello."""

    def host_unready(self, host: Host, why: str) -> float:
        """It has not said hello so far. Returns the seconds that it still has; 0: none, it is lost."""

    def host_cut_off(self, host: Host, why: str) -> None:
        """Its channel is closed; its process may live."""

    def host_gone(self, host: Host, why: str) -> None:
        """Its process has ended, and all its frames were handled."""

    def host_ended(self, host: Host) -> None:
        """No process of its tree is left. It comes after `host_gone`."""


class Host:
    """One host.

    Args:
        reactor: the thread of all channels.
        keeper: the pool.
        spec: of its agent.
        process_id: of its tree.
        sock: the daemon's end of its socket.
        state: who has it.
        started_at: now, by the clock of durations.
    """

    def __init__(
        self,
        reactor: Reactor,
        keeper: Keeper,
        spec: Agent,
        process_id: str,
        sock: socket.socket,
        state: HostState,
        started_at: float,
    ) -> None:
        self.spec = spec
        self.process_id = process_id
        # Guarded by the pool's lock, up to `nice`.
        self._state, self.state_at = state, started_at
        self.session: str | None = None
        self.started_at = started_at
        # From when its time to say hello counts: its start, or since when a run waits for it.
        self.awaited_at = started_at
        self.ready = False
        self.ready_at = 0.0
        self.had_run = False
        # Asks the session that keeps the host to end it, for the reason `unwanted`.
        self.tell_unwanted: Callable[[str], None] | None = None
        self.unwanted = ""
        self.outdated = False
        self.lost = ""
        self.ended = False
        self.nice = 0
        self.cancelled = False
        """Its run was cancelled, so its end does not show that its agent is broken."""
        self.hello: frames.Hello | None = None
        self.refused = 0
        self.ignored = 0
        self.mcp: Mapping[str, frames.McpServerNow] = {}
        """The MCP servers that it has begun to use, by name. Never changed in place: any thread."""
        self._reactor = reactor
        self._keeper = keeper
        self._peer = Peer(reactor, sock, self)
        self._run: HostRun | None = None
        self._thread: Sequence[Message] = ()
        self._earlier: list[HostRun] = []
        self._logged = 0
        self._exit: ProcessExited | None = None
        self._end: ProcessEnded | None = None
        self._at_end = False
        self._cut_off = ""
        self._gone = ""
        self._alarm: Alarm | None = None
        self._resumed = 0
        self._ping_alarm: Alarm | None = None

    @property
    def state(self) -> HostState:
        """Who has it, since `state_at`."""
        return self._state

    @state.setter
    def state(self, state: HostState) -> None:
        if state is not self._state:
            self._state, self.state_at = state, self._reactor.now()

    @property
    def name(self) -> str:
        """Its name in texts for people."""
        name = self.spec.name
        return f"the host of {name}" if name.startswith("tool ") else f"the host of agent {name}"

    @property
    def output(self) -> str:
        """The tail of its output; known once its process has ended."""
        return self._exit.tail if self._exit is not None else ""

    def open(self) -> None:
        """Begin to listen."""
        self._alarm = self._reactor.later(self.spec.start_s, self._late_hello)
        self._peer.channel.open()

    # ── Runs ──────────────────────────────────────────────────────────────────────────────────────

    def begin(self, run: HostRun) -> None:
        """Give it a run: the host gets it at once, or after its hello; if the host has ended, the run fails."""
        if run.over:
            return
        assert self._run in (None, run), "a host has one run at a time"
        self._run = run
        if self._cut_off or self._gone:
            run.lost(self._cut_off or self._gone)
        elif self.ready:
            self._stop_pinging()
            run.begin(self._peer, counts_credit=self._can("credit"))

    def run_over(self) -> None:
        """Record that the agent has ended. Calls that the host executes may still be open."""
        if self._run is not None:
            self.cancelled = self._run.cancelled
            # Another end does not show that the host has taken the run's thread.
            self._thread = self._run.thread if self._run.returned else ()
            self._earlier = [run for run in self._earlier if run.executing]
            self._earlier.append(self._run)
            self._run = None

    @property
    def known_thread(self) -> Sequence[Message]:
        """The thread of its last run, if it keeps that for the next one. Any thread, while it has no run."""
        return self._thread if self._can("thread_from") else ()

    def _can(self, word: str) -> bool:
        return self.hello is not None and word in self.hello.can

    def _runs(self) -> list[HostRun]:
        return [*self._earlier, self._run] if self._run is not None else list(self._earlier)

    # ── Its process tree ──────────────────────────────────────────────────────────────────────────

    def hung_up(self) -> bool:
        """Return True if its process has closed the socket, as it does when it dies. Any thread."""
        return self._peer.channel.hung_up()

    def tell(self, news: object) -> None:
        """Receive a report on its tree; one may come twice. Any thread."""
        if isinstance(news, ProcessExited | ProcessEnded):
            self._reactor.post(lambda: self._heard(news))

    def _heard(self, news: ProcessExited | ProcessEnded) -> None:
        if isinstance(news, ProcessExited):
            self._exit = news
        else:
            self._end = news
        if not self._gone:
            self._look_for_the_end()
        elif self._end is not None:
            self._keeper.host_ended(self)

    def _look_for_the_end(self) -> None:
        """After the end of the process: the host is gone when all its frames were handled."""
        if self._at_end or self._peer.channel.closed:
            self._be_gone()
        else:
            self._await_last_frames()

    def _await_last_frames(self) -> None:
        self._resumed = self._peer.channel.resumed
        self._arm(LAST_FRAMES_S, self._held_open)

    def _held_open(self) -> None:
        if self._peer.channel.paused or self._peer.channel.resumed != self._resumed:
            # Its last frames wait for credit, or for the check of a call; or they did, and are not read yet.
            self._await_last_frames()
        else:
            self._be_gone()

    def _be_gone(self) -> None:
        why = self._gone = self._how_it_ended()
        self._let_go()
        if self._run is not None:
            self._run.lost(self._cut_off or why, self._exit.status if self._exit is not None else None)
        for run in self._runs():
            run.host_gone(why)
        self._earlier.clear()
        self._keeper.host_gone(self, self._cut_off or why)
        if self._end is not None:
            self._keeper.host_ended(self)

    def _how_it_ended(self) -> str:
        before = "" if self.ready else " before it said hello"
        if self._exit is None:
            assert self._end is not None, "it is gone by a report"
            if self._end.how is How.NOT_STARTED:
                return f"{self.name} could not be started: {self._end.note}{self._what_to_do()}"
            return f"{self.name} ended{before}: {self._end.note or self._end.how}"
        status = self._exit.status
        how = f"exit status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"
        output = visible(self._exit.tail.strip()[-OUTPUT_CHARS:])
        return f"{self.name} ended{before}: {how}" + (f"; its output ends:\n{output}" if output else "")

    def _what_to_do(self) -> str:
        """What to do if its program is not there; else empty."""
        note = self._end.note if self._end is not None else ""
        if not (note.startswith("cannot execute ") and note.endswith(os.strerror(errno.ENOENT))):
            return ""
        key = "command" if self.spec.run is None and self.spec.preset is None else "python"
        return f"; to do: install it, or name another in the key {key!r}"

    # ── Its frames: see `peer.Owner` ──────────────────────────────────────────────────────────────

    def first(self) -> None:
        """Write the cancel of its run ahead of anything else."""
        if self._run is not None:
            self._run.first()

    def pass_on(self) -> None:
        """Pass on what its run has said."""
        if self._run is not None:
            self._run.pass_on()

    def requested(self, request: Request) -> None:
        """Handle a request."""
        if not self.ready:
            self._say_hello(request)
            return
        if self._run is not None:
            self._run.used_again(request.id)
        if request.method == "hello":
            self.broke_protocol("it said hello twice")
            return
        if self._peer.crowded:
            data = {
                "code": "too_many",
                "expected": f"at most {REQUESTS_MAX} requests that are open, of {REQUESTS_MAX_BYTES} bytes together",
                "got": f"one more, of {request.size} bytes",
                "remedy": "wait until some of them are answered",
            }
            self._refuse(request, Code.REFUSED, "too many requests are open", data)
            return
        try:
            params = frames.host_params(request.method, request.params)
        except NotAFrame as error:
            self._refuse(request, Code.INVALID_PARAMS, str(error))
            return
        if isinstance(params, OfRunAlone):
            run = self._run_of(params.fence)
        elif isinstance(params, ProcessRequest | frames.Guard):
            # A run may be one call: see `supervisor.hosts.tool_process`.
            run = self._run_of(params.fence) or self._run_of(run_fence(params.fence))
        else:
            self._peer.refuse(request.id, Code.NO_METHOD, f"there is no request {request.method!r:.100}")
            return
        if run is not None:
            run.requested(request, params)
            return
        self._note_late(request.method, params.fence)
        self._peer.refuse(request.id, Code.STALE, "it is of a run that is over")

    def notified(self, notification: Notification) -> None:
        """Handle a notification."""
        method = notification.method
        if not self.ready:
            self.broke_protocol(f"its first frame is {method!r:.100}, and not hello")
            return
        try:
            params = frames.host_params(method, notification.params)
        except NotAFrame as error:
            shown = lines.excerpt(notification.params)
            self.broke_protocol(f"the parameters of its {method} do not fit: {error}: {shown}")
            return
        if isinstance(params, frames.Log):
            self._log(params)
        elif isinstance(params, frames.McpServerNow):
            if params.name in self.spec.mcp:
                known = msgspec.structs.replace(params, why=params.why[:WHY_MAX_CHARS])
                self.mcp = {**self.mcp, params.name: known}
        elif isinstance(params, OfRun):
            run = self._run_of(params.fence)
            if run is None and isinstance(params, frames.GuardDone | frames.Emit | frames.Progress):
                run = self._run_of(run_fence(params.fence))
            if run is not None:
                run.notified(params, notification)
            else:
                self._note_late(method, params.fence)
        else:
            self.ignored += 1

    def _refuse(self, request: Request, code: Code, message: str, data: Json = None) -> None:
        """Refuse a request that is of no known run; the credit of a call is given back."""
        if request.method in ("call", "ask") and self._run is not None:
            self._run.give_back(request.size)
        self._peer.refuse(request.id, code, message, data)

    def _run_of(self, fence: str) -> HostRun | None:
        run = self._run
        return run if run is not None and run.sent and run.fence == fence else None

    def _note_late(self, method: str, fence: str) -> None:
        """Count a frame for a run that is over; the count is in that run's receipt, if that is not filed yet."""
        kind = _LATE.get(method)
        if kind is None:
            return
        self.refused += 1
        for run in self._earlier:
            if run.fence in (fence, run_fence(fence)):
                run.late.note(kind)

    def _say_hello(self, request: Request) -> None:
        if request.method != "hello":
            self.broke_protocol(f"its first frame is {request.method!r:.100}, and not hello")
            return
        try:
            hello = frames.converted(request.params, frames.Hello)
        except NotAFrame as error:
            self.broke_protocol(f"its hello does not fit: {error}")
            return
        common = [number for number in PROTOCOLS if number in hello.protocol]
        if hello.error is not None:
            self._peer.answer(request.id, _welcome(max(common, default=PROTOCOLS[-1])))
            # It ends by itself, and its output until then says more.
            why = f"the agent {self.spec.name} cannot be loaded: {visible(cut(hello.error, LOG_LINE_BYTES))}"
            self._cut(why, exit_s=EXIT_S)
        elif not common:
            data = {"expected": list(PROTOCOLS), "got": list(hello.protocol)}
            self._peer.refuse(request.id, Code.NO_PROTOCOL, "there is no protocol that both speak", data)
            self._cut(f"{self.name} speaks protocol {data['got']}, and this daemon {data['expected']}")
        else:
            self._disarm()
            self.hello = hello
            self._keeper.host_ready(self)
            self._peer.answer(request.id, _welcome(common[-1]))
            self.idle()
            if self._run is not None:
                self.begin(self._run)

    def _late_hello(self) -> None:
        why = f"{self.name} did not say hello within {self.spec.start_s:g} s"
        left_s = self._keeper.host_unready(self, why)
        if left_s:
            self._arm(left_s, self._late_hello)
        else:
            self._cut(why)

    def broke_protocol(self, what: str) -> None:
        """Fail it for a breach of the protocol."""
        self._cut(f"host.protocol: {self.name} broke the protocol: {what}")

    def at_end(self) -> None:
        """It has closed its end of the socket."""
        if self._at_end:
            return
        self._at_end = True
        if self._exit is not None or self._end is not None:
            self._be_gone()
        else:
            self._arm(EXIT_S, lambda: self._cut(f"{self.name} closed its connection"))

    def _cut(self, why: str, *, exit_s: float = 0.0) -> None:
        """Close its channel. Its run fails; the calls that it executes end with its process.

        `exit_s`: how long its process may go on.
        """
        if self._cut_off or self._gone:
            return
        self._cut_off = why
        self._let_go()
        if self._run is not None:
            self._run.lost(why)
        if self._exit is not None or self._end is not None:
            # It broke the protocol with its last frames.
            self._be_gone()
        elif exit_s:
            self._arm(exit_s, lambda: self._keeper.host_cut_off(self, why))
        else:
            self._keeper.host_cut_off(self, why)

    def close(self, why: str) -> None:
        """Fail its run and close its channel: the supervisor ends."""
        if self._run is not None:
            self._run.lost(why)
        for run in self._runs():
            run.host_gone(why)
        self._let_go()

    def _let_go(self) -> None:
        self._disarm()
        self._stop_pinging()
        self._peer.close()

    # ── The log, and pings ────────────────────────────────────────────────────────────────────────

    def _log(self, line: frames.Log) -> None:
        self._logged += 1
        if self._logged > LOG_LINES_MAX:
            return
        level = line.level if line.level in LOG_LEVELS else "info"
        fields = "".join(f" {name}={value}" for name, value in line.fields.items())
        logger.log(level.upper(), "{}: {}", self.name, one_line(cut(line.text + fields, LOG_LINE_BYTES)))
        if self._logged == LOG_LINES_MAX:
            logger.warning("{} has logged {} lines; no more are shown", self.name, LOG_LINES_MAX)

    def idle(self) -> None:
        """Ping it from time to time while it has no run."""
        self._stop_pinging()
        if self._can("ping") and self._run is None and not self._cut_off and not self._gone:
            self._ping_alarm = self._reactor.later(PING_S, self._ping)

    def _ping(self) -> None:
        self._peer.request("ping", frames.Ping(), lambda _: self.idle())
        why = f"{self.name} has not answered for {PING_S:g} s"
        self._ping_alarm = self._reactor.later(PING_S, lambda: self._cut(why))

    def _stop_pinging(self) -> None:
        if self._ping_alarm is not None:
            self._ping_alarm.cancel()
            self._ping_alarm = None

    # ── Its timer ─────────────────────────────────────────────────────────────────────────────────

    def _arm(self, delay_s: float, call: Callable[[], None]) -> None:
        self._disarm()
        self._alarm = self._reactor.later(delay_s, call)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _welcome(protocol: int) -> frames.Welcome:
    limits = frames.WireLimits(
        line_bytes=LINE_MAX_BYTES,
        text_bytes=frames.TEXT_MAX_BYTES,
        arguments_bytes=1_048_576,
        requests=REQUESTS_MAX,
        requests_bytes=REQUESTS_MAX_BYTES,
    )
    return frames.Welcome(protocol=protocol, limits=limits, can=METHODS)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
