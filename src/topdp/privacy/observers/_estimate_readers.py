"""Losses to observers that read all estimates, computed precisely for each owner's worst observer.

First every pair of owner and observer gets a rough bound: each change is followed for a few rounds, and a
bound on the rest is added. Then, for each owner, the pair that may have the largest loss is computed
precisely, until no rough bound of that owner is larger. `_reader_tracking` follows the changes; `view` covers
other observers.

**Guarantees.** As `view`: `upper` is sound for every pair, and as tight as this method allows for each
owner's largest. `lower` is the value of the aligned record. The result does not depend on the number of
cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from topdp.base.array_types import Ints
from topdp.base.progress import Progress
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.observers._mu_bounds import bracket_band
from topdp.privacy.observers._parallel_map import parallel_map
from topdp.privacy.observers._reader_layout import ReaderQuestion, RowFlow, lay_out
from topdp.privacy.observers._reader_tracking import ChangeTracker, TrackedChanges
from topdp.privacy.observers.gram_matrix import MAX_FAR_PART
from topdp.privacy.observers.view import Bound, View, amplified
from topdp.privacy.observers.worst_case import every_round_mu, information
from topdp.privacy.query import DEFAULT_QUERY, Query

Pair = tuple[int, int]  # owner, position of the observer

# The most rounds for which a change is followed, and the tolerated rest, relative to the largest change: for
# the rough bound, and for the precise one. A bound on the rest is added.
FIRST_FOLLOWED, PRECISELY_FOLLOWED = (24, 2e-3), (2048, MAX_FAR_PART)

# Observers at a time: less overhead for each, and still a matrix that stays near the processor.
OBSERVERS_PER_BATCH = 5
MAX_SUMMED_CLASSES = 8  # sums over more classes of rounds cost more than single changes


def estimate_readers(
    flow: RowFlow,
    exposure: Exposure,
    coalitions: Sequence[tuple[int, ...]],
    bound: Bound = "upper",
    query: Query = DEFAULT_QUERY,
) -> View:
    """Return the loss of every other agent to each of `coalitions`; with bound="quick" the rough bounds.

    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.privacy import exposure
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> seen = estimate_readers(RowFlow(plan), exposure(6, sensitivity=1.0), [(j,) for j in range(6)])
    >>> seen.worst().round(2).tolist()
    [0.87, 0.87, 0.86, 0.86, 0.86, 0.86]
    """
    pairs = _PairBounds(flow, exposure, list(coalitions))
    pairs.bound_all(bound, query.progress)
    if bound == "upper":
        pairs.tighten(query.progress)
    sensitivity = exposure.sensitivity[:, None]
    per_release = information(flow.plan)
    # No observer learns more than all others together, who see all rows of an owner.
    ceiling = every_round_mu(per_release, pairs.period)[:, None]
    lower = np.where(pairs.asked, sensitivity * np.minimum(np.sqrt(pairs.reached), ceiling), np.nan)
    samples = amplified(exposure, per_release)
    sound = sensitivity * np.minimum(np.sqrt(np.maximum(pairs.upper, pairs.reached)), ceiling)
    upper = None if bound == "aligned" else np.where(pairs.asked, sound, np.nan)
    return View(observers=tuple(coalitions), lower=lower, upper=upper, asked=pairs.asked, samples=samples)


class _PairBounds:
    """μ² at unit sensitivity [agents, observers]: the values of aligned records, and upper bounds."""

    def __init__(self, flow: RowFlow, exposure: Exposure, coalitions: list[tuple[int, ...]]) -> None:
        self.flow, self.coalitions, self.period = flow, coalitions, exposure.periods()
        shape = flow.plan.agents, len(coalitions)
        self.asked = np.ones(shape, bool)
        for o, J in enumerate(coalitions):
            self.asked[list(J), o] = False
        self.reached, self.upper = np.zeros(shape), np.zeros(shape)
        self.tight = np.zeros(shape, bool)
        self.hidden = np.flatnonzero(flow.secret)

    def bound_all(self, bound: Bound, progress: Progress) -> None:
        """Bound every pair, following each change for a few rounds."""
        all_pairs = [(o, np.flatnonzero(self.asked[:, o])) for o in range(len(self.coalitions))]
        single = bound != "aligned" or self.period.max() > MAX_SUMMED_CLASSES
        rough = self.period.max() <= MAX_SUMMED_CLASSES
        done, total = 0, len(self.coalitions)
        halves = 2 if bound == "upper" else 1  # the rough bounds are about half of the work
        track = partial(self._track, rough=rough, single=single, sums=bound != "quick")
        for batch in parallel_map(track, _batched(all_pairs)):
            for o, owners, changes in batch:
                for place, i in enumerate(owners.tolist()):
                    self.reached[i, o] = changes.aligned[place].max(initial=0.0)
                    if single:
                        low, high = bracket_band(changes.bands[place], int(self.period[i]), np.inf)
                        self.reached[i, o] = max(low, self.reached[i, o])
                        self.upper[i, o] = high
                done += 1
                progress("accounting", -(-done // halves), total, unit="observer")

    def tighten(self, progress: Progress) -> None:
        """Compute precisely the pairs that may be an owner's largest, until each owner's largest is tight."""
        observers = len(self.coalitions)
        left = observers // 2
        while wanted := self._wanted():
            by_observer = [
                (o, np.array([i for i, at in wanted if at == o])) for o in sorted({o for _, o in wanted})
            ]
            for bounds in parallel_map(self._bounded, _batched(by_observer)):
                for (i, o), (low, high) in bounds.items():
                    self.reached[i, o] = max(low, self.reached[i, o])
                    self.upper[i, o] = max(min(high, self.upper[i, o]), self.reached[i, o])
                    self.tight[i, o] = True
            left //= 2
            done = max(-(-observers // 2), observers - max(1, left))
            progress("accounting", done, observers, unit="observer")
        progress("accounting", observers, observers, unit="observer")

    def _wanted(self) -> list[Pair]:
        """Return the two pairs with the largest bounds of every owner whose largest bound is not tight."""
        pairs: list[Pair] = []
        for i in range(len(self.upper)):
            order = np.argsort(-np.where(self.asked[i], self.upper[i], -1.0), kind="stable")[:2]
            if self.asked[i, order[0]] and not self.tight[i, order[0]]:
                pairs += [(i, int(o)) for o in order if self.asked[i, o] and not self.tight[i, o]]
        return pairs

    def _track(
        self, batch: list[tuple[int, Ints]], rough: bool, single: bool, sums: bool = True
    ) -> list[tuple[int, Ints, TrackedChanges]]:
        questions = [ReaderQuestion(self.coalitions[o], owners, self.hidden) for o, owners in batch]
        owner_count = max(len(owners) for _, owners in batch)
        periods = np.ones((len(batch), owner_count), np.int64)
        for b, (_, owners) in enumerate(batch):
            periods[b, : len(owners)] = self.period[owners]
        rounds, rest = FIRST_FOLLOWED if rough else PRECISELY_FOLLOWED
        summed = periods if sums and self.period.max() <= MAX_SUMMED_CLASSES else None
        layout = lay_out(self.flow, questions)
        tracker = ChangeTracker(layout, summed, rounds, single=single, rest=rest, owners=owner_count)
        return [(o, owners, changes) for (o, owners), changes in zip(batch, tracker.all(), strict=True)]

    def _bounded(self, batch: list[tuple[int, Ints]]) -> dict[Pair, tuple[float, float]]:
        return {
            (i, o): bracket_band(changes.bands[place], int(self.period[i]))
            for o, owners, changes in self._track(batch, rough=False, single=True)
            for place, i in enumerate(owners.tolist())
        }


def _batched(parts: list[tuple[int, Ints]]) -> list[list[tuple[int, Ints]]]:
    return [parts[start : start + OBSERVERS_PER_BATCH] for start in range(0, len(parts), OBSERVERS_PER_BATCH)]
