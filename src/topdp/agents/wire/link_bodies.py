"""Bodies on a link: in pieces of 256 KiB, written one frame at a time, and put together at the other end.

Of bodies with more than one piece, at most `PIECES_IN_FLIGHT` pieces are on their way; the peer's receipts
say how far it is. `links` handles requests and replies.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Iterator

from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_limits import StallDetector
from topdp.agents.wire.link_refusals import LinkEnded
from topdp.agents.wire.transport import Unreachable

PIECE_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
"""What gRPC may take for one frame: a piece and its heading, with room."""


def pieces(body: bytes) -> Iterator[bytes]:
    """Yield at least one piece; that of an empty body is empty.

    >>> [len(piece) for piece in pieces(bytes(600 * 1024))]
    [262144, 262144, 90112]
    """
    for start in range(0, max(1, len(body)), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


class IncomingBody:
    """One body as it arrives. Memory grows with what came, not with what was announced."""

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
        """Append the next piece; return whether it was the last."""
        expected = min(PIECE_BYTES, self.size - len(self._data))
        if len(piece) != expected:
            raise LinkEnded("chunk", f"expected a piece of {expected} bytes, got {len(piece)}")
        self.pieces += 1
        self._data += piece
        self._hash.update(piece)
        return len(self._data) == self.size

    @property
    def intact(self) -> bool:
        return self._hash.digest() == self.digest

    @property
    def body(self) -> bytes:
        return bytes(self._data)


PIECES_IN_FLIGHT = 4
"""Pieces of larger bodies that may be on their way over one link."""

Key = tuple[bool, int]  # whether the body is an answer, and the number of the request


class _OutgoingBody:
    """A body of several pieces on its way: how many were sent, and how many the peer has."""

    def __init__(self, total: int) -> None:
        self.total, self.sent, self.received = total, 0, 0


class LinkWriter:
    """The writing side of the stream of a link."""

    def __init__(
        self, stream: FrameStream, stalls: StallDetector, lost: Callable[[LinkEnded], Unreachable]
    ) -> None:
        """`lost` ends the link when the stream is gone, or the peer has refused us; its result is raised to
        the writer.
        """
        self._stream, self._stalls, self._lost = stream, stalls, lost
        self._lock = asyncio.Lock()
        self._window = asyncio.Semaphore(PIECES_IN_FLIGHT)
        self._outgoing: dict[Key, _OutgoingBody] = {}
        self._to_confirm: dict[Key, int] = {}
        self._confirming = False

    @property
    def busy(self) -> bool:
        """Whether something is being written at this moment."""
        return self._lock.locked()

    async def send(
        self,
        what: Hashable,
        number: int,
        head: wire.Request | wire.Response,
        body: bytes,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the body in pieces. Pieces of other bodies may come between: the lock is per frame."""
        head.id, head.size = number, len(body)
        answer, left = isinstance(head, wire.Response), len(body)
        several = _OutgoingBody(-(-len(body) // PIECE_BYTES)) if len(body) > PIECE_BYTES else None
        if several is not None:
            self._outgoing[answer, number] = several
        self._stalls.moved(what)
        for k, piece in enumerate(pieces(body)):
            if several is not None:
                await self._window.acquire()
                several.sent += 1
            if k > 0:
                frame = wire.Frame(chunk=wire.Chunk(id=number, answer=answer, data=piece))
            else:
                head.data = piece
                frame = (
                    wire.Frame(response=head) if isinstance(head, wire.Response) else wire.Frame(request=head)
                )
            left -= len(piece)
            await self.write(frame, last if left == 0 else lambda: None)

    async def write(self, frame: wire.Frame, before: Callable[[], None] = lambda: None) -> None:
        async with self._lock:
            before()
            await self._put(frame)

    async def end(self) -> None:
        """End the stream, after what is being written."""
        async with self._lock:
            await self._stream.end()

    def confirm(self, key: Key, count: int) -> bool:
        """Note what to confirm to the peer; later counts include earlier ones. True: call `confirm_all`."""
        self._to_confirm[key] = count
        begins, self._confirming = not self._confirming, True
        return begins

    async def confirm_all(self) -> None:
        while self._to_confirm:
            async with self._lock:
                (answer, number), count = self._to_confirm.popitem()
                await self._put(wire.Frame(received=wire.Received(id=number, answer=answer, pieces=count)))
        self._confirming = False

    def take_receipt(self, receipt: wire.Received) -> None:
        """The peer reports how much of a body it has: that much more may be sent."""
        key = (receipt.answer, receipt.id)
        body = self._outgoing.get(key)
        if body is None or not body.received < receipt.pieces <= body.sent:
            raise LinkEnded("protocol", f"got a receipt for {receipt.pieces} pieces of body {receipt.id}")
        for _ in range(receipt.pieces - body.received):
            self._window.release()
        body.received = receipt.pieces
        if body.received == body.total:
            del self._outgoing[key]
        # Whatever waits to be sent, or lies in a buffer behind these pieces, is on its way.
        for what in self._stalls.waiting():
            if isinstance(what, tuple) and what[0] != "body":
                self._stalls.moved(what)

    async def _put(self, frame: wire.Frame) -> None:
        try:
            await self._stream.write(frame)
        except LinkEnded as refused:
            raise self._lost(refused) from refused
        except ConnectionError as error:
            raise self._lost(LinkEnded("lost", str(error))) from error
