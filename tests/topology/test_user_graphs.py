"""A user's own graph, from networkx or from a file; unsuitable graphs are rejected with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from topdp.runs import config
from topdp.runs.run_outline import RunOutline
from topdp.topology import Topology, TopologyError, as_topology, describe, from_networkx, ring
from topdp.views.pictures.graph_picture import draw


def test_sorted_nodes_of_a_networkx_graph_are_the_agents() -> None:
    graph = from_networkx(nx.Graph([(7, 3), (3, 5), (5, 7), (5, 9)]))
    assert graph.labels == ("3", "5", "7", "9")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3]]


def test_consecutive_numbers_as_nodes_are_the_agent_numbers() -> None:
    grown = nx.Graph([(2, 1), (0, 2)])
    assert list(grown) == [2, 1, 0]
    graph = from_networkx(grown)
    assert graph.labels is None and graph.edges.tolist() == [[0, 2], [1, 2]]


def test_a_given_order_maps_nodes_to_agents() -> None:
    graph = from_networkx(nx.Graph([("a", "b"), ("b", "c")]), order=["c", "b", "a"])
    assert graph.labels == ("c", "b", "a") and graph.edges.tolist() == [[0, 1], [1, 2]]
    with pytest.raises(TopologyError, match="order: expected each of the 3 nodes"):
        from_networkx(nx.path_graph(3), order=[0, 1, 1])


def test_as_topology_returns_a_topology_and_reads_a_path(tmp_path: Path) -> None:
    assert as_topology(kept := ring(4)) is kept
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    for path in (tmp_path / "edges.txt", str(tmp_path / "edges.txt")):
        assert isinstance(as_topology(path), Topology) and as_topology(path).agents == 3


def test_weights_are_rejected_unless_ignored() -> None:
    weighted = nx.Graph()
    weighted.add_weighted_edges_from([(0, 1, 1), (1, 2, 0.5), (2, 0, 3)])
    with pytest.raises(TopologyError, match=r"edge 0 - 2: expected an edge without a weight, got 3 \(2 such"):
        as_topology(weighted)
    assert len(as_topology(weighted, weights="ignore").edges) == 3
    for a, b in weighted.edges:
        weighted[a][b]["weight"] = 1.0
    assert as_topology(weighted).agents == 3


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph([(0, 1)]), "Expected an undirected networkx graph"),
        (nx.MultiGraph([(0, 1), (0, 1)]), "got a multigraph"),
        (nx.Graph([(0, 1), (1, 1)]), "Expected no self loops, got one at 1"),
        (nx.Graph([(0, 1), (2, 3)]), r"Expected a connected graph, got 2 components"),
        (nx.Graph([(0, "a")]), "Expected nodes that can be sorted"),
        (nx.Graph([("1", "2"), ("2", "3")]).subgraph(["1"]), "at least 2 agents, got 1"),
        (nx.empty_graph(3), "got one without edges"),
        ([(0, 1)], "Expected a graph: .* got list"),
        (3, "got int"),
    ],
)
def test_unsuitable_graphs_are_rejected_with_the_reason(graph: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        as_topology(graph)


def test_a_path_in_a_configuration_selects_a_graph_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1 0.5\n1 2 0.5\n")
    for change in ("topology.path", "topology.kind"):
        made = config.read(changes=[f"{change}={tmp_path / 'edges.txt'}", "topology.weights=ignore"])
        assert made.topology.kind == "file" and RunOutline.of(made).graph.agents == 3
        with pytest.raises(TopologyError, match="line 1: expected an edge without a weight"):
            RunOutline.of(config.read(changes=[f"{change}={tmp_path / 'edges.txt'}"]))
    with pytest.raises(config.ConfigError, match=r"got 'rign'. Did you mean 'ring'"):
        config.read(changes=["topology.kind=rign"])


def test_describe_and_draw_accept_a_graph_in_any_form(tmp_path: Path) -> None:
    assert describe(nx.cycle_graph(6))["edges"] == 6
    (tmp_path / "edges.txt").write_text("a b\nb c\n")
    assert describe(tmp_path / "edges.txt")["labels"] == ["a", "b", "c"]
    assert draw(nx.cycle_graph(6), tmp_path / "graph.png").stat().st_size > 1000
