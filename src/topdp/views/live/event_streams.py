"""Events on an open connection: ends when the page is gone, when it is too slow, and when the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from topdp.views.live.page_events import Events

SLOW = 20.0  # seconds in which a page must take what it is sent


class EventStream:
    """An answer that goes on. Made by `begin`, so that one listener too many is told before it begins."""

    def __init__(self, first: str, rest: AsyncIterator[str]) -> None:
        self._first, self._rest = first, rest

    @classmethod
    async def begin(cls, events: Events, after: str | None, visitor: str = "") -> EventStream:
        rest = events.listen(after, visitor=visitor)
        return cls(await anext(rest), rest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        telling = asyncio.create_task(self._tell(send, headers))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((telling, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, gone):
                task.cancel()
            # One that is too slow is left in the middle: the server then closes its connection.
            with suppress(asyncio.CancelledError, TimeoutError):
                await telling
            await self._rest.aclose()  # type: ignore[attr-defined]

    async def _tell(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._piece(send, self._first)
        async for text in self._rest:
            await self._piece(send, text)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _piece(self, send: Send, text: str) -> None:
        async with asyncio.timeout(SLOW):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
