"""Connections to the live page: how many there may be, and how long one may take to ask. Not who is let in.

**Guarantees.** Somebody who opens connections and says nothing, or one byte now and then, loses them after
`ASKING` seconds, and one address beyond this machine has `OF_ONE` at most: pages stay open to others. By
itself the server below waits for a question for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from topdp.views.live.page_access import is_loopback

MOST = 256  # at once; pages need one or two each
OF_ONE = 64  # of them for one address beyond this machine
ASKING = 10.0  # seconds to finish a question


class Prompt(H11Protocol):
    """One connection."""

    _since: float | None = None  # when it began to ask
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        mine = self.client[0] if self.client else ""
        clients = [getattr(one, "client", None) for one in self.connections]
        same = sum(client is not None and client[0] == mine for client in clients)
        if len(self.connections) > MOST or (same > OF_ONE and not is_loopback(mine)):
            transport.abort()
            return
        self._since = self.loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._asks():
            self._since = None
        elif self._since is None:
            self._since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _asks(self) -> bool:
        """Nothing is being answered, and nobody counts the seconds since the last answer."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and self.timeout_keep_alive_task is None

    def _watch(self) -> None:
        if self._since is not None and self._asks() and self.loop.time() - self._since >= ASKING:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(ASKING / 2, self._watch)
