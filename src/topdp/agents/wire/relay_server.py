r"""A relay for agents that can only dial out: it joins the connections of two that name the same meeting
place.

Anybody may run one, and nobody has to trust it: it carries TLS between two agents that know each other's
certificates, so a relay can withhold, delay, cut and reorder bytes, and nothing else. It learns the addresses
of those who dial it, sizes and times; a meeting place is a hash that reveals no names, and that only the two
agents who meet there can compute: nobody else can crowd them out.

    agent -> relay   "topdp relay 1 wait <64 hex digits>\n"    to be called
    agent -> relay   "topdp relay 1 call <64 hex digits>\n"    to call
    relay -> agent   "."   you are still waiting               "+"   joined: from here on the other's bytes
                     "-words\n"   refused

`relay_tunnels` is an agent's end of it. Needs neither torch nor gRPC.

**Guarantees.** Connections are bounded in all and per address; buffers are bounded, and full ones make the
sender wait; a connection that sends nothing, or waits for too long, is cut.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from topdp.agents.wire.byte_pipes import Connection, ConnectionServer, join, keep_alive
from topdp.agents.wire.port_guard import RESERVED_DESCRIPTORS, descriptors
from topdp.agents.wire.relay_tunnels import JOINED, REFUSED, RELAY_HEARTBEAT_SECONDS, STILL_WAITING, WAIT

logger = logging.getLogger("topdp.agents")

RELAY_GREETING_PATTERN = re.compile(rb"topdp relay 1 (wait|call) ([0-9a-f]{64})\n")
RELAY_GREETING_BYTES = len(b"topdp relay 1 wait ") + 64 + 1


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """The limits that a relay sets."""

    connections: int = 1024
    per_address: int = 64
    per_place: int = 4
    """Connections that wait at one meeting place; a further one replaces the oldest."""

    greeting: float = 10.0
    """Seconds for the first line."""

    waiting: float = 600.0
    """Seconds to wait; an agent then comes again."""

    idle: float = 3600.0
    """Seconds in which nothing moves, after which a joined pair is cut.

    Agents send something in every quarter of their idle timeout, which is an hour at most.
    """


@dataclass(eq=False)
class _RelayWaiter:
    end: Connection
    caller: asyncio.Future[Connection] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    over: asyncio.Event = field(default_factory=asyncio.Event)


class RelayServer:
    """Serves from `listen` until `close`."""

    def __init__(self, limits: RelayLimits | None = None) -> None:
        self.limits = limits or RelayLimits()
        self.connections: Counter[str] = Counter()
        self.waiting: dict[str, list[_RelayWaiter]] = {}
        self.joined = 0  # pairs, since it was started
        self._server = ConnectionServer(self._count)
        self._most = descriptors() - RESERVED_DESCRIPTORS

    async def listen(self, address: str) -> None:
        await self._server.listen(address)

    async def close(self) -> None:
        await self._server.close()

    async def _count(self, end: Connection, address: str) -> None:
        """Serve a connection, and count it meanwhile."""
        self.connections[address] += 1
        try:
            await self._serve(keep_alive(end), address)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # it is gone
        finally:
            self.connections -= Counter([address])  # keeps no zeros
            end.writer.close()
            asyncio.get_running_loop().call_later(1.0, end.cut)

    async def _serve(self, end: Connection, address: str) -> None:
        crowded = self.connections[address] > self.limits.per_address
        total = self.connections.total() > self.limits.connections
        if crowded or total or end.writer.get_extra_info("socket").fileno() >= self._most:
            return _refuse(end, "too many connections")
        async with asyncio.timeout(self.limits.greeting):
            greeted = RELAY_GREETING_PATTERN.fullmatch(await end.reader.readexactly(RELAY_GREETING_BYTES))
        if greeted is None:
            return _refuse(end, "expected a greeting of version 1")
        wish, place = greeted[1].decode(), greeted[2].decode()
        if wish == WAIT:
            with suppress(TimeoutError):
                await self._wait(end, place)
        else:
            await self._call(end, place)

    async def _wait(self, end: Connection, place: str) -> None:
        here, waiting = self.waiting.setdefault(place, []), _RelayWaiter(end)
        if len(here) >= self.limits.per_place:
            here.pop(0).end.cut()
        here.append(waiting)
        try:
            async with asyncio.timeout(self.limits.waiting):
                caller = await self._called(waiting)
            if caller is not None:
                self.joined += 1
                caller.writer.write(JOINED)
                end.writer.write(JOINED)
                await self._carry(caller, end)
        finally:
            if waiting in here:
                here.remove(waiting)
            if not here and self.waiting.get(place) is here:
                del self.waiting[place]
            waiting.over.set()

    async def _called(self, waiting: _RelayWaiter) -> Connection | None:
        """Return the caller; None if the waiting agent has left, or has sent bytes out of turn."""
        leaving = asyncio.create_task(waiting.end.reader.read(1))
        both: list[asyncio.Future[Any]] = [leaving, waiting.caller]
        wait = partial(asyncio.wait, both, return_when=asyncio.FIRST_COMPLETED)
        try:
            while not (await wait(timeout=RELAY_HEARTBEAT_SECONDS))[0]:
                waiting.end.writer.write(STILL_WAITING)
            return waiting.caller.result() if not leaving.done() else None
        finally:
            leaving.cancel()
            await asyncio.wait([leaving])

    async def _call(self, end: Connection, place: str) -> None:
        waiting = self._who_waits(place)
        if waiting is None:
            return _refuse(end, "nobody waits there")
        waiting.caller.set_result(end)
        await waiting.over.wait()

    def _who_waits(self, place: str) -> _RelayWaiter | None:
        here = self.waiting.get(place)
        return here.pop(0) if here else None

    async def _carry(self, caller: Connection, listener: Connection) -> None:
        await join(caller, listener, self.limits.idle)


def _refuse(end: Connection, words: str) -> None:
    end.writer.write(REFUSED + words.encode() + b"\n")
