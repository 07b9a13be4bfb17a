"""The class `Topology`: a connected undirected graph on the agents 0 .. n-1, and derived quantities.

The docstring of the package `topology` defines the sets N_i^j and covered edges.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.sparse.linalg import LinearOperator, eigsh

from topdp.base.array_types import Bools, Floats, Ints
from topdp.errors import InputError
from topdp.plan.random_streams import stream

Scalar = TypeVar("Scalar", bound=np.generic)

MAX_DENSE_GAP_AGENTS = 1000  # for more agents, the spectral gap is computed by Lanczos iteration

MAX_TEMPORARY_ENTRIES = 1 << 24  # of a temporary array; bounds the memory for large dense graphs


class TopologyError(InputError):
    """An error for an invalid graph: the message states what was expected, what was given and what to do.

    >>> try:
    ...     from_edges([(0, 1), (2, 3)], agents=4)
    ... except TopologyError as error:
    ...     print(error)
    Expected a connected graph, got 2 components: {0, 1}, {2, 3}. Add edges between them, or run topdp on \
each component separately.
    """


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected undirected graph without self loops on the agents 0 .. n-1.

    `adjacency[i, j]`: whether i and j are neighbours. `labels`: the names of the agents, if they have any.

    >>> path = Topology("path", [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> path.agents, path.degrees.tolist(), path.edges.tolist()
    (3, [1, 2, 1], [[0, 1], [1, 2]])
    >>> path.cover_set(1, 0), path.cover_set(0, 1)
    ({2}, set())
    """

    name: str
    adjacency: Bools
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", _checked(self.adjacency, self.labels))

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, agents={self.agents}, edges={len(self.edges)})"

    @property
    def agents(self) -> int:
        """The number of agents, n."""
        return len(self.adjacency)

    @cached_property
    def degrees(self) -> Ints:
        """[n]: the number of neighbours of each agent i, |N_i|."""
        return _frozen(self.adjacency.sum(axis=1, dtype=np.int64))

    @cached_property
    def directed(self) -> Ints:
        """[2E, 2]: all directed edges (i, j), in lexicographic order."""
        return _frozen(np.argwhere(self.adjacency).astype(np.int64))

    @cached_property
    def edges(self) -> Ints:
        """[E, 2]: every edge once, as (i, j) with i < j, in lexicographic order."""
        return _frozen(self.directed[self.directed[:, 0] < self.directed[:, 1]])

    @cached_property
    def neighbours(self) -> Ints:
        """[n, max degree]: the neighbours of each agent in ascending order, padded with -1.

        >>> star(4, hubs=1).neighbours.tolist()
        [[1, 2, 3], [0, -1, -1], [0, -1, -1], [0, -1, -1]]
        """
        padded = np.full((self.agents, max(1, int(self.degrees.max()))), -1, dtype=np.int64)
        padded[np.arange(padded.shape[1]) < self.degrees[:, None]] = self.directed[:, 1]
        return _frozen(padded)

    @cached_property
    def eligible(self) -> Bools:
        """[2E, max degree]: for each directed edge i→j and each s, whether `neighbours[i, s]` is in N_i^j.

        >>> ring(5).directed[0].tolist(), ring(5).neighbours[0].tolist(), ring(5).eligible[0].tolist()
        ([0, 1], [1, 4], [False, True])
        """
        inside = np.empty((len(self.directed), self.neighbours.shape[1]), dtype=np.bool_)
        for rows in _chunks(*inside.shape):
            i, j = self.directed[rows].T
            k = self.neighbours[i]
            inside[rows] = (k >= 0) & (k != j[:, None]) & ~self.adjacency[j[:, None], k]
        return _frozen(inside)

    @cached_property
    def covered(self) -> Bools:
        """[2E]: for each directed edge i→j, whether it is covered, so that N_i^j is not empty.

        >>> bool(ring(5).covered.all()), bool(complete(5).covered.any())
        (True, False)
        """
        size = np.empty(len(self.directed), dtype=np.int64)
        for rows in _chunks(len(size), self.agents):
            i, j = self.directed[rows].T
            common = (self.adjacency[i] & self.adjacency[j]).sum(axis=1)
            size[rows] = self.degrees[i] - 1 - common
        return _frozen(size > 0)

    def cover_set(self, i: int, j: int) -> set[int]:
        """Return N_i^j = N_i \\ ({j} ∪ N_j). Raise TopologyError unless j is a neighbour of i.

        >>> grid(4).cover_set(0, 1)
        {2}
        """
        if not (0 <= i < self.agents and 0 <= j < self.agents and self.adjacency[i, j]):
            raise TopologyError(f"Expected two adjacent agents, got {i} and {j}. See Topology.edges.")
        inside = self.adjacency[i] & ~self.adjacency[j]
        inside[j] = False
        return {int(k) for k in np.flatnonzero(inside)}

    def diameter(self) -> int:
        """Return the largest distance between two agents, in edges.

        >>> ring(10).diameter(), complete(10).diameter()
        (5, 1)
        """
        links = _sparse(self.edges, self.agents)
        sources = np.arange(self.agents)
        farthest = [
            dijkstra(links, unweighted=True, indices=sources[rows]).max()
            for rows in _chunks(self.agents, self.agents)
        ]
        return int(max(farthest))

    def spectral_gap(self, alpha: float = 0.5) -> float:
        """Return the spectral gap 1 - |λ_2|: λ_2 is the eigenvalue of E[W] with the second largest modulus.

        E[W] = αI + (1-α)D⁻¹A is the expected mixing matrix of one round in which each agent gives weight α to
        its own estimate and weight 1-α to the estimate of a uniformly random neighbour (the paper's update
        rule). After t rounds of mixing alone, the agents' expected estimates differ by O((1 - gap)^t). The
        gap is 0 if they never agree: if α = 1, or if α = 0 and the graph is bipartite. For more than
        `MAX_DENSE_GAP_AGENTS` agents, λ_2 is computed by Lanczos iteration.

        >>> round(complete(5).spectral_gap(), 6), round(ring(30).spectral_gap(), 6)
        (0.625, 0.010926)
        """
        if not 0 <= alpha <= 1:
            raise TopologyError(f"Expected 0 <= alpha <= 1, got {alpha}.")
        n = self.agents
        # D^-1/2 A D^-1/2 is symmetric and has the eigenvalues of D^-1 A; √degree belongs to its largest one.
        i, j = self.directed.T
        weights = (1 - alpha) / np.sqrt(self.degrees[i] * self.degrees[j])
        mixing = sparse.coo_array((weights, (i, j)), shape=(n, n))
        if n <= MAX_DENSE_GAP_AGENTS:
            moduli = np.abs(np.linalg.eigvalsh(mixing.toarray() + alpha * np.eye(n)))
            return max(0.0, 1.0 - float(np.partition(moduli, -2)[-2]))
        mixing, top = mixing.tocsr(), np.sqrt(self.degrees / self.degrees.sum())

        def without_top(x: Floats) -> Floats:
            mixed: Floats = alpha * x + mixing @ x - top * (top @ x)
            return mixed

        start = stream(0, "topology.gap").normal(size=n)
        deflated = LinearOperator((n, n), matvec=without_top, dtype=np.float64)
        second = eigsh(deflated, k=1, which="LM", ncv=60, v0=start, return_eigenvectors=False)
        return max(0.0, 1.0 - abs(float(second[0])))


def from_edges(
    edges: Iterable[Sequence[int]] | Ints,
    agents: int | None = None,
    *,
    name: str = "edges",
    labels: tuple[str, ...] | None = None,
) -> Topology:
    """Return the graph with these undirected edges; an edge may occur several times, in either direction.

    `agents` is n; the default is the largest agent number plus one. Raise TopologyError for an invalid graph.

    >>> from_edges([(0, 1), (1, 2), (2, 1)]).edges.tolist()
    [[0, 1], [1, 2]]
    """
    try:
        pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
    except ValueError:
        raise TopologyError(
            "Expected edges as pairs of agent numbers, got entries of different lengths."
        ) from None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise TopologyError(
            f"Expected edges as pairs of agent numbers, got an array of {pairs.dtype} with shape "
            f"{pairs.shape}. Give for example [(0, 1), (1, 2)]."
        )
    n = whole_number("agents", int(pairs.max()) + 1 if agents is None else agents)
    outside = pairs[((pairs < 0) | (pairs >= n)).any(axis=1)]
    if len(outside):
        raise TopologyError(
            f"Expected agent numbers from 0 to {n - 1}, got the edge {tuple(outside[0].tolist())}. "
            f"Number the agents from 0, or increase agents."
        )
    adjacency = np.zeros((n, n), dtype=np.bool_)
    adjacency[pairs[:, 0], pairs[:, 1]] = True
    return Topology(name, adjacency | adjacency.T, labels)


def _checked(adjacency: ArrayLike, labels: tuple[str, ...] | None) -> Bools:
    """Return a read-only Boolean copy of `adjacency`; raise TopologyError unless it is a valid graph."""
    given = np.asarray(adjacency)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise TopologyError(f"Expected a square adjacency matrix, got shape {given.shape}.")
    n = whole_number("agents", len(given), least=1)
    if labels is not None and len(set(labels)) != n:
        raise TopologyError(f"Expected {n} different labels, got {len(set(labels))}. Name every agent once.")
    matrix = given.astype(np.bool_)
    if given.dtype != np.bool_ and not (given == matrix).all():
        first = given[given != matrix][0]
        raise TopologyError(f"Expected an adjacency of 0 and 1, got {first}. Edges have no weights.")

    def name(agent: int) -> str:
        return str(agent) if labels is None else labels[agent]

    loops = np.flatnonzero(matrix.diagonal())
    if len(loops):
        raise TopologyError(
            f"Expected no self loops, got one at agent {name(loops[0])} ({len(loops)} in all). Remove them: "
            f"an agent always mixes its own estimate."
        )
    step = max(1, MAX_TEMPORARY_ENTRIES // n)
    parts = [np.nonzero(matrix[i : i + step] & ~matrix[:, i : i + step].T) for i in range(0, n, step)]
    one_way = [
        (i * step + int(a), int(b)) for i, pairs in enumerate(parts) for a, b in zip(*pairs, strict=True)
    ]
    if len(one_way):
        i, j = one_way[0]
        raise TopologyError(
            f"Expected an undirected graph (a symmetric adjacency), got {name(i)}→{name(j)} without "
            f"{name(j)}→{name(i)} ({len(one_way)} such edges in all). Add the other direction."
        )
    count, member = components(np.argwhere(matrix), n)
    if count > 1:
        groups = [np.flatnonzero(member == c) for c in range(min(count, 6))]
        shown = ", ".join(
            "{" + ", ".join(name(a) for a in group[:6]) + (", ..." if len(group) > 6 else "") + "}"
            for group in groups
        )
        raise TopologyError(
            f"Expected a connected graph, got {count} components: {shown}{', ...' if count > 6 else ''}. "
            "Add edges between them, or run topdp on each component separately."
        )
    return _frozen(matrix)


def components(edges: Ints, n: int) -> tuple[int, NDArray[np.int32]]:
    """Return the number of connected components, and for each agent the number of its component."""
    count, member = connected_components(_sparse(edges, n), directed=False)
    return int(count), member


def _sparse(edges: Ints, n: int) -> Any:
    """Return the symmetric 0/1 matrix of undirected edges, each given once or in both directions."""
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    matrix = sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n)).tocsr()
    matrix.data[:] = 1.0  # an edge that is given in both directions counts once
    return matrix


def _chunks(rows: int, width: int) -> list[slice]:
    """Return slices of range(rows) such that the rows of a slice, of length `width`, have together at most
    `MAX_TEMPORARY_ENTRIES` entries.
    """
    step = max(1, MAX_TEMPORARY_ENTRIES // width)
    return [slice(start, start + step) for start in range(0, rows, step)]


def whole_number(what: str, value: int, least: int = 2) -> int:
    """Return `value` as an int; raise TopologyError unless it is a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TopologyError(f"Expected {what} to be a whole number, got {value!r}.") from None
    if number < least:
        raise TopologyError(f"Expected {what} >= {least}, got {number}.")
    return number


def _frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Make `array` read-only, and return it."""
    array.setflags(write=False)
    return array
