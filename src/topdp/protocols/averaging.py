"""Averaging with neighbours by Metropolis weights, in K plain or accelerated steps.

Averaging steps only mix rows. For an observer that sees all rows, the rows that they make are functions of
earlier rows, so they cost no privacy.
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

MAX_DENSE_AGENTS = 2000  # for more agents, only the ends of the spectrum of W are computed
WEIGHT_CHUNK_ROWS = 256  # rows of W in memory at a time

# The ends of the spectrum are rounded outwards to this many digits, so that all machines write the same plan.
SPECTRUM_DIGITS = 6
ROUNDING_OFFSET = 0.618  # keeps eigenvalues such as 1/128 away from the points where rounding jumps

MAX_GOSSIP_STEPS = 32  # with more steps, the factors of a Chebyshev polynomial would lose digits

MAX_ROUNDING_GROWTH = 1e4  # keeps three digits of float32 for the differences between agents


def expect_gossip(steps: int) -> int:
    """Return `steps`; raise InputError unless it is a whole number from 0 to MAX_GOSSIP_STEPS."""
    steps = expect_count("gossip", steps, least=0)
    if steps > MAX_GOSSIP_STEPS:
        raise InputError(
            f"Expected gossip of at most {MAX_GOSSIP_STEPS} steps between two gradients, got {steps}."
        )
    return steps


def metropolis(topology: Topology) -> Floats:
    """Return the matrix W [n, n] of Metropolis weights (Xiao and Boyd 2004).

    The weight between neighbours i and j is 1/(1 + max(degree i, degree j)). The diagonal is such that every
    row sums to one. W is symmetric, so mixing does not change the average.

    >>> from topdp import topology
    >>> metropolis(topology.star(3, hubs=1)).round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    degrees = topology.degrees
    W = np.where(topology.adjacency, 1.0 / (1.0 + np.maximum(degrees[:, None], degrees)), 0.0)
    W[np.diag_indices(len(W))] = 1.0 - W.sum(axis=1)
    return np.asarray(W)


def mixing_roots(spectrum: Floats, steps: int, chebyshev: bool = True) -> list[float]:
    """Return the roots of the polynomial in W that K = `steps` steps apply, in the order of the steps.

    `spectrum`: the eigenvalues of W in ascending order; the last one, 1, belongs to the average. The steps
    together multiply an eigenvector with eigenvalue λ by Π (λ - root)/(1 - root).
    """
    if not chebyshev or steps < 2:
        return [0.0] * steps
    low, high = _other_eigenvalues(spectrum)
    # The Chebyshev polynomial T_K on [a, b] has the roots (a + b)/2 + (b - a)/2·cos((2k - 1)π/2K).
    angles = (2 * np.arange(1, steps + 1) - 1) * (math.pi / (2 * steps))
    return _stable_order(((low + high) / 2 + (high - low) / 2 * np.cos(angles)).tolist(), low, high)


def _other_eigenvalues(spectrum: Floats) -> tuple[float, float]:
    """Return the interval [a, b] of all eigenvalues of W except the last one, rounded outwards."""
    values = spectrum[:-1]
    low = math.floor(float(values[0]) * 10**SPECTRUM_DIGITS - ROUNDING_OFFSET) / 10**SPECTRUM_DIGITS
    high = math.ceil(float(values[-1]) * 10**SPECTRUM_DIGITS + ROUNDING_OFFSET) / 10**SPECTRUM_DIGITS
    return low, min(high, 1.0 - 10**-SPECTRUM_DIGITS)


def _stable_order(roots: list[float], low: float, high: float) -> list[float]:
    """Return the roots in an order in which rounding errors stay small.

    Each next root is the one that makes the product of all factors so far smallest. If this order would lose
    digits, because the product of the last factors is large, return Leja's order instead, which balances
    first and last factors (Reichel 1990). Rows then grow between the first and the last step.
    """
    grid = np.linspace(low, high, 20 * len(roots) + 1)
    product, order, remaining = np.ones_like(grid), [], list(roots)
    while remaining:
        norms = [float(np.abs(product * (grid - root) / (1 - root)).max()) for root in remaining]
        root = remaining.pop(int(np.argmin(np.round(norms, SPECTRUM_DIGITS))))
        order.append(root)
        product = product * (grid - root) / (1 - root)
    return order if _rounding_growth(order, grid) <= MAX_ROUNDING_GROWTH else _leja_order(roots)


def _leja_order(roots: list[float]) -> list[float]:
    """Return the roots in Leja's order: each has the largest product of distances to all earlier roots."""
    order, remaining = [min(roots)], sorted(roots)[1:]
    while remaining:
        distances = [sum(math.log(abs(root - earlier)) for earlier in order) for root in remaining]
        order.append(remaining.pop(int(np.argmax(np.round(distances, SPECTRUM_DIGITS)))))
    return order


def _rounding_growth(order: list[float], grid: Floats) -> float:
    """Return the largest factor by which later steps can amplify the rounding errors of all steps."""
    factors = [(grid - root) / (1 - root) for root in order]
    first = np.cumprod(factors, axis=0)
    later = [np.ones_like(grid)]
    for factor in factors[:0:-1]:
        later.append(later[-1] * factor)
    return float((np.abs(first).max(axis=1) * np.abs(later[::-1]).max(axis=1)).sum())


def steps_to_agree(topology: Topology, tolerance: float) -> int:
    """Return the fewest accelerated averaging steps after which differences between agents are at most
    `tolerance` times as large; at most MAX_GOSSIP_STEPS.

    >>> from topdp import topology
    >>> steps_to_agree(topology.complete(5), 1e-3), steps_to_agree(topology.ring(8), 1e-3)
    (1, 10)
    """
    spectrum = _spectrum(topology, _weights(topology))
    for steps in range(1, MAX_GOSSIP_STEPS):
        factors = [(spectrum[:-1] - root) / (1 - root) for root in mixing_roots(spectrum, steps)]
        if np.abs(np.prod(factors, axis=0)).max() <= tolerance:
            return steps
    return MAX_GOSSIP_STEPS


# (sources, weights) of an averaging step, each [n, 1 + largest degree]: the agent itself, then neighbours.
Sources = tuple[Ints, Floats]


def mixing_sources(topology: Topology, steps: int, chebyshev: bool = True) -> list[Sources]:
    """Return the sources and weights for each of K = `steps` averaging steps.

    If `chebyshev` is False, every step has the weights of `metropolis`. Otherwise, the steps together apply
    the polynomial of degree K in W that does not change the average and is smallest on the interval [a, b] of
    the other eigenvalues of W (Manteuffel 1977). Each step applies one linear factor of the polynomial, so it
    needs only the rows of the previous step.
    """
    weights = _weights(topology)
    if not chebyshev or steps < 2:
        return [_as_sources(topology, weights)] * steps
    sources = []
    for root in mixing_roots(_spectrum(topology, weights), steps):
        factor = weights.copy()
        factor[:, 0] -= root
        sources.append(_as_sources(topology, factor / (1.0 - root)))
    return sources


def own_sources(topology: Topology) -> Sources:
    """Return sources and weights with which each agent continues from its own row, without mixing."""
    weights = np.zeros((topology.agents, 1 + topology.neighbours.shape[1]))
    weights[:, 0] = 1.0
    return _as_sources(topology, weights)


def _as_sources(topology: Topology, weights: Floats) -> Sources:
    source = np.concatenate([np.arange(topology.agents)[:, None], topology.neighbours], axis=1)
    return np.where(weights == 0, NOBODY, source), weights


def _weights(topology: Topology) -> Floats:
    """Return [n, 1 + largest degree] the weights of `metropolis`: the agent itself, then its neighbours."""
    degrees, neighbours = topology.degrees, topology.neighbours
    weights = np.zeros((topology.agents, 1 + neighbours.shape[1]))
    each = 1.0 / (1.0 + np.maximum(degrees[:, None], degrees[neighbours]))
    weights[:, 1:] = np.where(neighbours >= 0, each, 0.0)
    n = topology.agents
    for start in range(0, n, WEIGHT_CHUNK_ROWS):
        # Whole rows of W are summed, as in `metropolis`, because the last bit depends on the order.
        row, slot = np.nonzero(neighbours[start : start + WEIGHT_CHUNK_ROWS] >= 0)
        whole = np.zeros((min(WEIGHT_CHUNK_ROWS, n - start), n))
        whole[row, neighbours[start + row, slot]] = weights[start + row, 1 + slot]
        weights[start : start + WEIGHT_CHUNK_ROWS, 0] = 1.0 - whole.sum(axis=1)
    return weights


def _spectrum(topology: Topology, weights: Floats) -> Floats:
    """Return all eigenvalues of W in ascending order; for a large graph, only three: the smallest, the second
    largest, and 1.

    `mixing_roots` rounds them to six digits, so it does not matter which algorithm computes them.
    """
    n = topology.agents
    if n <= MAX_DENSE_AGENTS:
        return np.asarray(np.linalg.eigvalsh(metropolis(topology)), np.float64)
    row, slot = np.nonzero(topology.neighbours >= 0)
    edges = sparse.csr_array((weights[row, 1 + slot], (row, topology.neighbours[row, slot])), shape=(n, n))
    W = (edges + sparse.diags_array(weights[:, 0])).tocsr()

    def without_average(x: Floats) -> Floats:
        return np.asarray(W @ x - x.mean())

    operator = LinearOperator((n, n), matvec=without_average, dtype=np.float64)
    start = stream(0, "gossip.spectrum").normal(size=n)
    ends = [
        float(eigsh(operator, k=1, which=end, ncv=60, v0=start, return_eigenvectors=False)[0])
        for end in ("SA", "LA")
    ]
    return np.array([*ends, 1.0])
