"""One HTTP request to another server, bounded in time and size, and sent to nobody else.

**Guarantees.** No proxy, redirect, cookie or decompression. A server that answers byte by byte, in the
handshake, the headers or the body, is cut off when the time for the whole response is over. A limit on the
time between two pieces alone would let such a response take days.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from topdp.errors import InputError

VIEW_CONNECT_SECONDS = 3.0  # for each address of a name
RESPONSE_SECONDS = 10.0  # for the whole response
MAX_RESPONSE_BYTES = 2_000_000

STATUS_PROBLEMS = {401: "it refuses the token", 421: "it expects another host name or a token"}
TOO_LATE = "it did not answer in time"


class FetchError(InputError):
    """A place gave no response or an unexpected one. Caught, and shown on the page."""


def fetch(url: str, token: str | None, certificate: Path | None) -> bytes:
    """Return the body at an address. The token is sent with the request."""
    parts = urlsplit(url)
    headers = {"Accept": "application/json", "Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, certificate)
        with _time_limit(connection) as expired:
            try:
                connection.request("GET", parts.path or "/", headers=headers)
                response = connection.getresponse()
                if response.status != 200:
                    problem = STATUS_PROBLEMS.get(response.status, f"it answered {response.status}")
                    raise FetchError(problem)
                body = response.read(MAX_RESPONSE_BYTES + 1)
            finally:
                if expired.is_set():
                    raise FetchError(TOO_LATE)
    except ssl.SSLError as error:
        raise FetchError("its certificate is not trusted") from error
    except TimeoutError as error:
        raise FetchError(TOO_LATE) from error
    except (OSError, HTTPException, UnicodeError) as error:
        raise FetchError("it cannot be reached") from error
    if len(body) > MAX_RESPONSE_BYTES:
        raise FetchError("its answer is too long")
    return body


def _connection(scheme: str, host: str, port: int | None, certificate: Path | None) -> HTTPConnection:
    if scheme == "http":
        return HTTPConnection(host, port, timeout=VIEW_CONNECT_SECONDS)
    trusted = ssl.create_default_context(cafile=None if certificate is None else str(certificate))
    return HTTPSConnection(host, port, timeout=VIEW_CONNECT_SECONDS, context=trusted)


@contextmanager
def _time_limit(connection: HTTPConnection) -> Iterator[threading.Event]:
    """Connect, and close the connection when the time is over, which sets the event."""
    expired, sockets = threading.Event(), list[socket.socket]()

    def shut_down() -> None:
        expired.set()
        for open_socket in [*sockets, *([connection.sock] if connection.sock else [])]:
            with suppress(OSError):
                # Below TLS, whose own shutdown waits for the other side.
                socket.socket.shutdown(open_socket, socket.SHUT_RDWR)

    timer = threading.Timer(RESPONSE_SECONDS, shut_down)
    timer.daemon = True
    timer.start()
    try:
        try:
            connection.connect()
        finally:
            if expired.is_set():
                raise FetchError(TOO_LATE)
        sockets.append(connection.sock)  # a response keeps the socket after the connection has released it
        connection.sock.settimeout(RESPONSE_SECONDS)
        yield expired
    finally:
        timer.cancel()
        connection.close()
        for open_socket in sockets:
            open_socket.close()
