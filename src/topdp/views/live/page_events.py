"""Publish events to the pages that listen, and drop pages that are too slow.

An event only says what has changed; a page then reads the new facts. A page also reads all its facts again
whenever it connects, so that it needs no events of the past. Publishing never waits: a page that does not
read is dropped, and reconnects by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from topdp.errors import UnavailableError

MAX_LISTENERS = 64
MAX_LISTENERS_PER_VISITOR = 16  # so that one visitor cannot keep out the others
MAX_UNREAD_EVENTS = 200
PAGE_HEARTBEAT_SECONDS = 10.0
SEND_SECONDS = 20.0  # a page must accept each event within this time
Unread = asyncio.Queue[str | None]  # the events that a page has not read yet; None ends its stream
HEARTBEAT = "event: beat\ndata: {}\n\n"


class TooManyListeners(UnavailableError):  # noqa: N818 - a state, not a fault
    """No further page can listen. `by_visitor`: whether this visitor alone has too many pages open."""

    def __init__(self, words: str, by_visitor: bool) -> None:
        super().__init__(words)
        self.by_visitor = by_visitor


class Events:
    """The events of one server, for one event loop. `publish` never waits."""

    def __init__(self) -> None:
        self._visitors: dict[Unread, str] = {}  # the visitor of each queue

    @property
    def listeners(self) -> int:
        return len(self._visitors)

    def publish(self, kind: str, facts: dict[str, Any]) -> None:
        """Send an event to every page, in the format of server-sent events. JSON contains no line breaks."""
        event = f"event: {kind}\ndata: {json.dumps(facts, allow_nan=False)}\n\n"
        for unread in list(self._visitors):
            unread.put_nowait(event)
            if unread.qsize() > MAX_UNREAD_EVENTS:
                unread.put_nowait(None)
                del self._visitors[unread]

    def join(self, visitor: str = "") -> Unread:
        """Return the events that follow, for a page that listens until `leave`.

        `visitor`: an identifier of the page's user, if there is one. Raise TooManyListeners if there is no
        room for another page.
        """
        if list(self._visitors.values()).count(visitor) >= MAX_LISTENERS_PER_VISITOR:
            raise TooManyListeners(
                f"Expected at most {MAX_LISTENERS_PER_VISITOR} open pages per visitor, got one more. Close "
                "other pages first.",
                True,
            )
        if self.listeners >= MAX_LISTENERS:
            raise TooManyListeners(
                f"Expected at most {MAX_LISTENERS} open pages, got one more. Close other pages first.", False
            )
        unread = Unread()
        self._visitors[unread] = visitor
        return unread

    def leave(self, unread: Unread) -> None:
        self._visitors.pop(unread, None)

    def close(self) -> None:
        """End all streams."""
        for unread in self._visitors:
            unread.put_nowait(None)


class EventStream(StreamingResponse):
    """Server-sent events on one connection, until the page closes, falls behind, or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, events: Events, visitor: str = "") -> None:
        self._events, self._unread = events, events.join(visitor)
        super().__init__(listen(self._unread), headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            # A page that is too slow gets an incomplete response, and the server closes its connection.
            with suppress(TimeoutError):
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._events.leave(self._unread)


async def listen(unread: Unread, heartbeat: float = PAGE_HEARTBEAT_SECONDS) -> AsyncIterator[str]:
    """Yield a heartbeat, and then the events in `unread`, with heartbeats between them, until the last."""
    event: str | None = f"retry: 1000\n{HEARTBEAT}"
    while event is not None:
        yield event
        try:
            async with asyncio.timeout(heartbeat):
                event = await unread.get()
        except TimeoutError:
            event = HEARTBEAT
