"""HostGuards: the guards of code in a host: of the agent, of a call that it executes, or of a tool in its process.

Theory of operation. A Stop is decided in the daemon, so a guard is entered here, by the same compare-and-set on the
same token as a guard in this process. The answer is written after that. So there are two cases:

- The fence is first: the request is refused, and nothing counts as begun.
- The guard is first: the effect counts as begun, whatever comes then. If the fence follows before the host reads the
  answer, the cancel may be there first, and the host does not let the effect take place; or the host may die. Nobody
  can tell here, so the record says that the effect had begun, and not that it is done.

A host that lies can only say of its own effects that they have begun, or are done. One that says of an effect which
had not begun that it is done breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from actors.errors import CountermandError, RunCancelled
from actors.model import Provenance
from supervisor.hosts import frames
from supervisor.hosts.calls import refuse
from supervisor.hosts.lines import Code, Request

if TYPE_CHECKING:
    from actors.gate.token import CancelToken
    from supervisor.hosts.late import LateFrames
    from supervisor.hosts.peer import Peer

OVER = Provenance(source="run.ended", reason="the call is closed")


class HostGuards:
    """The guards of one run in a host. Thread of all channels only.

    Args:
        peer: the host.
        late: of the run.
        broke_protocol: fails the host.
        token_of: returns the token of the run, or of a call that the host executes, by its fence.
    """

    def __init__(
        self,
        peer: Peer,
        late: LateFrames,
        broke_protocol: Callable[[str], None],
        token_of: Callable[[str], CancelToken | None],
    ) -> None:
        self._peer = peer
        self._late = late
        self._broke_protocol = broke_protocol
        self._token_of = token_of

    def requested(self, request: Request, params: frames.Guard) -> None:
        """Count an effect as begun, unless its run or its call is closed; then answer."""
        token = self._token_of(params.fence)
        if token is None:
            self._late.note("guard")
            data = {"provenance": msgspec.to_builtins(OVER)}
            self._peer.refuse(request.id, Code.STALE, "the call has ended", data)
            return
        try:
            token.guard(params.name).begin()
        except (RunCancelled, CountermandError) as error:
            if isinstance(error, RunCancelled):
                self._late.note("guard")
            refuse(self._peer, request, error)
            return
        self._peer.answer(request.id, frames.Empty())

    def done(self, params: frames.GuardDone) -> None:
        """Count an effect as done. Of a call that has ended nothing is counted any more."""
        token = self._token_of(params.fence)
        if token is None:
            return
        try:
            had_begun = token.guard(params.name).finish()
        except CountermandError:
            had_begun = False
        if not had_begun:
            self._broke_protocol(f"it says of an effect that it is done, which had not begun: {params.name!r:.100}")
