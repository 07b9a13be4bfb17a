"""Averaging with neighbours by Metropolis weights, in K plain or accelerated steps.

These releases only mix rows. If all rows are seen, they are functions of rows seen before and cost no
privacy.
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

MAX_DENSE_AGENTS = 2000  # more agents: only the ends of the spectrum of W are computed
WEIGHT_CHUNK_ROWS = 256  # rows of W in memory at a time

# The ends of the spectrum are rounded outwards to these digits, so that every machine writes the same plan.
SPECTRUM_DIGITS = 6
ROUNDING_OFFSET = 0.618  # keeps eigenvalues such as 1/128 away from the points where rounding jumps

MAX_GOSSIP_STEPS = 32  # more would lose digits in the factors of a Chebyshev polynomial

MAX_ROUNDING_GROWTH = 1e4  # keeps three digits of float32 for the differences between agents


def expect_gossip(steps: int) -> int:
    """Return K; raise InputError unless it is a whole number from 0 to MAX_GOSSIP_STEPS."""
    steps = expect_count("gossip", steps, least=0)
    if steps > MAX_GOSSIP_STEPS:
        raise InputError(
            f"Expected gossip of at most {MAX_GOSSIP_STEPS} steps between two gradients, got {steps}."
        )
    return steps


def metropolis(topology: Topology) -> Floats:
    """Return W [n, n]: 1/(1 + max(degree i, degree j)) between neighbours, the rest on the diagonal.

    Symmetric with rows that sum to one, so that mixing keeps the average (Xiao and Boyd 2004).

    >>> from topdp import topology
    >>> metropolis(topology.star(3, hubs=1)).round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    degrees = topology.degrees
    W = np.where(topology.adjacency, 1.0 / (1.0 + np.maximum(degrees[:, None], degrees)), 0.0)
    W[np.diag_indices(len(W))] = 1.0 - W.sum(axis=1)
    return np.asarray(W)


def mixing_roots(spectrum: Floats, steps: int, chebyshev: bool = True) -> list[float]:
    """Return the roots of the polynomial in W that K steps apply, in the order of the steps.

    `spectrum`: the eigenvalues of W, with that of the average last. The steps multiply a direction of
    eigenvalue λ by Π (λ - root)/(1 - root).
    """
    if not chebyshev or steps < 2:
        return [0.0] * steps
    low, high = _other_eigenvalues(spectrum)
    # T_K on [a, b] has the roots (a + b)/2 + (b - a)/2·cos((2k - 1)π/2K); a factor keeps the average.
    angles = (2 * np.arange(1, steps + 1) - 1) * (math.pi / (2 * steps))
    return _stable_order(((low + high) / 2 + (high - low) / 2 * np.cos(angles)).tolist(), low, high)


def _other_eigenvalues(spectrum: Floats) -> tuple[float, float]:
    """Return the interval [a, b] of all eigenvalues of W except that of the average, rounded outwards."""
    values = spectrum[:-1]
    low = math.floor(float(values[0]) * 10**SPECTRUM_DIGITS - ROUNDING_OFFSET) / 10**SPECTRUM_DIGITS
    high = math.ceil(float(values[-1]) * 10**SPECTRUM_DIGITS + ROUNDING_OFFSET) / 10**SPECTRUM_DIGITS
    return low, min(high, 1.0 - 10**-SPECTRUM_DIGITS)


def _stable_order(roots: list[float], low: float, high: float) -> list[float]:
    """Order the roots so that products of the first factors stay small: next is the root that shrinks most.

    Where this would lose digits, because the product of the last factors is large, use Leja's order, which
    balances first and last factors (Reichel 1990); rows then grow in between.
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
    """Return the roots so that each is the farthest from all earlier ones, by the product of distances."""
    order, remaining = [min(roots)], sorted(roots)[1:]
    while remaining:
        distances = [sum(math.log(abs(root - before)) for before in order) for root in remaining]
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


# Sources and weights of a mix, each [n, 1 + largest degree]: the agent itself, then its neighbours.
Sources = tuple[Ints, Floats]


def mixing_sources(topology: Topology, steps: int, chebyshev: bool = True) -> list[Sources]:
    """Return K sources and weights, one for each of K = `steps` averaging steps.

    Plain (`chebyshev` false): those of `metropolis` each time. Chebyshev: the polynomial of degree K in W
    that keeps the average and is smallest on the rest of W's spectrum [a, b] (Manteuffel 1977), as K linear
    factors, so that each step needs only the rows of the previous step.
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
    """Return sources and weights with which each agent continues from its own row."""
    weights = np.zeros((topology.agents, 1 + topology.neighbours.shape[1]))
    weights[:, 0] = 1.0
    return _as_sources(topology, weights)


def _as_sources(topology: Topology, weights: Floats) -> Sources:
    source = np.concatenate([np.arange(topology.agents)[:, None], topology.neighbours], axis=1)
    return np.where(weights == 0, NOBODY, source), weights


def _weights(topology: Topology) -> Floats:
    """Return [n, 1 + largest degree] the weights of `metropolis`, the agent itself first, then its
    neighbours.
    """
    degrees, near = topology.degrees, topology.neighbours
    weights = np.zeros((topology.agents, 1 + near.shape[1]))
    each = 1.0 / (1.0 + np.maximum(degrees[:, None], degrees[near]))
    weights[:, 1:] = np.where(near >= 0, each, 0.0)
    n = topology.agents
    for start in range(0, n, WEIGHT_CHUNK_ROWS):
        # Summed as whole rows of the matrix: the last bit depends on the order.
        row, slot = np.nonzero(near[start : start + WEIGHT_CHUNK_ROWS] >= 0)
        whole = np.zeros((min(WEIGHT_CHUNK_ROWS, n - start), n))
        whole[row, near[start + row, slot]] = weights[start + row, 1 + slot]
        weights[start : start + WEIGHT_CHUNK_ROWS, 0] = 1.0 - whole.sum(axis=1)
    return weights


def _spectrum(topology: Topology, weights: Floats) -> Floats:
    """Return all eigenvalues of W; for a large graph only the least, the largest below that of the average,
    and 1.

    `mixing_roots` rounds them to six digits, so that the algorithm does not matter.
    """
    n = topology.agents
    if n <= MAX_DENSE_AGENTS:
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
