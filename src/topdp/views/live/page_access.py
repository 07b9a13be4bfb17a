"""Who may see the live page: tokens, the names under which it is asked for, and the headers of every answer.

Not what is on the page: whoever is let in sees all of it, but for those who hold the token of what is
published, who see that alone.

**Guarantees.** Without a token only requests to a loopback name are answered, so that a web site that points
a name of its own at this machine learns nothing. With one, every page and number needs it; it is compared in
constant time, and never kept by the browser: the cookie follows from it, and it does not follow from the
cookie. Loopback does not keep out other people on the same machine; a token does.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from topdp.base.files import FileError, write_atomically
from topdp.errors import InputError

SHORTEST = 16  # characters of a token that a person chose
PUBLISHED = "/api/published"
STATIC = "/static/"
POSTS = "/api/plan"  # the planner computes on what it is sent, and keeps nothing

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Refusal:
    """An answer that is none: its status, and why in words."""

    status: int
    title: str
    words: str


UNKNOWN_HOST = Refusal(
    421,
    "Not asked for by this name",
    "This page answers to localhost, 127.0.0.1 and ::1 alone, since it was started without a token. To reach "
    "it by another name start topdp dash with --token-file.",
)
NO_TOKEN = Refusal(
    401,
    "A token is needed",
    "Open the address that topdp dash printed when it was started: it ends in ?token=... If the server was "
    "started again since, its token may be another one.",
)
READ_ONLY = Refusal(405, "Read only", "Nothing can be changed from here: only GET is answered.")
FOREIGN = Refusal(403, "Asked from another site", "This came from a page of another site, and is refused.")


@dataclass(frozen=True)
class Access:
    """`token`: sees everything. `published`: sees what agents publish, and nothing else."""

    token: str | None = None
    published: str | None = None
    cookie_name: str = "topdp-dash"

    @property
    def cookie(self) -> str:
        """What the browser keeps. Cookies go to every port of a host, so it is not the token itself."""
        return hmac.new((self.token or "").encode(), b"topdp dash cookie", hashlib.sha256).hexdigest()

    def refusal(
        self, method: str, path: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> Refusal | None:
        """Why this request is not answered; None: it is. Names of headers are in small letters."""
        if self.token is None and not is_loopback(_host(headers.get("host", ""))):
            return UNKNOWN_HOST
        # Same-site is another port of this machine, which is another program and perhaps another user.
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return FOREIGN
        if method == "POST" and path.startswith(POSTS):
            if urlsplit(headers.get("origin", "")).netloc != headers.get("host"):
                return FOREIGN
        elif method not in ("GET", "HEAD"):
            return READ_ONLY
        if path.startswith(STATIC) or self.token is None:
            return None
        return None if self._knows(path, headers, cookies) else NO_TOKEN

    def is_token(self, text: str) -> bool:
        return self.token is not None and _same(text, self.token)

    def _knows(self, path: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        kind, _, said = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            reads_published = self.published is not None and path == PUBLISHED
            return self.is_token(said) or (reads_published and _same(said, self.published or ""))
        return _same(cookies.get(self.cookie_name, ""), self.cookie)


def is_loopback(host: str) -> bool:
    """
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
    """The token in `file`, which is made where it is not there yet; else of the environment's `variable`."""
    if file is None:
        text = os.environ.get(variable)
        return None if not text else _checked(text.strip(), variable)
    try:
        if not file.exists():
            write_atomically(file, new_token() + "\n", 0o600)
        if file.stat().st_mode & 0o077:
            raise InputError(
                f"{file}: expected a token that nobody else can read, got mode "
                f"{file.stat().st_mode & 0o777:o}: chmod 600 {file}"
            )
        return _checked(file.read_text(encoding="utf-8").strip(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: expected a file with a token, or a place for one: {error}") from error


def new_token() -> str:
    return secrets.token_urlsafe(32)


def cookies_of(header: str) -> dict[str, str]:
    """
    >>> cookies_of("a=1; topdp-dash=abc; b")
    {'a': '1', 'topdp-dash': 'abc', 'b': ''}
    """
    pairs: Iterable[tuple[str, str, str]] = (part.strip().partition("=") for part in header.split(";"))
    return {name: value for name, _, value in pairs if name}


def _checked(token: str, place: str) -> str:
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{place}: expected a token of at least {SHORTEST} letters, digits and signs, got "
            f"{len(token)} characters. Without the file topdp dash makes a good one."
        )
    return token


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _host(header: str) -> str:
    """The name in a Host header, without the port.

    >>> [_host(text) for text in ("localhost:80", "[::1]:80", "a.example", "[::1", "a@localhost")]
    ['localhost', '::1', 'a.example', '', '']
    """
    try:
        found = urlsplit(f"//{header}")
        return "" if "@" in header or found.hostname is None else found.hostname
    except ValueError:
        return ""
