"""Sessions: list them, show one, send it messages, stop it, resume it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, delete, get, post, route
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from msgspec import UNSET

from actors.errors import CountermandError, Invalid
from actors.ids import new_request_id
from actors.model import SessionStatus, WithdrawOutcome
from actors.requests import (
    Accepted,
    Answer,
    Answered,
    Delete,
    Deleted,
    NewMessage,
    OutsideRequest,
    Reply,
    Resume,
    Resumed,
    Stop,
    Withdraw,
    Withdrawn,
    traceparent_of,
)
from supervisor.http.routing import READ, WRITE, Limit, Offset, SessionName, TheService, exact, refusals, who
from supervisor.http.service import ApiService, decoded, newest_within, within
from supervisor.wire import (
    AllStopped,
    AnswerBody,
    DeleteBody,
    FileBody,
    MessageBody,
    ResumeBody,
    SessionEntry,
    SessionPage,
    StopAllBody,
    StopAnswer,
    StopBody,
    ThreadEnd,
    ThreadPage,
    WaitingMessage,
    WaitingPage,
    WithdrawBody,
)


@get("/v1/sessions", summary="Sessions, by name", responses=refusals())
async def list_sessions(
    service: TheService,
    after: Annotated[str, QueryParameter(description="Only sessions whose name sorts after this one.")] = "",
    limit: Limit = 100,
) -> SessionPage:
    """List sessions."""
    names: list[str] = []
    rows = await service.read(service.supervisor.store.sessions, after, limit, names)
    resident = set(service.supervisor.resident())
    entries = [
        SessionEntry(row.session, row.generation, row.seq, row.parked, row.quarantined, row.session in resident)
        for row in rows
    ]
    return SessionPage(entries, names[-1] if len(names) == limit else None)


@get("/v1/sessions/{session:str}", summary="What a session is doing now", responses=refusals(404, 504))
async def session_status(service: TheService, session: SessionName) -> SessionStatus:
    """Show a session's status."""
    handle = await service.known(session)
    return await handle.aio.status(timeout=service.limits.ask_s)


@delete("/v1/sessions/{session:str}", summary="Delete a session", status_code=200, responses=WRITE)
async def delete_session(
    service: TheService,
    request: Request[Any, Any, Any],
    session: SessionName,
    data: JSONBody[DeleteBody | None] = None,
) -> Deleted:
    """Delete a session. The answer comes when its rows are gone; a reused name starts a new session."""
    body = DeleteBody() if data is None else await exact(request, data)
    # A deleted one repeats its answer.
    handle = await service.known(session, deleted_too=True)
    deleted = await service.ask(handle.aio, Delete(**_given(body), requested_by=who(request)))
    assert isinstance(deleted, Deleted)
    return deleted


@route("/v1/sessions/{session:str}", http_method=["OPTIONS"], status_code=204, include_in_schema=False)
async def session_methods(session: SessionName) -> Response[None]:  # noqa: ARG001  # it is in the path
    """List the methods of a session's path: Litestar by itself lists those of one handler only."""
    return Response(None, headers={"allow": "DELETE, GET, OPTIONS"})


@post("/v1/sessions/{session:str}/messages", summary="Send a message", status_code=202, responses=WRITE)
async def send_message(
    service: TheService,
    request: Request[Any, Any, Any],
    session: SessionName,
    data: JSONBody[MessageBody],
    traceparent: Annotated[
        str | None,
        HeaderParameter(
            name="traceparent",
            description="The sender's span, as of W3C Trace Context: the agent has it. An invalid one is ignored.",
        ),
    ] = None,
) -> Accepted:
    """Send a message. The answer comes when it is durable."""
    body = await exact(request, data)
    options = _given(body)
    options["traceparent"] = traceparent_of(traceparent)
    options["attachments"] = [one.file() for one in body.attachments]
    options["parts"] = [one.file() if isinstance(one, FileBody) else one for one in body.parts]
    options["content"] = _content(body)
    del options["content_base64"]
    accepted = await service.ask(service.handle(session).aio, NewMessage(**options))
    assert isinstance(accepted, Accepted)
    return accepted


@post("/v1/sessions/{session:str}/stop", summary="Stop a run", status_code=200, responses=WRITE)
async def stop_session(
    service: TheService, request: Request[Any, Any, Any], session: SessionName, data: JSONBody[StopBody | None] = None
) -> StopAnswer:
    """Stop the current run, or the run `run_id`. The receipt follows the answer.

    The answer comes when the Stop is durable; else after a bound, with `durable` false.
    """
    body = StopBody() if data is None else await exact(request, data)
    options = _given(body)
    wait_s = options.pop("wait_s")
    # A stop with a `sent_at` also applies to messages that are on their way, and one may be the session's first.
    ahead = body.sent_at is not None and body.run_id is None
    handle = service.handle(session) if ahead else await service.stoppable(session)
    return await service.stop(handle, Stop(**options, requested_by=who(request)), wait_s, request.receive)


@post("/v1/sessions/{session:str}/resume", summary="Resume a session", status_code=200, responses=WRITE)
async def resume_session(
    service: TheService, request: Request[Any, Any, Any], session: SessionName, data: JSONBody[ResumeBody | None] = None
) -> Resumed:
    """Start a run on the present thread, with the parked messages."""
    resumed = await _asked(service, session, Resume, ResumeBody() if data is None else await exact(request, data))
    assert isinstance(resumed, Resumed)
    return resumed


@post("/v1/sessions/{session:str}/withdraw", summary="Withdraw a waiting message", status_code=200, responses=WRITE)
async def withdraw_message(
    service: TheService, request: Request[Any, Any, Any], session: SessionName, data: JSONBody[WithdrawBody]
) -> Withdrawn:
    """Withdraw a waiting message. It is refused if a run has the message. Idempotent."""
    withdrawn = await _asked(service, session, Withdraw, await exact(request, data))
    assert isinstance(withdrawn, Withdrawn)
    if withdrawn.outcome is WithdrawOutcome.ALREADY_INPUT:
        raise AlreadyInput(
            "the message is an input of a run and can no longer be withdrawn",
            expected="a message that waits",
            got=withdrawn.message_id,
            remedy="stop the run that has it: its event `message` in the log names it",
        )
    return withdrawn


@post("/v1/sessions/{session:str}/answer", summary="Answer a call that waits", status_code=200, responses=WRITE)
async def answer_call(
    service: TheService, request: Request[Any, Any, Any], session: SessionName, data: JSONBody[AnswerBody]
) -> Answered:
    """Answer a call that waits for a person. It is refused if none of that id waits: the first answer stands."""
    answered = await _asked(service, session, Answer, await exact(request, data))
    assert isinstance(answered, Answered)
    return answered


@get("/v1/sessions/{session:str}/thread", summary="The messages of a session", responses=READ)
async def session_thread(
    service: TheService,
    session: SessionName,
    offset: Offset = 0,
    limit: Limit = 1_000,
) -> ThreadPage:
    """Show the thread as the next model call would see it, and the retracted messages."""
    handle = await service.known(session)

    def page() -> ThreadPage:
        messages = handle.thread()
        kept = within(messages[offset:], min(limit, service.limits.page_max), service.limits.page_bytes)
        end = offset + len(kept)
        return ThreadPage(kept, offset, len(messages), end if end < len(messages) else None)

    return await service.read(page)


@get("/v1/sessions/{session:str}/thread/end", summary="The newest messages of a session", responses=READ)
async def session_thread_end(
    service: TheService,
    session: SessionName,
    last: Annotated[int, QueryParameter(ge=1, le=1_000, description="How many messages.")] = 50,
    since: Annotated[
        str | None, QueryParameter(min_length=1, description="A run: from its first message on, if those are more.")
    ] = None,
) -> ThreadEnd:
    """Show the end of the thread. Only the end of the log is read for it, with the whole of the last runs."""
    handle = await service.known(session)

    def end() -> ThreadEnd:
        found, more = service.supervisor.store.thread_end(handle.session, last, since)
        kept = newest_within(found, service.limits.page_max, service.limits.page_bytes)
        return ThreadEnd(kept, more or len(kept) < len(found))

    return await service.read(end)


@get(
    "/v1/sessions/{session:str}/attachments/{name:str}",
    summary="The bytes of an attachment",
    media_type="application/octet-stream",
    responses=READ,
)
async def session_attachment(
    service: TheService,
    session: SessionName,
    name: Annotated[str, PathParameter(description="Its name in a message.", schema_extra={"minLength": 1})],
) -> Response[bytes]:
    """Return the exact bytes of a file, or of a message that is not UTF-8. No browser shows them as a page."""
    handle = await service.known(session)
    wanted = decoded(name)
    data, media_type = await service.read(service.supervisor.store.attachment_and_type, handle.session, wanted)
    headers = {
        "content-disposition": f'attachment; filename="{wanted}"',
        "content-security-policy": "sandbox; default-src 'none'",
        "x-content-type-options": "nosniff",
    }
    return Response(data, media_type=media_type or "application/octet-stream", headers=headers)


@get("/v1/sessions/{session:str}/waiting", summary="The waiting messages", responses=READ)
async def session_waiting(
    service: TheService,
    session: SessionName,
    offset: Offset = 0,
    limit: Limit = 1_000,
) -> WaitingPage:
    """Show the waiting messages, in order."""
    handle = await service.known(session)

    def page() -> WaitingPage:
        rows = service.supervisor.store.waiting(handle.session)
        row = service.supervisor.store.session(handle.session)
        messages = [WaitingMessage.of(one) for one in rows[offset : offset + limit]]
        kept = within(messages, limit, service.limits.page_bytes)
        return WaitingPage(kept, row is not None and row.parked, offset + len(kept) < len(rows))

    return await service.read(page)


@post("/v1/stop", summary="Stop everything", status_code=200, responses=WRITE)
async def stop_all(
    service: TheService, request: Request[Any, Any, Any], data: JSONBody[StopAllBody | None] = None
) -> AllStopped:
    """Stop what runs in every session."""
    body = StopAllBody() if data is None else await exact(request, data)
    return await service.stop_all(body, who(request))


class AlreadyInput(CountermandError):
    """The message cannot be withdrawn: a run has it."""

    code = "already_input"


def _content(body: MessageBody) -> str:
    """Return the content of a message. Raises Invalid unless it is given in exactly one way, or files or parts are."""
    text, data = body.content, body.content_base64
    if text is UNSET and data is UNSET and (body.attachments or body.parts):
        return ""
    if isinstance(text, str) and data is UNSET and not body.parts:
        return text
    if isinstance(data, bytes) and text is UNSET and not body.parts:
        # In the form that `actors.text.not_utf8` expects.
        return data.decode(errors="surrogateescape")
    raise Invalid(
        "a message has exactly one content",
        expected="either content or content_base64, with attachments or without; or attachments; or parts",
        got="none of them" if text is UNSET and data is UNSET else "several of them",
        remedy="give a text as content; bytes that may not be UTF-8 as content_base64; files as attachments",
    )


async def _asked(service: ApiService, session: str, kind: Callable[..., OutsideRequest], body: msgspec.Struct) -> Reply:
    """Send the request that a body describes to a session that is known, and return its answer."""
    handle = await service.known(session)
    return await service.ask(handle.aio, kind(**_given(body)))


def _given(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a body as arguments of a request, with a new id if none was given."""
    fields = msgspec.structs.asdict(body)
    return {**fields, "id": fields["id"] or new_request_id()}


SESSIONS = Router(
    "/",
    route_handlers=[
        # Before the others of its path, or Litestar adds one of its own.
        session_methods,
        list_sessions,
        session_status,
        delete_session,
        send_message,
        stop_session,
        resume_session,
        withdraw_message,
        answer_call,
        session_thread,
        session_thread_end,
        session_attachment,
        session_waiting,
        stop_all,
    ],
    tags=["sessions"],
)
