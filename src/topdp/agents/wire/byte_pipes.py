"""Byte streams joined end to end with bounded buffers, and the private folder of their sockets.

For the port of an agent, its tunnels through a relay, and the relay itself; they do not interpret what passes
through.
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
"""Bytes that a pipe holds in each direction before it stops reading, which makes the sender wait."""

SOCKET_FOLDER_PREFIX, SOCKET_FOLDER_LOCK = "topdp-sockets-", "lock"
NEW_FOLDER_SECONDS = 60.0
"""A folder as young as this is not removed: its lock may still be missing."""

FLUSH_SECONDS = 1.0  # for what is still in buffers when a connection ends
# So that routers keep the connection.
KEEPALIVE_SECONDS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}


@dataclass(frozen=True)
class Connection:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def cut(self) -> None:
        """Close at once; what is still in buffers is lost."""
        self.writer.transport.abort()


def keep_alive(end: Connection) -> Connection:
    """Send small pieces at once, and detect a dead peer."""
    end.writer.transport.set_write_buffer_limits(high=PIPE_BUFFER_BYTES)
    sock = end.writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE_SECONDS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return end


def host_and_port(address: str) -> tuple[str, int]:
    """
    >>> host_and_port("[::1]:7400")
    ('::1', 7400)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def checked_address(address: str) -> str:
    """Return `host:port`, or raise InputError."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InputError(f"Expected host:port with a port from 1 to 65535, got {address!r:.80}.")
    return address


async def dialled(address: str) -> Connection:
    """A connection to `host:port`."""
    return keep_alive(
        Connection(*await asyncio.open_connection(*host_and_port(address), limit=PIPE_BUFFER_BYTES))
    )


async def join(near: Connection, far: Connection, idle: float | None = None) -> None:
    """Carry bytes both ways until one end is over, or nothing has moved for `idle` seconds; then close
    both.
    """
    moved = asyncio.Event()
    pumps = [
        asyncio.create_task(_pump(near.reader, far.writer, moved)),
        asyncio.create_task(_pump(far.reader, near.writer, moved)),
    ]
    try:
        while not any(pump.done() for pump in pumps):
            moved.clear()
            await asyncio.wait(pumps, timeout=idle, return_when=asyncio.FIRST_COMPLETED)
            if not moved.is_set():
                break
    finally:
        for pump in pumps:
            pump.cancel()
        for end in (near, far):
            end.writer.close()  # the last bytes, such as why a connection ends, still go out
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, end.cut)
        await asyncio.wait(pumps)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(PIPE_BUFFER_BYTES):
            moved.set()
            writer.write(data)
            await writer.drain()


class ConnectionServer:
    """Accepts connections, and serves each in a task, until `close`."""

    def __init__(self, serve: Callable[[Connection, str], Awaitable[object]]) -> None:
        """`serve` gets a connection and the host that it comes from."""
        self._serve = serve
        self.servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> None:
        """Listen on all addresses of a name; raise UnavailableError if that is impossible."""
        try:
            for bound in await _bound(address):
                server = await asyncio.start_server(self._come, sock=bound, limit=PIPE_BUFFER_BYTES)
                self.servers.append(server)
        except OSError as error:
            raise UnavailableError(
                f"Could not listen on {address}: {error.strerror or error}. Another process has the port, or "
                "the address is not of this machine. End that process, or name another one with --listen."
            ) from None

    async def listen_at(self, path: Path) -> None:
        """Listen on a Unix socket."""
        self.servers.append(await asyncio.start_unix_server(self._come, path, limit=PIPE_BUFFER_BYTES))

    def stop(self) -> None:
        """Accept no further connections."""
        for server in self.servers:
            server.close()

    async def close(self) -> None:
        """Accept no further connections, and end the others."""
        self.stop()
        await end_all(self._tasks, "connections")

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        source = writer.get_extra_info("peername")
        with suppress(asyncio.CancelledError):  # by `close`; asyncio would log it
            await self._serve(Connection(reader, writer), str(source[0]) if source else "nowhere")


async def _bound(address: str) -> list[socket.socket]:
    """Return sockets bound to all addresses that a name has on this machine."""
    host, port = host_and_port(address)
    loop, sockets, trouble = asyncio.get_running_loop(), [], None
    listed = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, number, _, place in dict.fromkeys(listed):
        candidate = socket.socket(family, kind, number)
        try:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                candidate.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(place[0] != "::"))
            candidate.bind(place)
            sockets.append(candidate)
        except OSError as error:
            candidate.close()
            trouble = error
            if error.errno == errno.EADDRINUSE:
                break
    if trouble is not None and (not sockets or trouble.errno == errno.EADDRINUSE):
        for bound in sockets:
            bound.close()
        raise trouble
    return sockets


class SocketFolder:
    """A private folder for Unix sockets. Making one removes the folders that killed processes left behind."""

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
    """Remove `folder` if its lock is free: then the process that made it is gone."""
    with suppress(OSError, FileError):
        facts, lock = folder.stat(), folder / SOCKET_FOLDER_LOCK
        if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < NEW_FOLDER_SECONDS:
            return
        if lock.exists():
            with exclusive_lock(lock) as has_locks:
                if has_locks:
                    shutil.rmtree(folder, ignore_errors=True)
