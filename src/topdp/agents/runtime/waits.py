"""Who is waited for, and since when. For people only: nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter, time


class PeerWaits:
    """Who is waited for, since when, and for how long each was waited for so far."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}  # whom: seconds of the calendar
        self._seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def now(self, peers: Iterable[str]) -> None:
        """These are waited for from now on, and nobody else; who was so before stays so since then."""
        left, clock = set(peers), perf_counter()
        for peer in [peer for peer in self.since if peer not in left]:
            del self.since[peer]
            self._seconds[peer] = self._seconds.get(peer, 0.0) + clock - self._begun.pop(peer)
        for peer in sorted(left - self.since.keys()):
            self.since[peer], self._begun[peer] = time(), clock

    def seconds(self, peer: str) -> float:
        """All that this process has waited for `peer`."""
        clock = perf_counter()
        return self._seconds.get(peer, 0.0) + clock - self._begun.get(peer, clock)
