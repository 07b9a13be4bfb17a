"""A TCP proxy on loopback that makes a bad network for tests: delay, low bandwidth, holes and resets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


class Proxy:
    """Forwards connections to `target`. Its attributes can be changed while it runs.

    `delay` is in seconds per piece, and `bandwidth` in bytes per second and direction. In a `hole` bytes
    vanish, but the connection stays; `refuse` closes new connections at once.
    """

    def __init__(self, target: str, address: str) -> None:
        self.target, self.address = target, address
        self.delay, self.bandwidth = 0.0, float("inf")
        self.hole = self.refuse = False
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        host, port = self.address.rsplit(":", 1)
        self._server = await asyncio.start_server(self._accept, host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def reset(self) -> None:
        """Ends all connections at once, with RST to both ends."""
        for writer in tuple(self._writers):
            end = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        others = [writer]
        try:
            if self.refuse:
                return
            self.connections += 1
            host, port = self.target.rsplit(":", 1)
            there, back = await asyncio.open_connection(host, int(port))
            self._writers.add(back)
            others.append(back)
            pumps = [
                asyncio.ensure_future(self._pump(reader, back)),
                asyncio.ensure_future(self._pump(there, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in others:
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(16 * 1024):
                pause = self.delay + len(data) / self.bandwidth
                if pause:
                    await asyncio.sleep(pause)
                if not self.hole:
                    writer.write(data)
                    await writer.drain()
