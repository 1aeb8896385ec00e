"""The output of one process tree as text: decoded, coalesced, capped, and its tail kept.

Bytes go in as they were read, text comes out in pieces for the log. The decoders are incremental, so a
character that two reads cut in half stays whole. Bytes that are not UTF-8 are replaced, and `lossy` is then True (the
exact bytes are in the spool). After `log_max_bytes` of text one marker comes out and nothing more; the tail
and the count go on, at little cost: see `_skim`. The two limits bound the memory, for any input and any length of a
line.

No thread, no clock, no descriptor: the reading is in `processes`.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STREAMS = ("stdout", "stderr")
SKIMMED_MAX = 64
CUT_MAX_BYTES = 16
"""More than the halves of characters at the ends of both streams."""


class Piece(NamedTuple):
    """Some text of one stream; `marker`: the limit is reached, and the text says so."""

    stream: str
    text: str
    marker: bool = False


class LossyDecoder(codecs.BufferedIncrementalDecoder):
    """UTF-8 that replaces bytes it cannot decode, and remembers that it did (`lossy`)."""

    def __init__(self) -> None:
        super().__init__("replace")
        self.lossy = False

    def _buffer_decode(self, data: ReadableBuffer, errors: str, final: bool) -> tuple[str, int]:
        if not self.lossy:
            try:
                return codecs.utf_8_decode(data, "strict", final)
            except UnicodeDecodeError:
                self.lossy = True
        return codecs.utf_8_decode(data, errors, final)


class Output:
    """The output of one tree.

    Args:
        log_max_bytes: how much text (as UTF-8) comes out of `take` before the marker.
        tail_max_bytes: how much text (as UTF-8) `tail` keeps.
        elsewhere: added to the marker's text: where the rest is. It may be set later.
    """

    def __init__(self, log_max_bytes: int, tail_max_bytes: int, elsewhere: str = "") -> None:
        self.total_bytes = 0
        self._log_max = log_max_bytes
        self._tail_max = tail_max_bytes
        self.elsewhere = elsewhere
        self._decoders = {stream: LossyDecoder() for stream in STREAMS}
        self._pieces: list[Piece] = []
        self._logged = 0
        self._marked = False
        self._tail = bytearray()
        self._skimmed: deque[tuple[str, bytes]] = deque()
        self._skimmed_bytes = 0
        self._closed = False

    @property
    def lossy(self) -> bool:
        """True if some bytes were not UTF-8."""
        return any(decoder.lossy for decoder in self._decoders.values())

    @property
    def tail(self) -> str:
        """The end of all text, at most `tail_max_bytes`, cut at a character."""
        self._decode_skimmed()
        return bytes(self._tail[-self._tail_max :]).decode("utf-8", "ignore") if self._tail_max else ""

    @property
    def waiting(self) -> bool:
        """True if `take` has something to give."""
        return bool(self._pieces)

    def feed(self, stream: str, data: bytes) -> None:
        """Add bytes read from `stream`; after `close` they are only counted."""
        self.total_bytes += len(data)
        if self._closed:
            return
        if self._marked and self._decoders[stream].lossy:
            self._skim(stream, data)
        else:
            self._decode_skimmed()
            self._add(stream, self._decoders[stream].decode(data))

    def end(self, stream: str) -> None:
        """End the stream: an incomplete character is replaced."""
        if not self._closed:
            self._decode_skimmed()
            self._add(stream, self._decoders[stream].decode(b"", True))

    def close(self) -> None:
        """End both streams: later bytes are only counted."""
        for stream in STREAMS:
            self.end(stream)
        self._closed = True

    def take(self) -> list[Piece]:
        """The text since the last `take`, neighbours of one stream joined, at most one marker ever."""
        if len(self._pieces) < 2:
            taken, self._pieces = self._pieces, []
            return taken
        joined: list[Piece] = []
        run: list[str] = []
        for index, piece in enumerate(self._pieces):
            run.append(piece.text)
            following = self._pieces[index + 1] if index + 1 < len(self._pieces) else None
            if following is None or following.stream != piece.stream or following.marker or piece.marker:
                joined.append(Piece(piece.stream, "".join(run), piece.marker))
                run.clear()
        self._pieces.clear()
        return joined

    def _skim(self, stream: str, data: bytes) -> None:
        """Past the limit, decode only bytes of a lossy stream that may be in the tail: decoding binary data costs most.

        Text is at least as long as its bytes, so bytes followed by a tail's length of others are not in the tail.
        """
        self._skimmed.append((stream, data))
        self._skimmed_bytes += len(data)
        while self._skimmed_bytes - len(self._skimmed[0][1]) >= self._tail_max + CUT_MAX_BYTES:
            dropped, gone = self._skimmed.popleft()
            self._skimmed_bytes -= len(gone)
            # The decoder may hold the first half of a character whose rest was dropped.
            self._decoders[dropped].reset()
        if len(self._skimmed) > SKIMMED_MAX:
            self._decode_skimmed()

    def _decode_skimmed(self) -> None:
        if not self._skimmed:
            return
        skimmed = list(self._skimmed)
        self._skimmed.clear()
        self._skimmed_bytes = 0
        for stream, data in skimmed:
            self._add(stream, self._decoders[stream].decode(data))

    def _add(self, stream: str, text: str) -> None:
        if not text:
            return
        encoded = text.encode("utf-8")
        self._tail += encoded[-self._tail_max :] if self._tail_max else b""
        if len(self._tail) > 2 * self._tail_max:
            del self._tail[: -self._tail_max]
        if self._marked:
            return
        room = self._log_max - self._logged
        if len(encoded) > room:
            text = encoded[:room].decode("utf-8", "ignore")
            self._marked = True
        self._logged += min(len(encoded), room)
        if text:
            self._pieces.append(Piece(stream, text))
        if self._marked:
            words = (
                f"[the limit of {self._log_max} bytes of logged output is reached: the rest is counted, its end kept"
                f"{self.elsewhere}]"
            )
            self._pieces.append(Piece(stream, words, marker=True))
