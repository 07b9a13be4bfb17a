"""Events for pages: who listens, what they missed, and who is too slow. What is told is not known here.

Every event has a name: which start of the server it belongs to, and its number. Whoever comes again names the
last one that it has seen, and gets those after it; where they are no longer kept, or are of another start, it
is told to begin anew (`reset`). Nobody waits for a page: one that does not read is left behind, and comes
again by itself.
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

KEPT = 1000  # events, for those who come again
LISTENERS = 64
OF_ONE = 16  # of them for one visitor, who cannot keep all others out
UNREAD = 200  # events that one may be behind
BEAT = 10.0  # seconds after which a page hears that nothing has happened
RESET, BEATS = "reset", "beat"


@dataclass(frozen=True)
class Event:
    name: str
    kind: str
    facts: dict[str, Any]

    def text(self) -> str:
        """As server-sent events are written; JSON has no line breaks of its own."""
        return f"id: {self.name}\nevent: {self.kind}\ndata: {json.dumps(self.facts, allow_nan=False)}\n\n"


class TooManyListeners(UnavailableError):  # noqa: N818 - a state, not a fault
    """No further page can be told of changes. `of_one`: its visitor has too many."""

    def __init__(self, words: str, of_one: bool) -> None:
        super().__init__(words)
        self.of_one = of_one


@dataclass(eq=False)
class _Listener:
    visitor: str
    behind: deque[Event] = field(default_factory=deque)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False


class Events:
    """For one event loop. `tell` never waits."""

    def __init__(
        self, kept: int = KEPT, listeners: int = LISTENERS, unread: int = UNREAD, of_one: int = OF_ONE
    ) -> None:
        self.start = secrets.token_hex(4)
        self._number = 0
        self._kept: deque[Event] = deque(maxlen=kept)
        self._listeners: set[_Listener] = set()
        self._most, self._unread, self._of_one = listeners, unread, of_one
        self._closed = False

    @property
    def last(self) -> str:
        """The name of the newest event."""
        return f"{self.start}-{self._number}"

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def tell(self, kind: str, facts: dict[str, Any]) -> None:
        self._number += 1
        event = Event(self.last, kind, facts)
        self._kept.append(event)
        for one in list(self._listeners):
            one.behind.append(event)
            if len(one.behind) > self._unread:
                one.lost = True
            one.woken.set()

    def missed(self, after: str | None) -> list[Event]:
        """What somebody has to hear who has seen everything up to `after`; None: who begins now."""
        if after is None:
            return []
        start, _, number = after.partition("-")
        known = start == self.start and number.isdecimal() and len(number) < 16
        seen = int(number) if known else -1
        oldest = self._number - len(self._kept)
        if not known or not oldest <= seen <= self._number:
            return [Event(self.last, RESET, {})]
        return [event for event in self._kept if int(event.name.partition("-")[2]) > seen]

    async def listen(
        self, after: str | None = None, beat: float = BEAT, visitor: str = ""
    ) -> AsyncIterator[str]:
        """Server-sent events from `after` on, until closed or left behind. Begins with a beat.

        `visitor`: whose page it is, as far as that can be told.
        """
        if sum(one.visitor == visitor for one in self._listeners) >= self._of_one:
            raise TooManyListeners(
                f"Expected at most {self._of_one} open pages of one visitor, you have so many: close some.",
                True,
            )
        if len(self._listeners) >= self._most:
            raise TooManyListeners(
                f"Expected at most {self._most} open pages, all of them are taken: close some.", False
            )
        listener = _Listener(visitor, deque(self.missed(after)))
        self._listeners.add(listener)
        try:
            name = f"id: {self.last}\n" if after is None else ""
            yield f"retry: 1000\n{name}event: {BEATS}\ndata: {{}}\n\n"
            while not (self._closed or listener.lost):
                while listener.behind:
                    yield listener.behind.popleft().text()
                listener.woken.clear()
                if not await _set_within(listener.woken, beat):
                    yield f"event: {BEATS}\ndata: {{}}\n\n"
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Ends all listening."""
        self._closed = True
        for one in self._listeners:
            one.woken.set()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
        return True
    except TimeoutError:
        return False
