r"""A relay for agents that can only dial out: it joins two connections that name the same meeting place.

Anybody may run a relay, and nobody has to trust it. It carries TLS between two agents that know each other's
certificates, so a malicious relay can only withhold, delay, cut and reorder bytes. It learns the addresses of
the agents that dial it, and the sizes and times of what they send. A meeting place is a hash that reveals no
names. Only the two agents that meet there can compute it, so nobody else can crowd them out. To wait, an
agent shows a token: its signature of the meeting place, by a card of a manifest that the relay was given.

    agent -> relay   "topdp relay 2 wait <place> <fingerprint> <signature>\n"    wait for a call; all in hex
    agent -> relay   "topdp relay 2 call <place>\n"    call
    relay -> agent   "."   the agent still waits               "+"   joined: the other agent's bytes follow
                     "-reason\n"   refused

`relay_tunnels` is an agent's end of it. A relay needs neither torch nor gRPC.

**Guarantees.** Connections are limited in total and per address. Strangers, which have neither shown a token
nor called somebody who waits, hold at most a quarter of them; the oldest is cut. So they cannot close a
relay. One member holds a limited number. Buffers are limited, and a full buffer makes the sender wait. A
connection that sends nothing, or waits for too long, is cut.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from topdp.agents.agreement.identity_card import Card
from topdp.agents.wire.byte_pipes import Connection, ConnectionServer, join, limit_and_probe
from topdp.agents.wire.port_guard import RESERVED_DESCRIPTORS, raise_descriptor_limit
from topdp.agents.wire.relay_tunnels import (
    JOINED,
    REFUSED,
    RELAY_HEARTBEAT_SECONDS,
    STILL_WAITING,
    WAIT,
    signed_place,
)

RELAY_GREETING_PATTERN = re.compile(
    rb"topdp relay 2 (wait|call) ([0-9a-f]{64})(?: ([0-9a-f]{64}) ((?:[0-9a-f]{2})+))?\n"
)
MAX_RELAY_GREETING_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """The limits of a relay."""

    connections: int = 1024
    per_address: int = 64
    per_place: int = 4
    """Connections that wait at one meeting place; one more replaces the oldest."""

    per_card: int = 64
    """Connections of one card that wait; one more replaces the oldest."""

    greeting: float = 10.0
    """Seconds for the first line."""

    waiting: float = 600.0
    """Seconds after which a waiting connection is cut; the agent then dials again."""

    idle: float = 3600.0
    """Seconds without a byte after which two joined connections are cut.

    Agents send something in every quarter of their idle timeout, which is at most an hour.
    """


@dataclass(eq=False)
class _RelayWaiter:
    """A connection that waits for a call."""

    end: Connection
    fingerprint: str = ""  # of the card whose token it showed
    caller: asyncio.Future[Connection] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class RelayServer(ConnectionServer):
    """A relay, from `listen` until `close`."""

    def __init__(self, limits: RelayLimits | None = None, cards: Mapping[str, Card] | None = None) -> None:
        """`cards`: those of the members who may wait, by fingerprint; None: anybody may."""
        super().__init__(self._serve_agent)
        self.limits, self.cards = limits or RelayLimits(), cards
        self._strangers: list[Connection] = []  # the oldest first
        self.connections: Counter[str] = Counter()  # by address
        self.waiting: dict[str, list[_RelayWaiter]] = {}  # by meeting place, the oldest first
        self.joined = 0  # pairs of connections since the start
        self._max_descriptor = raise_descriptor_limit() - RESERVED_DESCRIPTORS

    async def _serve_agent(self, end: Connection, address: str) -> None:
        """Serve a connection to its end, and count it meanwhile."""
        self.connections[address] += 1
        try:
            refusal = await self._refusal_or_none(limit_and_probe(end), address)
            if refusal is not None:
                end.writer.write(REFUSED + refusal.encode() + b"\n")
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the agent has left, or sent nothing for too long
        finally:
            self.connections -= Counter([address])  # drops zero counts
            self._no_stranger(end)
            end.close()

    async def _refusal_or_none(self, end: Connection, address: str) -> str | None:
        """Let a connection wait or call until it ends; return the reason if it is refused instead."""
        is_crowded = (
            self.connections[address] > self.limits.per_address
            or self.connections.total() > self.limits.connections
            or end.writer.get_extra_info("socket").fileno() >= self._max_descriptor
        )
        if is_crowded:
            return "too many connections"
        self._strangers.append(end)
        if len(self._strangers) > max(1, self.limits.connections // 4):
            self._strangers.pop(0).cut()
        async with asyncio.timeout(self.limits.greeting):
            match = RELAY_GREETING_PATTERN.fullmatch(await _first_line(end.reader))
        if match is None:
            return "expected a greeting of version 2"
        role, place, fingerprint, signature = (part.decode() if part else "" for part in match.groups())
        if role == WAIT:
            if not self._may_wait(place, fingerprint, signature):
                return "only members of the manifests of this relay may wait"
            self._no_stranger(end)
            await self._wait(end, place, fingerprint)
            return None
        waiter = self._take_waiter(place)
        if waiter is None:
            return "nobody waits there"
        self._no_stranger(end)
        waiter.caller.set_result(end)
        await waiter.has_ended.wait()
        return None

    def _no_stranger(self, end: Connection) -> None:
        if end in self._strangers:
            self._strangers.remove(end)

    def _may_wait(self, place: str, fingerprint: str, signature: str) -> bool:
        if self.cards is None:
            return True
        card = self.cards.get(fingerprint)
        return card is not None and card.verifies(bytes.fromhex(signature), signed_place(place))

    async def _wait(self, end: Connection, place: str, fingerprint: str) -> None:
        """Wait at a meeting place for a caller, then carry the bytes of the two until one of them ends."""
        waiters, waiter = self.waiting.setdefault(place, []), _RelayWaiter(end, fingerprint)
        if len(waiters) >= self.limits.per_place:
            waiters.pop(0).end.cut()
        own = [
            each
            for waiters in self.waiting.values()
            for each in waiters
            if each.fingerprint == fingerprint != ""
        ]
        if len(own) >= self.limits.per_card:
            own[0].end.cut()
        waiters.append(waiter)
        try:
            async with asyncio.timeout(self.limits.waiting):
                caller = await self._next_caller(waiter)
            if caller is not None:
                self.joined += 1
                caller.writer.write(JOINED)
                end.writer.write(JOINED)
                await self._carry(caller, end)
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and self.waiting.get(place) is waiters:
                del self.waiting[place]
            waiter.has_ended.set()

    async def _next_caller(self, waiter: _RelayWaiter) -> Connection | None:
        """Return the caller; None if the waiting agent has left, or has sent bytes before it was called."""
        early_byte = asyncio.create_task(waiter.end.reader.read(1))
        both: list[asyncio.Future[Any]] = [early_byte, waiter.caller]
        wait = partial(asyncio.wait, both, return_when=asyncio.FIRST_COMPLETED)
        try:
            while not (await wait(timeout=RELAY_HEARTBEAT_SECONDS))[0]:
                waiter.end.writer.write(STILL_WAITING)
            return waiter.caller.result() if not early_byte.done() else None
        finally:
            early_byte.cancel()
            await asyncio.wait([early_byte])

    def _take_waiter(self, place: str) -> _RelayWaiter | None:
        waiters = self.waiting.get(place)
        return waiters.pop(0) if waiters else None

    async def _carry(self, caller: Connection, listener: Connection) -> None:
        await join(caller, listener, self.limits.idle)


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    """Return the first line of a connection; at most `MAX_RELAY_GREETING_BYTES`."""
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_RELAY_GREETING_BYTES:
        line += await reader.readexactly(1)
    return line
