"""Reads graphs from text files: one edge per line. Weights of edges are refused or ignored.

No protocol mixes by the weights of a user's edges: agents mix by α (the paper) or by Metropolis weights,
which follow from degrees, and proofs and noise assume these weights. Dropping a weight silently would execute
another run than the user described.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from topdp.topology._graph import Topology, TopologyError, from_edges

Weights = Literal["refuse", "ignore"]

# First lines of files of directed graphs.
HEADERS = (("source", "target"), ("from", "to"), ("src", "dst"))


def read_edge_list(path: str | Path, weights: Weights = "refuse") -> Topology:
    """Return the graph in a text file: one edge per line, two names separated by blanks or a comma.

    `#` begins a comment. An edge may be listed twice, or once in each direction. Names are whole numbers or
    text. Numbers 0 .. n-1 are the agents themselves; other numbers become agents in ascending order, text in
    order of first appearance, and `labels` keeps the names. TopologyError names the line of a self loop, of
    `->` or a header such as `source target` (a directed file), and of anything but two names; for an
    unconnected graph it names the components. A number after the two names is the weight of the edge; weights
    other than 1 are refused unless `weights="ignore"`.

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
    """Return the two names on a line of an edge list, and the weight after them, by default 1."""
    content = line.split("#")[0].strip()
    if any(arrow in content for arrow in ("->", "<-", "=>", "→", "←")):
        raise TopologyError(
            f"{where}: expected an undirected edge 'a b', got {content!r}; remove the arrows if every edge "
            f"works both ways: agents that send also receive."
        )
    names = content.replace(",", " ").split()
    if tuple(name.lower() for name in names[:2]) in HEADERS:
        raise TopologyError(
            f"{where}: expected an edge, got the header {content!r}, which marks a directed graph; remove "
            f"the line if every edge works both ways."
        )
    weight = _number(names.pop()) if len(names) == 3 else 1.0
    if len(names) != 2 or weight is None or any(not part.strip() for part in content.split(",")):
        raise TopologyError(
            f"{where}: expected two names, got {content!r}; write one edge per line, without blanks inside "
            "a name."
        )
    if names[0] == names[1]:
        raise TopologyError(
            f"{where}: expected two different agents, got the self loop {content!r}; remove it."
        )
    return names[0], names[1], weight


def _number(text: str) -> float | None:
    """Return `text` as a finite number; None if it is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def expect_no_weights(placed: Iterable[tuple[str, Any]], weights: str) -> None:
    """Raise TopologyError for weights other than 1 unless `weights` is "ignore".

    `placed`: for each edge, its position for the message, and its weight.
    """
    if weights not in get_args(Weights):
        raise TopologyError(f"weights: expected 'refuse' or 'ignore', got {weights!r}.")
    others = [(where, weight) for where, weight in placed if weight != 1]
    if others and weights == "refuse":
        where, weight = others[0]
        raise TopologyError(
            f"{where}: expected an edge without a weight, got {weight!r:.40} ({len(others)} such in all). No "
            "protocol mixes by given weights. Use weights='ignore' to drop them; in a configuration "
            'topology.weights = "ignore".'
        )
