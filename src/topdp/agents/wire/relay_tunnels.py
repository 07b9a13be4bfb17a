"""An agent's end of a relay: listeners wait at the relay for calls, and tunnels call through it.

A `RelayListener` keeps connections to the relay open for one neighbour. It passes each joined connection to
the agent's port guard like a connection to the agent's port. `open_tunnel` opens a socket in a private
folder: gRPC dials it, and its bytes go through the relay.

**Guarantees.** Nothing that comes through a relay is trusted: it passes TLS and the handshake with the same
limits as every stranger. A relay that joins connections and cuts them costs an agent two attempts per pause.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topdp.agents.agreement.identity import Identity
from topdp.agents.wire.byte_pipes import Connection, ConnectionServer, connect, join
from topdp.agents.wire.link_limits import Backoff
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog, quoted
from topdp.agents.wire.transport import end_all

WAIT, CALL = "wait", "call"
STILL_WAITING, JOINED, REFUSED = b".", b"+", b"-"
RELAY_HEARTBEAT_SECONDS = 20.0
"""Between bytes to waiting agents: routers close connections on which nothing moves."""

MAX_RELAYED_CONNECTIONS = 2
"""Connections of one neighbour through a relay: a new one, and an old one that is dead."""

MAX_REFUSAL_BYTES = 200
RELAY_FAILURES = (OSError, asyncio.IncompleteReadError, TimeoutError, LinkEnded)


def meeting_place(secret: bytes, federation: str, listener: str, dialer: str) -> str:
    """Return the name under which two agents of one manifest meet. Only these two know `secret`.

    >>> meeting_place(b"", "00" * 32, "ada", "bob") == meeting_place(b"", "00" * 32, "bob", "ada")
    False
    """
    content = f"topdp relay 1\n{federation}\n{listener}\n{dialer}\n".encode()
    return hmac.digest(secret, content, "sha256").hex()


def greeting(role: str, place: str, token: str = "") -> bytes:
    """Return the first line of a connection to a relay; `role` is WAIT, with a token, or CALL."""
    return f"topdp relay 2 {' '.join([role, place, *token.split()])}\n".encode("ascii")


def signed_place(place: str) -> bytes:
    """Return the bytes that a member signs to wait at a meeting place."""
    return f"topdp relay wait 2\n{place}\n".encode("ascii")


def waiting_token(identity: Identity, place: str) -> str:
    """Return a member's token for waiting at `place`: the fingerprint of its card, and a signature."""
    return f"{identity.card.fingerprint} {identity.sign(signed_place(place)).hex()}"


@dataclass(frozen=True, kw_only=True)
class RelayRoute:
    """The route of an agent to one neighbour, `peer`, through a relay; `place` is their meeting place."""

    relay: str
    place: str
    peer: str
    refusals: RefusalLog
    token: str  # with which this agent may wait at the place

    async def join_peer(self, role: str, timeout: float | None = None) -> Connection:
        """Return a connection that the relay has joined with one of the neighbour.

        `timeout`: seconds for each step; None if the caller limits the time.
        """
        async with asyncio.timeout(timeout):
            end = await connect(self.relay)
        try:
            end.writer.write(greeting(role, self.place, self.token if role == WAIT else ""))
            while True:
                async with asyncio.timeout(timeout):
                    answer = await end.reader.readexactly(1)
                if answer == JOINED:
                    return end
                if answer != STILL_WAITING or role != WAIT:
                    raise LinkEnded("relay", f"it says {quoted(await end.reader.read(MAX_REFUSAL_BYTES))}")
        except BaseException:
            end.cut()
            raise

    def report(self, error: Exception) -> None:
        reason = error.reason if isinstance(error, LinkEnded) else str(error) or type(error).__name__
        text = f"not reached through {self.relay}: {reason}"
        self.refusals.report(self.peer, "relay", text, logging.INFO)


class RelayListener:
    """Waits at a relay for calls of one neighbour, from its construction until `close`."""

    def __init__(self, route: RelayRoute, admit: Callable[[Connection, str], Awaitable[bool]]) -> None:
        """`admit` serves a connection to its end, and returns whether it proved its identity."""
        self.route, self.admit = route, admit
        self._backoff = Backoff()
        self._free = asyncio.Semaphore(MAX_RELAYED_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._run())

    async def close(self) -> None:
        await end_all(self._tasks, f"waiting at {self.route.relay}")

    async def _run(self) -> None:
        while True:
            await self._free.acquire()
            try:
                end = await self.route.join_peer(WAIT, 3 * RELAY_HEARTBEAT_SECONDS)
            except RELAY_FAILURES as error:
                self._free.release()
                self.route.report(error)
                await self._backoff.pause()
            else:
                self._spawn(self._serve(end))

    async def _serve(self, end: Connection) -> None:
        try:
            if await self.admit(end, f"the relay {self.route.relay}"):
                self._backoff.reset()
            else:
                await self._backoff.pause()
        finally:
            end.cut()
            self._free.release()

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def open_tunnel(path: Path, route: RelayRoute, timeout: float) -> ConnectionServer:
    """Return a server on the socket `path` whose connections go through the relay to one neighbour."""

    async def carry(local: Connection, _: str) -> None:
        try:
            async with asyncio.timeout(timeout):
                joined = await route.join_peer(CALL)
            try:
                await join(local, joined)
            finally:
                joined.cut()
        except RELAY_FAILURES as error:
            route.report(error)
        finally:
            local.cut()

    tunnel = ConnectionServer(carry)
    await tunnel.listen_on_unix_socket(path)
    return tunnel
