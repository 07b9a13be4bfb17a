"""The limits of a link: how long it waits, how many requests run at once, and when it is dialled again.

This module handles no frames and no sockets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 3.0  # between attempts to reach a neighbour
CHECKS_PER_TIMEOUT = 4  # how often a link is checked, and sends a ping, per idle timeout


class StallDetector:
    """The times at which items last made progress; finds the items that have made none for too long."""

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        """`limit`: seconds without progress after which an item is stalled."""
        self.limit, self.clock = limit, clock
        self._last_progress: dict[Hashable, float] = {}
        self._last_check = clock()

    def note_progress(self, item: Hashable) -> None:
        self._last_progress[item] = self.clock()

    def remove(self, item: Hashable) -> None:
        self._last_progress.pop(item, None)

    def items(self) -> list[Hashable]:
        return list(self._last_progress)

    def stalled_item(self) -> Hashable | None:
        """Return the first stalled item. Call this method `CHECKS_PER_TIMEOUT` times per `limit`.

        Longer pauses between calls (a stopped process, a busy event loop) do not count against the peer.
        """
        now = self.clock()
        paused = now - self._last_check - 2 * self.limit / CHECKS_PER_TIMEOUT
        self._last_check = now
        if paused > 0:
            for item in self._last_progress:
                self._last_progress[item] += paused
        return next((item for item, last in self._last_progress.items() if now - last > self.limit), None)


class PendingRequests:
    """Requests of one peer that this agent's handler works on, over all links of the peer.

    A peer that reconnects therefore gets no additional memory.
    """

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self.running: set[asyncio.Task[None]] = set()

    async def run(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `job` once fewer than `limit` others run. It goes on if the caller is cancelled."""
        await self._slots.acquire()
        task = asyncio.create_task(job())
        self.running.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self._slots.release()


class Backoff:
    """The pauses between attempts to dial: random, growing, from 0.2 s to 3 s.

    >>> waits = Backoff(random.Random(0))
    >>> all(0.2 <= waits.next() <= 3 for _ in range(20))
    True
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.SystemRandom()
        self.reset()

    def reset(self) -> None:
        self._last = MIN_PAUSE_SECONDS

    def next(self) -> float:
        self._last = min(MAX_PAUSE_SECONDS, self._chance.uniform(MIN_PAUSE_SECONDS, 3 * self._last))
        return self._last

    async def pause(self) -> None:
        """Wait until the next attempt."""
        await asyncio.sleep(self.next())
