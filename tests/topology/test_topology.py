"""Graphs: families have their stated shapes, N_i^j is the paper's set, and unsuitable input is rejected."""

from __future__ import annotations

import doctest
import inspect
import json
import math
from functools import cached_property
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topdp import topology
from topdp.runs.config import ConfigError, TopologyConfig, read
from topdp.runs.run_outline import named_graph
from topdp.topology import (
    FAMILIES,
    Topology,
    TopologyError,
    complete,
    describe,
    families,
    from_edges,
    grid,
    mesh,
    random,
    read_edge_list,
    regular,
    ring,
    small_world,
    star,
    tree,
)
from topdp.topology import _graph as graph_room

ONE_OF_EACH = {
    "random": random(30, 0.2, seed=4),
    "ring": ring(30),
    "star": star(30),
    "tree": tree(30),
    "mesh": mesh(30),
    "complete": complete(12),
    "grid": grid(30),
    "small-world": small_world(30, 4, 0.3, seed=4),
    "regular": regular(30, 5, seed=4),
}
every_family = pytest.mark.parametrize("graph", ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """A random spanning tree with random further edges."""
    n = draw(st.integers(2, 9))
    spanning = [(draw(st.integers(0, i - 1)), i) for i in range(1, n)]
    pairs = [(i, j) for j in range(n) for i in range(j)]
    return from_edges(spanning + draw(st.lists(st.sampled_from(pairs))), n)


def neighbours_of(graph: Topology) -> list[set[int]]:
    return [{j for j in range(graph.agents) if graph.adjacency[i, j]} for i in range(graph.agents)]


def test_examples_in_the_docstrings_run() -> None:
    names = {name: getattr(topology, name) for name in topology.__all__}
    found = [doctest.testmod(room, extraglobs=names) for room in (graph_room, families)]
    assert sum(room.attempted for room in found) > 20 and sum(room.failed for room in found) == 0
    # doctest does not look inside cached properties
    for name, value in vars(Topology).items():
        if isinstance(value, cached_property):
            for example in doctest.DocTestFinder().find(value.func, name, globs=names.copy()):
                assert doctest.DocTestRunner().run(example).failed == 0


# The families


@every_family
def test_family_is_a_connected_undirected_graph_without_self_loops(graph: Topology) -> None:
    as_networkx = nx.from_numpy_array(graph.adjacency)
    assert nx.is_connected(as_networkx)
    assert (graph.adjacency == graph.adjacency.T).all()
    assert not graph.adjacency.diagonal().any()
    assert graph.diameter() == nx.diameter(as_networkx)


def test_every_kind_builds_the_family_of_its_name() -> None:
    assert {name: graph.name for name, graph in ONE_OF_EACH.items()} == {name: name for name in ONE_OF_EACH}
    assert set(FAMILIES) == {*ONE_OF_EACH, "file"}


@pytest.mark.parametrize("agents", [2, 3, 4, 5, 6, 7, 8, 31, 32, 33])
def test_families_without_options_have_the_stated_degrees_and_edges(agents: int) -> None:
    assert ring(agents).degrees.tolist() == [1 if agents == 2 else 2] * agents
    assert complete(agents).degrees.tolist() == [agents - 1] * agents
    assert len(tree(agents).edges) == agents - 1
    assert tree(agents).degrees.max() <= 3
    assert tree(agents).diameter() <= 2 * math.log2(agents + 1)
    assert grid(agents).degrees.max() <= 4
    assert star(agents, hubs=1).degrees[0] == agents - 1
    assert len(set(mesh(agents).degrees.tolist())) == 1
    if agents >= 6:
        assert 2 < mesh(agents).degrees[0] < agents - 1


def test_the_grid_equals_the_lattice_of_networkx() -> None:
    lattice = nx.relabel_nodes(nx.grid_2d_graph(5, 6), lambda at: 6 * at[0] + at[1])
    assert {frozenset(edge) for edge in grid(30).edges.tolist()} == {
        frozenset(edge) for edge in lattice.edges
    }
    ragged = grid(7)  # rows of 3, 3 and 1
    assert sorted(ragged.degrees.tolist()) == [1, 2, 2, 2, 3, 3, 3]


def test_a_star_has_adjacent_hubs_and_evenly_divided_leaves() -> None:
    graph = star(31, hubs=3)
    hubs, leaves = graph.degrees[:3], graph.degrees[3:]
    assert graph.adjacency[:3, :3].sum() == 6
    assert set(leaves.tolist()) == {1}
    assert sorted((hubs - 2).tolist()) == [9, 9, 10]
    shared = star(10, hubs=2, attach="all")
    assert shared.degrees.tolist() == [9, 9] + [2] * 8


def test_regular_and_small_world_graphs_have_the_requested_degree() -> None:
    assert regular(24, 5, seed=1).degrees.tolist() == [5] * 24
    assert regular(12, 2, seed=1).degrees.tolist() == [2] * 12
    assert small_world(24, 6, 0.0).degrees.tolist() == [6] * 24
    assert len(small_world(24, 6, 0.5, seed=2).edges) == 24 * 3


def test_unconnected_random_graphs_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most 2-regular graphs of 60 agents consist of several cycles."""
    assert [regular(60, 2, seed=seed).diameter() for seed in range(5)] == [30] * 5
    monkeypatch.setattr(families, "MAX_GRAPH_DRAWS", 1)
    with pytest.raises(
        TopologyError, match=r"connected small-world graph, got none in 1 draws\. Raise the degree"
    ):
        for seed in range(30):  # about one in three is connected
            small_world(100, 2, 1.0, seed=seed)


@pytest.mark.parametrize("family", [random, small_world, regular])
def test_the_seed_determines_the_graph(family: type) -> None:
    draws = {seed: family(20, seed=seed).adjacency.tobytes() for seed in range(5)}
    assert draws[3] == family(20, seed=3).adjacency.tobytes()
    assert len(set(draws.values())) == 5


def test_random_graphs_contain_every_edge_equally_often() -> None:
    """The graph is nearly always connected, so that drawing again does not bias the count."""
    times, n, rate = 400, 12, 0.6
    share = sum(random(n, rate, seed=seed).adjacency for seed in range(times)) / times
    off_diagonal = share[~np.eye(n, dtype=bool)]
    # 66 pairs with a standard deviation of 0.0245 each; the bound is five of these
    assert np.abs(off_diagonal - rate).max() < 0.125
    assert abs(off_diagonal.mean() - rate) < 0.015
    assert complete(9).adjacency.tolist() == random(9, 1.0).adjacency.tolist()


def test_edges_directed_edges_and_neighbours_agree() -> None:
    graph = ONE_OF_EACH["random"]
    sets = neighbours_of(graph)
    assert [tuple(pair) for pair in graph.directed] == sorted((i, j) for i in range(30) for j in sets[i])
    assert [tuple(pair) for pair in graph.edges] == sorted(
        (i, j) for i in range(30) for j in sets[i] if i < j
    )
    assert graph.neighbours.shape == (30, max(map(len, sets)))
    for i, row in enumerate(graph.neighbours.tolist()):
        assert row == sorted(sets[i]) + [-1] * (len(row) - len(sets[i]))


def test_a_topology_cannot_be_changed() -> None:
    given_matrix = np.array([[False, True], [True, False]])
    graph = Topology("pair", given_matrix)
    given_matrix[:] = False
    assert graph.adjacency.any()
    for array in (graph.adjacency, graph.degrees, graph.neighbours, graph.eligible, graph.covered):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


# The sets N_i^j


def test_cover_sets_of_the_papers_example() -> None:
    """Section "Topology-aware Noise Reduction": of A_0's four neighbours A_1 and A_4 are adjacent."""
    graph = from_edges([(0, 1), (0, 2), (0, 3), (0, 4), (1, 4)])
    assert graph.cover_set(0, 1) == graph.cover_set(0, 4) == {2, 3}
    assert graph.cover_set(0, 2) == {1, 3, 4}
    assert graph.cover_set(0, 3) == {1, 2, 4}


@given(graphs())
@settings(max_examples=150)
def test_cover_sets_equal_the_formula(graph: Topology) -> None:
    sets = neighbours_of(graph)
    for edge, (i, j) in enumerate(graph.directed.tolist()):
        expected = sets[i] - ({j} | sets[j])
        assert graph.cover_set(i, j) == expected
        assert set(graph.neighbours[i][graph.eligible[edge]].tolist()) == expected
        assert graph.covered[edge] == bool(expected)
        for k in sets[i]:
            assert (k in expected) == (j in graph.cover_set(i, k))


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_relabelling_agents_permutes_cover_sets(graph: Topology, shuffle: object) -> None:
    new = list(range(graph.agents))
    shuffle.shuffle(new)  # type: ignore[attr-defined]
    renamed = from_edges([(new[i], new[j]) for i, j in graph.edges.tolist()], graph.agents)
    for i, j in graph.directed.tolist():
        assert renamed.cover_set(new[i], new[j]) == {new[k] for k in graph.cover_set(i, j)}
    assert renamed.covered.sum() == graph.covered.sum()
    assert renamed.diameter() == graph.diameter()
    assert renamed.spectral_gap() == pytest.approx(graph.spectral_gap(), abs=1e-12)


@every_family
def test_a_leaf_never_covers_its_only_neighbour(graph: Topology) -> None:
    leaf = graph.degrees[graph.directed[:, 0]] == 1
    assert not graph.covered[leaf].any()
    if graph.name in ("star", "tree"):
        assert leaf.any()


def test_coverage_of_known_graphs() -> None:
    assert not complete(8).covered.any()
    assert not ring(3).covered.any()
    assert all(ring(n).covered.all() for n in range(4, 9))
    assert grid(30).covered.all()
    assert mesh(30).covered.all()
    hub_to_leaf = star(8, hubs=1)
    assert hub_to_leaf.covered.tolist() == [i == 0 for i, _ in hub_to_leaf.directed.tolist()]


def test_coverage_computed_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random(30, 0.3, seed=2)
    whole_arrays, whole_diameter = (whole.eligible, whole.covered), whole.diameter()
    monkeypatch.setattr(graph_room, "MAX_TEMPORARY_ENTRIES", 64)
    pieces = random(30, 0.3, seed=2)
    assert (pieces.eligible == whole_arrays[0]).all()
    assert (pieces.covered == whole_arrays[1]).all()
    assert pieces.diameter() == whole_diameter


def test_coverage_of_large_graphs_is_correct() -> None:
    """With a loop over triples this test would take minutes."""
    circle = ring(5000)
    assert circle.covered.all()
    assert circle.eligible.sum() == 2 * 5000
    assert circle.diameter() == 2500
    wide = random(1000, 0.008, seed=0)
    assert describe(wide)["covered_share"] > 0.9


# The spectral gap


def gap_by_hand(graph: Topology, alpha: float) -> float:
    """The definition, with a general eigenvalue solver for the asymmetric matrix."""
    walk = graph.adjacency / graph.adjacency.sum(axis=1, keepdims=True)
    moduli = np.sort(np.abs(np.linalg.eigvals(alpha * np.eye(graph.agents) + (1 - alpha) * walk)))
    return float(1 - moduli[-2])


@every_family
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9])
def test_the_spectral_gap_equals_its_definition(graph: Topology, alpha: float) -> None:
    assert graph.spectral_gap(alpha) == pytest.approx(gap_by_hand(graph, alpha), abs=1e-9)


@every_family
def test_iterative_and_dense_spectral_gap_agree(graph: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    big = FAMILIES[graph.name](100)
    dense = big.spectral_gap(0.3)
    monkeypatch.setattr(graph_room, "MAX_DENSE_GAP_AGENTS", 10)
    assert big.spectral_gap(0.3) == pytest.approx(dense, rel=1e-8)


def test_spectral_gaps_of_known_graphs() -> None:
    assert ring(2000).spectral_gap() == pytest.approx(0.5 * (1 - math.cos(2 * math.pi / 2000)), rel=1e-6)
    assert complete(10).spectral_gap(0.5) == pytest.approx(1 - (0.5 - 0.5 / 9))
    assert ring(6).spectral_gap(0.0) == pytest.approx(0)  # bipartite: the two sides swap forever
    assert ring(6).spectral_gap(1.0) == pytest.approx(0)


def test_describe_returns_the_numbers_of_the_graph_as_json() -> None:
    graph = star(10, hubs=1)
    numbers = json.loads(json.dumps(describe(graph, alpha=0.25)))
    gap = numbers.pop("spectral_gap")
    assert gap == pytest.approx(gap_by_hand(graph, 0.25))
    assert numbers == {
        "name": "star",
        "agents": 10,
        "edges": 9,
        "degree": {"min": 1, "mean": 1.8, "max": 9},
        "diameter": 2,
        "alpha": 0.25,
        "directed_edges": 18,
        "covered_share": 0.5,
        "uncovered_directed_edges": 9,
        "agents_with_no_covered_neighbour": list(range(1, 10)),
    }


# Invalid input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ring(1), "Expected agents >= 2, got 1"),
        (lambda: ring(2.5), "Expected agents to be a whole number, got 2.5"),
        (lambda: random(30, 0.0), r"Expected 0 < connection <= 1, got 0.0"),
        (lambda: random(30, 1.2), r"Expected 0 < connection <= 1, got 1.2"),
        (lambda: random(30, math.nan), r"Expected 0 < connection <= 1, got nan"),
        (lambda: star(3, hubs=3), "Expected fewer hubs than agents, got 3 hubs for 3 agents"),
        (lambda: star(3, hubs=0), "Expected hubs >= 1, got 0"),
        (lambda: star(5, attach="some"), "Expected attach to be 'one' or 'all', got 'some'"),
        (lambda: regular(5, 5), "Expected degree < agents, got degree 5 for 5 agents"),
        (lambda: regular(5, 3), r"Expected agents \* degree to be even, got 5 \* 3\. Change one of them"),
        (lambda: regular(6, 1), "Expected degree >= 2, got 1"),
        (lambda: small_world(6, 3), r"Expected an even degree.* got 3\. Use 4"),
        (lambda: small_world(6, 6), "Expected degree < agents"),
        (lambda: small_world(6, 2, 1.5), "Expected 0 <= rewire <= 1, got 1.5"),
        (lambda: ring(5).spectral_gap(1.5), "Expected 0 <= alpha <= 1, got 1.5"),
        (lambda: ring(5).cover_set(0, 2), "Expected two adjacent agents, got 0 and 2"),
        (lambda: ring(5).cover_set(0, -1), "Expected two adjacent agents, got 0 and -1"),
        (lambda: from_edges([]), r"Expected edges as pairs of agent numbers.*Give for example"),
        (lambda: from_edges([(0, 1), (1,)]), "Expected edges as pairs of agent numbers"),
        (lambda: from_edges([(0, 1, 2)]), "Expected edges as pairs of agent numbers"),
        (lambda: from_edges([(0, 1), (1, 5)], 3), r"from 0 to 2, got the edge \(1, 5\)"),
        (lambda: from_edges([(0, 1), (1, -1)]), r"from 0 to 1, got the edge \(1, -1\)"),
        (lambda: from_edges([(0, 1), (1, 1)]), "Expected no self loops, got one at agent 1"),
        (lambda: from_edges([(0, 1), (2, 3)]), r"got 2 components: \{0, 1\}, \{2, 3\}\. Add edges"),
        (lambda: from_edges([(0, 1)], 3), r"got 2 components: \{0, 1\}, \{2\}"),
        (lambda: Topology("x", np.zeros((2, 3))), r"Expected a square adjacency matrix, got shape \(2, 3\)"),
        (lambda: Topology("x", [[0, 2], [2, 0]]), r"got 2\. Edges have no weights"),
        (lambda: Topology("x", [[0, 1], [0, 0]]), "Expected an undirected graph.* got 0→1 without 1→0"),
        (lambda: Topology("x", [[0, 1], [1, 0]], ("a", "a")), "Expected 2 different labels, got 1"),
    ],
)
def test_invalid_input_is_rejected_with_the_reason(build: type, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build()


def test_the_error_for_a_low_connection_rate_states_a_sufficient_one() -> None:
    with pytest.raises(TopologyError) as refusal:
        random(100, 0.01)
    for part in ("1000 draws", "100 agents", "rate 0.01", "ln(n)/n = 0.0461", "0.069 or more"):
        assert part in str(refusal.value)
    assert random(100, 0.069).agents == 100


# Edge lists


def written(folder: Path, text: str) -> Path:
    path = folder / "links.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_consecutive_numbers_in_a_file_are_the_agent_numbers(tmp_path: Path) -> None:
    graph = read_edge_list(written(tmp_path, "# mine\n2 0\n\n0,1\n1\t0\n0 , 3 # again\n"))
    assert graph.edges.tolist() == [[0, 1], [0, 2], [0, 3]]
    assert graph.labels is None and graph.name == "file"


def test_other_numbers_become_agents_in_ascending_order(tmp_path: Path) -> None:
    graph = read_edge_list(written(tmp_path, "10 2\n2 1\n"))
    assert graph.labels == ("1", "2", "10")
    assert graph.edges.tolist() == [[0, 1], [1, 2]]


def test_text_names_keep_their_order_in_the_file(tmp_path: Path) -> None:
    graph = read_edge_list(str(written(tmp_path, "\ufeffoslo bergen\nbergen ålesund\n")))
    assert graph.labels == ("oslo", "bergen", "ålesund")
    assert describe(graph)["labels"] == ["oslo", "bergen", "ålesund"]
    assert graph.cover_set(1, 0) == {2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected at least one edge"),
        ("# nothing\n\n", "Expected at least one edge"),
        ("0 1\n1 1\n", "line 2: expected two different agents, got the self loop '1 1'"),
        ("0 1\n\n1 -> 2\n", "line 3: expected an undirected edge 'a b', got '1 -> 2'"),
        ("Source,Target\n0,1\n", "line 1: expected an edge, got the header 'Source,Target'.* directed"),
        (
            "0 1\n1 2 0.5\n",
            r"line 2: expected an edge without a weight, got 0.5 \(1 such edges in all\).*weights='ignore'",
        ),
        ("0 1\n7\n", "line 2: expected two names, got '7'"),
        ("0,,1\n", "line 1: expected two names"),
        ("a b\nc d\n", r"got 2 components: \{a, b\}, \{c, d\}"),
        ("0 1\n01 1\n", "Expected no self loops, got one at agent 1"),
    ],
)
def test_invalid_edge_lists_are_rejected_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_edge_list(written(tmp_path, text))


def test_unreadable_edge_lists_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"absent.txt, but it cannot be read: No such file"):
        read_edge_list(tmp_path / "absent.txt")
    with pytest.raises(TopologyError, match="Is a directory"):
        read_edge_list(tmp_path)
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(TopologyError, match="not UTF-8 text"):
        read_edge_list(tmp_path / "picture")


def test_the_error_for_many_components_does_not_list_all() -> None:
    with pytest.raises(TopologyError) as refusal:
        from_edges([(2 * i, 2 * i + 1) for i in range(50)])
    assert "50 components" in str(refusal.value) and len(str(refusal.value)) < 250


def test_options_of_all_families_are_configuration_keys() -> None:
    """The configuration passes the keys of [topology], and the seed, by name."""
    keys = {"seed", *TopologyConfig.model_fields}
    for family in FAMILIES.values():
        assert set(inspect.signature(family).parameters) <= keys


def test_the_configuration_attaches_leaves_to_one_hub_or_to_all() -> None:
    kind = ["topology.kind=star", "topology.agents=7"]
    one, shared = (named_graph(read(changes=kind + more)) for more in ([], ["topology.attach=all"]))
    assert one.edges.tolist() == star(7).edges.tolist()
    assert shared.edges.tolist() == star(7, attach="all").edges.tolist() != one.edges.tolist()
    assert set(shared.degrees[2:].tolist()) == {2}
    with pytest.raises(ConfigError, match=r"topology\.attach: got 'both'\. Known: one, all"):
        read(changes=["topology.attach=both"])


def test_weights_in_a_file_can_be_ignored_and_1_is_not_a_weight(tmp_path: Path) -> None:
    path = written(tmp_path, "a, b, 0.25\nb c 2\n")
    assert read_edge_list(path, weights="ignore").edges.tolist() == [[0, 1], [1, 2]]
    assert read_edge_list(written(tmp_path, "a b 1\nb c 1.0\n")).agents == 3
    with pytest.raises(TopologyError, match="weights: expected 'refuse' or 'ignore', got 'keep'"):
        read_edge_list(path, weights="keep")
