"""Bodies on a link: cut into pieces of 256 KiB, sent one frame at a time, and joined at the other end.

Of bodies with more than one piece, at most `PIECES_IN_FLIGHT` pieces are under way; the peer's receipts state
how many pieces it has. `links` handles requests and replies.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_limits import StallDetector
from topdp.agents.wire.link_refusals import LinkEnded
from topdp.agents.wire.transport import Unreachable

PIECE_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
"""The largest frame that gRPC accepts; a piece and its other fields need less."""

PIECES_IN_FLIGHT = 4
"""How many pieces of larger bodies may be under way on one link."""

Key = tuple[bool, int]  # whether the body belongs to a reply, and the number of the request


def pieces(body: bytes) -> Iterator[bytes]:
    """Yield at least one piece; that of an empty body is empty.

    >>> [len(piece) for piece in pieces(bytes(600 * 1024))]
    [262144, 262144, 90112]
    """
    for start in range(0, max(1, len(body)), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


class IncomingBody:
    """One body while it arrives. Its memory grows with the received bytes, not with the announced size."""

    def __init__(self, size: int, digest: bytes, largest: int) -> None:
        if size > largest:
            raise LinkEnded("oversized", f"expected a body of at most {largest} bytes, {size} are announced")
        if len(digest) != hashlib.sha256().digest_size:
            raise LinkEnded("protocol", f"expected a SHA-256 digest, got {len(digest)} bytes")
        self.size, self.digest = size, digest
        self.pieces = 0
        self._data = bytearray()
        self._hash = hashlib.sha256()

    def add(self, piece: bytes) -> bool:
        """Append the next piece; return whether the body is complete."""
        expected = min(PIECE_BYTES, self.size - len(self._data))
        if len(piece) != expected:
            raise LinkEnded("chunk", f"expected a piece of {expected} bytes, got {len(piece)}")
        self.pieces += 1
        self._data += piece
        self._hash.update(piece)
        return len(self._data) == self.size

    @property
    def intact(self) -> bool:
        """Whether the body matches its announced digest."""
        return self._hash.digest() == self.digest

    @property
    def body(self) -> bytes:
        return bytes(self._data)


@dataclass
class _PieceCounts:
    """The pieces of an outgoing body: how many it has, were sent, and were received by the peer."""

    total: int
    sent: int = 0
    received: int = 0


class LinkWriter:
    """The writing side of the stream of a link."""

    def __init__(
        self, stream: FrameStream, stalls: StallDetector, end_link: Callable[[LinkEnded], Unreachable]
    ) -> None:
        """`end_link` is called when the stream has failed or the peer has refused the link.

        It ends the link, and returns the error to raise to the caller that writes.
        """
        self._stream, self._stalls, self._end_link = stream, stalls, end_link
        self._lock = asyncio.Lock()
        self._window = asyncio.Semaphore(PIECES_IN_FLIGHT)
        self._outgoing: dict[Key, _PieceCounts] = {}

    @property
    def is_writing(self) -> bool:
        return self._lock.locked()

    async def send(
        self,
        number: int,
        head: wire.Request | wire.Response,
        body: bytes,
        before_last: Callable[[], None],
    ) -> None:
        """Write a body in pieces. Pieces of other bodies may come between: the lock is per frame.

        The stall detector watches it as `("answer", number)` or `("pending", number)`. `before_last` is
        called before the last frame is written.
        """
        head.id, head.size = number, len(body)
        answer, remaining = isinstance(head, wire.Response), len(body)
        counts = _PieceCounts(-(-len(body) // PIECE_BYTES)) if len(body) > PIECE_BYTES else None
        if counts is not None:
            self._outgoing[answer, number] = counts
        self._stalls.note_progress(("answer" if answer else "pending", number))
        for k, piece in enumerate(pieces(body)):
            if counts is not None:
                await self._window.acquire()
                counts.sent += 1
            if k > 0:
                frame = wire.Frame(chunk=wire.Chunk(id=number, answer=answer, data=piece))
            else:
                head.data = piece
                frame = (
                    wire.Frame(response=head) if isinstance(head, wire.Response) else wire.Frame(request=head)
                )
            remaining -= len(piece)
            await self.write(frame, None if remaining else before_last)

    async def write(self, frame: wire.Frame, before: Callable[[], None] | None = None) -> None:
        """Write a frame once no other is being written; call `before` immediately before."""
        async with self._lock:
            if before is not None:
                before()
            try:
                await self._stream.write(frame)
            except LinkEnded as ended:
                raise self._end_link(ended) from ended

    async def end(self) -> None:
        """End the stream after the frame that is being written."""
        async with self._lock:
            await self._stream.end()

    def accept_receipt(self, receipt: wire.Received) -> None:
        """Note how many pieces of a body the peer has, and permit as many further ones."""
        key = (receipt.answer, receipt.id)
        counts = self._outgoing.get(key)
        if counts is None or not counts.received < receipt.pieces <= counts.sent:
            raise LinkEnded("protocol", f"got a receipt for {receipt.pieces} pieces of body {receipt.id}")
        for _ in range(receipt.pieces - counts.received):
            self._window.release()
        counts.received = receipt.pieces
        if counts.received == counts.total:
            del self._outgoing[key]
        # Bodies that wait to be sent, or are in a buffer behind these pieces, have made progress too.
        for item in self._stalls.items():
            if isinstance(item, tuple) and item[0] != "body":
                self._stalls.note_progress(item)
