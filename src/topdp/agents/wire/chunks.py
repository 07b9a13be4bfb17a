"""Bodies in pieces of 256 KiB, and what is believed of pieces that come in. Pure: no link, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from topdp.agents.wire.link_refusals import LinkEnded

PIECE = 256 * 1024
LARGEST_MESSAGE = 1024 * 1024
"""What gRPC may take for one frame: a piece and its heading, with room."""


def pieces(body: bytes) -> Iterator[bytes]:
    """At least one, the first of an empty body being empty.

    >>> [len(piece) for piece in pieces(bytes(600 * 1024))]
    [262144, 262144, 90112]
    """
    for start in range(0, max(1, len(body)), PIECE):
        yield body[start : start + PIECE]


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
        """Takes the next piece; whether it was the last."""
        expected = min(PIECE, self.size - len(self._data))
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
