"""The live page on a port: bound before anything is promised, and ended within a second of being asked to."""

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
from topdp.views.live.connection_limits import MOST, Prompt
from topdp.views.live.live_app import Dash
from topdp.views.live.page_guard import Guard

END = 1  # seconds for whoever is being answered when the server ends


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, or why there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host: expected an address of this machine, got {host!r}.") from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(
                f"Port {port} of {host} is in use: another program has it, perhaps a topdp dash. End that "
                "one, or name another with --port; --port 0 takes a free one."
            ) from None
        if error.errno == errno.EACCES:
            raise UnavailableError(f"Port {port} is not for this user: name one above 1023.") from None
        raise InputError(
            f"--host: expected an address of this machine, got {host!r}: {error.strerror}."
        ) from None
    return made


class _Server(uvicorn.Server):
    """Signals are heard by whoever serves, so that open streams are ended first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: Guard,
    dash: Dash,
    sock: socket.socket,
    certificate: Path | None = None,
    key: Path | None = None,
    stopping: Callable[[Callable[[], None]], None] | None = None,
    leave: Callable[[], object] = lambda: None,
) -> None:
    """Until Ctrl-C or SIGTERM, or until what `stopping` is given is called.

    `leave` is called a moment after that, or at a second signal: threads may be reading or computing still,
    and Python would wait for them.
    """
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # addresses may hold a token
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        http=Prompt,
        limit_concurrency=MOST,
        timeout_graceful_shutdown=END,
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
            leave()
        dash.events.close()
        server.should_exit = True
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # whose answers are cut off is no news
        late = threading.Timer(END + 0.5, leave)
        late.daemon = True
        late.start()

    loop = asyncio.get_running_loop()
    if stopping is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
    else:
        stopping(partial(_soon, loop, stop))
    await server.serve(sockets=[sock])


def _soon(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """From another thread."""
    loop.call_soon_threadsafe(stop)
