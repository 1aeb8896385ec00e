"""SimHosts: hosts in virtual time. What an agent does in one is the code of the scripted agent, until the host dies.

A host is a process tree of `SimProcesses`. Its code is a coroutine that says and asks through the turn of its run, as
what reads a host's frames does. Words to it take their time: that it is to run, and that its run is cancelled. Its
answer may be late, or never come; and it may die at each word that it says. Texts may go on together, a moment later.
Where its command has exited its code does not go on, and what it would have said is said to nobody.

One that is kept may have something left of an earlier run, which speaks under the fence of that run. One may lie about
the answers of models (`host_answers`): then it is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pykka import ActorDeadError

from actors.errors import described
from actors.events import TextData
from actors.hosts import HostedAgent, ToolOffer
from actors.messages import ProcessEnded, ProcessExited, ProcessNews, ProcessStarted, Said, SaidTogether
from actors.model import How, JsonObject
from actors.plugin.execution import AgentDone
from actors.plugin.turn import AsyncTurn
from actors.plugin.turn_core import TurnCore
from actors.ports import SpawnSpec
from tests.sim.host_answers import LIES, AnsweringTurn
from tests.sim.host_guards import HostGuard
from tests.sim.ids import SimIds
from tests.sim.processes import SimProcesses
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from actors.gate.token import CancelToken
    from tests.sim.executor import SimLoop

Finish = Callable[[Any], None]
SPARES: Final = 1
LATE_S: Final = 0.5
LATE: Final = 0.3
DIES: Final = 1 / 60
NEVER: Final = 1 / 25
TOGETHER: Final = 1 / 2
LINGERS: Final = 1 / 3
REPLACED: Final = 1 / 20
UNWANTED: Final = 1 / 10
ODD: Final = (("ignores_term", 0.2), ("never_dies", 0.03), ("absent", 0.03))


@dataclass(frozen=True, slots=True)
class Hosting:
    """How an agent runs in hosts: `seed` is of what they do. `calm`: they do nothing that a good host does not do."""

    seed: int
    agent: HostedAgent
    calm: bool = False


@dataclass(slots=True, eq=False)
class Host:
    """One host. `session`: the only one that it may serve; None while it was told nothing."""

    process_id: str
    agent: str
    random: Random
    code: float
    session: str | None = None
    started: bool = False
    exited: bool = False
    gone: bool = False
    core: TurnCore | None = None
    pass_on: Callable[[], None] = lambda: None
    finish: Finish | None = None
    cancelled: bool = False
    cut_off: bool = False
    old: bool = False
    unwanted: bool = False
    task: asyncio.Task[None] | None = None
    open: dict[asyncio.Task[Any], Finish] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """True from the moment in which it is told of a run to its answer."""
        return self.finish is not None

    def executes(self, closure: Coroutine[Any, Any, object], finish: Finish, loop: SimLoop) -> asyncio.Task[Any] | None:
        """Execute a call; where it has died the call fails."""
        if self.exited:
            closure.close()
            finish(RuntimeError("the host has ended"))
            return None
        task = loop.create_task(closure)
        self.open[task] = finish
        task.add_done_callback(self._executed)
        return task

    def _executed(self, task: asyncio.Task[Any]) -> None:
        finish, error = self.open.pop(task, None), None if task.cancelled() else task.exception()
        if finish is not None:
            finish(asyncio.CancelledError() if task.cancelled() else error or task.result())


class HostTurn(AnsweringTurn):
    """The turn of an agent in a host."""

    host: Host

    def guard(self, name: str, watch: Watch, call: tuple[str, CancelToken] | None = None) -> HostGuard:
        """A guard of the agent's own, or of a call that the host executes: its fence, its token."""
        return HostGuard(self, name, watch, call)


class SimHosts:
    """`actors.hosts.Hosts`.

    Args:
        hosting: which agent runs in them.
        random: what they do.
        loop: on which their code runs.
        processes: where their trees are.
        ids: of those.
        watch: asked when a host is told of a run, and when it is released.
        code: what the agent does.
    """

    def __init__(
        self,
        hosting: Hosting | None,
        loop: SimLoop,
        processes: SimProcesses,
        ids: SimIds,
        watch: Watch,
        code: Callable[[AsyncTurn], Awaitable[Any]],
    ) -> None:
        self._hosting = hosting
        self._calm = hosting is not None and hosting.calm
        self._random = Random(hosting.seed if hosting is not None else 0)
        # Of a source of its own: what else is drawn stays what it was.
        self._unwanted = Random(f"unwanted {hosting.seed if hosting is not None else 0}")
        self._lies = Random(f"lies {hosting.seed if hosting is not None else 0}")
        self._together = Random(f"together {hosting.seed if hosting is not None else 0}")
        self._loop = loop
        self._processes = processes
        self._ids = ids
        self._watch = watch
        self._code = code
        self._hosts: dict[str, Host] = {}
        # When the agent's code was last changed.
        self._changed_at = 1.0
        self._spares: dict[str, list[Host]] = {}
        # 0: none may be kept. None: what may be is drawn.
        self.kept_max: int | None = None
        # What the last run was offered.
        self.offered: Sequence[ToolOffer] = ()
        processes.on_exit = self._exited
        if hosting is not None:
            self._fill(hosting.agent.name)

    # ── The port ──────────────────────────────────────────────────────────────────────────────────

    def reserve(self, agent: str, session: str, kept: str | None = None) -> str:
        """Reserve the one that is kept, a spare, or a new one."""
        host = self._hosts.get(kept or "")
        if (
            host is not None
            and not (host.exited or host.old)
            and host.session == session
            and self._draw(self._random, 1 - REPLACED)
        ):
            return host.process_id
        spares = self._spares.setdefault(agent, [])
        chosen = spares.pop(0) if spares else self._spawn(agent)
        self._loop.call_later(self._random.random() * LATE_S, self._fill, agent)
        return chosen.process_id

    def code_changed_at(self, process_id: str) -> float | None:
        """Say which code a host has; one that is starting has loaded none."""
        host = self._hosts[process_id]
        return host.code if host.started else None

    def release(self, process_id: str) -> None:
        """Take back one that was told nothing."""
        self._watch.trees.releases(process_id)
        host = self._hosts.get(process_id)
        if host is None or host.session is not None:
            return
        if host.gone:
            self._forget(host)
        else:
            self._spares.setdefault(host.agent, []).append(host)

    def run(
        self, process_id: str, turn: TurnCore, tools: Sequence[ToolOffer], finish: Callable[[AgentDone], None]
    ) -> None:
        """Tell a host to run: the words to it take their time."""
        host = self._hosts.get(process_id)
        overlap = self._hosting is None or self._hosting.agent.overlap
        self._watch.trees.tells_host(process_id, turn.address, overlap=overlap, busy=host is not None and host.runs)
        self.offered = tools
        if host is not None and host.gone:
            del self._hosts[process_id]
        if host is None or host.exited:
            self._loop.call_soon(finish, AgentDone(How.RAISED, None, "the host had ended"))
            return
        assert host.session in (None, turn.address.session), "it serves one session"
        host.session, host.core, host.finish, host.cancelled = turn.address.session, turn, finish, False
        self._loop.call_later(self._random.random() * 0.01, self._begin, host, turn)
        turn.token.add_waker(lambda: self._soon(self._cancel, host, turn))

    def keep(self, process_id: str, session: str, unwanted: Callable[[str], None]) -> None:
        """The session keeps it; something of the run that has ended may go on in it. Too many may be kept."""
        host = self._hosts.get(process_id)
        if host is None:
            return
        assert host.session == session, "it has run there"
        if host.unwanted or (not host.runs and (self.kept_max == 0 or self._draw(self._unwanted, UNWANTED))):
            host.old = host.unwanted = True
            self._loop.call_later(self._unwanted.random(), unwanted, "too many are kept")

    def heard(self, process_id: str, news: ProcessNews) -> None:
        """A report on its tree came to whoever has it."""
        host = self._hosts.get(process_id)
        if host is None:
            return
        match news:
            case ProcessStarted():
                host.started = True
            case ProcessExited() | ProcessEnded():
                host.exited = True
                self._fail(host, f"the host of agent {host.agent} ended: {getattr(news, 'status', None)}")
            case _:
                pass
        if isinstance(news, ProcessEnded):
            host.gone = True
            if host.session is not None:
                del self._hosts[process_id]

    # ── For the world ─────────────────────────────────────────────────────────────────────────────

    def is_spare(self, process_id: str) -> bool:
        """True of the tree of a host that has no run, and belongs to no session."""
        return any(process_id == host.process_id for spares in self._spares.values() for host in spares)

    def was_told(self, process_id: str) -> bool:
        """True of the tree of a host that was told of a run."""
        host = self._hosts.get(process_id)
        return host is not None and host.session is not None

    def replace(self) -> None:
        """The code of the agent is another one: no host that has been started is reserved again."""
        self._changed_at += 1
        for host in self._hosts.values():
            host.old = True
        for spares in self._spares.values():
            for host in spares:
                self._processes.kill(host.process_id, 0.0)
            spares.clear()

    # ── The pool ──────────────────────────────────────────────────────────────────────────────────

    def _fill(self, agent: str) -> None:
        spares = self._spares.setdefault(agent, [])
        while len(spares) < SPARES:
            spares.append(self._spawn(agent))

    def _spawn(self, agent: str) -> Host:
        random = self._random
        host = Host(self._ids.new("proc"), agent, Random(random.random()), self._changed_at)
        argv = ["sim", "serves", "output=0"]
        if not self._calm:
            argv = ["sim", "serves", f"children={int(random.random() * 2)}", f"output={int(random.random() * 3)}"]
            argv += [word for word, share in ODD if random.random() < share]
        self._hosts[host.process_id] = host
        self._watch.hosts.add(host.process_id)
        self._processes.spawn(host.process_id, SpawnSpec(tuple(argv), f"host {agent}"), _Owner(self, host))  # type: ignore[arg-type]
        return host

    def spare_news(self, host: Host, news: ProcessNews) -> None:
        """A report on the tree of a host that nobody has adopted."""
        self.heard(host.process_id, news)
        if isinstance(news, ProcessEnded):
            spares = self._spares.get(host.agent, [])
            if host in spares:
                spares.remove(host)
                self._forget(host)

    def _forget(self, host: Host) -> None:
        self._processes.forget(host.process_id)
        del self._hosts[host.process_id]

    # ── In a host ─────────────────────────────────────────────────────────────────────────────────

    def _draw(self, random: Random, share: float) -> bool:
        """Draw something that happens to a share of hosts, unless they are calm: then what is likely."""
        return share > 0.5 if self._calm else random.random() < share

    def _soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def _begin(self, host: Host, core: TurnCore) -> None:
        if host.exited or host.core is not core:
            return
        if not host.started:
            self._loop.call_later(0.01, self._begin, host, core)
            return
        say, said = core._tell, list[Said]()

        def tell(message: object) -> None:
            # Of a host that has died, or was cut off, nothing is said any more.
            if host.exited or host.cut_off:
                return
            if (
                isinstance(message, Said)
                and isinstance(message.data, TextData)
                and self._draw(self._together, TOGETHER)
            ):
                if not said:
                    self._soon(pass_on)
                said.append(message)
            else:
                pass_on()
                say(message)
            if self._draw(host.random, DIES):
                self._soon(self._dies, host)

        def pass_on() -> None:
            texts = tuple(said)
            said.clear()
            if texts:
                with contextlib.suppress(ActorDeadError):
                    say(texts[0] if len(texts) == 1 else SaidTogether(core.address, texts))

        core._tell, host.pass_on = tell, pass_on
        host.task = self._loop.create_task(self._agent(host, core))
        host.task.add_done_callback(_looked_at)
        if host.cancelled:
            self._soon(self._cancel, host, core)

    async def _agent(self, host: Host, core: TurnCore) -> None:
        try:
            code = self._tool if host.agent.startswith("tool ") else self._code
            lies = self._draw(self._lies, LIES)
            turn = HostTurn(core, host, self._watch, partial(self._broke_protocol, host) if lies else None)
            done = AgentDone(How.RETURNED, await code(turn), None)
        except GeneratorExit:
            raise
        except BaseException as error:
            cancelled = core.token.cancelled and isinstance(error, asyncio.CancelledError)
            done = AgentDone(How.CANCELLED, None, None) if cancelled else AgentDone(How.RAISED, None, described(error))
        if self._draw(host.random, NEVER):
            return
        late_s = host.random.random() * LATE_S if self._draw(host.random, LATE) else 0.0
        self._loop.call_later(late_s, self._answers, host, core, done)

    async def _tool(self, turn: AsyncTurn) -> JsonObject:
        """Execute the call of a tool that has a host of its own."""
        fence, returned = turn.address.fence, False
        self._watch.executions.begins(fence, elsewhere=True)
        try:
            await asyncio.sleep(json.loads(turn.inputs[0].content)["arguments"]["seconds"])
            returned = True
        finally:
            self._watch.executions.leaves(fence, returned=returned, elsewhere=True)
        return {"content": "done", "is_error": False, "data": None}

    def _answers(self, host: Host, core: TurnCore, done: AgentDone) -> None:
        if not host.exited and host.core is core and host.finish is not None:
            finish, host.finish, host.task = host.finish, None, None
            host.pass_on()
            finish(done)
            if done.how is How.RETURNED and self._draw(host.random, LINGERS):
                self._says_more(host, core, 3)

    def _says_more(self, host: Host, core: TurnCore, times: int) -> None:
        """Something of an earlier run goes on in a host, and says under the fence of that run what it has to say."""
        if host.exited:
            return
        self._frame(host, core.address.fence, TextData(text=f"{core.address.run}:999 "))
        if times:
            self._loop.call_later(host.random.random(), self._says_more, host, core, times - 1)

    def _frame(self, host: Host, fence: str, data: TextData) -> None:
        """A word of a host comes: it counts where it is of the run that the host has."""
        core = host.core
        if core is None or core.address.fence != fence or not host.runs:
            return
        if core.credit.take(len(data.text)) is None:
            try:
                core.said(data, len(data.text))
            except asyncio.CancelledError:
                return

    def _cancel(self, host: Host, core: TurnCore) -> None:
        if host.core is not core:
            return
        host.cancelled = True
        for task in (host.task, *host.open):
            if task is not None and not task.done() and not core.token.was_raised_in(task) and not task.cancelling():
                task.cancel()

    def _broke_protocol(self, host: Host, what: str) -> None:
        """It is cut off: its run fails, and the owner of its tree ends that."""
        if not host.exited and not host.cut_off:
            host.cut_off = True
            self._watch.cut_off.add(host.process_id)
            self._fail(host, f"host.protocol: the host of agent {host.agent} broke the protocol: {what}")
            self._soon(self._dies, host)

    def _dies(self, host: Host) -> None:
        if not host.exited:
            self._processes.crash(host.process_id)

    def _exited(self, process_id: str) -> None:
        """Its command has exited: no line of its code runs any more."""
        host = self._hosts.get(process_id)
        if host is None or host.exited:
            return
        host.exited = True
        for task in (host.task, *host.open):
            coroutine = task.get_coro() if task is not None else None
            if inspect.iscoroutine(coroutine) and task is not None and not task.done():
                task.add_done_callback(_looked_at)
                coroutine.close()
        # End of file: that may come before the word of its warden, or behind it.
        self._loop.call_later(host.random.random() * 0.1, self._fail, host, "the host closed its connection")

    def _fail(self, host: Host, why: str) -> None:
        open_ones, host.open = list(host.open.items()), {}
        for _, finish in open_ones:
            finish(RuntimeError(why))
        if host.finish is not None:
            finish, host.finish = host.finish, None
            host.pass_on()
            finish(AgentDone(How.RAISED, None, why))


class _Owner:
    """Who hears of the tree of a host that nobody has adopted."""

    def __init__(self, hosts: SimHosts, host: Host) -> None:
        self._hosts = hosts
        self._host = host

    def tell(self, news: ProcessNews) -> None:
        """Take a report."""
        self._hosts.spare_news(self._host, news)


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
