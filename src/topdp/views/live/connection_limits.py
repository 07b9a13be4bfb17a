"""Limits on connections to the live page: their number, and the time to send a request.

**Guarantees.** A client that opens connections and sends nothing, or a byte now and then, loses them after
`REQUEST_SECONDS`, and an address other than this machine has at most `MAX_CONNECTIONS_PER_ADDRESS`. So pages
stay available to others. By itself the server waits for requests without a limit.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from topdp.views.live.page_access import is_loopback

MAX_CONNECTIONS = 256  # a page needs one or two
MAX_CONNECTIONS_PER_ADDRESS = 64  # for addresses other than this machine
REQUEST_SECONDS = 10.0  # to send a request


class LimitedConnection(H11Protocol):
    """One connection, which is closed when a request takes too long."""

    _since: float | None = None  # when the current request began
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        clients = [getattr(connection, "client", None) for connection in self.connections]
        same = sum(client is not None and client[0] == address for client in clients)
        limited = same > MAX_CONNECTIONS_PER_ADDRESS and not is_loopback(address)
        if len(self.connections) > MAX_CONNECTIONS or limited:
            transport.abort()
            return
        self._since = self.loop.time()
        self._check()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_receiving():
            self._since = None
        elif self._since is None:
            self._since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _is_receiving(self) -> bool:
        """Whether a request is incomplete, and the keep-alive timer does not run."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and self.timeout_keep_alive_task is None

    def _check(self) -> None:
        late = self._since is not None and self.loop.time() - self._since >= REQUEST_SECONDS
        if late and self._is_receiving():
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(REQUEST_SECONDS / 2, self._check)
