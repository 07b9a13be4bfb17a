"""Server-sent events on one connection, until the page closes, falls behind, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from topdp.views.live.page_events import Events

SEND_SECONDS = 20.0  # a page must accept each event within this time


class EventStream:
    """A response without an end. Use `open`, which raises TooManyListeners before the response begins."""

    def __init__(self, first: str, rest: AsyncIterator[str]) -> None:
        self._first, self._rest = first, rest

    @classmethod
    async def open(cls, events: Events, after: str | None, visitor: str = "") -> EventStream:
        rest = events.listen(after, visitor=visitor)
        return cls(await anext(rest), rest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        sending = asyncio.create_task(self._send_all(send, headers))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnect):
                task.cancel()
            # A page that is too slow gets an incomplete response: the server then closes its connection.
            with suppress(asyncio.CancelledError, TimeoutError):
                await sending
            await self._rest.aclose()  # type: ignore[attr-defined]

    async def _send_all(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send_text(send, self._first)
        async for text in self._rest:
            await self._send_text(send, text)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_text(self, send: Send, text: str) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
