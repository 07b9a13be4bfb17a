"""Every observer who reads all estimates, as closely as it matters: what each learns of each owner.

All pairs are looked at first with changes that are followed for a few rounds, and what is left of them
charged. The pair of each owner that may learn most is then looked at to the end, until none that was looked
at less closely may learn more. Not for how rows are followed (`tracking`), nor for other observers (`view`).

**Guarantees.** As `view`: `upper` is sound for every pair; an owner's largest is as tight as it can be made
here. `lower` is what aligned records reach. The same on any number of cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from topdp.base.array_types import Ints
from topdp.base.progress import Progress, silent
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.observers.band_bounds import bracket_band
from topdp.privacy.observers.band_matrix import MAX_FAR_PART
from topdp.privacy.observers.parallel_map import parallel_map
from topdp.privacy.observers.reader_layout import ReaderQuestion, RowFlow, lay_out
from topdp.privacy.observers.reader_tracking import TrackedChanges, track_changes
from topdp.privacy.observers.view import Bound, View, amplified
from topdp.privacy.observers.worst_case import every_round, information

Pair = tuple[int, int]  # owner, position of the observer

FIRST_FOLLOWED_ROUNDS, FIRST_BEARABLE_REST = 24, 2e-3
"""Rounds for which a change is followed at first, and what may be left of it, per largest change."""

MAX_READER_FOLLOWED_ROUNDS = 2048
"""Rounds for which it is followed at most: what is left then is charged."""

OBSERVERS_PER_BATCH = (
    5  # observers at a time: less overhead for each, and still a matrix that stays near the processor
)
MAX_SUMMED_CLASSES = 8  # sums over more classes of rounds than these cost more than single changes


def estimate_readers(
    ways: RowFlow,
    exposure: Exposure,
    coalitions: Sequence[tuple[int, ...]],
    bound: Bound = "upper",
    progress: Progress = silent,
    workers: int | None = None,
) -> View:
    """What each coalition learns of all others; with bound="quick" as it is after the first look.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import exposure
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> seen = closely(RowFlow(plan), exposure(6, sensitivity=1.0), [(j,) for j in range(6)])
    >>> seen.worst().round(2).tolist()
    [0.87, 0.87, 0.86, 0.86, 0.86, 0.86]
    """
    look = _PairBounds(ways, exposure, list(coalitions), workers)
    look.first(bound, progress)
    if bound == "upper":
        look.closer(progress)
    sensitivity = exposure.sensitivity[:, None]
    per_release = information(ways.plan)
    # Nobody learns more than all others together, who see all the rows of an owner.
    most = [every_round(per_release[:, i], period) for i, period in enumerate(look.period.tolist())]
    ceiling = np.array(most)[:, None]
    lower = np.where(look.asked, sensitivity * np.minimum(np.sqrt(look.reached), ceiling), np.nan)
    samples = amplified(exposure, per_release)
    if bound == "aligned":
        return View(tuple(coalitions), lower, None, look.asked, samples)
    upper = sensitivity * np.minimum(np.sqrt(np.maximum(look.most, look.reached)), ceiling)
    upper = np.where(look.asked, upper, np.nan)
    return View(tuple(coalitions), lower, upper, look.asked, samples)


class _PairBounds:
    """μ² at unit sensitivity [agents, observers]: what aligned records reach, and at most."""

    def __init__(
        self, ways: RowFlow, exposure: Exposure, coalitions: list[tuple[int, ...]], workers: int | None
    ) -> None:
        self.ways, self.coalitions, self.workers = ways, coalitions, workers
        self.period = exposure.periods()
        shape = ways.plan.agents, len(coalitions)
        self.asked = np.ones(shape, bool)
        for o, J in enumerate(coalitions):
            self.asked[list(J), o] = False
        self.reached, self.most = np.zeros(shape), np.zeros(shape)
        self.tight = np.zeros(shape, bool)
        self.hidden = np.flatnonzero(ways.secret)

    def first(self, bound: Bound, progress: Progress) -> None:
        """Every pair, for a few rounds of each change."""
        everybody = [(o, np.flatnonzero(self.asked[:, o])) for o in range(len(self.coalitions))]
        single = bound != "aligned" or self.period.max() > MAX_SUMMED_CLASSES
        rough = self.period.max() <= MAX_SUMMED_CLASSES
        done, total = 0, len(self.coalitions)
        halves = 2 if bound == "upper" else 1  # the first look is about half of the work
        look = partial(self._told, rough=rough, single=single, sums=bound != "quick")
        for told in parallel_map(look, _batched(everybody), self.workers):
            for o, owners, found in told:
                for place, i in enumerate(owners.tolist()):
                    self.reached[i, o] = found.aligned[place].max(initial=0.0)
                    if single:
                        low, high = bracket_band(found.bands[place], int(self.period[i]), np.inf)
                        self.reached[i, o] = max(low, self.reached[i, o])
                        self.most[i, o] = high
                done += 1
                progress("accounting", -(-done // halves), total, unit="observer")

    def closer(self, progress: Progress) -> None:
        """The pairs that may be an owner's largest, to the end, until all those are tight."""
        observers = len(self.coalitions)
        left = observers // 2
        while wanted := self._wanted():
            by_observer = [
                (o, np.array([i for i, at in wanted if at == o])) for o in sorted({o for _, o in wanted})
            ]
            for found in parallel_map(self._bounded, _batched(by_observer), self.workers):
                for (i, o), (low, high) in found.items():
                    self.reached[i, o] = max(low, self.reached[i, o])
                    self.most[i, o] = max(min(high, self.most[i, o]), self.reached[i, o])
                    self.tight[i, o] = True
            left //= 2
            done = max(-(-observers // 2), observers - max(1, left))
            progress("accounting", done, observers, unit="observer")
        progress("accounting", observers, observers, unit="observer")

    def _wanted(self) -> list[Pair]:
        """The two largest pairs of every owner, where the largest is not tight."""
        found = []
        for i in range(len(self.most)):
            order = np.argsort(-np.where(self.asked[i], self.most[i], -1.0), kind="stable")[:2]
            if self.asked[i, order[0]] and not self.tight[i, order[0]]:
                found += [(i, int(o)) for o in order if self.asked[i, o] and not self.tight[i, o]]
        return found

    def _told(
        self, batch: list[tuple[int, Ints]], rough: bool, single: bool, sums: bool = True
    ) -> list[tuple[int, Ints, TrackedChanges]]:
        questions = [ReaderQuestion(self.coalitions[o], owners, self.hidden) for o, owners in batch]
        most = max(len(owners) for _, owners in batch)
        periods = np.ones((len(batch), most), np.int64)
        for b, (_, owners) in enumerate(batch):
            periods[b, : len(owners)] = self.period[owners]
        longest, rest = (
            (FIRST_FOLLOWED_ROUNDS, FIRST_BEARABLE_REST)
            if rough
            else (MAX_READER_FOLLOWED_ROUNDS, MAX_FAR_PART)
        )
        summed = periods if sums and self.period.max() <= MAX_SUMMED_CLASSES else None
        found = track_changes(lay_out(self.ways, questions), summed, longest, single, rest, most)
        return [(o, owners, one) for (o, owners), one in zip(batch, found, strict=True)]

    def _bounded(self, batch: list[tuple[int, Ints]]) -> dict[Pair, tuple[float, float]]:
        return {
            (i, o): bracket_band(found.bands[place], int(self.period[i]))
            for o, owners, found in self._told(batch, rough=False, single=True)
            for place, i in enumerate(owners.tolist())
        }


def _batched(parts: list[tuple[int, Ints]]) -> list[list[tuple[int, Ints]]]:
    return [parts[start : start + OBSERVERS_PER_BATCH] for start in range(0, len(parts), OBSERVERS_PER_BATCH)]
