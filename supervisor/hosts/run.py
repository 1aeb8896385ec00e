"""HostRun: one run in a host. It converts frames to actions of the run's turn, and back.

Theory of operation. A host only asks. Its frames go to the run's actor under the run's address, as from an agent in
this process, and the session accepts or refuses them. So a frame of a run that has ended has no effect, however late
it comes.

*The cancel.* The run's token is cancelled inside its fence. The effects of the fence (a refused call, a result) are
posted to this thread after that. `first` checks the token before anything is written to the host, so the cancel is the
first frame after the fence (W3), in any order of the token's wakers. If the host did not get the run before the fence,
it gets nothing: its run ends at once.

*The end.* `finish` is called once: with the host's answer to `run`, or with its failure. From then on frames of the
run are not accepted (W5). But each open request of the host is still answered, and calls that the host executes end
with its answer, or with its process (W9).

Everything but the constructor runs on the thread of all channels.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, Raw

from actors.errors import CountermandError, RunCancelled
from actors.events import Emitted, ProgressData, TypingData
from actors.messages import Said, SaidTogether
from actors.model import Address, How, Message
from actors.parts import MediaPart
from actors.plugin.execution import AgentDone, plain
from actors.plugin.turn_core import hand_off_to
from actors.text import storable
from supervisor.hosts import frames
from supervisor.hosts.account import Account
from supervisor.hosts.answers import HostAnswers
from supervisor.hosts.attachments import HostAttachments
from supervisor.hosts.calls import HostCalls, cancel_of, raised, refuse
from supervisor.hosts.frames import CANCEL_REQUEST, Params
from supervisor.hosts.guards import HostGuards
from supervisor.hosts.late import LateFrames
from supervisor.hosts.lines import Answer, Code, NotAFrame, Notification, Request
from supervisor.hosts.processes import HostProcesses

if TYPE_CHECKING:
    from actors.events import TextData
    from actors.gate.token import CancelToken
    from actors.hosts import ToolOffer
    from actors.plugin.turn_core import TurnCore
    from supervisor.hosts.around import Around, Terms
    from supervisor.hosts.channel import Unsent
    from supervisor.hosts.peer import Peer

_KILLED: Final = {-signal.SIGKILL: How.SIGKILL, -signal.SIGTERM: How.SIGTERM}

TOGETHER_MAX: Final = 16
"""How many texts go to the session in one message. A Stop waits for a turn of it, which is a few messages."""

Finish = Callable[[AgentDone], None]

OfAnswer = frames.BeginAnswer | frames.KeepBlock | frames.EndAnswer | frames.LeaveAnswer
OfRun = frames.Emit | frames.Progress | frames.Typing | frames.GiveUp | frames.GuardDone | OfAnswer
"""The notifications about a run."""

OfRunAlone = (
    frames.Call
    | frames.Ask
    | frames.Delegate
    | frames.Steering
    | frames.ReadAttachment
    | frames.KeepMedia
    | frames.SaveState
    | frames.HandOff
)
"""The requests that name a run, and none of its calls."""


class HostRun:
    """One run in a host.

    Args:
        turn: the run's turn.
        tools: the daemon's tools that the agent may call.
        finish: called once, with the end of the agent.
        terms: the limits of the run.
        around: see there.
        known: the thread of the last run of this host, if the host still has it.
    """

    def __init__(
        self,
        turn: TurnCore,
        tools: Sequence[ToolOffer],
        finish: Finish,
        terms: Terms,
        around: Around,
        known: Sequence[Message] = (),
    ) -> None:
        self.fence = turn.address.fence
        self.late = LateFrames(turn, around)
        # As it was when the run began.
        self.thread = turn.messages()
        self._turn = turn
        self._finish: Finish | None = finish
        self._terms = terms
        self._around = around
        self._peer: Peer | None = None
        self._account: Account | None = None
        self._calls: HostCalls | None = None
        self._answers = HostAnswers(turn)
        self._processes: HostProcesses | None = None
        self._guards: HostGuards | None = None
        self._attachments: HostAttachments | None = None
        self._request: tuple[int, Unsent] | None = None
        # Texts that were read and not passed on yet.
        self._texts: list[Said] = []
        self._said_cancel = False
        # True once the host has answered with a value.
        self.returned = False
        # Encoded here: a thread may be long, and the thread of all channels serves the other hosts too.
        self._params = msgspec.json.encode(_params(turn, tools, terms, self.thread, _same(known, self.thread)))
        # The cancel may come, and end this run, before `add_waker` returns.
        self._forget_token: Callable[[], None] = lambda: None
        self._forget_token = turn.token.add_waker(lambda: self._post(self._cancelled))

    def _post(self, call: Callable[[], None]) -> None:
        self._around.post(call)

    @property
    def over(self) -> bool:
        """True once the end of the agent was reported."""
        return self._finish is None

    @property
    def cancelled(self) -> bool:
        """True once its token is cancelled."""
        return self._turn.token.cancelled

    @property
    def sent(self) -> bool:
        """True once the run was sent to the host."""
        return self._request is not None

    @property
    def executing(self) -> bool:
        """True while the host executes a call of the run, even after the run's end."""
        return self._calls is not None and self._calls.executing

    # ── Its beginning, its cancel, its end ────────────────────────────────────────────────────────

    def begin(self, peer: Peer, *, counts_credit: bool) -> None:
        """Send the run to the host, which has said hello. `counts_credit`: the host counts its credit."""
        if self.over:
            return
        if self._turn.token.cancelled:
            self._cancelled()
            return
        self._peer = peer
        self._account = Account(self._turn, self._terms, self._around, peer, counts=counts_credit)
        self._calls = HostCalls(self._turn, self._terms, self._around, peer, self._account, self.late)
        self._processes = HostProcesses(self._turn, self._around, peer, self.late, self._calls.spawn)
        self._guards = HostGuards(peer, self.late, self._around.broke_protocol, self._token)
        self._attachments = HostAttachments(self._turn, peer, self.late, self._post)
        params, self._params = self._params, b""
        self._request = peer.request("run", Raw(params), self._answered)

    def first(self) -> None:
        """Write the cancel, unless it was written. It is the first frame after the fence."""
        if self._said_cancel or self._request is None or not self._turn.token.cancelled:
            return
        self._said_cancel = True
        assert self._peer is not None, "the host has the run"
        assert self._calls is not None, "the host has the run"
        assert self._account is not None, "the host has the run"
        number, frame = self._request
        cancel = cancel_of(number, self.fence, self._turn.token, self._terms.grace_s)
        self._peer.notify_first(CANCEL_REQUEST, cancel, frame)
        self._calls.withdraw()
        # Not here: this is in the middle of writing something else.
        self._around.post(self._account.release)

    def _cancelled(self) -> None:
        """Handle the cancel of the run's token."""
        if self.over:
            return
        if self._request is None or (self._peer is not None and self._peer.take_back(*self._request)):
            # The host did not get the run, so no code of the agent has run.
            self._end(AgentDone(How.CANCELLED, None, None))
        else:
            self.first()

    def _answered(self, answer: Answer) -> None:
        """Handle the host's answer to `run`: the agent has ended."""
        error = answer.error
        if error is None:
            try:
                value = frames.converted(answer.result, frames.RunDone).value
            except NotAFrame as wrong:
                self._around.broke_protocol(f"its answer to run does not fit: {wrong}")
                return
            self.returned = True
            self._end(AgentDone(How.RETURNED, plain(value, self._terms.content_max_bytes), None))
        elif error.code != Code.CANCELLED:
            self._end(AgentDone(How.RAISED, None, raised(error)))
        elif self._turn.token.cancelled:
            self._end(AgentDone(How.CANCELLED, None, None))
        else:
            self._end(AgentDone(How.RAISED, None, "the agent ended as cancelled, but its run was not cancelled"))

    def lost(self, why: str, status: int | None = None) -> None:
        """End the run: its host has ended, with `status` if that is known, or its channel is closed."""
        if not self._turn.token.cancelled:
            self._end(AgentDone(How.RAISED, None, why))
        elif status in _KILLED:
            self._end(AgentDone(_KILLED[status], None, None))
        else:
            # It was cancelled, and has ended. An exit without an answer is an end too.
            self._end(AgentDone(How.RAISED if status is None else How.CANCELLED, None, why))

    def host_gone(self, why: str) -> None:
        """End the calls that the host executed: its process has ended, and with it their code."""
        if self._calls is not None:
            self._calls.host_gone(why)
        self.late.tell()

    def _end(self, done: AgentDone) -> None:
        self.pass_on()
        finish, self._finish = self._finish, None
        if finish is None:
            return
        self._forget_token()
        self._params = b""
        if self._account is not None:
            self._account.close()
        if self._processes is not None:
            self._processes.close()
        if self._attachments is not None:
            self._attachments.close()
        self.late.tell()
        self._around.over()
        finish(done)

    # ── Frames of the host ────────────────────────────────────────────────────────────────────────

    def notified(self, params: OfRun, frame: Notification) -> None:
        """Handle a notification of this run, which came in this frame."""
        assert self._calls is not None, "the host has the run"
        assert self._processes is not None, "the host has the run"
        assert self._guards is not None, "the host has the run"
        size = frame.size
        match params:
            case frames.Emit():
                self._emit(params, size)
            case frames.Progress():
                self._progress(params, size)
            case frames.Typing():
                self._say(TypingData(), size)
            case frames.GiveUp():
                self._calls.give_up(params.request_id)
                self._processes.give_up(params.request_id)
            case frames.GuardDone():
                self._guards.done(params)
            case _:
                self._answer(params, frame)

    def used_again(self, request_id: int) -> None:
        """Take note that a request of the host has this id, whatever it is; see `HostProcesses.used_again`."""
        if self._processes is not None:
            self._processes.used_again(request_id)

    def requested(self, request: Request, params: Params) -> None:
        """Handle a request of this run."""
        assert self._calls is not None, "the host has the run"
        assert self._processes is not None, "the host has the run"
        assert self._guards is not None, "the host has the run"
        if isinstance(params, frames.Call):
            try:
                answer = self._answers.of_call(params)
            except CountermandError as error:
                self._broke_answer("its call", error)
                return
            self._calls.requested(request, params, answer)
        elif isinstance(params, frames.Ask):
            self._calls.asked(request, params)
        elif isinstance(params, frames.Delegate):
            self._calls.delegated(request, params)
        elif isinstance(params, frames.Steering):
            self._steer(request)
        elif isinstance(params, frames.ReadAttachment):
            assert self._attachments is not None, "the host has the run"
            self._attachments.requested(request, params)
        elif isinstance(params, frames.KeepMedia):
            self._media(request, params)
        elif isinstance(params, frames.SaveState):
            self._save(request, params)
        elif isinstance(params, frames.HandOff):
            self._hand_off(request, params)
        elif isinstance(params, frames.Guard):
            self._guards.requested(request, params)
        else:
            self._processes.requested(request, params)

    def give_back(self, size: int) -> None:
        """Give back the credit of a frame that had no effect."""
        if self._account is not None:
            self._account.give_back(size)

    def _emit(self, params: frames.Emit, size: int) -> None:
        assert self._account is not None, "the host has the run"
        text = storable(params.text)
        text_bytes = len(text.encode())
        try:
            data = self._answers.text(params.answer, text)
        except CountermandError as error:
            self._broke_answer("its text", error)
            return
        address = self._address_of(params.fence)
        if address is None:
            self._of_no_call(data, size)
            return
        if address is not self._turn.address:
            data = msgspec.structs.replace(data, call=address.call)
        if not text:
            self._account.give_back(size)
        elif self._account.counts and text_bytes <= frames.TEXT_MAX_BYTES:
            self._account.spend(size, lambda: self._keep(Said(address, data, size)))
        elif text_bytes <= frames.TEXT_MAX_BYTES:
            self._say(data, size, address=address)
        elif self._account.counts:
            limit = frames.TEXT_MAX_BYTES
            self._around.broke_protocol(f"it emitted {text_bytes} bytes of text at once, and the limit is {limit}")
        else:
            self._say_pieces((msgspec.structs.replace(data, text=piece) for piece in _pieces(text)), address)

    def _keep(self, said: Said) -> None:
        """Keep a text until those behind it in this piece were read; the host has its credit already."""
        self._texts.append(said)
        if len(self._texts) >= TOGETHER_MAX:
            self.pass_on()

    def pass_on(self) -> None:
        """Pass the texts on that were read: nothing that follows for now belongs with them."""
        if not self._texts:
            return
        texts, self._texts = self._texts, []
        try:
            self._turn.tell(texts[0] if len(texts) == 1 else SaidTogether(self._turn.address, tuple(texts)))
        except RunCancelled:
            for said in texts:
                self.late.note(str(said.data.event_kind))

    def _say_pieces(self, pieces: Iterator[TextData], address: Address) -> None:
        """Emit a long text, piece by piece."""
        for data in pieces:
            if not self._say(data, len(data.text.encode()), lambda: self._say_pieces(pieces, address), address):
                return

    def _address_of(self, fence: str) -> Address | None:
        """Return the address of the run, or of a call that the host executes, by its fence; None: of neither."""
        assert self._calls is not None, "the host has the run"
        if fence == self.fence:
            return self._turn.address
        return None if self._calls.token(fence) is None else self._turn.address.of_call(fence.rpartition(":")[2])

    def _of_no_call(self, data: Emitted, size: int) -> None:
        """Refuse what a tool says behind its result."""
        self.late.note(str(data.event_kind))
        self.give_back(size)

    def _answer(self, params: OfAnswer, frame: Notification) -> None:
        """Put a part of a model's answer on record."""
        try:
            if isinstance(params, frames.LeaveAnswer):
                self._answers.leave(params)
                return
            data = self._answers.part(params, mended=frame.mended)
        except CountermandError as error:
            self._broke_answer(f"its {frame.method}", error)
        else:
            self._say(data, frame.size)

    def _broke_answer(self, what: str, error: CountermandError) -> None:
        self._around.broke_protocol(f"{what} is refused: {error}")

    def _progress(self, params: frames.Progress, size: int) -> None:
        address = self._address_of(params.fence)
        try:
            shown, _ = self._turn.shown(params.data)
        except RunCancelled:
            self.late.note(str(ProgressData.event_kind))
        except CountermandError as error:
            self._around.broke_protocol(f"its progress is refused: {error}")
        else:
            self._say(shown, size, address=address) if address is not None else self._of_no_call(shown, size)

    def _say(
        self, data: Emitted, size: int, go_on: Callable[[], None] = lambda: None, address: Address | None = None
    ) -> bool:
        """Emit something for `size` bytes of credit. False: later, when there is credit; then `go_on` is called."""
        assert self._account is not None, "the host has the run"

        def say() -> None:
            try:
                self._turn.tell(Said(address or self._turn.address, data, size))
            except RunCancelled:
                self.late.note(str(data.event_kind))

        def say_later() -> None:
            say()
            go_on()

        return self._account.spend(size, say, say_later)

    def _steer(self, request: Request) -> None:
        assert self._peer is not None, "the host has the run"
        try:
            reply = self._turn.request_steering()
        except RunCancelled as error:
            self.late.note("steering")
            refuse(self._peer, request, error)
            return
        reply.add_done_callback(lambda done: self._around.post(lambda: self._steered(request, done)))

    def _token(self, fence: str) -> CancelToken | None:
        """Return the token of the run, or of a call that the host executes; None: there is no such call."""
        assert self._calls is not None, "the host has the run"
        return self._turn.token if fence == self.fence else self._calls.token(fence)

    def _save(self, request: Request, params: frames.SaveState) -> None:
        assert self._peer is not None, "the host has the run"
        try:
            changes, _ = self._turn.prepare_save(params.changes)
            reply = self._turn.request_save(changes, None)
        except (RunCancelled, CountermandError) as error:
            if isinstance(error, RunCancelled):
                self.late.note("state")
            refuse(self._peer, request, error)
            return
        reply.add_done_callback(lambda done: self._around.post(lambda: self._durable(request, done)))

    def _media(self, request: Request, params: frames.KeepMedia) -> None:
        """Have a file kept, behind the texts of its answer that were read before it."""
        assert self._peer is not None, "the host has the run"
        self.pass_on()
        try:
            part, reply = self._answers.media(params)
        except RunCancelled as error:
            self.late.note("media")
            refuse(self._peer, request, error)
        except CountermandError as error:
            self._broke_answer("its media", error)
        else:
            reply.add_done_callback(lambda done: self._around.post(lambda: self._kept(request, part, done)))

    def _kept(self, request: Request, part: MediaPart, reply: Future[None]) -> None:
        assert self._peer is not None, "the host has the run"
        error = reply.exception()
        if error is not None:
            refuse(self._peer, request, error)
        else:
            self._peer.answer(request.id, frames.Kept(part=part))

    def _hand_off(self, request: Request, params: frames.HandOff) -> None:
        assert self._peer is not None, "the host has the run"
        try:
            agent, _ = hand_off_to(params.agent)
            reply = self._turn.request_hand_off(agent, None)
        except (RunCancelled, CountermandError) as error:
            if isinstance(error, RunCancelled):
                self.late.note("hand_off")
            refuse(self._peer, request, error)
            return
        reply.add_done_callback(lambda done: self._around.post(lambda: self._durable(request, done)))

    def _durable(self, request: Request, reply: Future[None]) -> None:
        assert self._peer is not None, "the host has the run"
        error = reply.exception()
        if error is not None:
            refuse(self._peer, request, error)
        else:
            self._peer.answer(request.id, frames.Empty())

    def _steered(self, request: Request, reply: Future[tuple[Message, ...]]) -> None:
        assert self._peer is not None, "the host has the run"
        error = reply.exception()
        if error is not None:
            refuse(self._peer, request, error)
        else:
            self._peer.answer(request.id, frames.Steered(messages=reply.result()))


def _params(
    turn: TurnCore, tools: Sequence[ToolOffer], terms: Terms, thread: Sequence[Message], known: int
) -> frames.Run:
    """`known`: how many messages of the thread the host has."""
    address, span = turn.address, turn.traceparent()
    return frames.Run(
        fence=address.fence,
        session=address.session,
        generation=address.generation,
        run=address.run,
        agent=terms.agent,
        thread=tuple(thread[known:]),
        thread_from=known or UNSET,
        inputs=tuple(message.id for message in turn.inputs()),
        tools=tuple(
            frames.Offer(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in tools
        ),
        state=turn.saved(),
        credit=frames.CreditTerms(events=terms.credit_events, bytes=terms.credit_bytes),
        limits=frames.RunLimits(grace_s=terms.grace_s, deadline_s=terms.deadline_s),
        meta=UNSET if span is None else frames.RunMeta(traceparent=span),
    )


def _same(before: Sequence[Message], now: Sequence[Message]) -> int:
    """Return how many messages at the beginning of two threads are the same."""
    pairs = zip(before, now, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(now)))


def _pieces(text: str) -> Iterator[str]:
    """Divide a text into pieces that fit into one event each."""
    step = frames.TEXT_MAX_BYTES // 4
    return (text[start : start + step] for start in range(0, len(text), step))
