"""Contestants take turns, so that a busy moment hits all: best and median of each, and ratios turn by turn.

In its turn each goes on for a while, as in training, where rounds follow each other: in a round by itself
who is fast would mostly be timed filling the caches that others have emptied.

With one thread the clock is the processor time of this process, which stands still while others have the
core; with more it is the wall clock, since threads that wait for each other are part of the price.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent

SLICE = 0.05
"""Seconds after which the next one has its turn."""


@dataclass(frozen=True, eq=False)
class Turns:
    """Seconds [turns] of each contestant."""

    seconds: Mapping[str, Floats]

    def best(self, name: str) -> float:
        return float(self.seconds[name].min())

    def median(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, to: str) -> dict[str, float]:
        """Of the best times, and of times within one turn: median, first and third quartile."""
        each = np.quantile(self.seconds[name] / self.seconds[to], [0.25, 0.5, 0.75]).tolist()
        best = self.best(name) / self.best(to)
        return {"best": best, "median": each[1], "low": each[0], "high": each[2]}

    def to_json(self) -> dict[str, Any]:
        return {name: {"best": self.best(name), "median": self.median(name)} for name in self.seconds}


def clock() -> tuple[Callable[[], float], str]:
    """What seconds are measured by, and its name."""
    if torch.get_num_threads() == 1:
        return time.process_time, "processor time"
    return time.perf_counter, "wall time"


def take_turns(
    contestants: Mapping[str, Callable[[], object]], turns: int, progress: Progress = silent
) -> Turns:
    """In every turn the mean of each contestant's runs; one turn before counts for nothing, it warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    now, _ = clock()
    for turn in range(turns + 1):
        for name, run in contestants.items():
            begun, runs = now(), 0
            while not runs or now() - begun < SLICE:
                run()
                runs += 1
            if turn:
                seconds[name].append((now() - begun) / runs)
        progress("timing", turn, turns, unit="turn")
    return Turns({name: np.array(found) for name, found in seconds.items()})
