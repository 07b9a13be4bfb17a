"""Graphs of agents: families, user graphs, the sets N_i^j, covered edges, spectral gap.

    N_i    the neighbours of agent i
    N_i^j  = N_i \\ ({j} ∪ N_j), the neighbours of i that are neither j nor adjacent to j

The directed edge i→j is *covered* if N_i^j is not empty. Then i has a neighbour whose estimate j does not
read. The noise in that estimate can replace part of i's own noise in the message that i sends to j.
"""

from topdp.topology._graph import Topology, TopologyError, from_edges
from topdp.topology._user_graphs import as_topology, describe, from_networkx
from topdp.topology.families import (
    FAMILIES,
    complete,
    grid,
    mesh,
    random,
    read_edge_list,
    regular,
    ring,
    single,
    small_world,
    star,
    tree,
)

__all__ = [
    "FAMILIES",
    "Topology",
    "TopologyError",
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
    "single",
    "small_world",
    "star",
    "tree",
]


def __dir__() -> list[str]:
    return __all__
