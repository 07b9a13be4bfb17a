"""The partition of agents over ranks, with and without METIS."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from topdp import topology
from topdp.errors import InputError
from topdp.simulator.ranks import ranked_engine as cutting
from topdp.simulator.ranks.ranked_engine import blocks_of, partition


@pytest.fixture
def metis(monkeypatch):
    """`metis(home)`: a substitute for pymetis that returns this partition."""

    def cuts(home):
        found = SimpleNamespace(vertex_part=home)
        fake = SimpleNamespace(part_graph=lambda ranks, neighbours, **_: found, Options=lambda **_: None)
        monkeypatch.setitem(sys.modules, "pymetis", fake)
        monkeypatch.setattr(cutting, "find_spec", lambda name: fake)

    return cuts


@pytest.fixture
def no_metis(monkeypatch):
    monkeypatch.setattr(cutting, "find_spec", lambda name: None)


def test_every_rank_holds_agents_and_blocks_are_even():
    for agents, ranks in [(7, 3), (3, 3), (10, 4)]:
        sizes = np.bincount(blocks_of(agents, ranks), minlength=ranks)
        assert sizes.min() >= 1 and np.ptp(sizes) <= 1


def test_without_metis_agents_are_divided_into_blocks(no_metis):
    found = partition(topology.ring(8), 2)
    assert found.home.tolist() == [0] * 4 + [1] * 4
    assert found.statement == "2 ranks with 4 agents each, 2 edges between them, cut by blocks"


def test_metis_is_used_if_it_cuts_fewer_edges(metis):
    """Two cliques with interleaved numbers: blocks cut through both."""
    odd, even = [1, 3, 5, 7], [0, 2, 4, 6]
    edges = [(i, j) for part in (odd, even) for i in part for j in part if i < j]
    graph = topology.from_edges([*edges, (0, 1)], agents=8)
    metis([0, 1] * 4)
    found = partition(graph, 2)
    assert (found.by, found.cut, found.home.tolist()) == ("METIS", 1, [0, 1] * 4)


@pytest.mark.parametrize("home", [[0] * 8, [0] * 7 + [1]])
def test_an_uneven_partition_by_metis_is_not_used(metis, home):
    metis(home)
    assert partition(topology.ring(8), 2).by == "blocks"


@pytest.mark.skipif(cutting.find_spec("pymetis") is None, reason="needs topdp[ranks]")
def test_the_real_metis_finds_the_two_halves_of_a_barbell():
    edges = [(i, j) for part in ([0, 2, 4, 6], [1, 3, 5, 7]) for i in part for j in part if i < j]
    found = partition(topology.from_edges([*edges, (0, 1)], agents=8), 2)
    assert (found.by, found.cut) == ("METIS", 1)


def test_more_ranks_than_agents_are_rejected():
    with pytest.raises(InputError, match="4 ranks for 3 agents"):
        partition(topology.ring(3), 4)
