"""Where the time of an agent goes: compute, ledger, network. For people; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

PARTS = ("compute", "ledger", "network")


class Timing:
    """Seconds by part, over the rounds that this process did."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.rounds = 0

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - begun

    def per_round(self) -> dict[str, float]:
        """Milliseconds a round."""
        return {part: 1e3 * value / max(1, self.rounds) for part, value in self.seconds.items()}
