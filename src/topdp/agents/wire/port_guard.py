"""The guard of an agent's port: it counts and inspects connections before it passes them to gRPC.

gRPC does not limit connections, and accepts TLS 1.2. Therefore this module opens the port. It accepts
connections that begin with a ClientHello that offers TLS 1.3, and passes their bytes to gRPC, which listens
on a socket in a private folder. TLS and `handshake` prove a visitor's identity, and `PortGuard.mark_proved`
records it.

**Guarantees.** A visitor that has not proved its identity is cut off after two idle timeouts. There are at
most `MAX_STRANGERS_PER_ADDRESS` of them from one address and `MAX_STRANGERS` in total, plus one for each
neighbour; beyond that, the oldest visitor of the address with the most is cut off. A neighbour has at most
`MAX_LINKS` connections. The last `RESERVED_DESCRIPTORS` descriptors are not given to visitors: they are for
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
    limit_and_probe,
)
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog

MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS, MAX_LINKS = 64, 8, 2
RESERVED_DESCRIPTORS = 64
"""How many file descriptors are reserved for other purposes than visitors."""

MAX_DESCRIPTORS = 65536
MAX_HELLO_BYTES = 16 * 1024
TLS_1_3 = b"\x03\x04"


class Visitor:
    """One accepted connection. `name` is the neighbour that has proved to own it, or empty."""

    def __init__(self, address: str, end: Connection) -> None:
        self.address, self.end, self.name = address, end, ""
        self.has_left = asyncio.Event()

    def cut_unless_proved(self) -> None:
        if not self.name:
            self.end.cut()


class PortGuard:
    """The server of an agent's port, and of the connections that come through a relay."""

    def __init__(self, folder: Path, idle_timeout: float, neighbours: int, refusals: RefusalLog) -> None:
        """gRPC listens on `socket` in `folder`, which is private.

        A visitor that sends nothing for `idle_timeout` seconds is cut off.
        """
        self.folder, self.idle_timeout, self.refusals = folder, idle_timeout, refusals
        self.socket = folder / "grpc"
        self.max_strangers = MAX_STRANGERS + neighbours
        self.max_strangers_per_address = MAX_STRANGERS_PER_ADDRESS + neighbours
        self.visitors: list[Visitor] = []  # the oldest first
        self._by_grpc_name: dict[str, Visitor] = {}
        self._numbers = itertools.count()
        self.server = ConnectionServer(self.admit)
        self._max_descriptor = raise_descriptor_limit() - RESERVED_DESCRIPTORS

    async def close(self) -> None:
        """Close after gRPC has ended; send its last bytes to peers that have proved their identity."""
        self.server.stop()
        for visitor in self.visitors:
            visitor.cut_unless_proved()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for visitor in [visitor for visitor in self.visitors if visitor.name]:
                    await visitor.has_left.wait()
        for visitor in self.visitors:
            visitor.end.cut()
        await self.server.close()

    def mark_proved(self, grpc_name: str, name: str) -> None:
        """Record that the neighbour `name` has proved to own the connection that gRPC calls `grpc_name`."""
        visitor = self._by_grpc_name.get(grpc_name)
        if visitor is None:
            return
        visitor.name = name
        for older in [other for other in self.visitors if other.name == name][:-MAX_LINKS]:
            older.end.cut()

    async def admit(self, end: Connection, address: str) -> bool:
        """Serve one connection from its first byte to its end; return whether it proved its identity."""
        visitor = Visitor(address, limit_and_probe(end))
        if end.writer.get_extra_info("socket").fileno() >= self._max_descriptor:
            self._report(visitor, LinkEnded("crowded", "no descriptors are left for visitors"))
            end.cut()
            return False
        self.visitors.append(visitor)
        self._cut_oldest_stranger(address)
        try:
            async with asyncio.timeout(self.idle_timeout):
                hello = await client_hello(end.reader)
            await self._pass_on(visitor, hello)
            if not visitor.name:
                raise LinkEnded("unproved", "it left, or was cut off, before it had proved its identity")
        except LinkEnded as refused:
            self._report(visitor, refused)
        except TimeoutError:
            self._report(visitor, LinkEnded("silent", f"it sent nothing in {self.idle_timeout:g} s"))
        except OSError:
            pass  # the visitor has left
        finally:
            end.cut()
            self.visitors.remove(visitor)
            visitor.has_left.set()
        return bool(visitor.name)

    async def _pass_on(self, visitor: Visitor, hello: bytes) -> None:
        """Pass the bytes of a visitor, which begin with `hello`, to gRPC and back, until one side ends."""
        path = self.folder / str(next(self._numbers))
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # gRPC identifies this end by the path; nobody needs the file once the socket is connected.
            inner.bind(str(path))
            inner.setblocking(False)
            await asyncio.get_running_loop().sock_connect(inner, str(self.socket))
        except BaseException:
            inner.close()
            raise
        finally:
            path.unlink(missing_ok=True)
        to_grpc = limit_and_probe(
            Connection(*await asyncio.open_unix_connection(sock=inner, limit=PIPE_BUFFER_BYTES))
        )
        self._by_grpc_name[f"unix:{path}"] = visitor
        to_grpc.writer.write(hello)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(2 * self.idle_timeout, visitor.cut_unless_proved)
        try:
            await join(visitor.end, to_grpc)
        finally:
            deadline.cancel()
            del self._by_grpc_name[f"unix:{path}"]

    def _cut_oldest_stranger(self, address: str) -> None:
        """If too many visitors are unproved, cut the oldest of `address`, or of the address with the most."""
        strangers = [visitor for visitor in self.visitors if not visitor.name]
        counts = Counter(visitor.address for visitor in strangers)
        crowds_out = counts[address] > self.max_strangers_per_address
        if not crowds_out and len(strangers) <= self.max_strangers:
            return
        fullest = address if crowds_out else counts.most_common(1)[0][0]
        oldest = next(visitor for visitor in strangers if visitor.address == fullest)
        self._report(
            oldest, LinkEnded("crowded", f"{counts[fullest]} connections from that address prove no identity")
        )
        oldest.address = ""  # it no longer counts
        oldest.end.cut()

    def _report(self, visitor: Visitor, refused: LinkEnded) -> None:
        self.refusals.report("someone", refused.kind, f"{visitor.address}: {refused.reason}", logging.INFO)


def raise_descriptor_limit() -> int:
    """Raise the limit of this process for open files and connections as far as permitted, and return it."""
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
    """Return the first record of a connection (RFC 8446, 4.1.2 and 4.2.1).

    Raise LinkEnded unless it is a ClientHello that offers TLS 1.3.
    """
    try:
        head = await reader.readexactly(5)
        size = int.from_bytes(head[3:])
        if head[:2] != b"\x16\x03" or not 4 <= size <= MAX_HELLO_BYTES:
            raise LinkEnded("not TLS", "it did not begin with a TLS handshake")
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise LinkEnded("unproved", "it left before it had sent a complete TLS record") from None
    if TLS_1_3 not in _versions(body):
        raise LinkEnded("old TLS", "expected TLS 1.3, but it offers only older versions")
    return head + body


def _versions(body: bytes) -> list[bytes]:
    """Return the versions that a ClientHello offers in its extension `supported_versions`."""

    def bounds(at: int, width: int) -> tuple[int, int]:
        """Return the begin and end of a field that follows its length, of `width` bytes, at `at`."""
        begin = at + width
        return begin, begin + int.from_bytes(body[at:begin])

    if body[:1] != b"\x01":
        return []
    _, at = bounds(4 + 2 + 32, 1)  # after type and length, version, random: the session
    _, at = bounds(at, 2)  # ciphers
    _, at = bounds(at, 1)  # compression
    at, end = bounds(at, 2)
    while at + 4 <= min(end, len(body)):
        kind = body[at : at + 2]
        begin, at = bounds(at + 2, 2)
        if kind == b"\x00\x2b":
            versions = body[begin + 1 : at]
            return [versions[k : k + 2] for k in range(0, len(versions), 2)]
    return []
