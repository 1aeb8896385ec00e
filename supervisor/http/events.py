"""Events: a session's log, by pages or as a stream, and the reports that came too late."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response.base import ASGIResponse

from actors.errors import Invalid
from actors.model import Event
from supervisor.http.routing import SEQ_MAX, Limit, Seq, SessionName, TheService, refusals
from supervisor.http.service import within
from supervisor.http.streams import MEDIA_TYPE, EventStream
from supervisor.wire import Letter, Letters, LogPage

READ_AT_ONCE = 64
"""Events that are read at a time: each may have a megabyte, and a page ends when it is full."""

_STREAM = {
    200: ResponseSpec(
        data_container=str,
        description="Server-Sent Events, without an end: `id` is the seq, `event` the kind, `data` the event as JSON.",
        media_type=MEDIA_TYPE,
        generate_examples=False,
    )
}


@get("/v1/sessions/{session:str}/log", summary="Events, a page at a time", responses=refusals(404, 409))
async def session_log(
    service: TheService,
    session: SessionName,
    from_seq: Seq = 0,
    limit: Limit = 1_000,
    run_id: Annotated[
        str | None, QueryParameter(min_length=1, description="Only what is about this run, or about its messages.")
    ] = None,
) -> LogPage:
    """Read the log of a session after `from_seq`."""
    handle = await service.known(session)

    def page() -> LogPage:
        handle.check_position(from_seq)
        events: list[Event] = []
        count, size, position = min(limit, service.limits.page_max), service.limits.page_bytes, from_seq
        while len(events) < count:
            wanted = min(READ_AT_ONCE, count - len(events))
            read = (
                service.supervisor.store.events(handle.session, position, wanted)
                if run_id is None
                else service.supervisor.store.events_about(handle.session, run_id, position, wanted)
            )
            kept = within(read, count, size)
            events += kept
            position = events[-1].seq if events else from_seq
            if len(kept) == len(read) < wanted:
                return LogPage(events, None)
            if len(kept) < READ_AT_ONCE:
                break
            size //= 2
        last = service.supervisor.store.last_seq(handle.session)
        return LogPage(events, position if position < last else None)

    return await service.read(page)


@get(
    "/v1/sessions/{session:str}/events",
    summary="Events as they come",
    media_type=MEDIA_TYPE,
    responses={**refusals(409), **_STREAM},
)
async def session_events(
    service: TheService,
    session: SessionName,
    from_seq: Seq = 0,
    ephemeral: Annotated[
        bool, QueryParameter(description="Also give `typing` and `progress`, which are not stored.")
    ] = False,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(name="Last-Event-ID", pattern=r"^[0-9]{1,18}$", description="Goes before `from_seq`."),
    ] = None,
) -> ASGIResponse:
    """Follow a session: stored events first, then new ones, without a gap. The session need not exist yet."""
    position = from_seq
    if last_event_id is not None:
        if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > SEQ_MAX:
            raise Invalid(
                "this Last-Event-ID is not the seq of an event",
                expected="the seq of an event",
                got=f"{last_event_id!r:.80}",
                remedy="send the id of the last event that came, or leave it out",
            )
        position = int(last_event_id)
    return EventStream(service, service.handle(session), position, ephemeral=ephemeral)


@get("/v1/dead-letters", summary="Replies that came too late", responses=refusals())
async def dead_letters(service: TheService) -> Letters:
    """Show the last reports that came too late."""
    letters = [
        Letter(
            one.kind,
            one.why,
            one.at,
            one.shown,
            one.address.session if one.address else None,
            one.address.generation if one.address else None,
            one.address.run if one.address else None,
            one.address.call if one.address else None,
        )
        for one in service.supervisor.dead_letters()
    ]
    return Letters(letters, service.supervisor.refused())


EVENTS = Router("/", route_handlers=[session_log, session_events, dead_letters], tags=["events"])
