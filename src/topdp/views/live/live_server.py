"""Serve the live page on a port. The port is bound before it is announced; a stop takes about a second.

**Guarantees.** A client that opens connections and sends nothing, or a byte now and then, loses them after
`REQUEST_SECONDS`. An address other than this machine has at most `MAX_CONNECTIONS_PER_ADDRESS` connections.
So pages stay available to others. Without this module, uvicorn would wait for requests without a limit.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from topdp.errors import InputError, UnavailableError
from topdp.views.live.live_app import Dash
from topdp.views.live.page_access import PageGuard, is_loopback

MAX_CONNECTIONS = 256  # a page needs one or two
MAX_CONNECTIONS_PER_ADDRESS = 64  # for addresses other than this machine
REQUEST_SECONDS = 10.0  # a client must send a request within this time
SERVER_SHUTDOWN_SECONDS = 1  # the time that a stop leaves to requests in progress


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`. Raise InputError or UnavailableError otherwise."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host: expected an address of this machine, got {host!r}.") from error
    family, *_, address = addresses[0]
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=dual)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(
                f"Port {port} of {host} is in use by another program, perhaps by a topdp dash. Stop that "
                "program, or choose another port with --port; --port 0 takes a free one."
            ) from None
        if error.errno == errno.EACCES:
            raise UnavailableError(
                f"Port {port} is not allowed for this user. Choose a port above 1023 with --port."
            ) from None
        raise InputError(
            f"--host: expected an address of this machine, got {host!r}: {error.strerror}."
        ) from None


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
        """Return whether a request is incomplete, and the keep-alive timer does not run."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and self.timeout_keep_alive_task is None

    def _check(self) -> None:
        late = self._since is not None and self.loop.time() - self._since >= REQUEST_SECONDS
        if late and self._is_receiving():
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(REQUEST_SECONDS / 2, self._check)


class _Server(uvicorn.Server):
    """A server that leaves signals to `serve`, which first ends the open streams."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: PageGuard,
    dash: Dash,
    sock: socket.socket,
    certificate: Path | None = None,
    key: Path | None = None,
    *,
    on_start: Callable[[Callable[[], object]], None] | None = None,
    exit_process: Callable[[], object] = lambda: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM. Raise InputError if `certificate` or `key` cannot be used.

    If `on_start` is given, it is called with a function that stops the server, and signals are not handled.
    `exit_process` is called shortly after the stop, or at a second signal, because threads may still be
    computing, and Python would wait for them.
    """
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # addresses may contain a token
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        http=LimitedConnection,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SERVER_SHUTDOWN_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise InputError(
            f"--certificate, --key: expected PEM files that belong together, cannot load them: {error}."
        ) from error
    server = _Server(config)

    def stop() -> None:
        if server.should_exit:
            exit_process()
        dash.events.close()
        server.should_exit = True
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # interrupted responses are expected now
        timer = threading.Timer(SERVER_SHUTDOWN_SECONDS + 0.5, exit_process)
        timer.daemon = True
        timer.start()

    loop = asyncio.get_running_loop()
    if on_start is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt instead
                loop.add_signal_handler(number, stop)
    else:
        on_start(lambda: loop.call_soon_threadsafe(stop))
    await server.serve(sockets=[sock])
