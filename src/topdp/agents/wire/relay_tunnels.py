"""An agent's end of a relay: listeners wait there for calls, tunnels call through it.

`RelayListener` keeps connections to the relay open for one neighbour and hands each joined connection to the
agent's port guard, as if it had come to its port. `RelayTunnel` is a socket in a private folder: gRPC dials
it, and its bytes go through the relay.

**Guarantees.** Nothing that comes through a relay is trusted: it passes TLS and handshake like every
stranger, with the same limits. A relay that joins and cuts costs an agent two attempts per pause.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from topdp.agents.wire.byte_pipes import PIPE_BUFFER_BYTES, Connection, dialled, join
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


def meeting_place(secret: bytes, federation: str, listener: str, dialer: str) -> str:
    """The name under which two agents of one manifest meet. `secret`: known to these two alone.

    >>> meeting_place(b"", "00" * 32, "ada", "bob") == meeting_place(b"", "00" * 32, "bob", "ada")
    False
    """
    words = f"topdp relay 1\n{federation}\n{listener}\n{dialer}\n".encode()
    return hmac.digest(secret, words, "sha256").hex()


def greeting(wish: str, place: str) -> bytes:
    return f"topdp relay 1 {wish} {place}\n".encode("ascii")


class RelayListener:
    """Waits at a relay for calls of one neighbour, again and again."""

    def __init__(
        self,
        relay: str,
        place: str,
        *,
        peer: str,
        admit: Callable[[Connection, str], Awaitable[bool]],
        refusals: RefusalLog,
        chance: random.Random,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """`admit` serves a connection to its end, and returns whether it proved who it is."""
        self.relay, self.place, self.peer, self.admit, self.refusals = relay, place, peer, admit, refusals
        self._backoff, self._pause = Backoff(chance), pause
        self._free = asyncio.Semaphore(MAX_RELAYED_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._keep(self._run())

    async def close(self) -> None:
        await end_all(self._tasks, f"waiting at {self.relay}")

    async def _run(self) -> None:
        while True:
            await self._free.acquire()
            try:
                end = await self._called()
            except (OSError, asyncio.IncompleteReadError, TimeoutError, LinkEnded) as error:
                self._free.release()
                _tell(self.refusals, self.peer, self.relay, error)
                await self._pause(self._backoff.next())
            else:
                self._keep(self._serve(end))

    async def _called(self) -> Connection:
        """A connection through which a neighbour has called."""
        async with asyncio.timeout(3 * RELAY_HEARTBEAT_SECONDS):
            end = await dialled(self.relay)
        try:
            end.writer.write(greeting(WAIT, self.place))
            while True:
                async with asyncio.timeout(3 * RELAY_HEARTBEAT_SECONDS):
                    word = await end.reader.readexactly(1)
                if word == JOINED:
                    return end
                if word != STILL_WAITING:
                    raise LinkEnded("relay", await _refusal(end))
        except BaseException:
            end.cut()
            raise

    async def _serve(self, end: Connection) -> None:
        try:
            if await self.admit(end, f"the relay {self.relay}"):
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


class RelayTunnel:
    """A way to one neighbour: what is sent to the socket `path` reaches it through the relay."""

    def __init__(
        self, path: Path, relay: str, *, place: str, peer: str, refusals: RefusalLog, patience: float
    ) -> None:
        self.path, self.relay, self.place, self.peer, self.refusals = path, relay, place, peer, refusals
        self.patience = patience
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._come, self.path, limit=PIPE_BUFFER_BYTES)

    async def close(self) -> None:
        self._server.close()
        await end_all(self._tasks, f"the tunnel through {self.relay}")

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        near, far = Connection(reader, writer), None
        try:
            async with asyncio.timeout(self.patience):
                far = await dialled(self.relay)
                far.writer.write(greeting(CALL, self.place))
                if await far.reader.readexactly(1) != JOINED:
                    raise LinkEnded("relay", await _refusal(far))
            await join(near, far)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, LinkEnded) as error:
            _tell(self.refusals, self.peer, self.relay, error)
        except asyncio.CancelledError:
            pass  # we close; asyncio would log it
        finally:
            near.cut()
            if far is not None:
                far.cut()


async def _refusal(end: Connection) -> str:
    return f"it says {quoted(await end.reader.read(MAX_REFUSAL_BYTES))}"


def _tell(refusals: RefusalLog, peer: str, relay: str, error: Exception) -> None:
    words = error.words if isinstance(error, LinkEnded) else str(error) or type(error).__name__
    refusals.report(peer, "relay", f"not reached through {relay}: {words}", logging.INFO)
