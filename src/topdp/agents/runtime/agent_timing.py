"""Measure an agent's time by part, and its waits for neighbours. No decision depends on the results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time, thread_time, time

TIMED_PARTS = ("compute", "ledger", "network")


class RoundTiming:
    """Wall-clock seconds by part, over the rounds of this process.

    A wait for a CPU core counts for the part that waits. CPU seconds are therefore measured too: those of
    computing, and those of everything else that the process does.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(TIMED_PARTS, 0.0)
        self.rounds = 0
        self._compute_seconds, self._start = 0.0, process_time()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - start

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measure CPU seconds of computing, in the thread that computes."""
        start = thread_time()
        try:
            yield
        finally:
            self._compute_seconds += thread_time() - start

    def processor_per_round(self) -> dict[str, float]:
        """Return CPU milliseconds per round: of computing, and of the rest of the process."""
        other_seconds = process_time() - self._start - self._compute_seconds
        return self._per_round({"compute": self._compute_seconds, "rest": other_seconds})

    def per_round(self) -> dict[str, float]:
        """Return wall-clock milliseconds per round, by part."""
        return self._per_round(self.seconds)

    def _per_round(self, seconds: dict[str, float]) -> dict[str, float]:
        return {part: 1e3 * value / max(1, self.rounds) for part, value in seconds.items()}


class StartTiming:
    """Seconds of each stage of an agent's start, from the start of its process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage_start = perf_counter() - _seconds_since_process_start()

    def end_stage(self, stage: str) -> None:
        """Record that `stage` ends now; the next stage begins now."""
        now = perf_counter()
        self.seconds[stage], self._stage_start = now - self._stage_start, now

    def describe(self) -> str:
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.2f} s ({parts})"


def _seconds_since_process_start() -> float:
    """Return the seconds since this process was started; 0 if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            start = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        from time import CLOCK_BOOTTIME, clock_gettime  # Linux only, as is the file

        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - start)
    except (OSError, ValueError, IndexError):
        return 0.0


class PeerWaits:
    """The neighbours for which the agent waits, since when, and the total wait for each neighbour."""

    def __init__(self) -> None:
        # Neighbour -> start of the current wait, in seconds since the epoch.
        self.started: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._starts: dict[str, float] = {}  # the same starts by the clock that measures

    def set_peers(self, peers: Iterable[str]) -> None:
        """Record that the agent waits for these peers from now on, and for no others."""
        waiting, clock = set(peers), perf_counter()
        for peer in [peer for peer in self.started if peer not in waiting]:
            del self.started[peer]
            self._totals[peer] = self._totals.get(peer, 0.0) + clock - self._starts.pop(peer)
        for peer in sorted(waiting - self.started.keys()):
            self.started[peer], self._starts[peer] = time(), clock

    def seconds(self, peer: str) -> float:
        """Return the total seconds that this process has waited for `peer`."""
        clock = perf_counter()
        return self._totals.get(peer, 0.0) + clock - self._starts.get(peer, clock)
