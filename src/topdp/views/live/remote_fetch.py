"""One question to another server: bounded in time and size, and sent to nobody else. Not what it means.

**Guarantees.** No proxy, no redirect, no cookie, nothing unpacked. Whoever answers one byte at a time, in the
handshake, in headers or in the body, is cut off when the time for the whole is over: a limit on the time
between two pieces alone would let such an answer take days.
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

CONNECT = 3.0  # seconds for each of the addresses of a name
WHOLE = 10.0  # seconds for a whole answer
LARGEST = 2_000_000  # bytes of an answer

STATUS = {401: "its token is refused", 421: "it asks for another name, or a token"}


class NoAnswerError(InputError):
    """A place that did not answer, or not with what was expected. Caught, and shown on the page."""


def fetched(url: str, token: str | None, certificate: Path | None) -> bytes:
    """The body at an address; the token goes with the question."""
    parts = urlsplit(url)
    asked = {"Accept": "application/json", "Connection": "close"}
    if token is not None:
        asked["Authorization"] = f"Bearer {token}"
    try:
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, certificate)
        with _cut_off(connection) as was_cut:
            try:
                connection.request("GET", parts.path or "/", headers=asked)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise NoAnswerError(STATUS.get(answer.status, f"it answered {answer.status}"))
                body = answer.read(LARGEST + 1)
            finally:
                if was_cut.is_set():
                    raise NoAnswerError("it did not answer in time")
    except ssl.SSLError as error:
        raise NoAnswerError("its certificate is not believed") from error
    except TimeoutError as error:
        raise NoAnswerError("it did not answer in time") from error
    except (OSError, HTTPException, UnicodeError) as error:
        raise NoAnswerError("it cannot be reached") from error
    if len(body) > LARGEST:
        raise NoAnswerError("its answer is too long")
    return body


def _connection(scheme: str, host: str, port: int | None, certificate: Path | None) -> HTTPConnection:
    if scheme == "http":
        return HTTPConnection(host, port, timeout=CONNECT)
    believed = ssl.create_default_context(cafile=None if certificate is None else str(certificate))
    return HTTPSConnection(host, port, timeout=CONNECT, context=believed)


@contextmanager
def _cut_off(connection: HTTPConnection) -> Iterator[threading.Event]:
    """Connects, and ends the connection when the time is over: the event then says so."""
    was_cut, open = threading.Event(), list[socket.socket]()

    def cut() -> None:
        was_cut.set()
        for one in [*open, *([connection.sock] if connection.sock else [])]:
            with suppress(OSError):
                socket.socket.shutdown(
                    one, socket.SHUT_RDWR
                )  # below TLS, which would wait for the other side

    timer = threading.Timer(WHOLE, cut)
    timer.daemon = True
    timer.start()
    try:
        try:
            connection.connect()
        finally:
            if was_cut.is_set():
                raise NoAnswerError("it did not answer in time")
        open.append(connection.sock)  # an answer keeps it open after the connection has let go of it
        connection.sock.settimeout(WHOLE)
        yield was_cut
    finally:
        timer.cancel()
        connection.close()
        for one in open:
            one.close()
