"""Connections joined in pairs with bounded buffers, servers for them, and a private folder for their sockets.

The port of an agent, its tunnels through a relay, and the relay itself use this module. It does not interpret
the bytes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from topdp.agents.wire.transport import end_all
from topdp.base.files import FileError, exclusive_lock
from topdp.errors import InputError, UnavailableError

PIPE_BUFFER_BYTES = 64 * 1024
"""Bytes that a pipe buffers in each direction before it stops reading, which makes the sender wait."""

SOCKET_FOLDER_PREFIX, SOCKET_FOLDER_LOCK = "topdp-sockets-", "lock"
NEW_FOLDER_SECONDS = 60.0
"""A folder younger than this is not removed: its process may not have locked it yet."""

FLUSH_SECONDS = 1.0  # time to send what is buffered when a connection ends
# Probes keep the connection open in routers.
KEEPALIVE_SECONDS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}


@dataclass(frozen=True)
class Connection:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def cut(self) -> None:
        """Close the connection at once; buffered bytes are lost."""
        self.writer.transport.abort()

    def close(self) -> None:
        """Close the connection after its buffered bytes are sent, or after `FLUSH_SECONDS`."""
        self.writer.close()
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.cut)


def limit_and_probe(end: Connection) -> Connection:
    """Limit the write buffer of a connection and turn on probes, which detect a dead peer. Return it."""
    end.writer.transport.set_write_buffer_limits(high=PIPE_BUFFER_BYTES)
    sock = end.writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE_SECONDS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return end


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`; raise InputError unless the address has this form.

    >>> host_and_port("[::1]:7400")
    ('::1', 7400)
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InputError(f"Expected host:port with a port from 1 to 65535, got {address!r:.80}.")
    return host.strip("[]"), int(port)


async def connect(address: str) -> Connection:
    """Open a connection to `host:port`."""
    return limit_and_probe(
        Connection(*await asyncio.open_connection(*host_and_port(address), limit=PIPE_BUFFER_BYTES))
    )


async def join(first: Connection, second: Connection, idle: float | None = None) -> None:
    """Pass bytes in both directions; close both connections at the end.

    The end is that one connection ends, or that neither sends anything for `idle` seconds.
    """
    has_moved = asyncio.Event()
    pumps = [
        asyncio.create_task(_pump(first.reader, second.writer, has_moved)),
        asyncio.create_task(_pump(second.reader, first.writer, has_moved)),
    ]
    try:
        while not any(pump.done() for pump in pumps):
            has_moved.clear()
            await asyncio.wait(pumps, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
            if not has_moved.is_set():
                break
    finally:
        for pump in pumps:
            pump.cancel()
        for end in (first, second):
            end.close()  # the last bytes, such as the reason for the end, are still sent
        await asyncio.wait(pumps)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_moved: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(PIPE_BUFFER_BYTES):
            has_moved.set()
            writer.write(data)
            await writer.drain()


class ConnectionServer:
    """A server that accepts connections until `close`, and serves each in a task."""

    def __init__(self, serve: Callable[[Connection, str], Awaitable[object]]) -> None:
        """`serve` receives a connection and the host that opened it."""
        self._serve = serve
        self.servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> None:
        """Listen on all addresses of a host name; raise UnavailableError if that is impossible."""
        try:
            for bound in await _bind(address):
                server = await asyncio.start_server(self._accept, sock=bound, limit=PIPE_BUFFER_BYTES)
                self.servers.append(server)
        except OSError as error:
            raise UnavailableError(
                f"Could not listen on {address}: {error.strerror or error}. Another process uses the port, "
                "or this machine does not have the address. End that process, or name another address with "
                "--listen."
            ) from None

    async def listen_on_unix_socket(self, path: Path) -> None:
        self.servers.append(await asyncio.start_unix_server(self._accept, path, limit=PIPE_BUFFER_BYTES))

    def stop(self) -> None:
        """Stop accepting connections."""
        for server in self.servers:
            server.close()

    async def close(self) -> None:
        """Stop accepting connections, and end those that are open."""
        self.stop()
        await end_all(self._tasks, "connections")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        peer = writer.get_extra_info("peername")
        with suppress(asyncio.CancelledError):  # `close` cancels the task, and asyncio would log it
            await self._serve(Connection(reader, writer), str(peer[0]) if peer else "nowhere")


async def _bind(address: str) -> list[socket.socket]:
    """Return sockets that are bound to all addresses that a host name has on this machine.

    Raise OSError if the port is in use at one address, or if no address can be bound.
    """
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets, failure = [], None
    with ExitStack() as on_error:
        for family, _, _, _, bound in dict.fromkeys(resolved):
            both_families = bound[0] == "::" and socket.has_dualstack_ipv6()
            try:
                server = socket.create_server(bound, family=family, dualstack_ipv6=both_families)
            except OSError as error:
                failure = error
                if error.errno == errno.EADDRINUSE:
                    raise
            else:
                sockets.append(on_error.enter_context(server))
        if failure is not None and not sockets:
            raise failure
        on_error.pop_all()
    return sockets


class SocketFolder:
    """A private folder for Unix sockets. A new one removes the folders that killed processes left behind."""

    def __init__(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise InputError("Expected a system with Unix sockets, such as Linux or macOS: links need them.")
        for folder in Path(tempfile.gettempdir()).glob(f"{SOCKET_FOLDER_PREFIX}*"):
            _remove_if_abandoned(folder)
        self.path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX))
        self._lock = ExitStack()
        self._lock.enter_context(exclusive_lock(self.path / SOCKET_FOLDER_LOCK))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_abandoned(folder: Path) -> None:
    """Remove `folder` if its lock is free, because then the process that made the folder has ended."""
    with suppress(OSError, FileError):
        facts, lock = folder.stat(), folder / SOCKET_FOLDER_LOCK
        if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < NEW_FOLDER_SECONDS:
            return
        if lock.exists():
            with exclusive_lock(lock) as has_locks:
                if has_locks:
                    shutil.rmtree(folder, ignore_errors=True)
