"""HostProcesses: the process trees that a host asks for.

Theory of operation. A host only asks for a tree. The actor of the run, or of the call whose fence is named, does what
it does for an agent or a tool in this process. So the gate, the permit, the limits and the ends are the same. The
handle that the actor gives stays here; the host has the id of the tree.

Each report to the host is sent once: the answer to `spawn` when the command runs, and `process` when it has exited. For
`process.wait` the exits of the last EXITS_MAX commands are kept. Reports count as answers do: a host that does not read
them is not read either.

Everything is on the thread of all channels. Handles are settled on other threads, which post here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from msgspec import structs

from actors.errors import CountermandError, Invalid, RunCancelled
from actors.plugin.pipes import STREAMS, Theirs
from actors.plugin.spawning import LOG, Exit, Process, Spawn, checked
from actors.text import storable
from supervisor.hosts import frames
from supervisor.hosts.calls import refuse
from supervisor.hosts.frames import Params
from supervisor.hosts.lines import Code, Request

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore
    from supervisor.hosts.around import Around
    from supervisor.hosts.late import LateFrames
    from supervisor.hosts.peer import Peer

EXITS_MAX: Final = 64
"""How many handles of trees whose command has exited are kept, with at most 64 KiB of output each."""

KILLS_MAX: Final = 8
"""How often a host may kill one tree, each time with less grace; the next time that is at once."""

LATE: Final = {frames.SpawnProcess: "spawn", frames.KillProcess: "kill", frames.HandOverProcess: "hand_over"}
"""The receipt's names for late requests. A late wait has no effect, and is not counted."""

ProcessRequest = (
    frames.SpawnProcess | frames.WaitForProcess | frames.LookAtProcesses | frames.KillProcess | frames.HandOverProcess
)


def run_fence(fence: str) -> str:
    """Return the fence of the run of a fence, which may be that of one of its calls."""
    return fence[: fence.rfind(":") + 1]


class HostProcesses:
    """The process trees of one run in a host. Thread of all channels only.

    Args:
        turn: the run's turn.
        around: see there.
        peer: the host.
        late: of the run.
        spawn_of: returns the Spawn of a call that the host executes, by its fence.
    """

    def __init__(
        self,
        turn: TurnCore,
        around: Around,
        peer: Peer,
        late: LateFrames,
        spawn_of: Callable[[str], Spawn | None],
    ) -> None:
        self._turn = turn
        self._around = around
        self._peer = peer
        self._late = late
        self._spawn_of = spawn_of
        # Each with the fence of its request.
        self._open: dict[str, tuple[Process, str]] = {}
        # Of those whose command has exited, the oldest first.
        self._exited: dict[str, tuple[Process, str]] = {}
        # Of those that were killed: how often, and the least grace.
        self._killed: dict[str, tuple[int, float]] = {}
        self._waits: dict[int, Request] = {}
        # By request, until its answer: what is about to start.
        self._asked: dict[int, Process] = {}
        # Of the last answers to `spawn`, the oldest first: the host may give one up before it has read it.
        self._answered: dict[int, Process] = {}

    def requested(self, request: Request, params: Params) -> None:
        """Handle a request: of the run, or of a call that the host executes."""
        try:
            match params:
                case frames.SpawnProcess():
                    self._spawn(request, params)
                case frames.WaitForProcess():
                    self._wait(request, self._known(params))
                case frames.LookAtProcesses():
                    self._look(request, params.fence)
                case frames.KillProcess():
                    self._kill(request, self._known(params), params.grace_s)
                case frames.HandOverProcess():
                    self._hand_over(request, self._known(params))
                case _:
                    raise AssertionError(f"{type(params).__name__} is of no process")
        except (RunCancelled, CountermandError) as error:
            self._refuse(request, params, error)

    def _refuse(self, request: Request, params: Params, error: BaseException) -> None:
        kind = LATE.get(type(params))
        if kind is not None and isinstance(error, RunCancelled):
            self._late.note(kind)
        refuse(self._peer, request, error)

    def close(self) -> None:
        """Forget the trees: the run is over, and the host gets only the answers to open requests."""
        self._open.clear()
        self._exited.clear()
        self._killed.clear()
        self._answered.clear()

    # ── Starting ──────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, request: Request, params: frames.SpawnProcess) -> None:
        spawn = self._spawn_for(params.fence)
        if spawn is None:
            self._peer.refuse(request.id, Code.STALE, "the call has ended")
            return
        spec = checked(
            params.argv,
            params.cwd,
            params.env,
            params.name,
            params.pty,
            params.pty_size,
            params.pipes.get("stdin", params.stdin),
            params.pipes.get("stdout", LOG),
            params.pipes.get("stderr", LOG),
        )
        if request.given is not None and not params.pipes:
            request.given.close()
        if params.pipes:
            spec = structs.replace(spec, ends=_ends(params, request))
        process = self._asked[request.id] = spawn.begin(spec, params.owner)
        self._when_done(process._started, lambda started: self._started(request, params, process, started))

    def _spawn_for(self, fence: str) -> Spawn | None:
        """Return the Spawn of the run, or of a call that the host executes; None: that has ended."""
        self._turn.token.raise_if_cancelled()
        return self._turn.spawn if fence == self._turn.address.fence else self._spawn_of(fence)

    def _started(self, request: Request, params: frames.SpawnProcess, process: Process, started: Future[int]) -> None:
        token, error = self._turn.token, started.exception()
        if self._asked.get(request.id) is not process:
            # It was given up: it has its answer, and the tree is being ended. Another spawn may have its id by now.
            return
        del self._asked[request.id]
        if error is None and token.provenance is not None:
            # It ends with the run, and the answer says so.
            error = RunCancelled(token.provenance)
        if error is not None:
            refuse(self._peer, request, error)
            return
        self._answered[request.id] = process
        while len(self._answered) > EXITS_MAX:
            del self._answered[next(iter(self._answered))]
        self._open[process.process_id] = process, params.fence
        self._peer.answer(request.id, frames.Spawned(process=process.process_id, pid=started.result()))
        self._when_done(process._exited, lambda exited: self._report_exit(params.fence, process, exited))

    def _report_exit(self, fence: str, process: Process, exited: Future[Exit]) -> None:
        """Report to the host that the command has exited, or that the tree was lost."""
        process_id = process.process_id
        if self._open.pop(process_id, None) is None or self._turn.token.cancelled:
            # The host knows of the end of the run, which ends all trees.
            return
        self._exited[process_id] = process, fence
        while len(self._exited) > EXITS_MAX:
            oldest = next(iter(self._exited))
            del self._exited[oldest]
            self._killed.pop(oldest, None)
        error = exited.exception()
        if error is None:
            news = frames.ProcessNews(fence=fence, process=process_id, news="exited", exit=_exit(exited.result()))
        else:
            news = frames.ProcessNews(fence=fence, process=process_id, news="lost", note=storable(str(error)))
        self._peer.notify("process", news, is_answer=True)

    # ── Its handle ────────────────────────────────────────────────────────────────────────────────

    def _known(self, params: frames.WaitForProcess | frames.KillProcess | frames.HandOverProcess) -> Process:
        """Return the handle of a process; a request for it has the fence of the run, or that of its call."""
        self._turn.token.raise_if_cancelled()
        process_id = params.process
        process, fence = self._open.get(process_id) or self._exited.get(process_id) or (None, "")
        if process is None or params.fence not in (fence, self._turn.address.fence):
            raise Invalid(
                "this run has no such process",
                expected=f"the id of one that it has started; of those that have exited, one of the last {EXITS_MAX}",
                got=storable(process_id[:100]),
                remedy="use the id from the answer to spawn",
            )
        return process

    def _look(self, request: Request, fence: str) -> None:
        spawn = self._spawn_for(fence)
        if spawn is None:
            self._peer.refuse(request.id, Code.STALE, "the call has ended")
            return
        spawn.raise_if_cancelled()
        self._peer.answer(request.id, frames.Empty())

    def _wait(self, request: Request, process: Process) -> None:
        self._waits[request.id] = request
        self._when_done(process._exited, lambda exited: self._waited(request, exited))

    def _waited(self, request: Request, exited: Future[Exit]) -> None:
        if self._waits.get(request.id) is not request:
            # It was given up, and has its answer.
            return
        del self._waits[request.id]
        error = exited.exception()
        if error is not None:
            refuse(self._peer, request, error)
        else:
            self._peer.answer(request.id, _exit(exited.result()))

    def give_up(self, request_id: int) -> None:
        """End a wait that the host has given up: for an exit, then the process goes on; or for a start, then it ends.

        The answer to a spawn may be on its way: then the host drops it.
        """
        asked, answered = self._asked.pop(request_id, None), self._answered.pop(request_id, None)
        process = asked or answered
        if process is not None:
            process._give_up()
        if asked is not None or self._waits.pop(request_id, None) is not None:
            self._peer.refuse(request_id, Code.CANCELLED, "it is not waited for any more")

    def used_again(self, request_id: int) -> None:
        """A new request has this id: from here on the host gives up that one, and no spawn that had it before."""
        self._answered.pop(request_id, None)

    def _kill(self, request: Request, process: Process, grace_s: float) -> None:
        """Kill a tree. Again with no less grace this does nothing, so a host cannot fill the mailbox of its run."""
        times, least_s = self._killed.get(process.process_id, (0, math.inf))
        if grace_s < least_s:
            grace_s = grace_s if times < KILLS_MAX else 0.0
            self._killed[process.process_id] = times + 1, grace_s
            process.kill(grace_s)
        self._peer.answer(request.id, frames.Empty())

    def _hand_over(self, request: Request, process: Process) -> None:
        handed = process._begin_hand_over()
        self._when_done(handed, lambda done: self._handed_over(request, done))

    def _handed_over(self, request: Request, handed: Future[None]) -> None:
        error = handed.exception()
        if error is not None:
            refuse(self._peer, request, error)
        else:
            self._peer.answer(request.id, frames.Empty())

    def _when_done(self, future: Future[Exit] | Future[int] | Future[None], then: Callable[..., None]) -> None:
        future.add_done_callback(lambda done: self._around.post(lambda: then(done)))


def _ends(params: frames.SpawnProcess, request: Request) -> Theirs:
    """Return the ends of pipes that came with a request."""
    streams = [stream for stream in STREAMS if stream in params.pipes]
    given = (request.given and request.given.take()) or {}
    ends = Theirs(dict(zip(streams, given.values(), strict=False)))
    if len(given) != len(streams):
        for fd in [*given.values()][len(streams) :]:
            os.close(fd)
        ends.close()
        raise Invalid(
            "the pipes of a command did not come",
            expected=f"{len(streams)} descriptors with the first byte of the frame, for {', '.join(streams)}",
            got=f"{len(given)}",
            remedy="send them with SCM_RIGHTS",
        )
    return ends


def _exit(done: Exit) -> frames.ProcessExit:
    return frames.ProcessExit(**structs.asdict(done))
