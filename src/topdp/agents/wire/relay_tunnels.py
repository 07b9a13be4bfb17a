"""An agent's end of a relay: listeners wait there for calls, tunnels call through it.

`RelayListener` keeps connections to the relay open for one neighbour and hands each joined connection to the
agent's port guard, as if it had come to its port. `open_tunnel` opens a socket in a private folder: gRPC
dials it, and its bytes go through the relay.

**Guarantees.** Nothing that comes through a relay is trusted: it passes TLS and handshake like every
stranger, with the same limits. A relay that joins and cuts costs an agent two attempts per pause.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from topdp.agents.wire.byte_pipes import Connection, ConnectionServer, dialled, join
from topdp.agents.wire.link_limits import Backoff
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog, quoted
from topdp.agents.wire.transport import end_all

WAIT, CALL = "wait", "call"
STILL_WAITING, JOINED, REFUSED = b".", b"+", b"-"
RELAY_HEARTBEAT_SECONDS = 20.0
"""Between signs of life to waiting agents: routers forget connections on which nothing moves."""

MAX_RELAYED_CONNECTIONS = 2
"""Connections of one neighbour through a relay: a new one, and an old one that is dead."""

MAX_REFUSAL_BYTES = 200
RELAY_FAILURES = (OSError, asyncio.IncompleteReadError, TimeoutError, LinkEnded)


def meeting_place(secret: bytes, federation: str, listener: str, dialer: str) -> str:
    """The name under which two agents of one manifest meet. `secret`: known to these two alone.

    >>> meeting_place(b"", "00" * 32, "ada", "bob") == meeting_place(b"", "00" * 32, "bob", "ada")
    False
    """
    words = f"topdp relay 1\n{federation}\n{listener}\n{dialer}\n".encode()
    return hmac.digest(secret, words, "sha256").hex()


def greeting(wish: str, place: str) -> bytes:
    return f"topdp relay 1 {wish} {place}\n".encode("ascii")


@dataclass(frozen=True)
class RelayRoute:
    """The way of an agent to one neighbour, `peer`, through a relay; `place` is where the two meet."""

    relay: str
    place: str
    peer: str
    refusals: RefusalLog

    async def joined(self, wish: str, timeout: float | None = None) -> Connection:
        """Return a connection that the relay has joined with one of the neighbour. `timeout`: per step."""
        async with asyncio.timeout(timeout):
            end = await dialled(self.relay)
        try:
            end.writer.write(greeting(wish, self.place))
            while True:
                async with asyncio.timeout(timeout):
                    word = await end.reader.readexactly(1)
                if word == JOINED:
                    return end
                if word != STILL_WAITING or wish != WAIT:
                    raise LinkEnded("relay", f"it says {quoted(await end.reader.read(MAX_REFUSAL_BYTES))}")
        except BaseException:
            end.cut()
            raise

    def report(self, error: Exception) -> None:
        words = error.words if isinstance(error, LinkEnded) else str(error) or type(error).__name__
        self.refusals.report(self.peer, "relay", f"not reached through {self.relay}: {words}", logging.INFO)


class RelayListener:
    """Waits at a relay for calls of one neighbour, again and again, from its construction on."""

    def __init__(
        self,
        route: RelayRoute,
        admit: Callable[[Connection, str], Awaitable[bool]],
        chance: random.Random,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """`admit` serves a connection to its end, and returns whether it proved who it is."""
        self.route, self.admit = route, admit
        self._backoff, self._pause = Backoff(chance), pause
        self._free = asyncio.Semaphore(MAX_RELAYED_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keep(self._run())

    async def close(self) -> None:
        await end_all(self._tasks, f"waiting at {self.route.relay}")

    async def _run(self) -> None:
        while True:
            await self._free.acquire()
            try:
                end = await self.route.joined(WAIT, 3 * RELAY_HEARTBEAT_SECONDS)
            except RELAY_FAILURES as error:
                self._free.release()
                self.route.report(error)
                await self._pause(self._backoff.next())
            else:
                self._keep(self._serve(end))

    async def _serve(self, end: Connection) -> None:
        try:
            if await self.admit(end, f"the relay {self.route.relay}"):
                self._backoff.reset()
            else:
                await self._pause(self._backoff.next())
        finally:
            end.cut()
            self._free.release()

    def _keep(self, job: Awaitable[None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def open_tunnel(path: Path, route: RelayRoute, timeout: float) -> ConnectionServer:
    """A way to one neighbour: what is sent to the socket `path` reaches it through the relay."""

    async def carry(near: Connection, _: str) -> None:
        far = None
        try:
            async with asyncio.timeout(timeout):
                far = await route.joined(CALL)
            await join(near, far)
        except RELAY_FAILURES as error:
            route.report(error)
        finally:
            near.cut()
            if far is not None:
                far.cut()

    tunnel = ConnectionServer(carry)
    await tunnel.listen_at(path)
    return tunnel
