"""Statistics of a graph: degrees, diameter, spectral gap, coverage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topdp.topology._graph import Topology
from topdp.topology._user_graphs import as_topology

if TYPE_CHECKING:
    import networkx as nx


def describe(graph: Topology | nx.Graph | str | Path, alpha: float = 0.5) -> dict[str, Any]:
    """Return the statistics of a graph for JSON. `alpha` is the weight in `Topology.spectral_gap`.

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
