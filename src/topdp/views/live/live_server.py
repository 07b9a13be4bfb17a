"""Serve the live page on a port. Binds before the address is announced, and stops within about a second."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn

from topdp.errors import InputError, UnavailableError
from topdp.views.live.connection_limits import MAX_CONNECTIONS, LimitedConnection
from topdp.views.live.live_app import Dash
from topdp.views.live.page_guard import PageGuard

SERVER_SHUTDOWN_SECONDS = 1  # for requests in progress


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an error that says why there is none."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host: expected an address of this machine, got {host!r}.") from error
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(
                f"Port {port} of {host} is in use by another program, perhaps by a topdp dash. Stop that "
                "program, or choose another port with --port; --port 0 takes a free one."
            ) from None
        if error.errno == errno.EACCES:
            raise UnavailableError(
                f"Port {port} is not allowed for this user. Choose one above 1023."
            ) from None
        raise InputError(
            f"--host: expected an address of this machine, got {host!r}: {error.strerror}."
        ) from None
    return listener


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which first ends the open streams."""

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
    on_start: Callable[[Callable[[], None]], None] | None = None,
    exit_process: Callable[[], object] = lambda: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    `on_start` receives a function that stops the server, and replaces the handling of signals. `exit_process`
    is called shortly after the stop, or at a second signal: threads may still be computing, and Python would
    wait for them.
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
            f"--certificate, --key: expected PEM files that belong together: {error}."
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
            loop.add_signal_handler(number, stop)
    else:
        on_start(partial(_stop_from_thread, loop, stop))
    await server.serve(sockets=[sock])


def _stop_from_thread(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(stop)
