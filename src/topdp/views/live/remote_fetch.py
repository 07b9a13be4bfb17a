"""One HTTP request to another server, bounded in time and size, and sent to nobody else.

**Guarantees.** The request uses no proxy, redirect, cookie or decompression. A server that answers byte by
byte, in the handshake, the headers or the body, is cut off when the time for the whole response is over. A
limit only on the time between two pieces would let such a response take days.
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

STATUS_PROBLEMS = {401: "the token is refused", 421: "another host name or a token is expected"}
TOO_LATE = "the server did not answer in time"


class FetchError(InputError):
    """A place gave no response or an unexpected one. The error is caught, and shown on the page."""


def fetch(url: str, token: str | None, certificate: Path | None) -> bytes:
    """Return the body of the response from `url`. Raise FetchError if there is no valid response.

    `token` is sent with the request. `certificate`: the file of a certificate to trust, or None for those of
    public authorities.
    """
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
                    problem = f"the server answered with the HTTP status {response.status}"
                    raise FetchError(STATUS_PROBLEMS.get(response.status, problem))
                body = response.read(MAX_RESPONSE_BYTES + 1)
            finally:
                if expired.is_set():
                    raise FetchError(TOO_LATE)
    except ssl.SSLError as error:
        raise FetchError("the certificate of the server is not trusted") from error
    except TimeoutError as error:
        raise FetchError(TOO_LATE) from error
    except (OSError, HTTPException, UnicodeError) as error:
        raise FetchError("the server cannot be reached") from error
    if len(body) > MAX_RESPONSE_BYTES:
        raise FetchError("the response is too long")
    return body


def _connection(scheme: str, host: str, port: int | None, certificate: Path | None) -> HTTPConnection:
    if scheme == "http":
        return HTTPConnection(host, port, timeout=VIEW_CONNECT_SECONDS)
    trusted = ssl.create_default_context(cafile=None if certificate is None else str(certificate))
    return HTTPSConnection(host, port, timeout=VIEW_CONNECT_SECONDS, context=trusted)


@contextmanager
def _time_limit(connection: HTTPConnection) -> Iterator[threading.Event]:
    """Open the connection, and yield an event that is set when the time is over.

    The connection is then shut down. It is closed after the body of the `with` statement.
    """
    expired, sockets = threading.Event(), list[socket.socket]()

    def shut_down() -> None:
        expired.set()
        for open_socket in [*sockets, *([connection.sock] if connection.sock else [])]:
            with suppress(OSError):
                # Shut down the socket below TLS, because TLS would wait for the other side.
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
