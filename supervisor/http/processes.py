"""The live tree over HTTP: what runs now in each session, its runs, calls and processes."""

from __future__ import annotations

from litestar import Router, get

from supervisor.http.routing import READ, SessionName, TheService, refusals
from supervisor.live_tree import Living, living


@get("/v1/processes", summary="The live tree", responses=refusals())
async def all_processes(service: TheService) -> Living:
    """Show the live runs, calls and processes of all sessions."""
    return await service.read(lambda: living(service.supervisor.store, service.supervisor.processes()))


@get("/v1/sessions/{session:str}/processes", summary="The live tree of a session", responses=READ)
async def session_processes(service: TheService, session: SessionName) -> Living:
    """Show the live runs, calls and processes of a session."""
    handle = await service.known(session)
    return await service.read(lambda: living(service.supervisor.store, handle.processes(), handle.session))


PROCESSES = Router("/", route_handlers=[all_processes, session_processes], tags=["processes"])
