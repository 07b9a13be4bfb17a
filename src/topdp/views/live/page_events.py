"""Publish events to the pages that listen: replay missed events, and drop pages that are too slow.

The name of an event consists of an identifier of the server's start and a number. A page that reconnects
names the last event that it received, and gets all later events. If these are no longer stored, or if the
name is from another start of the server, the page gets a `reset` event. Publishing never waits: a page that
does not read is dropped, and reconnects by itself.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from topdp.errors import UnavailableError

MAX_STORED_EVENTS = 1000  # for pages that reconnect
MAX_LISTENERS = 64
MAX_LISTENERS_PER_VISITOR = 16  # so that one visitor cannot keep out the others
MAX_UNREAD_EVENTS = 200
PAGE_HEARTBEAT_SECONDS = 10.0
SEND_SECONDS = 20.0  # a page must accept each event within this time
RESET_EVENT, HEARTBEAT_EVENT = "reset", "beat"


@dataclass(frozen=True)
class PageEvent:
    name: str
    kind: str
    facts: dict[str, Any]

    def text(self) -> str:
        """Return the event in the format of server-sent events. JSON contains no line breaks."""
        return f"id: {self.name}\nevent: {self.kind}\ndata: {json.dumps(self.facts, allow_nan=False)}\n\n"


class TooManyListeners(UnavailableError):  # noqa: N818 - a state, not a fault
    """No further page can listen. `by_visitor`: whether this visitor alone has too many pages open."""

    def __init__(self, words: str, by_visitor: bool) -> None:
        super().__init__(words)
        self.by_visitor = by_visitor


class Events:
    """The events of one server, for one event loop. `publish` never waits."""

    def __init__(self) -> None:
        self.start = secrets.token_hex(4)
        self._number = 0
        self._stored: deque[PageEvent] = deque(maxlen=MAX_STORED_EVENTS)
        self._visitors: dict[asyncio.Queue[PageEvent | None], str] = {}  # the visitor of each unread queue
        self._closed = False

    @property
    def last(self) -> str:
        """The name of the newest event."""
        return f"{self.start}-{self._number}"

    @property
    def listeners(self) -> int:
        return len(self._visitors)

    def publish(self, kind: str, facts: dict[str, Any]) -> None:
        self._number += 1
        event = PageEvent(self.last, kind, facts)
        self._stored.append(event)
        for unread in list(self._visitors):
            unread.put_nowait(event)
            if unread.qsize() > MAX_UNREAD_EVENTS:
                unread.put_nowait(None)
                del self._visitors[unread]

    def missed(self, after: str | None) -> list[PageEvent]:
        """Return the events after the event named `after`, or a reset event if they are not known.

        A page that opens now has no last event: `after` is None, and nothing was missed.
        """
        if after is None:
            return []
        start, _, number = after.partition("-")
        valid = start == self.start and number.isdecimal() and len(number) < 16
        last_read = int(number) if valid else -1
        oldest = self._number - len(self._stored)
        if not valid or not oldest <= last_read <= self._number:
            return [PageEvent(self.last, RESET_EVENT, {})]
        return list(self._stored)[last_read - oldest :]

    async def listen(
        self, after: str | None = None, heartbeat: float = PAGE_HEARTBEAT_SECONDS, visitor: str = ""
    ) -> AsyncIterator[str]:
        """Yield a heartbeat, and then the server-sent events after `after`, until closed or dropped.

        `visitor`: an identifier of the page's user, if there is one. Raise TooManyListeners at the start.
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
        unread = asyncio.Queue[PageEvent | None]()
        for event in self.missed(after):
            unread.put_nowait(event)
        self._visitors[unread] = visitor
        try:
            name = f"id: {self.last}\n" if after is None else ""
            yield f"retry: 1000\n{name}event: {HEARTBEAT_EVENT}\ndata: {{}}\n\n"
            while not self._closed:
                try:
                    async with asyncio.timeout(heartbeat):
                        next_event = await unread.get()
                except TimeoutError:
                    yield f"event: {HEARTBEAT_EVENT}\ndata: {{}}\n\n"
                    continue
                if next_event is None:
                    break
                yield next_event.text()
        finally:
            self._visitors.pop(unread, None)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for unread in self._visitors:
            unread.put_nowait(None)


class EventStream(StreamingResponse):
    """Server-sent events on one connection, until the page closes, falls behind, or the server stops.

    Use `open`, which raises TooManyListeners before the response begins.
    """

    media_type = "text/event-stream"

    def __init__(self, first: str, rest: AsyncIterator[str]) -> None:
        super().__init__(_joined(first, rest), headers={"x-accel-buffering": "no"})
        self._rest = rest

    @classmethod
    async def open(cls, events: Events, after: str | None, visitor: str = "") -> EventStream:
        rest = events.listen(after, visitor=visitor)
        return cls(await anext(rest), rest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            # A page that is too slow gets an incomplete response, and the server closes its connection.
            with suppress(TimeoutError):
                await super().__call__(scope, receive, send_in_time)
        finally:
            await self._rest.aclose()  # type: ignore[attr-defined]


async def _joined(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in rest:
        yield text
