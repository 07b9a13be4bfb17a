"""Draw a graph with its edges, and show which directed edges are covered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.spatial import cKDTree

from topdp.base.array_types import Floats
from topdp.runs.pictures import chart_style
from topdp.topology import Topology, as_topology
from topdp.topology.families import grid_columns

LABEL_LIMIT = 60
"""The most agents whose numbers, names and arrows are drawn. With more agents, all lines are solid."""

LISTED_SETS_AGENTS = 12
"""The most agents of a graph whose sets N_i^j are listed."""

_MAX_LEAVES_ON_CIRCLE = 24  # of one hub; more leaves fill a disc

_FIGURE_WIDTH_INCHES = 6.4
_NODE = "#1F2F46"

_CLASSES: tuple[tuple[int, str, str, Any], ...] = (
    # covered directions, text, colour, line style
    (2, "covered both ways", chart_style.BLUE, "solid"),
    (1, "covered one way", chart_style.RED, (0, (5, 1.5))),
    (0, "not covered", chart_style.GREY, (0, (1, 1.2))),
)


def draw(graph: Topology | nx.Graph | str | Path, path: str | Path, title: str | None = None) -> Path:
    """Draw the graph into a PNG, SVG or PDF file; return its path.

    The size of a disc grows with the agent's number of neighbours. The colour of a line shows in how many of
    its two directions the edge is covered (see `topdp.topology`). If it is covered in one direction only, an
    arrow shows this direction.
    """
    topology = as_topology(graph)
    positions = layout(topology)
    with chart_style.house_style():
        x, y = np.abs(positions).max(axis=0) + (0.08 if topology.labels is None else 0.16)
        x, y = max(x, y / 1.25), max(y, x / 2.5)  # not much taller than wide, nor much wider than tall
        figure = Figure(figsize=(_FIGURE_WIDTH_INCHES, _FIGURE_WIDTH_INCHES * float(y / x) + 1.1))
        axes = figure.add_subplot()
        axes.set(xlim=(-x, x), ylim=(-y, y), aspect="equal")
        axes.axis("off")
        handles = _links(axes, topology, positions)
        _agents(axes, topology, positions, points_per_unit=72 * (_FIGURE_WIDTH_INCHES - 0.3) / (2 * x))
        axes.set_title(f"{title or _title(topology)}\n", pad=2)
        axes.text(
            0,
            1,
            _numbers(topology),
            transform=axes.transAxes,
            va="bottom",
            color=chart_style.GREY,
            fontsize=9,
        )
        legend = figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=3,
            handlelength=3,
            columnspacing=1.6,
            title="i→j is covered when i has another neighbour that is not adjacent to j",
            title_fontsize=8.5,
        )
        legend.get_title().set_color(chart_style.GREY)
        return chart_style.save(figure, path)


def listed_sets(topology: Topology) -> list[str]:
    """Return the sets N_i^j of all directed edges as text, or none for a large graph.

    >>> from topdp.topology import ring
    >>> listed_sets(ring(3))[0], listed_sets(ring(4))[0]
    ('N_0^1 = empty: full noise', 'N_0^1 = {3}')
    """
    if topology.agents > LISTED_SETS_AGENTS:
        return []
    covers = [(i, j, sorted(topology.cover_set(i, j))) for i, j in topology.directed.tolist()]
    return [
        f"N_{i}^{j} = " + (f"{{{', '.join(map(str, cover))}}}" if cover else "empty: full noise")
        for i, j, cover in covers
    ]


def layout(topology: Topology) -> Floats:
    """Return the position of each agent, [n, 2]. Positions are centred; the wider side spans [-1, 1].

    Equal graphs get equal positions.

    >>> from topdp.topology import ring
    >>> layout(ring(4)).round(6).tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, -0.0]]
    """
    positions = _LAYOUTS.get(topology.name, _by_distance)(topology)
    positions = positions - (positions.max(axis=0) + positions.min(axis=0)) / 2
    scaled: Floats = positions / np.abs(positions).max()
    return scaled


def _title(topology: Topology) -> str:
    titles = {"ring": "Ring", "star": "Star", "tree": "Binary tree", "mesh": "Partial mesh", "grid": "Grid"}
    titles |= {"small-world": "Small world", "file": "Graph from a file", "edges": "Graph"}
    return titles.get(topology.name, f"{topology.name.capitalize()} graph")


def _numbers(topology: Topology) -> str:
    least, most = int(topology.degrees.min()), int(topology.degrees.max())
    degree = f"{least}" if least == most else f"{least} to {most}"
    links = f"{len(topology.edges)} edge{'s' if len(topology.edges) > 1 else ''}"
    share = 100 * float(topology.covered.mean())
    percent = f"{share:.0f}" if share in (0, 100) else f"{np.clip(share, 0.1, 99.9):.1f}"
    return f"{topology.agents} agents, {links}, degree {degree}; {percent}% of directed edges covered"


def _links(axes: Any, topology: Topology, positions: Floats) -> list[Line2D]:
    """Draw the edges; return the entries of the legend."""
    i, j = topology.edges.T
    covered = np.zeros((topology.agents, topology.agents), dtype=np.bool_)
    covered[tuple(topology.directed.T)] = topology.covered
    forward, backward = covered[i, j], covered[j, i]
    sparse = len(i) < topology.agents + 2 and int(topology.degrees.max()) <= 8
    crowd = len(i) / 3 if sparse else len(i)  # edges of a tree do not cross
    width = float(np.clip(13 / np.sqrt(crowd), 0.4, 1.6))
    opacity = float(np.clip(15 / np.sqrt(crowd), 0.35, 0.9))
    small = topology.agents <= LABEL_LIMIT
    handles = []
    for directions, text, colour, line in _CLASSES:
        chosen = forward.astype(np.int64) + backward == directions
        if not chosen.any():
            continue
        arrows = directions == 1 and small
        line = line if small else "solid"  # dashes of many lines from one point would look like rings
        axes.add_collection(
            LineCollection(
                positions[topology.edges[chosen]],
                colors=colour,
                linestyles=[line],
                linewidths=width,
                alpha=opacity,
                zorder=1 + 0.4 * (1 - float(chosen.mean())),  # rare classes are drawn on top
            )
        )
        if arrows:
            start = positions[np.where(forward, i, j)[chosen]]
            end = positions[np.where(forward, j, i)[chosen]]
            axes.add_collection(PolyCollection(list(_arrowheads(start, end)), facecolors=colour, zorder=1.5))
        text = f"{text}, as the arrow points" if arrows else text
        handles.append(
            Line2D([], [], color=colour, linestyle=line, linewidth=1.8, label=f"{text}: {int(chosen.sum())}")
        )
    return handles


def _arrowheads(start: Floats, end: Floats) -> Floats:
    """Return the corners of a triangle in the middle of each arrow, [m, 3, 2]."""
    along = end - start
    along = 0.02 * along / np.linalg.norm(along, axis=1, keepdims=True)
    across = along[:, ::-1] * [-0.7, 0.7]
    middle = (start + end) / 2
    return np.stack([middle + along, middle - along + across, middle - along - across], axis=1)


def _agents(axes: Any, topology: Topology, positions: Floats, points_per_unit: float) -> None:
    """Draw a disc for each agent, as large as the distances allow, with the agent's number and name."""
    nearest = cKDTree(positions).query(positions, k=2)[0][:, 1]
    room = points_per_unit * float(np.quantile(nearest, 0.05))
    small = topology.agents <= LABEL_LIMIT
    largest = float(np.clip(0.95 * room, 10, 26) if small else np.clip(0.75 * room, 4, 14))
    share = (topology.degrees - topology.degrees.min()) / max(1, np.ptp(topology.degrees))
    least = 0.7 if small else 0.5
    diameters = largest * (
        least + (1 - least) * share if np.ptp(topology.degrees) else np.full(len(positions), 0.85)
    )
    edge = {"edgecolor": "white", "linewidth": min(1.0, largest / 12)}
    axes.scatter(*positions.T, s=diameters**2, color=_NODE, zorder=2, **edge)
    if not small:
        return
    for agent, (x, y) in enumerate(positions):
        size = float(np.clip(0.5 * diameters[agent], 4.5, 9))
        axes.text(x, y, str(agent), color="white", fontsize=size, ha="center", va="center_baseline", zorder=3)
        if topology.labels is not None:
            below = (0, -diameters[agent] / 2 - 1)
            axes.annotate(
                topology.labels[agent],
                (x, y),
                below,
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=7.5,
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
                zorder=4,
            )


def _circle(count: int, turn: float = 0.0) -> Floats:
    """Return points on the unit circle, [count, 2], clockwise from the top; `turn` rotates them."""
    angle = 2 * np.pi * np.arange(count) / count + turn
    return np.column_stack([np.sin(angle), np.cos(angle)])


def _round(topology: Topology) -> Floats:
    return _circle(topology.agents, turn=-np.pi / 2 if topology.agents == 2 else 0.0)


def _zigzag(topology: Topology) -> Floats:
    """Place agents alternately on two circles, so that edges between second neighbours are visible."""
    inward = np.where(np.arange(topology.agents) % 2, 1 - 4 / max(topology.agents, 20), 1.0)
    return _circle(topology.agents) * inward[:, None]


def _rows(topology: Topology) -> Floats:
    row, column = np.divmod(np.arange(topology.agents), grid_columns(topology.agents))
    return np.column_stack([column, -row]).astype(np.float64)


def _levels(topology: Topology) -> Floats:
    """Place agent 0 on top and each level below its parents, with evenly spread leaves.

    The levels of a large tree are concentric circles.
    """
    graph = nx.from_numpy_array(topology.adjacency)
    positions = np.zeros((topology.agents, 2))
    children = dict(nx.bfs_successors(graph, 0))
    leaves = 0
    for agent in nx.dfs_postorder_nodes(graph, 0):
        below = children.get(agent, [])
        if below:
            positions[agent, 0] = np.mean([positions[child, 0] for child in below])
        else:
            positions[agent, 0] = leaves
            leaves += 1
    for agent, depth in nx.single_source_shortest_path_length(graph, 0).items():
        positions[agent, 1] = -depth
    if leaves > 16:
        angle = 2 * np.pi * positions[:, 0] / leaves
        positions = -positions[:, 1:] * np.column_stack([np.sin(angle), np.cos(angle)])
    else:
        width, height = np.maximum(np.ptp(positions, axis=0), 1)
        positions /= (width, height / 0.7)
    return positions


def _hubs(topology: Topology) -> Floats:
    """Place each hub in the middle of its leaves. Leaves of several hubs are placed on an outer circle."""
    n, degrees = topology.agents, topology.degrees
    shared = degrees.min() > 1
    hubs = np.flatnonzero(degrees == degrees.max() if shared else degrees > 1)
    if len(hubs) in (0, n):
        return _circle(n)
    positions = np.zeros((n, 2))
    middle = _circle(len(hubs), turn=-np.pi / 2 if len(hubs) == 2 else 0.0) * (len(hubs) > 1)
    if shared:
        outer = np.setdiff1d(np.arange(n), hubs)
        positions[hubs] = 0.25 * middle
        positions[outer] = _circle(len(outer))
        return positions
    most = int(degrees[hubs].max())
    apart = 1.4 if most <= _MAX_LEAVES_ON_CIRCLE else 1.1 / np.sin(np.pi / max(2, len(hubs)))
    positions[hubs] = apart * middle
    for hub, centre in zip(hubs, middle, strict=True):
        leaves = np.flatnonzero(topology.adjacency[hub] & (degrees == 1))
        if most > _MAX_LEAVES_ON_CIRCLE:
            positions[leaves] = positions[hub] + _disc(len(leaves))
            continue
        if len(hubs) == 1:
            angle = 2 * np.pi * np.arange(len(leaves)) / len(leaves)
        else:
            reach = 0.78 * np.pi if len(hubs) == 2 else 0.4 * np.pi
            angle = np.arctan2(centre[1], centre[0]) + reach * np.linspace(-1, 1, len(leaves))
        positions[leaves] = positions[hub] + np.column_stack([np.cos(angle), np.sin(angle)])
    return positions


def _disc(count: int) -> Floats:
    """Return points that fill a disc evenly except its centre, [count, 2], like a sunflower (Vogel 1979)."""
    number = np.arange(count)
    angle = np.pi * (3 - np.sqrt(5)) * number
    distance = np.sqrt(0.06 + 0.94 * (number + 0.5) / count)
    points: Floats = distance[:, None] * np.column_stack([np.sin(angle), np.cos(angle)])
    return points


def _by_distance(topology: Topology) -> Floats:
    """Place agents so that their distance approximates the number of edges between them."""
    graph = nx.from_numpy_array(topology.adjacency)
    start = dict(enumerate(_circle(topology.agents)))
    if topology.agents <= 150:
        positions = nx.kamada_kawai_layout(graph, pos=start)
    else:
        positions = nx.spring_layout(graph, pos=start, seed=0, iterations=60)
    return np.array([positions[agent] for agent in range(topology.agents)])


_LAYOUTS: dict[str, Callable[[Topology], Floats]] = {
    "ring": _round,
    "complete": _round,
    "mesh": _zigzag,
    "small-world": _zigzag,
    "grid": _rows,
    "tree": _levels,
    "star": _hubs,
}
