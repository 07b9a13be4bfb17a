"""Time contestants in turns, so that a busy moment affects all of them.

In its turn each contestant runs for a while, as in training, where rounds follow each other. In a single
round a fast contestant would mostly be timed filling caches that others have emptied.

With one thread the clock is this process's processor time, which excludes the time that other processes take.
With more threads it is wall time, because waiting between threads is part of the cost.
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

TURN_SECONDS = 0.05
"""The least duration of a turn."""


@dataclass(frozen=True, eq=False)
class Turns:
    """The seconds [turns] of each contestant."""

    seconds: Mapping[str, Floats]

    def best(self, name: str) -> float:
        return float(self.seconds[name].min())

    def median(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, to: str) -> dict[str, float]:
        """Return the ratio of best times, and median and quartiles of the ratios within one turn."""
        each = np.quantile(self.seconds[name] / self.seconds[to], [0.25, 0.5, 0.75]).tolist()
        best = self.best(name) / self.best(to)
        return {"best": best, "median": each[1], "low": each[0], "high": each[2]}

    def to_json(self) -> dict[str, Any]:
        return {name: {"best": self.best(name), "median": self.median(name)} for name in self.seconds}


def clock() -> tuple[Callable[[], float], str]:
    """Return the clock and its name."""
    if torch.get_num_threads() == 1:
        return time.process_time, "processor time"
    return time.perf_counter, "wall time"


def take_turns(
    contestants: Mapping[str, Callable[[], object]], turns: int, progress: Progress = silent
) -> Turns:
    """Return the mean seconds of each contestant in each turn, after one turn of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    now, _ = clock()
    for turn in range(turns + 1):
        for name, run in contestants.items():
            started, runs = now(), 0
            while not runs or now() - started < TURN_SECONDS:
                run()
                runs += 1
            if turn:
                seconds[name].append((now() - started) / runs)
        progress("timing", turn, turns, unit="turn")
    return Turns({name: np.array(values) for name, values in seconds.items()})
