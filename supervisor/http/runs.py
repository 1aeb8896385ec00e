"""Runs and their receipts."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Router, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter

from actors.ids import new_request_id
from actors.model import Mode, Receipt, RunInfo
from actors.requests import Stop
from supervisor.http.routing import READ, WRITE, Limit, RunId, SessionName, TheService, WaitS, exact, refusals, who
from supervisor.http.service import decoded, newest_within
from supervisor.wire import KillBody, RunPage, StopAnswer


@get("/v1/sessions/{session:str}/runs", summary="The newest runs of a session", responses=READ)
async def list_runs(
    service: TheService,
    session: SessionName,
    limit: Limit = 100,
    before: Annotated[str | None, QueryParameter(min_length=1, description="Only runs before this one.")] = None,
) -> RunPage:
    """List the newest runs of a session, the oldest of them first. Continue with `before` set to `next`."""
    handle = await service.known(session)

    def page() -> RunPage:
        ids: list[str] = []
        found = service.supervisor.store.runs(handle.session, limit + 1, ids, before)
        kept = newest_within(found, limit, service.limits.page_bytes)
        more = len(kept) < len(found) or len(ids) > limit
        # None is kept if no row of the page can be read.
        return RunPage(kept, more, (kept[0].run_id if kept else ids[-1]) if more else None)

    return await service.read(page)


@get("/v1/sessions/{session:str}/runs/{run_id:str}", summary="A run of a session", responses=READ)
async def session_run(service: TheService, session: SessionName, run_id: RunId) -> RunInfo:
    """Show a run of a session."""
    handle = await service.known(session)
    return await handle.aio.run(decoded(run_id))


@get("/v1/sessions/{session:str}/receipts/{identity:str}", summary="A receipt", responses=refusals(404, 409))
async def session_receipt(
    service: TheService,
    request: Request[Any, Any, Any],
    session: SessionName,
    identity: Annotated[
        str, PathParameter(description="The id of a receipt, or of its run.", schema_extra={"minLength": 1})
    ],
    wait_s: WaitS = 0.0,
) -> Receipt:
    """Show what was running when a run ended, and how each part ended. It can wait until the receipt is filed."""
    handle = await service.known(session)
    return await service.receipt(handle, decoded(identity), wait_s, request.receive)


@get("/v1/runs", summary="Runs by the beginning of an id", responses=refusals())
async def runs_beginning(
    service: TheService,
    start: Annotated[str, QueryParameter(min_length=1, description="How the id of a run, or of its receipt, begins.")],
    limit: Limit = 100,
) -> RunPage:
    """Find the newest runs of any session by the beginning of an id; the oldest of them first."""
    ids: list[str] = []
    found = await service.read(service.supervisor.store.runs_beginning, start, limit + 1, ids)
    kept = newest_within(found, limit, service.limits.page_bytes)
    return RunPage(kept, len(kept) < len(found) or len(ids) > limit)


@get("/v1/runs/{run_id:str}", summary="A run of any session", responses=READ)
async def find_run(service: TheService, run_id: RunId) -> RunInfo:
    """Find a run by its id alone."""
    return await service.run(run_id)


@post("/v1/runs/{run_id:str}/kill", summary="Kill a run", status_code=200, responses=WRITE)
async def kill_run(
    service: TheService, request: Request[Any, Any, Any], run_id: RunId, data: JSONBody[KillBody | None] = None
) -> StopAnswer:
    """End one run at once, and nothing else: an immediate stop aimed at it, in whichever session it is."""
    body = KillBody() if data is None else await exact(request, data)
    session = await service.session_of(run_id)
    stop = Stop(
        source=body.source,
        reason=body.reason,
        run_id=decoded(run_id),
        mode=Mode.IMMEDIATE,
        requested_by=who(request),
        id=body.id or new_request_id(),
    )
    return await service.stop(session, stop, body.wait_s, request.receive)


RUNS = Router(
    "/", route_handlers=[list_runs, session_run, session_receipt, runs_beginning, find_run, kill_run], tags=["runs"]
)
