"""Measure an agent's time by part, and its waits for neighbours. For people; no decision depends on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time, thread_time, time

TIMED_PARTS = ("compute", "ledger", "network")


class RoundTiming:
    """Wall-clock seconds by part, over the rounds of this process.

    Waiting for a CPU core counts for the part that waits. So CPU seconds are measured too: of computing, and
    of everything else that the process does meanwhile.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(TIMED_PARTS, 0.0)
        self.rounds = 0
        self._computing, self._begun = 0.0, process_time()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - begun

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measure the computing itself, in the thread that does it."""
        begun = thread_time()
        try:
            yield
        finally:
            self._computing += thread_time() - begun

    def processor_per_round(self) -> dict[str, float]:
        """Return CPU milliseconds per round: of computing, and of the rest of the process."""
        rest = process_time() - self._begun - self._computing
        parts = {"compute": self._computing, "rest": rest}
        return {part: 1e3 * value / max(1, self.rounds) for part, value in parts.items()}

    def per_round(self) -> dict[str, float]:
        """Return wall-clock milliseconds per round, by part."""
        return {part: 1e3 * value / max(1, self.rounds) for part, value in self.seconds.items()}


class StartTiming:
    """Seconds of an agent's start, stage by stage, from the start of its process."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self._last = perf_counter() - _age(), 0.0

    def over(self, stage: str) -> None:
        """Record that `stage` ends now and the next one begins."""
        now = perf_counter(), process_time()
        self.wall[stage], self.processor[stage] = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now

    def words(self) -> str:
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in self.wall.items())
        return f"{sum(self.wall.values()):.2f} s ({parts})"


def _age() -> float:
    """Return the seconds since this process was started; 0 if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            born = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        from time import CLOCK_BOOTTIME, clock_gettime  # Linux only, as is the file

        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - born)
    except (OSError, ValueError, IndexError):
        return 0.0


class PeerWaits:
    """The neighbours that the agent waits for, since when, and the total wait for each neighbour."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}  # whom: seconds of the calendar
        self._seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def now(self, peers: Iterable[str]) -> None:
        """Record that the agent waits for these peers from now on, and for no others."""
        left, clock = set(peers), perf_counter()
        for peer in [peer for peer in self.since if peer not in left]:
            del self.since[peer]
            self._seconds[peer] = self._seconds.get(peer, 0.0) + clock - self._begun.pop(peer)
        for peer in sorted(left - self.since.keys()):
            self.since[peer], self._begun[peer] = time(), clock

    def seconds(self, peer: str) -> float:
        """Return the total seconds that this process has waited for `peer`."""
        clock = perf_counter()
        return self._seconds.get(peer, 0.0) + clock - self._begun.get(peer, clock)
