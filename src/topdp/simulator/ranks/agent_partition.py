"""Which rank holds which agent: as few links as possible between ranks, as many agents on each.

METIS (`pymetis`, by `pip install 'topdp[ranks]'`) cuts the graph where it is installed; elsewhere agents are
dealt out in blocks of neighbouring numbers. What is computed does not depend on the cut, only how much
travels. Nothing here communicates.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.topology import Topology

UNEVEN = 1.05
"""By which METIS may make a part larger than others; more, and blocks are taken instead."""


class AgentPartition(NamedTuple):
    """`home[agent]` is the rank that holds it; `cut` counts links between ranks, `by` names who cut."""

    home: Ints
    cut: int
    by: str

    @property
    def statement(self) -> str:
        sizes = np.bincount(self.home)
        held = f"{sizes.min()} to {sizes.max()}" if np.ptp(sizes) else f"{sizes[0]}"
        return f"{len(sizes)} ranks with {held} agents each, {self.cut} links between them, cut by {self.by}"


def partition(graph: Topology, ranks: int) -> AgentPartition:
    """The agents of `graph` on `ranks`; every rank holds at least one.

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
    fair = sizes.min() >= 1 and sizes.max() <= np.ceil(graph.agents / ranks) * UNEVEN
    return metis if fair and metis.cut < blocks.cut else blocks


def blocks_of(agents: int, ranks: int) -> Ints:
    """Agents in the order of their numbers, as evenly as it goes.

    >>> blocks_of(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return np.repeat(np.arange(ranks), [len(part) for part in np.array_split(np.arange(agents), ranks)])


def _by_metis(graph: Topology, ranks: int) -> Ints:
    import pymetis

    neighbours = np.split(graph.directed[:, 1], np.cumsum(graph.degrees)[:-1])
    found = pymetis.part_graph(ranks, [one.tolist() for one in neighbours], options=pymetis.Options(seed=0))
    return np.asarray(found.vertex_part, np.int64)


def _described(graph: Topology, home: Ints, by: str) -> AgentPartition:
    ends = home[graph.edges]
    return AgentPartition(home, int((ends[:, 0] != ends[:, 1]).sum()), by)
