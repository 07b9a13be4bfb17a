"""A simulation over several ranks: each rank holds some agents, and advances an engine with these agents.

Each rank holds about equally many agents, and few edges connect agents on different ranks. If METIS is
installed (`pymetis`, in the extra `ranks`), it cuts the graph. Otherwise ranks hold blocks of agents with
consecutive numbers. Only the traffic depends on the cut, not the results.

All ranks must call the same methods in the same order; if one rank fails, all ranks end. Each rank sends the
rows that other ranks mix, and receives the rows that it mixes itself. The plan determines which rows these
are, so ranks need not request them. All other rows stay local.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Ints
from topdp.errors import InputError
from topdp.simulator.engine import Engine
from topdp.simulator.evaluation import Evaluation
from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.simulation import SimulationWrapper, State
from topdp.topology import Topology

# If the largest part of METIS has more than this many times the mean number of agents, blocks are used.
MAX_PART_RATIO = 1.05


class AgentPartition(NamedTuple):
    """An assignment of agents to ranks."""

    home: Ints  # [agents]: the rank of each agent
    cut: int  # the number of edges between agents on different ranks
    by: str  # the algorithm

    @property
    def statement(self) -> str:
        """A description of the partition for the user."""
        sizes = np.bincount(self.home)
        held = f"{sizes.min()} to {sizes.max()}" if np.ptp(sizes) else f"{sizes[0]}"
        return f"{len(sizes)} ranks with {held} agents each, {self.cut} edges between them, cut by {self.by}"


def partition(graph: Topology, ranks: int) -> AgentPartition:
    """Return an assignment of the agents of `graph` to `ranks` ranks, at least one agent to each.

    Raise InputError if there are more ranks than agents.

    >>> from topdp import topology
    >>> partition(topology.ring(6), 1).home.tolist()
    [0, 0, 0, 0, 0, 0]
    """
    if not 1 <= ranks <= graph.agents:
        raise InputError(
            f"Expected at most as many ranks as agents, got {ranks} ranks for {graph.agents} agents. Start "
            "fewer ranks (torchrun --nproc-per-node)."
        )
    blocks = _with_cut(graph, blocks_of(graph.agents, ranks), "blocks")
    if ranks == 1 or find_spec("pymetis") is None:
        return blocks
    metis = _with_cut(graph, _by_metis(graph, ranks), "METIS")
    sizes = np.bincount(metis.home, minlength=ranks)
    fair = sizes.min() >= 1 and sizes.max() <= np.ceil(graph.agents / ranks) * MAX_PART_RATIO
    return metis if fair and metis.cut < blocks.cut else blocks


def blocks_of(agents: int, ranks: int) -> Ints:
    """Return [agents] the rank of each agent, if ranks hold blocks of consecutive agents of about equal size.

    >>> blocks_of(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return np.repeat(np.arange(ranks), [len(part) for part in np.array_split(np.arange(agents), ranks)])


def _by_metis(graph: Topology, ranks: int) -> Ints:
    import pymetis

    neighbours = np.split(graph.directed[:, 1], np.cumsum(graph.degrees)[:-1])
    cut = pymetis.part_graph(ranks, [part.tolist() for part in neighbours], options=pymetis.Options(seed=0))
    return np.asarray(cut.vertex_part, np.int64)


def _with_cut(graph: Topology, home: Ints, by: str) -> AgentPartition:
    """Return the partition with these ranks, and count the edges between ranks."""
    ends = home[graph.edges]
    return AgentPartition(home, int((ends[:, 0] != ends[:, 1]).sum()), by)


@final
class BorderExchange:
    """The `fetch` function of an engine, which exchanges rows with the other ranks of `group`."""

    def __init__(self, layout: RowLayout, group: ProcessGroup) -> None:
        self.layout, self.group = layout, group

    def __call__(self, round: int, rows: Tensor) -> Callable[[], None]:
        """Start the exchange for `round`, and return a function that waits until all guests have arrived.

        Guests are rows of agents on other ranks, from which local rows are mixed.

        `rows`: the rows that this rank made in the previous round, followed by space for the guests of
        `round`.
        """
        layout = self.layout
        made = layout.made(round - 1)
        # With their padding, rows are contiguous and can be received in place.
        rows = rows.as_strided((len(rows), rows.stride(0)), (rows.stride(0), 1))
        sent = []
        for (origin, to), wanted in layout.guests(round).items():
            if origin == layout.here:
                places = torch.from_numpy(np.searchsorted(made, wanted)).to(rows.device)
                sent.append((to, rows.index_select(0, places)))
        received, first = [], len(made)
        for origin, coming in layout.arriving(round):
            received.append((origin, rows[first : first + len(coming)]))
            first += len(coming)
        return self.group.exchange(sent, received)


MAX_GATHERED_NUMBERS = 1 << 26  # numbers that a rank sends to rank 0 at a time


@final
class RankedEngine(SimulationWrapper):
    """A simulation over the ranks of `group`; `engine` makes the rows of the agents on this rank."""

    def __init__(self, engine: Engine, group: ProcessGroup) -> None:
        super().__init__(engine)
        self.group, self._home = group, engine.layout.home

    def advance(self, state: State, at_most: int = 1) -> State:
        return self.group.together(lambda: self._inner.advance(state))

    def evaluate(self, state: State) -> Evaluation:
        """Return loss and metrics of all agents, on every rank."""
        here = self.group.together(lambda: self._inner.evaluate(state))
        parts = self.group.all({"": here.loss, **here.metrics})
        values = {name: self._in_order([part[name] for part in parts]) for name in parts[0]}
        return Evaluation(values.pop(""), values)

    def reported(self, state: State) -> Tensor:
        """Return on rank 0 the reported rows of all agents [agents, d]; on other ranks an empty [0, d]."""
        rows = self._inner.reported(state).detach().cpu()
        d = rows.shape[1]
        count = max(1, MAX_GATHERED_NUMBERS // d)
        if not self.group.leads:
            for part in torch.split(rows, count):
                self.group.exchange([(0, part.contiguous())], [])()
            return rows[:0]
        gathered = torch.empty(len(self._home), d, dtype=rows.dtype)
        for rank in range(self.group.size):
            agents = torch.from_numpy(np.flatnonzero(self._home == rank))
            for first, part in zip(range(0, len(agents), count), torch.split(agents, count), strict=True):
                values = rows[first : first + len(part)]
                if rank != 0:
                    values = torch.empty(len(part), d, dtype=rows.dtype)
                    self.group.exchange([], [(rank, values)])()
                gathered[part] = values
        return gathered

    def _in_order(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return the values of all agents in the order of agents; `parts` holds the values of each rank."""
        ordered = np.empty((len(self._home), *parts[0].shape[1:]), parts[0].dtype)
        for rank, values in enumerate(parts):
            ordered[self._home == rank] = values
        return ordered
