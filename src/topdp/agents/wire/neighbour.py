"""One neighbour, over all its links: which one is open, and what the trouble is if none is.

How links come to be is `grpc_transport`'s, what one does `links`'.
"""

from __future__ import annotations

import asyncio

from topdp.agents.agreement.identity_card import Card
from topdp.agents.wire.link_limits import PendingRequests
from topdp.agents.wire.link_refusals import LinkEnded
from topdp.agents.wire.links import Link
from topdp.agents.wire.transport import Unreachable


class Neighbour:
    """Outlives its links; has one at a time."""

    def __init__(self, card: Card, in_flight: int) -> None:
        self.card = card
        self.pending = PendingRequests(in_flight)
        self.link: Link | None = None
        self.linked = asyncio.Event()
        self.greetings = 0
        self.dialled = 0
        self.trouble = "it has not been there yet"
        self._closed = False

    async def reached(self, patience: float) -> Link:
        """Its link, or the next one that is opened within `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self.linked.wait()
        except TimeoutError:
            raise Unreachable(f"{self.card.name} is not linked: {self.trouble}.") from None
        if self.link is None:
            raise Unreachable(f"{self.card.name} is not linked: this agent was closed.")
        return self.link

    async def serve(self, link: Link) -> LinkEnded:
        """A link that both ends believe in, until it ends. A newer one takes the place of an older one."""
        if self.link is not None:
            self.link.cut("replaced", "the peer has opened a new link")
        self.link = link
        self.linked.set()
        try:
            ended = await link.run()
            self.trouble = f"the last link ended: {ended.words}"
            return ended
        finally:
            if self.link is link:
                self.link = None
                if not self._closed:
                    self.linked.clear()

    async def close(self) -> None:
        """Ends the link; whoever waits for one is told."""
        self._closed = True
        link, self.link = self.link, None
        self.linked.set()
        if link is not None:
            await link.finish()
