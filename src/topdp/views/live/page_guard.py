"""Stands before the live page: lets in whom `access` lets in, and puts its headers on every answer.

What is answered to those who are let in is `app`'s. Errors pass here too: no answer is without headers.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topdp.views.live.page_access import HEADERS, NO_TOKEN, STATIC, Access, Refusal, cookies_of
from topdp.views.live.page_templates import page

LONGEST_QUERY = 4096  # bytes


class Guard:
    """An application around another. `secure`: it is asked for by https."""

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

        answer = self._answer(scope)
        await (self.app if answer is None else answer)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered here; None: whatever the application says."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        said = parse_qs(scope["query_string"][:LONGEST_QUERY].decode("latin-1")).get("token")
        if said and scope["method"] == "GET" and self.access.is_token(said[0]):
            return self._welcome()
        refusal = self.access.refusal(
            scope["method"], scope["path"], headers, cookies_of(headers.get("cookie", ""))
        )
        return None if refusal is None else refused(refusal, scope["path"])

    def _welcome(self) -> Response:
        """The token goes from the address into a cookie.

        By a page that goes on by itself and not by a redirect: a browser that came from another site would
        follow that one without the new cookie, because SameSite=Strict.
        """
        answer = HTMLResponse(page("welcome.html"))
        answer.set_cookie(
            self.access.cookie_name, self.access.cookie, httponly=True, samesite="strict", secure=self.secure
        )
        return answer


def refused(refusal: Refusal, path: str) -> Response:
    """For people a page in words, for programs JSON."""
    headers = {"www-authenticate": "Bearer"} if refusal is NO_TOKEN else {}
    if path.startswith("/api/"):
        return JSONResponse({"problem": refusal.words}, refusal.status, headers)
    text = page("refused.html", title=refusal.title, words=refusal.words)
    return HTMLResponse(text, refusal.status, headers)


def _headers(given: Any, path: str) -> list[tuple[bytes, bytes]]:
    ours = dict(HEADERS)
    if path.startswith(STATIC):
        ours["cache-control"] = "no-cache"  # the same for everybody; asked for again, with its tag
    names = {name.encode() for name in ours}
    kept = [(name, value) for name, value in given if name.lower() not in names]
    return [*kept, *((name.encode(), value.encode()) for name, value in ours.items())]
