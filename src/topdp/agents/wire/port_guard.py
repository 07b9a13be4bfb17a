"""Guards an agent's port: connections are counted and inspected, and only then passed to gRPC.

gRPC has no limit for connections, and accepts TLS 1.2. So this module owns the port: it lets in what begins
with a ClientHello that offers TLS 1.3, and pipes it to gRPC, which listens on a socket in a private folder.
TLS and `handshake` prove who is at the other end, and report it to `PortGuard.knows`.

**Guarantees.** A visitor that has not proved who it is holds a place for two idle timeouts at most. Of such
there are at most `MAX_STRANGERS_PER_ADDRESS` from one address and `MAX_STRANGERS` in all, beside one for each
neighbour; then the oldest of the address that has most is cut off. A neighbour has at most `MAX_LINKS`
connections. Nobody is let in who would take one of the last `RESERVED_DESCRIPTORS` descriptors: those are for
ledgers and results.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path

from topdp.agents.wire.byte_pipes import (
    FLUSH_SECONDS,
    PIPE_BUFFER_BYTES,
    Connection,
    ConnectionServer,
    join,
    keep_alive,
)
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog

MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS, MAX_LINKS = 64, 8, 2
RESERVED_DESCRIPTORS = 64
"""File descriptors that visitors never get."""

MAX_DESCRIPTORS = 65536
MAX_HELLO_BYTES = 16 * 1024
TLS_1_3 = b"\x03\x04"


class Visitor:
    """One connection that came in. `name` is its owner, once that is proved."""

    def __init__(self, address: str, end: Connection) -> None:
        self.address, self.end, self.name = address, end, ""
        self.left = asyncio.Event()


class PortGuard:
    """Serves one port, and what comes through a relay."""

    def __init__(self, folder: Path, idle_timeout: float, neighbours: int, refusals: RefusalLog) -> None:
        """gRPC listens on `socket` in `folder`, which is private.

        A visitor that sends nothing for `idle_timeout` seconds is cut.
        """
        self.folder, self.idle_timeout, self.refusals = folder, idle_timeout, refusals
        self.strangers, self.per_address = MAX_STRANGERS + neighbours, MAX_STRANGERS_PER_ADDRESS + neighbours
        self.visitors: list[Visitor] = []  # the oldest first
        self._coming: dict[str, Visitor] = {}  # by what gRPC calls them
        self._numbers = itertools.count()
        self.server = ConnectionServer(self.admit)
        self._most = descriptors() - RESERVED_DESCRIPTORS

    @property
    def socket(self) -> Path:
        return self.folder / "grpc"

    async def close(self) -> None:
        """Close after gRPC has ended. Its last bytes go out to peers that have proved who they are."""
        self.server.stop()
        for visitor in self.visitors:
            if not visitor.name:
                visitor.end.cut()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for visitor in [visitor for visitor in self.visitors if visitor.name]:
                    await visitor.left.wait()
        for visitor in self.visitors:
            visitor.end.cut()
        await self.server.close()

    def knows(self, peer: str, name: str) -> None:
        """The connection that gRPC calls `peer` belongs to the neighbour `name`, which has proved it."""
        visitor = self._coming.get(peer)
        if visitor is None:
            return
        visitor.name = name
        for older in [other for other in self.visitors if other.name == name][:-MAX_LINKS]:
            older.end.cut()

    async def admit(self, end: Connection, address: str) -> bool:
        """Serve one connection from its first byte to its end; return whether it proved who it is."""
        visitor = Visitor(address, keep_alive(end))
        if end.writer.get_extra_info("socket").fileno() >= self._most:
            self._tell(visitor, LinkEnded("crowded", "no descriptors are left for visitors"))
            end.cut()
            return False
        self.visitors.append(visitor)
        self._cut_oldest_stranger(address)
        try:
            async with asyncio.timeout(self.idle_timeout):
                hello = await client_hello(end.reader)
            await self._pass_on(visitor, hello)
            if not visitor.name:
                raise LinkEnded("unproved", "it left, or was cut off, before it had proved who it is")
        except LinkEnded as refused:
            self._tell(visitor, refused)
        except TimeoutError:
            self._tell(visitor, LinkEnded("silent", f"it sent nothing in {self.idle_timeout:g} s"))
        except OSError:
            pass  # it is gone
        finally:
            end.cut()
            self.visitors.remove(visitor)
            visitor.left.set()
        return bool(visitor.name)

    async def _pass_on(self, visitor: Visitor, hello: bytes) -> None:
        name = self.folder / str(next(self._numbers))
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The name by which gRPC knows this end; once it is connected nobody needs the file.
            inner.bind(str(name))
            inner.setblocking(False)
            await asyncio.get_running_loop().sock_connect(inner, str(self.socket))
        except BaseException:
            inner.close()
            raise
        finally:
            name.unlink(missing_ok=True)
        to_grpc = keep_alive(
            Connection(*await asyncio.open_unix_connection(sock=inner, limit=PIPE_BUFFER_BYTES))
        )
        self._coming[f"unix:{name}"] = visitor
        to_grpc.writer.write(hello)
        deadline = asyncio.get_running_loop().call_later(2 * self.idle_timeout, _cut_unless_proved, visitor)
        try:
            await join(visitor.end, to_grpc)
        finally:
            deadline.cancel()
            del self._coming[f"unix:{name}"]

    def _cut_oldest_stranger(self, address: str) -> None:
        """If there are too many unproved visitors, cut the oldest of this address or of the fullest one."""
        strangers = [visitor for visitor in self.visitors if not visitor.name]
        counts = Counter(visitor.address for visitor in strangers)
        if counts[address] <= self.per_address and len(strangers) <= self.strangers:
            return
        fullest = address if counts[address] > self.per_address else counts.most_common(1)[0][0]
        oldest = next(visitor for visitor in strangers if visitor.address == fullest)
        self._tell(oldest, LinkEnded("crowded", f"{counts[fullest]} connections from there prove nothing"))
        oldest.address = ""  # it no longer counts
        oldest.end.cut()

    def _tell(self, visitor: Visitor, refused: LinkEnded) -> None:
        self.refusals.report("someone", refused.kind, f"{visitor.address}: {refused.words}", logging.INFO)


def _cut_unless_proved(visitor: Visitor) -> None:
    if not visitor.name:
        visitor.end.cut()


def descriptors() -> int:
    """Return how many files and connections this process may have. Raise the limit as far as allowed."""
    try:
        import resource
    except ImportError:  # this system has no such limit
        return MAX_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


async def client_hello(reader: asyncio.StreamReader) -> bytes:
    """The first record of a connection, if it offers TLS 1.3 (RFC 8446, 4.1.2 and 4.2.1)."""
    try:
        head = await reader.readexactly(5)
        size = int.from_bytes(head[3:])
        if head[:2] != b"\x16\x03" or not 4 <= size <= MAX_HELLO_BYTES:
            raise LinkEnded("not TLS", "it did not begin with a handshake of TLS")
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise LinkEnded("unproved", "it left before it had begun") from None
    if TLS_1_3 not in _versions(body):
        raise LinkEnded("old TLS", "expected TLS 1.3, it offers older versions only")
    return head + body


def _versions(body: bytes) -> list[bytes]:
    """The versions that a ClientHello offers in the extension for them."""

    def part(at: int, wide: int) -> tuple[int, int]:
        """(where a part with its length before it begins, where it ends)"""
        begin = at + wide
        return begin, begin + int.from_bytes(body[at:begin])

    if body[:1] != b"\x01":
        return []
    _, at = part(4 + 2 + 32, 1)  # type and length, version, random; then session, ciphers, compression
    _, at = part(at, 2)
    _, at = part(at, 1)
    at, end = part(at, 2)
    while at + 4 <= min(end, len(body)):
        kind = body[at : at + 2]
        begin, at = part(at + 2, 2)
        if kind == b"\x00\x2b":
            listed = body[begin + 1 : at]
            return [listed[k : k + 2] for k in range(0, len(listed), 2)]
    return []
