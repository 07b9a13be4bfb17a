"""The least own noise of each agent in plans with pair noise.

Inputs are the pairs of agents that share secrets, and the noise that each agent would need without pair
noise. Pair noise provides most of the protection, and own noise the rest. Own noise remains in the average of
the estimates, so the sum of its variances is minimised. `calibrate` scales the result until the account of
the plan meets the budgets in ε.

**Guarantees.** None of its own: the caller scales the result until its account meets the budgets.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar

from topdp.base.array_types import Floats, Ints
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.observers.shared_noise import Coalition, by_connectivity

# The most coalitions that are computed one by one. If there are more, only one coalition for each agent is
# computed, which includes the agent's partners first.
MAX_ENUMERATED_COALITIONS = 40_000

MAX_INVERTED_NUMBERS = 1 << 22  # the most numbers in matrices that are inverted at once
COALITIONS_PER_AGENT = 6  # the number of constraints that each search adds for an agent
MAX_SEARCHES = 8  # the most searches; each adds the worst coalitions of the previous result
# The most agents for which coalitions are computed. For more agents, a bound covers all coalitions.
MAX_EXACT_AGENTS = 200


@dataclass(frozen=True, eq=False)
class Allocation:
    """Standard deviations: `own` [agents] of own noise, and `pair` of the draw of every pair."""

    own: Floats
    pair: float

    @property
    def pair_noise(self) -> float:
        """The deviation of a pair's draw divided by the root mean square of own noise, as in `Correlated`."""
        return self.pair / math.sqrt(float(np.square(self.own).mean()))


def allocate(pairs: Ints, alone: Floats, colluders: int, strength: float = 10.0) -> Allocation:
    """Return the least own noise with which each agent is protected against `colluders` other agents.

    `pairs` [p, 2]: the pairs of agents that share secrets. `alone` [agents]: the standard deviation that an
    agent would need if no other noise hid it. `strength`: the variance of all pair noise in a row, divided by
    the mean of the squares of `alone`. Stronger pair noise hides better, and needs more averaging to remove.

    >>> import numpy as np
    >>> from topdp import topology
    >>> found = allocate(topology.complete(10).edges, np.ones(10), colluders=1)
    >>> round(float(np.square(found.own).sum()), 3), bool(np.ptp(found.own) < 1e-12)
    (1.218, True)
    """
    alone = np.asarray(alone, float)
    n = len(alone)
    if not (np.isfinite(alone) & (alone > 0)).all() or not 0 <= colluders < n or not strength > 0:
        raise PrivacyError(
            "Expected finite needs > 0, fewer colluders than agents, and a strength > 0, got the needs "
            f"{alone}, {colluders} colluders and the strength {strength}."
        )
    partners = np.bincount(pairs.reshape(-1), minlength=n)
    # τ² = k·s², where τ² is `strength` times the mean of the squared needs, and k the mean number of partners
    pair = math.sqrt(strength * float(np.square(alone).mean()) / float(partners.mean()))
    hiding = _HiddenNoise(pairs, n, colluders, pair**2)
    if n > MAX_EXACT_AGENTS:
        return Allocation(np.sqrt(_by_connectivity(hiding, np.square(alone), pair)), pair)
    variance = _in_proportion(hiding, np.square(alone))
    if np.ptp(alone) > 1e-12 * alone.max():
        variance = _least(hiding, np.square(alone), variance)
    return Allocation(np.sqrt(variance), pair)


def _by_connectivity(hiding: _HiddenNoise, needs: Floats, pair: float) -> Floats:
    """Return the own variances of many agents, computed with the bound of `shared_noise.by_connectivity`."""
    weights, c = hiding.weights, hiding.colluders
    second = float(np.linalg.eigvalsh(np.diag(weights.sum(axis=1)) - weights)[1])
    connected = max(0.0, second - c * pair**2)
    if connected == 0:
        return needs
    ends = (math.log(1e-6), math.log((hiding.agents - c) * (1 - 1e-6)))
    best = minimize_scalar(lambda x: _filled(needs, connected, c, math.exp(x)).sum(), bounds=ends)
    filled = _filled(needs, connected, c, math.exp(best.x))

    # The agent that needs most is also hidden by its own noise, so less than `filled` is enough.
    def excess(share: float) -> float:
        return float((by_connectivity(share * filled, connected, c) * needs).max()) - 1.0

    return filled * float(brentq(excess, 1e-3 / hiding.agents, 1.0 + 1e-6, xtol=1e-15))


def _filled(needs: Floats, connected: float, colluders: int, total: float) -> Floats:
    """Return the least own variances d [n] that meet all needs and attain Σ d_j/(d_j + λ) = `total`.

    λ is `connected`. The sum is over the n - `colluders` smallest terms.
    """
    n = len(needs)
    # 1/x + (λ/total)/x² = 1/needs_i with x = d_i + λ
    x = (needs + np.sqrt(np.square(needs) + 4 * needs * connected / total)) / 2
    variance = np.maximum(x - connected, needs / n)

    def lacking(least: float) -> float:
        shares = np.sort(1 - 1 / (np.maximum(variance / connected, math.exp(least)) + 1))
        return total - float(shares[: n - colluders].sum())

    if lacking(-40.0) > 0:  # the sum grows most with small variances, so the smallest variances are raised
        variance = np.maximum(variance, connected * math.exp(brentq(lacking, -40.0, 40.0)))
    return variance


class _HiddenNoise:
    """The information that coalitions obtain about each agent in spite of own and pair noise."""

    def __init__(self, pairs: Ints, agents: int, colluders: int, pair_variance: float) -> None:
        self.agents, self.colluders = agents, colluders
        self.weights = np.zeros((agents, agents))
        self.weights[pairs[:, 0], pairs[:, 1]] = self.weights[pairs[:, 1], pairs[:, 0]] = pair_variance
        self.all = len(pairs) == math.comb(agents, 2)

    def coalitions(self, variance: Floats) -> list[Coalition]:
        """Return coalitions that include, for every agent, the coalition that learns most about the agent.

        If there are too many coalitions to compute each, the choice is a heuristic. The account checks the
        result.
        """
        n, c = self.agents, self.colluders
        if np.ptp(variance) <= 1e-12 * variance.max() and not self.all:
            # Among equal agents, an agent's partners know most of its noise (observed, not proved).
            partners = [np.flatnonzero(row).tolist() for row in self.weights]
            if (
                sum(math.comb(len(some), c) for some in partners) <= MAX_ENUMERATED_COALITIONS
                and min(map(len, partners)) >= c
            ):
                return sorted({J for some in partners for J in itertools.combinations(some, c)})
        if math.comb(n, c) <= MAX_ENUMERATED_COALITIONS and not self.all:
            return list(itertools.combinations(range(n), c))
        # The worst colluders: agents with most own noise, but partners first if not all pairs share secrets.
        coalitions = set()
        for agent in range(n):
            worth = variance / variance.max() + (0 if self.all else 2 * (self.weights[agent] > 0))
            worth[agent] = -1.0
            coalitions.add(tuple(sorted(np.argsort(-worth, kind="stable")[:c].tolist())))
        return sorted(coalitions)

    def inverses(self, variance: Floats, coalitions: list[Coalition]) -> Floats:
        """Return (diag(a²) + s²L)⁻¹ [coalitions, n, n] of the agents outside each coalition.

        a² is `variance`, and s²L the Laplacian of the pair noise that no member knows. The rows and columns
        of members are those of the unit matrix.
        """
        outside = np.ones((len(coalitions), self.agents))
        for o, J in enumerate(coalitions):
            outside[o, list(J)] = 0.0
        shared = self.weights * outside[:, :, None] * outside[:, None, :]
        diagonal = np.where(outside > 0, variance + shared.sum(axis=2), 1.0)
        matrices = -shared
        matrices[:, np.arange(self.agents), np.arange(self.agents)] = diagonal
        return np.asarray(np.linalg.inv(matrices), np.float64)

    def exposed(self, variance: Floats, coalitions: list[Coalition]) -> Floats:
        """Return 1/z² at unit sensitivity of each agent to each coalition [coalitions, n]; 0 for members."""
        step = max(1, MAX_INVERTED_NUMBERS // self.agents**2)
        parts = [coalitions[at : at + step] for at in range(0, len(coalitions), step)]
        exposed = np.concatenate(
            [np.einsum("onn->on", self.inverses(variance, part)).copy() for part in parts]
        )
        for o, J in enumerate(coalitions):
            exposed[o, list(J)] = 0.0
        return exposed

    def worst(self, variance: Floats) -> tuple[Floats, list[Coalition]]:
        """Return 1/z² [n] of each agent to the coalition that learns most about it, and these coalitions."""
        coalitions = self.coalitions(variance)
        exposed = self.exposed(variance, coalitions)
        return exposed.max(axis=0), [coalitions[o] for o in exposed.argmax(axis=0)]


def _in_proportion(hiding: _HiddenNoise, needs: Floats) -> Floats:
    """Return the least own variances that hide all agents and are proportional to `needs`.

    `needs` [agents]: the variance that each agent would need alone.
    """
    coalitions: list[Coalition] = []

    def excess(share: float) -> float:
        return float((hiding.exposed(share * needs, coalitions) * needs).max()) - 1.0

    share = 1.0 / hiding.agents
    for _ in range(MAX_SEARCHES):
        _, worst = hiding.worst(share * needs)
        if set(worst) <= set(coalitions):
            break
        coalitions = sorted({*coalitions, *worst})
        share = float(brentq(excess, 1e-3 / hiding.agents, 1.0 + 1e-9, xtol=1e-12, rtol=1e-10))
    return share * needs


def _least(hiding: _HiddenNoise, needs: Floats, start: Floats) -> Floats:
    """Return the a² [agents] that minimise Σ a_i² such that every agent is hidden from every coalition J.

    The constraints [(diag(a²) + s²L_-J)⁻¹]_ii <= 1/needs_i are convex in a². A further constraint is
    a_i² >= needs_i/n, which would be enough if all agents hid each other perfectly. Without this constraint,
    some agent might be hidden by the noise of its partners only, and by nothing against more colluders. The
    constraint costs less than 1%.
    """
    variance, constraints = start, set[tuple[int, Coalition]]()
    for _ in range(MAX_SEARCHES):
        coalitions = hiding.coalitions(variance)
        excess = hiding.exposed(variance, coalitions) * needs
        worst = np.argsort(-excess, axis=0)[:COALITIONS_PER_AGENT]
        new = {(i, coalitions[o]) for i in range(hiding.agents) for o in worst[:, i] if excess[o, i] > 0}
        if new <= constraints:
            break
        constraints |= new
        variance = _search(hiding, needs, variance * max(1.0, float(excess.max())), sorted(constraints))
    return variance


def _search(
    hiding: _HiddenNoise, needs: Floats, start: Floats, constraints: list[tuple[int, Coalition]]
) -> Floats:
    """Return the solution of `_least` for the given `constraints`: pairs of an agent and a coalition."""
    coalitions = sorted({J for _, J in constraints})
    at = np.array([coalitions.index(J) for _, J in constraints])
    owner = np.array([i for i, _ in constraints])
    unit = float(start.mean())

    def slack(x: Floats) -> Floats:
        return np.asarray(1.0 - needs[owner] * hiding.inverses(x * unit, coalitions)[at, owner, owner])

    def slopes(x: Floats) -> Floats:
        # ∂[M⁻¹]_ii / ∂a_j² = -([M⁻¹]_ij)²
        entries = hiding.inverses(x * unit, coalitions)[at, owner]
        return np.asarray(needs[owner, None] * unit * np.square(entries))

    solution = minimize(
        np.sum,
        start / unit,
        jac=np.ones_like,
        bounds=[(least, None) for least in needs / (hiding.agents * unit)],
        constraints={"type": "ineq", "fun": slack, "jac": slopes},
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-10},
    )
    return np.asarray(solution.x) * unit
