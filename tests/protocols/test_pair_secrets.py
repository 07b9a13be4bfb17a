"""Pair secrets: which pairs share them, in which order, and which coalitions can cut the graph of pairs."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import constant_schedule
from topdp import topology
from topdp.errors import InputError
from topdp.protocols import Correlated
from topdp.protocols.pair_secrets import expect_degree, expect_uncut, secret_pairs, stays_connected
from topdp.topology import Topology


def graph_of(pairs: np.ndarray, agents: int) -> nx.Graph:
    graph = nx.Graph(pairs.tolist())
    graph.add_nodes_from(range(agents))
    return graph


@pytest.mark.parametrize("kind", ["regular", "all", "links"])
def test_pairs_are_unique_sorted_and_determined_by_the_seed(kind):
    graph = topology.random(10, 0.3, 1)
    pairs = secret_pairs(kind, graph, 4, seed=3)
    as_tuples = [tuple(pair) for pair in pairs.tolist()]
    assert as_tuples == sorted(set(as_tuples)) and all(i < j for i, j in as_tuples)
    np.testing.assert_array_equal(pairs, secret_pairs(kind, graph, 4, seed=3))
    partners = np.bincount(pairs.reshape(-1), minlength=10)
    if kind == "regular":
        assert (partners == 4).all()
        assert not np.array_equal(pairs, secret_pairs(kind, graph, 4, seed=4))
    if kind == "all":
        assert as_tuples == list(itertools.combinations(range(10), 2))
    if kind == "links":
        assert (partners == graph.degrees).all()


def test_secrets_of_all_pairs_ignore_the_degree():
    """Nine agents cannot have seven partners each; if all share secrets this does not matter."""
    assert len(secret_pairs("all", topology.ring(9), degree=7, seed=0)) == 36


def test_a_degree_above_the_number_of_others_means_all_others():
    assert expect_degree(8, 6) == 5 and expect_degree(1, 2) == 1
    assert len(secret_pairs("regular", topology.ring(6), degree=8, seed=0)) == 15


@pytest.mark.parametrize(
    ("degree", "agents", "said"),
    [
        (3, 9, r"an even secrets_degree \* agents, got 3 \* 9. Use 4"),
        (1, 6, "secrets_degree >= 2, got 1. 6 agents in pairs are not connected"),
        (0, 6, "secrets_degree"),
        (-2, 6, "secrets_degree"),
        (2.0, 6, "secrets_degree"),
    ],
)
def test_invalid_degrees_are_rejected(degree, agents, said):
    with pytest.raises(InputError, match=said):
        secret_pairs("regular", topology.ring(agents), degree, seed=0)


def test_unknown_kinds_of_secrets_are_rejected():
    for make in (
        lambda kind: secret_pairs(kind, topology.ring(4), 2, 0),
        lambda kind: Correlated(secrets=kind),
    ):
        with pytest.raises(InputError, match="one of regular, all, links, got 'some'"):
            make("some")


@pytest.mark.parametrize("pair_noise", [-0.1, float("nan"), float("inf")])
def test_invalid_pair_noise_is_rejected(pair_noise):
    with pytest.raises(InputError, match="finite pair_noise >= 0"):
        Correlated(pair_noise=pair_noise)


@settings(max_examples=100)
@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.floats(0.2, 1.0))
def test_stays_connected_agrees_with_enumeration_of_coalitions(agents, seed, share):
    chosen = np.triu(np.random.default_rng(seed).random((agents, agents)) < share, 1)
    pairs = np.argwhere(chosen)
    graph = graph_of(pairs, agents)
    for colluders in range(agents):
        rest = (set(range(agents)) - set(J) for J in itertools.combinations(range(agents), colluders))
        tried = all(nx.is_connected(graph.subgraph(left)) for left in rest)
        assert stays_connected(pairs, agents, colluders) == tried


def test_a_graph_with_sufficient_degrees_can_still_be_cut():
    """Two cliques of five with two common members: every degree is at least 4, and two agents cut it."""
    clubs = [(0, 1, 2, 3, 4), (3, 4, 5, 6, 7)]
    pairs = np.array(sorted({pair for club in clubs for pair in itertools.combinations(club, 2)}))
    assert stays_connected(pairs, 8, 1) and not stays_connected(pairs, 8, 2)
    with pytest.raises(InputError, match="only the noise of a few agents would hide some agent") as said:
        expect_uncut(pairs, 8, 2, "links", seed=0)
    assert 'secrets = "regular" with secrets_degree = 3, or fewer colluders' in str(said.value)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("agents", "colluders"), [(8, 1), (9, 2), (12, 3), (12, 5), (7, 5), (7, 4)])
def test_the_degree_in_the_error_suffices(agents, colluders, seed):
    links = topology.ring(agents)
    if colluders < 2:
        links = topology.tree(agents)
    with pytest.raises(InputError, match=f"any {colluders} of {agents} agents, got") as said:
        expect_uncut(links.edges, agents, colluders, "links", seed)
    if 'secrets = "all"' in str(said.value):
        assert agents - colluders <= 3 or agents == 7
        return
    degree = int(str(said.value).split("secrets_degree = ")[1].split(",")[0])
    pairs = secret_pairs("regular", links, degree, seed)
    assert graph_of(pairs, agents).number_of_edges() == agents * degree / 2
    assert nx.node_connectivity(graph_of(pairs, agents)) > colluders


def test_an_agent_without_a_partner_is_named():
    with pytest.raises(InputError, match="Expected a secret for every agent, got none for agent 3"):
        expect_uncut(np.array([(0, 1), (0, 2), (1, 2)]), 4, 0, "links", seed=0)


def test_no_graph_is_cut_if_all_other_agents_collude():
    expect_uncut(topology.ring(5).edges, 5, 4, "links", seed=0)
    expect_uncut(topology.complete(2).edges, 2, 1, "all", seed=0)


def test_pairs_add_the_same_draw_with_opposite_signs():
    """Own draws 0 .. n-1, then pairs in order; the lower number adds the draw, the higher subtracts it."""
    graph, own = topology.random(7, 0.5, 2), np.linspace(0.5, 2.0, 7)
    schedule = constant_schedule(1, rate=1.0)
    for kind, degree in (("regular", 4), ("all", 4), ("links", 4)):
        plan = Correlated(secrets=kind, degree=degree, pair_noise=3.0, gossip=2).plan(
            graph, schedule, own, seed=5
        )
        pairs = secret_pairs(kind, graph, degree, 5)
        assert plan.draws == 7 + len(pairs)
        N = np.zeros((7, plan.draws))
        for i in range(7):
            for draw, std in zip(plan[0].draw[i], plan[0].std[i], strict=True):
                N[i, draw] += std if draw >= 0 else 0.0
        expected = np.zeros_like(N)
        expected[np.arange(7), np.arange(7)] = own
        for number, (i, j) in enumerate(pairs):
            expected[[i, j], 7 + number] = np.array([1, -1]) * 3.0 * np.sqrt(np.mean(own**2))
            assert set(plan.known_by[7 + number].tolist()) == {int(i), int(j)}
        np.testing.assert_allclose(N, expected, rtol=1e-14)
        np.testing.assert_array_equal(N[:, 7:].sum(axis=0), 0)
        np.testing.assert_array_equal(plan.full_scale, own)


def test_secrets_of_edges_on_a_star_are_rejected():
    """The hub knows all of them, so that nothing is gained."""
    star = Topology("star", topology.star(6, hubs=1).adjacency)
    with pytest.raises(
        InputError, match=r"any 1 of 6 agents, got .* agent 1 if all agents that share .* \(1\)"
    ):
        expect_uncut(secret_pairs("links", star, 2, 0), 6, 1, "links", 0)
