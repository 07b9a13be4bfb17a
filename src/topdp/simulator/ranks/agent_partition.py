"""Assigns agents to ranks: equally many agents on each, and few edges between ranks.

METIS (`pymetis`, in the extra `ranks`) cuts the graph if it is installed; otherwise ranks hold
blocks of consecutive numbers. Results do not depend on the cut, only the traffic does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.topology import Topology

MAX_PART_RATIO = (
    1.05  # the size of the largest part of METIS over the mean; above this ratio, blocks are used
)


class AgentPartition(NamedTuple):
    """A partition of the agents:

    `home[agent]` is the rank of an agent, `cut` the number of edges between ranks, `by` the algorithm.
    """

    home: Ints
    cut: int
    by: str

    @property
    def statement(self) -> str:
        sizes = np.bincount(self.home)
        held = f"{sizes.min()} to {sizes.max()}" if np.ptp(sizes) else f"{sizes[0]}"
        return f"{len(sizes)} ranks with {held} agents each, {self.cut} edges between them, cut by {self.by}"


def partition(graph: Topology, ranks: int) -> AgentPartition:
    """Assign the agents of `graph` to `ranks`, at least one to each.

    >>> from topdp import topology
    >>> partition(topology.ring(6), 1).home.tolist()
    [0, 0, 0, 0, 0, 0]
    """
    if not 1 <= ranks <= graph.agents:
        raise InputError(
            f"Expected at most as many ranks as agents, got {ranks} ranks for {graph.agents} agents: start "
            "fewer (torchrun --nproc-per-node)."
        )
    blocks = _described(graph, blocks_of(graph.agents, ranks), "blocks")
    if ranks == 1 or find_spec("pymetis") is None:
        return blocks
    metis = _described(graph, _by_metis(graph, ranks), "METIS")
    sizes = np.bincount(metis.home, minlength=ranks)
    fair = sizes.min() >= 1 and sizes.max() <= np.ceil(graph.agents / ranks) * MAX_PART_RATIO
    return metis if fair and metis.cut < blocks.cut else blocks


def blocks_of(agents: int, ranks: int) -> Ints:
    """Return [agents]: the rank of each agent, in blocks of consecutive agents of (almost) equal size.

    >>> blocks_of(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return np.repeat(np.arange(ranks), [len(part) for part in np.array_split(np.arange(agents), ranks)])


def _by_metis(graph: Topology, ranks: int) -> Ints:
    import pymetis

    neighbours = np.split(graph.directed[:, 1], np.cumsum(graph.degrees)[:-1])
    cut = pymetis.part_graph(ranks, [part.tolist() for part in neighbours], options=pymetis.Options(seed=0))
    return np.asarray(cut.vertex_part, np.int64)


def _described(graph: Topology, home: Ints, by: str) -> AgentPartition:
    ends = home[graph.edges]
    return AgentPartition(home, int((ends[:, 0] != ends[:, 1]).sum()), by)
