"""HostAttachments: the bytes of attachments for a run in a host, read piece by piece.

The bytes of the last one that was read are kept until the run is over, or another is read, so that the store is read
once for all pieces of an attachment. A host asks for one piece after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from actors.errors import CountermandError, RunCancelled
from supervisor.hosts import frames
from supervisor.hosts.calls import refuse

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore
    from supervisor.hosts.late import LateFrames
    from supervisor.hosts.lines import Request
    from supervisor.hosts.peer import Peer


class HostAttachments:
    """The attachments that one run in a host reads. Thread of all channels only.

    Args:
        turn: the run's turn.
        peer: the host.
        late: of the run.
        post: calls a function on the thread of all channels.
    """

    def __init__(
        self, turn: TurnCore, peer: Peer, late: LateFrames, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._turn = turn
        self._peer = peer
        self._late = late
        self._post = post
        self._last: tuple[str, bytes] | None = None

    def requested(self, request: Request, params: frames.ReadAttachment) -> None:
        """Answer with a piece, when it was read."""
        if self._last is not None and self._last[0] == params.attachment:
            self._answer(request, params, self._last[1])
            return
        try:
            reply = self._turn.request_attachment(params.attachment)
        except (RunCancelled, CountermandError) as error:
            if isinstance(error, RunCancelled):
                self._late.note("attachment")
            refuse(self._peer, request, error)
            return
        reply.add_done_callback(lambda done: self._post(lambda: self._read(request, params, done)))

    def close(self) -> None:
        """Drop what is kept: the run is over."""
        self._last = None

    def _read(self, request: Request, params: frames.ReadAttachment, reply: Future[bytes]) -> None:
        error = reply.exception()
        if error is not None:
            refuse(self._peer, request, error)
            return
        data = reply.result()
        if not self._turn.token.cancelled:
            self._last = (params.attachment, data)
        self._answer(request, params, data)

    def _answer(self, request: Request, params: frames.ReadAttachment, data: bytes) -> None:
        piece = data[params.start : params.start + frames.PIECE_MAX_BYTES]
        self._peer.answer(request.id, frames.AttachmentPiece(data=piece, size=len(data)))
