"""Who is adjacent to whom: graph families, the sets N_i^j, which directed edges are covered, spectral gap.

A `Topology` is a connected undirected graph on the agents 0 .. n-1. It knows nothing of rounds, noise or
data: protocols draw their choices over it, `topdp.report.graph` draws its picture.

    N_i    the neighbours of agent i
    N_i^j  = N_i \\ ({j} ∪ N_j), the neighbours of i that are neither j nor adjacent to j

The directed edge i→j is *covered* when N_i^j is not empty: then i has a neighbour whose estimate j does not
read, and whose noise may stand in for part of i's own in what i sends to j.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.sparse.linalg import LinearOperator, eigsh

from topdp.streams import stream

Scalar = TypeVar("Scalar", bound=np.generic)

TRIES = 1000
"""How often a random family is drawn again before it is given up as never connected."""

DENSE_LIMIT = 1000
"""Up to this many agents the spectral gap is taken from all eigenvalues."""

_CHUNK = 1 << 24  # entries of a temporary array; keeps memory flat on large dense graphs


class TopologyError(ValueError):
    """A graph that cannot be used or made: says what was expected, what came and what to do."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected undirected graph without self loops on the agents 0 .. n-1.

    `adjacency[i, j]` says whether i and j are neighbours. `labels` are the agents' names where the graph was
    read from a file that names them.

    >>> path = Topology("path", [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> path.agents, path.degrees.tolist(), path.edges.tolist()
    (3, [1, 2, 1], [[0, 1], [1, 2]])
    >>> path.cover_set(1, 0), path.cover_set(0, 1)
    ({2}, set())
    """

    name: str
    adjacency: NDArray[np.bool_]
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", _checked(self.adjacency, self.labels))

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, agents={self.agents}, edges={len(self.edges)})"

    @property
    def agents(self) -> int:
        """n, the number of agents."""
        return len(self.adjacency)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """[n]: |N_i|."""
        return _frozen(self.adjacency.sum(axis=1, dtype=np.int64))

    @cached_property
    def directed(self) -> NDArray[np.int64]:
        """[2E, 2]: all ordered pairs (i, j) with j a neighbour of i, in lexicographic order."""
        return _frozen(np.argwhere(self.adjacency).astype(np.int64))

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """[E, 2]: every link once, as (i, j) with i < j, in lexicographic order."""
        return _frozen(self.directed[self.directed[:, 0] < self.directed[:, 1]])

    @cached_property
    def neighbours(self) -> NDArray[np.int64]:
        """[n, max degree]: the neighbours of each agent in ascending order, padded with -1.

        >>> star(4, hubs=1).neighbours.tolist()
        [[1, 2, 3], [0, -1, -1], [0, -1, -1], [0, -1, -1]]
        """
        padded = np.full((self.agents, int(self.degrees.max())), -1, dtype=np.int64)
        padded[np.arange(padded.shape[1]) < self.degrees[:, None]] = self.directed[:, 1]
        return _frozen(padded)

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """[2E, max degree]: whether `neighbours[i, s]` lies in N_i^j, for each directed edge i→j.

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
    def covered(self) -> NDArray[np.bool_]:
        """[2E]: whether N_i^j is not empty, for each directed edge i→j.

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
        """N_i^j = N_i \\ ({j} ∪ N_j) for a neighbour j of i.

        >>> grid(4).cover_set(0, 1)
        {2}
        """
        if not (0 <= i < self.agents and 0 <= j < self.agents and self.adjacency[i, j]):
            raise TopologyError(f"Expected two adjacent agents, got {i} and {j}; see Topology.edges.")
        inside = self.adjacency[i] & ~self.adjacency[j]
        inside[j] = False
        return {int(k) for k in np.flatnonzero(inside)}

    def diameter(self) -> int:
        """The greatest distance, in links, between two agents.

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
        """1 - |λ_2| of E[W] = αI + (1-α)D⁻¹A, with λ_2 the second largest eigenvalue in modulus.

        E[W] is the mean of one round's mixing when each agent keeps weight α on its own estimate and gives
        1-α to that of a uniformly random neighbour (the paper's update rule). After t rounds of mixing alone
        the agents' expected estimates differ by O((1 - gap)^t). The gap is 0 where they never agree: α = 1,
        or α = 0 on a bipartite graph. Above `DENSE_LIMIT` agents λ_2 is found by Lanczos iteration.

        >>> round(complete(5).spectral_gap(), 6), round(ring(30).spectral_gap(), 6)
        (0.625, 0.010926)
        """
        if not 0 <= alpha <= 1:
            raise TopologyError(f"Expected 0 <= alpha <= 1, got {alpha}.")
        n = self.agents
        # D^-1/2 A D^-1/2 has the eigenvalues of D^-1 A and is symmetric; √degree is its top eigenvector.
        i, j = self.directed.T
        weights = (1 - alpha) / np.sqrt(self.degrees[i] * self.degrees[j])
        walk = sparse.coo_array((weights, (i, j)), shape=(n, n))
        if n <= DENSE_LIMIT:
            moduli = np.abs(np.linalg.eigvalsh(walk.toarray() + alpha * np.eye(n)))
            return max(0.0, 1.0 - float(np.partition(moduli, -2)[-2]))
        walk, top = walk.tocsr(), np.sqrt(self.degrees / self.degrees.sum())

        def without_top(x: NDArray[np.float64]) -> NDArray[np.float64]:
            mixed: NDArray[np.float64] = alpha * x + walk @ x - top * (top @ x)
            return mixed

        start = stream(0, "topology.gap").normal(size=n)
        deflated = LinearOperator((n, n), matvec=without_top, dtype=np.float64)
        second = eigsh(deflated, k=1, which="LM", ncv=60, v0=start, return_eigenvectors=False)
        return max(0.0, 1.0 - abs(float(second[0])))


def random(agents: int, connection: float = 0.2, seed: int = 0) -> Topology:
    """Erdős–Rényi: each of the n(n-1)/2 links is there with probability `connection`; drawn until connected.

    Gives up after `TRIES` draws.

    >>> graph = random(30, 0.2, seed=1)
    >>> graph.agents, bool((graph.adjacency == random(30, 0.2, seed=1).adjacency).all())
    (30, True)
    """
    n = _count("agents", agents)
    if not 0 < connection <= 1:
        raise TopologyError(
            f"Expected 0 < connection <= 1, got {connection}; it is the share of pairs that are linked."
        )
    # Drawn here, not by networkx, so that a seed names the same graph whatever networkx is installed.
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])  # of row i among the pairs i < j
    for attempt in range(TRIES):
        draws = stream(seed, "topology.random", attempt)
        size = draws.binomial(starts[-1], connection)
        pairs = draws.choice(starts[-1], size, replace=False, shuffle=False)
        rows = np.searchsorted(starts, pairs, side="right") - 1
        edges = np.column_stack([rows, pairs - starts[rows] + rows + 1])
        if size >= n - 1 and _components(edges, n)[0] == 1:
            return from_edges(edges, n, name="random")
    likely = math.log(n) / n
    raise TopologyError(
        f"Expected a connected random graph, got none in {TRIES} draws of {n} agents at connection rate "
        f"{connection}; a connected graph becomes likely from ln(n)/n = {likely:.3g}: raise the rate to "
        f"{min(1.0, 1.5 * likely):.2g} or more."
    )


def ring(agents: int) -> Topology:
    """Agent i is linked to i-1 and i+1, counted round the circle.

    >>> ring(4).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    """
    n = _count("agents", agents)
    return from_edges([(i, (i + 1) % n) for i in range(n)], n, name="ring")


def complete(agents: int) -> Topology:
    """Every two agents are linked. No directed edge is covered.

    >>> len(complete(5).edges)
    10
    """
    n = _count("agents", agents)
    return Topology("complete", ~np.eye(n, dtype=np.bool_))


def star(agents: int, hubs: int = 2, attach: str = "one") -> Topology:
    """Agents 0 .. hubs-1 are hubs, all linked to each other; the others are leaves.

    With `attach="one"` leaf i hangs on hub i mod hubs, so that leaves are split evenly: our reading of the
    paper's "star topology with two star agents". With `attach="all"` every leaf is linked to every hub.

    >>> star(6).edges.tolist()
    [[0, 1], [0, 2], [0, 4], [1, 3], [1, 5]]
    """
    n, hubs = _count("agents", agents), _count("hubs", hubs, least=1)
    if hubs >= n:
        raise TopologyError(f"Expected fewer hubs than agents, got {hubs} hubs for {n} agents.")
    if attach not in ("one", "all"):
        raise TopologyError(f"Expected attach to be 'one' or 'all', got {attach!r}.")
    edges = [(a, b) for a in range(hubs) for b in range(a)]
    for leaf in range(hubs, n):
        edges += [(leaf, hub) for hub in ([leaf % hubs] if attach == "one" else range(hubs))]
    return from_edges(edges, n, name="star")


def tree(agents: int) -> Topology:
    """The complete binary tree, filled level by level: the parent of agent i is (i-1) // 2.

    >>> tree(5).edges.tolist()
    [[0, 1], [0, 2], [1, 3], [1, 4]]
    """
    n = _count("agents", agents)
    return from_edges([((i - 1) // 2, i) for i in range(1, n)], n, name="tree")


def mesh(agents: int) -> Topology:
    """A partial mesh: agent i is linked to i ± 1, i ± 2, i ± 4, ... up to n/2, counted round the circle.

    The paper says "partial mesh" and no more. This one is regular, has near and far links, degree about
    2 log2(n), and from six agents on lies strictly between the ring and the complete graph.

    >>> mesh(30).neighbours[0].tolist()
    [1, 2, 4, 8, 22, 26, 28, 29]
    """
    n = _count("agents", agents)
    offsets = [1 << power for power in range((n // 2).bit_length())]
    return from_edges([(i, (i + offset) % n) for i in range(n) for offset in offsets], n, name="mesh")


def grid(agents: int) -> Topology:
    """Rows of ⌈√n⌉ agents, each linked to the one beside and the one below; the last row may be shorter.

    >>> grid(5).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [1, 4], [3, 4]]
    """
    n = _count("agents", agents)
    columns = grid_columns(n)
    beside = [(i, i + 1) for i in range(n - 1) if (i + 1) % columns]
    below = [(i, i + columns) for i in range(n - columns)]
    return from_edges(beside + below, n, name="grid")


def grid_columns(agents: int) -> int:
    """⌈√n⌉, the length of a full row of `grid(agents)`."""
    return math.isqrt(agents - 1) + 1


def small_world(agents: int, degree: int = 4, rewire: float = 0.1, seed: int = 0) -> Topology:
    """Watts–Strogatz: a circle where each agent is linked to its `degree` nearest, then each link's far end
    is moved to a random agent with probability `rewire`; drawn until connected, at most `TRIES` times.

    >>> len(small_world(20, degree=4, rewire=0.2, seed=3).edges)
    40
    """
    n, degree = _count("agents", agents), _degree(agents, degree)
    if degree % 2:
        raise TopologyError(f"Expected an even degree, half on each side, got {degree}; use {degree + 1}.")
    if not 0 <= rewire <= 1:
        raise TopologyError(f"Expected 0 <= rewire <= 1, got {rewire}; it is the share of links moved.")
    return _draw_until_connected(
        "small-world", lambda s: nx.watts_strogatz_graph(n, degree, rewire, seed=s), seed, "raise the degree"
    )


def regular(agents: int, degree: int = 4, seed: int = 0) -> Topology:
    """A random graph in which every agent has `degree` neighbours; drawn until connected, at most `TRIES`
    times.

    >>> regular(20, degree=3, seed=3).degrees.tolist() == [3] * 20
    True
    """
    n, degree = _count("agents", agents), _degree(agents, degree)
    if n * degree % 2:
        raise TopologyError(
            f"Expected agents * degree to be even, got {n} * {degree}; change either by one: "
            f"every link has two ends."
        )
    if degree == 1 and n > 2:
        raise TopologyError(f"Expected degree >= 2, got 1: {n} agents in pairs are not connected.")
    return _draw_until_connected(
        "regular", lambda s: nx.random_regular_graph(degree, n, seed=s), seed, "raise the degree"
    )


def from_edges(
    edges: Iterable[Sequence[int]] | NDArray[np.int64],
    agents: int | None = None,
    *,
    name: str = "edges",
    labels: tuple[str, ...] | None = None,
) -> Topology:
    """The graph with these undirected links; a link may be given twice, or once each way.

    `agents` is n; left out, it is the largest number named plus one.

    >>> from_edges([(0, 1), (1, 2), (2, 1)]).edges.tolist()
    [[0, 1], [1, 2]]
    """
    try:
        pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
    except ValueError:
        raise TopologyError(
            "Expected edges as pairs of agent numbers, got entries of other lengths."
        ) from None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise TopologyError(
            f"Expected edges as pairs of agent numbers, got an array of {pairs.dtype} with shape "
            f"{pairs.shape}; give for example [(0, 1), (1, 2)]."
        )
    n = _count("agents", int(pairs.max()) + 1 if agents is None else agents)
    outside = pairs[((pairs < 0) | (pairs >= n)).any(axis=1)]
    if len(outside):
        raise TopologyError(
            f"Expected agent numbers from 0 to {n - 1}, got the edge {tuple(outside[0].tolist())}; "
            f"number the agents from 0 or raise agents."
        )
    adjacency = np.zeros((n, n), dtype=np.bool_)
    adjacency[pairs[:, 0], pairs[:, 1]] = True
    return Topology(name, adjacency | adjacency.T, labels)


def read_edge_list(path: str | Path) -> Topology:
    """The graph of a text file: one link a line, two names split by blanks or a comma; `#` begins a comment.

    A link may be listed twice, or once each way. Names are whole numbers or text. Numbers 0 .. n-1 are the
    agents themselves; other numbers become agents in ascending order, and text in order of first appearance:
    then `labels` keeps the names. Refused, with the line: self loops, a line with `->` or a header such as
    `source target` (a directed file), anything but two names. An unconnected graph is refused with its
    components.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hospitals.txt"
    ...     _ = file.write_text("north, south  # by fibre\\nsouth, east\\n")
    ...     graph = read_edge_list(file)
    >>> graph.labels, graph.edges.tolist()
    (('north', 'south', 'east'), [[0, 1], [1, 2]])
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise TopologyError(f"Expected an edge list at {path}, could not read it: {reason}.") from error
    links = [
        _link(line, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip()
    ]
    if not links:
        raise TopologyError(f"Expected at least one link in {path}, got none; write two names a line.")
    names = list(dict.fromkeys(name for link in links for name in link))
    numbered = all(name.isdecimal() for name in names)
    if numbered:
        links = [(str(int(a)), str(int(b))) for a, b in links]
        names = sorted({name for link in links for name in link}, key=int)
    agent = {name: index for index, name in enumerate(names)}
    plain = numbered and names == [str(index) for index in range(len(names))]
    return from_edges(
        [(agent[a], agent[b]) for a, b in links],
        len(names),
        name="file",
        labels=None if plain else tuple(names),
    )


def _link(line: str, where: str) -> tuple[str, str]:
    """The two names on a line of an edge list."""
    content = line.split("#")[0].strip()
    if any(arrow in content for arrow in ("->", "<-", "=>", "→", "←")):
        raise TopologyError(
            f"{where}: expected an undirected link 'a b', got {content!r}; remove the arrows if every link "
            f"works both ways: agents that send also receive."
        )
    names = content.replace(",", " ").split()
    if len(names) != 2 or content.count(",") > 1:
        raise TopologyError(
            f"{where}: expected two names, got {content!r}; write one link a line, without weights, and no "
            f"blanks inside a name."
        )
    if tuple(name.lower() for name in names) in {("source", "target"), ("from", "to"), ("src", "dst")}:
        raise TopologyError(
            f"{where}: expected a link, got the header {content!r}, which marks a directed graph; remove the "
            f"line if every link works both ways."
        )
    if names[0] == names[1]:
        raise TopologyError(
            f"{where}: expected two different agents, got the self loop {content!r}; remove it."
        )
    return names[0], names[1]


def describe(topology: Topology, alpha: float = 0.5) -> dict[str, Any]:
    """The numbers of a graph, ready for JSON. `alpha` is the weight in `Topology.spectral_gap`.

    >>> numbers = describe(ring(6))
    >>> numbers["degree"], numbers["covered_share"], numbers["diameter"]
    ({'min': 2, 'mean': 2.0, 'max': 2}, 1.0, 3)
    """
    degrees, covered = topology.degrees, topology.covered
    covered_of_agent = np.bincount(topology.directed[:, 0], weights=covered, minlength=topology.agents)
    numbers: dict[str, Any] = {
        "name": topology.name,
        "agents": topology.agents,
        "edges": len(topology.edges),
        "degree": {"min": int(degrees.min()), "mean": float(degrees.mean()), "max": int(degrees.max())},
        "diameter": topology.diameter(),
        "spectral_gap": topology.spectral_gap(alpha),
        "alpha": float(alpha),
        "directed_edges": len(topology.directed),
        "covered_share": float(covered.mean()),
        "uncovered_directed_edges": int((~covered).sum()),
        "agents_with_no_covered_neighbour": [int(i) for i in np.flatnonzero(covered_of_agent == 0)],
    }
    if topology.labels is not None:
        numbers["labels"] = list(topology.labels)
    return numbers


FAMILIES: dict[str, Callable[..., Topology]] = {
    "random": random,
    "ring": ring,
    "star": star,
    "tree": tree,
    "mesh": mesh,
    "complete": complete,
    "grid": grid,
    "small-world": small_world,
    "regular": regular,
    "file": read_edge_list,
}
"""The names of `topology.kind` in a configuration."""


def _checked(adjacency: ArrayLike, labels: tuple[str, ...] | None) -> NDArray[np.bool_]:
    """A read-only boolean copy of `adjacency`, or the reason why it is not a graph of ours."""
    given = np.asarray(adjacency)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise TopologyError(f"Expected a square adjacency matrix, got shape {given.shape}.")
    n = _count("agents", len(given))
    if labels is not None and len(set(labels)) != n:
        raise TopologyError(f"Expected {n} different labels, got {len(set(labels))}; name every agent once.")
    matrix = given.astype(np.bool_)
    if given.dtype != np.bool_ and not (given == matrix).all():
        raise TopologyError(
            "Expected an adjacency of 0 and 1, got other numbers; links have no weights here."
        )

    def name(agent: int) -> str:
        return str(agent) if labels is None else labels[agent]

    loops = np.flatnonzero(matrix.diagonal())
    if len(loops):
        raise TopologyError(
            f"Expected no self loops, got one at agent {name(loops[0])} ({len(loops)} in all); remove them: "
            f"an agent always keeps its own estimate."
        )
    one_way = np.argwhere(matrix & ~matrix.T)
    if len(one_way):
        i, j = one_way[0]
        raise TopologyError(
            f"Expected an undirected graph (a symmetric adjacency), got {name(i)}→{name(j)} without "
            f"{name(j)}→{name(i)} ({len(one_way)} such in all); add the other direction."
        )
    count, member = _components(np.argwhere(matrix), n)
    if count > 1:
        groups = [np.flatnonzero(member == c) for c in range(min(count, 6))]
        shown = ", ".join(
            "{" + ", ".join(name(a) for a in group[:6]) + (", ..." if len(group) > 6 else "") + "}"
            for group in groups
        )
        raise TopologyError(
            f"Expected a connected graph, got {count} components: {shown}{', ...' if count > 6 else ''}; "
            f"link them, or run each on its own."
        )
    return _frozen(matrix)


def _components(edges: NDArray[np.int64], n: int) -> tuple[int, NDArray[np.int32]]:
    """How many components there are, and to which each agent belongs."""
    count, member = connected_components(_sparse(edges, n), directed=False)
    return int(count), member


def _sparse(edges: NDArray[np.int64], n: int) -> Any:
    """The symmetric 0/1 matrix of undirected edges, each given once or both ways."""
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    matrix = sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n)).tocsr()
    matrix.data[:] = 1.0  # an edge given both ways counts once
    return matrix


def _chunks(rows: int, width: int) -> list[slice]:
    """Slices over `rows` such that one slice of rows of `width` stays below `_CHUNK` entries."""
    step = max(1, _CHUNK // width)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _draw_until_connected(kind: str, draw: Callable[[int], Any], seed: int, advice: str) -> Topology:
    for attempt in range(TRIES):
        graph = draw(int(stream(seed, f"topology.{kind}", attempt).integers(2**32)))
        if nx.is_connected(graph):
            return from_edges(list(graph.edges), len(graph), name=kind)
    raise TopologyError(f"Expected a connected {kind} graph, got none in {TRIES} draws; {advice}.")


def _count(what: str, value: int, least: int = 2) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TopologyError(f"Expected {what} to be a whole number, got {value!r}.") from None
    if number < least:
        raise TopologyError(f"Expected {what} >= {least}, got {number}.")
    return number


def _degree(agents: int, degree: int) -> int:
    degree = _count("degree", degree, least=1)
    if degree >= agents:
        raise TopologyError(
            f"Expected degree < agents, got degree {degree} for {agents} agents; an agent has at most "
            f"{agents - 1} neighbours."
        )
    return degree


def _frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    array.setflags(write=False)
    return array
