"""Who is adjacent to whom: graph families, the sets N_i^j, which directed edges are covered, spectral gap.

    N_i    the neighbours of agent i
    N_i^j  = N_i \\ ({j} ∪ N_j), the neighbours of i that are neither j nor adjacent to j

The directed edge i→j is *covered* when N_i^j is not empty: then i has a neighbour whose estimate j does not
read, and whose noise may stand in for part of i's own in what i sends to j.
"""

from collections.abc import Callable

from topdp.topology.edge_lists import read_edge_list
from topdp.topology.families import (
    alone,
    complete,
    grid,
    mesh,
    random,
    regular,
    ring,
    small_world,
    star,
    tree,
)
from topdp.topology.graph import Topology, TopologyError, from_edges
from topdp.topology.graph_statistics import describe
from topdp.topology.user_graphs import as_topology, from_networkx

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

__all__ = [
    "FAMILIES",
    "Topology",
    "TopologyError",
    "alone",
    "as_topology",
    "complete",
    "describe",
    "from_edges",
    "from_networkx",
    "grid",
    "mesh",
    "random",
    "read_edge_list",
    "regular",
    "ring",
    "small_world",
    "star",
    "tree",
]
