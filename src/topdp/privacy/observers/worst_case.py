"""The worst case: the loss of an owner to all other agents together, release by release.

Given all rows of the previous release, the owner's terms in a release are one Gaussian mechanism on its
gradient, spread over all rows that carry the gradient. `view` covers smaller coalitions, under one more
assumption.

**Guarantees.** Observers: all other agents together, who see every row that the owner makes in every round
(its own estimate included, sent or not), all their own rows, gradients and draws, and all random choices of
the protocol. Only draws that the owner alone knows, and that enter no row of another agent, count as noise.
No assumption on gradients: they may depend on all that was released before (adaptive composition). Adjacency
and sensitivity are those of the exposure. The result is exact for Gaussian noise: these observers can attain
it. With Poisson samples, the amplification of each round is composed by privacy loss distributions, with
errors on the private side (under add-remove only; there is no amplification under replace-one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from topdp.base.array_types import Bools, Floats, Ints
from topdp.base.rounding import gamma
from topdp.plan import PerRound, Plan
from topdp.plan.batches import Adjacency, Batches
from topdp.privacy.basics.exposure import Exposure, check
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.privacy_loss import GaussianLoss, Loss, SmallestLoss, sampled_loss
from topdp.privacy.basics.refusals import PrivacyError, expect_deltas
from topdp.privacy.observers._exact_squares import exact_squares

ROUNDS_PER_BATCH = 1024

# More than the number of roundings of a sum, of its terms and of its root.
INFORMATION_ROUNDINGS = 64


@dataclass(frozen=True)
class WorstCase:
    """The loss of every owner to all other agents. `mu` [agents] is nan for owners with Poisson samples.

    >>> from topdp.privacy import exposure, worst_case
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> worst_case(plan, exposed).mu.round(2).tolist()
    [1.17, 1.17, 1.17, 1.17, 1.17, 1.17]
    """

    mu: Floats
    losses: tuple[Loss, ...]

    def epsilon(self, delta: ArrayLike) -> Floats:
        """Return ε [agents] at one δ, or at the δ of each agent.

        It is infinite for an agent that sends a gradient without noise.
        """
        deltas = expect_deltas(delta, len(self.losses))
        # All Gaussian losses are computed at once. Amplified losses, whose μ is nan, are computed one by one.
        epsilon = np.asarray(epsilon_of(np.nan_to_num(self.mu, posinf=np.inf), deltas))
        for owner in np.flatnonzero(np.isnan(self.mu)).tolist():
            epsilon[owner] = self.losses[owner].epsilon(float(deltas[owner]))
        return epsilon


def worst_case(plan: Plan, exposure: Exposure) -> WorstCase:
    """Return the loss of each owner to all other agents together.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> exposed = exposure(6, sensitivity=1.0)
    >>> worst_case(plan, exposed).epsilon(1e-5).round(2).tolist()
    [5.24, 5.24, 5.24, 5.24, 5.24, 5.24]
    """
    check(plan, exposure)
    per_release = information(plan)
    losses = [
        composed(per_release[:, i], exposure.batches[i], exposure.adjacency, float(exposure.sensitivity[i]))
        for i in range(plan.agents)
    ]
    mu = np.array([loss.mu if isinstance(loss, GaussianLoss) else np.nan for loss in losses])
    return WorstCase(mu, tuple(losses))


def composed(information: Floats, batches: Batches, adjacency: Adjacency, sensitivity: float = 1.0) -> Loss:
    """Return the loss of an owner's releases under fresh noise; all accountants compose rounds by this.

    `information` [releases]: 1/z² of each release from round 0 onwards, at sensitivity 1; 0 if nothing was
    released.

    With Poisson samples, the result is the smaller of two losses. One is that of a subsampled Gaussian
    release in each round. The other is that of a record that is in every round. The second is an upper
    bound, because sampling puts the record into only some of the rounds, and δ(ε) is jointly convex. Under
    replace-one adjacency, the result is always the second loss, because it is subtle which pair of data sets
    is the worst for composed samples (Lebeda et al. 2024, arXiv:2405.20769).
    """
    if not (information >= 0).all():
        raise PrivacyError(f"Expected information >= 0 for every release, got {information.min()}.")
    unamplified = GaussianLoss(sensitivity * every_round(information, batches.period))
    if not batches.sampled or adjacency != "add-remove":
        return unamplified
    with np.errstate(divide="ignore"):
        return SmallestLoss(
            (unamplified, sampled_loss(1 / (sensitivity * np.sqrt(information)), batches.rate))
        )


def every_round(information: Floats, period: int) -> float:
    """Return μ at unit sensitivity of the worst record that is used once in `period` rounds.

    `information` [releases]: 1/z² of each release.
    """
    # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
    classes = [math.fsum(information[s::period]) for s in range(min(period, len(information)))]
    return float(np.sqrt(max(classes)) * (1 + gamma(INFORMATION_ROUNDINGS)))


def every_round_mu(information: Floats, periods: Ints) -> Floats:
    """Return μ at unit sensitivity of each agent's worst record [agents], by `every_round`.

    `information` [releases, agents]: 1/z² of each release. `periods` [agents]: how often a record is used.
    """
    return np.array([every_round(information[:, i], period) for i, period in enumerate(periods.tolist())])


def information(plan: Plan) -> Floats:
    """Return 1/z² of every owner's release in every round, at unit sensitivity [releases, agents].

    It is rounded up. 1/z² = stepᵀ(BBᵀ)⁺step over the owner's rows of the round, where B contains the standard
    deviations of the draws that count as noise. It is infinite if `step` is not in the range of B.
    """
    counts, independent = _counting(plan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(plan.rate > 0, plan.rate / plan.scale, 0.0) ** 2
    if not independent:
        return _shared(plan, counts, _carries(plan, slice(None)), ratio)
    result = np.empty((plan.releases, plan.agents))
    of_owner = sparse.csr_array(
        (np.ones(plan.rows), (plan.owner, np.arange(plan.rows))), shape=(plan.agents, plan.rows)
    )
    for start in range(0, plan.releases, ROUNDS_PER_BATCH):
        rounds = slice(start, start + ROUNDS_PER_BATCH)
        # No draw enters two rows, so BBᵀ is diagonal, and 1/z² = Σ_rows (step/std)².
        std = np.where(counts.values[counts.which[rounds]], plan.std.values[plan.std.which[rounds]], 0.0)
        variance = np.square(std).sum(axis=-1)
        with np.errstate(divide="ignore"):
            per_row = np.where(_carries(plan, rounds), 1 / variance, 0.0)
        result[rounds] = (of_owner @ per_row.T).T
    rounding = 1 + gamma(
        int(np.bincount(plan.owner[~plan.memories]).max()) + 2 * plan.draw.values.shape[-1] + 16
    )
    with np.errstate(invalid="ignore"):
        return np.where((result == 0) | (plan.rate == 0)[:, None], 0.0, result * ratio[:, None] * rounding)


def all_draws_count(plan: Plan) -> bool:
    """Return whether all noise is own noise; `information` is then exact for every observer of all rows."""
    counts, _ = _counting(plan)
    enters = (plan.draw.values >= 0)[plan.draw.which] & (plan.std.values != 0)[plan.std.which]
    return not bool((enters & ~counts.values[counts.which]).any())


def _carries(plan: Plan, rounds: slice) -> Bools:
    """Return for each release in `rounds` and each row whether it carries its owner's gradient.

    The result is Boolean [releases, m].
    """
    return np.asarray(plan.carries.values[plan.carries.which[rounds]] & plan.exists[rounds])


def _counting(plan: Plan) -> tuple[PerRound, bool]:
    """Return which draws count as noise for the row's owner, and whether no draw enters two rows.

    The first result has Boolean arrays [m, v], as `Plan.draw`.
    """
    first = plan.known_by.max(axis=1, initial=-1)
    alone = ((plan.known_by == first[:, None]) | (plan.known_by < 0)).all(axis=1)
    only_knower = np.where(alone, first, -1)
    draw = plan.draw.values
    counts = (draw >= 0) & (only_knower[draw] == plan.owner[:, None])
    independent = True
    for kind in range(len(draw)):
        entries = draw[kind][draw[kind] >= 0]
        if len(np.unique(entries)) == len(entries):
            continue
        independent = False
        # A draw that also enters a row of another agent is known to that agent.
        foreign = np.zeros(plan.draws, bool)
        foreign[draw[kind][(draw[kind] >= 0) & ~counts[kind]]] = True
        counts[kind] &= ~foreign[draw[kind]]
    return PerRound(counts, plan.draw.which), independent


def _shared(plan: Plan, counts: PerRound, carries: Bools, ratio: Floats) -> Floats:
    """Return `information` for a plan in which draws enter several rows; equal rounds are computed once."""
    result = np.zeros((plan.releases, plan.agents))
    known: dict[Any, Floats] = {}
    for r in np.flatnonzero(plan.rate > 0).tolist():
        if plan.scale[r] == 0:
            result[r] = np.where(np.bincount(plan.owner[carries[r]], minlength=plan.agents) > 0, np.inf, 0.0)
            continue
        key = (plan.draw.which[r], plan.std.which[r], carries[r].tobytes(), plan.exists[r].tobytes())
        if key not in known:
            std = np.where(counts[r], plan.std[r], 0.0)
            known[key] = np.array(
                [
                    _release(plan.draw[r][rows], std[rows], carries[r][rows].astype(float))
                    for rows in (
                        np.flatnonzero((plan.owner == i) & plan.exists[r]) for i in range(plan.agents)
                    )
                ]
            )
        with np.errstate(over="ignore"):
            result[r] = np.where(known[key] > 0, known[key] * ratio[r], 0.0)
    return result


def _release(draw: Ints, std: Floats, step: Floats) -> float:
    """Return stepᵀ(BBᵀ)⁺step for the rows of one owner in one round; infinite if noise does not hide `step`.

    `draw`, `std` [rows, v]: the draws of each row and their standard deviations; 0 for draws that do not
    count.
    """
    if not step.any():
        return 0.0
    names, column = np.unique(draw, return_inverse=True)
    B = np.zeros((len(draw), len(names)))
    np.add.at(B, (np.arange(len(draw))[:, None], column.reshape(draw.shape)), std)
    return float(exact_squares(B, step[:, None])[0])
