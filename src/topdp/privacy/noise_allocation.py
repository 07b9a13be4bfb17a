"""The least own noise of each agent where pairs share noise.

Inputs are the pairs that share secrets, and the noise that each agent would need without pair noise. Pair
noise provides most of the protection, own noise the rest. Own noise remains in the average, so the sum of its
variances is minimised. `calibrate` scales the result until the account of the plan meets the budgets in ε.

**Guarantees.** None of its own: the caller divides the result by its account.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar

from topdp.base.array_types import Floats, Ints
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.observers.shared_noise import by_connectivity

Coalition = tuple[int, ...]

# Up to this many coalitions are computed one by one. Above, only one coalition for each agent is computed,
# which prefers the agent's partners.
MAX_ENUMERATED_COALITIONS = 40_000

MAX_INVERTED_NUMBERS = 1 << 22  # in matrices that are inverted at once
COALITIONS_PER_AGENT = 6  # constraints that each search adds for an agent
MAX_SEARCHES = 8  # each with the worst coalitions of the one before
# Agents whose noise is sought one by one; more share it in proportion to what each needs.
MAX_EXACT_AGENTS = 200


@dataclass(frozen=True, eq=False)
class Allocation:
    """Standard deviations: `own` [agents], and `pair` of every pair's draw.

    `average`: the variance that remains in the average, over that of pooled records under the agents' mean
    need. `weakest`: the agent with the least protection, and the coalition that knows most of its noise.
    """

    own: Floats
    pair: float
    average: float
    weakest: tuple[int, Coalition]

    @property
    def pair_noise(self) -> float:
        """A pair's deviation over the root mean square of own noise, as `Correlated` expects it."""
        return self.pair / math.sqrt(float(np.square(self.own).mean()))


def allocate(pairs: Ints, alone: Floats, colluders: int, strength: float = 10.0) -> Allocation:
    """Return the least own noise where agent i needs deviation alone[i] if no other noise hides it.

    `pairs` [p, 2]: the agents that share secrets. `strength`: the variance of all pair noise in a row, over
    what agents need alone; more hides better, and takes more averaging to remove.

    >>> import numpy as np
    >>> from topdp import topology
    >>> found = allocate(topology.complete(10).edges, np.ones(10), colluders=1)
    >>> round(found.average, 3), bool(np.ptp(found.own) < 1e-12)
    (1.218, True)
    """
    alone = np.asarray(alone, float)
    n = len(alone)
    if not (np.isfinite(alone) & (alone > 0)).all() or not 0 <= colluders < n or not strength > 0:
        raise PrivacyError("Expected finite needs > 0, fewer colluders than agents, and a strength > 0.")
    partners = np.bincount(pairs.reshape(-1), minlength=n)
    # τ² = k·s²: of the agents' mean need
    pair = math.sqrt(strength * float(np.square(alone).mean()) / float(partners.mean()))
    hiding = _HiddenNoise(pairs, n, colluders, pair**2)
    if n > MAX_EXACT_AGENTS:
        return _by_connectivity(hiding, alone, pair)
    variance = _in_proportion(hiding, np.square(alone))
    if np.ptp(alone) > 1e-12 * alone.max():
        variance = _least(hiding, np.square(alone), variance)
    exposed, coalitions = hiding.worst(variance)
    weakest = int((exposed * np.square(alone)).argmax())
    average = float(variance.sum()) / float(np.square(alone).mean())
    return Allocation(np.sqrt(variance), pair, average, (weakest, coalitions[weakest]))


def _by_connectivity(hiding: _HiddenNoise, alone: Floats, pair: float) -> Allocation:
    """Return the allocation for many agents, by the bound of `shared_noise.by_connectivity`."""
    weights, c, needs = hiding.weights, hiding.colluders, np.square(alone)
    second = float(np.linalg.eigvalsh(np.diag(weights.sum(axis=1)) - weights)[1])
    connected = max(0.0, second - c * pair**2)
    variance = needs
    if connected > 0:
        ends = (math.log(1e-6), math.log((hiding.agents - c) * (1 - 1e-6)))
        best = minimize_scalar(lambda x: _filled(needs, connected, c, math.exp(x)).sum(), bounds=ends)
        filled = _filled(needs, connected, c, math.exp(best.x))

        # An agent that needs most also hides itself: there is some to spare.
        def excess(share: float) -> float:
            return float((by_connectivity(share * filled, connected, c) * needs).max()) - 1.0

        variance = filled * brentq(excess, 1e-3 / hiding.agents, 1.0 + 1e-6, xtol=1e-15)
    weakest = int((by_connectivity(variance, max(connected, 1e-300), c) * needs).argmax())
    average = float(variance.sum()) / float(needs.mean())
    return Allocation(np.sqrt(variance), pair, average, (weakest, ()))


def _filled(needs: Floats, connected: float, colluders: int, kept: float) -> Floats:
    """Return the least own variances d [n] that meet all needs, given Σ d_j/(d_j + λ) = `kept`, and that
    attain this sum.
    """
    n = len(needs)
    # 1/x + (λ/kept)/x² = 1/needs_i with x = d_i + λ
    x = (needs + np.sqrt(np.square(needs) + 4 * needs * connected / kept)) / 2
    variance = np.maximum(x - connected, needs / n)

    def lacking(least: float) -> float:
        shares = np.sort(1 - 1 / (np.maximum(variance / connected, math.exp(least)) + 1))
        return kept - float(shares[: n - colluders].sum())

    if lacking(-40.0) > 0:  # small variances count most: the smallest ones are raised
        variance = np.maximum(variance, connected * math.exp(brentq(lacking, -40.0, 40.0)))
    return variance


class _HiddenNoise:
    """The information that remains about each agent under own and pair noise, for the relevant coalitions."""

    def __init__(self, pairs: Ints, agents: int, colluders: int, pair_variance: float) -> None:
        self.agents, self.colluders = agents, colluders
        self.weights = np.zeros((agents, agents))
        self.weights[pairs[:, 0], pairs[:, 1]] = self.weights[pairs[:, 1], pairs[:, 0]] = pair_variance
        self.all = len(pairs) == math.comb(agents, 2)

    def coalitions(self, variance: Floats) -> list[Coalition]:
        """Return coalitions that include, for every agent, the one that learns most about it.

        Where there are too many to compute each, this is a heuristic; the account checks the result.
        """
        n, c = self.agents, self.colluders
        if np.ptp(variance) <= 1e-12 * variance.max() and not self.all:
            # Among equal agents, an agent's partners know most of its noise (observed, not proved).
            partners = [np.flatnonzero(row).tolist() for row in self.weights]
            if (
                sum(math.comb(len(of), c) for of in partners) <= MAX_ENUMERATED_COALITIONS
                and min(map(len, partners)) >= c
            ):
                return sorted({J for of in partners for J in itertools.combinations(of, c)})
        if math.comb(n, c) <= MAX_ENUMERATED_COALITIONS and not self.all:
            return list(itertools.combinations(range(n), c))
        # The worst colluders: agents with most own noise; where not all share secrets, partners first.
        coalitions = set()
        for agent in range(n):
            worth = variance / variance.max() + (0 if self.all else 2 * (self.weights[agent] > 0))
            worth[agent] = -1.0
            coalitions.add(tuple(sorted(np.argsort(-worth, kind="stable")[:c].tolist())))
        return sorted(coalitions)

    def inverses(self, variance: Floats, coalitions: list[Coalition]) -> Floats:
        """Return [coalitions, n, n]: (diag(a²) + s²L)⁻¹ without the members, whose diagonal entries are 1."""
        left = np.ones((len(coalitions), self.agents))
        for o, J in enumerate(coalitions):
            left[o, list(J)] = 0.0
        shared = self.weights * left[:, :, None] * left[:, None, :]
        diagonal = np.where(left > 0, variance + shared.sum(axis=2), 1.0)
        matrices = -shared
        matrices[:, np.arange(self.agents), np.arange(self.agents)] = diagonal
        return np.asarray(np.linalg.inv(matrices), np.float64)

    def exposed(self, variance: Floats, coalitions: list[Coalition]) -> Floats:
        """Return [coalitions, n]: 1/z² at unit sensitivity; 0 for members."""
        step = max(1, MAX_INVERTED_NUMBERS // self.agents**2)
        parts = [coalitions[at : at + step] for at in range(0, len(coalitions), step)]
        exposed = np.concatenate(
            [np.einsum("onn->on", self.inverses(variance, part)).copy() for part in parts]
        )
        for o, J in enumerate(coalitions):
            exposed[o, list(J)] = 0.0
        return exposed

    def worst(self, variance: Floats) -> tuple[Floats, list[Coalition]]:
        """Return [n]: 1/z² to the coalition that learns most about each agent; and these coalitions."""
        coalitions = self.coalitions(variance)
        exposed = self.exposed(variance, coalitions)
        return exposed.max(axis=0), [coalitions[o] for o in exposed.argmax(axis=0)]


def _in_proportion(hiding: _HiddenNoise, needs: Floats) -> Floats:
    """Return the least own variances, in proportion to what each agent needs alone, that hide all agents."""
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
    """min Σa_i² such that [(diag(a²) + s²L_-J)⁻¹]_ii <= 1/needs_i for all J: convex in a².

    Also a_i² >= needs_i/n, which each agent would have if all hid each other perfectly. Otherwise noise of
    its partners alone might hide some agent, and against more colluders nothing would. This costs less than
    1%.
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
