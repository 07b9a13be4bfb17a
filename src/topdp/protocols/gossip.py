"""Averaging with neighbours: Metropolis weights, and K steps of it, plain or accelerated.

Rows that mix and nothing else: what everybody may see of them is a function of what was seen before, so they
cost no privacy. Not for the noise that is averaged.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from topdp.errors import InputError
from topdp.plan import NOBODY
from topdp.plan.arrays import Floats, Ints
from topdp.plan.checks import expect_count
from topdp.topology import Topology

DIGITS = 6
"""To which the ends of a spectrum are rounded, outwards: so that every machine writes the same plan."""

AWAY = 0.618
"""From the next step of rounding, for eigenvalues that are fractions of small numbers, such as 1/128."""

MOST = 32
"""Steps between two gradients. More would lose digits in the factors of a Chebyshev polynomial."""

AT_ONCE = 256  # agents whose weights are worked out side by side

BEARABLE = 1e4
"""By so much rounding may be enlarged: three digits of float32 are left, of differences between agents."""


def expect_gossip(steps: int) -> int:
    """K, checked."""
    steps = expect_count("gossip", steps, least=0)
    if steps > MOST:
        raise InputError(f"Expected gossip of at most {MOST} steps between two gradients, got {steps}.")
    return steps


def metropolis(topology: Topology, rows: slice = slice(None)) -> Floats:
    """[n, n]: W_ij = 1/(1 + max(degree i, degree j)) between neighbours, the rest on oneself; or some `rows`.

    Symmetric with rows that sum to one, so that mixing keeps the average (Xiao and Boyd 2004).

    >>> from topdp import topology
    >>> metropolis(topology.star(3, hubs=1)).round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    degrees = topology.degrees
    larger = np.maximum(degrees[rows, None], degrees)
    W = np.where(topology.adjacency[rows], 1.0 / (1.0 + larger), 0.0)
    W[np.arange(len(W)), np.arange(topology.agents)[rows]] = 1.0 - W.sum(axis=1)
    return np.asarray(W)


@lru_cache(maxsize=1)  # a plan is written again and again while its noise is sought
def metropolis_sources(topology: Topology) -> tuple[Ints, Floats]:
    """As `as_sources` of `metropolis`, to the last digit, without a matrix of all agents by all agents."""
    parts = [slice(first, first + AT_ONCE) for first in range(0, topology.agents, AT_ONCE)]
    found = [as_sources(topology, metropolis(topology, rows), rows) for rows in parts]
    source, weight = (np.concatenate(column) for column in zip(*found, strict=True))
    return source, weight


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


def as_sources(
    topology: Topology,
    W: Floats,
    rows: slice = slice(None),
) -> tuple[Ints, Floats]:
    """(source, weight) [n, 1 + largest degree]: oneself first, then one's neighbours; W: of some `rows`."""
    own = np.arange(topology.agents)[rows, None]
    source = np.concatenate([own, topology.neighbours[rows]], axis=1)
    weight = np.where(source >= 0, W[np.arange(len(own))[:, None], source], 0.0)
    return np.where(weight == 0, NOBODY, source), weight


def own_sources(topology: Topology) -> tuple[Ints, Floats]:
    """Everybody stays where it is."""
    source = np.full((topology.agents, 1 + topology.neighbours.shape[1]), NOBODY)
    source[:, 0] = np.arange(topology.agents)
    return source, (source >= 0).astype(np.float64)


def mixing_sources(topology: Topology, steps: int, chebyshev: bool) -> list[tuple[Ints, Floats]]:
    """`mixing_steps` as sources; where nothing is accelerated, no matrix is made."""
    if not chebyshev or steps < 2:
        return [metropolis_sources(topology)] * steps
    return [as_sources(topology, W) for W in mixing_steps(topology, steps, chebyshev)]
