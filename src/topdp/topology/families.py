"""Families of graphs. Random graphs are drawn again until one is connected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from topdp.plan.random_streams import stream
from topdp.topology._edge_lists import read_edge_list
from topdp.topology._graph import Topology, TopologyError, components, from_edges, whole_number

MAX_GRAPH_DRAWS = 1000


def random(agents: int, connection: float = 0.2, seed: int = 0) -> Topology:
    """Return an Erdős–Rényi graph: each of the n(n-1)/2 edges exists with probability `connection`.

    Graphs are drawn until one is connected. Raise TopologyError after `MAX_GRAPH_DRAWS` draws.

    >>> graph = random(30, 0.2, seed=1)
    >>> graph.agents, bool((graph.adjacency == random(30, 0.2, seed=1).adjacency).all())
    (30, True)
    """
    n = whole_number("agents", agents)
    if not 0 < connection <= 1:
        raise TopologyError(
            f"Expected 0 < connection <= 1, got {connection}; it is the share of adjacent pairs."
        )
    # Drawn here, not by networkx, so that a seed names the same graph whatever networkx is installed.
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])  # of row i among the pairs i < j
    for attempt in range(MAX_GRAPH_DRAWS):
        draws = stream(seed, "topology.random", attempt)
        size = draws.binomial(starts[-1], connection)
        pairs = draws.choice(starts[-1], size, replace=False, shuffle=False)
        rows = np.searchsorted(starts, pairs, side="right") - 1
        edges = np.column_stack([rows, pairs - starts[rows] + rows + 1])
        if size >= n - 1 and components(edges, n)[0] == 1:
            return from_edges(edges, n, name="random")
    likely = math.log(n) / n
    raise TopologyError(
        f"Expected a connected random graph, got none in {MAX_GRAPH_DRAWS} draws of {n} agents at connection "
        f"rate {connection}; a connected graph becomes likely from ln(n)/n = {likely:.3g}: raise the rate to "
        f"{min(1.0, 1.5 * likely):.2g} or more."
    )


def ring(agents: int) -> Topology:
    """Return the ring: agent i is adjacent to i-1 and i+1, modulo n.

    >>> ring(4).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    """
    n = whole_number("agents", agents)
    return from_edges([(i, (i + 1) % n) for i in range(n)], n, name="ring")


def complete(agents: int) -> Topology:
    """Return the complete graph: all agents are adjacent to each other. No directed edge is covered.

    >>> len(complete(5).edges)
    10
    """
    n = whole_number("agents", agents)
    return Topology("complete", ~np.eye(n, dtype=np.bool_))


def single() -> Topology:
    """Return the graph of one party without edges, for pooled records.

    >>> single().agents, len(single().edges)
    (1, 0)
    """
    return Topology("single", np.zeros((1, 1), dtype=np.bool_))


def star(agents: int, hubs: int = 2, attach: str = "one") -> Topology:
    """Return a star: agents 0 .. hubs-1 are hubs, all adjacent to each other; the others are leaves.

    With `attach="one"` leaf i is adjacent to hub i mod hubs, so that leaves are split evenly: our reading of
    the paper's "star topology with two star agents". With `attach="all"` every leaf is adjacent to every hub.

    >>> star(6).edges.tolist()
    [[0, 1], [0, 2], [0, 4], [1, 3], [1, 5]]
    """
    n, hubs = whole_number("agents", agents), whole_number("hubs", hubs, least=1)
    if hubs >= n:
        raise TopologyError(f"Expected fewer hubs than agents, got {hubs} hubs for {n} agents.")
    if attach not in ("one", "all"):
        raise TopologyError(f"Expected attach to be 'one' or 'all', got {attach!r}.")
    edges = [(a, b) for a in range(hubs) for b in range(a)]
    for leaf in range(hubs, n):
        edges += [(leaf, hub) for hub in ([leaf % hubs] if attach == "one" else range(hubs))]
    return from_edges(edges, n, name="star")


def tree(agents: int) -> Topology:
    """Return the complete binary tree, filled level by level: the parent of agent i is (i-1) // 2.

    >>> tree(5).edges.tolist()
    [[0, 1], [0, 2], [1, 3], [1, 4]]
    """
    n = whole_number("agents", agents)
    return from_edges([((i - 1) // 2, i) for i in range(1, n)], n, name="tree")


def mesh(agents: int) -> Topology:
    """Return a partial mesh: agent i is adjacent to i ± 1, i ± 2, i ± 4, ... up to n/2, modulo n.

    The paper says "partial mesh" without a definition. This one is regular, has near and far edges and degree
    about 2 log2(n), and for six or more agents lies strictly between the ring and the complete graph.

    >>> mesh(30).neighbours[0].tolist()
    [1, 2, 4, 8, 22, 26, 28, 29]
    """
    n = whole_number("agents", agents)
    offsets = [1 << power for power in range((n // 2).bit_length())]
    return from_edges([(i, (i + offset) % n) for i in range(n) for offset in offsets], n, name="mesh")


def grid(agents: int) -> Topology:
    """Return a grid with rows of ⌈√n⌉ agents; adjacent agents are linked. The last row may be shorter.

    >>> grid(5).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [1, 4], [3, 4]]
    """
    n = whole_number("agents", agents)
    columns = grid_columns(n)
    beside = [(i, i + 1) for i in range(n - 1) if (i + 1) % columns]
    below = [(i, i + columns) for i in range(n - columns)]
    return from_edges(beside + below, n, name="grid")


def grid_columns(agents: int) -> int:
    """Return ⌈√n⌉, the length of a full row of `grid(agents)`."""
    return math.isqrt(agents - 1) + 1


def small_world(agents: int, degree: int = 4, rewire: float = 0.1, seed: int = 0) -> Topology:
    """Return a Watts–Strogatz graph.

    On a circle each agent is adjacent to its `degree` nearest agents; then one end of each edge moves to a
    random agent with probability `rewire`. Graphs are drawn until one is connected, at most
    `MAX_GRAPH_DRAWS` times.

    >>> len(small_world(20, degree=4, rewire=0.2, seed=3).edges)
    40
    """
    n, degree = whole_number("agents", agents), _degree(agents, degree)
    if degree % 2:
        raise TopologyError(f"Expected an even degree, half on each side, got {degree}; use {degree + 1}.")
    if not 0 <= rewire <= 1:
        raise TopologyError(f"Expected 0 <= rewire <= 1, got {rewire}; it is the share of moved edges.")
    import networkx as nx  # slow to import, and not needed by agents

    return _draw_until_connected(
        "small-world", lambda s: nx.watts_strogatz_graph(n, degree, rewire, seed=s), seed
    )


def regular(agents: int, degree: int = 4, seed: int = 0) -> Topology:
    """Return a random graph in which every agent has `degree` neighbours; drawn until connected, at most
    `MAX_GRAPH_DRAWS` times.

    >>> regular(20, degree=3, seed=3).degrees.tolist() == [3] * 20
    True
    """
    n, degree = whole_number("agents", agents), _degree(agents, degree)
    if n * degree % 2:
        raise TopologyError(
            f"Expected agents * degree to be even, got {n} * {degree}; change either by one: "
            f"every edge has two ends."
        )
    if degree == 1 and n > 2:
        raise TopologyError(f"Expected degree >= 2, got 1. {n} agents in pairs are not connected.")
    import networkx as nx

    return _draw_until_connected("regular", lambda s: nx.random_regular_graph(degree, n, seed=s), seed)


def _draw_until_connected(kind: str, draw: Callable[[int], Any], seed: int) -> Topology:
    import networkx as nx

    for attempt in range(MAX_GRAPH_DRAWS):
        graph = draw(int(stream(seed, f"topology.{kind}", attempt).integers(2**32)))
        if nx.is_connected(graph):
            return from_edges(list(graph.edges), len(graph), name=kind)
    raise TopologyError(
        f"Expected a connected {kind} graph, got none in {MAX_GRAPH_DRAWS} draws; raise the degree."
    )


def _degree(agents: int, degree: int) -> int:
    degree = whole_number("degree", degree, least=1)
    if degree >= agents:
        raise TopologyError(
            f"Expected degree < agents, got degree {degree} for {agents} agents; an agent has at most "
            f"{agents - 1} neighbours."
        )
    return degree


# The names of `topology.kind` in a configuration.
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
