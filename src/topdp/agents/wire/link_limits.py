"""How long a link waits, how much it works on at once, and when it is dialled again. Knows no frames or
sockets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from topdp.agents.wire.transport import end_all

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 3.0  # between attempts to reach a neighbour
CHECKS_PER_TIMEOUT = 4  # how often a link is checked, and sends a ping, per idle timeout

Clock = Callable[[], float]


class StallDetector:
    """Records when each item last moved, and finds those that have not moved for too long."""

    def __init__(self, limit: float, clock: Clock) -> None:
        self.limit, self.clock = limit, clock
        self._last: dict[Hashable, float] = {}
        self._looked = clock()

    def moved(self, what: Hashable) -> None:
        self._last[what] = self.clock()

    def done(self, what: Hashable) -> None:
        self._last.pop(what, None)

    def waiting(self) -> list[Hashable]:
        return list(self._last)

    def lost(self) -> Hashable | None:
        """The first thing that has not moved for `limit`. Call it `CHECKS_PER_TIMEOUT` times per limit.

        Time in which it was not called (a stopped process, a busy loop) does not count against the peer.
        """
        now = self.clock()
        asleep = now - self._looked - 2 * self.limit / CHECKS_PER_TIMEOUT
        self._looked = now
        if asleep > 0:
            for what in self._last:
                self._last[what] += asleep
        return next((what for what, last in self._last.items() if now - last > self.limit), None)


class PendingRequests:
    """A peer's requests that our handler works on. Outlives links: reconnecting does not buy more memory."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self.running: set[asyncio.Task[None]] = set()

    async def do(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await self._slots.acquire()
        task = asyncio.create_task(job())
        self.running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self._slots.release()

    async def cancel(self) -> None:
        await end_all(self.running, "what a peer has asked for")


class Backoff:
    """The time to wait before the next attempt to dial: 0.2 s to 3 s, longer each time, never twice the same.

    >>> waits = Backoff(random.Random(0))
    >>> all(0.2 <= waits.next() <= 3 for _ in range(20))
    True
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.reset()

    def reset(self) -> None:
        self._last = MIN_PAUSE_SECONDS

    def next(self) -> float:
        self._last = min(MAX_PAUSE_SECONDS, self._chance.uniform(MIN_PAUSE_SECONDS, 3 * self._last))
        return self._last
