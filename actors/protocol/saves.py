"""What agents save: decided here, recorded with the run that saves, and answered once it is durable."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.errors import TooLarge
from actors.events import SessionStateData
from actors.messages import SaveRequested
from actors.protocol.state import SessionState
from actors.protocol.step import RefuseSave, SaySaved
from actors.saved import changed

SAVED_MAX_BYTES: Final = 65_536
"""Limit on what the runs of one agent have saved in one session, as JSON."""


class Saves:
    """Decides on what agents save."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    def requested(self, request: SaveRequested) -> None:
        """The agent saves something. Behind a fence that is stale, and the cancel of its token has said so."""
        state = self._state
        record = state.open_run(request.address)
        if request.size is not None:
            state.step.return_credit(request.address.run, request.size)
        if record is None:
            state.refuse_stale("state", request.address, ", ".join(request.changes))
            return
        agent = record.info.agent
        size = len(msgspec.json.encode(changed(state.saved.of(agent), request.changes)))
        if size > SAVED_MAX_BYTES:
            error = TooLarge(
                "the state of this agent would be too large; nothing was saved",
                expected=f"at most {SAVED_MAX_BYTES} bytes as JSON, of all that it has saved in this session",
                got=f"{size} bytes",
                remedy="remove keys with None, or save the name of a file that has the rest",
            )
            state.step.now.append(RefuseSave(request.saved, error))
            return
        state.event(SessionStateData(agent=agent, changes=request.changes), record)
        state.step.later.append(SaySaved(request.saved))
