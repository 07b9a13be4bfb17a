"""The graphs that `topology.kind` names: families, and text files with one edge per line.

Random graphs are drawn again until one is connected. Weights of edges in a file are refused or ignored,
because no protocol mixes by the weights of a user's edges. Agents mix by α (the paper) or by Metropolis
weights, which follow from degrees, and proofs and noise assume these weights. If a weight were ignored
without the user's consent, another run would be executed than the user described.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from topdp.plan.random_streams import stream
from topdp.topology._graph import Topology, TopologyError, components, from_edges, whole_number

Weights = Literal["refuse", "ignore"]

# The first line of a file with one of these headers shows that the graph is directed.
HEADERS = (("source", "target"), ("from", "to"), ("src", "dst"))


def read_edge_list(path: str | Path, weights: Weights = "refuse") -> Topology:
    """Return the graph in a text file with one edge per line: two names, separated by blanks or a comma.

    `#` begins a comment. An edge may be listed several times, in either direction. Names are whole numbers or
    text. Numbers 0 .. n-1 are the agents themselves. Other numbers become agents in ascending order, and
    texts in the order of their first appearance; `labels` then holds the names. A number after the two names
    is the weight of the edge. Raise TopologyError for weights other than 1 unless `weights="ignore"`. Also
    raise it, with the number of the line, for a self loop, for `->` or a header such as `source target` (a
    directed graph), and for a line that does not have two names; and, with the components, for a graph that
    is not connected.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hospitals.txt"
    ...     _ = file.write_text("north, south  # by fibre\\nsouth, east\\n")
    ...     graph = read_edge_list(file)
    >>> graph.labels, graph.edges.tolist()
    (('north', 'south', 'east'), [[0, 1], [1, 2]])
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise TopologyError(f"Expected an edge list at {path}, but it cannot be read: {reason}.") from error
    read = {
        number: _link(line, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip()
    }
    if not read:
        raise TopologyError(f"Expected at least one edge in {path}, got none. Write two names per line.")
    expect_no_weights(((f"{path}, line {n}", weight) for n, (_, _, weight) in read.items()), weights)
    links = [(a, b) for a, b, _ in read.values()]
    names = list(dict.fromkeys(name for link in links for name in link))
    numbered = all(name.isdecimal() for name in names)
    if numbered:
        links = [(str(int(a)), str(int(b))) for a, b in links]
        names = sorted({name for link in links for name in link}, key=int)
    agent = {name: index for index, name in enumerate(names)}
    plain = numbered and names == [str(index) for index in range(len(names))]
    return from_edges(
        [(agent[a], agent[b]) for a, b in links],
        len(names),
        name="file",
        labels=None if plain else tuple(names),
    )


def _link(line: str, where: str) -> tuple[str, str, float]:
    """Return the two names on a line of an edge list, and the weight after them, or 1 if there is none.

    Raise TopologyError, with `where` as the position, for any other line.
    """
    content = line.split("#")[0].strip()
    if any(arrow in content for arrow in ("->", "<-", "=>", "→", "←")):
        raise TopologyError(
            f"{where}: expected an undirected edge 'a b', got {content!r}. Agents that send also receive. "
            f"Remove the arrows if every edge works in both directions."
        )
    names = content.replace(",", " ").split()
    if tuple(name.lower() for name in names[:2]) in HEADERS:
        raise TopologyError(
            f"{where}: expected an edge, got the header {content!r}, which marks a directed graph. Remove "
            f"the line if every edge works in both directions."
        )
    weight = _number(names.pop()) if len(names) == 3 else 1.0
    if len(names) != 2 or weight is None or any(not part.strip() for part in content.split(",")):
        raise TopologyError(
            f"{where}: expected two names, got {content!r}. Write one edge per line, without blanks inside "
            "a name."
        )
    if names[0] == names[1]:
        raise TopologyError(
            f"{where}: expected two different agents, got the self loop {content!r}. Remove it."
        )
    return names[0], names[1], weight


def _number(text: str) -> float | None:
    """Return `text` as a finite number; None if it is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def expect_no_weights(edge_weights: Iterable[tuple[str, Any]], weights: str) -> None:
    """Raise TopologyError for weights other than 1 unless `weights` is "ignore".

    `edge_weights`: for each edge, its position as the message names it, and its weight.
    """
    if weights not in get_args(Weights):
        raise TopologyError(f"weights: expected 'refuse' or 'ignore', got {weights!r}.")
    weighted = [(where, weight) for where, weight in edge_weights if weight != 1]
    if weighted and weights == "refuse":
        where, weight = weighted[0]
        raise TopologyError(
            f"{where}: expected an edge without a weight, got {weight!r:.40} ({len(weighted)} such edges in "
            "all). No protocol mixes by given weights. Use weights='ignore' to ignore them; in a "
            'configuration topology.weights = "ignore".'
        )


MAX_GRAPH_DRAWS = 1000


def random(agents: int, connection: float = 0.2, seed: int = 0) -> Topology:
    """Return an Erdős–Rényi graph: each of the n(n-1)/2 edges exists with probability `connection`.

    Graphs are drawn until one is connected. Raise TopologyError after `MAX_GRAPH_DRAWS` draws.

    >>> graph = random(30, 0.2, seed=1)
    >>> graph.agents, bool((graph.adjacency == random(30, 0.2, seed=1).adjacency).all())
    (30, True)
    """
    n = whole_number("agents", agents)
    if not 0 < connection <= 1:
        raise TopologyError(
            f"Expected 0 < connection <= 1, got {connection}. It is the probability of each edge."
        )
    # Drawn here, not by networkx, so that a seed gives the same graph with every version of networkx.
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])  # start of row i in the pairs i < j
    for attempt in range(MAX_GRAPH_DRAWS):
        draws = stream(seed, "topology.random", attempt)
        size = draws.binomial(starts[-1], connection)
        pairs = draws.choice(starts[-1], size, replace=False, shuffle=False)
        rows = np.searchsorted(starts, pairs, side="right") - 1
        edges = np.column_stack([rows, pairs - starts[rows] + rows + 1])
        if size >= n - 1 and components(edges, n)[0] == 1:
            return from_edges(edges, n, name="random")
    likely = math.log(n) / n
    raise TopologyError(
        f"Expected a connected random graph, got none in {MAX_GRAPH_DRAWS} draws of {n} agents at connection "
        f"rate {connection}. A connected graph becomes likely from ln(n)/n = {likely:.3g} on. Raise the rate "
        f"to {min(1.0, 1.5 * likely):.2g} or more."
    )


def ring(agents: int) -> Topology:
    """Return the ring: agent i is adjacent to i-1 and i+1, modulo n.

    >>> ring(4).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    """
    n = whole_number("agents", agents)
    return from_edges([(i, (i + 1) % n) for i in range(n)], n, name="ring")


def complete(agents: int) -> Topology:
    """Return the complete graph: all agents are adjacent to each other. No directed edge is covered.

    >>> len(complete(5).edges)
    10
    """
    n = whole_number("agents", agents)
    return Topology("complete", ~np.eye(n, dtype=np.bool_))


def single() -> Topology:
    """Return the graph of one agent without edges, for a party that holds the records of all agents.

    >>> single().agents, len(single().edges)
    (1, 0)
    """
    return Topology("single", np.zeros((1, 1), dtype=np.bool_))


def star(agents: int, hubs: int = 2, attach: str = "one") -> Topology:
    """Return a star: agents 0 .. hubs-1 are hubs, all adjacent to each other; the others are leaves.

    With `attach="one"`, leaf i is adjacent to hub i mod hubs, so that leaves are split evenly. This is our
    reading of the paper's "star topology with two star agents". With `attach="all"`, every leaf is adjacent
    to every hub.

    >>> star(6).edges.tolist()
    [[0, 1], [0, 2], [0, 4], [1, 3], [1, 5]]
    """
    n, hubs = whole_number("agents", agents), whole_number("hubs", hubs, least=1)
    if hubs >= n:
        raise TopologyError(f"Expected fewer hubs than agents, got {hubs} hubs for {n} agents.")
    if attach not in ("one", "all"):
        raise TopologyError(f"Expected attach to be 'one' or 'all', got {attach!r}.")
    edges = [(a, b) for a in range(hubs) for b in range(a)]
    for leaf in range(hubs, n):
        edges += [(leaf, hub) for hub in ([leaf % hubs] if attach == "one" else range(hubs))]
    return from_edges(edges, n, name="star")


def tree(agents: int) -> Topology:
    """Return the complete binary tree, filled level by level: the parent of agent i is (i-1) // 2.

    >>> tree(5).edges.tolist()
    [[0, 1], [0, 2], [1, 3], [1, 4]]
    """
    n = whole_number("agents", agents)
    return from_edges([((i - 1) // 2, i) for i in range(1, n)], n, name="tree")


def mesh(agents: int) -> Topology:
    """Return a partial mesh: agent i is adjacent to i ± 1, i ± 2, i ± 4, ... up to n/2, modulo n.

    The paper says "partial mesh" without a definition. This mesh is regular with degree about 2 log2(n), has
    near and far edges, and for six or more agents has more edges than the ring and fewer than the complete
    graph.

    >>> mesh(30).neighbours[0].tolist()
    [1, 2, 4, 8, 22, 26, 28, 29]
    """
    n = whole_number("agents", agents)
    offsets = [1 << power for power in range((n // 2).bit_length())]
    return from_edges([(i, (i + offset) % n) for i in range(n) for offset in offsets], n, name="mesh")


def grid(agents: int) -> Topology:
    """Return a grid with rows of ⌈√n⌉ agents. Each agent is adjacent to its neighbours in the same row and in
    the same column. The last row may be shorter.

    >>> grid(5).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [1, 4], [3, 4]]
    """
    n = whole_number("agents", agents)
    columns = grid_columns(n)
    horizontal = [(i, i + 1) for i in range(n - 1) if (i + 1) % columns]
    vertical = [(i, i + columns) for i in range(n - columns)]
    return from_edges(horizontal + vertical, n, name="grid")


def grid_columns(agents: int) -> int:
    """Return ⌈√n⌉, the length of a full row of `grid(agents)`."""
    return math.isqrt(agents - 1) + 1


def small_world(agents: int, degree: int = 4, rewire: float = 0.1, seed: int = 0) -> Topology:
    """Return a Watts–Strogatz graph.

    At first, each agent is adjacent to the `degree` nearest agents on a circle. Then one end of each edge
    moves to a random agent with probability `rewire`. Graphs are drawn until one is connected. Raise
    TopologyError after `MAX_GRAPH_DRAWS` draws.

    >>> len(small_world(20, degree=4, rewire=0.2, seed=3).edges)
    40
    """
    n, degree = whole_number("agents", agents), _degree(agents, degree)
    if degree % 2:
        raise TopologyError(f"Expected an even degree, half on each side, got {degree}. Use {degree + 1}.")
    if not 0 <= rewire <= 1:
        raise TopologyError(f"Expected 0 <= rewire <= 1, got {rewire}. It is the share of moved edges.")
    import networkx as nx  # slow to import, and not needed by agents

    return _draw_until_connected(
        "small-world", lambda s: nx.watts_strogatz_graph(n, degree, rewire, seed=s), seed
    )


def regular(agents: int, degree: int = 4, seed: int = 0) -> Topology:
    """Return a random graph in which every agent has `degree` neighbours.

    Graphs are drawn until one is connected. Raise TopologyError after `MAX_GRAPH_DRAWS` draws.

    >>> regular(20, degree=3, seed=3).degrees.tolist() == [3] * 20
    True
    """
    n, degree = whole_number("agents", agents), _degree(agents, degree)
    if n * degree % 2:
        raise TopologyError(
            f"Expected agents * degree to be even, got {n} * {degree}. Change one of them by one: every edge "
            f"has two ends."
        )
    if degree == 1 and n > 2:
        raise TopologyError(f"Expected degree >= 2, got 1. {n} agents in pairs are not connected.")
    import networkx as nx

    return _draw_until_connected("regular", lambda s: nx.random_regular_graph(degree, n, seed=s), seed)


def _draw_until_connected(kind: str, draw: Callable[[int], Any], seed: int) -> Topology:
    """Return the first connected graph that `draw` returns, which gets another number as seed each time."""
    import networkx as nx

    for attempt in range(MAX_GRAPH_DRAWS):
        graph = draw(int(stream(seed, f"topology.{kind}", attempt).integers(2**32)))
        if nx.is_connected(graph):
            return from_edges(list(graph.edges), len(graph), name=kind)
    raise TopologyError(
        f"Expected a connected {kind} graph, got none in {MAX_GRAPH_DRAWS} draws. Raise the degree."
    )


def _degree(agents: int, degree: int) -> int:
    """Return `degree`; raise TopologyError unless it is a whole number from 1 to agents - 1."""
    degree = whole_number("degree", degree, least=1)
    if degree >= agents:
        raise TopologyError(
            f"Expected degree < agents, got degree {degree} for {agents} agents. An agent has at most "
            f"{agents - 1} neighbours."
        )
    return degree


# The values of `topology.kind` in a configuration, and the functions that make the graphs.
FAMILIES: dict[str, Callable[..., Topology]] = {
    "random": random,
    "ring": ring,
    "star": star,
    "tree": tree,
    "mesh": mesh,
    "complete": complete,
    "grid": grid,
    "small-world": small_world,
    "regular": regular,
    "file": read_edge_list,
}
