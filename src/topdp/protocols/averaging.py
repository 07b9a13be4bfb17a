"""Averaging with neighbours: Metropolis weights, and K steps of it, plain or accelerated.

Rows that mix and nothing else: what everybody may see of them is a function of what was seen before, so they
cost no privacy. Not for the noise that is averaged.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from topdp.base.array_types import Floats, Ints
from topdp.base.number_checks import expect_count
from topdp.errors import InputError
from topdp.plan import NOBODY
from topdp.plan.random_streams import stream
from topdp.topology import Topology

DENSE = 2000
"""Agents up to whom all eigenvalues of W are computed."""

ROWS = 256
"""Rows of W that are there at once."""

DIGITS = 6
"""To which the ends of a spectrum are rounded, outwards: so that every machine writes the same plan."""

AWAY = 0.618
"""From the next step of rounding, for eigenvalues that are fractions of small numbers, such as 1/128."""

MOST = 32
"""Steps between two gradients. More would lose digits in the factors of a Chebyshev polynomial."""

BEARABLE = 1e4
"""By so much rounding may be enlarged: three digits of float32 are left, of differences between agents."""


def expect_gossip(steps: int) -> int:
    """K, checked."""
    steps = expect_count("gossip", steps, least=0)
    if steps > MOST:
        raise InputError(f"Expected gossip of at most {MOST} steps between two gradients, got {steps}.")
    return steps


def metropolis(topology: Topology) -> Floats:
    """[n, n]: W_ij = 1/(1 + max(degree i, degree j)) between neighbours, the rest on oneself.

    Symmetric with rows that sum to one, so that mixing keeps the average (Xiao and Boyd 2004).

    >>> from topdp import topology
    >>> metropolis(topology.star(3, hubs=1)).round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    degrees = topology.degrees
    W = np.where(topology.adjacency, 1.0 / (1.0 + np.maximum(degrees[:, None], degrees)), 0.0)
    W[np.diag_indices(len(W))] = 1.0 - W.sum(axis=1)
    return np.asarray(W)


def mixing_steps(topology: Topology, steps: int, chebyshev: bool = True) -> list[Floats]:
    """[n, n] for each of K steps: their product averages as well as K steps can.

    Plain: W each time. Chebyshev: of all polynomials of degree K in W that keep the average, the one that is
    smallest on the rest of W's spectrum [a, b] (Manteuffel 1977), as K linear factors, so that each step
    needs the rows of the step before alone.

    >>> from topdp import topology
    >>> ring = topology.ring(8)
    >>> def left(steps):  # of a disagreement, at worst
    ...     product = np.linalg.multi_dot([np.eye(8), *steps])
    ...     return round(float(np.linalg.norm(product - 1 / 8, 2)), 3)
    >>> left(mixing_steps(ring, 4, chebyshev=False)), left(mixing_steps(ring, 4))
    (0.419, 0.132)
    """
    W = metropolis(topology)
    if not chebyshev or steps < 2:
        return [W] * steps
    roots = mixing_roots(np.asarray(np.linalg.eigvalsh(W), np.float64), steps)
    return [(W - root * np.eye(len(W))) / (1.0 - root) for root in roots]


def mixing_roots(spectrum: Floats, steps: int, chebyshev: bool = True) -> list[float]:
    """Of the polynomial in W that K steps are, in their turn; `spectrum` of W, the average last.

    A direction of eigenvalue λ is multiplied by Π (λ - root)/(1 - root).
    """
    if not chebyshev or steps < 2:
        return [0.0] * steps
    low, high = _rest_of(spectrum)
    # T_K on [a, b] has the roots (a + b)/2 + (b - a)/2·cos((2k - 1)π/2K); a factor keeps the average.
    angles = (2 * np.arange(1, steps + 1) - 1) * (math.pi / (2 * steps))
    return _in_turn(((low + high) / 2 + (high - low) / 2 * np.cos(angles)).tolist(), low, high)


def _rest_of(spectrum: Floats) -> tuple[float, float]:
    """The interval of all eigenvalues of W but the one of the average, rounded outwards."""
    values = spectrum[:-1]
    low = math.floor(float(values[0]) * 10**DIGITS - AWAY) / 10**DIGITS
    high = math.ceil(float(values[-1]) * 10**DIGITS + AWAY) / 10**DIGITS
    return low, min(high, 1.0 - 10**-DIGITS)


def _in_turn(roots: list[float], low: float, high: float) -> list[float]:
    """An order in which products of the first factors stay small: each time the root that shrinks most.

    Where that would lose digits, since the last factors are large together, Leja's order, which keeps the
    products of first and last factors small against each other (Reichel 1990); rows then grow in between.
    """
    grid = np.linspace(low, high, 20 * len(roots) + 1)
    done, order, left = np.ones_like(grid), [], list(roots)
    while left:
        most = [float(np.abs(done * (grid - root) / (1 - root)).max()) for root in left]
        root = left.pop(int(np.argmin(np.round(most, DIGITS))))
        order.append(root)
        done = done * (grid - root) / (1 - root)
    return order if _rounding(order, grid) <= BEARABLE else _leja(roots)


def _leja(roots: list[float]) -> list[float]:
    """Each time the root that is farthest from all before it, by the product of distances."""
    order, left = [min(roots)], sorted(roots)[1:]
    while left:
        far = [sum(math.log(abs(root - before)) for before in order) for root in left]
        order.append(left.pop(int(np.argmax(np.round(far, DIGITS)))))
    return order


def _rounding(order: list[float], grid: Floats) -> float:
    """By how much rounding in all steps together is enlarged by the steps that follow, at most."""
    factors = [(grid - root) / (1 - root) for root in order]
    first = np.cumprod(factors, axis=0)
    later = [np.ones_like(grid)]
    for factor in factors[:0:-1]:
        later.append(later[-1] * factor)
    return float((np.abs(first).max(axis=1) * np.abs(later[::-1]).max(axis=1)).sum())


Sources = tuple[Ints, Floats]
"""(source, weight) [n, 1 + largest degree]: oneself first, then one's neighbours."""


def mixing_sources(topology: Topology, steps: int, chebyshev: bool = True) -> list[Sources]:
    """`mixing_steps` as the rows that every agent mixes, to the last bit; no matrix [n, n] is kept."""
    weights = _weights(topology)
    if not chebyshev or steps < 2:
        return [_as_sources(topology, weights)] * steps
    found = []
    for root in mixing_roots(_spectrum(topology, weights), steps):
        these = weights.copy()
        these[:, 0] -= root
        found.append(_as_sources(topology, these / (1.0 - root)))
    return found


def metropolis_sources(topology: Topology) -> Sources:
    """`metropolis` as the rows that every agent mixes."""
    return _as_sources(topology, _weights(topology))


def own_sources(topology: Topology) -> Sources:
    """Everybody goes on from its own row."""
    weights = np.zeros((topology.agents, 1 + topology.neighbours.shape[1]))
    weights[:, 0] = 1.0
    return _as_sources(topology, weights)


def _as_sources(topology: Topology, weights: Floats) -> Sources:
    source = np.concatenate([np.arange(topology.agents)[:, None], topology.neighbours], axis=1)
    return np.where(weights == 0, NOBODY, source), weights


def _weights(topology: Topology) -> Floats:
    """[n, 1 + largest degree]: the weights of `metropolis`, oneself first, then one's neighbours."""
    degrees, near = topology.degrees, topology.neighbours
    weights = np.zeros((topology.agents, 1 + near.shape[1]))
    each = 1.0 / (1.0 + np.maximum(degrees[:, None], degrees[near]))
    weights[:, 1:] = np.where(near >= 0, each, 0.0)
    n = topology.agents
    for start in range(0, n, ROWS):
        # Summed in the order of a whole row of the matrix, in which the last bit depends on it.
        row, slot = np.nonzero(near[start : start + ROWS] >= 0)
        whole = np.zeros((min(ROWS, n - start), n))
        whole[row, near[start + row, slot]] = weights[start + row, 1 + slot]
        weights[start : start + ROWS, 0] = 1.0 - whole.sum(axis=1)
    return weights


def _spectrum(topology: Topology, weights: Floats) -> Floats:
    """All eigenvalues of W; of a large graph the least, the largest but that of the average, and 1.

    Those are rounded to six digits, so that it does not matter how they were found.
    """
    n = topology.agents
    if n <= DENSE:
        return np.asarray(np.linalg.eigvalsh(metropolis(topology)), np.float64)
    row, slot = np.nonzero(topology.neighbours >= 0)
    links = sparse.csr_array((weights[row, 1 + slot], (row, topology.neighbours[row, slot])), shape=(n, n))
    W = (links + sparse.diags_array(weights[:, 0])).tocsr()

    def without_average(x: Floats) -> Floats:
        return np.asarray(W @ x - x.mean())

    operator = LinearOperator((n, n), matvec=without_average, dtype=np.float64)
    start = stream(0, "gossip.spectrum").normal(size=n)
    ends = [
        float(eigsh(operator, k=1, which=end, ncv=60, v0=start, return_eigenvectors=False)[0])
        for end in ("SA", "LA")
    ]
    return np.array([*ends, 1.0])
