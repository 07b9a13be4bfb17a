"""Publish events to the pages that listen: replay missed ones, and drop listeners that are too slow.

The name of an event consists of an identifier of the server's start and a number. A page that reconnects
names the last event it received and gets those after it. If they are no longer stored, or belong to another
start, it gets a `reset` event. Publishing never waits: a page that does not read is dropped, and reconnects
by itself.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from topdp.errors import UnavailableError

MAX_STORED_EVENTS = 1000  # for pages that reconnect
MAX_LISTENERS = 64
MAX_LISTENERS_PER_VISITOR = 16  # so that one visitor cannot keep out the others
MAX_UNREAD_EVENTS = 200
PAGE_HEARTBEAT_SECONDS = 10.0
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
    """No further page can listen. `by_visitor`: whether this visitor has too many, not all together."""

    def __init__(self, words: str, by_visitor: bool) -> None:
        super().__init__(words)
        self.by_visitor = by_visitor


@dataclass(eq=False)
class _Listener:
    visitor: str
    unread: deque[PageEvent] = field(default_factory=deque)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: bool = False


class Events:
    """The events of one server, for one event loop. `publish` never waits."""

    def __init__(
        self,
        *,
        stored: int = MAX_STORED_EVENTS,
        listeners: int = MAX_LISTENERS,
        unread: int = MAX_UNREAD_EVENTS,
        per_visitor: int = MAX_LISTENERS_PER_VISITOR,
    ) -> None:
        self.start = secrets.token_hex(4)
        self._number = 0
        self._stored: deque[PageEvent] = deque(maxlen=stored)
        self._listeners: set[_Listener] = set()
        self._max_listeners, self._max_unread, self._per_visitor = listeners, unread, per_visitor
        self._closed = False

    @property
    def last(self) -> str:
        """The name of the newest event."""
        return f"{self.start}-{self._number}"

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def publish(self, kind: str, facts: dict[str, Any]) -> None:
        self._number += 1
        event = PageEvent(self.last, kind, facts)
        self._stored.append(event)
        for listener in list(self._listeners):
            listener.unread.append(event)
            if len(listener.unread) > self._max_unread:
                listener.dropped = True
            listener.woken.set()

    def missed(self, after: str | None) -> list[PageEvent]:
        """Return the events since `after`, or a reset event. None for a page that opens now."""
        if after is None:
            return []
        start, _, number = after.partition("-")
        valid = start == self.start and number.isdecimal() and len(number) < 16
        last_read = int(number) if valid else -1
        oldest = self._number - len(self._stored)
        if not valid or not oldest <= last_read <= self._number:
            return [PageEvent(self.last, RESET_EVENT, {})]
        return [event for event in self._stored if int(event.name.partition("-")[2]) > last_read]

    async def listen(
        self, after: str | None = None, heartbeat: float = PAGE_HEARTBEAT_SECONDS, visitor: str = ""
    ) -> AsyncIterator[str]:
        """Yield server-sent events from `after` on, until closed or dropped, beginning with a heartbeat.

        `visitor`: an identifier of the page's user, as far as there is one.
        """
        if sum(listener.visitor == visitor for listener in self._listeners) >= self._per_visitor:
            raise TooManyListeners(
                f"Expected at most {self._per_visitor} open pages per visitor, got one more. Close some.",
                True,
            )
        if len(self._listeners) >= self._max_listeners:
            raise TooManyListeners(
                f"Expected at most {self._max_listeners} open pages, got one more. Close some.", False
            )
        listener = _Listener(visitor, deque(self.missed(after)))
        self._listeners.add(listener)
        try:
            name = f"id: {self.last}\n" if after is None else ""
            yield f"retry: 1000\n{name}event: {HEARTBEAT_EVENT}\ndata: {{}}\n\n"
            while not (self._closed or listener.dropped):
                while listener.unread:
                    yield listener.unread.popleft().text()
                listener.woken.clear()
                if not await _set_within(listener.woken, heartbeat):
                    yield f"event: {HEARTBEAT_EVENT}\ndata: {{}}\n\n"
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for listener in self._listeners:
            listener.woken.set()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
        return True
    except TimeoutError:
        return False
