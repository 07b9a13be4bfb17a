"""Access to the live page: tokens, accepted host names, and middleware that adds headers to every response.

A client with the token sees everything. A client with the token for publishing sees only what is published.

**Guarantees.** If the page has no token, only requests to a loopback name are answered, so that a web site
that points its own name at this machine learns nothing. If the page has a token, every page and number
requires it. The token is compared in constant time and never stored by the browser: the cookie follows from
the token, but not the token from the cookie. Loopback does not keep out other people on the same machine; a
token does.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topdp.base.files import FileError, write_atomically
from topdp.errors import InputError
from topdp.views.pages.page_assets import live_page

MIN_TOKEN_CHARACTERS = 16
PUBLISHED_PATH = "/api/published"
STATIC_PATH = "/static/"
PLANNER_PATH = "/api/plan"  # accepts POST: the planner computes on the request and stores nothing

_RESPONSES = tomllib.loads(Path(__file__).with_name("responses.toml").read_text(encoding="utf-8"))
SECURITY_HEADERS: dict[str, str] = _RESPONSES["headers"]


@dataclass(frozen=True)
class Refusal:
    """A refused request: the status, and the reason in words."""

    status: int
    title: str
    words: str


UNKNOWN_HOST = Refusal(**_RESPONSES["unknown-host"])
NO_TOKEN = Refusal(**_RESPONSES["no-token"])
READ_ONLY = Refusal(**_RESPONSES["read-only"])
CROSS_SITE = Refusal(**_RESPONSES["cross-site"])


@dataclass(frozen=True)
class Access:
    """The tokens. `token` gives access to everything, `published` only to what agents publish."""

    token: str | None = None
    published: str | None = None
    cookie_name: str = "topdp-dash"

    @property
    def cookie(self) -> str:
        """The browser's cookie.

        It is not the token, because browsers send cookies to every port of a host.
        """
        return hmac.new((self.token or "").encode(), b"topdp dash cookie", hashlib.sha256).hexdigest()

    def refusal(self, request: HTTPConnection) -> Refusal | None:
        """Return the refusal of the request, or None if it is allowed."""
        method, path, headers = request.scope["method"], request.scope["path"], request.headers
        if self.token is None and not is_loopback(_host(headers.get("host", ""))):
            return UNKNOWN_HOST
        # A same-site request may come from another program on this machine, perhaps of another user.
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return CROSS_SITE
        if method == "POST" and path.startswith(PLANNER_PATH):
            if urlsplit(headers.get("origin", "")).netloc != headers.get("host"):
                return CROSS_SITE
        elif method not in ("GET", "HEAD"):
            return READ_ONLY
        if path.startswith(STATIC_PATH) or self.token is None:
            return None
        return None if self._is_authorised(request) else NO_TOKEN

    def is_token(self, text: str) -> bool:
        return self.token is not None and _same(text, self.token)

    def _is_authorised(self, request: HTTPConnection) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            reads_published = self.published is not None and request.scope["path"] == PUBLISHED_PATH
            return self.is_token(token) or (reads_published and _same(token, self.published or ""))
        return _same(request.cookies.get(self.cookie_name, ""), self.cookie)


class PageGuard:
    """Middleware that refuses requests without access. `secure`: whether `app` is served over https."""

    def __init__(self, app: ASGIApp, access: Access, secure: bool = False) -> None:
        self.app, self.access, self.secure = app, access, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _headers(message["headers"], scope["path"])}
            await send(message)

        response = self._own_response(HTTPConnection(scope))
        await (self.app if response is None else response)(scope, receive, with_headers)

    def _own_response(self, request: HTTPConnection) -> Response | None:
        """Return the guard's own response, or None if `app` is to answer the request."""
        if request.scope["method"] == "GET" and self.access.is_token(request.query_params.get("token", "")):
            return self._welcome()
        refusal = self.access.refusal(request)
        return None if refusal is None else refusal_response(refusal, request.scope["path"])

    def _welcome(self) -> Response:
        """Move the token from the address into a cookie.

        Respond with a page that forwards by itself, not with a redirect: because of SameSite=Strict, a
        browser that came from another site would follow a redirect without the new cookie.
        """
        response = HTMLResponse(live_page("welcome.html"))
        response.set_cookie(
            self.access.cookie_name, self.access.cookie, httponly=True, samesite="strict", secure=self.secure
        )
        return response


def refusal_response(refusal: Refusal, path: str) -> Response:
    """Return the refusal as JSON if `path` is for programs, and otherwise as a page for people."""
    headers = {"www-authenticate": "Bearer"} if refusal is NO_TOKEN else {}
    if path.startswith("/api/"):
        return JSONResponse({"problem": refusal.words}, refusal.status, headers)
    text = live_page("refused.html", title=refusal.title, words=refusal.words)
    return HTMLResponse(text, refusal.status, headers)


def _headers(own: Any, path: str) -> list[tuple[bytes, bytes]]:
    security = dict(SECURITY_HEADERS)
    if path.startswith(STATIC_PATH):
        security["cache-control"] = "no-cache"  # public files; browsers revalidate them by tag
    others = [(name, value) for name, value in own if name.lower().decode("latin-1") not in security]
    return [*others, *((name.encode(), value.encode()) for name, value in security.items())]


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "127.evil.example", "0.0.0.0", "")]
    [True, True, True, False, False, False]
    """
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_from(file: Path | None, variable: str) -> str | None:
    """Return the token in `file`, or in the environment variable `variable` if `file` is None.

    If `file` does not exist, create it with a new token. Return None if the variable is not set.
    """
    if file is None:
        text = os.environ.get(variable)
        return None if not text else _checked(text.strip(), variable)
    try:
        if not file.exists():
            write_atomically(file, new_token() + "\n", 0o600)
        if file.stat().st_mode & 0o077:
            raise InputError(
                f"{file}: expected a token that nobody else can read, got mode "
                f"{file.stat().st_mode & 0o777:o}. Run: chmod 600 {file}"
            )
        return _checked(file.read_text(encoding="utf-8").strip(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: expected a file with a token, or a path for a new one: {error}") from error


def new_token() -> str:
    return secrets.token_urlsafe(32)


def _checked(token: str, origin: str) -> str:
    allowed = token.isascii() and token.isprintable() and " " not in token
    if len(token) < MIN_TOKEN_CHARACTERS or not allowed:
        raise InputError(
            f"{origin}: expected a token of at least {MIN_TOKEN_CHARACTERS} letters, digits and signs, got "
            f"{len(token)} characters. Name a file that does not exist: topdp dash writes a token to it."
        )
    return token


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(errors="replace"), b.encode(errors="replace"))


def _host(header: str) -> str:
    """Return the name in a Host header without the port; empty if the header is invalid.

    >>> [_host(text) for text in ("localhost:80", "[::1]:80", "a.example", "[::1", "a@localhost")]
    ['localhost', '::1', 'a.example', '', '']
    """
    try:
        host = urlsplit(f"//{header}").hostname
        return "" if "@" in header or host is None else host
    except ValueError:
        return ""
