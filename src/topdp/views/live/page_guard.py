"""Middleware of the live page: check access, and add security headers to every response, also to errors."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topdp.views.live.page_access import (
    NO_TOKEN,
    SECURITY_HEADERS,
    STATIC_PATH,
    Access,
    Refusal,
    cookies_of,
)
from topdp.views.live.page_templates import page

MAX_QUERY_BYTES = 4096


class PageGuard:
    """An application around another one. `secure`: whether it is served over https."""

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

        response = self._own_response(scope)
        await (self.app if response is None else response)(scope, receive, with_headers)

    def _own_response(self, scope: Scope) -> Response | None:
        """Return the guard's own response, or None to pass the request on."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        token = parse_qs(scope["query_string"][:MAX_QUERY_BYTES].decode("latin-1")).get("token")
        if token and scope["method"] == "GET" and self.access.is_token(token[0]):
            return self._welcome()
        refusal = self.access.refusal(
            scope["method"], scope["path"], headers, cookies_of(headers.get("cookie", ""))
        )
        return None if refusal is None else refusal_response(refusal, scope["path"])

    def _welcome(self) -> Response:
        """Move the token from the address into a cookie.

        Respond with a page that forwards by itself, not with a redirect: because of SameSite=Strict, a
        browser that came from another site would follow a redirect without the new cookie.
        """
        response = HTMLResponse(page("welcome.html"))
        response.set_cookie(
            self.access.cookie_name, self.access.cookie, httponly=True, samesite="strict", secure=self.secure
        )
        return response


def refusal_response(refusal: Refusal, path: str) -> Response:
    """Return a page for people, or JSON for programs."""
    headers = {"www-authenticate": "Bearer"} if refusal is NO_TOKEN else {}
    if path.startswith("/api/"):
        return JSONResponse({"problem": refusal.words}, refusal.status, headers)
    text = page("refused.html", title=refusal.title, words=refusal.words)
    return HTMLResponse(text, refusal.status, headers)


def _headers(given: Any, path: str) -> list[tuple[bytes, bytes]]:
    security = dict(SECURITY_HEADERS)
    if path.startswith(STATIC_PATH):
        security["cache-control"] = "no-cache"  # public files; browsers revalidate them by tag
    names = {name.encode() for name in security}
    others = [(name, value) for name, value in given if name.lower() not in names]
    return [*others, *((name.encode(), value.encode()) for name, value in security.items())]
