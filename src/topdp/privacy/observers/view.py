"""The exact view: what an observer, or a coalition, learns about each owner from all rows it reads.

Not for everyone-else-colludes (`worst_case`, which needs no assumption), nor for budgets (`calibrate`).

**Guarantees.** Observer: a coalition J of one or more agents, honest but curious, with all rows it receives
in all rounds, all rows it makes, its own draws and all draws it shares in knowing, its own data and
gradients, and all random choices of the protocol. Unknown to it: all other draws. Assumed: gradients are
fixed inputs, that is, a changed record changes its owner's own gradients and nobody's later gradients react
to that (exact for a linear loss). Adjacency and sensitivity are the exposure's. Then what J sees is Gaussian,
O = A u + B z, and μ² = max uᵀMu with M = Aᵀ(BBᵀ)⁺A over the changes u that one record can make: `upper` is
never below it, `lower` is what an aligned record reaches. Infinite when A leaves the range of B. Rounding,
and what is left out of long plans (less than a millionth of the largest μ of that observer), is on the side
of larger μ; see `filtering` for what counts as no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from topdp.plan import Plan
from topdp.plan.arrays import Bools, Floats, Ints
from topdp.privacy.basics.checks import NotCovered, PrivacyError
from topdp.privacy.basics.exposure import Exposure, check
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.loss import GaussianLoss, Loss
from topdp.privacy.observers.band_bounds import bracket_band
from topdp.privacy.observers.banded import Band, bands
from topdp.privacy.observers.bounds import bracket
from topdp.privacy.observers.gram import aligned, grams
from topdp.privacy.observers.worst_case import composed, fresh_releases, information

Observer = int | Sequence[int]
Progress = Callable[[int, int], None]

GRAM_BYTES = 1 << 29
"""Memory for the matrices M of one observer; more owners than fit are taken in turns."""

LONG = 512
"""Of plans with more releases, M is computed near its diagonal only, with a bound on the rest (`banded`)."""


@dataclass(frozen=True, eq=False)
class View:
    """μ[owner, observer]: nan for an observer's own data and for owners that were not asked for.

    `upper` is sound; `lower` is the aligned record; they differ where M has negative entries. Upper values
    that cannot be an owner's largest are not made as tight as they could be. An `upper` of None was not
    asked for. Owners with Poisson samples have no μ: their loss, an upper bound for every observer, is in
    `samples`.

    >>> from topdp.privacy import exposure, view
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> seen = view(plan, exposed, owners="all")
    >>> seen.worst().round(2).tolist()
    [0.71, 0.71, 0.71, 0.71, 0.73, 0.73]
    >>> round(seen.loss(owner=0, observer=3).epsilon(1e-5), 2)
    1.42
    """

    observers: tuple[tuple[int, ...], ...]
    lower: Floats  # [agents, observers]
    upper: Floats | None
    asked: Bools  # [agents, observers]
    samples: dict[int, Loss] = field(default_factory=dict)

    def loss(self, owner: int, observer: int) -> Loss:
        """The sound loss of one pair; `observer` is a position in `observers`."""
        if not self.asked[owner, observer]:
            raise PrivacyError(f"Expected a pair that was asked for, got owner {owner}, observer {observer}.")
        if owner in self.samples:
            return self.samples[owner]
        return GaussianLoss(float(self._sound()[owner, observer]))

    def epsilon(self, delta: float) -> Floats:
        """[agents, observers]: the sound ε at this δ; nan where μ is."""
        result = np.full(self.asked.shape, np.nan)
        gaussian = self.asked.copy()
        gaussian[list(self.samples)] = False
        result[gaussian] = epsilon_of(self._sound()[gaussian], delta) if gaussian.any() else 0.0
        for owner, loss in self.samples.items():
            result[owner, self.asked[owner]] = loss.epsilon(delta)
        return result

    def worst(self) -> Floats:
        """[agents]: the largest sound μ over the observers; nan for owners nobody was asked about."""
        return np.where(self.asked.any(axis=1), np.where(self.asked, self._sound(), 0.0).max(axis=1), np.nan)

    def _sound(self) -> Floats:
        if self.upper is None:
            raise PrivacyError(
                "Expected a view with its upper bound, got one asked for with bound='aligned'."
            )
        return self.upper


def view(
    plan: Plan,
    exposure: Exposure,
    observers: Sequence[Observer] | None = None,
    owners: Literal["linked", "all"] | Sequence[int] = "linked",
    bound: Literal["upper", "aligned"] = "upper",
    progress: Progress | None = None,
    widest: int | None = None,
) -> View:
    """The loss of each owner to each observer.

    `observers`: agents, or coalitions as sequences of agents; default every agent alone. `owners`: `linked`
    are those some row of which the observer reads, `all` everybody else. `bound="aligned"` leaves the upper
    bound out: a lower value for all owners at once, many times faster. `progress(done, total)` is called
    after each observer. `widest`: a plan of more than LONG releases is refused if changes have to be followed
    for more rounds than this.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> view(plan, exposed, observers=[1, (1, 5)], owners=[0]).epsilon(1e-5)[0].round(2).tolist()
    [2.91, 4.68]
    """
    check(plan, exposure)
    if bound not in ("upper", "aligned"):
        raise PrivacyError(f"Expected bound to be 'upper' or 'aligned', got {bound!r}.")
    members = tuple(
        _members(J, plan.agents) for J in (range(plan.agents) if observers is None else observers)
    )
    asked = np.zeros((plan.agents, len(members)), bool)
    lower, upper = np.full(asked.shape, np.nan), np.full(asked.shape, np.nan)
    drawn = np.array([one.sampled for one in exposure.batches])
    period = exposure.periods()
    coalitions = [np.isin(np.arange(plan.agents), J) for J in members]
    for o, coalition in enumerate(coalitions):
        asked[:, o] = _owners(plan, coalition, owners)
    samples = _samples(plan, exposure, np.flatnonzero(drawn & asked.any(axis=1)))
    wanted = [np.flatnonzero(asked[:, o] & ~drawn) for o in range(len(members))]
    reached = np.zeros(asked.shape)  # μ² at unit sensitivity of aligned records
    # One thread: the matrices are small, and threads that wait for each other spin where others work.
    with threadpool_limits(1, "blas"):
        for o, coalition in enumerate(coalitions):
            squares = aligned(plan, coalition, wanted[o], period)
            reached[wanted[o], o] = [classes.max() for classes in squares]
            lower[wanted[o], o] = exposure.sensitivity[wanted[o]] * np.sqrt(reached[wanted[o], o])
            if progress is not None and bound == "aligned":
                progress(o + 1, len(members))
        most = reached.max(axis=1)
        for o, coalition in enumerate(coalitions if bound == "upper" else []):
            pairs = _brackets(plan, coalition, wanted[o], period, most, widest)
            low, high = np.sqrt(np.array(pairs).reshape(-1, 2)).T
            sensitivity = exposure.sensitivity[wanted[o]]
            lower[wanted[o], o], upper[wanted[o], o] = sensitivity * low, sensitivity * high
            if progress is not None:
                progress(o + 1, len(members))
    return View(members, lower, upper if bound == "upper" else None, asked, samples)


def leading_view(plan: Plan, exposure: Exposure, owner: int, last: Sequence[int]) -> Floats:
    """[len(last)]: the sound μ of `owner` to the worst single observer, if its data enter up to round `last`.

    Observers read all rounds of the plan all the same. Not for owners with Poisson samples.
    """
    check(plan, exposure)
    period = int(exposure.periods()[owner])
    worst = np.zeros(len(last))
    with threadpool_limits(1, "blas"):
        for observer in np.flatnonzero(np.arange(plan.agents) != owner):
            for _, M in _matrices(plan, np.arange(plan.agents) == observer, np.array([owner])):
                # u_r = 0 from the first round that the data do not enter: the leading block of M counts.
                upper = [_bracket(_leading(M, r + 1), period)[1] for r in last]
                worst = np.maximum(worst, np.sqrt(upper) * exposure.sensitivity[owner])
    return worst


def _brackets(
    plan: Plan, coalition: Bools, owners: Ints, period: Ints, enough: Floats, widest: int | None
) -> list[tuple[float, float]]:
    """(lower, upper) of μ² at unit sensitivity, for each owner; `enough` [agents]: see `bracket`."""
    return [
        _bracket(M, int(period[i]), float(enough[i])) for i, M in _matrices(plan, coalition, owners, widest)
    ]


def _matrices(
    plan: Plan, coalition: Bools, owners: Ints, widest: int | None = None
) -> Iterator[tuple[int, Floats | Band]]:
    """M of each owner, whole or near its diagonal."""
    long = plan.releases > LONG
    for part in _in_turns(owners, plan.releases * LONG // 2 if long else plan.releases**2):
        found = bands(plan, coalition, part, widest) if long else grams(plan, coalition, part)
        yield from zip(part.tolist(), found, strict=True)


def _bracket(M: Floats | Band, period: int, enough: float = 0.0) -> tuple[float, float]:
    return bracket_band(M, period, enough) if isinstance(M, Band) else bracket(M, period, enough)


def _leading(M: Floats | Band, releases: int) -> Floats | Band:
    return M.leading(releases) if isinstance(M, Band) else M[:releases, :releases]


def _samples(plan: Plan, exposure: Exposure, owners: Ints) -> dict[int, Loss]:
    """The losses of owners with Poisson samples, to any observer: what `expect_fresh` allows."""
    if not len(owners):
        return {}
    expect_fresh(plan, owners)
    per_release = information(plan)
    return {
        i: composed(
            per_release[:, i], exposure.batches[i], exposure.adjacency, float(exposure.sensitivity[i])
        )
        for i in owners.tolist()
    }


def expect_fresh(plan: Plan, owners: Ints) -> None:
    """Refuses Poisson samples where an owner counts on noise that is not fresh and its own.

    If the owner releases one row a round under fresh noise of its own, then, given the rows of the round
    before, that row is a Gaussian mechanism on this round's sample alone, with noise independent of all other
    rounds. What any J sees of the owner is a function of those rows and of things independent of its data.
    So, by post-processing, J learns no more than the composition of the T+1 mechanisms tells; each of them is
    amplified, since the samples are independent and secret. Where rows count on noise of other rows or
    rounds, what J sees in a round depends on several samples at once: no amplification theorem covers that.
    """
    fresh = fresh_releases(plan)
    if not fresh[owners].all():
        raise NotCovered(
            f"The view does not cover Poisson samples in a plan that reuses noise ({plan.protocol}, agent "
            f"{owners[~fresh[owners]][0]}): there is no amplification theorem for it. Use full or cyclic "
            f"batches, or the worst-case guarantee."
        )


def _members(observer: Observer, agents: int) -> tuple[int, ...]:
    try:
        J = tuple(sorted({int(j) for j in (observer if isinstance(observer, Sequence) else [observer])}))
    except (TypeError, ValueError):
        raise PrivacyError(f"Expected an agent or several, got {observer!r}.") from None
    if not J or J[0] < 0 or J[-1] >= agents:
        raise PrivacyError(f"Expected observers between 0 and {agents - 1}, got {observer!r}.")
    return J


def _owners(plan: Plan, coalition: Bools, owners: str | Sequence[int]) -> Bools:
    chosen = np.zeros(plan.agents, bool)
    if isinstance(owners, str):
        if owners not in ("linked", "all"):
            raise PrivacyError(f"Expected owners to be 'linked', 'all' or agents, got {owners!r}.")
        if owners == "all":
            chosen[:] = True
        else:
            readers = plan.readers.values
            read = (coalition[readers] & (readers >= 0)).any(axis=-1)[plan.readers.which] & plan.exists
            chosen[plan.owner[read.any(axis=0)]] = True
    elif len(owners):
        chosen[list(_members(owners, plan.agents))] = True
    return chosen & ~coalition


def _in_turns(owners: Ints, numbers: int) -> list[Ints]:
    """As many owners at once as have room for so many numbers each."""
    step = max(1, GRAM_BYTES // (8 * numbers))
    return [owners[start : start + step] for start in range(0, len(owners), step)]
