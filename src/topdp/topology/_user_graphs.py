"""Conversion of a user's graph to a `Topology`, and statistics of a graph.

A user's graph is a `Topology`, a networkx graph, or the path of an edge list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topdp.topology import families
from topdp.topology._graph import Topology, TopologyError, from_edges
from topdp.topology.families import Weights, expect_no_weights, read_edge_list

if TYPE_CHECKING:
    import networkx as nx


def as_topology(graph: Any, *, weights: Weights = "refuse") -> Topology:
    """Return `graph` as a `Topology`; raise TopologyError if this is not possible.

    `weights`: see `read_edge_list` and `from_networkx`.

    >>> import networkx as nx
    >>> as_topology(nx.path_graph(3)).edges.tolist()
    [[0, 1], [1, 2]]
    """
    if isinstance(graph, Topology):
        return graph
    if (networkx := sys.modules.get("networkx")) and isinstance(graph, networkx.Graph):
        return from_networkx(graph, weights=weights)
    named = isinstance(graph, str) and callable(getattr(families, graph.replace("-", "_"), None))
    if named and not os.path.exists(graph):
        raise TopologyError(
            f"Expected a graph, got the name of a family, {graph!r}. Make one, for example "
            f"topdp.topology.{graph.replace('-', '_')}(agents)."
        )
    if isinstance(graph, str | os.PathLike):
        return read_edge_list(os.fspath(graph), weights=weights)
    raise TopologyError(
        f"Expected a graph: a topdp.Topology, an undirected networkx graph or the path of an edge list, got "
        f"{type(graph).__name__}. For a list of edges use topdp.topology.from_edges."
    )


def from_networkx(
    graph: nx.Graph, *, order: Sequence[Hashable] | None = None, weights: Weights = "refuse"
) -> Topology:
    """Return the `Topology` of a `networkx.Graph`.

    The graph must be undirected and connected, without self loops; otherwise raise TopologyError. Agent k is
    node `order[k]`; by default, nodes are sorted. Pass shards in this order. `labels` holds the names of the
    nodes unless they are 0 .. n-1. Raise TopologyError for edge weights other than 1 unless
    `weights="ignore"`.

    >>> import networkx as nx
    >>> hospitals = nx.Graph([("south", "north"), ("south", "east")])
    >>> graph = from_networkx(hospitals)
    >>> graph.labels, graph.edges.tolist()
    (('east', 'north', 'south'), [[0, 2], [1, 2]])
    >>> from_networkx(hospitals, order=["south", "north", "east"]).edges.tolist()
    [[0, 1], [0, 2]]
    """
    if graph.is_directed():
        raise TopologyError(
            "Expected an undirected networkx graph, got a directed one. Agents that send also receive. Use "
            "graph.to_undirected() if every edge works in both directions."
        )
    if graph.is_multigraph():
        raise TopologyError(
            "Expected at most one edge between two agents, got a multigraph. Use networkx.Graph(graph)."
        )
    import networkx as nx  # already imported by the caller

    loops = list(nx.nodes_with_selfloops(graph))
    if loops:
        raise TopologyError(
            f"Expected no self loops, got one at {loops[0]!r} ({len(loops)} in all). Remove them, for "
            "example with graph.remove_edges_from(list(networkx.selfloop_edges(graph)))."
        )
    if len(graph) < 2:
        raise TopologyError(f"Expected a graph of at least 2 agents, got {len(graph)}.")
    weighted = graph.edges(data="weight", default=1)
    expect_no_weights(((f"edge {a!r} - {b!r}", weight) for a, b, weight in weighted), weights)
    nodes = _ordered(graph, order)
    number = {node: agent for agent, node in enumerate(nodes)}
    edges = [(number[a], number[b]) for a, b in graph.edges]
    if not edges:
        raise TopologyError("Expected a connected graph, got one without edges.")
    plain = nodes == list(range(len(nodes)))
    labels = None if plain else tuple(str(node) for node in nodes)
    return from_edges(edges, len(nodes), name="given", labels=labels)


def _ordered(graph: nx.Graph, order: Sequence[Hashable] | None) -> list[Any]:
    """Return the nodes of `graph` in the order of the agents; raise TopologyError if `order` does not fit."""
    if order is not None:
        given = list(order)
        if len(given) != len(graph) or set(given) != set(graph):
            raise TopologyError(
                f"order: expected each of the {len(graph)} nodes of the graph once, got {given!r:.120}."
            )
        return given
    try:
        return sorted(graph)
    except TypeError:
        raise TopologyError(
            "Expected nodes that can be sorted, got nodes that cannot, such as texts and numbers. State the "
            "order of agents with from_networkx(graph, order=[...])."
        ) from None


def describe(graph: Topology | nx.Graph | str | Path, alpha: float = 0.5) -> dict[str, Any]:
    """Return statistics of a graph as a dictionary for JSON; `alpha` is the α of `Topology.spectral_gap`.

    >>> from topdp.topology import ring
    >>> numbers = describe(ring(6))
    >>> numbers["degree"], numbers["covered_share"], numbers["diameter"]
    ({'min': 2, 'mean': 2.0, 'max': 2}, 1.0, 3)
    """
    topology = as_topology(graph)
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
