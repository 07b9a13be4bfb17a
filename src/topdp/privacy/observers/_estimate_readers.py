"""Losses to observers that read all estimates, computed precisely for each owner's worst observer.

First every pair of owner and observer gets a rough bound: each change of a gradient is followed for a few
rounds, and a bound on what later rounds can reveal is added. Then, for each owner, the pair that may have the
largest loss is computed precisely. This is repeated until no rough bound of that owner is larger than a
precise one. `_reader_tracking` follows the changes. `view` covers other observers.

**Guarantees.** As `view`: `upper` is sound for every pair. For each owner, its largest value is as tight as
this method allows. `lower` is the value of the aligned record, or less for a pair with long cycles that is
not computed precisely. The result does not depend on the number of
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

Pair = tuple[int, int]  # an owner, and the position of an observer

# For rough and for precise bounds: the most rounds for which a change is followed, and the rest that may be
# ignored, relative to the largest change. A bound on the rest is added.
FIRST_FOLLOWED, PRECISELY_FOLLOWED = (24, 2e-3), (2048, MAX_FAR_PART)

# The number of observers that are computed together. More would have less overhead, but their matrices would
# no longer fit into the caches of the processor.
OBSERVERS_PER_BATCH = 5
MAX_SUMMED_CLASSES = 8  # sums over more residue classes of rounds take longer than single changes


def estimate_readers(
    flow: RowFlow,
    exposure: Exposure,
    coalitions: Sequence[tuple[int, ...]],
    bound: Bound = "upper",
    query: Query = DEFAULT_QUERY,
) -> View:
    """Return the loss of every agent to each of `coalitions` of which it is no member.

    `bound`: "upper" gives precise bounds, "quick" rough bounds, and "aligned" only the values of aligned
    records.

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
    # No observer learns more than all other agents together, who see all rows of an owner.
    ceiling = every_round_mu(per_release, pairs.period)[:, None]
    lower = np.where(pairs.asked, sensitivity * np.minimum(np.sqrt(pairs.reached), ceiling), np.nan)
    samples = amplified(exposure, per_release)
    sound = sensitivity * np.minimum(np.sqrt(np.maximum(pairs.upper, pairs.reached)), ceiling)
    upper = None if bound == "aligned" else np.where(pairs.asked, sound, np.nan)
    return View(observers=tuple(coalitions), lower=lower, upper=upper, asked=pairs.asked, samples=samples)


class _PairBounds:
    """Bounds of μ² at unit sensitivity for each owner and observer.

    `reached` [agents, observers]: the value of the aligned record, which changes all gradients in the same
    direction. `upper` [agents, observers]: an upper bound for all records.
    """

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
        """Compute a rough bound of every pair, following each change for a few rounds."""
        all_pairs = [(o, np.flatnonzero(self.asked[:, o])) for o in range(len(self.coalitions))]
        single = bound != "aligned" or self.period.max() > MAX_SUMMED_CLASSES
        # Without sums over classes, the values of aligned records come from single changes.
        rough = bound != "aligned" or self.period.max() <= MAX_SUMMED_CLASSES
        done, total = 0, len(self.coalitions)
        parts = 2 if bound == "upper" else 1  # the rough bounds are about half of the work for precise bounds
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
                progress("accounting", -(-done // parts), total, unit="observer")

    def tighten(self, progress: Progress) -> None:
        """Compute precise bounds of pairs until, for each owner, the pair with the largest bound has one."""
        observers = len(self.coalitions)
        remaining = observers // 2
        while wanted := self._wanted():
            by_observer = [
                (o, np.array([i for i, at in wanted if at == o])) for o in sorted({o for _, o in wanted})
            ]
            for bounds in parallel_map(self._bounded, _batched(by_observer)):
                for (i, o), (low, high) in bounds.items():
                    self.reached[i, o] = max(low, self.reached[i, o])
                    self.upper[i, o] = max(min(high, self.upper[i, o]), self.reached[i, o])
                    self.tight[i, o] = True
            remaining //= 2
            done = max(-(-observers // 2), observers - max(1, remaining))
            progress("accounting", done, observers, unit="observer")
        progress("accounting", observers, observers, unit="observer")

    def _wanted(self) -> list[Pair]:
        """Return the pairs with the two largest bounds of each owner whose largest bound is not yet precise.

        Pairs that have been computed precisely are left out.
        """
        pairs: list[Pair] = []
        for i in range(len(self.upper)):
            order = np.argsort(-np.where(self.asked[i], self.upper[i], -1.0), kind="stable")[:2]
            if self.asked[i, order[0]] and not self.tight[i, order[0]]:
                pairs += [(i, int(o)) for o in order if self.asked[i, o] and not self.tight[i, o]]
        return pairs

    def _track(
        self, batch: list[tuple[int, Ints]], rough: bool, single: bool, sums: bool = True
    ) -> list[tuple[int, Ints, TrackedChanges]]:
        """Follow the changes of each observer and its owners in `batch`, and return them with the results."""
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
        """Return the precise bounds (lower, upper) of μ² of each pair in `batch`."""
        return {
            (i, o): bracket_band(changes.bands[place], int(self.period[i]))
            for o, owners, changes in self._track(batch, rough=False, single=True)
            for place, i in enumerate(owners.tolist())
        }


def _batched(parts: list[tuple[int, Ints]]) -> list[list[tuple[int, Ints]]]:
    """Return `parts` in lists of at most OBSERVERS_PER_BATCH elements."""
    return [parts[start : start + OBSERVERS_PER_BATCH] for start in range(0, len(parts), OBSERVERS_PER_BATCH)]
