"""Frames: what a daemon and a host say to one another, as structs.

A frame is one JSON-RPC 2.0 object in one line of UTF-8: see `lines`. `host_params` and `converted` convert what is
inside, strictly: nothing of a wrong type passes, and unknown fields are ignored. `docs/host-protocol.json` is generated
from the structs here. Texts are made storable where they are used, not here. It has over 600 lines, and is whole: the
structs are one contract, and its schema is made from one file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from actors.attachments import File
from actors.decoding import decoder
from actors.model import Json, JsonObject, Message, Mode, Outcome, Provenance
from actors.parts import MediaPart
from actors.run_status import RunStatus
from supervisor.hosts.lines import FAULTS, ID_MAX, NotAFrame, described

P = TypeVar("P", bound=Struct)

PROTOCOLS: Final = (1,)
"""The protocols that this daemon speaks, the oldest first."""

TEXT_MAX_BYTES: Final = 65_536
"""Limit on the text of one `emit`, in UTF-8."""

PIECE_MAX_BYTES: Final = 524_288
"""Limit on a piece of an attachment, before it is encoded."""

YEAR_10000: Final = 253_402_300_800.0
"""The end of the dates that people write, in seconds since 1970."""


# ── The objects in frames ─────────────────────────────────────────────────────────────────────────

Id = Annotated[int, Meta(ge=1, le=ID_MAX, description="Counted by the side that sends the request.")]
Fence = Annotated[
    str, Meta(description="The fencing token, as the daemon gave it: of the run, or of a call. Give it back unchanged.")
]
OfRunOrCall = Annotated[str, Meta(description="Of the run; or of a call that this host executes, whose tool says it.")]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]


class Params(Struct, frozen=True, kw_only=True):
    """What a request or a notification carries."""


class Result(Struct, frozen=True, kw_only=True):
    """The answer to a request."""


class Empty(Result, frozen=True, kw_only=True):
    """An answer that says only that it came."""


class Offer(Struct, frozen=True, kw_only=True):
    """A tool, as a model provider wants it described."""

    name: str
    description: str = ""
    parameters: Annotated[JsonObject, Meta(description="A JSON schema of its arguments.")] = field(default_factory=dict)


class CreditTerms(Struct, frozen=True, kw_only=True):
    """How much a run may say that is not durable yet."""

    events: Annotated[Count, Meta(description="Frames that cost credit.")]
    bytes: Annotated[Count, Meta(description="Bytes of their lines, without the newlines.")]


class MadeFile(Struct, frozen=True, kw_only=True):
    """A file that the agent's model, or a tool of the host, made."""

    data: Annotated[bytes, Meta(description="Its bytes, in base64.")]
    media_type: Annotated[str, Meta(description="What they are, such as `image/png`.")]
    name: Annotated[str | None, Meta(description="What people call it.")] = None

    def file(self) -> File:
        """Return it as a library gives it. Raises Invalid if a field is not valid."""
        return File(self.data, self.media_type, self.name)


# ── From the host ─────────────────────────────────────────────────────────────────────────────────


class AgentTraits(Struct, frozen=True, kw_only=True):
    """What the host says of its agent."""

    is_async: Annotated[bool, Meta(description="It is an async function.")] = field(default=False, name="async")


class Hello(Params, frozen=True, kw_only=True):
    """The host is ready: its agent is loaded. The first frame of a host; nothing may come before it."""

    protocol: Annotated[tuple[int, ...], Meta(description="The protocols that the host speaks.")]
    runtime: Annotated[str, Meta(description="What runs the agent, such as `node v20.1`. For people.")] = ""
    agent: AgentTraits = AgentTraits()
    can: Annotated[
        tuple[str, ...],
        Meta(
            description="`credit`: it keeps account of its credit. `ping`: it answers. `thread_from`: it keeps the "
            "`thread` of a run for the next one. Unknown words are ignored."
        ),
    ] = ()
    tools: Annotated[tuple[Offer, ...], Meta(description="Tools that the host executes itself. For people.")] = ()
    code_changed_at: Annotated[
        Annotated[float, Meta(ge=0.0, lt=YEAR_10000)] | None,
        Meta(description="When the file of the agent's code was last changed: seconds since 1970. Null: not known."),
    ] = None
    error: Annotated[
        str | None, Meta(description="Why the agent cannot be loaded. The host gets no run, and ends.")
    ] = None


OpenAnswer = Annotated[
    int, Meta(ge=1, le=ID_MAX, description="The number of an open answer, as the host gave it in `answer.begin`.")
]
Name = Annotated[str | None, Meta(description="At most 256 characters; it is kept as it is.")]


class Emit(Params, frozen=True, kw_only=True):
    """The agent says a text, or a tool of the host. It is in the log, and in the thread, once it is durable."""

    fence: OfRunOrCall
    text: Annotated[str, Meta(description="At most 65,536 bytes in UTF-8, from a host that can `credit`.")]
    answer: Annotated[OpenAnswer | None, Meta(description="The open answer that it is a part of; null: of none.")] = (
        None
    )


class BeginAnswer(Params, frozen=True, kw_only=True):
    """A model begins to answer: what names this answer from here on is one message of the thread."""

    fence: Fence
    answer: Annotated[
        int, Meta(ge=1, le=ID_MAX, description="Counted by the host. One that is open is not begun again.")
    ]
    provider: Annotated[Name, Meta(description="Whose model it is; its blocks are given back to that one.")] = None
    model: Annotated[Name, Meta(description="For people.")] = None


class KeepBlock(Params, frozen=True, kw_only=True):
    """Keep a block that only its provider understands, at this place of an answer, as it came."""

    fence: Fence
    answer: OpenAnswer
    data: Annotated[JsonObject, Meta(description="The whole block: at most 1 MiB as JSON.")]
    provider: Annotated[Name, Meta(description="Whose it is; null: that of the answer.")] = None


class KeepMedia(Params, frozen=True, kw_only=True):
    """Keep a file that the model made, at this place of an answer. The answer comes when it is durable."""

    fence: Fence
    answer: OpenAnswer
    file: Annotated[MadeFile, Meta(description="The file; at most 4 MiB.")]


class EndAnswer(Params, frozen=True, kw_only=True):
    """An answer is complete. Its calls start when this is durable."""

    fence: Fence
    answer: OpenAnswer
    usage: Annotated[dict[str, Count], Meta(description="What it cost, in tokens, by kind; at most 64 kinds.")] = field(
        default_factory=dict
    )
    stop: Annotated[Name, Meta(description="Why the model ended it, in its provider's words.")] = None
    provider_id: Annotated[Name, Meta(description="The provider's own id of the answer.")] = None


class LeaveAnswer(Params, frozen=True, kw_only=True):
    """An answer is left before its end: what is said of it stays, as a partial one, and none of its calls starts."""

    fence: Fence
    answer: OpenAnswer
    usage: Annotated[dict[str, Count], Meta(description="What it cost so far; as in `answer.end`.")] = field(
        default_factory=dict
    )


class Progress(Params, frozen=True, kw_only=True):
    """Show progress to those who watch; it is not stored."""

    fence: OfRunOrCall
    data: Annotated[JsonObject, Meta(description="At most 1 MiB as JSON.")]


class Typing(Params, frozen=True, kw_only=True):
    """Show that the agent is at work; it is not stored."""

    fence: Fence


class Call(Params, frozen=True, kw_only=True):
    """The agent calls a tool. The answer comes when the call has its result."""

    fence: Fence
    tool: Annotated[str, Meta(description="The tool's name.")]
    arguments: Annotated[JsonObject, Meta(description="At most 1 MiB as JSON.")] = field(default_factory=dict)
    where: Annotated[
        Literal["daemon", "host"],
        Meta(description="Who executes it: the daemon, or this host, which then gets `execute`."),
    ] = "daemon"
    description: Annotated[str, Meta(description="What a tool of the host does.")] = ""
    schema: Annotated[
        JsonObject | None,
        Meta(
            description="Of the arguments of a tool of the host; at most 256 KiB. A call that does not fit does not "
            "start; nor one whose schema is not valid, or refers to something outside of it. It is not stored."
        ),
    ] = None
    secret: Annotated[
        tuple[str, ...],
        Meta(
            description="Names of arguments of a tool of the host that are not stored: the log, the thread and people "
            "have a mark in their place. In its results the host hides them itself."
        ),
    ] = ()
    provider_id: Annotated[
        str | None, Meta(description="What the model calls the call. Of its text 256 characters are logged.")
    ] = None
    deadline_s: Annotated[
        Annotated[float, Meta(gt=0.0)] | None,
        Meta(description="Of a tool of the host: seconds from its start until it is closed."),
    ] = None
    answer: Annotated[
        OpenAnswer | None,
        Meta(description="The open answer that it is a part of: it starts when that has ended. Null: of none."),
    ] = None
    ask: Annotated[
        bool, Meta(description="True: it waits until a person has allowed it. The configuration may want that too.")
    ] = False
    begun: Annotated[
        bool,
        Meta(
            description="True: it has begun elsewhere, in a program that did not ask, and what is executed waits for "
            "its end. Nothing says that it was not started. Not with `ask`."
        ),
    ] = False


class Ask(Params, frozen=True, kw_only=True):
    """The agent asks a person. It is a call named `ask`; the answer comes when the call has its result.

    If the person answered, the outcome is `finished`, and `content` is what he said. The run's deadline stands still
    meanwhile.
    """

    fence: Fence
    question: Annotated[str, Meta(description="What is asked.", min_length=1)]
    options: Annotated[tuple[str, ...], Meta(description="Answers to choose from; others are taken too.")] = ()


class Delegate(Params, frozen=True, kw_only=True):
    """Have another agent answer a message, in a session of its own, as a part of this run.

    It is a call named `delegate`; the answer comes when the call has its result.
    """

    fence: Fence
    agent: Annotated[str, Meta(description="The other agent's name.")]
    message: Annotated[str, Meta(description="Its input.")]
    session: Annotated[
        str | None, Meta(description="Where it runs: a session in which nothing runs or waits. Null: a new one.")
    ] = None


class Steering(Params, frozen=True, kw_only=True):
    """Take the waiting messages that steer this run; none while a call is open."""

    fence: Fence


class ReadAttachment(Params, frozen=True, kw_only=True):
    """Read a piece of an attachment of the session, such as a file of a message."""

    fence: Fence
    attachment: Annotated[str, Meta(description="Its name, as a part of a message has it.")]
    start: Annotated[Count, Meta(description="Where the piece begins, in bytes.")] = 0


class SaveState(Params, frozen=True, kw_only=True):
    """Save something for later runs of this agent in this session. The answer comes when it is durable."""

    fence: Fence
    changes: Annotated[
        JsonObject,
        Meta(description="The new values by key; null removes a key. The whole state may have 64 KiB as JSON."),
    ]


class HandOff(Params, frozen=True, kw_only=True):
    """Have another agent answer the session's later messages, as far as they name none. The answer: it is durable."""

    fence: Fence
    agent: Annotated[str, Meta(description="The other agent's name.")]


class Guard(Params, frozen=True, kw_only=True):
    """Begin an effect of the agent's or a tool's own. Answered: it counts as begun. An error: it may not take place.

    If a cancel of the run or the call is here before the answer, it may not take place either.
    """

    fence: Annotated[str, Meta(description="Of the run; or of a call that this host executes.")]
    name: Annotated[str, Meta(description="What it is, for the record. Of its text 200 characters are kept.")]


class GuardDone(Params, frozen=True, kw_only=True):
    """An effect that had begun is done."""

    fence: Annotated[str, Meta(description="As in its `guard`.")]
    name: Annotated[str, Meta(description="As in its `guard`.")]


class SpawnProcess(Params, frozen=True, kw_only=True):
    """Start a process tree of the run. The answer comes when the command runs."""

    fence: Annotated[str, Meta(description="Of the run; or of a call that this host executes, whose tree it is then.")]
    argv: Annotated[tuple[str, ...], Meta(description="The program and its arguments, as for exec.")]
    cwd: Annotated[str | None, Meta(description="Its working directory; null: the daemon's.")] = None
    env: Annotated[dict[str, str], Meta(description="Added to the clean environment of all tools.")] = field(
        default_factory=dict
    )
    name: Annotated[str | None, Meta(description="For people; null: the program.")] = None
    owner: Annotated[
        Literal["run", "session"], Meta(description="`run`: it ends with the run. `session`: with the session.")
    ] = "run"
    pty: Annotated[bool, Meta(description="It has a terminal.")] = False
    pty_size: Annotated[tuple[int, int], Meta(description="Columns and rows of that.")] = (80, 24)
    stdin: Annotated[bytes | None, Meta(description="Its input; what fits into the line. Null: an empty one.")] = None
    pipes: Annotated[
        dict[Literal["stdin", "stdout", "stderr"], Literal["pipe", "follow"]],
        Meta(
            description="Streams whose other end came with this frame, in the order stdin, stdout, stderr. `pipe`: it "
            "is the command's. `follow`: the output is logged, and copied there."
        ),
    ] = field(default_factory=dict)


class WaitForProcess(Params, frozen=True, kw_only=True):
    """Wait until the command of a tree has exited. `$/cancel_request` ends the wait, and nothing else."""

    fence: Fence
    process: Annotated[str, Meta(description="The id of the tree.")]


class LookAtProcesses(Params, frozen=True, kw_only=True):
    """Ask for the cancel of the run, or of a call that this host executes. It is answered at once.

    Without an error: neither was cancelled by then. A Stop ends the processes of a run too, and so a pipe to one may
    end before the cancel of the run is read.
    """

    fence: Fence


class KillProcess(Params, frozen=True, kw_only=True):
    """End a tree: ask, and kill after `grace_s`. The answer says only that it is being done."""

    fence: Fence
    process: Annotated[str, Meta(description="The id of the tree.")]
    grace_s: Annotated[Seconds, Meta(description="0: kill at once.")] = 2.0


class HandOverProcess(Params, frozen=True, kw_only=True):
    """Hand a tree over to the session: it outlives the run. The answer comes when that is durable."""

    fence: Annotated[str, Meta(description="Of the run, or of the call, that started it and is open.")]
    process: Annotated[str, Meta(description="The id of the tree.")]


class Log(Params, frozen=True, kw_only=True):
    """A line for the daemon's own log."""

    text: Annotated[str, Meta(description="Cut to 8 KiB. At most 1,000 lines of a host are logged.")]
    level: Annotated[str, Meta(description="`debug`, `info`, `warning` or `error`; another word is `info`.")] = "info"
    fields: Annotated[JsonObject, Meta(description="Shown behind the text.")] = field(default_factory=dict)


class McpServerNow(Params, frozen=True, kw_only=True):
    """What an MCP server of the agent's configuration does now, for people. Whenever that changes."""

    name: Annotated[str, Meta(description="Its name in the configuration; another one is ignored.")]
    state: Annotated[
        str, Meta(description="`starting`, `running` or `ended`; `handed over`: the agent's program starts it.")
    ]
    tools: Annotated[int | None, Meta(description="How many it offers; null: it was not asked.")] = None
    why: Annotated[str, Meta(description="Why it has ended. Cut to 300 characters.")] = ""


class GiveUp(Params, frozen=True, kw_only=True):
    """The host does not wait for its `call`, or its `spawn`, any more: end it. Or for its `process.wait`.

    The answer still comes.
    """

    request_id: Annotated[Id, Meta(description="The id of the request.")] = field(name="requestId")
    fence: Fence


# ── From the daemon ───────────────────────────────────────────────────────────────────────────────


class RunLimits(Struct, frozen=True, kw_only=True):
    """The times of a run, in seconds."""

    grace_s: Annotated[Seconds, Meta(description="From the cancel to SIGKILL.")]
    deadline_s: Annotated[Seconds | None, Meta(description="From its start until it expires; null: never.")]


class RunMeta(Struct, frozen=True, kw_only=True):
    """What other systems want to know of a run."""

    traceparent: Annotated[str, Meta(description="The span of the run's message, as of W3C Trace Context.")]


class Run(Params, frozen=True, kw_only=True):
    """Run the agent. The answer is the end of the run: its value, or an error."""

    fence: Fence
    session: str
    generation: int
    run: Annotated[str, Meta(description="The run's id.")]
    agent: Annotated[str, Meta(description="The agent's name.")]
    thread: Annotated[tuple[Message, ...], Meta(description="All messages, with those that this run is to answer.")]
    thread_from: Annotated[
        Annotated[int, Meta(ge=1)] | UnsetType,
        Meta(
            description="So many messages come first that are left out of `thread`: the first ones of the whole thread "
            "of the last `run`, unchanged. Only for a host that can `thread_from`. Left out: none."
        ),
    ] = UNSET
    inputs: Annotated[tuple[str, ...], Meta(description="Ids of the messages that this run is to answer.")]
    tools: Annotated[tuple[Offer, ...], Meta(description="Tools of the daemon that the agent may call.")]
    state: Annotated[JsonObject, Meta(description="What runs of this agent have saved in this session.")] = field(
        default_factory=dict
    )
    credit: CreditTerms
    limits: RunLimits
    meta: Annotated[RunMeta | UnsetType, Meta(description="Left out: whoever sent the message was in no span.")] = (
        field(default=UNSET, name="_meta")
    )


class Execute(Params, frozen=True, kw_only=True):
    """Execute a call of a tool of the host. It counts as started when this was written (rule W4)."""

    fence: Annotated[str, Meta(description="The fencing token of the call.")]
    call: Annotated[str, Meta(description="The call's id.")]
    of: Annotated[Id, Meta(description="The id of the host's `call` request.")]
    deadline_s: Annotated[float | None, Meta(description="Seconds from now until it is closed; null: not known.")]


class Cancel(Params, frozen=True, kw_only=True):
    """End the `run` or the `execute` with this id, and answer it. It comes once for each."""

    request_id: Annotated[Id, Meta(description="The id of the `run`, or of the `execute`.")] = field(name="requestId")
    fence: Fence
    why: Annotated[Provenance, Meta(description="Who ended it, and why.")]
    mode: Annotated[Mode, Meta(description="`immediate`: SIGKILL is on its way.")]
    grace_s: Annotated[Seconds, Meta(description="Seconds until what is left is killed.")]


class CreditGiven(Params, frozen=True, kw_only=True):
    """Credit that is back: what was said for it is durable, or refused."""

    fence: Fence
    events: Count
    bytes: Count


class ProcessExit(Result, frozen=True, kw_only=True):
    """How a command has exited. Processes that it left behind may run on, until the tree is ended."""

    status: Annotated[int, Meta(description="Its exit status; negative: the signal that killed it.")]
    output: Annotated[str, Meta(description="The last 64 KiB of its output.")]
    total_bytes: Annotated[Count, Meta(description="The size of all of it.")]
    duration_s: Annotated[float, Meta(description="From its start to its exit.")]
    lossy: Annotated[bool, Meta(description="Some of the output was not UTF-8.")] = False
    held: Annotated[bool, Meta(description="A process that it left behind still holds its output open.")] = False
    cpu_s: float = 0.0
    max_rss_kb: int = 0
    spool: Annotated[str | None, Meta(description="A file with the exact bytes of the output, where there is one.")] = (
        None
    )
    spooled_bytes: Annotated[Count, Meta(description="The size of that file.")] = 0


class ProcessNews(Params, frozen=True, kw_only=True):
    """News of a tree that the host has started: its command has exited, or the tree was lost. It comes once."""

    fence: Fence
    process: Annotated[str, Meta(description="The id of the tree.")]
    news: Annotated[Literal["exited", "lost"], Meta(description="`lost`: how it ended is not known.")]
    exit: Annotated[ProcessExit | None, Meta(description="How the command has exited.")] = None
    note: Annotated[str, Meta(description="Why it was lost.")] = ""


class Ping(Params, frozen=True, kw_only=True):
    """Say that the process lives. Comes only to a host that can `ping`, and only while it has no run."""


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────


class WireLimits(Struct, frozen=True, kw_only=True):
    """What the daemon accepts. Sizes in bytes."""

    line_bytes: Annotated[Count, Meta(description="Of one line.")]
    text_bytes: Annotated[Count, Meta(description="Of the text of one `emit`, from a host that can `credit`.")]
    arguments_bytes: Annotated[Count, Meta(description="Of the arguments of one `call`, as JSON.")]
    requests: Annotated[Count, Meta(description="Requests of the host that may be open at once.")]
    requests_bytes: Annotated[Count, Meta(description="Of the lines of those requests together.")]


class Welcome(Result, frozen=True, kw_only=True):
    """The daemon knows the host now."""

    protocol: Annotated[int, Meta(description="The highest protocol that both speak: the one to use.")]
    limits: WireLimits
    can: Annotated[tuple[str, ...], Meta(description="Methods that this daemon takes from a host.")]


class RunDone(Result, frozen=True, kw_only=True):
    """The agent returned."""

    value: Annotated[Json, Meta(description="What it returned. At most 1 MiB as JSON; a longer one is cut.")] = None


class Executed(Result, frozen=True, kw_only=True):
    """A tool of the host returned, or raised."""

    content: Annotated[str, Meta(description="The text for the thread. At most 1 MiB; a longer one is cut.")]
    is_error: Annotated[bool, Meta(description="It raised, and the content says what.")] = False
    data: Annotated[Json, Meta(description="The result as data. At most 1 MiB as JSON.")] = None
    files: Annotated[
        tuple[MadeFile, ...], Meta(description="Images and other files of the result: at most 20, of 4 MiB together.")
    ] = ()


class CallDone(Result, frozen=True, kw_only=True):
    """A call has its result, whatever that is."""

    call: Annotated[str, Meta(description="The call's id.")]
    outcome: Annotated[Outcome, Meta(description="What became of it. It is the truth, and the thread has it.")]
    content: Annotated[str, Meta(description="The text that the thread has as its result.")]
    is_error: bool = False
    data: Json = None
    parts: Annotated[
        tuple[MediaPart, ...] | UnsetType, Meta(description="Its files; their bytes are attachments. Left out: none.")
    ] = UNSET


class Delegated(CallDone, frozen=True, kw_only=True):
    """What came of a delegation. `data` is what the other agent returned."""

    session: Annotated[str, Meta(description="Where the other agent ran; empty: it was not asked for.")] = ""
    run: Annotated[str, Meta(description="The id of its run; empty: it was not asked for.")] = ""
    status: Annotated[
        RunStatus | None, Meta(description="The status of its run, which may still be ending. Null: it did not begin.")
    ] = None


class Steered(Result, frozen=True, kw_only=True):
    """The messages that steer the run, which are in the thread now; may be empty."""

    messages: tuple[Message, ...]


class Kept(Result, frozen=True, kw_only=True):
    """A file is durable."""

    part: Annotated[MediaPart, Meta(description="The part that stands for it.")]


class AttachmentPiece(Result, frozen=True, kw_only=True):
    """A piece of an attachment. Ask for the next one until you have all of it."""

    data: Annotated[bytes, Meta(description="The bytes from `start` on, in base64; at most 512 KiB of them.")]
    size: Annotated[Count, Meta(description="Of the whole attachment, in bytes.")]


class Spawned(Result, frozen=True, kw_only=True):
    """The command of a tree runs."""

    process: Annotated[str, Meta(description="The id of the tree, in events, receipts and listings.")]
    pid: Annotated[int, Meta(description="Of the command.")]


class Method(NamedTuple):
    """A method: its name, its parameters, and its answer; a notification has no answer."""

    name: str
    params: type[Params]
    result: type[Result] | None


CANCEL_REQUEST: Final = "$/cancel_request"

FROM_HOST: Final = (
    Method("hello", Hello, Welcome),
    Method("emit", Emit, None),
    Method("answer.begin", BeginAnswer, None),
    Method("block", KeepBlock, None),
    Method("media", KeepMedia, Kept),
    Method("answer.end", EndAnswer, None),
    Method("answer.leave", LeaveAnswer, None),
    Method("progress", Progress, None),
    Method("typing", Typing, None),
    Method("call", Call, CallDone),
    Method("ask", Ask, CallDone),
    Method("delegate", Delegate, Delegated),
    Method("steering", Steering, Steered),
    Method("attachment", ReadAttachment, AttachmentPiece),
    Method("state", SaveState, Empty),
    Method("hand_off", HandOff, Empty),
    Method("guard", Guard, Empty),
    Method("guard.done", GuardDone, None),
    Method("spawn", SpawnProcess, Spawned),
    Method("process.wait", WaitForProcess, ProcessExit),
    Method("process.look", LookAtProcesses, Empty),
    Method("process.kill", KillProcess, Empty),
    Method("process.hand_over", HandOverProcess, Empty),
    Method(CANCEL_REQUEST, GiveUp, None),
    Method("log", Log, None),
    Method("mcp", McpServerNow, None),
)
FROM_DAEMON: Final = (
    Method("run", Run, RunDone),
    Method("execute", Execute, Executed),
    Method(CANCEL_REQUEST, Cancel, None),
    Method("credit", CreditGiven, None),
    Method("process", ProcessNews, None),
    Method("ping", Ping, Empty),
)
_HOST_RESULTS: Final = [method.result for method in FROM_DAEMON if method.result is not None]
_HOST_PARAMS: Final = {method.name: method.params for method in FROM_HOST}


def host_params(method: str, params: bytes) -> Params | None:
    """Convert the parameters of a method that a host may use; None if there is no such method. Raises NotAFrame."""
    kind = _HOST_PARAMS.get(method)
    return None if kind is None else converted(params, kind)


_decoders: Final[dict[type[Struct], Callable[[bytes], Any]]] = {
    kind: decoder(kind) for kind in [*_HOST_PARAMS.values(), *_HOST_RESULTS]
}


def converted(data: bytes, kind: type[P]) -> P:
    """Convert the parameters, or the result, of a frame. Raises NotAFrame."""
    try:
        made: P = _decoders[kind](data)
    except FAULTS as error:
        raise NotAFrame(described(error)) from None
    return made
