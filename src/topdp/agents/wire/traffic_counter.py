"""A transport that counts: bytes of messages to and from each neighbour. Changes nothing that passes.

What is counted are bodies, not what frames, encryption and the network add to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from topdp.agents.wire.transport import Handler, Message, Reply, Transport


class TrafficCounter(Transport):
    """`inner`, with the bytes `sent` to and `received` from every peer since the process began."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    async def start(self, handle: Handler) -> None:
        async def counted(peer: str, message: Message) -> Reply:
            self.received[peer] += len(message.body)
            reply = await handle(peer, message)
            self.sent[peer] += len(reply.body)
            return reply

        await self.inner.start(counted)

    async def request(self, peer: str, message: Message) -> Reply:
        self.sent[peer] += len(message.body)
        reply = await self.inner.request(peer, message)
        self.received[peer] += len(reply.body)
        return reply

    def reaches(self, peer: str) -> bool:
        return self.inner.reaches(peer)

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        return self.inner.refused

    async def close(self) -> None:
        await self.inner.close()
